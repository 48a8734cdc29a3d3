package event

import (
	"cmp"
	"encoding/json"
)

// Type names an event on the wire. No type is called error, open or message, because a browser's EventSource uses
// these names itself.
type Type string

// Body is the content of an event without its envelope. Only types of this package implement it.
type Body interface {
	Type() Type
	isBody()
}

// Call identifies a tool call of a run. Every event of a call embeds it.
type Call struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool"`
	Server string `json:"server"` // the MCP server that has the tool; "" for a tool of answerd or of the caller
}

// call returns the call of an event, for all bodies that embed Call.
func (c Call) call() Call { return c }

// Unknown is the body of an event whose type this version does not know, because a newer version wrote the event to a
// log that both share. Event.JSON has the whole event, which readers of the native format get. An Unknown cannot
// be appended: AppendEncode fails.
type Unknown struct{ kind Type }

// Executor says who executes a call; "" is answerd or an MCP server.
type Executor string

// Client is the caller, who declared the tool with the question. A run with calls for the client ends when
// they are complete; their results come with the next question.
const Client Executor = "client"

// Usage has the numbers of tokens that the model's provider counted.
type Usage struct {
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	TotalTokens  int64 `json:"total_tokens"`
}

// Plus returns the sum of u and v.
func (u Usage) Plus(v Usage) Usage {
	return Usage{u.InputTokens + v.InputTokens, u.OutputTokens + v.OutputTokens, u.TotalTokens + v.TotalTokens}
}

// Spent is what a run has used, its children included.
type Spent struct {
	Usage Usage    `json:"usage"`
	Cost  *float64 `json:"cost,omitempty"` // nil if a price is unknown
	Calls int      `json:"calls"`          // tool calls that were made
}

// Plus returns the sum of s and t. The cost is nil if one of them is.
func (s Spent) Plus(t Spent) Spent {
	out := Spent{Usage: s.Usage.Plus(t.Usage), Calls: s.Calls + t.Calls}
	if s.Cost != nil && t.Cost != nil {
		cost := *s.Cost + *t.Cost
		out.Cost = &cost
	}
	return out
}

// Metadata summarizes the calls and the cost of a run. The three arrays have one element for
// every call, in call order, failed ones included.
type Metadata struct {
	ToolNames     []string          `json:"tool_names"`
	ToolParams    []json.RawMessage `json:"tool_params"`
	ToolResults   []json.RawMessage `json:"tool_results"`
	Model         string            `json:"model"`                    // the model that was asked for
	UpstreamModel string            `json:"upstream_model,omitempty"` // the model that answered last
	Steps         int               `json:"steps"`
	FinishReason  string            `json:"finish_reason"`
	Usage         Usage             `json:"usage"`
	Cost          *float64          `json:"cost,omitempty"` // of Usage, in the operator's currency; nil without a price
	// UnavailableServers are the configured servers whose tools the run did without, because they
	// could not be connected when it began.
	UnavailableServers []string `json:"unavailable_servers,omitempty"`
}

