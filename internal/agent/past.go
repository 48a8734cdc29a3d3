package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"answerd/internal/event"
	"answerd/internal/mcp"
)

// past is what a run has done in other processes, by its log. The loop goes through it as
// if it happened again, without a model, a tool or an event, and so comes to where it was
// left. The past of a run that begins here is nil.
type past struct {
	steps  []*pastStep
	calls  map[string]*pastCall // by call id, those of void steps included
	parts  int                  // text and reasoning parts
	told   map[string]int       // what readers know of limits, in percent, by their names
	used   time.Duration        // of the run's own time
	waited bool                 // the run was suspended once
	asked  *event.Interrupt     // the limit that somebody is asked about; nil if there is none
	raised map[string]float64   // what somebody raised limits to, by their names
	ending bool                 // what was open is closed already, for an end that never came
}

// pastStep is a step, and what came after it until the next one.
type pastStep struct {
	reply
	ended   bool // it did not end: it runs again
	sampled event.Usage
	cut     string // why the next step is the last one; "" if that was not said
	// What became of the questions about limits before its calls, and after them.
	raisedFirst, raised []event.BudgetResolved

	refused string // the limit that was not raised; "" if there is none
}

// pastCall is a call, as far as it came.
type pastCall struct {
	*call
	sent     bool
	end      event.Body       // tool_result or tool_error; nil if it has not ended
	approval *event.Interrupt // the newest one; nil if none was asked for
	verdict  *verdict         // on it; nil while it is open
	forms    []event.Interrupt
}

// readPast makes sense of the events, notes and inputs of a run.
func readPast(events []event.Event, notes []event.Note, inputs []event.Input) *past {
	p := &past{calls: make(map[string]*pastCall), told: make(map[string]int), raised: make(map[string]float64)}
	given := make(map[string]verdict)
	for _, in := range inputs {
		given[in.ID] = decodeInput(in.ID, in.Data)
	}
	marks := make(map[string]*pastCall)
	var since int64 // from when on time is the run's; 0 while it stands still
	for _, e := range events {
		if since > 0 {
			p.used += time.Duration(e.Time-since) * time.Millisecond
		}
		since = e.Time
		p.take(e, given)
		if c, ok := e.Body.(event.ToolCallStart); ok {
			marks[callMark(c.CallID)] = p.calls[c.CallID]
		}
		if _, waits := e.Body.(event.Suspended); waits {
			since = 0
		}
		for ; len(notes) > 0 && notes[0].After <= e.Seq; notes = notes[1:] {
			if p.note(strings.Fields(string(notes[0].Data)), marks) {
				since = 0 // until the next process does something
			}
		}
	}
	return p
}

// note takes one note, and reports whether the run changed hands there.
func (p *past) note(words []string, marks map[string]*pastCall) (moved bool) {
	if len(words) == 0 {
		return false
	}
	step := p.last()
	switch word, rest := words[0], strings.Join(words[1:], " "); {
	case word == noteTaken || word == noteLeft:
		return true
	case word == noteSent && marks[rest] != nil:
		marks[rest].sent = true
	case word == noteCut && step != nil:
		step.cut = rest
	case word == noteSampled && step != nil:
		var u event.Usage
		if _, err := fmt.Sscan(rest, &u.InputTokens, &u.OutputTokens, &u.TotalTokens); err == nil {
			step.sampled.InputTokens += u.InputTokens
			step.sampled.OutputTokens += u.OutputTokens
			step.sampled.TotalTokens += u.TotalTokens
		}
	}
	return false
}

// last is the newest step, nil before the first.
func (p *past) last() *pastStep {
	if len(p.steps) == 0 {
		return nil
	}
	return p.steps[len(p.steps)-1]
}

// take takes one event.
func (p *past) take(e event.Event, given map[string]verdict) {
	step := p.last()
	switch b := e.Body.(type) {
	case event.StepStart:
		p.steps = append(p.steps, &pastStep{})
	case event.StepReset:
		*step = pastStep{}
	case event.StepEnd:
		step.ended, step.finish = true, b.FinishReason
		if b.Usage != nil {
			step.usage = *b.Usage
		}
		// No model says that: the step was closed because the run came to its end.
		p.ending = b.FinishReason == "error" || b.FinishReason == "cancelled"
	case event.TextStart, event.ReasoningStart:
		p.parts++
	case event.TextDelta:
		step.text += b.Delta
	case event.Budget:
		p.told[b.Limit] = 80
		if b.Used >= b.Max {
			p.told[b.Limit] = 100
		}
	case event.BudgetRequired:
		asked, _ := aboutInterrupt(e)
		p.asked = &asked
	case event.BudgetResolved:
		p.resolve(b, step)
	case event.Suspended:
		p.waited = true
	default:
		p.takeCall(e, given)
	}
}

