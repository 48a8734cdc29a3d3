// Package llm defines the interface to language models: a request, and its answer as a stream of parts.
//
//	for part, err := range model.Stream(ctx, llm.Request{Messages: msgs, Tools: tools}) {
//		if err != nil {
//			return err // *llm.Error: the kind of failure, and whether a retry may help; or ctx's error
//		}
//		switch p := part.(type) {
//		case llm.Text:
//			fmt.Print(p.Delta)
//		case llm.ToolCall:
//			calls = append(calls, p)
//		}
//	}
//
// Package openai has a Model that speaks Chat Completions to any compatible endpoint and uses its native tool calling.
// Package texttool has one for models without it: it writes the tools into the prompt and reads the calls out of the
// text. A Router chooses between the two by the model's Profile. Either way callers see the same parts and never parse
// text.
//
// A stream yields parts in the order in which the model produced them, ends with exactly one Finish or exactly one
// error, and releases its connection when the loop ends, however it ends. One Stream call is one model answer; retries
// happen inside it, before the first part only. Streams may run concurrently.
package llm

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"strings"
)

// Model answers one request with a stream of parts.
type Model interface {
	Stream(ctx context.Context, r Request) iter.Seq2[Part, error]
}

// Request is one question to a model.
type Request struct {
	Model      string // the provider's model id
	Messages   []Message
	Tools      []Tool
	ToolChoice ToolChoice // "" is Auto
	MustCall   string     // with Required: the tool to call; "" is any
	MaxTokens  int64      // of the answer; 0 leaves it to the provider
	Sampling   Sampling
	// OutputSchema is the JSON Schema that the answer must have; nil means any text. If Sampling
	// has a ResponseFormat, that one is sent in place of one made from the schema.
	OutputSchema json.RawMessage
	Preferred    string // of the models that a Router may ask, the one to ask first; "" is Model
}

// SchemaInPrompt returns the request with its OutputSchema in the system message, for a model that does not take a
// response_format. The result has neither an OutputSchema nor a ResponseFormat. A request without an OutputSchema is
// returned unchanged. The messages of the original request do not change.
func (r Request) SchemaInPrompt() Request {
	if len(r.OutputSchema) == 0 {
		return r
	}
	text := "Write your final answer as JSON that conforms to the following JSON Schema. " +
		"Write nothing else: no explanation and no code fence.\n\n" + string(r.OutputSchema)
	r.OutputSchema, r.Sampling.ResponseFormat = nil, nil
	if len(r.Messages) > 0 && r.Messages[0].Role == System {
		r.Messages = slices.Clone(r.Messages)
		r.Messages[0].Text = strings.TrimSpace(r.Messages[0].Text) + "\n\n" + text
		return r
	}
	r.Messages = append([]Message{{Role: System, Text: text}}, r.Messages...)
	return r
}

// Role is who speaks in a Message.
type Role string

// The roles of Chat Completions.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	ToolRole  Role = "tool"
)

// Message is one message of a conversation.
type Message struct {
	Role  Role
	Text  string
	Calls []ToolCall // of an Assistant message
	// CallID names the call that a ToolRole message answers, Tool the tool's name.
	CallID string
	Tool   string
	// Extensions are members that came with this Assistant message; nil if there were none. A
	// Model sends them to the endpoint that they came from and to no other.
	Extensions *Extensions
	// Failed marks a ToolRole message that reports a failure.
	Failed bool
	// Media are images, audio and PDF documents that belong to a User or ToolRole message. A Model
	// sends all of them, so callers leave out what the model's Profile does not accept.
	Media []Media
}

// Media is an image, audio or a PDF document for the model. In a request to the agent it may also
// be text, which becomes a part of the message's text.
type Media struct {
	Label string // tells the model what it is
	Name  string `json:",omitempty"` // of the file; "" if it has none
	MIME  string // image/png, image/jpeg, image/gif, image/webp, audio/wav, audio/mpeg or application/pdf
	Data  string // base64, padded, without line breaks
	// URL replaces MIME and Data: an https address of an image, which the endpoint fetches itself.
	URL string
	// Detail is how closely the model looks at an image, such as low; "" leaves it to the endpoint.
	Detail string `json:",omitempty"`
}

// IsImage reports whether it is an image in Data.
func (m Media) IsImage() bool { return strings.HasPrefix(m.MIME, "image/") }

