package llm

import (
	"fmt"
	"time"
)

// Kind says what went wrong with a model call, in terms that a caller can act on.
type Kind string

// The kinds of Error. A failed run's error code is the text of its Kind.
const (
	// ModelError: the endpoint refused the request, failed, or sent an answer that makes no sense.
	ModelError Kind = "model_error"
	// ModelTimeout: the first byte, or a later one, did not arrive within the time limit.
	ModelTimeout Kind = "model_timeout"
	// RateLimited: the endpoint refused the request because it receives too many. Trying again later helps.
	RateLimited Kind = "model_rate_limited"
	// TooLarge: the conversation is longer than the model's context window.
	TooLarge Kind = "too_large"
	// UpstreamTruncated: the stream ended before the model said that it had finished.
	UpstreamTruncated Kind = "upstream_truncated"
)

// Error is a failed model call. Err is the cause. It may quote the endpoint's reply, so it is for the log only. Public
// may be shown to the caller.
type Error struct {
	Kind      Kind
	Status    int    // HTTP status of the reply; 0 if no reply came
	Public    string // what failed and what to do next, without any text from the endpoint
	Retryable bool   // the same request may succeed later
	// UnknownModel says that the endpoint does not know the model.
	UnknownModel bool
	// Message is the endpoint's description of the failure, without keys and cut to 500 bytes, or "" if the endpoint
	// gave none. It is for the log, and callers see it only if the operator allows that.
	Message string
	// RetryAfter is how long the endpoint asks to wait before a retry; 0 if it does not say.
	RetryAfter time.Duration
	// ContextTokens is the size of the model's context window, and PromptTokens the size of the prompt, as stated by an
	// endpoint that refused a prompt as TooLarge; 0 if it did not state them.
	ContextTokens, PromptTokens int64
	// Asked is the id of the model that a Router asked; "" if no Router was used.
	Asked string
	// Unavailable says that this endpoint cannot answer at the moment, so another one may be asked.
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