type (
	// Start is the first event of a run.
	Start struct {
		Question string            `json:"question"`
		Model    string            `json:"model"`
		ThreadID string            `json:"thread_id"`
		TraceID  string            `json:"trace_id"`
		Metadata map[string]string `json:"metadata,omitempty"` // the caller's own
		// StructuredOutput says that the answer must be JSON of a schema.
		StructuredOutput bool `json:"structured_output,omitempty"`
		// UnavailableServers are the configured servers that cannot be connected at this time.
		UnavailableServers []string `json:"unavailable_servers,omitempty"`
		Agent              string   `json:"agent,omitempty"`         // the named agent; "" if the service has no names
		ParentRunID        string   `json:"parent_run_id,omitempty"` // the run that asks in a call; "" if a caller does
	}

	// StepStart comes before a model call; steps count from 1.
	StepStart struct {
		Step int `json:"step"`
	}
	// StepEnd comes after a model call. Usage is nil where the provider gives none.
	StepEnd struct {
		Step         int    `json:"step"`
		FinishReason string `json:"finish_reason"`
		Usage        *Usage `json:"usage,omitempty"`
	}
	// StepReset says that the output of the step so far is void, because the step runs again.
	// Its text and its calls were closed before.
	StepReset struct {
		Step   int    `json:"step"`
		Reason string `json:"reason"`
	}

	// ReasoningStart opens a part of the model's reasoning.
	ReasoningStart struct {
		PartID string `json:"part_id"`
	}
	// ReasoningDelta is a piece of a part of the reasoning.
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
	// TextDelta is a piece of a part of the text.
	TextDelta struct {
		PartID string `json:"part_id"`
		Delta  string `json:"delta"`
	}
	// TextEnd closes a part of the text.
	TextEnd struct {
		PartID string `json:"part_id"`
	}

	// ToolCallStart says that the model began to write a call.
	ToolCallStart struct {
		Call
		NeedsApproval bool     `json:"needs_approval"`
		Executor      Executor `json:"executor,omitempty"`
	}
	// ToolCallArgs is a piece of the call's arguments as text.
	ToolCallArgs struct {
		Call
		Delta string `json:"delta"`
	}
	// ToolCall is a complete call. Args has the arguments if they are a JSON object; otherwise
	// ArgsText has what the model wrote. For a call that the client executes, this is the last event.
	ToolCall struct {
		Call
		Args     json.RawMessage `json:"args,omitempty"`
		ArgsText string          `json:"args_text,omitempty"`
		Executor Executor        `json:"executor,omitempty"`
	}
	// ApprovalRequired says that a person must agree to the call.
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
	// Elicitation is a question of an MCP server to the user.
	Elicitation struct {
		Call
		InterruptID string          `json:"interrupt_id"`
		Mode        string          `json:"mode"` // form or url
		Message     string          `json:"message"`
		Schema      json.RawMessage `json:"schema,omitempty"`
		URL         string          `json:"url,omitempty"`
		HeldOpen    bool            `json:"held_open,omitempty"` // the server waits within its call, so the question ends with this process
		ExpiresAt   int64           `json:"expires_at"`
		ChildRunID  string          `json:"child_run_id,omitempty"` // as in ApprovalRequired
	}
	// ElicitationResolved says how the user answered an Elicitation.
	ElicitationResolved struct {
		Call
		InterruptID string `json:"interrupt_id"`
		Action      string `json:"action"` // accept, decline or cancel
	}
	// ToolProgress is the MCP progress of a call.
	ToolProgress struct {
		Call
		Progress float64 `json:"progress"`
		Total    float64 `json:"total,omitempty"`
		Message  string  `json:"message,omitempty"`

		ChildRunID string `json:"child_run_id,omitempty"` // of a call that asks another agent
	}
	// LogMessage is an MCP log message during a call.
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
	// ToolResult ends a successful call. SchemaViolations lists where the structured content
	// violates the tool's own output schema; the model gets the content in spite of them.
	ToolResult struct {
		Call
		Args       json.RawMessage   `json:"args"`
		Payload    json.RawMessage   `json:"payload"`
		Content    []json.RawMessage `json:"content"`
		Structured json.RawMessage   `json:"structured,omitempty"`
		Truncated  *Truncated        `json:"truncated,omitempty"` // nil if the event has the whole result
		DurationMS int64             `json:"duration_ms"`

		SchemaViolations []FieldError `json:"schema_violations,omitempty"`
		ChildRunID       string       `json:"child_run_id,omitempty"` // of a call that asked another agent
	}
	// ToolError ends a call that failed, or was not executed. With the kind invalid_arguments,
	// Errors lists the invalid fields of Args if they are known.
	ToolError struct {
		Call
		Args       json.RawMessage `json:"args,omitempty"`
		ArgsText   string          `json:"args_text,omitempty"`
		Payload    string          `json:"payload"` // the text for the model
		Kind       string          `json:"kind"`
		Errors     []FieldError    `json:"errors,omitempty"`
		Truncated  *Truncated      `json:"truncated,omitempty"` // nil if Payload is the whole text
		DurationMS int64           `json:"duration_ms"`
		ChildRunID string          `json:"child_run_id,omitempty"` // of a call that asked another agent
	}

	// Budget says that a limit of the run is near or reached. Used and Max are in the unit of
	// the limit, with fractions for seconds and money.
	Budget struct {
		Limit string  `json:"limit"` // as requests name it
		Used  float64 `json:"used"`
		Max   float64 `json:"max"`
	}
	// BudgetRequired asks a person to raise a limit that the run has reached.
	BudgetRequired struct {
		InterruptID string  `json:"interrupt_id"`
		Limit       string  `json:"limit"` // as requests name it
		Used        float64 `json:"used"`
		Max         float64 `json:"max"`
		Message     string  `json:"message"`
		ExpiresAt   int64   `json:"expires_at"` // milliseconds since the Unix epoch
	}
	// BudgetResolved says what the person decided about a limit. Max is the limit that applies after that.
	BudgetResolved struct {
		InterruptID string  `json:"interrupt_id"`
		Limit       string  `json:"limit"`
		Approved    bool    `json:"approved"`
		Max         float64 `json:"max"`
		Reason      string  `json:"reason,omitempty"`
		By          string  `json:"by,omitempty"`
	}

	// FinalAnswer ends a run that completed. Output is the answer as a value, if it must be JSON of a schema.
	FinalAnswer struct {
		Answer       string          `json:"answer"`
		Output       json.RawMessage `json:"output,omitempty"`
		Metadata     Metadata        `json:"metadata"`
		FinishReason string          `json:"finish_reason"`
	}
	// RunError ends a run that failed. PartialAnswer is the text of the step that failed. Reason is ModelNotFound, or
	// "" if Code says everything. With the code invalid_output, Errors lists where the answer violates its schema.
	RunError struct {
		Code          string `json:"code"`
		Reason        string `json:"reason,omitempty"`
		Message       string `json:"message"`
		Retryable     bool   `json:"retryable"`
		RetryAfter    int64  `json:"retry_after,omitempty"` // seconds, as the model's endpoint wants it; 0 if it does not say
		PartialAnswer string `json:"partial_answer"`

		Errors []FieldError `json:"errors,omitempty"`
	}
	// Cancelled ends a run that was cancelled. PartialAnswer is the text of the step that was cut off.
	Cancelled struct {
		Reason        string `json:"reason"`
		PartialAnswer string `json:"partial_answer"`
	}
)

// ModelNotFound is the Reason of a run that failed because the model's endpoint does not know the
// model. It is also OpenAI's code for that.
const ModelNotFound = "model_not_found"

// ContextLengthExceeded is OpenAI's code for a conversation that is longer than the model's context window.
const ContextLengthExceeded = "context_length_exceeded"

// OpenAICode returns the code of the error in OpenAI's formats. It is the Code of the event, except where OpenAI has a
// code of its own that clients act on: they shorten a conversation that is too long, for example.
func (e RunError) OpenAICode() string {
	if e.Code == "too_large" {
		return ContextLengthExceeded
	}
	return cmp.Or(e.Reason, e.Code)
}

// Truncated says that an event has only a part of a result, because the whole result is too large for an event.
type Truncated struct {
	Bytes int    `json:"bytes"`         // size of the whole result: content and structured content
	URL   string `json:"url,omitempty"` // absolute path of the whole result; "" if the log does not keep it
}
