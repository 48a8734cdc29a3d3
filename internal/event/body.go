package event

import (
	"cmp"
	"encoding/json"
	"strings"
)

// Type names an event on the wire. No type is called error, open or message, because a browser's EventSource uses
// these names itself.
type Type string

// Body is the content of an event without its envelope. Only types of this package implement it.
type Body interface {
	Type() Type
	isBody()
}

// Call identifies a tool call of a run. Every event about a call embeds Call.
type Call struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool"`
	Server string `json:"server"` // the MCP server that has the tool; "" for a tool of answerd or of the caller
}

// call returns the Call of an event. All bodies that embed Call have this method.
func (c Call) call() Call { return c }

// Unknown is the body of an event whose type this version does not know. A newer version of answerd wrote the event to
// a log that both versions share. Event.JSON holds the whole event, and readers of the native format get it unchanged.
// An Unknown cannot be appended: AppendEncode returns an error.
type Unknown struct{ kind Type }

// Executor says who executes a call. "" means answerd or an MCP server.
type Executor string

// Client means that the HTTP client executes the call, because it declared the tool in its request. A run ends once all
// of its calls for the client are complete. The client sends their results with its next request.
const Client Executor = "client"

// Usage holds token counts as reported by the model's provider.
type Usage struct {
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	TotalTokens  int64 `json:"total_tokens"`
}

// Plus returns the sum of u and v.
func (u Usage) Plus(v Usage) Usage {
	return Usage{u.InputTokens + v.InputTokens, u.OutputTokens + v.OutputTokens, u.TotalTokens + v.TotalTokens}
}

// Spent is what a run and its child runs have used.
type Spent struct {
	Usage Usage    `json:"usage"`
	Cost  *float64 `json:"cost,omitempty"` // nil if a price is unknown
	Calls int      `json:"calls"`          // tool calls that were made
}

// Plus returns the sum of s and t. The sum's Cost is nil if either Cost is nil.
func (s Spent) Plus(t Spent) Spent {
	out := Spent{Usage: s.Usage.Plus(t.Usage), Calls: s.Calls + t.Calls}
	if s.Cost != nil && t.Cost != nil {
		cost := *s.Cost + *t.Cost
		out.Cost = &cost
	}
	return out
}

// Metadata summarizes a run's tool calls and its cost. ToolNames, ToolParams and ToolResults have one element for each
// call, in call order. Failed calls are included.
type Metadata struct {
	ToolNames     []string          `json:"tool_names"`
	ToolParams    []json.RawMessage `json:"tool_params"`
	ToolResults   []json.RawMessage `json:"tool_results"`
	Model         string            `json:"model"`                    // the model that the request asked for
	UpstreamModel string            `json:"upstream_model,omitempty"` // the model that answered last
	Steps         int               `json:"steps"`
	FinishReason  string            `json:"finish_reason"`
	Usage         Usage             `json:"usage"`
	Cost          *float64          `json:"cost,omitempty"` // cost of Usage, in the operator's currency; nil if unknown
	// UnavailableServers are the configured MCP servers that could not be connected when the run began. The run did not
	// have their tools.
	UnavailableServers []string `json:"unavailable_servers,omitempty"`
}