// resolve takes what became of a limit that was asked about.
func (p *past) resolve(b event.BudgetResolved, step *pastStep) {
	switch p.asked = nil; {
	case !b.Approved:
		step.refused = b.Limit
	default:
		p.told[b.Limit], p.raised[b.Limit] = 0, b.Max
		if p.acted(step) {
			step.raised = append(step.raised, b)
		} else {
			step.raisedFirst = append(step.raisedFirst, b)
		}
	}
}

// acted reports whether a call of the step has ended.
func (p *past) acted(s *pastStep) bool {
	return slices.ContainsFunc(s.calls, func(c *call) bool { return p.calls[c.CallID].end != nil })
}

func (p *past) takeCall(e event.Event, given map[string]verdict) {
	if start, ok := e.Body.(event.ToolCallStart); ok {
		c := &pastCall{call: &call{Call: start.Call, client: start.Executor == event.Client}}
		p.calls[start.CallID] = c
		if step := p.last(); step != nil {
			step.calls = append(step.calls, c.call)
		}
		return
	}
	if asked, _ := aboutInterrupt(e); asked.ID != "" {
		if c := p.calls[asked.CallID]; asked.Kind == event.KindApproval {
			c.approval, c.verdict = &asked, nil
		} else {
			c.forms = append(c.forms, asked)
		}
		return
	}
	switch b := e.Body.(type) {
	case event.ToolCall:
		text := b.ArgsText
		if b.Args != nil {
			text = string(b.Args)
		}
		p.calls[b.CallID].parse(text)
	case event.ToolResult:
		p.calls[b.CallID].end = b
	case event.ToolError:
		p.calls[b.CallID].end = b
	case event.ApprovalResolved:
		v := given[b.InterruptID]
		v.Approved, v.Reason, v.by.Subject, v.why = &b.Approved, b.Reason, b.By, reasonFor(b)
		p.calls[b.CallID].verdict = &v
	case event.ElicitationResolved:
		c := p.calls[b.CallID]
		for i, f := range c.forms {
			if f.ID == b.InterruptID {
				c.forms = append(c.forms[:i], c.forms[i+1:]...)
				break
			}
		}
	}
}

// reasonFor is why nobody decided, nil if somebody did.
func reasonFor(b event.ApprovalResolved) error {
	if b.Approved {
		return nil
	}
	for _, why := range []error{ErrExpired, errNobody, errWithdrawn, errTooMany} {
		if b.By == "" && b.Reason == why.Error() {
			return why
		}
	}
	return nil
}

// edited reports whether a person changed the arguments of the call, and to what.
func (c *pastCall) edited() (jsonText, bool) {
	if c.verdict == nil || !c.verdict.approves() || c.verdict.Args == nil {
		return nil, false
	}
	return c.verdict.Args, string(c.verdict.Args) != string(c.approval.Args)
}

// known is what the log has of a call, nil if nothing.
func (p *past) known(callID string) *pastCall {
	if p == nil {
		return nil
	}
	return p.calls[callID]
}

// foundIn are the names of the tools that a search found, by its result.
func foundIn(b event.ToolResult) (names []string) {
	var found struct{ Tools []finding }
	if json.Unmarshal(b.Structured, &found) == nil {
		for _, f := range found.Tools {
			names = append(names, f.Name)
		}
	}
	return names
}

// lostCall is what becomes of a call that was sent by a process which died, unless it may
// be made again.
func (in *invocation) lostCall() error {
	in.decision = decision{verdict: allowed}
	if v := in.past.verdict; v != nil {
		in.decision = decision{verdict: approved, by: v.by.Subject}
	}
	return in.fail(mcp.UnknownOutcome, "The process that made this call is gone; the call may or may not have been carried out.")
}
