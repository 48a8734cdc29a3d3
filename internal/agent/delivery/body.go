package delivery

import (
	"encoding/json"
	"strings"

	"answerd/internal/event"
)

// maxBody limits what is stored about a run's end, in bytes, and maxAnswer limits the text in it.
const (
	maxBody   = 256 << 10
	maxAnswer = 128 << 10
)

// body is the JSON body of a delivery. Each attempt sets its own Timestamp and DeliveryID.
type body struct {
	RunID           string            `json:"run_id"`
	ThreadID        string            `json:"thread_id"`
	Subject         string            `json:"subject"` // the caller's; "" without inbound authentication
	Agent           string            `json:"agent"`
	Status          event.Status      `json:"status"` // completed, failed or cancelled
	Answer          *string           `json:"answer,omitempty"`
	Output          json.RawMessage   `json:"output,omitempty"`
	Metadata        json.RawMessage   `json:"metadata,omitempty"`
	Error           json.RawMessage   `json:"error,omitempty"` // code, message, retryable, partial_answer
	RequestMetadata map[string]string `json:"request_metadata,omitempty"`
	TraceID         string            `json:"trace_id,omitempty"`
	// Truncated means that tool parameters and results, or the end of a long answer, are left out.
	Truncated bool `json:"truncated,omitempty"`

	Timestamp  int64  `json:"timestamp,omitempty"` // seconds since the Unix epoch
	DeliveryID string `json:"delivery_id,omitempty"`
}

// newBody returns the body about a run's end, with about maxBody bytes at most of what the run produced. A receiver
// that needs the rest fetches the run. If the end cannot be encoded, the body is Truncated, without metadata and error.
func newBody(run event.Run, agent string, end event.Body) body {
	ended := event.Run{Last: event.Event{Body: end}}
	b := body{
		RunID:           run.ID,
		ThreadID:        run.ThreadID,
		Subject:         run.Owner.Subject,
		Agent:           agent,
		Status:          ended.Status(),
		RequestMetadata: run.Metadata,
		TraceID:         run.TraceID,
	}
	var err error
	switch end := end.(type) {
	case event.FinalAnswer:
		err = b.setAnswer(end)
	case event.RunError:
		err = b.setError(end)
	case event.Cancelled:
		err = b.setError(event.RunError{Code: "cancelled", Message: end.Reason, PartialAnswer: end.PartialAnswer})
	}
	if err != nil { // raw JSON in the log is not valid; the receiver can still fetch the run
		b.Metadata = nil
		b.Error = nil
		b.Truncated = true
	}
	return b
}

// setAnswer sets a run's answer. If everything together is too large, it leaves out, in this order and only as far as
// needed, the arguments and results of calls, then the structured output and the end of the answer, and finally
// metadata that alone need more than half of maxBody. An error is about the metadata; the answer is set even then.
func (b *body) setAnswer(end event.FinalAnswer) (err error) {
	answer := end.Answer
	isTooLarge := func() bool { return len(b.Metadata)+len(answer)+len(b.Output) > maxBody }
	b.Output = end.Output
	b.Metadata, err = json.Marshal(end.Metadata)
	if isTooLarge() {
		b.Truncated = true
		end.Metadata.ToolParams, end.Metadata.ToolResults = nil, nil
		b.Metadata, err = json.Marshal(end.Metadata) // an earlier error may have been about what is now left out
	}
	if isTooLarge() {
		b.Output = nil
		answer = truncateText(answer)
	}
	b.Answer = &answer
	if isTooLarge() && len(b.Metadata) > maxBody/2 { // such as the names of very many tools
		b.Metadata = nil
	}
	return err
}

// setError sets a run's error, with at most maxAnswer bytes of the partial answer.
func (b *body) setError(end event.RunError) (err error) {
	if len(end.PartialAnswer) > maxAnswer {
		b.Truncated = true
		end.PartialAnswer = truncateText(end.PartialAnswer)
	}
	b.Error, err = json.Marshal(end)
	return err
}

// truncateText returns the first maxAnswer bytes of text, without a split character at the end.
func truncateText(text string) string {
	if len(text) <= maxAnswer {
		return text
	}
	return strings.ToValidUTF8(text[:maxAnswer], "")
}