// Tool is what the model may call.
type Tool struct {
	Name        string // ^[A-Za-z0-9_-]{1,64}$
	Description string
	Schema      json.RawMessage // the input's JSON Schema, whole, type object
	Strict      bool            `json:",omitzero"` // asks the endpoint to enforce the schema
}

// ToolChoice says whether the model may, must not or must call a tool.
type ToolChoice string

// The choices of Chat Completions that name no tool.
const (
	Auto     ToolChoice = "auto"
	None     ToolChoice = "none"
	Required ToolChoice = "required"
)

// Part is one piece of a model's answer: Text, Reasoning, ToolCallStart,
// ToolCallArgs, ToolCall, Extensions, Usage or Finish.
type Part interface{ part() }

// Text is a piece of the answer. Delta is never empty.
type Text struct{ Delta string }

// Reasoning is a piece of the model's thinking, where the provider gives it.
type Reasoning struct{ Delta string }

// ToolCallStart says that the model began to write a call. Index tells the calls
// of one answer apart, counting from 0; ID and Name are what ToolCall will carry.
type ToolCallStart struct {
	Index int
	ID    string
	Name  string
}

// ToolCallArgs is a piece of a call's arguments, as text.
type ToolCallArgs struct {
	Index int
	Delta string
}

// ToolCall is a complete call. Arguments is what the model wrote, unchecked: it
// need not be JSON. An empty text stands for no arguments.
type ToolCall struct {
	Index     int
	ID        string // never empty, unique within one answer
	Name      string
	Arguments string
}

// Extensions holds members of an answer that Chat Completions does not define, unchanged, such as Gemini's
// extra_content of calls and DeepSeek's reasoning_content. The answer's Message must carry them when it is sent back:
// some endpoints refuse it otherwise. They are for the endpoint alone, and nothing of them is for the caller.
type Extensions struct {
	Model    string          `json:"model,omitempty"`   // the model that a Router asked
	Endpoint string          `json:"endpoint"`          // names the endpoint, without its keys
	Message  json.RawMessage `json:"message,omitempty"` // of the message, as a JSON object; nil for none
	// Content is the message's content as a JSON array, where it came in parts of which some are not text, such as
	// Mistral's thinking; nil if it is text alone. It goes back in place of the text.
	Content json.RawMessage `json:"content,omitempty"`
	// Calls has those of the calls, in their order; nil or null for a call without any, and
	// not longer than the last call with some.
	Calls []json.RawMessage `json:"calls,omitempty"`
}

// Usage is what one answer cost, in tokens, as the provider reports it.
type Usage struct {
	Input, Output, Total int64
	Asked                string // the id of the model that a Router asked; "" without one
}

// Finish ends a complete answer. Reason is the provider's finish_reason ("stop",
// "length", "tool_calls", "content_filter" …), Model the model that answered.
type Finish struct {
	Reason string
	Model  string
	Asked  string // the id of the model that a Router asked; "" without one
}

func (Text) part()          {}
func (Reasoning) part()     {}
func (ToolCallStart) part() {}
func (ToolCallArgs) part()  {}
func (ToolCall) part()      {}
func (Extensions) part()    {}
func (Usage) part()         {}
func (Finish) part()        {}

// Sampling has parameters of Chat Completions that control how a model generates its answer. A parameter that is nil or
// empty is not sent. The values are not checked here: their bounds differ from model to model, and the endpoint
// refuses what it does not accept.
type Sampling struct {
	Temperature      *float64        `json:"temperature,omitempty"`
	TopP             *float64        `json:"top_p,omitempty"`
	PresencePenalty  *float64        `json:"presence_penalty,omitempty"`
	FrequencyPenalty *float64        `json:"frequency_penalty,omitempty"`
	Seed             *int64          `json:"seed,omitempty"`
	Stop             []string        `json:"stop,omitempty"`
	ReasoningEffort  string          `json:"reasoning_effort,omitempty"`
	Verbosity        string          `json:"verbosity,omitempty"`
	ResponseFormat   json.RawMessage `json:"response_format,omitempty"`
	// ParallelToolCalls goes out only with tools: endpoints refuse it without.
	ParallelToolCalls *bool `json:"parallel_tool_calls,omitempty"`
}
