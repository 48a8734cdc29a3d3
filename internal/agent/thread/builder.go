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
		step.Calls = append(step.Calls, Call{CallID: e.CallID, Tool: e.Tool, Server: e.Server, Args: e.Args, ArgsText: e.ArgsText, byClient: e.Executor == event.Client})
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
	last := len(turn.Steps) - 1
	if last >= 0 {
		turn.Steps[last].Text = b.text.String()
	}
	text := ""
	switch e := end.(type) {
	case event.FinalAnswer:
		text = e.Answer
	case event.RunError:
		text = e.PartialAnswer
	case event.Cancelled:
		text = e.PartialAnswer
	}
	switch {
	case end == nil:
	case last >= 0:
		turn.Steps[last].Text = text
	case text != "":
		turn.Steps = []Step{{Text: text}}
	}
	turn.Steps = slices.DeleteFunc(turn.Steps, func(s Step) bool { return s.Text == "" && len(s.Calls) == 0 })
	last = len(turn.Steps) - 1
	for i := range turn.Steps {
		s := &turn.Steps[i]
		s.Calls = slices.DeleteFunc(slices.Clone(s.Calls), func(c Call) bool {
			isOpen := c.Payload == nil && c.Error == nil
			return isOpen && !(c.byClient && turn.Status == event.StatusCompleted) || c.cancelled && i == last && turn.Status != event.StatusCompleted
		})
	}
	// A step without a call that another one follows was an answer that violated its schema, which the
	// next step replaces.
	kept := turn.Steps[:0]
	for i, s := range turn.Steps {
		if i == last || len(s.Calls) > 0 {
			kept = append(kept, s)
		}
	}
	turn.Steps = kept
	return turn
}
