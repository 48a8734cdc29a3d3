package rerun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"answerd/internal/agent/recorded"
	"answerd/internal/agent/replay"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// recording has the events of a document, sorted by what repeats them in a new run. After newRecording it is immutable.
type recording struct {
	doc      *export.Document
	events   []event.Event
	turns    []*turn                  // in the order of the requests to the model; each reset of a step adds one
	calls    map[string]*recordedCall // by call id
	children map[string]*recording    // child runs, by the id of the call that started them
	inputs   map[string][]byte        // people's answers, by the id of the question
	asked    []event.Event            // questions about limits, and their resolutions
}

// turn is one answer of the model.
type turn struct {
	refused   bool // the endpoint first refused the conversation as too long, and then answered a shorter one
	parts     []timedPart
	limitSeen int64          // number of the time limit's event, if that came before the end; otherwise 0
	end       *event.StepEnd // nil if the answer was cut off
}

// timedPart is a part of an answer. If the time limit's event came during the answer, limitSeen is its number in all
// later parts, which must wait until the new run has that event too. Otherwise limitSeen is 0.
type timedPart struct {
	llm.Part
	limitSeen int64
}

// Values of event.Budget.Limit.
const (
	timeLimit    = "seconds"
	contextLimit = "context_tokens" // the conversation was shortened to fit the model's context window
)

// recordedCall has the events of a tool call, starting when its arguments were complete.
type recordedCall struct {
	name        string
	server      string // "" if no MCP server has the tool
	args        []byte
	argsWritten string        // the arguments as the model wrote them, joined from the deltas
	complete    int64         // number of the call's tool_call event
	events      []event.Event // the call's events after tool_call
	end         *event.Event  // the call's tool_result or tool_error; nil if it has neither
	charge      int64         // number of the limit's event that the child run's usage caused; 0 if it caused none
}

// newRecording reads a document and its children. It returns an error that wraps ErrUnusable if parts of the document
// were not kept, if the run has no end, or if the events are not numbered from 1 without gaps, as runState.await needs.
func newRecording(doc *export.Document) (*recording, error) {
	events, err := doc.DecodeEvents()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	switch {
	case len(doc.Missing) > 0:
		return nil, fmt.Errorf("%w: it does not have %s", ErrUnusable, strings.Join(doc.Missing, ", "))
	case len(events) == 0 || !events[len(events)-1].Terminal():
		return nil, fmt.Errorf("%w: its last event does not end a run", ErrUnusable)
	}

	rec := newEmptyRecording(doc)
	rec.events = events
	for _, in := range doc.Inputs {
		rec.inputs[in.ID] = in.Data
	}
	children := make(map[string]*export.Document) // by run id
	for i := range doc.Children {
		children[doc.Children[i].Run.ID] = &doc.Children[i]
	}

	reader := &turnReader{recording: rec, index: make(map[string]int), text: make(map[string]string)}
	for i, e := range events {
		if e.Seq != int64(i+1) {
			return nil, fmt.Errorf("%w: event %d has the number %d", ErrUnusable, i+1, e.Seq)
		}
		reader.read(e)
		childID, endsCall := e.EndsCall()
		if call := rec.calls[e.CallID()]; endsCall && call != nil {
			call.end = &events[i]
		}
		if child := children[childID]; child != nil {
			if rec.children[e.CallID()], err = newRecording(child); err != nil {
				return nil, err
			}
		}
	}

	rec.readCharges()
	return rec, nil
}

// newEmptyRecording returns a recording without events.
func newEmptyRecording(doc *export.Document) *recording {
	return &recording{
		doc:      doc,
		calls:    make(map[string]*recordedCall),
		children: make(map[string]*recording),
		inputs:   make(map[string][]byte),
	}
}

