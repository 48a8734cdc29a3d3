package thread

import (
	"slices"
	"strings"
	"sync"

	"answerd/internal/event"
	"answerd/internal/mcp/content"
)

// Builder collects the steps of a run from its events. Its methods may be called concurrently. The zero
// value is ready for the first event.
type Builder struct {
	mu    sync.Mutex // protects what follows
	steps []Step
	text  strings.Builder // of the last step
	size  int             // bytes of results so far
}

const (
	// maxResults bounds the results of a run in bytes, so that nearly every turn has room for its texts
	// and arguments besides, and need not be shortened again.
	maxResults = event.MaxTurn - event.MaxTurn/8
	// minResult is the length down to which results are kept that come after maxResults bytes of others.
	minResult = 4 << 10
)

// Add adds one event. Events must come in order.
func (b *Builder) Add(body event.Body) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if _, opens := body.(event.StepStart); opens {
		b.endStepLocked()
		b.steps = append(b.steps, Step{})
		return
	}
	if len(b.steps) == 0 {
		return
	}

	switch e := body.(type) {
	case event.StepReset:
		b.text.Reset()
		b.steps[len(b.steps)-1] = Step{}
	case event.TextDelta:
		b.text.WriteString(e.Delta)
	case event.ToolCall:
		step := &b.steps[len(b.steps)-1]
		step.Calls = append(step.Calls, Call{
			CallID:   e.CallID,
			Tool:     e.Tool,
			Server:   e.Server,
			Args:     e.Args,
			ArgsText: e.ArgsText,
			byClient: e.Executor == event.Client,
		})
	case event.ToolResult:
		if c := b.callLocked(e.CallID); c != nil {
			c.Args = e.Args
			c.ArgsText = ""
			c.Payload = content.TruncateValue(e.Payload, max(maxResults-b.size, minResult), "")
			b.size += len(c.Payload)
		}
	case event.ToolError:
		if c := b.callLocked(e.CallID); c != nil {
			text, _ := content.TruncateText(e.Payload, max(maxResults-b.size, minResult), "")
			c.Error, c.cancelled = &text, e.Kind == "cancelled"
			b.size += len(text)
		}
	}
}

// StepText returns the text of the newest step so far.
func (b *Builder) StepText() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// endStepLocked gives the last step its text, if there is one.
func (b *Builder) endStepLocked() {
	if n := len(b.steps); n > 0 {
		b.steps[n-1].Text = b.text.String()
	}
	b.text.Reset()
}

// callLocked returns the call with that id, or nil. The call is one of the last step.
func (b *Builder) callLocked(id string) *Call {
	step := &b.steps[len(b.steps)-1]
	if i := slices.IndexFunc(step.Calls, func(c Call) bool { return c.CallID == id }); i >= 0 {
		return &step.Calls[i]
	}
	return nil
}

// Turn returns the turn of a run that ends with end, which was not added, or that has not ended, if end is
// nil. Without an answer it has only the calls that ended, and the partial text that the end gives: endpoints
// refuse a conversation in which a call has no result. Calls of the caller's own tools stay open if the run
// completed with them, since their results come with the next question. Turn may be called several times.
func (b *Builder) Turn(end event.Body) Turn {
	b.mu.Lock()
	defer b.mu.Unlock()
	turn := Turn{Version: version, Status: event.Run{Last: event.Event{Body: end}}.Status(), Steps: slices.Clone(b.steps)}
	if n := len(turn.Steps); n > 0 {
		turn.Steps[n-1].Text = b.text.String()
	}
	if end != nil {
		turn.setLastText(textOf(end))
	}
	turn.dropEmptySteps()
	turn.dropCallsWithoutResult()
	turn.dropReplacedSteps()
	return turn
}

// textOf returns the text of a terminal event: the answer, or the part of it that was written.
func textOf(end event.Body) string {
	switch e := end.(type) {
	case event.FinalAnswer:
		return e.Answer
	case event.RunError:
		return e.PartialAnswer
	case event.Cancelled:
		return e.PartialAnswer
	}
	return ""
}

// setLastText replaces the text of the last step. A turn without steps gets one if there is a text.
func (t *Turn) setLastText(text string) {
	if n := len(t.Steps); n > 0 {
		t.Steps[n-1].Text = text
	} else if text != "" {
		t.Steps = []Step{{Text: text}}
	}
}

// dropEmptySteps removes the steps that have neither a text nor a call.
func (t *Turn) dropEmptySteps() {
	t.Steps = slices.DeleteFunc(t.Steps, func(s Step) bool { return s.Text == "" && len(s.Calls) == 0 })
}

// dropCallsWithoutResult removes the calls that have no result, except those that the caller is to answer after a
// completed run. Of the last step of a run that did not complete, it also removes the calls that were cancelled. It
// does not change the lists of calls of the Builder, which t shares.
func (t *Turn) dropCallsWithoutResult() {
	completed := t.Status == event.StatusCompleted
	for i := range t.Steps {
		isLast := i == len(t.Steps)-1
		t.Steps[i].Calls = slices.DeleteFunc(slices.Clone(t.Steps[i].Calls), func(c Call) bool {
			isOpen := c.Payload == nil && c.Error == nil
			awaitsCaller := c.byClient && completed
			return isOpen && !awaitsCaller || c.cancelled && isLast && !completed
		})
	}
}

// dropReplacedSteps removes each step without a call that another step follows: it was an answer that
// violated its schema, and the next step replaces it.
func (t *Turn) dropReplacedSteps() {
	kept := t.Steps[:0]
	for i, s := range t.Steps {
		if i == len(t.Steps)-1 || len(s.Calls) > 0 {
			kept = append(kept, s)
		}
	}
	t.Steps = kept
}
