package event

import (
	"context"
	"fmt"
	"sync"
)

// OrderError says that an event may not come now. Nothing was appended. It is a mistake of
// the code that appends.
type OrderError struct {
	Type   Type
	Reason string
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("event %s out of order: %s", e.Type, e.Reason)
}

// OpenAtEnd is the payload of the tool_error that a Writer appends for a call that has no outcome when its
// run ends.
const OpenAtEnd = "The run ended before this call did."

// Writer appends the events of one run and enforces the order of the package comment, in one
// place for all logs. It refuses an event that would break the order, and closes whatever is
// open before a terminal event. Its methods may be called concurrently, as the calls of a turn
// do.
type Writer struct {
	log Log
	run string

	mu        sync.Mutex // held across Append, so that events are appended in the order that was checked
	started   bool
	ended     bool
	step      int // the open step, 0 when none
	text      string
	reasoning string
	calls     []openCall // in the order of their start; ended ones too, because an id is used once
	questions []openInterrupt
	suspended bool
	sealed    bool
	unsure    bool       // the log has returned an error, so it may lack the last event that counts here
	observe   func(Body) // see Observe; may be nil
}

type openCall struct {
	Call
	complete bool   // tool_call has come
	done     bool   // tool_result or tool_error has come
	text     []byte // the arguments that have come
	executor Executor
}

// NewWriter returns the writer of a run that has no events yet.
func NewWriter(log Log, run string) *Writer { return &Writer{log: log, run: run} }

// ResumeWriter reads the events of a run and returns a writer that continues after them, for a
// process that took the run over. ErrEnded if the run has ended, or the error of After.
func ResumeWriter(ctx context.Context, log Log, run string) (*Writer, error) {
	var events []Event
	for {
		page, err := log.After(ctx, run, int64(len(events)))
		if err != nil {
			return nil, fmt.Errorf("resume a run: %w", err)
		}
		events = append(events, page.Events...)
		if page.Ended || len(page.Events) == 0 {
			return WriterAfter(log, run, events)
		}
	}
}

// WriterAfter returns a writer that continues after events, which are all events of the run.
func WriterAfter(log Log, run string, events []Event) (*Writer, error) {
	w := NewWriter(log, run)
	for _, e := range events {
		if reason := w.applyLocked(e.Body); reason != "" { // no other goroutine has w
			return nil, fmt.Errorf("resume a run: %w", &OrderError{e.Body.Type(), reason})
		}
	}
	if w.ended {
		return nil, ErrEnded
	}
	return w, nil
}

// Observe makes the writer call f with every event that it has appended, in order. It must precede the
// first Append.
func (w *Writer) Observe(f func(Body)) { w.observe = f }

// Seal makes every later Append return ErrFenced: another process is about to write the run.
// No Append is in flight when Seal returns.
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

// Append adds body to the run. Before a terminal event it closes everything that is open, and
// before step_reset what the step has opened. It returns an *OrderError if body may not come now,
// ErrSuspended while the run waits for a person, ErrEnded after the terminal event, ErrFenced
// once it is sealed, or the log's error.
func (w *Writer) Append(ctx context.Context, body Body) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended:
		return ErrEnded
	case w.sealed:
		return ErrFenced
	case isTerminal(body) && !w.started:
		return &OrderError{body.Type(), "start comes first"}
	}
	if w.unsure && isTerminal(body) {
		w.readAgainLocked(ctx)
	}
	for _, closer := range w.closersLocked(body) {
		if err := w.appendLocked(ctx, closer); err != nil {
			return err
		}
	}
	if w.suspended && !mayFollowSuspended(body) {
		return ErrSuspended
	}
	return w.appendLocked(ctx, body)
}

// appendLocked checks that body may come now, appends it and tells the observer. It waits for the log only if
// mustBeStored(body).
func (w *Writer) appendLocked(ctx context.Context, body Body) error {
	if reason := w.applyLocked(body); reason != "" {
		return &OrderError{body.Type(), reason}
	}
	add := w.log.AppendAsync
	if mustBeStored(body) {
		add = w.log.Append
	}
	if _, err := add(ctx, w.run, body); err != nil {
		w.unsure = true
		return fmt.Errorf("append %s event: %w", body.Type(), err)
	}
	if w.observe != nil {
		w.observe(body)
	}
	return nil
}

// readAgainLocked sets the state by the events that the log has, so that the end closes what is open there. If the log
// does not answer, it will not take the end either.
func (w *Writer) readAgainLocked(ctx context.Context) {
	if w.log.Flush(ctx, w.run) != nil {
		return
	}
	if has, err := ResumeWriter(ctx, w.log, w.run); err == nil {
		w.started, w.suspended = has.started, has.suspended
		w.step, w.text, w.reasoning = has.step, has.text, has.reasoning
		w.calls, w.questions = has.calls, has.questions
		w.unsure = false
	}
}

// mustBeStored reports whether somebody learns of the event as soon as it is appended: the caller, whose run it
// begins, ends or suspends, or a person, who is asked or has answered.
func mustBeStored(b Body) bool {
	switch b.(type) {
	case Start, Suspended, ApprovalRequired, ApprovalResolved, Elicitation, ElicitationResolved, BudgetRequired, BudgetResolved:
		return true
	}
	return isTerminal(b)
}