type (
	// Start is the first event of a run.
	Start struct {
		Question string            `json:"question"`
		Model    string            `json:"model"`
		ThreadID string            `json:"thread_id"`
		TraceID  string            `json:"trace_id"`
		Metadata map[string]string `json:"metadata,omitempty"` // set by the caller
		// StructuredOutput says that the answer must be JSON that matches a schema.
		StructuredOutput bool `json:"structured_output,omitempty"`
		// UnavailableServers are the configured MCP servers that cannot be connected at this time.
		UnavailableServers []string `json:"unavailable_servers,omitempty"`
		Agent              string   `json:"agent,omitempty"`         // the named agent; "" if no agents are configured
		ParentRunID        string   `json:"parent_run_id,omitempty"` // the run whose tool call started this one; "" for none
	}

	// StepStart comes before a model call; steps count from 1.
	StepStart struct {
		Step int `json:"step"`
	}
	// StepEnd comes after a model call. Usage is nil if the provider did not report it.
	StepEnd struct {
		Step         int    `json:"step"`
		FinishReason string `json:"finish_reason"`
		Usage        *Usage `json:"usage,omitempty"`
	}
	// StepReset says that the step runs again, so readers must discard its output so far. The step's parts and calls
	// were closed by earlier events.
	StepReset struct {
		Step   int    `json:"step"`
		Reason string `json:"reason"`
	}

	// ReasoningStart opens a part of the model's reasoning.
	ReasoningStart struct {
		PartID string `json:"part_id"`
	}
	// ReasoningDelta is the next piece of a part of the reasoning.
	ReasoningDelta struct {
		PartID string `json:"part_id"`
		Delta  string `json:"delta"`
	}
	// ReasoningEnd closes a part of the reasoning.
	ReasoningEnd struct {
		PartID string `json:"part_id"`
	}
	// TextStart opens a part of the model's text.
	TextStart struct {
		PartID string `json:"part_id"`
	}
	// TextDelta is the next piece of a part of the text.
	TextDelta struct {
		PartID string `json:"part_id"`
		Delta  string `json:"delta"`
	}
	// TextEnd closes a part of the text.
	TextEnd struct {
		PartID string `json:"part_id"`
	}

	// ToolCallStart says that the model has begun to write a call.
	ToolCallStart struct {
		Call
		NeedsApproval bool     `json:"needs_approval"`
		Executor      Executor `json:"executor,omitempty"`
	}
	// ToolCallArgs is the next piece of the call's arguments, as text.
	ToolCallArgs struct {
		Call
		Delta string `json:"delta"`
	}
	// ToolCall is a complete call. If the arguments are a JSON object, Args holds them. Otherwise ArgsText holds what
	// the model wrote. If the client executes the call, ToolCall is the call's last event.
	ToolCall struct {
		Call
		Args     json.RawMessage `json:"args,omitempty"`
		ArgsText string          `json:"args_text,omitempty"`
		Executor Executor        `json:"executor,omitempty"`
	}
	// ApprovalRequired says that a person must approve the call.
	ApprovalRequired struct {
		Call
		InterruptID string          `json:"interrupt_id"`
		Args        json.RawMessage `json:"args"`
		Message     string          `json:"message"`
		ToolVersion string          `json:"tool_version"`           // SHA-256 of the tool's definition
		ExpiresAt   int64           `json:"expires_at"`             // milliseconds since the Unix epoch
		ChildRunID  string          `json:"child_run_id,omitempty"` // the child run that asks; Tool and Server are of its call
	}
	// ApprovalResolved says what the person decided about the call.
	ApprovalResolved struct {
		Call
		InterruptID string `json:"interrupt_id"`
		Approved    bool   `json:"approved"`
		Reason      string `json:"reason,omitempty"`
		By          string `json:"by,omitempty"`
	}
	// Elicitation is a question from an MCP server to the user.
	Elicitation struct {
		Call
		InterruptID string          `json:"interrupt_id"`
		Mode        string          `json:"mode"` // form or url
		Message     string          `json:"message"`
		Schema      json.RawMessage `json:"schema,omitempty"`
		URL         string          `json:"url,omitempty"`
		HeldOpen    bool            `json:"held_open,omitempty"` // the MCP server waits within its open call, so the question ends with this process
		ExpiresAt   int64           `json:"expires_at"`
		ChildRunID  string          `json:"child_run_id,omitempty"` // as in ApprovalRequired
	}
	// ElicitationResolved says how the user answered an Elicitation.
	ElicitationResolved struct {
		Call
		InterruptID string `json:"interrupt_id"`
		Action      string `json:"action"` // accept, decline or cancel
	}
	// ToolProgress reports progress of a call, from an MCP progress notification.
	ToolProgress struct {
		Call
		Progress float64 `json:"progress"`
		Total    float64 `json:"total,omitempty"`
		Message  string  `json:"message,omitempty"`

		ChildRunID string `json:"child_run_id,omitempty"` // the child run, if the call asks another agent
	}
	// LogMessage is a log message that an MCP server sent during a call.
	LogMessage struct {
		Call
		Level  string          `json:"level"`
		Logger string          `json:"logger,omitempty"`
		Data   json.RawMessage `json:"data"`
	}
	// FieldError says what is wrong with one field; Pointer is a JSON pointer (RFC 6901).
	FieldError struct {
		Pointer string `json:"pointer"`
		Detail  string `json:"detail"`
	}
	// ToolResult ends a successful call. SchemaViolations lists where the structured content violates the tool's own
	// output schema. The model gets the content anyway.
	ToolResult struct {
		Call
		Args       json.RawMessage   `json:"args"`
		Payload    json.RawMessage   `json:"payload"`
		Content    []json.RawMessage `json:"content"`
		Structured json.RawMessage   `json:"structured,omitempty"`
		Truncated  *Truncated        `json:"truncated,omitempty"` // nil if the event has the whole result
		DurationMS int64             `json:"duration_ms"`

		SchemaViolations []FieldError `json:"schema_violations,omitempty"`
		ChildRunID       string       `json:"child_run_id,omitempty"` // the child run, if the call asked another agent
	}
	// ToolError ends a call that failed or was not executed. If Kind is invalid_arguments, Errors lists the invalid
	// fields of Args, as far as they are known.
	ToolError struct {
		Call
		Args       json.RawMessage `json:"args,omitempty"`
		ArgsText   string          `json:"args_text,omitempty"`
		Payload    string          `json:"payload"` // the text for the model
		Kind       string          `json:"kind"`
		Errors     []FieldError    `json:"errors,omitempty"`
		Truncated  *Truncated      `json:"truncated,omitempty"` // nil if Payload is the whole text
		DurationMS int64           `json:"duration_ms"`
		ChildRunID string          `json:"child_run_id,omitempty"` // the child run, if the call asked another agent
	}

	// Budget says that the run is close to a limit or has reached it. Used and Max are in the limit's unit, with
	// fractions for seconds and money.
	Budget struct {
		Limit string  `json:"limit"` // the limit's name in requests
		Used  float64 `json:"used"`
		Max   float64 `json:"max"`
	}
	// BudgetRequired asks a person to raise a limit that the run has reached.
	BudgetRequired struct {
		InterruptID string  `json:"interrupt_id"`
		Limit       string  `json:"limit"` // the limit's name in requests
		Used        float64 `json:"used"`
		Max         float64 `json:"max"`
		Message     string  `json:"message"`
		ExpiresAt   int64   `json:"expires_at"` // milliseconds since the Unix epoch
	}
	// BudgetResolved says what the person decided about a limit. Max is the limit that applies from now on.
	BudgetResolved struct {
		InterruptID string  `json:"interrupt_id"`
		Limit       string  `json:"limit"`
		Approved    bool    `json:"approved"`
		Max         float64 `json:"max"`
		Reason      string  `json:"reason,omitempty"`
		By          string  `json:"by,omitempty"`
	}

	// FinalAnswer ends a run that completed. If the answer must be JSON that matches a schema, Output is its value.
	FinalAnswer struct {
		Answer       string          `json:"answer"`
		Output       json.RawMessage `json:"output,omitempty"`
		Metadata     Metadata        `json:"metadata"`
		FinishReason string          `json:"finish_reason"`
	}
	// RunError ends a run that failed. PartialAnswer is the text of the failed step. Reason is ModelNotFound, or "" if
	// Code says everything. If Code is invalid_output, Errors lists where the answer violates its schema.
	RunError struct {
		Code          string `json:"code"`
		Reason        string `json:"reason,omitempty"`
		Message       string `json:"message"`
		Retryable     bool   `json:"retryable"`
		RetryAfter    int64  `json:"retry_after,omitempty"` // seconds, as the endpoint asked for; 0 if unknown
		PartialAnswer string `json:"partial_answer"`

		Errors []FieldError `json:"errors,omitempty"`
	}
	// Cancelled ends a run that was cancelled. PartialAnswer is the text of the interrupted step.
	Cancelled struct {
		Reason        string `json:"reason"`
		PartialAnswer string `json:"partial_answer"`
	}
)

