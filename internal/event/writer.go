package event

import (
	"context"
	"fmt"
	"sync"
)

// OrderError says that an event may not come now and was not appended. It indicates a bug in the code that appends.
type OrderError struct {
	Type   Type
	Reason string
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("event %s out of order: %s", e.Type, e.Reason)
}

// OpenAtEnd is the payload of the tool_error events that a Writer appends at the end of a run, one for each call that
// has no outcome yet.
const OpenAtEnd = "The run ended before this call did."

// Writer appends the events of one run. It enforces the order that the package comment describes, so that the logs do
// not have to. It refuses an event that would break the order, and closes everything that is open before a terminal
// event. Its methods may be called concurrently, because the calls of a turn run in parallel.
type Writer struct {
	log Log
	run string

	mu            sync.Mutex // held during Append, so that events are appended in the order in which they were checked
	started       bool       // start was appended
	ended         bool       // a terminal event was appended
	step          int        // number of the open step; 0 if no step is open
	textPart      string     // id of the open part of text; "" if none is open
	reasoningPart string     // id of the open part of reasoning; "" if none is open
	calls         []callState
	interrupts    []openInterrupt
	suspended     bool       // suspended was appended, and no interrupt was opened or resolved since
	sealed        bool       // see Seal
	uncertain     bool       // the log returned an error, so it may lack an event that the fields above already include
	observe       func(Body) // see Observe; may be nil
}

// callState is the state of a call that was started. The writer keeps calls that have ended, to detect an id that is
// used twice.
type callState struct {
	Call
	complete bool   // tool_call was appended
	ended    bool   // no more events: it has an outcome, or it is complete and the client executes it
	argsText []byte // the argument deltas so far; nil once the call is complete
	executor Executor
}

// NewWriter returns a writer for a run that has no events yet.
func NewWriter(log Log, run string) *Writer { return &Writer{log: log, run: run} }

// ResumeWriter reads a run's events from the log and returns a writer that continues after them. A process that took
// the run over uses it. ResumeWriter returns ErrEnded if the run has ended, or an error from log.After.
func ResumeWriter(ctx context.Context, log Log, run string) (*Writer, error) {
	events, err := ReadAll(ctx, log, run)
	if err != nil {
		return nil, fmt.Errorf("resume a run: %w", err)
	}
	return WriterAfter(log, run, events)
}

// WriterAfter returns a writer that continues after events, which must be all events of the run. It returns ErrEnded if
// the run has ended, and an *OrderError if the order of events is invalid.
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

// Observe makes the writer call f with every event that it appends, in order, including the events that it adds to
// close what is open. f runs within Append, so it must not call the writer. Call Observe before the first Append.
func (w *Writer) Observe(f func(Body)) { w.observe = f }

// Seal makes every later Append return ErrFenced, because another process is about to write the run. Seal waits for an
// Append in flight.
func (w *Writer) Seal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sealed = true
}

// Suspended reports whether the run is suspended, which means that it waits for a person.
func (w *Writer) Suspended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.suspended
}

// Append adds body to the run. Before a terminal event it appends the events that close everything that is open, and
// before step_reset those that close the step's parts and calls. It waits until the event is stored if
// mustBeStored(body). Otherwise, a later Append may return the error if the event cannot be stored. Append returns an
// *OrderError if body may not come now, ErrSuspended while the run is suspended, ErrEnded after the terminal event,
// ErrFenced after Seal, or the log's error.
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

// appendLocked checks that body may come now, updates the writer's state, appends the event and calls the observer. It
// waits for the log only if mustBeStored(body). If the log fails, the writer's state includes the event anyway and is
// marked uncertain. The caller holds w.mu.
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

// reloadLocked replaces an uncertain state with the state that the log's events imply, so that a terminal event closes
// what is open in the log. If the log cannot be read, the state does not change, and appending the terminal event will
// fail too. The caller holds w.mu.
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

// mustBeStored reports whether an event with this body must be stored before Append returns. It must if anything
// outside of the process learns of the event then: callers learn that their run has started, ended or been suspended,
// and people are asked or have answered.
func mustBeStored(body Body) bool {
	switch body.(type) {
	case Start, Suspended, ApprovalRequired, ApprovalResolved, Elicitation, ElicitationResolved, BudgetRequired, BudgetResolved:
		return true
	}
	return isTerminal(body)
}

// closersLocked returns the events that must close what is open before body. It returns nil unless body is a terminal
// event or the step_reset of the open step. A step_reset also closes the step's calls, which have not been executed
// yet, but not the step itself. The caller holds w.mu.
func (w *Writer) closersLocked(body Body) (closers []Body) {
	reset, isReset := body.(StepReset)
	resetsOpenStep := isReset && reset.Step == w.step
	if !isTerminal(body) && !resetsOpenStep {
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
		closers = append(closers, interrupt.resolutionAtEnd)
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

// closingReason returns the finish_reason for a step that is still open at the terminal event.
func closingReason(terminal Body) string {
	if _, ok := terminal.(Cancelled); ok {
		return "cancelled"
	}
	return "error"
}

// applyLocked updates the writer's state for an event with this body and returns "". If the event may not come now, it
// returns the reason and leaves the state unchanged. The caller holds w.mu.
func (w *Writer) applyLocked(body Body) (reason string) {
	if _, isStart := body.(Start); isStart == w.started { // a second start, or no start yet
		return "start comes first, and once"
	}
	if reason, handled := w.applyInterruptLocked(body); handled {
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

// applyCallLocked handles the events of a call for applyLocked. It accepts events that belong to no call at any time.
// The caller holds w.mu.
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

// callLocked returns the call with that id, or nil if no such call was started. The pointer is valid until the next
// call starts.
func (w *Writer) callLocked(id string) *callState {
	for i := range w.calls {
		if w.calls[i].CallID == id {
			return &w.calls[i]
		}
	}
	return nil
}

// checkRunningLocked returns "" if the call c is complete and has not ended, and otherwise a reason to refuse the
// event.
func (w *Writer) checkRunningLocked(c Call) string {
	if state := w.callLocked(c.CallID); state == nil || !state.complete || state.ended {
		return "the call is not running"
	}
	return ""
}

// endCallLocked marks the call c as ended and returns "". If the call is not running, or has an open interrupt, it
// changes nothing and returns the reason.
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

// openPartLocked stores id in *part, which is w.textPart or w.reasoningPart, and returns "". It returns a reason if a
// part of that kind is already open, if id is empty, or if no step is open.
func (w *Writer) openPartLocked(part *string, id string) string {
	if *part != "" || id == "" || w.step == 0 {
		return "a part of this kind is open, or no step is"
	}
	*part = id
	return ""
}

// checkPartOpen returns "" if id is the open part, and otherwise a reason. openPart is "" if no part is open.
func checkPartOpen(openPart, id string) string {
	if openPart == "" || openPart != id {
		return "that part is not open"
	}
	return ""
}

// closePart clears *part and returns "" if *part is id. Otherwise it returns a reason.
func closePart(part *string, id string) string {
	reason := checkPartOpen(*part, id)
	if reason == "" {
		*part = ""
	}
	return reason
}