// readCharges sets the field charge of calls. It attributes each event of a limit, except the time limit, to the call
// that chargedAt returns. If several events are attributed to a call, the first one counts.
func (r *recording) readCharges() {
	for _, e := range r.events {
		b, ok := e.Body.(event.Budget)
		if !ok || b.Limit == timeLimit {
			continue
		}
		if call := r.chargedAt(e.Seq); call != nil && call.charge == 0 {
			call.charge = e.Seq
		}
	}
}

// chargedAt returns the call whose child run probably caused event seq, which is about a limit, or nil. A parent is
// charged for a child run when the child's call ends, and the limit's event comes shortly before that end. So it is the
// call that ended first among those that were running then and had a child run.
func (r *recording) chargedAt(seq int64) (charged *recordedCall) {
	for _, call := range r.calls {
		isRunning := call.end != nil && len(call.events) > 0 && call.events[0].Seq <= seq && seq <= call.end.Seq
		if !isRunning {
			continue
		}
		endsLater := charged != nil && charged.end.Seq < call.end.Seq
		if child, _ := call.end.EndsCall(); child != "" && !endsLater {
			charged = call
		}
	}
	return charged
}

// inFlight reports whether the call was complete at event seq and had not ended yet.
func (r *recording) inFlight(c *recordedCall, seq int64) bool {
	return len(c.events) > 0 && c.complete <= seq && c.events[len(c.events)-1].Seq >= seq
}

// awaitsEarlier reports whether the call could not be sent yet at event seq. That is the case if the run may make only
// a limited number of calls, and an earlier call, which may use up that number, is waiting for an approval.
func (r *recording) awaitsEarlier(c *recordedCall, seq int64) bool {
	if r.doc.Request.Budget.ToolCalls == 0 && r.doc.Settings.Budget.ToolCalls == 0 {
		return false
	}
	for _, earlier := range r.calls {
		if earlier.complete < c.complete && r.inFlight(earlier, seq) && earlier.awaitsApproval(seq) {
			return true
		}
	}
	return false
}

// awaitsApproval reports whether the call's last event before event seq asks for an approval.
func (c *recordedCall) awaitsApproval(seq int64) (awaits bool) {
	for _, e := range c.events {
		if e.Seq >= seq {
			break
		}
		_, awaits = e.Body.(event.ApprovalRequired)
	}
	return awaits
}

// isTakenOver reports whether another process continued the run. If so, the run has a step_reset, because that process
// repeated the unfinished step.
func (r *recording) isTakenOver() bool {
	return slices.ContainsFunc(r.events, func(e event.Event) bool {
		_, reset := e.Body.(event.StepReset)
		return reset
	})
}

// terminalEvent returns the run's terminal event. It returns nil for a child run that was not recorded.
func (r *recording) terminalEvent() event.Body {
	if len(r.events) == 0 {
		return nil
	}
	return r.events[len(r.events)-1].Body
}

// firstClosingEvent returns the number of the first event that belongs to the event at index i, which ends the run or
// resets a step. Right before such an event, the agent closes everything that is open: parts of an answer, calls and
// questions. If nothing was open, the result is the number of the event at index i itself.
func (r *recording) firstClosingEvent(i int) int64 {
	for i > 0 && (r.mayClose(r.events[i-1]) || r.chargesChild(i-1)) {
		i--
	}
	return r.events[i].Seq
}

// chargesChild reports whether the event at index i is about a limit that a cancelled child run's usage has reached.
// The next event is then the end of the call that started the child.
func (r *recording) chargesChild(i int) bool {
	if _, ok := r.events[i].Body.(event.Budget); !ok {
		return false
	}
	end, ok := r.events[i+1].Body.(event.ToolError)
	return ok && end.Kind == "cancelled" && end.ChildRunID != ""
}

