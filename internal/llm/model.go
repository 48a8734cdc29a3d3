// Package llm defines the interface to language models: a request, and an answer as a stream of parts.
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
// Package openai has a Model that uses the Chat Completions API and native tool calling of any compatible endpoint.
// Package texttool has a Model for models without native tool calling: it writes the tools into the prompt and finds
// the calls in the model's text. A Router chooses between them by the model's Profile. In both cases callers get the
// same parts and never have to parse text.
//
// A stream yields parts in the order in which the model produced them. It ends with exactly one Finish or exactly one
// error. It releases its connection when the loop ends, even if it ends early. One call of Stream gives one answer.
// Retries happen inside it, and only before the first part. Streams may run concurrently.
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
	ToolChoice ToolChoice // "" means Auto
	MustCall   string     // with Required: the tool that must be called; "" means any
	MaxTokens  int64      // limit for the answer; 0 leaves it to the provider
	Sampling   Sampling
	// OutputSchema is the JSON Schema that the answer must match; nil means any text. If Sampling has a ResponseFormat,
	// that is sent instead of one made from the schema.
	OutputSchema json.RawMessage
	Preferred    string // which of the models that a Router may ask comes first; "" means Model
}

// SchemaInPrompt returns a copy of the request with the OutputSchema moved to the system message, for a model that does
// not accept a response_format. The copy has no OutputSchema and no ResponseFormat. If r has no OutputSchema,
// SchemaInPrompt returns r unchanged. It does not modify the messages of r.
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

// Role says who speaks in a Message.
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
	// CallID is the id of the call that a ToolRole message answers, and Tool is the name of the tool.
	CallID string
	Tool   string
	// Extensions are members that came with this Assistant message; nil if none did. A Model sends them only to the
	// endpoint that they came from.
	Extensions *Extensions
	// Failed says that a ToolRole message reports a failure.
	Failed bool
	// Media are images, audio and PDF documents in a User or ToolRole message. A Model sends all of them, so callers
	// must leave out what the model's Profile does not accept.
	Media []Media
}

// Media is an image, audio or a PDF document for the model. In a request to the agent it may also be text, which
// becomes part of the message's text.
type Media struct {
	Label string // tells the model what the media is
	Name  string `json:",omitempty"` // file name; "" if it has none
	MIME  string // image/png, image/jpeg, image/gif, image/webp, audio/wav, audio/mpeg or application/pdf
	Data  string // base64 with padding, without line breaks
	// URL replaces MIME and Data. It is the https address of an image that the endpoint fetches itself.
	URL string
	// Detail says how closely the model looks at an image, such as low; "" leaves it to the endpoint.
	Detail string `json:",omitempty"`
}

// IsImage reports whether m is an image in Data, not at a URL.
func (m Media) IsImage() bool { return strings.HasPrefix(m.MIME, "image/") }

// Tool describes a tool that the model may call.
type Tool struct {
	Name        string // ^[A-Za-z0-9_-]{1,64}$
	Description string
	Schema      json.RawMessage // the complete JSON Schema of the input, of type object
	Strict      bool            `json:",omitzero"` // ask the endpoint to enforce the schema
}

// ToolChoice says whether the model may, must not or must call a tool.
type ToolChoice string

// The choices of Chat Completions other than a specific tool.
const (
	Auto     ToolChoice = "auto"
	None     ToolChoice = "none"
	Required ToolChoice = "required"
)

// Part is one piece of a model's answer: Text, Reasoning, ToolCallStart, ToolCallArgs, ToolCall, Extensions, Usage or
// Finish.
type Part interface{ part() }

// Text is a piece of the answer. Delta is never empty.
type Text struct{ Delta string }

// Reasoning is a piece of the model's reasoning, if the provider returns it.
type Reasoning struct{ Delta string }

// ToolCallStart says that the model has begun to write a call. Index numbers the calls of one answer from 0. ID and
// Name are the same as in the later ToolCall.
type ToolCallStart struct {
	Index int
	ID    string
	Name  string
}

// ToolCallArgs is the next piece of a call's arguments, as text.
type ToolCallArgs struct {
	Index int
	Delta string
}

// ToolCall is a complete call. Arguments is what the model wrote. It is not checked and may not be JSON. "" means that
// the call has no arguments.
type ToolCall struct {
	Index     int
	ID        string // never empty; unique within one answer
	Name      string
	Arguments string
}

// Extensions holds the members of an answer that Chat Completions does not define, unchanged, such as Gemini's
// extra_content of calls and DeepSeek's reasoning_content. The answer's Message must carry them when it is sent back,
// because some endpoints refuse it otherwise. They are for the endpoint only and must not be shown to the caller.
type Extensions struct {
	Model    string          `json:"model,omitempty"`   // the model that a Router asked
	Endpoint string          `json:"endpoint"`          // identifies the endpoint, without its keys
	Message  json.RawMessage `json:"message,omitempty"` // members of the message, as a JSON object; nil if it has none
	// Content is the message's content as a JSON array, if the content came in parts that are not all text, such as
	// Mistral's thinking; nil if it is only text. It is sent back instead of the text.
	Content json.RawMessage `json:"content,omitempty"`
	// Calls has the members of each call, in call order. An element is nil or null for a call without members. Calls
	// ends at the last call that has some.
	Calls []json.RawMessage `json:"calls,omitempty"`
}

// Usage is what one answer cost in tokens, as reported by the provider.
type Usage struct {
	Input, Output, Total int64
	Asked                string // the id of the model that a Router asked; "" without one
}

// Finish ends a complete answer. Reason is the provider's finish_reason ("stop", "length", "tool_calls",
// "content_filter" …). Model is the model that answered.
type Finish struct {
	Reason string
	Model  string
	Asked  string // the id of the model that a Router asked; "" if no Router was used
}

func (Text) part()          {}
func (Reasoning) part()     {}
func (ToolCallStart) part() {}
func (ToolCallArgs) part()  {}
func (ToolCall) part()      {}
func (Extensions) part()    {}
func (Usage) part()         {}
func (Finish) part()        {}

// Sampling has parameters of Chat Completions that control how a model generates its answer. Parameters that are nil or
// empty are not sent. The values are not checked here, because their limits differ between models, and the endpoint
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
	// ParallelToolCalls is sent only with tools, because endpoints refuse it without tools.
	ParallelToolCalls *bool `json:"parallel_tool_calls,omitempty"`
}
