// Package replay rebuilds the state of a run from its log, so that another process can continue with it.
//
//	s := replay.Read(events, notes, inputs)
//	if step := s.Step(1); step != nil {
//		// the model's answer of step 1, its calls and what was decided after it
//	}
//	if c := s.Call("call_1"); c != nil && c.End == nil && c.InFlight {
//		// the server may or may not have executed the call
//	}
//
// The run loop takes the steps of the state again. It takes answers and results from the state, without calling a model
// or a tool and without appending an event, until it has reached the end of the log; there it continues the run.
// A nil *State is the state of a run that this process began. A State is for one goroutine.
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
	Steps     []*Step            // in order; Steps[0] is step 1
	Calls     map[string]*Call   // by call id; also those of steps that were reset
	PartCount int                // text and reasoning parts that have begun
	Reported  map[string]int     // the newest event budget of each limit: 80 or 100 percent; 0 once the limit was raised
	Raised    map[string]float64 // the value that a person raised a limit to, by limit
	Used      time.Duration      // the run's own time, without suspensions and without the time between processes
	// BudgetQuestion is the open question about a limit; nil if there is none.
	BudgetQuestion *event.Interrupt
	Inputs         map[string][]byte // what people answered, by interrupt
	HookReplied    map[string]bool   // the interrupts about which the hook interrupt has replied
	// Abort is set if a hook decided to end the run, and End if the hook run_end was or was about to be asked about
	// that terminal event. The process died before the terminal event was in the log.
	Abort     *Abort
	End       event.Body
	Suspended bool // the run was suspended at least once
	// Ending says that the open step was closed for a terminal event, which is not in the log.
	Ending bool
}