// mayClose reports whether e may be an event with which the agent closed something open before it reset a step or ended
// the run. The agent closed a question if the recording has no answer to it.
func (r *recording) mayClose(e event.Event) bool {
	switch body := e.Body.(type) {
	case event.StepEnd:
		return body.FinishReason == "error" || body.FinishReason == "cancelled"
	case event.TextEnd, event.ReasoningEnd:
		return true
	case event.ToolError:
		return body.Kind == "cancelled"
	case event.ToolCall:
		return body.Args == nil && body.ArgsText == r.calls[body.CallID].argsWritten
	}
	_, resolved := replay.InterruptOf(e)
	return resolved != "" && r.inputs[resolved] == nil
}

// findCall returns a call of the given tool that ended and had equal arguments, together with its recording, which is r
// or that of a child run. If several calls match, it returns any of them. If none does, both results are nil. It is for
// another model (Options.Model), whose calls have other ids than the recorded ones.
func (r *recording) findCall(tool string, args []byte) (*recording, *recordedCall) {
	for _, call := range r.calls {
		if len(call.events) == 0 || call.name != tool {
			continue
		}
		last, sentArgs := call.events[len(call.events)-1], call.args
		if b, ok := last.Body.(event.ToolResult); ok {
			sentArgs = b.Args // a hook or a person may have changed the model's arguments
		}
		_, hasEnded := last.EndsCall()
		hasArgs := sameJSON(sentArgs, args) || sameJSON(call.args, args)
		if hasEnded && hasArgs {
			return r, call
		}
	}
	for _, child := range r.children {
		if rec, c := child.findCall(tool, args); c != nil {
			return rec, c
		}
	}
	return nil, nil
}

// sameJSON reports whether two JSON texts have equal values. It returns false if one of them is not valid.
func sameJSON(a, b []byte) bool {
	x, err := decodeExact(a)
	if err != nil {
		return false
	}
	y, err := decodeExact(b)
	return err == nil && reflect.DeepEqual(x, y)
}

// schemaHint is the beginning of what the agent appends to an error about arguments (internal/agent/toolcall.go).
const schemaHint = "\nTry again with the correct arguments. The tool's input schema: "

// outcome returns what the MCP server answered to a call: a result or an *mcp.CallError. e is the event that ended the
// recorded call. outcome removes what the agent has added to an error. If the event has only a part of the result, it
// returns the complete result. If the call was cancelled, it blocks until ctx ends.
func (r *recording) outcome(ctx context.Context, call mcp.Call, e event.Event) (*content.Result, error) {
	switch body := e.Body.(type) {
	case event.ToolResult:
		out := &content.Result{Content: body.Content, Structured: body.Structured}
		for _, v := range body.SchemaViolations {
			out.Violations = append(out.Violations, mcp.ContentField(v))
		}
		if whole, ok := r.wholeResult(body.CallID); ok {
			out.Content, out.Structured = whole.Content, whole.Structured
		}
		return out, nil
	case event.ToolError:
		if whole, ok := r.wholeResult(body.CallID); ok && whole.IsError {
			return &content.Result{Content: whole.Content, Structured: whole.Structured, IsError: true}, nil
		}
		failure := newCallError(call, mcp.ErrorKind(body.Kind), body.Payload)
		if failure.Kind == mcp.InvalidArguments {
			failure.Message, _, _ = strings.Cut(body.Payload, schemaHint)
		}
		for _, f := range body.Errors {
			failure.Fields = append(failure.Fields, mcp.ContentField(f))
		}
		if failure.Kind == mcp.Cancelled {
			<-ctx.Done()
		}
		return nil, failure
	}
	return nil, newCallError(call, mcp.Execution, noResult)
}

// noResult is the error message for calls that were not recorded.
const noResult = "The recording has no result of this call."

// newCallError returns an error for the call, with errRecorded as its cause.
func newCallError(call mcp.Call, kind mcp.ErrorKind, message string) *mcp.CallError {
	return &mcp.CallError{Kind: kind, Tool: call.Tool, Server: call.Server, Message: message, Err: errRecorded}
}

// storedResult is a complete result in an export.
type storedResult struct {
	IsError    bool              `json:"is_error"`
	Content    []json.RawMessage `json:"content"`
	Structured json.RawMessage   `json:"structured"`
}

