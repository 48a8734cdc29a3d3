package agent

import (
	"fmt"
	"net/url"
	"slices"

	"answerd/internal/llm"
)

// standIn is the message in the place of a result that was left out. The call and its
// answer stay a pair: endpoints refuse one without the other.
func (c *conversation) standIn(m *llm.Message) llm.Message {
	return llm.Message{Role: m.Role, CallID: m.CallID, Tool: m.Tool, Failed: m.Failed, Text: fmt.Sprintf(
		"[The result of %s (call %s) was left out to make room%s.]", m.Tool, m.CallID, c.place(m, ". It is kept at "))}
}

// place says where a result is kept whole, behind what leads to it; "" for one that came
// with the request, which we don't keep.
func (c *conversation) place(m *llm.Message, lead string) string {
	if c.given[m.CallID] {
		return ""
	}
	return lead + placeOf(c.runID, m.CallID)
}

// longArguments is from how many bytes on arguments are worth a stand-in.
const longArguments = 256

// withoutArguments is a message without the long arguments of its calls. That they were
// made must stay: a model that doesn't know would make them again.
func withoutArguments(m *llm.Message) llm.Message {
	short := *m
	short.Calls = slices.Clone(m.Calls)
	for i, c := range short.Calls {
		if len(c.Arguments) > longArguments {
			short.Calls[i].Arguments = fmt.Sprintf(`{"left_out":"%d bytes of arguments, to make room"}`, len(c.Arguments))
		}
	}
	return short
}

// placeOf is where a result is kept whole.
func placeOf(runID, callID string) string {
	return "/runs/" + runID + "/results/" + url.PathEscape(callID)
}