// ModelNotFound is the Reason of a run that failed because the model's endpoint does not know the model. OpenAI uses
// the same code.
const ModelNotFound = "model_not_found"

// ContextLengthExceeded is OpenAI's code for a conversation that does not fit the model's context window.
const ContextLengthExceeded = "context_length_exceeded"

// OpenAICode returns the error's code for OpenAI's API formats. It differs from Code where OpenAI has its own code that
// clients act on. For example, clients shorten a conversation after ContextLengthExceeded.
func (e RunError) OpenAICode() string {
	if e.Code == "too_large" {
		return ContextLengthExceeded
	}
	return cmp.Or(e.Reason, e.Code)
}

// MessageWithErrors returns the message and the errors in one text, for API formats whose errors have only a message.
func (e RunError) MessageWithErrors() string {
	details := make([]string, len(e.Errors))
	for i, f := range e.Errors {
		details[i] = strings.TrimPrefix(f.Pointer+": "+f.Detail, ": ")
	}
	return strings.TrimSuffix(e.Message+" "+strings.Join(details, "; "), " ")
}

// Truncated says that an event holds only part of a result, because the whole result is too large for an event.
type Truncated struct {
	Bytes int    `json:"bytes"`         // size of the whole result, which is the content and the structured content
	URL   string `json:"url,omitempty"` // absolute path of the whole result; "" if the log did not keep it
}

// Arguments returns the call's arguments as JSON or, if they are not a JSON object, the text that the model wrote.
func (b ToolCall) Arguments() string {
	if b.Args == nil {
		return b.ArgsText
	}
	return string(b.Args)
}

// Text returns the result as text: a JSON string as its value, any other value as JSON.
func (b ToolResult) Text() string {
	var text string
	if json.Unmarshal(b.Payload, &text) == nil {
		return text
	}
	return string(b.Payload)
}
