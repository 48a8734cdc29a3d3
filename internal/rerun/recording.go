package rerun

import (
	"fmt"
	"slices"
	"strings"

	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/llm"
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
	r := &recording{doc: doc, events: events, calls: make(map[string]*recordedCall), children: make(map[string]*recording), inputs: make(map[string][]byte)}
	switch {
	case len(doc.Missing) > 0:
		return nil, fmt.Errorf("%w: it does not have %s", ErrUnusable, strings.Join(doc.Missing, ", "))
	case len(events) == 0 || !events[len(events)-1].Terminal():
		return nil, fmt.Errorf("%w: its last event does not end a run", ErrUnusable)
	}
	for _, in := range doc.Inputs {
		r.inputs[in.ID] = in.Data
	}
	b := &turnReader{recording: r, index: make(map[string]int), text: make(map[string]string)}
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
		if c := r.calls[e.CallID()]; ended && c != nil {
			c.end = &events[i]
		}
		if child == "" || children[child] == nil {
			continue
		}
		if r.children[e.CallID()], err = newRecording(children[child]); err != nil {
			return nil, err
		}
	}
	r.readCharges()
	return r, nil
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
			if c.end == nil || c.events[0].Seq > e.Seq || c.end.Seq < e.Seq || charged != nil && charged.end.Seq < c.end.Seq {
				continue
			}
			if child, _ := c.end.EndsCall(); child != "" {
				charged = c
			}
		}
		if charged != nil && charged.charge == 0 {
			charged.charge = e.Seq
		}
	}
}

// turnReader reads the turns of a recording out of its events.
type turnReader struct {
	*recording
	turn  *turn // that is open; nil between steps
	index map[string]int
	text  map[string]string // the arguments of calls, as they came
	after int64
}

// add adds a part to the open turn, with the event that it has to wait for.
func (r *turnReader) add(p llm.Part) {
	if r.turn != nil {
		r.turn.parts = append(r.turn.parts, timedPart{p, r.after})
	}
}

// open begins another turn. The indexes of calls begin again at 0, as in every answer of a model.
func (r *turnReader) open() {
	r.turn, r.after = &turn{}, 0
	clear(r.index)
	r.turns = append(r.turns, r.turn)
}

// read adds one event. What belongs to no turn and no call is left to planActions.
func (r *turnReader) read(e event.Event) {
	switch b := e.Body.(type) {
	case event.StepStart:
		r.open()
	case event.StepReset:
		r.open()
	case event.StepEnd:
		if r.turn != nil && b.FinishReason != "error" && b.FinishReason != "cancelled" {
			r.turn.end, r.turn.after = &b, r.after
		}
		r.turn = nil
	case event.TextDelta:
		r.add(llm.Text{Delta: b.Delta})
	case event.ReasoningDelta:
		r.add(llm.Reasoning{Delta: b.Delta})
	case event.ToolCallStart:
		r.index[b.CallID] = len(r.index)
		r.add(llm.ToolCallStart{Index: r.index[b.CallID], ID: b.CallID, Name: b.Tool})
	case event.ToolCallArgs:
		r.text[b.CallID] += b.Delta
		r.add(llm.ToolCallArgs{Index: r.index[b.CallID], Delta: b.Delta})
	case event.ToolCall:
		r.readCall(b, e.Seq)
	case event.Budget:
		switch {
		case b.Limit == "seconds":
			r.after = e.Seq
		case b.Limit == trimmed && r.turn != nil:
			r.turn.refused = true
		}
	case event.BudgetRequired, event.BudgetResolved:
		r.asked = append(r.asked, e)
	default:
		if c := r.calls[e.CallID()]; c != nil && r.turn == nil {
			c.events = append(c.events, e)
		}
	}
}

// readCall reads a complete call. A call without arguments was cut off, and the writer has completed it.
func (r *turnReader) readCall(b event.ToolCall, seq int64) {
	text := b.ArgsText
	if b.Args != nil {
		text = string(b.Args)
	} else if all := r.text[b.CallID]; strings.HasPrefix(all, text) {
		text = all // an event has only the beginning of very long arguments
	}
	if b.Args != nil || b.ArgsText != "" {
		r.add(llm.ToolCall{Index: r.index[b.CallID], ID: b.CallID, Name: b.Tool, Arguments: text})
	}
	r.calls[b.CallID] = &recordedCall{name: b.Tool, server: b.Server, args: []byte(text), complete: seq}
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

// last returns the terminal event; nil for a child run that was not recorded.
func (r *recording) last() event.Body {
	if len(r.events) == 0 {
		return nil
	}
	return r.events[len(r.events)-1].Body
}

// firstCloser returns the number of the first of the events before the event at index i that were appended
// because of it: they close what was open.
func (r *recording) firstCloser(i int) int64 {
	for i > 0 && (r.closes(r.events[i-1]) || r.chargesChild(i-1)) {
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

// closes reports whether an event may close something before a step is reset or the run ends.
func (r *recording) closes(e event.Event) bool {
	switch b := e.Body.(type) {
	case event.StepEnd:
		return b.FinishReason == "error" || b.FinishReason == "cancelled"
	case event.TextEnd, event.ReasoningEnd:
		return true
	case event.ToolError:
		return b.Kind == "cancelled"
	case event.ToolCall:
		return b.Args == nil && b.ArgsText == r.textOf(b.CallID)
	case event.ApprovalResolved:
		return r.inputs[b.InterruptID] == nil
	case event.ElicitationResolved:
		return r.inputs[b.InterruptID] == nil
	case event.BudgetResolved:
		return r.inputs[b.InterruptID] == nil
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
