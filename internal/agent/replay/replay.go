// Package replay rebuilds the state of a run from its log, so that another process can continue
// with it.
//
//	s := replay.Read(events, notes, inputs)
//	if step := s.Step(1); step != nil {
//		// the model's answer of step 1, its calls and what was decided after it
//	}
//	if c := s.Call("call_1"); c != nil && c.End == nil && c.InFlight {
//		// nobody knows whether the server carried it out
//	}
//
// The run loop goes through the state as if everything happened again, without a model, a tool
// or an event, and so comes to where the run was left. Methods of a nil State return nil, which
// is the state of a run that begins here. A State is for one goroutine.
package replay

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"answerd/internal/event"
)

// State is what a run has done in other processes.
type State struct {
	Steps    []*Step
	Calls    map[string]*Call   // by call id; also those of steps that were reset
	Parts    int                // text and reasoning parts
	Reported map[string]int     // levels of limits that readers know of, in percent, by limit
	Raised   map[string]float64 // what people raised limits to, by limit
	Used     time.Duration      // of the run's own time, without pauses
	// Asked is the open question about a limit; nil if there is none.
	Asked  *event.Interrupt
	Inputs map[string][]byte // what people answered, by interrupt
	Told   map[string]bool   // the interrupts about which the hook interrupt has replied
	// Abort is set if a hook ends the run, and End if the hook run_end may know how it ends. Another
	// process has died since, and no terminal event came.
	Abort *Abort
	End   event.Body
	// Suspended says that the run was suspended at least once.
	Suspended bool
	// Ending says that everything open was closed for a terminal event that never came.
	Ending bool
}

// HasCallOf reports whether the run has called the tool with that name, unless the model invented the tool. Calls of a
// step that runs again do not count. s may be nil.
func (s *State) HasCallOf(tool string) bool {
	if s == nil {
		return false
	}
	for n := range s.Steps {
		step := s.Step(n + 1)
		if step == nil { // it runs again
			continue
		}
		for _, c := range step.Calls {
			failed, _ := c.End.(event.ToolError)
			if c.Tool == tool && failed.Kind != "unknown_tool" {
				return true
			}
		}
	}
	return false
}

// Step is one model call and what came after it until the next step.
type Step struct {
	Text         string
	Calls        []*Call
	Usage        event.Usage
	FinishReason string
	Ended        bool        // a step that did not end runs again
	Sampled      event.Usage // tokens that servers used
	StopReason   string      // why the next step is the last one; "" if that was not decided
	// Limits that people raised, before the step's calls and after them.
	RaisedBefore, RaisedAfter []event.BudgetResolved
	Extensions                string // the notes of NoteExtensions, joined
	Model                     string // that answered; "" if it is the one before
	Upstream                  string // how its endpoint calls it; "" as before
	// Extended is what the hook pre_model_call adds to the requests of the step; nil if nothing. It
	// stays when the step is reset.
	Extended []byte
	Refused  string // the limit that somebody did not raise; "" if there is none

	text strings.Builder // becomes Text
}

// Call is a tool call, as far as it came.
type Call struct {
	event.Call
	Args     string // the arguments as the model wrote them; "" until they are complete
	ByClient bool   // the caller executes it
	Sent     bool   // its request may have left
	InFlight bool   // it may have left since the server last required input
	// Input is what the server required last, before the call is sent again; nil if nothing.
	Input []byte
	End   event.Body
	// Approval is the newest approval that was asked for, and Resolution what became of it;
	// nil if there is none.
	Approval   *event.Interrupt
	Resolution *event.ApprovalResolved
	// Elicitations are the questions of its server that are still open, and Elicited what became
	// of the others, by interrupt.
	Elicitations []event.Interrupt
	Elicited     map[string]event.ElicitationResolved

	// Child is the newest child run of a call that asks another agent; "" before it is asked. Spent is what
	// the child has used, once it has ended. Relayed are the questions of the child, in order.
	Child   string
	Spent   *event.Spent
	Relayed []*Relayed

	input joined // of NoteInput
}

