package rerun

import (
	"strings"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// turnReader fills a recording's turns, calls and questions about limits from its events.
type turnReader struct {
	*recording
	turn      *turn             // the turn whose answer is being read; nil between steps
	index     map[string]int    // llm.ToolCall.Index of the calls of this turn, by call id
	text      map[string]string // arguments of calls as the model wrote them, by call id
	limitSeen int64             // number of the time limit's event, if it came during this turn; otherwise 0
}

// addPart adds a part to the current turn. Between turns it does nothing, because no answer is being read.
func (r *turnReader) addPart(p llm.Part) {
	if r.turn != nil {
		r.turn.parts = append(r.turn.parts, timedPart{p, r.limitSeen})
	}
}

// beginTurn begins a new turn. The indexes of calls start at 0 again, as in every answer of a model.
func (r *turnReader) beginTurn() {
	r.turn, r.limitSeen = &turn{}, 0
	clear(r.index)
	r.turns = append(r.turns, r.turn)
}

// read adds the next event of the recording to the turn or the call that it belongs to. It ignores all other events.
// planActions finds those among them that have to be repeated.
func (r *turnReader) read(e event.Event) {
	switch body := e.Body.(type) {
	case event.StepStart, event.StepReset:
		r.beginTurn()
	case event.StepEnd:
		if r.turn != nil && body.FinishReason != "error" && body.FinishReason != "cancelled" {
			r.turn.end, r.turn.limitSeen = &body, r.limitSeen
		}
		r.turn = nil
	case event.TextDelta:
		r.addPart(llm.Text{Delta: body.Delta})
	case event.ReasoningDelta:
		r.addPart(llm.Reasoning{Delta: body.Delta})
	case event.ToolCallStart:
		r.index[body.CallID] = len(r.index)
		r.addPart(llm.ToolCallStart{Index: r.index[body.CallID], ID: body.CallID, Name: body.Tool})
	case event.ToolCallArgs:
		r.text[body.CallID] += body.Delta
		r.addPart(llm.ToolCallArgs{Index: r.index[body.CallID], Delta: body.Delta})
	case event.ToolCall:
		r.readCall(body, e.Seq)
	case event.Budget:
		switch {
		case body.Limit == timeLimit:
			r.limitSeen = e.Seq
		case body.Limit == contextLimit && r.turn != nil:
			// Before a step, the agent shortens the conversation by itself. During a step, it does so only because the
			// endpoint refused the conversation.
			r.turn.refused = true
		}
	case event.BudgetRequired, event.BudgetResolved:
		r.asked = append(r.asked, e)
	default: // the calls of a turn are executed after its step_end
		if c := r.calls[e.CallID()]; c != nil && r.turn == nil {
			c.events = append(c.events, e)
		}
	}
}

// readCall adds a call from its tool_call event, whose number is seq. If the event has no arguments, it is not part of
// the model's answer: the answer was cut off, and the event closes the call.
func (r *turnReader) readCall(b event.ToolCall, seq int64) {
	args, written := b.ArgsText, r.text[b.CallID]
	if b.Args != nil {
		args = string(b.Args)
	} else if strings.HasPrefix(written, args) {
		args = written // ArgsText may have only the beginning of very long arguments
	}
	if b.Args != nil || b.ArgsText != "" {
		r.addPart(llm.ToolCall{Index: r.index[b.CallID], ID: b.CallID, Name: b.Tool, Arguments: args})
	}
	r.calls[b.CallID] = &recordedCall{name: b.Tool, server: b.Server, args: []byte(args), argsWritten: written, complete: seq}
}
