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

// recording has the events of a document, sorted by what must repeat them. It does not change after newRecording.
type recording struct {
	doc      *export.Document
	events   []event.Event
	turns    []*turn                  // in the order of the requests; a step that was reset has one more
	calls    map[string]*recordedCall // by call id
	children map[string]*recording    // by the id of the call that started the child run
	inputs   map[string][]byte        // what people answered, by the id of the question
	asked    []event.Event            // the questions about limits, and their resolutions
}

// turn is one answer of the model.
type turn struct {
	refused   bool // the endpoint refused the conversation as too long before it answered a shorter one
	parts     []timedPart
	limitSeen int64          // the number of the time limit's event that came before the end; 0 if there is none
	end       *event.StepEnd // nil if the answer was cut off
}

// timedPart is a part of an answer. If the time limit's event came during the answer, the parts after it have its
// number in limitSeen, and wait until the new run has that event too; otherwise limitSeen is 0.
type timedPart struct {
	llm.Part
	limitSeen int64
}

// Values of event.Budget.Limit.
const (
	timeLimit    = "seconds"
	contextLimit = "context_tokens" // the conversation was shortened to fit the model's context window
)

// recordedCall has the events of a tool call from the moment when its arguments were complete.
type recordedCall struct {
	name     string
	server   string // "" if no MCP server has the tool
	args     []byte
	complete int64         // the number of its tool_call event
	events   []event.Event // those after the tool_call event
	end      *event.Event  // its tool_result or tool_error; nil if it has neither
	charge   int64         // the number of the limit's event that the use of its child run caused; 0 if it caused none
}

// newRecording reads a document and its children. The error wraps ErrUnusable: the document lacks something that was
// not kept, the run has no end, or the events are not numbered from 1 without gaps. runState.await relies on these
// numbers.
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

// readCharges sets the charge of calls: it attributes each event of a limit, except the time limit, to the call that
// chargedAt returns. A call keeps the first event that is attributed to it.
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

// chargedAt returns the call whose child run probably caused the event of a limit with the number seq, or nil. A parent
// is charged for its child run when the call of the child ends, and a limit's event comes shortly before that. So it is
// the one that ended first among the calls that were running then and had a child run.
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

// inFlight reports whether a call was complete and had not ended at the event with the number seq.
func (r *recording) inFlight(c *recordedCall, seq int64) bool {
	return len(c.events) > 0 && c.complete <= seq && c.events[len(c.events)-1].Seq >= seq
}

// awaitsEarlier reports whether a call could not be sent yet at the event with the number seq. That is so if the run
// may make a limited number of calls, and an earlier call, which may use up that number, waits for an approval.
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

// awaitsApproval reports whether the last event of a call before the event with the number seq asks for an approval.
func (c *recordedCall) awaitsApproval(seq int64) (awaits bool) {
	for _, e := range c.events {
		if e.Seq >= seq {
			break
		}
		_, awaits = e.Body.(event.ApprovalRequired)
	}
	return awaits
}

// isTakenOver reports whether another process continued the run: it repeats the step that was cut off.
func (r *recording) isTakenOver() bool {
	return slices.ContainsFunc(r.events, func(e event.Event) bool {
		_, reset := e.Body.(event.StepReset)
		return reset
	})
}

// terminalEvent returns the terminal event, or nil for a child run that was not recorded, which has no events.
func (r *recording) terminalEvent() event.Body {
	if len(r.events) == 0 {
		return nil
	}
	return r.events[len(r.events)-1].Body
}

// firstClosingEvent returns the number of the first event that was appended because of the event at index i, which
// ends the run or resets a step. Right before such an event, the agent closes what is open: parts of an answer,
// calls and questions. If nothing was open, firstClosingEvent returns the number of the event at index i itself.
func (r *recording) firstClosingEvent(i int) int64 {
	for i > 0 && (r.mayClose(r.events[i-1]) || r.chargesChild(i-1)) {
		i--
	}
	return r.events[i].Seq
}

// chargesChild reports whether the event at index i is that of a limit which was reached by the use of a cancelled
// child run. The next event is then the end of the call that started the child.
func (r *recording) chargesChild(i int) bool {
	if _, ok := r.events[i].Body.(event.Budget); !ok {
		return false
	}
	end, ok := r.events[i+1].Body.(event.ToolError)
	return ok && end.Kind == "cancelled" && end.ChildRunID != ""
}

// mayClose reports whether e is an event of the kinds with which the agent closes what is open before it resets a step
// or ends the run. A question was closed by the agent if the recording has no answer to it.
func (r *recording) mayClose(e event.Event) bool {
	switch body := e.Body.(type) {
	case event.StepEnd:
		return body.FinishReason == "error" || body.FinishReason == "cancelled"
	case event.TextEnd, event.ReasoningEnd:
		return true
	case event.ToolError:
		return body.Kind == "cancelled"
	case event.ToolCall:
		return body.Args == nil && body.ArgsText == r.textOf(body.CallID)
	case event.ApprovalResolved:
		return r.inputs[body.InterruptID] == nil
	case event.ElicitationResolved:
		return r.inputs[body.InterruptID] == nil
	case event.BudgetResolved:
		return r.inputs[body.InterruptID] == nil
	}
	return false
}

