package mcptool_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/api/mcptool"
	"answerd/internal/event"
)

// Only the field approved itself is an approval, because hosts accept forms that nobody has seen.
func TestApprovalIsGivenByItsFieldOnly(t *testing.T) {
	i := event.Interrupt{ID: "int_1", Kind: event.KindApproval, Message: "May I?", Args: json.RawMessage(`{"path":"a"}`)}
	for _, c := range []struct {
		action, content string
		want            bool
	}{
		{"accept", `{"approved":true}`, true},
		{"accept", `{"approved":false}`, false},
		{"accept", `{"approved":"true"}`, false},
		{"accept", `{}`, false},
		{"accept", ``, false},
		{"accept", `[]`, false},
		{"decline", `{"approved":true}`, false},
		{"cancel", `{"approved":true}`, false},
		{"nonsense", `{"approved":true}`, false},
	} {
		if in := mcptool.InputOf(i, c.action, json.RawMessage(c.content)); in.Approved == nil || *in.Approved != c.want {
			t.Errorf("action %s %s: %v, want Approved non-nil, Approved %v", c.action, c.content, *in.Approved, c.want)
		}
	}
	if q := mcptool.ElicitationOf(i); !strings.Contains(q.Message, `{"path":"a"}`) || !strings.Contains(q.Message, "May I?") {
		t.Errorf(`asked is %q, want Message containing {"path":"a"}, Message containing "May I?"`, q.Message)
	}
}

// A visit has no content, but some clients send an empty form with it, which the agent would refuse.
func TestAnswerToAURLHasNoContent(t *testing.T) {
	i := event.Interrupt{ID: "int_1", Kind: event.KindElicitation, Mode: "url", URL: "https://pay.example"}
	if in := mcptool.InputOf(i, "accept", json.RawMessage(`{}`)); in.Action != "accept" || in.Content != nil {
		t.Errorf("got the action %q and the content %s, want accept and none", in.Action, in.Content)
	}
}

// A call can continue a run that started before its agent had an output schema. MCP clients refuse a structured content
// of null.
func TestResultWithoutOutputHasNoStructuredContent(t *testing.T) {
	if r := mcptool.OutputResult(event.FinalAnswer{Answer: "Well."}); r.Structured != nil || !r.IsError || r.Text != "Well." {
		t.Errorf("got %#v, want an error with the text Well. and no structured content", r)
	}
}

// Else a person could take the part that they see for the whole call.
func TestApprovalSaysHowMuchOfTheArgumentsItShows(t *testing.T) {
	args := `{"text":"` + strings.Repeat("x", 5000) + `","path":"/etc"}`
	q := mcptool.ElicitationOf(event.Interrupt{ID: "int_1", Kind: event.KindApproval, Message: "May I?", Args: json.RawMessage(args)})
	if want := fmt.Sprintf("Arguments (only the first 4096 of %d bytes): {", len(args)); !strings.Contains(q.Message, want) {
		t.Errorf("got the message %.80q, want %q in it", q.Message, want)
	}
}
