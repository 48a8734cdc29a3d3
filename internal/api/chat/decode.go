package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"answerd/internal/agent"
)

// Request is a decoded body.
type Request struct {
	agent.Request
	Model        string // as named, for the answer
	Stream       bool
	IncludeUsage bool
	// Options is the member "answerd", where the native fields that this format lacks
	// can be given; nil where it is missing.
	Options json.RawMessage
}

// body is what is read of a request. Members that are not here are ignored: clients
// send many, and new ones come every month.
type body struct {
	Model         string          `json:"model"`
	Messages      []inMessage     `json:"messages"`
	Stream        bool            `json:"stream"`
	StreamOptions *streamOptions  `json:"stream_options"`
	N             *int            `json:"n"`
	Tools         []inTool        `json:"tools"`
	Functions     json.RawMessage `json:"functions"`
	ToolChoice    json.RawMessage `json:"tool_choice"`

	MaxTokens           int64 `json:"max_tokens"` // the older name
	MaxCompletionTokens int64 `json:"max_completion_tokens"`

	Temperature      *float64        `json:"temperature"`
	TopP             *float64        `json:"top_p"`
	PresencePenalty  *float64        `json:"presence_penalty"`
	FrequencyPenalty *float64        `json:"frequency_penalty"`
	Seed             *int64          `json:"seed"`
	Stop             stopList        `json:"stop"`
	ReasoningEffort  string          `json:"reasoning_effort"`
	ResponseFormat   json.RawMessage `json:"response_format"`

	Answerd json.RawMessage `json:"answerd"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type inTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// stopList is one text or several.
type stopList []string

func (s *stopList) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*s = stopList{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(s))
}

// Decode reads a request. The error is an *Invalid.
func Decode(data []byte) (Request, error) {
	var in body
	if !utf8.Valid(data) {
		return Request{}, &Invalid{"", "the body is not valid UTF-8"}
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return Request{}, misread(err)
	}
	q := Request{Model: in.Model, Stream: in.Stream, Options: in.Answerd}
	q.IncludeUsage = in.StreamOptions != nil && in.StreamOptions.IncludeUsage
	q.Sampling = agent.Sampling{
		Temperature: in.Temperature, TopP: in.TopP, PresencePenalty: in.PresencePenalty, FrequencyPenalty: in.FrequencyPenalty,
		Seed: in.Seed, Stop: in.Stop, ReasoningEffort: in.ReasoningEffort, ResponseFormat: in.ResponseFormat,
	}
	q.MaxTokens = max(in.MaxTokens, in.MaxCompletionTokens)
	switch {
	case in.MaxTokens < 0, in.MaxCompletionTokens < 0:
		return q, &Invalid{"max_completion_tokens", "must be positive"}
	case in.N != nil && *in.N != 1:
		return q, &Invalid{"n", "only one choice is given"}
	case in.Functions != nil:
		return q, &Invalid{"functions", "is no longer supported: use tools"}
	}
	q.Request.Model, q.ToolChoice = strings.TrimSuffix(in.Model, WithoutTools), agent.ToolAuto
	if err := q.takeTools(in); err != nil {
		return q, err
	}
	if strings.HasSuffix(in.Model, WithoutTools) {
		q.ToolChoice = agent.ToolNone
	}
	return q, q.takeMessages(in.Messages)
}

// misread says which parameter is of the wrong type, as far as the decoder knows.
func misread(err error) error {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && t.Field != "" {
		return &Invalid{t.Field, "is of the wrong type: " + t.Value}
	}
	return &Invalid{"", "the body is not a JSON object of this format"}
}

// takeTools reads the caller's own tools, and which ones are to be called.
func (q *Request) takeTools(in body) error {
	if len(in.Tools) > maxTools {
		return &Invalid{"tools", fmt.Sprintf("must not be more than %d", maxTools)}
	}
	for i, t := range in.Tools {
		at := fmt.Sprintf("tools[%d]", i)
		switch {
		case t.Type != "function":
			return &Invalid{at + ".type", "must be function"}
		case !toolName(t.Function.Name):
			return &Invalid{at + ".function.name", "must be 1 to 64 letters, digits, _ or -"}
		case slices.ContainsFunc(q.ClientTools, func(c agent.ClientTool) bool { return c.Name == t.Function.Name }):
			return &Invalid{at + ".function.name", "given twice"}
		case t.Function.Parameters == nil || string(t.Function.Parameters) == "null":
			t.Function.Parameters = json.RawMessage(`{"type":"object","properties":{}}`)
		case t.Function.Parameters[0] != '{':
			return &Invalid{at + ".function.parameters", "must be a JSON Schema object"}
		}
		q.ClientTools = append(q.ClientTools, agent.ClientTool{Name: t.Function.Name, Description: t.Function.Description, Schema: t.Function.Parameters})
	}
	return q.takeChoice(in.ToolChoice)
}

func (q *Request) takeChoice(raw json.RawMessage) error {
	if raw == nil || string(raw) == "null" {
		return nil
	}
	var named struct {
		Type     string
		Function struct{ Name string }
	}
	switch string(raw) {
	case `"auto"`, `"none"`, `"required"`:
		q.ToolChoice = agent.ToolChoice(strings.Trim(string(raw), `"`))
		return nil
	}
	if json.Unmarshal(raw, &named) != nil || named.Type != "function" || !toolName(named.Function.Name) {
		return &Invalid{"tool_choice", "must be none, auto, required or a function"}
	}
	q.ToolChoice, q.ForcedTool = agent.ToolRequired, named.Function.Name
	return nil
}

func toolName(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}
