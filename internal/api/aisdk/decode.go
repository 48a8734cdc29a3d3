package aisdk

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"answerd/internal/agent"
	"answerd/internal/agent/thread"
	"answerd/internal/api/typeerror"
)

// Request holds a decoded body.
type Request struct {
	agent.Request // its ThreadID is the chat's id
	// MessageID is the id of the assistant's message that the stream continues; "" starts a new message.
	MessageID string
	// Answers are all of the user's answers in that message, including those that the page has posted before. If one of
	// them answers an open interrupt of a run, the request resumes that run instead of starting a new one.
	Answers []Answer
	// Options is the member "answerd", which has native fields; nil if it is missing.
	Options json.RawMessage
}

// HasToolResults reports whether the request is about a message of the assistant and ends with results of the page's
// own tools, so that a new run can continue the message.
func (q Request) HasToolResults() bool {
	return q.MessageID != "" && len(q.History) > 0 && q.History[len(q.History)-1].Role == "tool"
}

// body has the members of a request that Decode reads. Decode ignores others, because pages add their own.
type body struct {
	ID        string          `json:"id"`
	Messages  []message       `json:"messages"`
	MessageID string          `json:"messageId"`
	Trigger   string          `json:"trigger"`
	Model     string          `json:"model"`
	Agent     string          `json:"agent"` // a named agent
	System    string          `json:"system"`
	Tools     toolList        `json:"tools"`
	Approvals *bool           `json:"approvals"` // false if the page cannot ask for them
	Answerd   json.RawMessage `json:"answerd"`
}

// Decode decodes the body of a request. The error is an *Invalid about the first field that cannot be used; the
// returned Request is then incomplete.
func Decode(data []byte) (Request, error) {
	var in body
	if !utf8.Valid(data) {
		return Request{}, &Invalid{"", "the body is not valid UTF-8"}
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return Request{}, decodeError(data, err)
	}
	request := Request{Options: in.Answerd}
	request.Model = in.Model
	request.ThreadID = in.ID
	request.ToolChoice = agent.ToolAuto
	request.Instructions = in.System
	request.Agent = in.Agent
	request.Interactive = true
	request.ApprovalsDeclined = in.Approvals != nil && !*in.Approvals
	switch {
	case !thread.IsID(in.ID):
		return request, &Invalid{"id", thread.IDRule}
	case len(in.Agent) > maxID:
		return request, &Invalid{"agent", "must be at most 128 bytes"}
	case len(in.Messages) == 0 || len(in.Messages) > maxMessages:
		return request, &Invalid{"messages", fmt.Sprintf("must be 1 to %d", maxMessages)}
	}
	if err := request.readTools(in.Tools); err != nil {
		return request, err
	}
	for i, m := range in.Messages {
		if err := request.readMessage(fmt.Sprintf("messages[%d]", i), m); err != nil {
			return request, err
		}
	}
	return request, request.readQuestion(in.Messages, in.MessageID, in.Trigger)
}

// decodeError turns err, the error of json.Unmarshal for body, into an *Invalid. It names the field if err does.
func decodeError(body []byte, err error) error {
	if field, typeName, ok := typeerror.Find(body, err); ok {
		return &Invalid{field, "must not be a " + typeName}
	}
	return &Invalid{"", "the body is not a JSON object of this format"}
}

// regenerate is the trigger of a request for another answer to the last question. Such a request has the whole
// conversation in its messages. It cannot continue the thread, which contains the answer that is to be replaced.
const regenerate = "regenerate-message"

// readQuestion reads what the request asks from the assistant's message with that id or, if no message of the assistant
// has it, from the last message.
//
// If it is the user's message, readQuestion moves it from the history to the question. If it is the assistant's, the
// request has no question, but answers to interrupts or results of client tools. The assistant's message need not be
// the last one, because the user may have asked something else before approving a call.
func (q *Request) readQuestion(messages []message, id, trigger string) error {
	index := slices.IndexFunc(messages, func(m message) bool { return id != "" && m.ID == id && m.Role == "assistant" })
	if index < 0 {
		index = len(messages) - 1
	}
	switch messages[index].Role {
	case "assistant":
		if len(messages) == 1 {
			q.continueThread()
		}
		return q.readAnsweredMessage(fmt.Sprintf("messages[%d]", index), messages[index])
	case "system":
		return &Invalid{"messages", "must end with a message of the user"}
	}
	last := q.History[len(q.History)-1] // readMessage added the user's message there
	if strings.TrimSpace(last.Content) == "" && len(last.Media) == 0 {
		return &Invalid{"messages", "must end with a message that is not blank"}
	}
	q.TakeQuestion()
	if q.History == nil && trigger == regenerate {
		q.History = []agent.Message{} // says that nothing came before, so that the question does not continue the thread
	}
	return nil
}

