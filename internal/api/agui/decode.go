package agui

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"answerd/internal/agent"
	"answerd/internal/agent/thread"
	"answerd/internal/api/typeerror"
)

// Request holds a decoded RunAgentInput.
type Request struct {
	agent.Request        // ThreadID is the client's id of the thread
	RunID         string // the client's id of the AG-UI run
	V1            bool   // the client uses version 1.0 of the protocol
	// Answers are answers to interrupts. If there are any, the request has no question: it resumes the suspended run of
	// its thread.
	Answers []Answer
	// Options is the member forwardedProps.answerd, which has native fields; nil if it is missing.
	Options json.RawMessage
}

// input has the members of a RunAgentInput that Decode reads. Decode ignores all others, such as state, because the
// agent has no use for them.
type input struct {
	ThreadID        string          `json:"threadId"`
	RunID           string          `json:"runId"`
	ProtocolVersion string          `json:"protocolVersion"` // 0.x sends none
	Messages        []message       `json:"messages"`
	Tools           []tool          `json:"tools"`
	Context         []contextItem   `json:"context"`
	Resume          []resumption    `json:"resume"`
	ForwardedProps  json.RawMessage `json:"forwardedProps"`
}

// tool is a tool that the client executes.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// contextItem is information that the client's application gives the agent, such as the page that the user sees.
type contextItem struct {
	Description string `json:"description"`
	Value       string `json:"value"`
}

// Decode decodes the body of a request. The error is an *Invalid about the first field that cannot be used; the
// returned Request is then incomplete. If resume has answers, the last message is not read as a question, because the
// suspended run already has one.
func Decode(data []byte) (Request, error) {
	var in input
	if !utf8.Valid(data) {
		return Request{}, &Invalid{"", "the body is not valid UTF-8"}
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return Request{}, decodeError(data, err)
	}
	request := Request{RunID: in.RunID, V1: strings.HasPrefix(in.ProtocolVersion, "1.")}
	request.ThreadID = in.ThreadID
	request.ToolChoice = agent.ToolAuto
	request.Interactive = true
	switch {
	case !thread.IsID(in.ThreadID):
		return request, &Invalid{"threadId", thread.IDRule}
	case !thread.IsID(in.RunID):
		return request, &Invalid{"runId", thread.IDRule}
	case len(in.Messages) > maxMessages:
		return request, &Invalid{"messages", fmt.Sprintf("must not be more than %d", maxMessages)}
	}
	if err := request.readTools(in.Tools); err != nil {
		return request, err
	}
	for i, m := range in.Messages {
		if err := request.readMessage(fmt.Sprintf("messages[%d]", i), m); err != nil {
			return request, err
		}
	}
	if err := request.readContext(in.Context); err != nil {
		return request, err
	}
	var props struct {
		Answerd json.RawMessage `json:"answerd"`
	}
	// forwardedProps is for any server that the client uses, so a value without the member "answerd" is valid.
	_ = json.Unmarshal(in.ForwardedProps, &props)
	request.Options = props.Answerd
	if len(in.Resume) > 0 {
		return request, request.readResume(in.Resume)
	}
	return request, request.readQuestion()
}

// decodeError turns err, the error of json.Unmarshal for body, into an *Invalid. It names the field if err does.
func decodeError(body []byte, err error) error {
	if field, typeName, ok := typeerror.Find(body, err); ok {
		return &Invalid{field, "must not be a " + typeName}
	}
	return &Invalid{"", "the body is not a RunAgentInput"}
}

// readTools adds the client's tools in to the request. The client executes their calls itself.
func (q *Request) readTools(in []tool) error {
	if len(in) > agent.MaxClientTools {
		return &Invalid{"tools", fmt.Sprintf("must not be more than %d", agent.MaxClientTools)}
	}
	for i, t := range in {
		invalid := q.AddClientTool(agent.ClientTool{Name: t.Name, Description: t.Description, Schema: t.Parameters})
		if invalid != nil {
			member := strings.TrimPrefix(invalid.Pointer, "/")
			return &Invalid{fmt.Sprintf("tools[%d].%s", i, member), invalid.Detail}
		}
	}
	return nil
}

// readContext adds the client's context to the instructions.
func (q *Request) readContext(items []contextItem) error {
	if len(items) > maxContext {
		return &Invalid{"context", fmt.Sprintf("must not have more than %d items", maxContext)}
	}
	for _, item := range items {
		q.addInstruction(item.Description + ":\n" + item.Value)
	}
	return nil
}

// addInstruction appends text to the instructions as a paragraph of its own.
func (q *Request) addInstruction(text string) {
	q.Instructions = strings.TrimPrefix(q.Instructions+"\n\n"+text, "\n\n")
}

// readQuestion moves the history's last message, which must be the user's, to the question. If the history ends with a
// result of a client tool instead, the request has no question, and the model continues with the result.
func (q *Request) readQuestion() error {
	if len(q.History) == 0 {
		return &Invalid{"messages", "must have a message of the user"}
	}
	last := q.History[len(q.History)-1]
	switch {
	case last.Role == "tool":
		return nil
	case last.Role != "user":
		return &Invalid{"messages", "must end with a message of the user or a tool"}
	case strings.TrimSpace(last.Content) == "" && len(last.Media) == 0:
		return &Invalid{"messages", "must end with a message that is not blank"}
	}
	q.TakeQuestion()
	return nil
}