// closersLocked returns the events that close what is open before body, a terminal event or
// step_reset; none for other bodies. The calls of an open step have not been executed yet, so
// step_reset closes them too.
func (w *Writer) closersLocked(body Body) (closers []Body) {
	reset, resets := body.(StepReset)
	if !isTerminal(body) && !(resets && reset.Step == w.step) {
		return nil
	}
	payload := OpenAtEnd
	if resets {
		payload = "The step that made this call runs again."
	}
	if w.text != "" {
		closers = append(closers, TextEnd{w.text})
	}
	if w.reasoning != "" {
		closers = append(closers, ReasoningEnd{w.reasoning})
	}
	for _, a := range w.questions {
		closers = append(closers, a.unanswered)
	}
	for _, c := range w.calls {
		if c.done {
			continue
		}
		if !c.complete {
			closers = append(closers, ToolCall{Call: c.Call, ArgsText: string(c.text), Executor: c.executor})
		}
		if c.executor != Client { // the outcome of a client's call comes with its next request, if at all
			closers = append(closers, ToolError{Call: c.Call, Kind: "cancelled", Payload: payload})
		}
	}
	if w.step != 0 && !resets {
		closers = append(closers, StepEnd{Step: w.step, FinishReason: closingReason(body)})
	}
	return closers
}

// closingReason returns the finish_reason of a step that is closed because of the terminal event cause.
func closingReason(cause Body) string {
	if _, ok := cause.(Cancelled); ok {
		return "cancelled"
	}
	return "error"
}

// applyLocked updates the state for body, or returns the reason why body may not come now.
func (w *Writer) applyLocked(b Body) (reason string) {
	if _, ok := b.(Start); ok == w.started {
		return "start comes first, and once"
	}
	if reason, ok := w.applyInterruptLocked(b); ok {
		return reason
	}
	switch body := b.(type) {
	case Start:
		w.started = true
	case StepStart:
		if w.step != 0 {
			return "a step is open"
		}
		w.step = body.Step
	case StepEnd:
		if w.step != body.Step || w.text != "" || w.reasoning != "" {
			return "another step, or a part of this one, is open"
		}
		w.step = 0
	case StepReset:
		if w.step != body.Step {
			return "that step is not open"
		}
	case TextStart:
		return w.openPartLocked(&w.text, body.PartID)
	case TextDelta:
		return checkPartOpen(w.text, body.PartID)
	case TextEnd:
		return closePart(&w.text, body.PartID)
	case ReasoningStart:
		return w.openPartLocked(&w.reasoning, body.PartID)
	case ReasoningDelta:
		return checkPartOpen(w.reasoning, body.PartID)
	case ReasoningEnd:
		return closePart(&w.reasoning, body.PartID)
	case FinalAnswer, RunError, Cancelled:
		w.ended = true
	default:
		return w.applyCallLocked(body)
	}
	return ""
}

// applyCallLocked is applyLocked for the events of a call.
func (w *Writer) applyCallLocked(b Body) (reason string) {
	switch body := b.(type) {
	case ToolCallStart:
		if w.callLocked(body.CallID) != nil {
			return "the call was started"
		}
		w.calls = append(w.calls, openCall{Call: body.Call, executor: body.Executor})
	case ToolCallArgs:
		c := w.callLocked(body.CallID)
		if c == nil || c.complete {
			return "the call is not being written"
		}
		c.text = append(c.text, body.Delta...)
	case ToolCall:
		c := w.callLocked(body.CallID)
		if c == nil || c.complete {
			return "the call is not being written"
		}
		c.complete = true
		c.text = nil
		c.done = body.Executor == Client
	case ToolResult:
		return w.endCallLocked(body.Call)
	case ToolError:
		return w.endCallLocked(body.Call)
	case interface{ call() Call }: // the other events of a running call
		return w.checkRunningLocked(body.call())
	}
	return ""
}

// callLocked returns the call of an id, nil if it was not started.
func (w *Writer) callLocked(id string) *openCall {
	for i := range w.calls {
		if w.calls[i].CallID == id {
			return &w.calls[i]
		}
	}
	return nil
}

// checkRunningLocked returns a reason unless the call is being executed.
func (w *Writer) checkRunningLocked(c Call) string {
	if o := w.callLocked(c.CallID); o == nil || !o.complete || o.done {
		return "the call is not running"
	}
	return ""
}

// endCallLocked notes the result of a call. It returns a reason if the call cannot end.
func (w *Writer) endCallLocked(c Call) string {
	if reason := w.checkRunningLocked(c); reason != "" {
		return reason
	}
	if w.hasQuestionLocked(c) {
		return "a question of the call is open"
	}
	w.callLocked(c.CallID).done = true
	return ""
}

// openPartLocked opens a part of the step: w.text or w.reasoning. It returns a reason if the part cannot be opened.
func (w *Writer) openPartLocked(part *string, id string) string {
	if *part != "" || id == "" || w.step == 0 {
		return "a part of this kind is open, or no step is"
	}
	*part = id
	return ""
}

// checkPartOpen returns a reason unless id is the open part.
func checkPartOpen(part, id string) string {
	if part == "" || part != id {
		return "that part is not open"
	}
	return ""
}

// closePart closes the open part. It returns a reason unless that is id.
func closePart(part *string, id string) string {
	reason := checkPartOpen(*part, id)
	if reason == "" {
		*part = ""
	}
	return reason
}
