package api

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"

	"answerd/internal/agent"
	"answerd/internal/api/mcptool"
	"answerd/internal/api/native"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp/mcpserver"
)

// maxElicitations bounds how often a person gets the same form because their content does not
// match its schema.
const maxElicitations = 3

// hopsPointer is the JSON pointer to agent.HopsKey in the parameters of a call.
const hopsPointer = "/_meta/io.answerd~1hops"

// answerCall is one call of the MCP tool while it executes. Only one goroutine at a time uses it,
// except for those that elicit answers over the open stream (relayInterrupt).
//
// A person's answer reaches the run in one of two ways. In the protocol versions with sessions, the
// server sends elicitation/create over the stream of the call (OpenStream), and the call continues. In
// 2026-07-28, the call ends with the result input_required, and the client calls again with the answers
// and the requestState, which names the run and the event that suspended it.
type answerCall struct {
	h        *Handler
	call     *mcpserver.Call
	caller   auth.Identity
	reporter *mcptool.ProgressReporter

	agent        string // the named agent that the tool stands for; "" for the default one
	hasOwnOutput bool   // the structured content is the agent's output, and not the answer document

	// after is the last event that an earlier call has reported. answered are the interrupts
	// that this call has answered, and contentErrors what was wrong with its other answers.
	after         int64
	answered      map[string]bool
	contentErrors map[string]string

	blocked   chan struct{} // closed when the run needs input that only another call can bring
	isBlocked bool          // blocked is closed

	elicitations sync.WaitGroup                // over the open stream
	withdraw     map[string]context.CancelFunc // ends an elicitation, by interrupt
}

// awaitAnswer starts or resumes the run of the call. It returns the run when it has ended, or when
// it needs input that only another call can bring. With an error it returns the run if there is
// one.
func (t *answerCall) awaitAnswer(ctx context.Context) (event.Run, error) {
	var run event.Run
	var err error
	if t.call.RequestState == "" {
		run, err = t.startRun(ctx)
	} else {
		run, err = t.resumeRun(ctx)
	}
	if err != nil {
		return run, err
	}
	elicitCtx, stopElicitations := context.WithCancel(ctx)
	end, err := t.h.awaitRun(ctx, run.ID, t.blocked, func(e event.Event) { t.relayEvent(elicitCtx, e) })
	stopElicitations()
	t.elicitations.Wait()
	if errors.Is(err, errCallerGone) && !errors.Is(context.Cause(ctx), mcpserver.ErrClosed) {
		// The client cancelled the call. In MCP (basic/utilities/cancellation) that means to stop
		// the work, even if the run has other readers. A shutdown of this process does not mean that.
		_ = t.h.Agent.Cancel(context.WithoutCancel(ctx), run.ID)
	}
	if err != nil {
		return run, err
	}
	return end, nil
}

// startRun starts the run that the arguments of the call ask for. The hops in _meta count the
// agents that the question has passed through, so that agents which call each other in a loop are
// stopped.
func (t *answerCall) startRun(ctx context.Context) (event.Run, error) {
	req, err := mcptool.Decode(t.call.Arguments)
	if err != nil {
		return event.Run{}, err
	}
	if t.hasOwnOutput {
		if err := mcptool.CheckOwnOutput(req); err != nil {
			return event.Run{}, err
		}
	}
	hops, ok := agent.ParseHops(t.call.Meta)
	if !ok {
		return event.Run{}, &native.Invalid{Errors: []native.FieldError{{Pointer: hopsPointer, Detail: "must be a whole number"}}}
	}
	// The tool belongs to what a key was used for; no name of an agent contains a line feed.
	if req, err = withIdempotencyKey(t.call.Request, []byte(t.agent+"\n"+string(t.call.Arguments)), req); err != nil {
		return event.Run{}, err
	}
	if t.agent != "" {
		if err := setAgent(&req, t.agent); err != nil {
			return event.Run{}, err
		}
	}
	req.Hops = hops
	req.Interactive = true
	req.Awaited = true
	req.AskAtLimit = false // MCP has no form for that question
	return t.h.Agent.Start(agent.ContinueTrace(ctx, t.call.MetaStrings()), t.caller, req)
}

