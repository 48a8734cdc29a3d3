package agent

import "testing"

// A checkpoint that one process stored can be read by another one, also of another version.
func FuzzHeld(f *testing.F) {
	for _, s := range []string{`{"version":1,"request":{"Question":"?"}}`, `{"version":2}`, `{"version":1,"request":null}`, `{"version":1,"traceparent":"00-x"}`, `[]`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		if h, err := decodeCheckpoint(request); err == nil && h.Version != checkpointVersion {
			t.Errorf("%q is taken for version %d, want %d", request, h.Version, checkpointVersion)
		}
	})
}
