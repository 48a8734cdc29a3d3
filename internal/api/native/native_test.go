package native_test

import (
	"testing"

	"answerd/internal/api/native"
	"answerd/internal/api/scenario"
	"answerd/internal/sse"
)

// In every scenario, AppendFrame writes what the general encoder of frames would.
func TestAppendFrameWritesAnSSEFrame(t *testing.T) {
	for _, s := range scenario.All(t) {
		for _, e := range s.Events {
			frame := sse.Frame{ID: native.EventID(e), Event: string(e.Body.Type()), Data: e.AppendJSON(nil)}
			if got, want := string(native.AppendFrame([]byte("before "), e)), string(frame.AppendTo([]byte("before "))); got != want {
				t.Errorf("%s: got %q, want %q", s.Name, got, want)
			}
		}
	}
}
