package event

import (
	"context"
	"fmt"
	"sync"
)

// OrderError says that an event may not come now, and was not appended. It is a mistake of the code that appends.
type OrderError struct {
	Type   Type
	Reason string
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("event %s out of order: %s", e.Type, e.Reason)
}

// OpenAtEnd is the payload of the tool_error that a Writer appends at the end of a run for each call without an
// outcome.
const OpenAtEnd = "The run ended before this call did."

// Writer appends the events of one run and enforces the order of the package comment, in one place for all logs. It
// refuses an event that would break the order, and closes what is open before a terminal event. Its methods may be
// called concurrently, because the calls of a turn run at the same time.
type Writer struct {
	log Log
	run string

	mu            sync.Mutex // held across Append, so that events are appended in the order that was checked
	started       bool       // start was appended
	ended         bool       // a terminal event was appended
	step          int        // number of the open step; 0 if no step is open
	textPart      string     // id of the open part of text; "" if none is open
	reasoningPart string     // id of the open part of reasoning; "" if none is open
	calls         []callState
	interrupts    []openInterrupt
	suspended     bool       // suspended was appended, and no interrupt was opened or resolved after it
	sealed        bool       // see Seal
	uncertain     bool       // the log has returned an error, so it may lack an event that the fields above include
	observe       func(Body) // see Observe; may be nil
}

// callState is the state of a call that was started. Calls that have ended are kept, because an id must not be used
// again.
type callState struct {
	Call
	complete bool   // tool_call was appended
	ended    bool   // no further event may come: the outcome was appended, or the call is the client's and complete
	argsText []byte // the deltas of the arguments so far; nil once the call is complete
	executor Executor
}

// NewWriter returns the writer of a run that has no events yet.
func NewWriter(log Log, run string) *Writer { return &Writer{log: log, run: run} }

// ResumeWriter reads the events of a run from the log and returns a writer that continues after them, for a
// process that took the run over. It returns ErrEnded if the run has ended, and otherwise fails if log.After does.
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

// WriterAfter returns a writer that continues after events, which must be all events of the run. It returns ErrEnded if
// the run has ended, and an *OrderError if the events are not in a valid order.
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

// Observe makes the writer call f with every event that it has appended, in order, also the events that close what is
// open. f is called within Append, so it must not call the writer. Observe must be called before the first Append.
func (w *Writer) Observe(f func(Body)) { w.observe = f }

// Seal makes every later Append return ErrFenced, because another process is about to write the run. It waits for an
// Append in flight.
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

