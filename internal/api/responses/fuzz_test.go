package responses_test

import (
	"testing"

	"answerd/internal/api/responses"
)

// Each text that is accepted as the id of a response is the id that the response would have, except
// for leading zeros and a sign.
func FuzzID(f *testing.F) {
	for _, id := range []string{"resp_a", "resp_a_1", "resp_a_0", "resp_a_-1", "resp_", "resp__1", "run_a", "resp_a_1_2", "resp_a_2_1", "resp_a_1_2_3", "resp_a_9223372036854775808", "resp_\xff_7"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		run, span, ok := responses.ParseID(id)
		if !ok {
			return
		}
		again, at, ok := responses.ParseID(responses.FormatID(run, span))
		if !ok || again != run || at != span || span.After < 0 || span.Until < 0 || span.Until > 0 && span.Until <= span.After {
			t.Errorf("ParseID(%q) = %q, %v, and of their ID %q, %v, want the same and a valid span", id, run, span, again, at)
		}
	})
}

// Stored requests come from a log that other versions write too.
func FuzzKept(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `[]`, `{"model":"m"}`, `{"asked":[{"role":"user"}]}`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if k, ok := responses.DecodeStored(data); ok {
			k.Messages()
		}
	})
}
