package aisdk

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
)

// message is a UI message of the chat.
type message struct {
	ID    string `json:"id"`
	Role  string `json:"role"`
	Parts []part `json:"parts"`
}

// part is a part of a message: a text, a file, a tool call, or something that Decode ignores. A part has only the
// members for its type.
type part struct {
	Type string `json:"type"`
	Text string `json:"text"`
	URL  string `json:"url"`

	Filename  string `json:"filename"`  // of a file
	MediaType string `json:"mediaType"` // of a file

	ToolCallID       string          `json:"toolCallId"`
	ToolName         string          `json:"toolName"` // of a dynamic tool; any other tool has its name in the type
	State            string          `json:"state"`
	Input            json.RawMessage `json:"input"`
	RawInput         json.RawMessage `json:"rawInput"` // instead of Input, if the arguments are not a JSON object
	Output           json.RawMessage `json:"output"`
	ErrorText        string          `json:"errorText"`
	ProviderExecuted bool            `json:"providerExecuted"`
	Approval         *struct {
		ID       string `json:"id"`
		Approved *bool  `json:"approved"`
		Reason   string `json:"reason"`
	} `json:"approval"`
}

// calledTool returns the name of the tool that the part calls, or "" if it is not a call.
func (p part) calledTool() string {
	if p.Type == "dynamic-tool" {
		return p.ToolName
	}
	name, isCall := strings.CutPrefix(p.Type, "tool-")
	if !isCall {
		return ""
	}
	return name
}

// hasClientResult reports whether the part is an ended call of one of the page's own tools, with an output or an error.
func (p part) hasClientResult() bool {
	name := p.calledTool()
	isClientTool := name != "" && name != ElicitationTool && !p.ProviderExecuted
	hasEnded := p.State == "output-available" || p.State == "output-error"
	return isClientTool && hasEnded
}

// arguments returns the arguments of a call as the model wrote them.
func (p part) arguments() string {
	var text string
	if p.Input == nil && json.Unmarshal(p.RawInput, &text) == nil {
		return text
	}
	return string(p.Input)
}

// resultText returns the result of a client tool's call as text for the model: a string's value, or other values as
// JSON.
func (p part) resultText() string {
	if p.State == "output-error" {
		return "Error: " + p.ErrorText
	}
	var text string
	if json.Unmarshal(p.Output, &text) == nil {
		return text
	}
	return string(p.Output)
}

// readMessage adds msg to the history, or to the instructions if its role is system. A message of the assistant becomes
// several messages of the history (readSteps). field is msg's path in the request, for errors.
func (q *Request) readMessage(field string, msg message) error {
	if len(msg.Parts) > maxParts {
		return &Invalid{field + ".parts", fmt.Sprintf("must not be more than %d", maxParts)}
	}
	text, media, err := decodeContent(field, msg)
	if err != nil {
		return err
	}
	switch msg.Role {
	case "system":
		q.Instructions = strings.TrimPrefix(q.Instructions+"\n\n"+text, "\n\n")
	case "user":
		q.History = append(q.History, agent.Message{Role: "user", Content: text, Media: media})
	case "assistant":
		return q.readSteps(field, msg.Parts)
	default:
		return &Invalid{field + ".role", "must be system, user or assistant"}
	}
	return nil
}

// decodeContent returns m's text and, if m is a user's message, its files. Texts of several parts are joined with
// newlines. field is m's path in the request, for errors.
func decodeContent(field string, m message) (text string, media []agent.Media, err error) {
	var texts []string
	for i, p := range m.Parts {
		switch {
		case p.Type == "text":
			texts = append(texts, p.Text)
		case p.Type == "file" && m.Role == "user":
			file, err := agent.NewFile(p.Filename, cmp.Or(p.MediaType, "image/*"), p.URL)
			if err != nil {
				return "", nil, &Invalid{fmt.Sprintf("%s.parts[%d].url", field, i), err.Error()}
			}
			media = append(media, file)
		}
	}
	if len(media) > maxMedia {
		return "", nil, &Invalid{field + ".parts", fmt.Sprintf("must not have more than %d files", maxMedia)}
	}
	return strings.Join(texts, "\n"), media, nil
}

// readSteps adds an assistant's message to the history. In this format, one message has all steps of a run. The model
// expects one message for each step, which has the step's text and its calls of client tools, and then their results.
// Calls of the service's own tools are left out, because the text has what they contributed. So are calls without a
// result.
func (q *Request) readSteps(field string, parts []part) error {
	step := agent.Message{Role: "assistant"}
	var results []agent.Message // the results of step's calls
	endStep := func() {
		if step.Content != "" || len(step.Calls) > 0 {
			q.History = append(q.History, step)
			q.History = append(q.History, results...)
		}
		step = agent.Message{Role: "assistant"}
		results = nil
	}
	for i, p := range parts {
		switch {
		case p.Type == "step-start":
			endStep()
		case p.Type == "text":
			step.Content = strings.TrimPrefix(step.Content+"\n"+p.Text, "\n")
		case p.hasClientResult():
			if err := p.checkCall(fmt.Sprintf("%s.parts[%d]", field, i)); err != nil {
				return err
			}
			call := agent.ClientCall{Index: len(step.Calls), ID: p.ToolCallID, Name: p.calledTool(), Arguments: p.arguments()}
			step.Calls = append(step.Calls, call)
			results = append(results, agent.Message{Role: "tool", CallID: p.ToolCallID, Content: p.resultText()})
		}
	}
	endStep()
	return nil
}

// checkCall returns an *Invalid unless p, a call of a client tool, has a valid tool name and call id. field is p's path
// in the request, for errors.
func (p part) checkCall(field string) error {
	switch {
	case !agent.IsToolName(p.calledTool()):
		return &Invalid{field, "must have the name of a tool"}
	case p.ToolCallID == "" || len(p.ToolCallID) > maxCallID:
		return &Invalid{field + ".toolCallId", fmt.Sprintf("must be 1 to %d bytes", maxCallID)}
	}
	return nil
}