// textOf returns the arguments of a call as the model wrote them, joined from the deltas.
func (r *recording) textOf(callID string) string {
	var b strings.Builder
	for _, e := range r.events {
		if a, ok := e.Body.(event.ToolCallArgs); ok && a.CallID == callID {
			b.WriteString(a.Delta)
		}
	}
	return b.String()
}

// match returns an ended call of a tool with equal arguments, and the recording that has it: this one or that of a
// child. If there are several, it returns any of them; if there is none, both results are nil. It finds results for
// another model (Options.Model), whose calls have other ids than the recorded ones.
func (r *recording) match(tool string, args []byte) (*recording, *recordedCall) {
	for _, call := range r.calls {
		if len(call.events) == 0 || call.name != tool {
			continue
		}
		end, sentArgs := call.events[len(call.events)-1], call.args
		if b, ok := end.Body.(event.ToolResult); ok {
			sentArgs = b.Args // A hook or a person may have changed those of the model.
		}
		_, hasEnded := end.EndsCall()
		hasArgs := sameJSON(sentArgs, args) || sameJSON(call.args, args)
		if hasEnded && hasArgs {
			return r, call
		}
	}
	for _, child := range r.children {
		if rec, c := child.match(tool, args); c != nil {
			return rec, c
		}
	}
	return nil, nil
}

// sameJSON reports whether two JSON values are equal.
func sameJSON(a, b []byte) bool {
	x, err := decodeExact(a)
	if err != nil {
		return false
	}
	y, err := decodeExact(b)
	return err == nil && reflect.DeepEqual(x, y)
}

// schemaHint begins what the agent adds to an error about arguments (internal/agent/toolcall.go).
const schemaHint = "\nTry again with the correct arguments. The tool's input schema: "

// outcome returns the result or the *mcp.CallError that the server of a call gave, from e, the recorded end of the
// call. It removes what the agent adds to an error, and takes the whole result if the event has only a part of it.
// For a call that was cancelled, outcome blocks until ctx ends.
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

// noResult is the message of calls that were not recorded.
const noResult = "The recording has no result of this call."

// newCallError returns the failure of a call.
func newCallError(call mcp.Call, kind mcp.ErrorKind, message string) *mcp.CallError {
	return &mcp.CallError{Kind: kind, Tool: call.Tool, Server: call.Server, Message: message, Err: errRecorded}
}

// storedResult is a whole result of an export.
type storedResult struct {
	IsError    bool              `json:"is_error"`
	Content    []json.RawMessage `json:"content"`
	Structured json.RawMessage   `json:"structured"`
}

// wholeResult returns the whole result of a call if its event has only a part of it. Otherwise ok is false.
func (r *recording) wholeResult(callID string) (out storedResult, ok bool) {
	data, ok := r.doc.Results[callID]
	return out, ok && json.Unmarshal(data, &out) == nil
}

// errRecorded is the cause of failures that were recorded: their own causes are not in an export.
var errRecorded = errors.New("recorded")

// toolAborted is event.RunError.Code of a run that was ended by a hook.
const toolAborted = "tool_aborted"

// abortReason returns the reason with which a hook ended the run. ok is false if no hook ended it.
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

// abortedBy returns the call with which a hook ended the run: the last one that ended before the others were
// cancelled. It returns nil if the run ended between two turns, or while the model answered. The result has a meaning
// only if abortReason has found that a hook ended the run.
func (r *recording) abortedBy() *recordedCall {
	var last *recordedCall
	for _, e := range r.events {
		switch body := e.Body.(type) {
		case event.StepStart, event.StepReset:
			last = nil
		case event.Budget:
			if body.Limit == "tool_calls" || body.Limit == "max_turns" || body.Limit == "result_bytes" {
				last = nil // The events of these limits come after all calls of a turn.
			}
		case event.ToolResult:
			last = r.calls[body.CallID]
		case event.ToolError:
			if body.Payload == recorded.CallCancelled || body.Payload == event.OpenAtEnd {
				return last
			}
			last = r.calls[body.CallID]
		}
	}
	return last
}

// isSent reports whether a call was sent to its server without an approval, judged by first, the first event of the
// call after its tool_call event. A call that the budget refused also counts: the budget is charged call by
// call, so the order of the earlier calls is known then.
func isSent(first event.Event) bool {
	switch b := first.Body.(type) {
	case event.ApprovalRequired:
		return false
	case event.ToolError:
		return strings.HasPrefix(b.Payload, recorded.BudgetUsedUp) || b.Kind != "denied" && b.Kind != "unknown_tool" && b.Kind != "invalid_arguments"
	}
	return true
}

// firstCancelled returns the number of the first event that the cancellation of the run caused. The cancellation is
// repeated before that event. It is the first closing event (firstClosingEvent), or an earlier event of the last step
// that shows a cancelled call or a withdrawn question.
func (r *recording) firstCancelled() int64 {
	first := r.firstClosingEvent(len(r.events) - 1)
	askedByChild := make(map[string]bool) // by the id of the question; a child may also withdraw its question by itself
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

// ErrUnusable means that a document does not have what running it again needs.
var ErrUnusable = errors.New("the export cannot be run again")