// resumeRun gives the call's answers to the run whose suspension requestState names, and returns
// that run. Only the owner of the run may do that, so requestState need not be secret. A call
// that is repeated because its result was lost finds its answers given already.
func (t *answerCall) resumeRun(ctx context.Context) (event.Run, error) {
	invalidState := newProblem("invalid_request", "The requestState is not one that this service issued.")
	id, seq, ok := native.ParsePosition(t.call.RequestState)
	if !ok || seq == 0 {
		return event.Run{}, invalidState
	}
	run, err := t.h.ownedRun(t.call.Request, id)
	if err != nil {
		return event.Run{}, err
	}
	page, err := t.h.Log.After(ctx, id, seq-1)
	if err != nil {
		return run, err
	}
	var interrupts []event.Interrupt
	if len(page.Events) > 0 {
		if s, ok := page.Events[0].Body.(event.Suspended); ok {
			interrupts = s.Interrupts
		}
	}
	if interrupts == nil {
		return run, invalidState
	}
	t.after = seq - 1 // interrupts without an answer are asked again
	if err := t.giveAnswers(ctx, id, interrupts); err != nil {
		return run, err
	}
	if len(t.answered) > 0 {
		t.after = seq
	}
	return run, nil
}

// giveAnswers gives the run the call's answers to the interrupts. It first gives all at once, so
// that the run resumes only when all are accepted. If the agent refuses that, it gives them one by
// one, so that the valid ones count, and collects the errors of the others.
func (t *answerCall) giveAnswers(ctx context.Context, run string, interrupts []event.Interrupt) error {
	t.answered, t.contentErrors = make(map[string]bool), make(map[string]string)
	var inputs []agent.Input
	for _, i := range interrupts {
		if a, ok := t.call.InputResponses[i.ID]; ok {
			inputs = append(inputs, mcptool.InputOf(i, a.Action, a.Content))
		}
	}
	allErr := t.h.Agent.Answer(ctx, t.caller, run, inputs...)
	for _, in := range inputs {
		err := allErr
		if allErr != nil && len(inputs) > 1 {
			err = t.h.Agent.Answer(ctx, t.caller, run, in)
		}
		if invalid, ok := errors.AsType[*agent.ContentError](err); ok {
			t.contentErrors[in.ID] = describeContentError(invalid)
			continue
		}
		if err != nil && !isResolved(err) {
			return err
		}
		t.answered[in.ID] = true
	}
	return nil
}

// isResolved reports whether err means that an interrupt is no longer open. The run has then
// continued, and its end tells the client what it needs.
func isResolved(err error) bool {
	return errors.Is(err, agent.ErrAnswered) || errors.Is(err, agent.ErrExpired) || errors.Is(err, agent.ErrUnknownInterrupt)
}

// describeContentError returns the text that tells the person who filled in a form what is wrong
// with it.
func describeContentError(e *agent.ContentError) string {
	var b strings.Builder
	b.WriteString("This does not match the form:")
	for _, f := range e.Fields {
		b.WriteString("\n- " + strings.TrimPrefix(f.Pointer+" "+f.Detail, " "))
	}
	return b.String()
}

// relayEvent reports an event to the client: it starts and withdraws elicitations, and sends progress
// and log messages. It closes blocked when the run is suspended and no answer can arrive during
// this call. The reporter and the elicitations need all events, also those that an earlier call
// has reported.
func (t *answerCall) relayEvent(ctx context.Context, e event.Event) {
	message := t.reporter.MessageFor(e)
	if t.call.OpenStream {
		t.updateElicitations(ctx, e)
	}
	if e.Seq <= t.after {
		return
	}
	if s, ok := e.Body.(event.Suspended); ok && !t.isBlocked && !t.expectsInput(s.Interrupts) {
		t.isBlocked = true
		close(t.blocked)
	}
	if m, ok := e.Body.(event.LogMessage); ok {
		level, logger := mcptool.LogSource(m)
		t.call.Log(level, logger, m.Data)
	}
	if message != "" {
		t.call.Progress(float64(e.Seq), message)
	}
}

// expectsInput reports whether an answer to one of the interrupts can still arrive during this call.
func (t *answerCall) expectsInput(interrupts []event.Interrupt) bool {
	for _, i := range interrupts {
		if t.answered[i.ID] || t.call.OpenStream && t.canElicit(i) {
			return true
		}
	}
	return false
}

// canElicit reports whether the client supports the elicitation mode that the interrupt needs.
func (t *answerCall) canElicit(i event.Interrupt) bool {
	if mcptool.ElicitationOf(i).Mode == mcpserver.ModeURL {
		return t.call.SupportsURL
	}
	return t.call.SupportsForm
}

