package event

import (
	"context"
	"fmt"
	"sync"
)

// OrderError is an event that may not come now. It is a mistake of the caller, not
// of the outside: nothing was appended.
type OrderError struct {
	Type   Type
	Reason string
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("event %s out of order: %s", e.Type, e.Reason)
}

// Writer appends the events of one run and keeps the promises of the package
// comment, in one place for all logs: an event that would break the order is
// refused, and a terminal event first closes whatever is open. The calls of a turn
// may append from several goroutines at once.
type Writer struct {
	log Log
	run string

	mu        sync.Mutex // held across Append, so that the order checked is the order kept
	started   bool
	ended     bool
	step      int // the open step, 0 when none
	text      string
	reasoning string
	calls     []openCall // in the order of their start, ended ones too: an id is used once
	asked     []openInterrupt
	suspended bool
	sealed    bool
}

type openCall struct {
	Call
	complete bool // tool_call was said
	done     bool // tool_result or tool_error was
	text     []byte
}

// NewWriter returns the writer of a run that has no events yet.
func NewWriter(log Log, run string) *Writer { return &Writer{log: log, run: run} }

// ResumeWriter returns the writer of a run that goes on where its events end, for a
// process that took the run over. ErrEnded if there is nothing to go on with, or what
// After says.
func ResumeWriter(ctx context.Context, log Log, run string) (*Writer, error) {
	var events []Event
	for {
		page, err := log.After(ctx, run, int64(len(events)))
		if err != nil {
			return nil, fmt.Errorf("resume a run: %w", err)
		}
		if events = append(events, page.Events...); page.Ended || len(page.Events) == 0 {
			return WriterAfter(log, run, events)
		}
	}
}

// WriterAfter is ResumeWriter for whoever has read all events of the run already.
func WriterAfter(log Log, run string, events []Event) (*Writer, error) {
	w := NewWriter(log, run)
	for _, e := range events {
		if reason := w.applyLocked(e.Body); reason != "" { // nobody has w yet
			return nil, fmt.Errorf("resume a run: %w", &OrderError{e.Body.Type(), reason})
		}
	}
	if w.ended {
		return nil, ErrEnded
	}
	return w, nil
}

// Seal ends what this writer may append, when it returns: from then on the run is
// somebody else's, and ErrFenced is the answer here.
func (w *Writer) Seal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sealed = true
}

// Suspended reports whether the run waits for a person.
func (w *Writer) Suspended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.suspended
}

// Append adds b to the run. A terminal event is preceded by the closers of
// everything that is open, and step_reset by those of what the step has open. It returns an *OrderError if b may not come now,
// ErrSuspended while the run waits for a person, ErrEnded after the terminal event,
// ErrFenced once it is sealed, or the log's error.
func (w *Writer) Append(ctx context.Context, b Body) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended:
		return ErrEnded
	case w.sealed:
		return ErrFenced
	case terminal(b) && !w.started:
		return &OrderError{b.Type(), "start comes first"}
	}
	for _, closer := range w.closersLocked(b) {
		if err := w.appendLocked(ctx, closer); err != nil {
			return err
		}
	}
	if w.suspended && !wakes(b) {
		return ErrSuspended
	}
	return w.appendLocked(ctx, b)
}

func (w *Writer) appendLocked(ctx context.Context, b Body) error {
	if reason := w.applyLocked(b); reason != "" {
		return &OrderError{b.Type(), reason}
	}
	if _, err := w.log.Append(ctx, w.run, b); err != nil {
		return fmt.Errorf("append %s event: %w", b.Type(), err)
	}
	return nil
}

