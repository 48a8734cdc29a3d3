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

// recording is a document in the form in which it is run again. Nothing changes it after newRecording.
type recording struct {
	doc      *export.Document
	events   []event.Event
	turns    []*turn                  // in the order of the requests; a step that was reset has one more
	calls    map[string]*recordedCall // by call id
	children map[string]*recording    // by the id of the call that started them
	inputs   map[string][]byte        // by interrupt
	asked    []event.Event            // the questions about limits, and their answers
}

// turn is one answer of the model.
type turn struct {
	refused bool // the endpoint refused the conversation as too long before it answered a shorter one
	parts   []timedPart
	after   int64 // an event from elsewhere that the end of the turn follows; 0 for none
	end     *event.StepEnd
}

// trimmed is the limit of the event that says that the model does not get the whole conversation.
const trimmed = "context_tokens"

// timedPart is a part of an answer.
type timedPart struct {
	llm.Part
	after int64 // an event from elsewhere that it follows; 0 for none
}

// recordedCall has the events of a call from the moment when it was complete.
type recordedCall struct {
	name     string
	server   string // "" for a tool that is not a server's
	args     []byte
	complete int64 // the number of its tool_call event
	events   []event.Event
	end      *event.Event // its outcome; nil for none
	charge   int64        // the number of the first event that follows from what its child run has used; 0 for none
}

// newRecording reads a document and its children. The error wraps ErrUnusable: something is no longer kept, the
// run has no end, or its events are not numbered from 1 without gaps, which every wait for a position needs.
func newRecording(doc *export.Document) (*recording, error) {
	events, err := doc.DecodeEvents()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	rec := &recording{
		doc:      doc,
		events:   events,
		calls:    make(map[string]*recordedCall),
		children: make(map[string]*recording),
		inputs:   make(map[string][]byte),
	}

	switch {
	case len(doc.Missing) > 0:
		return nil, fmt.Errorf("%w: it does not have %s", ErrUnusable, strings.Join(doc.Missing, ", "))
	case len(events) == 0 || !events[len(events)-1].Terminal():
		return nil, fmt.Errorf("%w: its last event does not end a run", ErrUnusable)
	}

	for _, in := range doc.Inputs {
		rec.inputs[in.ID] = in.Data
	}

	b := &turnReader{recording: rec, index: make(map[string]int), text: make(map[string]string)}
	children := make(map[string]*export.Document)
	for i := range doc.Children {
		children[doc.Children[i].Run.ID] = &doc.Children[i]
	}

	for i, e := range events {
		if e.Seq != int64(i+1) {
			return nil, fmt.Errorf("%w: event %d has the number %d", ErrUnusable, i+1, e.Seq)
		}
		b.read(e)
		child, ended := e.EndsCall()
		if c := rec.calls[e.CallID()]; ended && c != nil {
			c.end = &events[i]
		}
		if child == "" || children[child] == nil {
			continue
		}
		if rec.children[e.CallID()], err = newRecording(children[child]); err != nil {
			return nil, err
		}
	}

	rec.readCharges()
	return rec, nil
}

// readCharges notes where what child runs have used was charged. The event that says that a limit is reached
// comes between the first event of such a call and its end.
func (r *recording) readCharges() {
	for _, e := range r.events {
		b, ok := e.Body.(event.Budget)
		if !ok || b.Limit == "seconds" {
			continue
		}
		var charged *recordedCall
		for _, c := range r.calls {
			isRunning := c.end != nil && c.events[0].Seq <= e.Seq && e.Seq <= c.end.Seq
			if !isRunning {
				continue
			}
			endsLater := charged != nil && charged.end.Seq < c.end.Seq
			if child, _ := c.end.EndsCall(); child != "" && !endsLater {
				charged = c
			}
		}
		if charged != nil && charged.charge == 0 {
			charged.charge = e.Seq
		}
	}
}

// inFlight reports whether a call was complete and had not ended at the event with the number seq.
func (r *recording) inFlight(c *recordedCall, seq int64) bool {
	return len(c.events) > 0 && c.complete <= seq && c.events[len(c.events)-1].Seq >= seq
}

// awaitsEarlier reports whether a call may not be sent at the event with the number seq, because an earlier one
// of its turn waits for an approval and may take what is left of the calls.
func (r *recording) awaitsEarlier(c *recordedCall, seq int64) bool {
	if r.doc.Request.Budget.ToolCalls == 0 && r.doc.Settings.Budget.ToolCalls == 0 {
		return false
	}
	for _, earlier := range r.calls {
		if earlier.complete >= c.complete || !r.inFlight(earlier, seq) {
			continue
		}
		waits := false
		for _, e := range earlier.events {
			if e.Seq >= seq {
				break
			}
			_, waits = e.Body.(event.ApprovalRequired)
		}
		if waits {
			return true
		}
	}
	return false
}

// isTakenOver reports whether another process repeated a step.
func (r *recording) isTakenOver() bool {
	return slices.ContainsFunc(r.events, func(e event.Event) bool {
		_, reset := e.Body.(event.StepReset)
		return reset
	})
}

// terminalEvent returns the terminal event; nil for a child run that was not recorded.
func (r *recording) terminalEvent() event.Body {
	if len(r.events) == 0 {
		return nil
	}
	return r.events[len(r.events)-1].Body
}

