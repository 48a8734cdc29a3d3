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
// The run loop takes the state's steps again. It takes answers and results from the state, without calling a model or a
// tool and without appending events, until it reaches the end of the log; from there it continues the run. A nil *State
// means that this process began the run. A State must not be used concurrently.
package replay

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"answerd/internal/event"
)

// State is what earlier processes did in a run.
type State struct {
	Steps     []*Step            // in order; Steps[0] is step 1
	Calls     map[string]*Call   // by call id, including the calls of steps that were reset
	PartCount int                // how many text and reasoning parts have begun
	Reported  map[string]int     // by limit: the percentage in its last budget event, 80 or 100; 0 once it was raised
	Raised    map[string]float64 // by limit: the value that a person raised it to
	Used      time.Duration      // the time charged to the run: without suspensions, and without gaps between processes
	// BudgetQuestion is the open question about a limit, or nil.
	BudgetQuestion *event.Interrupt
	Inputs         map[string][]byte // people's answers, by interrupt id
	HookReplied    map[string]bool   // the interrupts about which the interrupt hook has replied
	Prompt         []byte            // the messages of the prompt that the request names, as JSON; nil if none are stored
	// Abort is set if a hook decided to end the run. End is set if the run_end hook was, or was about to be, asked
	// about that terminal event. In both cases, the process died before it appended the terminal event.
	Abort     *Abort
	End       event.Body
	Suspended bool // the run was suspended at least once
	// HasBeginning means that the log has what the run's export needs, or a part of it (NoteBeginning).
	HasBeginning bool
	// Ending means that a step was closed because the run was ending, but the log has no terminal event.
	Ending bool
}

// HasCallOf reports whether a step that ended called the tool. Calls that failed because the catalog did not have the
// tool do not count. s may be nil.
func (s *State) HasCallOf(tool string) bool {
	if s == nil {
		return false
	}
	for _, step := range s.Steps {
		if !step.Ended { // it will run again
			continue
		}
		for _, c := range step.Calls {
			failure, _ := c.End.(event.ToolError)
			if c.Tool == tool && failure.Kind != "unknown_tool" {
				return true
			}
		}
	}
	return false
}

// Step is one model call, and everything until the next step.
type Step struct {
	Text         string
	Calls        []*Call
	Usage        event.Usage
	FinishReason string
	Ended        bool        // step_end is in the log; without it, the step runs again
	Sampled      event.Usage // tokens of MCP servers' sampling requests
	StopReason   string      // why the next step is the last one, as a finish reason; "" if it is not
	// Limits that people raised: before the step's first call ended, and afterwards.
	RaisedBefore, RaisedAfter []event.BudgetResolved
	Extensions                string // the contents of NoteExtensions, joined: JSON in base64
	Model                     string // the model that answered; "" if it is the same as in the step before
	Upstream                  string // the endpoint's name for the model; "" if it is the same as in the step before
	// HookAddition is what the pre_model_call hook adds to the step's requests; nil for nothing. A reset keeps it.
	HookAddition []byte
	RefusedLimit string // the limit that a person refused to raise; "" if none

	text strings.Builder // becomes Text
}

// Call is the state of a tool call, according to the log.
type Call struct {
	event.Call
	Args     string // the arguments as the model wrote them; "" until they are complete
	ByClient bool   // the API client executes it
	Sent     bool   // the request may have been sent
	InFlight bool   // the request may have been sent after the server last required input
	// Input is what the server last required before the call is sent again; nil if it required nothing.
	Input []byte
	End   event.Body // the ToolResult or ToolError; nil if the call has not ended
	// Approval is the newest approval asked for, and Resolution the decision about it; nil if there is none.
	Approval   *event.Interrupt
	Resolution *event.ApprovalResolved
	// Elicitations are the server's open questions. Elicited has the resolutions of the others, by interrupt id.
	Elicitations []event.Interrupt
	Elicited     map[string]event.ElicitationResolved

	// Child is the newest child run of a call that asks another agent; "" before there is one. Spent is what the child
	// has used; nil before it has ended. Relayed are the child's questions, in order. Progress is the newest report about
	// the call, such as one about the child.
	Child    string
	Spent    *event.Spent
	Relayed  []*Relayed
	Progress event.ToolProgress

	input partJoiner // the parts of NoteInput
}

