package aisdk_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"answerd/internal/api/aisdk"
	"answerd/internal/api/scenario"
	"answerd/internal/event"
)

func newHeader(after int64) aisdk.Header {
	return aisdk.Header{MessageID: "msg_1", RunID: scenario.RunID, ThreadID: scenario.ThreadID, After: after}
}

// encodeStream returns the stream of events for a reader that has seen those up to after.
func encodeStream(after int64, events []event.Event) []byte {
	enc := aisdk.NewEncoder(newHeader(after))
	var out []byte
	for _, e := range events {
		for _, f := range enc.Encode(e) {
			out = f.AppendTo(out)
		}
	}
	return out
}

// TestScenarios shows every segment of every run as its own stream, and a run that
// waited for a person once more as the stream of who reads it from the start.
func TestScenarios(t *testing.T) {
	for _, s := range scenario.All(t) {
		t.Run(s.Name, func(t *testing.T) {
			var out bytes.Buffer
			segments := s.Segments()
			for i, segment := range segments {
				fmt.Fprintf(&out, "== stream %d\n%s", i+1, encodeStream(segment.After, s.EventsUntil(segment)))
			}
			if len(segments) > 1 {
				fmt.Fprintf(&out, "== replay\n%s", encodeStream(0, s.EventsUntil(segments[len(segments)-1])))
			}
			s.Golden(t, "aisdk.golden", out.Bytes())
		})
	}
}

func TestStreamContinuesWhereThePreviousOneEnded(t *testing.T) {
	for _, s := range scenario.All(t) {
		for after := range int64(len(s.Events)) {
			if !slices.ContainsFunc(s.Segments(), func(st scenario.Segment) bool { return st.After == after }) {
				continue
			}
			if got := encodeStream(after, s.Events); !bytes.HasPrefix(got, []byte(`data: {"messageId":"msg_1","messageMetadata":`)) {
				t.Errorf(`%s after %d begins with %.80s, want it to start with data: {"messageId":"msg_1","messageMetadata":`, s.Name, after, got)
			}
		}
	}
}
