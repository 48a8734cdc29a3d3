package api

import (
	"strings"
	"testing"

	"answerd/internal/api/responses"
	"answerd/internal/event"
)

// short is the events of a run in short: ?a asks for an approval, !a is its answer, and |
// says that the run waits.
func short(text string) (events []event.Event) {
	for i, word := range strings.Fields(text) {
		e := event.Event{Seq: int64(i + 1)}
		switch word[0] {
		case '?':
			e.Body = event.ApprovalRequired{InterruptID: word[1:]}
		case '!':
			e.Body = event.ApprovalResolved{InterruptID: word[1:]}
		default:
			e.Body = event.Suspended{}
		}
		events = append(events, e)
	}
	return events
}

// Two approvals of one request may be taken one after the other, with a pause in between,
// or both at once; nobody who asks again later may see a difference.
func TestAResponseSpansTheApprovalsThatItAnswers(t *testing.T) {
	span := func(after, until int64) responses.Span { return responses.Span{After: after, Until: until} }
	for _, c := range []struct {
		events, approvals string
		want              responses.Span
	}{
		{"?a |", "a", span(2, 0)}, // not yet taken
		{"?a | !a", "a", span(2, 0)},
		{"?a | !a ?b | !b", "a", span(2, 0)},
		{"?a | !a ?b | !b", "b", span(5, 0)},
		{"?a ?b | !a !b", "a b", span(3, 0)},
		{"?a ?b | !a | !b", "a b", span(3, 6)},
		{"?a ?b | !a | !b", "a", span(3, 0)},
		{"?a ?b | !a | !b", "b", span(5, 0)},
		{"?a ?b ?c | !a | !b | !c ?d |", "c b a", span(4, 9)},
	} {
		var approvals []responses.Approval
		for _, name := range strings.Fields(c.approvals) {
			approvals = append(approvals, responses.Approval{Interrupt: name})
		}
		if got := answering(short(c.events), approvals); got != c.want {
			t.Errorf("%s, %s: %v, want %v", c.events, c.approvals, got, c.want)
		}
	}
	for _, c := range []struct {
		events string
		end    int64
		want   responses.Span
	}{
		{"?a |", 2, span(0, 0)},
		{"?a | !a ?b |", 5, span(2, 0)},
		{"?a ?b | !a | !b ?c |", 8, span(3, 6)},
		{"?a ?b | !a |", 5, span(3, 0)},
	} {
		if got := endingAt(short(c.events), c.end); got != c.want {
			t.Errorf("%s: %v, want %v", c.events, got, c.want)
		}
	}
}
