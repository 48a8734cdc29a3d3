package aisdk

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
)

// Request is a decoded body.
type Request struct {
	agent.Request // its ThreadID is the chat's id
	// MessageID is the message of the assistant that the stream goes on with; "" where
	// it makes a new one.
	MessageID string
	// Answers are to what the run that made that message waits for. A request has those
	// or a question, not both.
	Answers []Answer
	// Options is the member "answerd", where native fields can be given; nil where it is
	// missing.
	Options json.RawMessage
}

// Answer is a person's answer to one interrupt: to an approval, where Action is "", or
// to an elicitation.
type Answer struct {
	ID       string
	Approved bool
	Reason   string
	Action   string
	Content  json.RawMessage
}

type body struct {
	ID       string          `json:"id"`
	Messages []message       `json:"messages"`
	Model    string          `json:"model"`
	Tools    []inTool        `json:"tools"`
	Answerd  json.RawMessage `json:"answerd"`
}

// inTool is a client tool, which pages send in the body of their own accord.
type inTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

type message struct {
	ID    string `json:"id"`
	Role  string `json:"role"`
	Parts []part `json:"parts"`
}

type part struct {
	Type      string `json:"type"`
	Text      string `json:"text"`
	MediaType string `json:"mediaType"`
	URL       string `json:"url"`

	ToolCallID       string          `json:"toolCallId"`
	ToolName         string          `json:"toolName"` // of dynamic tools; else it is in the type
	State            string          `json:"state"`
	Input            json.RawMessage `json:"input"`
	Output           json.RawMessage `json:"output"`
	ErrorText        string          `json:"errorText"`
	ProviderExecuted bool            `json:"providerExecuted"`
	Approval         *struct {
		ID       string `json:"id"`
		Approved *bool  `json:"approved"`
		Reason   string `json:"reason"`
	} `json:"approval"`
}

// tool is the name of the tool that the part is a call of; "" if it is none.
func (p part) tool() string {
	if p.Type == "dynamic-tool" {
		return p.ToolName
	}
	name, ok := strings.CutPrefix(p.Type, "tool-")
	if !ok {
		return ""
	}
	return name
}

// Decode reads a request. The error is an *Invalid.
func Decode(data []byte) (Request, error) {
	var in body
	if json.Unmarshal(data, &in) != nil {
		return Request{}, &Invalid{"", "the body is not a JSON object of this format"}
	}
	if len(in.Messages) == 0 || len(in.Messages) > maxMessages {
		return Request{}, &Invalid{"messages", fmt.Sprintf("must be 1 to %d", maxMessages)}
	}
	q := Request{Options: in.Answerd}
	q.Model, q.ThreadID, q.ToolChoice = in.Model, in.ID, agent.ToolAuto
	if !IsID(in.ID) {
		return q, &Invalid{"id", "must be 1 to 128 visible ASCII characters"}
	}
	for i, t := range in.Tools {
		if t.Name == "" || len(t.Name) > 64 || len(t.Parameters) == 0 || t.Parameters[0] != '{' {
			return q, &Invalid{fmt.Sprintf("tools[%d]", i), "must have a name and a JSON Schema object as parameters"}
		}
		q.ClientTools = append(q.ClientTools, agent.ClientTool{Name: t.Name, Description: t.Description, Schema: t.Parameters})
	}
	for i, m := range in.Messages {
		if err := q.takeMessage(fmt.Sprintf("messages[%d]", i), m); err != nil {
			return q, err
		}
	}
	return q, q.takeQuestion(in.Messages[len(in.Messages)-1])
}

// IsID reports whether s may be the id of a chat.
func IsID(s string) bool {
	return s != "" && len(s) <= maxID && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func (q *Request) takeMessage(at string, m message) error {
	if len(m.Parts) > maxParts {
		return &Invalid{at + ".parts", fmt.Sprintf("must not be more than %d", maxParts)}
	}
	var texts []string
	var media []agent.Media
	for i, p := range m.Parts {
		switch p.Type {
		case "text":
			texts = append(texts, p.Text)
		case "file":
			file, err := agent.NewMedia(p.URL)
			if err != nil {
				return &Invalid{fmt.Sprintf("%s.parts[%d].url", at, i), err.Error()}
			}
			media = append(media, file)
		}
	}
	if len(media) > maxMedia {
		return &Invalid{at + ".parts", fmt.Sprintf("must not have more than %d files", maxMedia)}
	}
	text := strings.Join(texts, "\n")
	switch m.Role {
	case "system":
		q.Instructions = strings.TrimPrefix(q.Instructions+"\n\n"+text, "\n\n")
	case "user":
		q.History = append(q.History, agent.Message{Role: "user", Content: text, Media: media})
	case "assistant":
		q.takeCalls(m.Parts, text)
	default:
		return &Invalid{at + ".role", "must be system, user or assistant"}
	}
	return nil
}

// takeCalls takes a message of the assistant with the calls of client tools in it, and
// their results. What the service's own tools did is in the text already.
func (q *Request) takeCalls(parts []part, text string) {
	out := agent.Message{Role: "assistant", Content: text}
	var results []agent.Message
	for _, p := range parts {
		name := p.tool()
		if name == "" || name == Elicitation || p.ProviderExecuted || !strings.HasPrefix(p.State, "output-") {
			continue
		}
		result := string(p.Output)
		var s string
		if json.Unmarshal(p.Output, &s) == nil {
			result = s
		}
		if p.State == "output-error" {
			result = "Error: " + p.ErrorText
		}
		out.Calls = append(out.Calls, agent.ClientCall{Index: len(out.Calls), ID: p.ToolCallID, Name: name, Arguments: string(p.Input)})
		results = append(results, agent.Message{Role: "tool", CallID: p.ToolCallID, Content: result})
	}
	q.History = append(append(q.History, out), results...)
}

// takeQuestion takes the user's last message out of the history. Where the last message
// is the assistant's, it goes on: with answers to what its run waits for, or with
// results of client tools.
func (q *Request) takeQuestion(m message) error {
	switch {
	case m.Role == "assistant":
		q.MessageID = m.ID
		if q.Answers = answers(m.Parts); len(q.Answers) == 0 && q.History[len(q.History)-1].Role != "tool" {
			return &Invalid{"messages", "must end with a message of the user, an answer or the result of a tool"}
		}
		return nil
	case m.Role != "user":
		return &Invalid{"messages", "must end with a message of the user"}
	}
	last := q.History[len(q.History)-1]
	if strings.TrimSpace(last.Content) == "" && len(last.Media) == 0 {
		return &Invalid{"messages", "must end with a message that is not blank"}
	}
	q.Question, q.Media, q.History = last.Content, last.Media, q.History[:len(q.History)-1]
	return nil
}

// answers are those that the message has. Some may have been given before.
func answers(parts []part) (out []Answer) {
	for _, p := range parts {
		switch {
		case p.Approval != nil && p.State == "approval-responded" && p.Approval.Approved != nil:
			out = append(out, Answer{ID: p.Approval.ID, Approved: *p.Approval.Approved, Reason: p.Approval.Reason})
		case p.tool() == Elicitation && p.State == "output-available":
			var o struct {
				Action  string          `json:"action"`
				Content json.RawMessage `json:"content"`
			}
			_ = json.Unmarshal(p.Output, &o) // what is missing is no valid action
			out = append(out, Answer{ID: p.ToolCallID, Action: o.Action, Content: o.Content})
		}
	}
	return out
}
