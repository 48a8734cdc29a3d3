package chat_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"answerd/internal/api/chat"
	"answerd/internal/api/scenario"
	"answerd/internal/event"
)

// A run in this format: its stream with usage, and after it the response of a caller who does not
// stream.
func TestScenarios(t *testing.T) {
	for _, s := range scenario.All(t) {
		t.Run(s.Name, func(t *testing.T) {
			head := chat.Header{ID: scenario.RunID, Model: "m", Created: time.Unix(1_795_000_000, 0)}
			enc, collector := chat.NewEncoder(head, true), chat.NewCollector(head)
			var got []byte
			for _, e := range s.Events {
				for _, f := range enc.Encode(e) {
					got = f.AppendTo(got)
				}
				collector.Add(e)
			}

			if _, ok := s.Events[len(s.Events)-1].Body.(event.FinalAnswer); ok {
				whole, err := json.MarshalIndent(collector.Completion(), "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				got = append(append(got, whole...), '\n')
			}

			s.Golden(t, "chat.golden", got)
			if bytes.Contains(got, []byte(`"content":""`)) && bytes.Count(got, []byte(`"role":"assistant"`)) != 1 {
				t.Errorf("%d chunks have a role, want 1", bytes.Count(got, []byte(`"role":"assistant"`)))
			}
		})
	}
}
