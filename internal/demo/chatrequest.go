package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Bounds of a request to the stand-in. 128 tools are what OpenAI allows.
const (
	maxChatBody = 4 << 20 // bytes
	maxMessages = 2000
	maxTools    = 128
)

// chatRequest is what the stand-in understands of a Chat Completions request.
// Fields that it has no use for, such as temperature, are ignored.
type chatRequest struct {
	Messages          []chatMessage   `json:"messages"`
	Tools             []chatTool      `json:"tools"`
	ToolChoice        json.RawMessage `json:"tool_choice"`
	ParallelToolCalls *bool           `json:"parallel_tool_calls"`
	Stream            bool            `json:"stream"`
	StreamOptions     struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	choice    string // none, auto or required
	onlyTool  string // the tool that tool_choice names
	toolWords int    // words in the tools, for the usage
}

// chatMessage is one message. Assistants' messages may have calls, tools' messages
// name the call that they answer.
type chatMessage struct {
	Role       string      `json:"role"`
	Content    chatContent `json:"content"`
	ToolCalls  []chatCall  `json:"tool_calls"`
	ToolCallID string      `json:"tool_call_id"`
}

// chatCall is a call in an assistant's message. Arguments are JSON as text, and come
// back as some model wrote them, so they may be none.
type chatCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// chatTool is a tool on offer. Parameters are a JSON Schema, absent for no arguments.
type chatTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// chatContent is a message's text. On the wire it is a string, a list of parts, of
// which the text ones are kept, or null.
type chatContent string

// UnmarshalJSON implements json.Unmarshaler.
func (c *chatContent) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil { // null gives ""
		*c = chatContent(s)
		return nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(b, &parts); err != nil {
		return errors.New("content must be a string, a list of parts or null")
	}
	var texts []string
	for _, p := range parts {
		if p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	*c = chatContent(strings.Join(texts, "\n"))
	return nil
}

// decodeChat reads a request and holds it to what OpenAI itself refuses. The error
// is for the caller: it quotes roles and names from the request, never content.
func decodeChat(body []byte) (*chatRequest, error) {
	r := &chatRequest{choice: "auto"}
	if err := json.Unmarshal(body, r); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, fmt.Errorf("invalid type for '%s'", wrong.Field)
		}
		return nil, errors.New("the body is not a valid JSON request")
	}
	if len(r.Messages) == 0 || len(r.Messages) > maxMessages {
		return nil, fmt.Errorf("'messages' must have 1 to %d elements", maxMessages)
	}
	if err := checkTools(r.Tools); err != nil {
		return nil, err
	}
	if err := checkMessages(r.Messages); err != nil {
		return nil, err
	}
	for _, t := range r.Tools {
		r.toolWords += countWords(t.Function.Description) + countWords(string(t.Function.Parameters))
	}
	return r, r.readChoice()
}

// toolName is OpenAI's rule for functions' names.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// checkTools holds the tools to OpenAI's limits. Their schemas are read leniently
// later: what cannot be understood takes no arguments.
func checkTools(tools []chatTool) error {
	if len(tools) > maxTools {
		return fmt.Errorf("'tools' must have at most %d elements", maxTools)
	}
	for i, t := range tools {
		if t.Type != "function" {
			return fmt.Errorf("'tools[%d].type' must be function", i)
		}
		if !toolName.MatchString(t.Function.Name) {
			return fmt.Errorf("'tools[%d].function.name' must match %s", i, toolName)
		}
	}
	return nil
}

// checkMessages wants every tool call answered exactly once, right after the message
// that made it, as OpenAI does: an agent that forgets one must learn of it here.
func checkMessages(messages []chatMessage) error {
	open := make(map[string]bool)
	for i, m := range messages {
		if m.Role == "tool" {
			if !open[m.ToolCallID] {
				return fmt.Errorf("'messages[%d]' with role tool must answer a preceding message with tool_calls", i)
			}
			delete(open, m.ToolCallID)
			continue
		}
		if len(open) > 0 {
			return fmt.Errorf("'messages[%d]' comes before every tool_call_id of the message with tool_calls is answered", i)
		}
		switch m.Role {
		case "system", "developer", "user", "assistant":
		default:
			return fmt.Errorf("'messages[%d].role' is unknown", i)
		}
		for _, c := range m.ToolCalls {
			if c.ID == "" || open[c.ID] || m.Role != "assistant" {
				return fmt.Errorf("'messages[%d].tool_calls' needs distinct ids and role assistant", i)
			}
			open[c.ID] = true
		}
	}
	if len(open) > 0 {
		return errors.New("the last message with tool_calls must be followed by an answer to each tool_call_id")
	}
	return nil
}

// readChoice understands the text forms of tool_choice and the one that names a
// function, which must be offered.
func (r *chatRequest) readChoice() error {
	if len(r.ToolChoice) == 0 || string(r.ToolChoice) == "null" {
		return nil
	}
	if json.Unmarshal(r.ToolChoice, &r.choice) == nil {
		switch r.choice {
		case "none", "auto":
			return nil
		case "required":
			if len(r.Tools) > 0 {
				return nil
			}
			return errors.New("'tool_choice' required needs 'tools'")
		}
		return errors.New("'tool_choice' must be none, auto, required or a function")
	}
	var named struct {
		Type     string
		Function struct{ Name string }
	}
	if err := json.Unmarshal(r.ToolChoice, &named); err != nil || named.Type != "function" {
		return errors.New("'tool_choice' must be none, auto, required or a function")
	}
	for _, t := range r.Tools {
		if t.Function.Name == named.Function.Name {
			r.choice, r.onlyTool = "required", named.Function.Name
			return nil
		}
	}
	return errors.New("'tool_choice' names a function that is not in 'tools'")
}
