package rerun

import (
	"strings"

	"answerd/internal/event"
	"answerd/internal/llm"
)

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
	switch body := e.Body.(type) {
	case event.StepStart:
		r.open()
	case event.StepReset:
		r.open()
	case event.StepEnd:
		if r.turn != nil && body.FinishReason != "error" && body.FinishReason != "cancelled" {
			r.turn.end, r.turn.after = &body, r.after
		}
		r.turn = nil
	case event.TextDelta:
		r.add(llm.Text{Delta: body.Delta})
	case event.ReasoningDelta:
		r.add(llm.Reasoning{Delta: body.Delta})
	case event.ToolCallStart:
		r.index[body.CallID] = len(r.index)
		r.add(llm.ToolCallStart{Index: r.index[body.CallID], ID: body.CallID, Name: body.Tool})
	case event.ToolCallArgs:
		r.text[body.CallID] += body.Delta
		r.add(llm.ToolCallArgs{Index: r.index[body.CallID], Delta: body.Delta})
	case event.ToolCall:
		r.readCall(body, e.Seq)
	case event.Budget:
		switch {
		case body.Limit == "seconds":
			r.after = e.Seq
		case body.Limit == trimmed && r.turn != nil:
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
