package openai

import (
	"cmp"
	"encoding/json"
	"fmt"

	"answerd/internal/llm"
)

// The body is written here and not by the SDK's parameter types. With 1,000 tools they take
// 15 ms to marshal and joined bytes 0.3, and they would parse each tool's schema,
// which must be sent unchanged.

// wireRequest is the head of a Chat Completions request; the messages and the tools are
// appended to it.
type wireRequest struct {
	Model         string         `json:"model"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"`
	ToolChoice    any            `json:"tool_choice,omitempty"` // a ToolChoice or a wireChoice
	// The name that replaced max_tokens, which newer models of OpenAI refuse.
	MaxTokens    int64 `json:"max_completion_tokens,omitempty"`
	OldMaxTokens int64 `json:"max_tokens,omitempty"` // in place of it
	llm.Sampling
}

// wireChoice names the one tool that must be called.
type wireChoice struct {
	Type     string `json:"type"`
	Function struct {
		Name string `json:"name"`
	} `json:"function"`
}

func newWireToolChoice(r *llm.Request) any {
	if r.ToolChoice == llm.Required && r.MustCall != "" {
		c := wireChoice{Type: "function"}
		c.Function.Name = r.MustCall
		return c
	}
	return cmp.Or(r.ToolChoice, llm.Auto)
}

// streamOptions asks for the usage chunk, which endpoints leave out otherwise.
type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// encodeRequest renders r. A tool_choice without tools is an error at most endpoints,
// so it is sent with tools only; and None with tools offered sends both, for models
// that refuse a history with calls when they are shown no tools. Only members that came from
// endpoint are sent to it.
func encodeRequest(r *llm.Request, cache *toolCache, endpoint string, d dialect) ([]byte, error) {
	head := wireRequest{
		Model:         r.Model,
		Stream:        true,
		StreamOptions: &streamOptions{IncludeUsage: true},
		MaxTokens:     r.MaxTokens,
		Sampling:      r.Sampling,
	}
	if d.oldMaxTokens {
		head.MaxTokens, head.OldMaxTokens = 0, r.MaxTokens
	}
	if d.noStreamOptions {
		head.StreamOptions = nil
	}
	if d.noExtensions {
		endpoint = ""
	}
	var tools []byte
	if len(r.Tools) == 0 {
		head.ParallelToolCalls = nil
	} else {
		head.ToolChoice = newWireToolChoice(r)
		var err error
		if tools, err = cache.renderTools(r.Tools); err != nil {
			return nil, err
		}
	}
	first, err := json.Marshal(head)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	messages := appendMessages(make([]wireMessage, 0, len(r.Messages)), r.Messages, endpoint)
	if d.fillReasoning || d.fillSignature {
		d.fillMembers(messages)
	}
	size := len(first) + len(tools) + 64
	for i := range messages {
		size += messages[i].encodedSize()
	}
	b := append(make([]byte, 0, size), first[:len(first)-len("}")]...)
	b = append(b, `,"messages":[`...)
	for i := range messages {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = messages[i].appendJSON(b); err != nil {
			return nil, err
		}
	}
	b = append(b, ']')
	if tools != nil {
		b = append(append(b, `,"tools":`...), tools...)
	}
	return append(b, '}'), nil
}