// readAnsweredMessage reads the id of msg, a message of the assistant, and the user's answers in it. The history must have been
// read, because it has the results of client tools. field is msg's path in the request, for errors.
func (q *Request) readAnsweredMessage(field string, msg message) error {
	if msg.ID == "" || len(msg.ID) > maxID {
		return &Invalid{field + ".id", "must be 1 to 128 bytes"}
	}
	q.MessageID = msg.ID
	q.Answers = readAnswers(field, msg.Parts)
	if len(q.Answers) == 0 && !q.HasToolResults() {
		return &Invalid{"messages", "must end with a message of the user, an answer or the result of a tool"}
	}
	return nil
}

// continueThread makes a request whose only message is the assistant's continue the thread, which has the question and
// the message's calls. So only the results of the last calls stay in the history. It does nothing if the message does
// not end with results.
func (q *Request) continueThread() {
	first := len(q.History)
	for first > 0 && q.History[first-1].Role == "tool" {
		first--
	}
	if first < len(q.History) {
		q.History, q.ContinueThread = q.History[first:], true
	}
}

// inTool is a client tool: the page declares it in the request and executes its calls.
type inTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// toolList is the member tools: a list or, as assistant-ui sends it, an object with the tools by name.
type toolList []inTool

// UnmarshalJSON decodes both forms. It sorts an object's tools by name, so that the prompt is the same for each request
// and the model endpoint can use its prompt cache.
func (l *toolList) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '{' {
		return json.Unmarshal(data, (*[]inTool)(l))
	}
	var byName map[string]inTool
	if err := json.Unmarshal(data, &byName); err != nil {
		return err
	}
	for name, t := range byName {
		t.Name = name
		*l = append(*l, t)
	}
	slices.SortFunc(*l, func(a, b inTool) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// readTools adds the page's tools in to the request. It refuses the name ElicitationTool: a page could not distinguish
// a call of its own tool from an elicitation.
func (q *Request) readTools(in []inTool) error {
	if len(in) > agent.MaxClientTools {
		return &Invalid{"tools", fmt.Sprintf("must not be more than %d", agent.MaxClientTools)}
	}
	for i, t := range in {
		if t.Name == ElicitationTool {
			return &Invalid{fmt.Sprintf("tools[%d].name", i), "is reserved for elicitations"}
		}
		invalid := q.AddClientTool(agent.ClientTool{Name: t.Name, Description: t.Description, Schema: t.Parameters})
		if invalid != nil {
			member := strings.TrimPrefix(invalid.Pointer, "/")
			return &Invalid{fmt.Sprintf("tools[%d].%s", i, member), invalid.Detail}
		}
	}
	return nil
}

// Answer is a person's answer to one interrupt of a run.
type Answer struct {
	agent.Input
	Field string // the answer's path in the request, for errors
	// Output is the output of the tool "elicitation" as the page posted it; nil for an approval.
	Output json.RawMessage
}

// readAnswers returns the user's answers in the parts of a message: decisions about approvals, and outputs of
// elicitations. An elicitation with an error counts as cancelled. Elicitations that are marked as executed by the
// provider are ignored, because they were answered before (endElicitation sets the mark). field is the message's path in
// the request, for errors.
func readAnswers(field string, parts []part) (answers []Answer) {
	for i, p := range parts {
		partField := fmt.Sprintf("%s.parts[%d]", field, i)
		isElicitation := p.calledTool() == ElicitationTool && !p.ProviderExecuted
		switch {
		case p.Approval != nil && p.State == "approval-responded" && p.Approval.Approved != nil:
			reason := p.Approval.Reason[:min(len(p.Approval.Reason), maxReason)]
			reason = strings.ToValidUTF8(reason, "") // the cut may split a character
			decision := agent.Input{ID: p.Approval.ID, Approved: p.Approval.Approved, Reason: reason}
			answers = append(answers, Answer{Input: decision, Field: partField + ".approval"})
		case isElicitation && p.State == "output-available":
			answers = append(answers, Answer{readElicitation(p), partField + ".output", p.Output})
		case isElicitation && p.State == "output-error":
			cancelled := agent.Input{ID: p.ToolCallID, Action: "cancel"}
			answers = append(answers, Answer{cancelled, partField, json.RawMessage(`{"action":"cancel"}`)})
		}
	}
	return answers
}

// readElicitation returns the elicitation's output {"action", "content"} as input for the agent. An output of another
// form becomes an empty action, which the agent refuses.
func readElicitation(p part) agent.Input {
	var output struct {
		Action  string          `json:"action"`
		Content json.RawMessage `json:"content"`
	}
	_ = json.Unmarshal(p.Output, &output)
	if string(output.Content) == "null" {
		output.Content = nil
	}
	return agent.Input{ID: p.ToolCallID, Action: output.Action, Content: output.Content}
}
