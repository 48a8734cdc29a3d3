package thread

import (
	"slices"
	"strings"
	"sync"

	"answerd/internal/event"
	"answerd/internal/mcp/content"
)

// Builder collects a run's steps from its events. Its methods may be called concurrently. The zero value is empty.
type Builder struct {
	mu         sync.Mutex // protects the fields below
	steps      []Step
	text       strings.Builder // the last step's text; Step.Text of that step is not set yet
	resultSize int             // how many bytes of results there are so far
}

const (
	// maxResults is how many bytes of results a turn has before results are cut. The rest of event.MaxTurn is nearly
	// always enough for texts and arguments, so that Turn.Encode need not shorten the turn.
	maxResults = event.MaxTurn - event.MaxTurn/8
	// minResult is the length to which results are cut once there are maxResults bytes of them.
	minResult = 4 << 10
)

// Add adds one event. Events must be added in order. Once the results exceed maxResults, Add cuts further results.
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
			// The event has the arguments that were sent, in which a hook or a person may have changed the model's.
			c.Args, c.ArgsText = e.Args, ""
			c.Payload = content.TruncateValue(e.Payload, b.maxResultLocked(), "")
			b.resultSize += len(c.Payload)
		}
	case event.ToolError:
		if c := b.callLocked(e.CallID); c != nil {
			text, _ := content.TruncateText(e.Payload, b.maxResultLocked(), "")
			c.Error = &text
			c.cancelled = e.Kind == "cancelled"
			b.resultSize += len(text)
		}
	}
}

// maxResultLocked returns how many bytes the next result may have. The caller must hold b.mu.
func (b *Builder) maxResultLocked() int { return max(maxResults-b.resultSize, minResult) }

// StepText returns the newest step's text so far.
func (b *Builder) StepText() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// endStepLocked sets the last step's text, if there is a step. The caller must hold b.mu.
func (b *Builder) endStepLocked() {
	if n := len(b.steps); n > 0 {
		b.steps[n-1].Text = b.text.String()
	}
	b.text.Reset()
}

// callLocked returns the last step's call with this id, or nil. There must be a step. The caller must hold b.mu.
func (b *Builder) callLocked(id string) *Call {
	step := &b.steps[len(b.steps)-1]
	if i := slices.IndexFunc(step.Calls, func(c Call) bool { return c.CallID == id }); i >= 0 {
		return &step.Calls[i]
	}
	return nil
}

// Turn returns the run's turn, made from the events added so far and from end, the terminal event, which need not have
// been added. A nil end means that the run has not ended. Turn does not change the Builder.
//
// The turn has no calls without a result, because model endpoints refuse a conversation with such a call. The exception
// is a completed run: its turn keeps the calls of the API client's own tools, whose results arrive with the next
// question. If the run failed or was cancelled, the last text is the partial answer in end.
func (b *Builder) Turn(end event.Body) Turn {
	b.mu.Lock()
	defer b.mu.Unlock()
	ended := event.Run{Last: event.Event{Body: end}}
	turn := Turn{Version: version, Status: ended.Status(), Steps: slices.Clone(b.steps)}
	lastText := b.text.String()
	if end != nil {
		lastText = answerOf(end)
	}
	turn.setLastText(lastText)
	turn.Steps = slices.DeleteFunc(turn.Steps, func(s Step) bool { return s.Text == "" && len(s.Calls) == 0 })
	turn.dropUnfinishedCalls()
	turn.dropReplacedSteps()
	return turn
}

// answerOf returns a terminal event's answer or partial answer.
func answerOf(end event.Body) string {
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

// setLastText replaces the last step's text. If there are no steps and text is not "", it adds one.
func (t *Turn) setLastText(text string) {
	if n := len(t.Steps); n > 0 {
		t.Steps[n-1].Text = text
	} else if text != "" {
		t.Steps = []Step{{Text: text}}
	}
}

// dropUnfinishedCalls removes calls without a result, except calls that the API client executes if the run completed.
// If the run did not complete, it also removes the last step's cancelled calls. It copies the lists of calls first,
// because t shares them with the Builder.
func (t *Turn) dropUnfinishedCalls() {
	completed := t.Status == event.StatusCompleted
	for i := range t.Steps {
		isLast := i == len(t.Steps)-1
		t.Steps[i].Calls = slices.DeleteFunc(slices.Clone(t.Steps[i].Calls), func(c Call) bool {
			if completed {
				return !c.hasResult() && !c.byClient
			}
			return !c.hasResult() || c.cancelled && isLast
		})
	}
}

// dropReplacedSteps removes steps without a call, except the last step. Such a step was an answer that violated its
// schema, and that the next step replaced.
func (t *Turn) dropReplacedSteps() {
	kept := t.Steps[:0]
	for i, s := range t.Steps {
		if i == len(t.Steps)-1 || len(s.Calls) > 0 {
			kept = append(kept, s)
		}
	}
	t.Steps = kept
}
