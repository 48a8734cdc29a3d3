package event_test

import (
	"errors"
	"strings"
	"testing"

	"answerd/internal/event"
)

var (
	other = event.Call{CallID: "c2", Tool: "t", Server: "s"}
	// running begins two calls that have no result yet.
	running = []event.Body{
		event.Start{}, event.ToolCallStart{Call: call}, event.ToolCall{Call: call}, event.ToolCallStart{Call: other}, event.ToolCall{Call: other},
	}
	approve = event.ApprovalRequired{Call: call, InterruptID: "i1"}
	agreed  = event.ApprovalResolved{Call: call, InterruptID: "i1", Approved: true}
	elicit  = event.Elicitation{Call: other, InterruptID: "i2"}
	filled  = event.ElicitationResolved{Call: other, InterruptID: "i2", Action: "accept"}
	waits   = event.Suspended{}
)

func TestWriterOfASuspendedRunAppendsQuestionsAnswersAndTheEnd(t *testing.T) {
	for _, c := range []struct {
		name  string
		after []event.Body
		want  string // what follows the calls
		err   error
	}{
		{"an answer", []event.Body{approve, waits, agreed, event.ToolProgress{Call: call}}, "approval_required suspended approval_resolved tool_progress", nil},
		{"another question", []event.Body{approve, waits, elicit, waits}, "approval_required suspended elicitation suspended", nil},
		{"answered one by one", []event.Body{approve, elicit, waits, filled, waits, agreed}, "approval_required elicitation suspended elicitation_resolved suspended approval_resolved", nil},
		{"the end", []event.Body{approve, elicit, waits, event.Cancelled{}},
			"approval_required elicitation suspended approval_resolved elicitation_resolved tool_error tool_error cancelled", nil},
		{"progress", []event.Body{approve, waits, event.ToolProgress{Call: other}}, "approval_required suspended", event.ErrSuspended},
		{"a result", []event.Body{approve, waits, event.ToolResult{Call: other}}, "approval_required suspended", event.ErrSuspended},
		{"a step", []event.Body{approve, waits, event.StepStart{Step: 1}}, "approval_required suspended", event.ErrSuspended},
		{"nothing new", []event.Body{approve, waits, waits}, "approval_required suspended", event.ErrSuspended},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := appendTypes(t, append(append([]event.Body{}, running...), c.after...)...)
			if rest := strings.Join(got[len(running):], " "); rest != c.want || !errors.Is(err, c.err) {
				t.Errorf("after the calls came %s, %v, want %s, %v", rest, err, c.want, c.err)
			}
		})
	}
}

func TestWriterKeepsTheOrderOfQuestionsAndAnswers(t *testing.T) {
	for name, after := range map[string][]event.Body{
		"an answer without a question":       {agreed},
		"a second answer":                    {approve, agreed, agreed},
		"a question that is asked":           {approve, approve},
		"a question of a call that is over":  {event.ToolResult{Call: call}, approve},
		"a result before the answer":         {approve, event.ToolResult{Call: call}},
		"an error before the answer":         {elicit, event.ToolError{Call: other}},
		"suspended with nothing to wait for": {waits},
		"suspended when all is answered":     {approve, agreed, waits},
		"suspended within a step":            {event.StepStart{Step: 1}, approve, waits},
	} {
		t.Run(name, func(t *testing.T) {
			bodies := append(append([]event.Body{}, running...), after...)
			got, err := appendTypes(t, bodies...)
			var order *event.OrderError
			if !errors.As(err, &order) || len(got) != len(bodies)-1 {
				t.Errorf("events are %v, %v, want all but the last one and an OrderError", got, err)
			}
		})
	}
}

func TestInterruptBodyIsTheEventThatAsks(t *testing.T) {
	a := event.Interrupt{ID: "i", Kind: event.KindApproval, Call: call, Message: "m", Args: []byte(`{}`), ToolVersion: "v", ExpiresAt: 2}
	if b, ok := a.Body().(event.ApprovalRequired); !ok || b.InterruptID != "i" || b.Call != call || b.Message != "m" || string(b.Args) != "{}" || b.ToolVersion != "v" || b.ExpiresAt != 2 {
		t.Errorf("Body of an approval = %+v, want the fields of %+v", b, a)
	}
	e := event.Interrupt{ID: "i", Kind: event.KindElicitation, Call: call, Mode: "form", Schema: []byte(`{}`), URL: "u", ExpiresAt: 2}
	if b, ok := e.Body().(event.Elicitation); !ok || b.InterruptID != "i" || b.Mode != "form" || string(b.Schema) != "{}" || b.URL != "u" {
		t.Errorf("Body of an elicitation = %+v, want the fields of %+v", b, e)
	}
}
