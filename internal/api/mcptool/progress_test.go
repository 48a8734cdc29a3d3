package mcptool_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"answerd/internal/api/mcptool"
	"answerd/internal/event"
)

// A model that writes fast and a tool that reports every byte are told at a rate, by the
// log's time, and the newest of it in the end.
func TestProgressIsSentAtARate(t *testing.T) {
	n := mcptool.NewProgressReporter()
	at, told, last := int64(1000), 0, ""
	for i := range 100 {
		at += 30
		if m := n.MessageFor(event.Event{Time: at, Body: event.TextDelta{Delta: fmt.Sprintf("%d ", i)}}); m != "" {
			told, last = told+1, m
		}
	}
	if told != 3 {
		t.Errorf("3 s of text were told %d times, want 3", told)
	}
	if m := n.MessageFor(event.Event{Time: at, Body: event.TextEnd{}}); !strings.HasSuffix(m, "98 99 ") || m == last {
		t.Errorf(`the end of the text: %q, want m ending in "98 99 ", m other than %q`, m, last)
	}
	if m := n.MessageFor(event.Event{Time: at, Body: event.TextEnd{}}); m != "" {
		t.Errorf("told twice: %q, want empty", m)
	}
	told = 0

	for range 100 {
		at += 10
		if n.MessageFor(event.Event{Time: at, Body: event.ToolProgress{Progress: 1}}) != "" {
			told++
		}
	}
	if told != 5 {
		t.Errorf("1 s of progress was told %d times, want 5", told)
	}
}

// Texts come from models and tools: of any length, and cut between letters.
func TestMessagesAreBounded(t *testing.T) {
	long := strings.Repeat("ä", 10_000)
	for _, b := range []event.Body{
		event.TextDelta{Delta: long}, event.ToolProgress{Message: long}, event.ToolError{Payload: long},
		event.Elicitation{Message: long}, event.ApprovalRequired{Message: long},
	} {
		m := mcptool.NewProgressReporter().MessageFor(event.Event{Time: 1, Body: b})
		if len(m) > 2100 || !utf8.ValidString(m) || !strings.Contains(m, "…") {
			t.Errorf("%T: %d bytes, valid %v: %q, want at most 2100 of UTF-8 with an ellipsis", b, len(m), utf8.ValidString(m), m)
		}
	}
}