// inputRequests returns the elicitations that the client can answer with another call.
func (t *answerCall) inputRequests(interrupts []event.Interrupt) []mcpserver.Elicitation {
	var out []mcpserver.Elicitation
	for _, i := range interrupts {
		if !t.call.OpenStream && t.canElicit(i) {
			out = append(out, newElicitation(i, t.contentErrors[i.ID]))
		}
	}
	return out
}

// newElicitation returns the elicitation of an interrupt. contentError says what was wrong with
// the previous answer, or is "" if there was none.
func newElicitation(i event.Interrupt, contentError string) mcpserver.Elicitation {
	e := mcpserver.Elicitation(mcptool.ElicitationOf(i))
	if contentError != "" {
		e.Message += "\n\n" + contentError
	}
	return e
}

// updateElicitations starts an elicitation for an interrupt that the event opens. It withdraws the
// elicitation of an interrupt that the event resolves, because the interrupt has expired or was answered
// elsewhere, for example in the console. Each elicitation has a goroutine, because the call must
// continue to read events while the client waits for its person.
func (t *answerCall) updateElicitations(ctx context.Context, e event.Event) {
	if withdraw := t.withdraw[mcptool.ResolvedInterrupt(e.Body)]; withdraw != nil {
		withdraw()
	}
	interrupt, ok := mcptool.InterruptOf(e.Body)
	if !ok || !t.canElicit(interrupt) {
		return
	}
	if t.withdraw == nil {
		t.withdraw = make(map[string]context.CancelFunc)
	}
	elicitCtx, withdraw := context.WithCancel(ctx)
	t.withdraw[interrupt.ID] = withdraw
	t.elicitations.Go(func() {
		defer withdraw()
		defer t.h.logPanic(elicitCtx, "elicit input from an MCP client")
		t.relayInterrupt(elicitCtx, e.RunID, interrupt)
	})
}

// relayInterrupt elicits an answer from the client and gives it to the run. If the content does
// not match the schema, it asks again, at most maxElicitations times in all. If the client fails,
// the answer is "cancel": without any answer the run would stay suspended.
func (t *answerCall) relayInterrupt(ctx context.Context, run string, interrupt event.Interrupt) {
	contentError := ""
	for n := range maxElicitations + 1 {
		cancelled := mcpserver.ElicitResult{Action: mcpserver.ActionCancel}
		answer := cancelled
		if n < maxElicitations {
			var err error
			if answer, err = t.call.Elicit(ctx, newElicitation(interrupt, contentError)); err != nil {
				answer = cancelled
			}
		}
		if ctx.Err() != nil {
			return
		}
		err := t.h.Agent.Answer(ctx, t.caller, run, mcptool.InputOf(interrupt, answer.Action, answer.Content))
		invalid, askAgain := errors.AsType[*agent.ContentError](err)
		if askAgain {
			contentError = describeContentError(invalid)
			continue
		}
		if err != nil && !isResolved(err) && ctx.Err() == nil {
			t.h.Logger.WarnContext(ctx, "the run did not accept the answer of an MCP client", "run_id", run, "error", err)
		}
		return
	}
}

// failedCallResult returns the result of a call without an answer.
func (t *answerCall) failedCallResult(ctx context.Context, run event.Run, err error) mcpserver.Result {
	r := t.failedResult(ctx, run, err)
	if t.hasOwnOutput {
		r.Structured = nil // a problem is no value of the tool's output schema
	}
	return toCallResult(r)
}

// failedResult returns the result of a call without an answer, with the same problem document that
// POST /answer would return.
func (t *answerCall) failedResult(ctx context.Context, run event.Run, err error) mcptool.Result {
	p, known := problemFor(err)
	if !known && ctx.Err() == nil {
		t.h.Logger.ErrorContext(ctx, "tool call failed", "run_id", run.ID, "error", err)
	}
	t.h.logRateLimited(ctx, p, t.caller)
	p.Instance = t.h.basePath + cmp.Or(p.Instance, "/mcp")
	p.TraceID = cmp.Or(p.TraceID, run.TraceID, t.h.TraceID(ctx))
	var b strings.Builder
	b.WriteString(p.Detail + " (" + p.Code + ")")
	for _, f := range p.Errors {
		b.WriteString("\n- " + strings.TrimPrefix(f.Pointer+" "+f.Detail, " "))
	}
	return mcptool.FailedResult(run, p, b.String())
}
