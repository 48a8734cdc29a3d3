package llm

import "fmt"

// Kind is what went wrong with a model call, in the terms that a caller can act on.
type Kind string

// The kinds of Error. Their text is the code that a run's error carries.
const (
	// ModelError: the endpoint refused, failed, or answered nonsense.
	ModelError Kind = "model_error"
	// ModelTimeout: no first byte, or no further byte, within the time allowed.
	ModelTimeout Kind = "model_timeout"
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
	Public    string // one sentence, without anything the endpoint said
	Retryable bool   // the same request may succeed later
	// UnknownModel says that the endpoint does not know the model.
	UnknownModel bool
	Err          error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %s", e.Kind, e.Public)
	}
	return fmt.Sprintf("%s: %v", e.Kind, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
