package llm

import (
	"fmt"
	"time"
)

// Kind is what went wrong with a model call, in the terms that a caller can act on.
type Kind string

// The kinds of Error. Their text is the code that a run's error carries.
const (
	// ModelError: the endpoint refused, failed, or answered nonsense.
	ModelError Kind = "model_error"
	// ModelTimeout: no first byte, or no further byte, within the time allowed.
	ModelTimeout Kind = "model_timeout"
	// RateLimited: the endpoint answers fewer requests than it gets. Trying again later helps.
	RateLimited Kind = "model_rate_limited"
	// TooLarge: the conversation is longer than the model's context window.
	TooLarge Kind = "too_large"
	// UpstreamTruncated: the stream ended before the model said that it had finished.
	UpstreamTruncated Kind = "upstream_truncated"
)

// Error is a failed model call. Err is the cause, for the log only: it may quote
// the endpoint's reply. Public is fit for the caller.
type Error struct {
	Kind      Kind
	Status    int    // HTTP status of the reply, 0 where there was none
	Public    string // what failed and what to do next, without anything the endpoint said
	Retryable bool   // the same request may succeed later
	// UnknownModel says that the endpoint does not know the model.
	UnknownModel bool
	// Message is what the endpoint says about the failure, without keys and 500 bytes at most;
	// "" if it says nothing. It is for the log, and for callers only if the operator wants that.
	Message string
	// RetryAfter is when the endpoint wants to be asked again; 0 if it does not say.
	RetryAfter time.Duration
	// ContextTokens is the model's window and PromptTokens the size of the prompt, as the endpoint
	// named them when it refused a prompt as TooLarge; 0 if it did not name them.
	ContextTokens, PromptTokens int64
	// Asked is the id of the model that a Router asked; "" without one.
	Asked string
	// Unavailable says that this endpoint cannot answer now, so another one may be asked.
	Unavailable bool
	Err         error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %s", e.Kind, e.Public)
	}
	return fmt.Sprintf("%s: %v", e.Kind, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