// Relayed is a question of a child run that its parent has asked.
type Relayed struct {
	event.Interrupt
	Resolved bool
	Reopened bool // it is asked again; set by the run loop
}

// HasChild reports whether the call asks another agent and has a child run. c may be nil.
func (c *Call) HasChild() bool { return c != nil && c.Child != "" }

// RelayedQuestion returns the question of the child run that has that id, or nil.
func (c *Call) RelayedQuestion(id string) *Relayed {
	for _, q := range c.Relayed {
		if q.ID == id {
			return q
		}
	}
	return nil
}

// Abort is the decision of a hook to end the run.
type Abort struct {
	Reason   string `json:"reason,omitempty"`
	Withheld bool   `json:"withheld,omitempty"` // the caller must not get the text of the step
}

// Read rebuilds the state of a run from all of its events, notes and inputs.
func Read(events []event.Event, notes []event.Note, inputs []event.Input) *State {
	state := &State{
		Calls:    make(map[string]*Call),
		Reported: make(map[string]int),
		Raised:   make(map[string]float64),
		Inputs:   make(map[string][]byte),
		Told:     make(map[string]bool),
	}
	for _, in := range inputs {
		state.Inputs[in.ID] = in.Data
	}
	n := noteReader{State: state, byKey: make(map[string]*Call)}
	var since int64 // the time from which on time counts; 0 while the clock is paused
	for _, e := range events {
		if since > 0 {
			state.Used += time.Duration(e.Time-since) * time.Millisecond
		}
		since = e.Time
		state.applyEvent(e)
		if c, ok := e.Body.(event.ToolCallStart); ok {
			n.byKey[CallKey(c.CallID)] = state.Calls[c.CallID]
		}
		if _, suspended := e.Body.(event.Suspended); suspended {
			since = 0
		}
		for ; len(notes) > 0 && notes[0].After <= e.Seq; notes = notes[1:] {
			if n.applyNote(strings.Fields(string(notes[0].Data))) {
				since = 0 // until the next process does something
			}
		}
	}
	for _, step := range state.Steps {
		step.Text = step.text.String()
	}
	return state
}

// Step returns the step with that number, from 1, if it ended; nil otherwise.
func (s *State) Step(n int) *Step {
	if s == nil || n > len(s.Steps) || !s.Steps[n-1].Ended {
		return nil
	}
	return s.Steps[n-1]
}

// Call returns what the log has of a call, nil if nothing.
func (s *State) Call(callID string) *Call {
	if s == nil {
		return nil
	}
	return s.Calls[callID]
}

// HasEndedCall reports whether a call of the step has ended.
func (s *Step) HasEndedCall() bool {
	return slices.ContainsFunc(s.Calls, func(c *Call) bool { return c.End != nil })
}

// Extension returns what the hook pre_model_call adds to the requests of step n, which did not end.
// nil means that the hook is to be asked.
func (s *State) Extension(n int) []byte {
	if s == nil || n > len(s.Steps) {
		return nil
	}
	return s.Steps[n-1].Extended
}

// lastStep returns the newest step, nil before the first.
func (s *State) lastStep() *Step {
	if len(s.Steps) == 0 {
		return nil
	}
	return s.Steps[len(s.Steps)-1]
}

// noteReader adds notes to a state.
type noteReader struct {
	*State
	byKey map[string]*Call // by CallKey
	// Of NoteExtended, NoteUpstream, NoteAborted and NoteEnd.
	extended, upstream, abort, end joined
}