// firstCloser returns the number of the first of the events before the event at index i that were appended
// because of it: they close what was open.
func (r *recording) firstCloser(i int) int64 {
	for i > 0 && (r.mayClose(r.events[i-1]) || r.chargesChild(i-1)) {
		i--
	}
	return r.events[i].Seq
}

// chargesChild reports whether the event at index i says that a limit is reached, because of what a child
// run had used that was cancelled.
func (r *recording) chargesChild(i int) bool {
	if _, ok := r.events[i].Body.(event.Budget); !ok {
		return false
	}
	end, ok := r.events[i+1].Body.(event.ToolError)
	return ok && end.Kind == "cancelled" && end.ChildRunID != ""
}

// mayClose reports whether an event may close something before a step is reset or the run ends.
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

// textOf returns the arguments of a call as they came.
func (r *recording) textOf(callID string) string {
	var b strings.Builder
	for _, e := range r.events {
		if a, ok := e.Body.(event.ToolCallArgs); ok && a.CallID == callID {
			b.WriteString(a.Delta)
		}
	}
	return b.String()
}

// match returns a recorded call of a tool with these arguments, in this run or one of its children; nil if there is
// none. It is for another model, whose calls have other ids. Of several calls any one is returned.
func (r *recording) match(tool string, args []byte) (*recording, *recordedCall) {
	for _, call := range r.calls {
		if len(call.events) == 0 || call.name != tool {
			continue
		}
		end, recorded := call.events[len(call.events)-1], call.args
		if b, ok := end.Body.(event.ToolResult); ok {
			recorded = b.Args
		}
		_, hasEnded := end.EndsCall()
		hasArgs := sameJSON(recorded, args) || sameJSON(call.args, args)
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

// schemaHint begins what the agent adds to an error about arguments.
const schemaHint = "\nTry again with the correct arguments. The tool's input schema: "

// outcome returns the recorded outcome of a call, as its server gave it: without what the agent adds to it, and with
// the whole result if the event has only a part. A call that was cancelled fails only when ctx ends.
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
		failure := &mcp.CallError{Kind: mcp.ErrorKind(body.Kind), Tool: call.Tool, Server: call.Server, Message: body.Payload, Err: errRecorded}
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
	return nil, &mcp.CallError{
		Kind:    mcp.Execution,
		Tool:    call.Tool,
		Server:  call.Server,
		Message: "The recording has no result of this call.",
		Err:     errRecorded,
	}
}

// storedResult is a whole result of an export.
type storedResult struct {
	IsError    bool              `json:"is_error"`
	Content    []json.RawMessage `json:"content"`
	Structured json.RawMessage   `json:"structured"`
}

// wholeResult returns the result of a call that its event has only a part of; ok is false if the event has all.
func (r *recording) wholeResult(callID string) (out storedResult, ok bool) {
	data, ok := r.doc.Results[callID]
	return out, ok && json.Unmarshal(data, &out) == nil
}

// errRecorded is the cause of failures that were recorded: their own causes are not in an export.
var errRecorded = errors.New("recorded")

// toolAborted is the code of the end of a run that a hook ended.
const toolAborted = "tool_aborted"

// abortReason returns why a hook ended the run; ok is false if none did.
func (r *recording) abortReason() (reason string, ok bool) {
	if len(r.events) == 0 {
		return "", false
	}
	end, failed := r.terminalEvent().(event.RunError)
	if !failed || end.Code != toolAborted {
		return "", false
	}
	_, reason, _ = strings.Cut(end.Message, ": ")
	return reason, true
}

// abortedBy returns the call with which a hook ended the run: the last one that ended before the others were
// cancelled. It returns nil if the run ended between two turns, or while the model answered.
func (r *recording) abortedBy() *recordedCall {
	var last *recordedCall
	for _, e := range r.events {
		switch body := e.Body.(type) {
		case event.StepStart, event.StepReset:
			last = nil
		case event.Budget:
			if body.Limit == "tool_calls" || body.Limit == "max_turns" || body.Limit == "result_bytes" { // at the end of a turn
				last = nil
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

// isSent reports whether the first event of a call after it was complete comes from its server, or from a
// decision that follows those about earlier calls anyway.
func isSent(e event.Event) bool {
	switch b := e.Body.(type) {
	case event.ApprovalRequired:
		return false
	case event.ToolError:
		return strings.HasPrefix(b.Payload, recorded.BudgetUsedUp) || b.Kind != "denied" && b.Kind != "unknown_tool" && b.Kind != "invalid_arguments"
	}
	return true
}

// firstCancelled returns the number of the first event that a run has because it was cancelled.
func (r *recording) firstCancelled() int64 {
	first := r.firstCloser(len(r.events) - 1)
	relayed := make(map[string]bool) // by their children, which may withdraw them
	for _, e := range r.events {
		if asked, _ := replay.InterruptOf(e); asked.ChildRunID != "" {
			relayed[asked.ID] = true
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
			if b.Reason == recorded.Withdrawn && !relayed[b.InterruptID] && r.inputs[b.InterruptID] == nil {
				first = min(first, e.Seq)
			}
		}
	}
	return first
}

// ErrUnusable means that a document does not have what running it again needs.
var ErrUnusable = errors.New("the export cannot be run again")