// Append adds body to the run. Before a terminal event it appends events that close everything that is open, and before
// step_reset those that close what the step has opened. It waits until the event is stored only if mustBeStored; an
// error of storing another event may be returned by a later Append. It returns an *OrderError if body may not come now,
// ErrSuspended while the run is suspended, ErrEnded after the terminal event, ErrFenced after Seal, or the log's error.
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
	if w.uncertain && isTerminal(body) {
		w.reloadLocked(ctx)
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

// appendLocked checks that body may come now, updates the state, appends the event and calls the observer. It waits for
// the log only if mustBeStored(body). If the log fails, the state includes the event all the same, and is uncertain.
// The caller holds w.mu.
func (w *Writer) appendLocked(ctx context.Context, body Body) error {
	if reason := w.applyLocked(body); reason != "" {
		return &OrderError{body.Type(), reason}
	}
	add := w.log.AppendAsync
	if mustBeStored(body) {
		add = w.log.Append
	}
	if _, err := add(ctx, w.run, body); err != nil {
		w.uncertain = true
		return fmt.Errorf("append %s event: %w", body.Type(), err)
	}
	if w.observe != nil {
		w.observe(body)
	}
	return nil
}

// reloadLocked replaces an uncertain state by that of the events in the log, so that a terminal event closes what is
// open there. If the log cannot be read, the state stays as it is: appending the terminal event will then fail too. The
// caller holds w.mu.
func (w *Writer) reloadLocked(ctx context.Context) {
	if w.log.Flush(ctx, w.run) != nil {
		return
	}
	stored, err := ResumeWriter(ctx, w.log, w.run)
	if err != nil {
		return
	}
	w.started, w.suspended = stored.started, stored.suspended
	w.step, w.textPart, w.reasoningPart = stored.step, stored.textPart, stored.reasoningPart
	w.calls, w.interrupts = stored.calls, stored.interrupts
	w.uncertain = false
}

// mustBeStored reports whether an event with that body must be stored before Append returns, because someone outside
// of the process learns of it then: a caller, whose run it begins, ends or suspends, or a person, who is asked or has
// answered.
func mustBeStored(body Body) bool {
	switch body.(type) {
	case Start, Suspended, ApprovalRequired, ApprovalResolved, Elicitation, ElicitationResolved, BudgetRequired, BudgetResolved:
		return true
	}
	return isTerminal(body)
}

// closersLocked returns the events that must close what is open before body, if it is a terminal event or the reset of
// the open step. For any other body it returns nil. step_reset closes the calls of the step too, because
// they have not been executed yet, but not the step itself. The caller holds w.mu.
func (w *Writer) closersLocked(body Body) (closers []Body) {
	reset, isReset := body.(StepReset)
	if !isTerminal(body) && !(isReset && reset.Step == w.step) {
		return nil
	}
	payload := OpenAtEnd
	if isReset {
		payload = "The step that made this call runs again."
	}
	if w.textPart != "" {
		closers = append(closers, TextEnd{w.textPart})
	}
	if w.reasoningPart != "" {
		closers = append(closers, ReasoningEnd{w.reasoningPart})
	}
	for _, interrupt := range w.interrupts {
		closers = append(closers, interrupt.unanswered)
	}
	for _, c := range w.calls {
		if c.ended {
			continue
		}
		if !c.complete {
			closers = append(closers, ToolCall{Call: c.Call, ArgsText: string(c.argsText), Executor: c.executor})
		}
		if c.executor != Client { // the client sends the outcome with its next request, if at all
			closers = append(closers, ToolError{Call: c.Call, Kind: "cancelled", Payload: payload})
		}
	}
	if w.step != 0 && !isReset {
		closers = append(closers, StepEnd{Step: w.step, FinishReason: closingReason(body)})
	}
	return closers
}

// closingReason returns the finish_reason of a step that is still open when the terminal event comes.
func closingReason(terminal Body) string {
	if _, ok := terminal.(Cancelled); ok {
		return "cancelled"
	}
	return "error"
}

// applyLocked updates the state for an event with that body. If the event may not come now, it returns the reason, and
// the state stays as it is. The caller holds w.mu.
func (w *Writer) applyLocked(body Body) (reason string) {
	if _, isStart := body.(Start); isStart == w.started { // a second start, or no start yet
		return "start comes first, and once"
	}
	if reason, ok := w.applyInterruptLocked(body); ok {
		return reason
	}
	switch body := body.(type) {
	case Start:
		w.started = true
	case StepStart:
		if w.step != 0 {
			return "a step is open"
		}
		w.step = body.Step
	case StepEnd:
		if w.step != body.Step || w.textPart != "" || w.reasoningPart != "" {
			return "another step, or a part of this one, is open"
		}
		w.step = 0
	case StepReset:
		if w.step != body.Step {
			return "that step is not open"
		}
	case TextStart:
		return w.openPartLocked(&w.textPart, body.PartID)
	case TextDelta:
		return checkPartOpen(w.textPart, body.PartID)
	case TextEnd:
		return closePart(&w.textPart, body.PartID)
	case ReasoningStart:
		return w.openPartLocked(&w.reasoningPart, body.PartID)
	case ReasoningDelta:
		return checkPartOpen(w.reasoningPart, body.PartID)
	case ReasoningEnd:
		return closePart(&w.reasoningPart, body.PartID)
	case FinalAnswer, RunError, Cancelled:
		w.ended = true
	default:
		return w.applyCallLocked(body)
	}
	return ""
}

// applyCallLocked is the part of applyLocked for the events of a call. Events that belong to no call have no order. The
// caller holds w.mu.
func (w *Writer) applyCallLocked(body Body) (reason string) {
	switch body := body.(type) {
	case ToolCallStart:
		if w.callLocked(body.CallID) != nil {
			return "the call was started"
		}
		w.calls = append(w.calls, callState{Call: body.Call, executor: body.Executor})
	case ToolCallArgs:
		c := w.callLocked(body.CallID)
		if c == nil || c.complete {
			return "the call is not being written"
		}
		c.argsText = append(c.argsText, body.Delta...)
	case ToolCall:
		c := w.callLocked(body.CallID)
		if c == nil || c.complete {
			return "the call is not being written"
		}
		c.complete = true
		c.argsText = nil
		c.ended = body.Executor == Client
	case ToolResult:
		return w.endCallLocked(body.Call)
	case ToolError:
		return w.endCallLocked(body.Call)
	case interface{ call() Call }: // the other events of a running call
		return w.checkRunningLocked(body.call())
	}
	return ""
}

// callLocked returns the call with an id, or nil if it was not started. The pointer is valid until the next call
// starts.
func (w *Writer) callLocked(id string) *callState {
	for i := range w.calls {
		if w.calls[i].CallID == id {
			return &w.calls[i]
		}
	}
	return nil
}

// checkRunningLocked returns a reason unless the call is complete and has not ended.
func (w *Writer) checkRunningLocked(c Call) string {
	if state := w.callLocked(c.CallID); state == nil || !state.complete || state.ended {
		return "the call is not running"
	}
	return ""
}

// endCallLocked marks a call as ended. It returns a reason if the call is not running or has an open interrupt.
func (w *Writer) endCallLocked(c Call) string {
	if reason := w.checkRunningLocked(c); reason != "" {
		return reason
	}
	if w.hasInterruptLocked(c) {
		return "a question of the call is open"
	}
	w.callLocked(c.CallID).ended = true
	return ""
}

// openPartLocked stores id as the open part, where part is &w.textPart or &w.reasoningPart. It returns a reason if a
// part of that kind is open, if id is empty, or if no step is open.
func (w *Writer) openPartLocked(part *string, id string) string {
	if *part != "" || id == "" || w.step == 0 {
		return "a part of this kind is open, or no step is"
	}
	*part = id
	return ""
}

// checkPartOpen returns a reason unless id is the id of the open part. openPart is "" if no part is open.
func checkPartOpen(openPart, id string) string {
	if openPart == "" || openPart != id {
		return "that part is not open"
	}
	return ""
}

// closePart sets part, the id of the open part, to "". It returns a reason if the open part is not id.
func closePart(part *string, id string) string {
	reason := checkPartOpen(*part, id)
	if reason == "" {
		*part = ""
	}
	return reason
}
