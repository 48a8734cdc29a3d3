package agui_test

import (
	"bytes"
	"fmt"
	"testing"

	"answerd/internal/api/agui"
	"answerd/internal/api/scenario"
	"answerd/internal/event"
)

// encodeStream returns the stream of an AG-UI run, for a client that has seen the events up to after.
func encodeStream(run string, v1 bool, after int64, events []event.Event) []byte {
	enc := agui.NewEncoder(agui.Header{ThreadID: "thread", ClientRunID: run, RunID: scenario.RunID, V1: v1, After: after})
	var out []byte
	for _, e := range events {
		for _, f := range enc.Encode(e) {
			out = f.AppendTo(out)
		}
	}
	return out
}

// TestScenarios shows every segment of every run as the AG-UI run that it is to the
// client, and a run that waited for a person once more as one that is read from the start.
func TestScenarios(t *testing.T) {
	for _, s := range scenario.All(t) {
		for name, v1 := range map[string]bool{"agui-0.golden": false, "agui-1.golden": true} {
			t.Run(s.Name+"/"+name, func(t *testing.T) {
				var out bytes.Buffer
				segments := s.Segments()
				for i, segment := range segments {
					run := fmt.Sprintf("client-run-%d", i+1)
					fmt.Fprintf(&out, "== stream %d\n%s", i+1, encodeStream(run, v1, segment.After, s.EventsUntil(segment)))
				}
				if last := segments[len(segments)-1]; len(segments) > 1 {
					fmt.Fprintf(&out, "== replay\n%s", encodeStream("client-run-1", v1, 0, s.EventsUntil(last)))
				}
				s.Golden(t, name, out.Bytes())
			})
		}
	}
}