// HasCallOf reports whether a step that ended has a call of the tool with that name. Calls that failed because
// the catalog did not have the tool do not count. s may be nil.
func (s *State) HasCallOf(tool string) bool {
	if s == nil {
		return false
	}
	for n := range s.Steps {
		step := s.Step(n + 1)
		if step == nil { // The step did not end and will run again.
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
	Ended        bool        // step_end is in the log; a step without it runs again
	Sampled      event.Usage // tokens that MCP servers used by sampling
	StopReason   string      // the finish reason for which the next step is the last one; "" if that was not decided
	// Limits that people raised, before the first call of the step ended and after that.
	RaisedBefore, RaisedAfter []event.BudgetResolved
	Extensions                string // the pieces of NoteExtensions, joined: JSON in base64
	Model                     string // the model that answered; "" if it is that of the step before
	Upstream                  string // the endpoint's name for the model; "" if it is that of the step before
	// HookAddition is what the hook pre_model_call adds to the requests of the step; nil for nothing. A reset of the
	// step keeps it.
	HookAddition []byte
	RefusedLimit string // the limit that a person refused to raise; "" if there is none

	text strings.Builder // becomes Text
}

// Call is a tool call, as far as the log shows it.
type Call struct {
	event.Call
	Args     string // the arguments as the model wrote them; "" until they are complete
	ByClient bool   // the caller executes it
	Sent     bool   // its request may have been sent
	InFlight bool   // its request may have been sent since the server last required input
	// Input is the input that the server required last, before the call is sent again; nil if it required none.
	Input []byte
	End   event.Body // the ToolResult or ToolError; nil if the call has not ended
	// Approval is the newest approval that was asked for, and Resolution the decision about it; nil if there is none.
	Approval   *event.Interrupt
	Resolution *event.ApprovalResolved
	// Elicitations are the questions of the call's server that are still open. Elicited has the resolutions of the
	// questions that are not, by interrupt.
	Elicitations []event.Interrupt
	Elicited     map[string]event.ElicitationResolved

	// Child is the newest child run of a call that asks another agent; "" before it is asked. Spent is what
	// the child has used; nil before it has ended. Relayed are the questions of the child, in order.
	Child   string
	Spent   *event.Spent
	Relayed []*Relayed

	input partJoiner // the parts of NoteInput
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

// Read rebuilds the state of a run from all of its events, notes and inputs, each in the order of the log. It ignores
// notes that it cannot decode.
func Read(events []event.Event, notes []event.Note, inputs []event.Input) *State {
	state := &State{
		Calls:       make(map[string]*Call),
		Reported:    make(map[string]int),
		Raised:      make(map[string]float64),
		Inputs:      make(map[string][]byte),
		HookReplied: make(map[string]bool),
	}
	for _, in := range inputs {
		state.Inputs[in.ID] = in.Data
	}
	n := noteReader{State: state, byKey: make(map[string]*Call)}
	var countFrom int64 // the time of the previous event; 0 if the time until the next event does not count
	for _, e := range events {
		if countFrom > 0 {
			state.Used += time.Duration(e.Time-countFrom) * time.Millisecond
		}
		countFrom = e.Time
		state.applyEvent(e)
		if c, ok := e.Body.(event.ToolCallStart); ok {
			n.byKey[CallKey(c.CallID)] = state.Calls[c.CallID]
		}
		if _, suspended := e.Body.(event.Suspended); suspended {
			countFrom = 0
		}
		for ; len(notes) > 0 && notes[0].After <= e.Seq; notes = notes[1:] {
			if n.applyNote(strings.Fields(string(notes[0].Data))) {
				countFrom = 0 // No process executes the run until the next event.
			}
		}
	}
	for _, step := range state.Steps {
		step.Text = step.text.String()
	}
	return state
}

// Step returns the step with the number n, from 1, if it ended, and nil otherwise. s may be nil.
func (s *State) Step(n int) *Step {
	if s == nil || n > len(s.Steps) || !s.Steps[n-1].Ended {
		return nil
	}
	return s.Steps[n-1]
}

// Call returns the call with that id, or nil if the log does not have it. s may be nil.
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

// HookAddition returns what the hook pre_model_call adds to the requests of step n, from 1. nil means that the log has
// no addition, so that the hook must be asked. s may be nil.
func (s *State) HookAddition(n int) []byte {
	if s == nil || n > len(s.Steps) {
		return nil
	}
	return s.Steps[n-1].HookAddition
}

// lastStep returns the newest step, or nil before the first step.
func (s *State) lastStep() *Step {
	if len(s.Steps) == 0 {
		return nil
	}
	return s.Steps[len(s.Steps)-1]
}

// noteReader adds notes to a state.
type noteReader struct {
	*State
	byKey map[string]*Call // the calls so far, by CallKey
	// The parts of NoteHookAddition, NoteUpstream, NoteAborted and NoteEnd.
	hookAddition, upstream, abort, end partJoiner
}

// applyNote adds one note, given as its words, to the state. It reports whether a process stopped executing the run at
// this note, or another process took over. It ignores notes of an unknown call, notes of a step before the first step,
// and notes that are not part of a State.
func (n *noteReader) applyNote(words []string) (processChanged bool) {
	if len(words) == 0 {
		return false
	}
	kind, values := words[0], words[1:]
	switch kind {
	case NoteTaken, NoteLeft:
		return true
	case NoteHookReplied:
		n.HookReplied[strings.Join(values, " ")] = true
	case NoteAborted:
		var abort Abort
		if n.abort.addPart(values) && json.Unmarshal(n.abort.data, &abort) == nil {
			n.Abort = &abort
		}
	case NoteEnd:
		if !n.end.addPart(values) {
			return false
		}
		if end, err := event.Decode(n.end.data); err == nil && end.Terminal() {
			n.End = end.Body
		}
	case NoteSent, NoteInput, NoteChild, NoteSpent:
		if len(values) > 0 && n.byKey[values[0]] != nil {
			n.byKey[values[0]].applyNote(kind, values[1:])
		}
	default:
		if step := n.lastStep(); step != nil {
			n.applyStepNote(step, kind, values)
		}
	}
	return false
}

// applyNote adds a note about the call. values are the words of the note after its kind and the key of the call.
func (c *Call) applyNote(kind string, values []string) {
	switch {
	case kind == NoteSent:
		c.Sent, c.InFlight = true, true
	case kind == NoteInput:
		c.applyInput(values)
	case kind == NoteChild && len(values) == 1:
		c.Child = values[0]
	case kind == NoteSpent && len(values) == 1:
		var spent event.Spent
		if json.Unmarshal([]byte(values[0]), &spent) == nil {
			c.Spent = &spent
		}
	}
}

// applyStepNote adds a note about step, the newest step. values are the words of the note after its kind.
func (n *noteReader) applyStepNote(step *Step, kind string, values []string) {
	text := strings.Join(values, " ")
	switch kind {
	case NoteHookAddition:
		if n.hookAddition.addPart(values) {
			step.HookAddition = n.hookAddition.data
		}
	case NoteUpstream:
		if n.upstream.addPart(values) {
			step.Upstream = string(n.upstream.data)
		}
	case NoteExtensions:
		step.Extensions += text
	case NoteModel:
		step.Model = text
	case NoteStopReason:
		step.StopReason = text
	case NoteSampled:
		var used event.Usage
		if _, err := fmt.Sscan(text, &used.InputTokens, &used.OutputTokens, &used.TotalTokens); err == nil {
			step.Sampled = step.Sampled.Plus(used)
		}
	}
}

// applyInput adds one part of NoteInput. The call counts as in flight until the last part: a process that died before
// it had written the last part has not asked a person for the input.
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
		*step = Step{HookAddition: step.HookAddition}
	case event.StepEnd:
		step.Ended, step.FinishReason = true, body.FinishReason
		if body.Usage != nil {
			step.Usage = *body.Usage
		}
		// Models do not give these finish reasons: the run loop does when it closes the step because the run ends.
		s.Ending = body.FinishReason == "error" || body.FinishReason == "cancelled"
	case event.TextStart, event.ReasoningStart:
		s.PartCount++
	case event.TextDelta:
		step.text.WriteString(body.Delta)
	case event.Budget:
		s.Reported[body.Limit] = 80
		if body.Used >= body.Max {
			s.Reported[body.Limit] = 100
		}
	case event.BudgetRequired:
		asked, _ := InterruptOf(e)
		s.BudgetQuestion = &asked
	case event.BudgetResolved:
		s.applyBudgetResolved(body, step)
	case event.Suspended:
		s.Suspended = true
	default:
		s.applyCallEvent(e)
	}
}

// applyBudgetResolved adds the answer to the open question about a limit. step is the newest step.
func (s *State) applyBudgetResolved(resolved event.BudgetResolved, step *Step) {
	s.BudgetQuestion = nil
	if !resolved.Approved {
		step.RefusedLimit = resolved.Limit
		return
	}
	s.Reported[resolved.Limit], s.Raised[resolved.Limit] = 0, resolved.Max
	if step.HasEndedCall() {
		step.RaisedAfter = append(step.RaisedAfter, resolved)
	} else {
		step.RaisedBefore = append(step.RaisedBefore, resolved)
	}
}

// applyCallEvent adds an event of a call. It ignores events that are not about a call.
func (s *State) applyCallEvent(e event.Event) {
	asked, resolvedID := InterruptOf(e)
	if asked.ID != "" {
		s.addQuestion(asked)
		return
	}
	if resolvedID != "" && s.resolveRelayed(resolvedID) {
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

// addQuestion adds a question about a call to that call.
func (s *State) addQuestion(asked event.Interrupt) {
	call := s.Calls[asked.CallID]
	switch {
	case asked.ChildRunID != "":
		call.Relayed = append(call.Relayed, &Relayed{Interrupt: asked})
	case asked.Kind == event.KindApproval:
		call.Approval, call.Resolution = &asked, nil
	default:
		call.Elicitations = append(call.Elicitations, asked)
	}
}

// resolveRelayed marks the question of a child run with that id as resolved. It returns false if no child run has it.
func (s *State) resolveRelayed(id string) bool {
	for _, c := range s.Calls {
		if q := c.RelayedQuestion(id); q != nil {
			q.Resolved = true
			return true
		}
	}
	return false
}

// InterruptOf returns the question that an event asks, or the id of the question that it resolves. For other events,
// both results are zero.
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
			ID: body.InterruptID, Kind: event.KindApproval, Call: body.Call, Message: body.Message, Args: body.Args,
			ArgsSHA256: hexSHA256(body.Args), ToolVersion: body.ToolVersion, CreatedAt: e.Time, ExpiresAt: body.ExpiresAt,
			ChildRunID: body.ChildRunID,
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