// applyNote adds one note to the state, and reports whether another process took over there.
func (n *noteReader) applyNote(words []string) (movedOn bool) {
	if len(words) == 0 {
		return false
	}

	step := n.lastStep()
	kind, rest := words[0], strings.Join(words[1:], " ")
	switch {
	case kind == NoteTaken || kind == NoteLeft:
		return true
	case kind == NoteSent && n.byKey[rest] != nil:
		n.byKey[rest].Sent, n.byKey[rest].InFlight = true, true
	case kind == NoteInput && len(words) > 1 && n.byKey[words[1]] != nil:
		n.byKey[words[1]].applyInput(words[2:])
	case kind == NoteChild && len(words) == 3 && n.byKey[words[1]] != nil:
		n.byKey[words[1]].Child = words[2]
	case kind == NoteSpent && len(words) == 3 && n.byKey[words[1]] != nil:
		var spent event.Spent
		if json.Unmarshal([]byte(words[2]), &spent) == nil {
			n.byKey[words[1]].Spent = &spent
		}
	case kind == NoteTold:
		n.Told[rest] = true
	case kind == NoteExtended && step != nil:
		if n.extended.addPart(words[1:]) {
			step.Extended = n.extended.data
		}
	case kind == NoteAborted:
		var a Abort
		if n.abort.addPart(words[1:]) && json.Unmarshal(n.abort.data, &a) == nil {
			n.Abort = &a
		}
	case kind == NoteEnd && n.end.addPart(words[1:]):
		if e, err := event.Decode(n.end.data); err == nil && e.Terminal() {
			n.End = e.Body
		}
	case kind == NoteExtensions && step != nil:
		step.Extensions += rest
	case kind == NoteModel && step != nil:
		step.Model = rest
	case kind == NoteUpstream && step != nil && n.upstream.addPart(words[1:]):
		step.Upstream = string(n.upstream.data)
	case kind == NoteLimit && step != nil:
		step.StopReason = rest
	case kind == NoteSampled && step != nil:
		var u event.Usage
		if _, err := fmt.Sscan(rest, &u.InputTokens, &u.OutputTokens, &u.TotalTokens); err == nil {
			step.Sampled.InputTokens += u.InputTokens
			step.Sampled.OutputTokens += u.OutputTokens
			step.Sampled.TotalTokens += u.TotalTokens
		}
	}
	return false
}

// applyInput adds one part of what the server of the call requires. A process that died before the
// last part has not asked anybody yet, so the call still counts as in flight.
func (c *Call) applyInput(part []string) {
	if c.input.addPart(part) {
		c.Input, c.InFlight = c.input.data, false
	}
}

// applyEvent adds one event to the state.
func (s *State) applyEvent(e event.Event) {
	step := s.lastStep()
	switch body := e.Body.(type) {
	case event.StepStart:
		s.Steps = append(s.Steps, &Step{})
	case event.StepReset:
		*step = Step{Extended: step.Extended}
	case event.StepEnd:
		step.Ended, step.FinishReason = true, body.FinishReason
		if body.Usage != nil {
			step.Usage = *body.Usage
		}
		// No model gives these reasons: the step was closed because the run came to its end.
		s.Ending = body.FinishReason == "error" || body.FinishReason == "cancelled"
	case event.TextStart, event.ReasoningStart:
		s.Parts++
	case event.TextDelta:
		step.text.WriteString(body.Delta)
	case event.Budget:
		s.Reported[body.Limit] = 80
		if body.Used >= body.Max {
			s.Reported[body.Limit] = 100
		}
	case event.BudgetRequired:
		asked, _ := InterruptOf(e)
		s.Asked = &asked
	case event.BudgetResolved:
		s.applyBudgetResolved(body, step)
	case event.Suspended:
		s.Suspended = true
	default:
		s.applyCallEvent(e)
	}
}

// applyBudgetResolved adds what became of the question about a limit.
func (s *State) applyBudgetResolved(b event.BudgetResolved, step *Step) {
	s.Asked = nil
	if !b.Approved {
		step.Refused = b.Limit
		return
	}
	s.Reported[b.Limit], s.Raised[b.Limit] = 0, b.Max
	if step.HasEndedCall() {
		step.RaisedAfter = append(step.RaisedAfter, b)
	} else {
		step.RaisedBefore = append(step.RaisedBefore, b)
	}
}

