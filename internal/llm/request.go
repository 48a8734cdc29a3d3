package llm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"
)

// The body is written here and not by the SDK's parameter types. With 1,000 tools they take
// 15 ms to marshal and joined bytes 0.3, and they would parse each tool's schema,
// which must be sent unchanged.

// wireRequest is the head of a Chat Completions request; the messages and the tools are
// appended to it.
type wireRequest struct {
	Model         string        `json:"model"`
	Stream        bool          `json:"stream"`
	StreamOptions streamOptions `json:"stream_options"`
	ToolChoice    any           `json:"tool_choice,omitempty"` // a ToolChoice or a wireChoice
	// The name that replaced max_tokens, which newer models of OpenAI refuse.
	MaxTokens int64 `json:"max_completion_tokens,omitempty"`
	Sampling
}

// wireChoice names the one tool that must be called.
type wireChoice struct {
	Type     string `json:"type"`
	Function struct {
		Name string `json:"name"`
	} `json:"function"`
}

func wireToolChoice(r *Request) any {
	if r.ToolChoice == Required && r.MustCall != "" {
		c := wireChoice{Type: "function"}
		c.Function.Name = r.MustCall
		return c
	}
	return cmp.Or(r.ToolChoice, Auto)
}

// streamOptions asks for the usage chunk, which endpoints leave out otherwise.
type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// wireMessage is one message. Content is a text, a list of wirePart, or nil since an
// assistant that only calls tools must say null: several endpoints refuse an empty text
// there.
type wireMessage struct {
	Role       Role
	Content    any
	ToolCalls  []wireCall
	ToolCallID string
}

// wireCall and wireFunction are a call in an assistant's message. Arguments is JSON
// within a string.
type wireCall struct {
	ID       string
	Type     string
	Function wireFunction
}

type wireFunction struct {
	Name      string
	Arguments string
}

// requestBody renders r. A tool_choice without tools is an error at most endpoints,
// so it is sent with tools only; and None with tools offered sends both, for models
// that refuse a history with calls when they are shown no tools.
func requestBody(r *Request, cache *toolCache) ([]byte, error) {
	head := wireRequest{
		Model:         r.Model,
		Stream:        true,
		StreamOptions: streamOptions{IncludeUsage: true},
		MaxTokens:     r.MaxTokens,
		Sampling:      r.Sampling,
	}
	var tools []byte
	if len(r.Tools) == 0 {
		head.ParallelToolCalls = nil
	} else {
		head.ToolChoice = wireToolChoice(r)
		var err error
		if tools, err = cache.render(r.Tools); err != nil {
			return nil, err
		}
	}
	first, err := json.Marshal(head)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	messages := appendMessages(make([]wireMessage, 0, len(r.Messages)), r.Messages)
	size := len(first) + len(tools) + 64
	for i := range messages {
		size += messages[i].size()
	}
	b := append(make([]byte, 0, size), first[:len(first)-len("}")]...)
	b = append(b, `,"messages":[`...)
	for i := range messages {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = messages[i].append(b); err != nil {
			return nil, err
		}
	}
	b = append(b, ']')
	if tools != nil {
		b = append(append(b, `,"tools":`...), tools...)
	}
	return append(b, '}'), nil
}

// wire turns a message into what goes over the wire. The caller has seen to it that a
// tool message is never empty, which some endpoints refuse.
func wire(m Message) wireMessage {
	w := wireMessage{Role: m.Role, Content: m.Text}
	switch {
	case m.Role == User && len(m.Media) > 0:
		w.Content = wireParts(m)
	case m.Role == ToolRole:
		w.ToolCallID = m.CallID
	case m.Role == Assistant && len(m.Calls) > 0:
		if m.Text == "" {
			w.Content = nil
		}
		w.ToolCalls = make([]wireCall, len(m.Calls))
		for i, c := range m.Calls {
			w.ToolCalls[i] = wireCall{ID: c.ID, Type: "function",
				Function: wireFunction{Name: wireName(c.Name), Arguments: wireArguments(c.Arguments)}}
		}
	}
	return w
}

// wireName makes the name of a call fit to be sent back. A model may have called a
// tool that does not exist by a name that no endpoint accepts in a request
// (^[A-Za-z0-9_-]{1,64}$), and its history must not fail for that.
func wireName(name string) string {
	clean := []byte(name[:min(len(name), 64)])
	for i, c := range clean {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '_' && c != '-' {
			clean[i] = '_'
		}
	}
	if len(clean) == 0 {
		return "tool"
	}
	return string(clean)
}

// wireArguments makes the arguments of a call fit to be sent back. Endpoints that
// put them through a chat template parse them and fail the whole request if they are
// no object, so what is none goes wrapped in one.
func wireArguments(raw string) string {
	if raw == "" {
		return "{}"
	}
	if v := jsontext.Value(raw); v.Kind() == '{' && v.IsValid(asWritten...) {
		return raw
	}
	return string(append(appendQuoted([]byte(`{"invalid_arguments":`), raw), '}'))
}

// toolCache keeps the tool blocks that were rendered last. Almost every request offers
// the same tools, and rendering 1,000 of them costs more than the rest of the request.
// There are a few, since runs that search for their tools each offer their own besides.
type toolCache struct {
	blocks [8]atomic.Pointer[toolBlock]
	next   atomic.Uint32 // which is replaced next
	texts  toolTexts
}

// find returns the block of tools, nil if it is not kept.
func (c *toolCache) find(tools []Tool) *toolBlock {
	for i := range c.blocks {
		if b := c.blocks[i].Load(); b != nil && slices.EqualFunc(b.tools, tools, sameTool) {
			return b
		}
	}
	return nil
}

// toolBlock is a rendered list and the tools that it was rendered from. Nothing in it
// is written once it is stored, so any number of requests may read it at once.
type toolBlock struct {
	tools []Tool
	json  []byte
}

// noParameters is the schema of a tool that has none; a missing one is refused.
var noParameters = json.RawMessage(`{"type":"object","properties":{}}`)

// render returns tools as a JSON array, which the caller must not change. It fails
// on a schema that is not JSON, which would break out of its place in the request.
func (c *toolCache) render(tools []Tool) ([]byte, error) {
	if kept := c.find(tools); kept != nil {
		return kept.json, nil
	}
	texts := make([]json.RawMessage, len(tools))
	for i, t := range tools {
		var err error
		if texts[i], err = c.texts.of(t); err != nil {
			return nil, err
		}
	}
	block := &toolBlock{tools: slices.Clone(tools), json: list(texts...)}
	c.blocks[c.next.Add(1)%uint32(len(c.blocks))].Store(block)
	return block.json, nil
}

// sameTool is quick for the tools of one list: equal strings and slices that share
// their bytes are compared by address.
func sameTool(a, b Tool) bool {
	return a.Name == b.Name && a.Description == b.Description && bytes.Equal(a.Schema, b.Schema)
}
