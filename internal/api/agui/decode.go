package agui

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
)

// Request is a decoded RunAgentInput.
type Request struct {
	agent.Request // its ThreadID is the client's
	RunID         string
	V1            bool
	// Answers are to what the thread's suspended run waits for. A request has those or a
	// question, not both.
	Answers []Answer
	// Options is the member forwardedProps.answerd, where native fields can be given;
	// nil where it is missing.
	Options json.RawMessage
}

// Answer is what became of one interrupt. Payload is as the client sent it.
type Answer struct {
	ID        string
	Cancelled bool
	Payload   json.RawMessage
}

type input struct {
	ThreadID        string          `json:"threadId"`
	RunID           string          `json:"runId"`
	ProtocolVersion string          `json:"protocolVersion"`
	Messages        []message       `json:"messages"`
	Tools           []tool          `json:"tools"`
	Context         []contextItem   `json:"context"`
	Resume          []resumption    `json:"resume"`
	ForwardedProps  json.RawMessage `json:"forwardedProps"`
}

type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

type contextItem struct {
	Description string `json:"description"`
	Value       string `json:"value"`
}

type resumption struct {
	InterruptID string          `json:"interruptId"`
	Status      string          `json:"status"`
	Payload     json.RawMessage `json:"payload"`
}

// Decode reads a request. The error is an *Invalid.
func Decode(data []byte) (Request, error) {
	var in input
	if json.Unmarshal(data, &in) != nil {
		return Request{}, &Invalid{"", "the body is not a RunAgentInput"}
	}
	q := Request{RunID: in.RunID, V1: strings.HasPrefix(in.ProtocolVersion, "1.")}
	q.ThreadID, q.ToolChoice = in.ThreadID, agent.ToolAuto
	for name, id := range map[string]string{"threadId": in.ThreadID, "runId": in.RunID} {
		if id == "" || len(id) > maxID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return q, &Invalid{name, "must be 1 to 128 visible ASCII characters"}
		}
	}
	if err := q.takeTools(in.Tools); err != nil {
		return q, err
	}
	if len(in.Messages) > maxMessages {
		return q, &Invalid{"messages", fmt.Sprintf("must not be more than %d", maxMessages)}
	}
	for i, m := range in.Messages {
		if err := q.takeMessage(fmt.Sprintf("messages[%d]", i), m); err != nil {
			return q, err
		}
	}
	if err := q.takeContext(in); err != nil {
		return q, err
	}
	if len(in.Resume) > 0 {
		return q, q.takeResume(in.Resume)
	}
	return q, q.takeQuestion()
}

func (q *Request) takeTools(in []tool) error {
	if len(in) > maxTools {
		return &Invalid{"tools", fmt.Sprintf("must not be more than %d", maxTools)}
	}
	for i, t := range in {
		if t.Name == "" || len(t.Name) > 64 {
			return &Invalid{fmt.Sprintf("tools[%d].name", i), "must be 1 to 64 characters"}
		}
		if len(t.Parameters) == 0 || string(t.Parameters) == "null" {
			t.Parameters = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		if t.Parameters[0] != '{' {
			return &Invalid{fmt.Sprintf("tools[%d].parameters", i), "must be a JSON Schema object"}
		}
		q.ClientTools = append(q.ClientTools, agent.ClientTool{Name: t.Name, Description: t.Description, Schema: t.Parameters})
	}
	return nil
}

// takeContext takes what the page says of itself, and our own member of the properties
// that it forwards.
func (q *Request) takeContext(in input) error {
	if len(in.Context) > maxContext {
		return &Invalid{"context", fmt.Sprintf("must not have more than %d items", maxContext)}
	}
	for _, c := range in.Context {
		q.instruct(c.Description + ":\n" + c.Value)
	}
	var props struct {
		Answerd json.RawMessage `json:"answerd"`
	}
	_ = json.Unmarshal(in.ForwardedProps, &props) // it may be anything
	q.Options = props.Answerd
	return nil
}

func (q *Request) instruct(text string) {
	q.Instructions = strings.TrimPrefix(q.Instructions+"\n\n"+text, "\n\n")
}

func (q *Request) takeResume(in []resumption) error {
	for i, r := range in {
		at := fmt.Sprintf("resume[%d]", i)
		if r.InterruptID == "" {
			return &Invalid{at + ".interruptId", "is required"}
		}
		if r.Status != "resolved" && r.Status != "cancelled" {
			return &Invalid{at + ".status", "must be resolved or cancelled"}
		}
		q.Answers = append(q.Answers, Answer{r.InterruptID, r.Status == "cancelled", r.Payload})
	}
	return nil
}

// takeQuestion takes the user's last message out of the history. After results of the
// client's tools there is none: the run goes on with those.
func (q *Request) takeQuestion() error {
	last := len(q.History) - 1
	if last < 0 {
		return &Invalid{"messages", "must have a message of the user"}
	}
	switch m := q.History[last]; {
	case m.Role == "tool":
		return nil
	case m.Role != "user":
		return &Invalid{"messages", "must end with a message of the user or a tool"}
	case strings.TrimSpace(m.Content) == "" && len(m.Media) == 0:
		return &Invalid{fmt.Sprintf("messages[%d].content", last), "must not be blank"}
	default:
		q.Question, q.Media, q.History = m.Content, m.Media, q.History[:last]
	}
	return nil
}
