package native_test

import (
	"testing"

	"answerd/internal/api/native"
	"answerd/internal/api/scenario"
)

// Events written by hand are what their frames are, in every scenario.
func TestAnEventOnTheWireIsItsFrame(t *testing.T) {
	for _, s := range scenario.All(t) {
		for _, e := range s.Events {
			if got, want := string(native.AppendFrame([]byte("before "), e)), string(native.Frame(e).AppendTo([]byte("before "))); got != want {
				t.Errorf("%s: %q, and its frame is %q", s.Name, got, want)
			}
		}
	}
}