// closersLocked are what is missing before b, for a reader that counts opened and closed
// things. The calls of a step that is open have not begun yet; they go with it.
func (w *Writer) closersLocked(b Body) (closers []Body) {
	reset, resets := b.(StepReset)
	if !terminal(b) && !(resets && reset.Step == w.step) {
		return nil
	}
	over := "The run ended before this call did."
	if resets {
		over = "The step that made this call runs again."
	}
	if w.text != "" {
		closers = append(closers, TextEnd{w.text})
	}
	if w.reasoning != "" {
		closers = append(closers, ReasoningEnd{w.reasoning})
	}
	for _, a := range w.asked {
		closers = append(closers, a.none)
	}
	for _, c := range w.calls {
		if c.done {
			continue
		}
		if !c.complete {
			closers = append(closers, ToolCall{Call: c.Call, ArgsText: string(c.text)})
		}
		closers = append(closers, ToolError{Call: c.Call, Kind: "cancelled", Payload: over})
	}
	if w.step != 0 && !resets {
		closers = append(closers, StepEnd{Step: w.step, FinishReason: closingReason(b)})
	}
	return closers
}

func closingReason(cause Body) string {
	if _, ok := cause.(Cancelled); ok {
		return "cancelled"
	}
	return "error"
}

// applyLocked is the order itself: it takes b into the state, or says why it may
// not come now.
func (w *Writer) applyLocked(b Body) (reason string) {
	if _, ok := b.(Start); ok == w.started {
		return "start comes first, and once"
	}
	if reason, ok := w.applyInterruptLocked(b); ok {
		return reason
	}
	switch b := b.(type) {
	case Start:
		w.started = true
	case StepStart:
		if w.step != 0 {
			return "a step is open"
		}
		w.step = b.Step
	case StepEnd:
		if w.step != b.Step || w.text != "" || w.reasoning != "" {
			return "another step, or a part of this one, is open"
		}
		w.step = 0
	case StepReset:
		if w.step != b.Step {
			return "that step is not open"
		}
	case TextStart:
		return w.open(&w.text, b.PartID)
	case TextDelta:
		return isOpen(w.text, b.PartID)
	case TextEnd:
		return closePart(&w.text, b.PartID)
	case ReasoningStart:
		return w.open(&w.reasoning, b.PartID)
	case ReasoningDelta:
		return isOpen(w.reasoning, b.PartID)
	case ReasoningEnd:
		return closePart(&w.reasoning, b.PartID)
	case FinalAnswer, RunError, Cancelled:
		w.ended = true
	default:
		return w.applyCallLocked(b)
	}
	return ""
}

// applyCallLocked is the order of one call's events.
func (w *Writer) applyCallLocked(b Body) (reason string) {
	switch b := b.(type) {
	case ToolCallStart:
		if w.callLocked(b.CallID) != nil {
			return "the call was started"
		}
		w.calls = append(w.calls, openCall{Call: b.Call})
	case ToolCallArgs:
		c := w.callLocked(b.CallID)
		if c == nil || c.complete {
			return "the call is not being written"
		}
		c.text = append(c.text, b.Delta...)
	case ToolCall:
		c := w.callLocked(b.CallID)
		if c == nil || c.complete {
			return "the call is not being written"
		}
		c.complete, c.text, c.done = true, nil, b.Executor == Client
	case ToolResult:
		return w.endCallLocked(b.Call)
	case ToolError:
		return w.endCallLocked(b.Call)
	case interface{ call() Call }: // whatever else a running call may bring
		return w.runningLocked(b.call())
	}
	return ""
}

func (w *Writer) callLocked(id string) *openCall {
	for i := range w.calls {
		if w.calls[i].CallID == id {
			return &w.calls[i]
		}
	}
	return nil
}

func (w *Writer) runningLocked(c Call) string {
	if o := w.callLocked(c.CallID); o == nil || !o.complete || o.done {
		return "the call is not running"
	}
	return ""
}

func (w *Writer) endCallLocked(c Call) string {
	if reason := w.runningLocked(c); reason != "" {
		return reason
	}
	if w.askedLocked(c) {
		return "a question of the call is open"
	}
	w.callLocked(c.CallID).done = true
	return ""
}

func (w *Writer) open(part *string, id string) string {
	if *part != "" || id == "" || w.step == 0 {
		return "a part of this kind is open, or no step is"
	}
	*part = id
	return ""
}

func isOpen(part, id string) string {
	if part == "" || part != id {
		return "that part is not open"
	}
	return ""
}

func closePart(part *string, id string) string {
	reason := isOpen(*part, id)
	if reason == "" {
		*part = ""
	}
	return reason
}