// applyCallEvent adds an event of a call.
func (s *State) applyCallEvent(e event.Event) {
	if asked, _ := InterruptOf(e); asked.ID != "" {
		call := s.Calls[asked.CallID]
		if asked.ChildRunID != "" {
			call.Relayed = append(call.Relayed, &Relayed{Interrupt: asked})
			return
		}
		if asked.Kind == event.KindApproval {
			call.Approval, call.Resolution = &asked, nil
		} else {
			call.Elicitations = append(call.Elicitations, asked)
		}
		return
	}
	if _, resolved := InterruptOf(e); resolved != "" && s.resolveRelayed(resolved) {
		return
	}
	switch body := e.Body.(type) {
	case event.ToolCallStart:
		c := &Call{Call: body.Call, ByClient: body.Executor == event.Client}
		s.Calls[body.CallID] = c
		if step := s.lastStep(); step != nil {
			step.Calls = append(step.Calls, c)
		}
	case event.ToolCall:
		c := s.Calls[body.CallID]
		c.Args = body.ArgsText
		if body.Args != nil {
			c.Args = string(body.Args)
		}
	case event.ToolResult:
		s.Calls[body.CallID].End = body
	case event.ToolError:
		s.Calls[body.CallID].End = body
	case event.ApprovalResolved:
		s.Calls[body.CallID].Resolution = &body
	case event.ElicitationResolved:
		c := s.Calls[body.CallID]
		c.Elicitations = slices.DeleteFunc(c.Elicitations, func(i event.Interrupt) bool { return i.ID == body.InterruptID })
		if c.Elicited == nil {
			c.Elicited = make(map[string]event.ElicitationResolved)
		}
		c.Elicited[body.InterruptID] = body
	}
}

// resolveRelayed marks a question of a child run as resolved. It reports false if no question has that id.
func (s *State) resolveRelayed(id string) bool {
	for _, c := range s.Calls {
		if q := c.RelayedQuestion(id); q != nil {
			q.Resolved = true
			return true
		}
	}
	return false
}

// InterruptOf returns the question that an event asks, or the id of the one that it resolves.
// Both are empty for all other events.
func InterruptOf(e event.Event) (asked event.Interrupt, resolvedID string) {
	switch body := e.Body.(type) {
	case event.Elicitation:
		return event.Interrupt{
			ID:         body.InterruptID,
			Kind:       event.KindElicitation,
			Call:       body.Call,
			Message:    body.Message,
			Mode:       body.Mode,
			Schema:     body.Schema,
			URL:        body.URL,
			HeldOpen:   body.HeldOpen,
			CreatedAt:  e.Time,
			ExpiresAt:  body.ExpiresAt,
			ChildRunID: body.ChildRunID,
		}, ""
	case event.ApprovalRequired:
		return event.Interrupt{
			ID: body.InterruptID, Kind: event.KindApproval, Call: body.Call, Message: body.Message, Args: body.Args, ArgsSHA256: hexSHA256(body.Args),
			ToolVersion: body.ToolVersion, CreatedAt: e.Time, ExpiresAt: body.ExpiresAt, ChildRunID: body.ChildRunID,
		}, ""
	case event.BudgetRequired:
		return event.Interrupt{
			ID:        body.InterruptID,
			Kind:      event.KindBudget,
			Message:   body.Message,
			Limit:     body.Limit,
			Used:      body.Used,
			Max:       body.Max,
			CreatedAt: e.Time,
			ExpiresAt: body.ExpiresAt,
		}, ""
	case event.ElicitationResolved:
		return asked, body.InterruptID
	case event.ApprovalResolved:
		return asked, body.InterruptID
	case event.BudgetResolved:
		return asked, body.InterruptID
	}
	return asked, ""
}