// Relayed is a child run's question that the parent has asked its owner.
type Relayed struct {
	event.Interrupt
	Resolved bool
	Reopened bool // the run loop has asked it again
}

// HasChild reports whether the call has asked another agent and has a child run. c may be nil.
func (c *Call) HasChild() bool { return c != nil && c.Child != "" }

// RelayedQuestion returns the child run's question with this id, or nil.
func (c *Call) RelayedQuestion(id string) *Relayed {
	for _, q := range c.Relayed {
		if q.ID == id {
			return q
		}
	}
	return nil
}

// Abort is a hook's decision to end the run.
type Abort struct {
	Reason   string `json:"reason,omitempty"`
	Withheld bool   `json:"withheld,omitempty"` // the API client must not get the step's text
}

// Read rebuilds a run's state from all of its events, notes and inputs, each in the log's order. It ignores notes that
// it cannot decode.
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
	reader := noteReader{State: state, byKey: make(map[string]*Call)}
	var countedFrom int64 // the previous event's time; 0 if the time from there to the next event is not charged
	for _, e := range events {
		if countedFrom > 0 {
			state.Used += time.Duration(e.Time-countedFrom) * time.Millisecond
		}
		countedFrom = e.Time
		state.applyEvent(e)
		switch body := e.Body.(type) {
		case event.ToolCallStart:
			reader.byKey[CallKey(body.CallID)] = state.Calls[body.CallID]
		case event.Suspended:
			countedFrom = 0
		}
		for ; len(notes) > 0 && notes[0].After <= e.Seq; notes = notes[1:] {
			processChanged := reader.applyNote(strings.Fields(string(notes[0].Data)))
			if processChanged {
				countedFrom = 0 // no process executed the run until the next event
			}
		}
	}
	for _, step := range state.Steps {
		step.Text = step.text.String()
	}
	return state
}

// Step returns step n, counted from 1, if that step has ended, and nil otherwise. s may be nil.
func (s *State) Step(n int) *Step {
	if s == nil || n > len(s.Steps) || !s.Steps[n-1].Ended {
		return nil
	}
	return s.Steps[n-1]
}

// Call returns the call with this id, or nil if the log does not have it. s may be nil.
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

// HookAddition returns what the pre_model_call hook adds to the requests of step n, counted from 1. It returns nil if
// the log has no addition, so that the hook must be asked. s may be nil.
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

// noteReader applies notes to a State.
type noteReader struct {
	*State
	byKey map[string]*Call // the calls read so far, by CallKey
	// Joiners for the parts of NotePrompt, NoteHookAddition, NoteUpstream, NoteAborted and NoteEnd.
	prompt, hookAddition, upstream, abort, end partJoiner
}

