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
	w := NewWriter(log, run)
	for pos := int64(0); ; {
		page, err := log.After(ctx, run, pos)
		if err != nil {
			return nil, fmt.Errorf("resume a run: %w", err)
		}
		if page.Ended {
			return nil, ErrEnded
		}
		if len(page.Events) == 0 {
			return w, nil
		}
		for _, e := range page.Events {
			if reason := w.applyLocked(e.Body); reason != "" { // nobody has w yet
				return nil, fmt.Errorf("resume a run: %w", &OrderError{e.Body.Type(), reason})
			}
			pos = e.Seq
		}
	}
}

// Append adds b to the run. A terminal event is preceded by the closers of
// everything that is open. It returns an *OrderError if b may not come now,
// ErrSuspended while the run waits for a person, ErrEnded after the terminal event, or
// the log's error.
func (w *Writer) Append(ctx context.Context, b Body) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return ErrEnded
	}
	if terminal(b) {
		if !w.started {
			return &OrderError{b.Type(), "start comes first"}
		}
		if err := w.closeLocked(ctx, b); err != nil {
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

// closeLocked appends what is missing before a terminal event, as a reader that
// counts opened and closed things needs it.
func (w *Writer) closeLocked(ctx context.Context, cause Body) error {
	var closers []Body
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
		closers = append(closers, ToolError{Call: c.Call, Kind: "cancelled", Payload: "The run ended before this call did."})
	}
	if w.step != 0 {
		closers = append(closers, StepEnd{Step: w.step, FinishReason: closingReason(cause)})
	}
	for _, b := range closers {
		if err := w.appendLocked(ctx, b); err != nil {
			return err
		}
	}
	return nil
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