// wholeResult returns a call's complete result if the call's event has only a part of it. Otherwise ok is false.
func (r *recording) wholeResult(callID string) (out storedResult, ok bool) {
	data, ok := r.doc.Results[callID]
	ok = ok && json.Unmarshal(data, &out) == nil
	return out, ok
}

// errRecorded is the cause of recorded failures, because an export does not have their original causes.
var errRecorded = errors.New("recorded")

// toolAborted is the event.RunError.Code of a run that a hook ended.
const toolAborted = "tool_aborted"

// abortReason returns the reason with which a hook ended the run. ok is false if no hook did.
func (r *recording) abortReason() (reason string, ok bool) {
	if len(r.events) == 0 {
		return "", false
	}
	end, failed := r.terminalEvent().(event.RunError)
	if !failed || end.Code != toolAborted {
		return "", false
	}
	_, reason, _ = strings.Cut(end.Message, ": ") // withReason of package agent writes "A hook ended the run: reason"
	return reason, true
}

// abortedBy returns the call during which a hook ended the run: the last one that ended before the others were
// cancelled. It returns nil if the run ended between two turns or while the model was answering. It must be called only
// if abortReason reports that a hook ended the run.
func (r *recording) abortedBy() *recordedCall {
	var last *recordedCall // the last call that ended in this turn
	for _, e := range r.events {
		switch body := e.Body.(type) {
		case event.StepStart, event.StepReset:
			last = nil
		case event.Budget:
			if body.Limit == "tool_calls" || body.Limit == "max_turns" || body.Limit == "result_bytes" {
				last = nil // these limits' events come after all calls of a turn
			}
		case event.ToolResult:
			last = r.calls[body.CallID]
		case event.ToolError:
			isCancelled := body.Kind == string(mcp.Cancelled) && !strings.HasPrefix(body.Payload, timeForTools)
			if isCancelled || body.Payload == event.OpenAtEnd {
				return last
			}
			last = r.calls[body.CallID]
		}
	}
	return last
}

// isSent reports whether a call was sent to its MCP server without an approval. first is the call's first event after
// its tool_call event. isSent also returns true for a call that the budget refused. The budget is charged call by call,
// so the order of the earlier calls is known in that case.
func isSent(first event.Event) bool {
	switch b := first.Body.(type) {
	case event.ApprovalRequired:
		return false
	case event.ToolError:
		isRefused := b.Kind == "denied" || b.Kind == "unknown_tool" || b.Kind == "invalid_arguments"
		return !isRefused || strings.HasPrefix(b.Payload, recorded.BudgetUsedUp)
	}
	return true
}

// firstCancelled returns the number of the first event that the run's cancellation caused. The new run is cancelled
// before it reaches that event. It is the result of firstClosingEvent, or an earlier event of the last step that shows
// a cancelled call or a withdrawn question.
func (r *recording) firstCancelled() int64 {
	first := r.firstClosingEvent(len(r.events) - 1)
	askedByChild := make(map[string]bool) // by question id; a child may withdraw its question without a cancellation
	for _, e := range r.events {
		if asked, _ := replay.InterruptOf(e); asked.ChildRunID != "" {
			askedByChild[asked.ID] = true
		}
	}
	for _, e := range slices.Backward(r.events) {
		switch b := e.Body.(type) {
		case event.StepStart, event.StepReset:
			return first
		case event.ToolError:
			if b.Kind == "cancelled" && b.Payload == recorded.CallCancelled {
				first = min(first, e.Seq)
			}
		case event.ApprovalResolved:
			if b.Reason == recorded.Withdrawn && !askedByChild[b.InterruptID] && r.inputs[b.InterruptID] == nil {
				first = min(first, e.Seq)
			}
		}
	}
	return first
}

// ErrUnusable means that a document does not have everything that is needed to run it again.
var ErrUnusable = errors.New("the export cannot be run again")