// applyNote applies one note, given as its words, to the state. It returns true if at this note a process stopped
// executing the run, or another one took over. It ignores notes about unknown calls or steps, and notes of other kinds.
func (n *noteReader) applyNote(words []string) (processChanged bool) {
	if len(words) == 0 {
		return false
	}
	kind, values := words[0], words[1:]
	switch kind {
	case NoteTaken, NoteLeft:
		return true
	case NotePrompt:
		if data, complete := n.prompt.addPart(values); complete {
			n.Prompt = data
		}
	case NoteBeginning:
		n.HasBeginning = true
	case NoteHookReplied:
		n.HookReplied[strings.Join(values, " ")] = true
	case NoteAborted:
		var abort Abort
		if data, complete := n.abort.addPart(values); complete && json.Unmarshal(data, &abort) == nil {
			n.Abort = &abort
		}
	case NoteEnd:
		data, complete := n.end.addPart(values)
		if !complete {
			return false
		}
		if end, err := event.Decode(data); err == nil && end.Terminal() {
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

// applyNote applies a note about the call. values are the note's words after its kind and the call's key.
func (c *Call) applyNote(kind string, values []string) {
	switch {
	case kind == NoteSent:
		c.Sent, c.InFlight = true, true
	case kind == NoteInput:
		// The call counts as in flight until the last part: if the process died before it wrote that, it had not asked a
		// person yet.
		if data, complete := c.input.addPart(values); complete {
			c.Input, c.InFlight = data, false
		}
	case kind == NoteChild && len(values) == 1:
		c.Child = values[0]
	case kind == NoteSpent && len(values) == 1:
		var spent event.Spent
		if json.Unmarshal([]byte(values[0]), &spent) == nil {
			c.Spent = &spent
		}
	}
}

// applyStepNote applies a note about step, the newest step. values are the note's words after its kind.
func (n *noteReader) applyStepNote(step *Step, kind string, values []string) {
	text := strings.Join(values, " ")
	switch kind {
	case NoteHookAddition:
		if data, complete := n.hookAddition.addPart(values); complete {
			step.HookAddition = data
		}
	case NoteUpstream:
		if data, complete := n.upstream.addPart(values); complete {
			step.Upstream = string(data)
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

// applyEvent applies one event to the state.
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
		// Models never return these finish reasons. The run loop uses them when it closes a step because the run ends.
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
		question, _ := InterruptOf(e)
		s.BudgetQuestion = &question
	case event.BudgetResolved:
		s.applyBudgetResolved(body, step)
	case event.Suspended:
		s.Suspended = true
	default:
		s.applyCallEvent(e)
	}
}

// applyBudgetResolved applies the answer to the open question about a limit. step is the newest step.
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

// applyCallEvent applies an event about a call. It ignores other events.
func (s *State) applyCallEvent(e event.Event) {
	question, resolvedID := InterruptOf(e)
	if question.ID != "" {
		s.addQuestion(question)
		return
	}
	if resolvedID != "" && s.resolveRelayed(resolvedID) {
		return
	}
	switch body := e.Body.(type) {
	case event.ToolCallStart:
		c := &Call{Call: body.Call, ByClient: body.Executor == event.Client, Elicited: make(map[string]event.ElicitationResolved)}
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
	case event.ToolProgress:
		s.Calls[body.CallID].Progress = body
	case event.ToolResult:
		s.Calls[body.CallID].End = body
	case event.ToolError:
		s.Calls[body.CallID].End = body
	case event.ApprovalResolved:
		s.Calls[body.CallID].Resolution = &body
	case event.ElicitationResolved:
		c := s.Calls[body.CallID]
		c.Elicitations = slices.DeleteFunc(c.Elicitations, func(i event.Interrupt) bool { return i.ID == body.InterruptID })
		c.Elicited[body.InterruptID] = body
	}
}

// addQuestion adds a question to the call that it is about.
func (s *State) addQuestion(question event.Interrupt) {
	call := s.Calls[question.CallID]
	switch {
	case question.ChildRunID != "":
		call.Relayed = append(call.Relayed, &Relayed{Interrupt: question})
	case question.Kind == event.KindApproval:
		call.Approval, call.Resolution = &question, nil
	default:
		call.Elicitations = append(call.Elicitations, question)
	}
}

// resolveRelayed marks a child run's question as resolved. It returns false if no child run has such a question.
func (s *State) resolveRelayed(id string) bool {
	for _, c := range s.Calls {
		if q := c.RelayedQuestion(id); q != nil {
			q.Resolved = true
			return true
		}
	}
	return false
}

// InterruptOf returns the question that an event asks, or the id of the question that it resolves, or else zero values.
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
			ID:          body.InterruptID,
			Kind:        event.KindApproval,
			Call:        body.Call,
			Message:     body.Message,
			Args:        body.Args,
			ArgsSHA256:  ArgsDigest(body.Args),
			ToolVersion: body.ToolVersion,
			CreatedAt:   e.Time,
			ExpiresAt:   body.ExpiresAt,
			ChildRunID:  body.ChildRunID,
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
