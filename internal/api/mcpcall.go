package api

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"unicode"

	"answerd/internal/agent"
	"answerd/internal/api/mcptool"
	"answerd/internal/api/native"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp/mcpserver"
)

// maxElicitations bounds how often a person is shown the same form because what they entered does not match its schema.
const maxElicitations = 3

// hopsPointer is the JSON pointer to agent.HopsKey in a call's parameters.
const hopsPointer = "/_meta/io.answerd~1hops"

// answerCall is one tool call of an MCP client while it executes. Only the call's own goroutine changes its fields. The
// goroutines that elicit answers over the open stream (relayInterrupt) read only h, call and caller.
//
// A person's answer reaches the run in one of two ways. In the protocol versions with sessions, the server sends
// elicitation/create over the call's stream (OpenStream), and the call continues. In 2026-07-28, the call ends with the
// result input_required. The client then calls again with the answers and the requestState, which names the run and the
// event that suspended it.
type answerCall struct {
	h        *Handler
	call     *mcpserver.Call
	caller   auth.Identity
	reporter *mcptool.ProgressReporter

	agent        string // the named agent that the tool asks; "" for the default one
	hasOwnOutput bool   // the structured content is the agent's output, and not the answer document

	// The next three fields are set by resumeRun; they are empty in a call that starts a run.
	after         int64             // the events up to this one were reported by an earlier call
	answered      map[string]bool   // by interrupt id: answered by this call, or no longer open
	contentErrors map[string]string // by interrupt id: what is wrong with the content of this call's answer

	blocked   chan struct{} // closed when the run is suspended for input that cannot arrive during this call
	isBlocked bool          // blocked is closed

	elicitations      sync.WaitGroup                // the goroutines of the elicitations over the open stream
	cancelElicitation map[string]context.CancelFunc // by interrupt id
}

// awaitAnswer starts or resumes the call's run, and waits until it has ended or is suspended for input that cannot
// arrive during this call. When awaitAnswer returns, the call's elicitations have ended. With an error, it returns what
// is known of the run; the run's ID is "" if none was started or found.
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
	settled, err := t.h.awaitRun(ctx, run.ID, t.blocked, func(e event.Event) { t.relayEvent(elicitCtx, e) })
	stopElicitations()
	t.elicitations.Wait()
	if errors.Is(err, errContextEnded) && !errors.Is(context.Cause(ctx), mcpserver.ErrClosed) {
		// The client cancelled the call. In MCP (basic/utilities/cancellation) that means to stop the work, even if the
		// run has another reader. If this process shuts down, the run may continue elsewhere.
		_ = t.h.Agent.Cancel(context.WithoutCancel(ctx), run.ID)
	}
	if err != nil {
		return run, err
	}
	return settled, nil
}

// startRun starts the run that the call's arguments ask for. The call's _meta has the number of agents that the
// question has passed through (hops). The agent limits this number, so that agents which call each other in a loop are
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
		return event.Run{}, native.NewInvalid(hopsPointer, "must be a whole number")
	}
	// The same key with another tool is another request. The name of an agent contains no line feed.
	toolAndArguments := []byte(t.agent + "\n" + string(t.call.Arguments))
	if err := readIdempotencyKey(t.call.Request, toolAndArguments, &req); err != nil {
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

// resumeRun passes the call's answers to the run that requestState names, and returns that run. requestState is the id
// of the event that suspended the run. It need not be secret, because only the run's owner may resume the run. A client
// may repeat a call whose result was lost, so an answer that the run already has is not an error.
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
	var suspension event.Suspended
	if len(page.Events) > 0 {
		suspension, _ = page.Events[0].Body.(event.Suspended)
	}
	if suspension.Interrupts == nil {
		return run, invalidState
	}
	if err := t.submitAnswers(ctx, id, suspension.Interrupts); err != nil {
		return run, err
	}
	t.after = seq
	if len(t.answered) == 0 {
		t.after = seq - 1 // report the suspension again, so that the client is asked again
	}
	return run, nil
}

// submitAnswers passes the call's answers to these interrupts to the run. It sets answered, and contentErrors for answers
// whose content the agent refuses. It first passes all answers together, so that the run resumes only once. If the
// agent refuses them, it passes them one by one, so that each valid answer counts.
func (t *answerCall) submitAnswers(ctx context.Context, run string, interrupts []event.Interrupt) error {
	t.answered, t.contentErrors = make(map[string]bool), make(map[string]string)
	var inputs []agent.Input
	for _, i := range interrupts {
		if response, ok := t.call.InputResponses[i.ID]; ok {
			inputs = append(inputs, mcptool.InputOf(i, response.Action, response.Content))
		}
	}
	togetherErr := t.h.Agent.Answer(ctx, t.caller, run, inputs...)
	for _, input := range inputs {
		err := togetherErr
		if togetherErr != nil && len(inputs) > 1 {
			err = t.h.Agent.Answer(ctx, t.caller, run, input)
		}
		invalid, isContentError := errors.AsType[*agent.ContentError](err)
		switch {
		case isContentError:
			t.contentErrors[input.ID] = describeContentError(invalid)
		case err == nil || isResolved(err):
			t.answered[input.ID] = true
		default:
			return err
		}
	}
	return nil
}

// isResolved reports whether err means that the interrupt is no longer open. This does not fail the call, because the
// run no longer needs the answer.
func isResolved(err error) bool {
	return errors.Is(err, agent.ErrAnswered) || errors.Is(err, agent.ErrExpired) || errors.Is(err, agent.ErrUnknownInterrupt)
}

// describeContentError returns a text for the person who filled in a form that says what is wrong with each field.
func describeContentError(e *agent.ContentError) string {
	var b strings.Builder
	b.WriteString("This does not match the form:")
	for _, f := range e.Fields {
		writeFieldError(&b, f.Pointer, f.Detail)
	}
	return b.String()
}

// writeFieldError writes a line about one field to b. It leaves out the pointer "", which stands for the whole value.
// The names in pointer come from the caller, so each control character and line break becomes a space.
func writeFieldError(b *strings.Builder, pointer, detail string) {
	line := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, pointer+" "+detail)
	b.WriteString("\n- " + strings.TrimPrefix(line, " "))
}

// relayEvent reports e to the MCP client: it starts and cancels elicitations, and sends progress and log messages. It
// closes blocked when the run is suspended and no answer can arrive during this call. It must get all of the run's
// events, because the reporter and the elicitations depend on them. It sends no messages about events up to after.
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

// expectsInput reports whether the suspension can end during this call: the call has answered one of the interrupts, or
// can still elicit an answer to one.
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

// inputRequests returns the elicitations that the client can answer with another call. It returns none if the call has
// an open stream, over which it elicits answers itself.
func (t *answerCall) inputRequests(interrupts []event.Interrupt) (requests []mcpserver.Elicitation) {
	if t.call.OpenStream {
		return nil
	}
	for _, i := range interrupts {
		if t.canElicit(i) {
			requests = append(requests, newElicitation(i, t.contentErrors[i.ID]))
		}
	}
	return requests
}

// newElicitation returns the elicitation for an interrupt. contentError says what was wrong with the previous answer,
// and becomes part of the message; "" means that this is the first attempt.
func newElicitation(i event.Interrupt, contentError string) mcpserver.Elicitation {
	e := mcpserver.Elicitation(mcptool.ElicitationOf(i))
	if contentError != "" {
		e.Message += "\n\n" + contentError
	}
	return e
}

// updateElicitations starts an elicitation if e opens an interrupt. If e resolves an interrupt, it cancels that
// interrupt's elicitation: the interrupt may have expired, or may have been answered elsewhere, for example in the
// console. All elicitations end with ctx. Each has its own goroutine, because the call must continue to read events
// while the client asks its user.
func (t *answerCall) updateElicitations(ctx context.Context, e event.Event) {
	if cancel := t.cancelElicitation[mcptool.ResolvedInterrupt(e.Body)]; cancel != nil {
		cancel()
	}
	interrupt, ok := mcptool.InterruptOf(e.Body)
	if !ok || !t.canElicit(interrupt) {
		return
	}
	if t.cancelElicitation == nil {
		t.cancelElicitation = make(map[string]context.CancelFunc)
	}
	elicitCtx, cancel := context.WithCancel(ctx)
	t.cancelElicitation[interrupt.ID] = cancel
	t.elicitations.Go(func() {
		defer cancel()
		defer t.h.logPanic(elicitCtx, "elicit input from an MCP client")
		t.relayInterrupt(elicitCtx, e.RunID, interrupt)
	})
}

// relayInterrupt elicits an answer from the client and passes it to the run. It blocks until the run has the answer or
// ctx ends. If the content does not match the schema, it elicits again, at most maxElicitations times in total. If the
// last content does not match either, or the client fails, it answers "cancel": without an answer the run would stay
// suspended.
func (t *answerCall) relayInterrupt(ctx context.Context, run string, interrupt event.Interrupt) {
	contentError := ""
	for range maxElicitations {
		answer, err := t.call.Elicit(ctx, newElicitation(interrupt, contentError))
		if err != nil {
			break
		}
		invalid := t.submitAnswer(ctx, run, interrupt, answer)
		if invalid == nil {
			return
		}
		contentError = describeContentError(invalid)
	}
	t.submitAnswer(ctx, run, interrupt, mcpserver.ElicitResult{Action: mcpserver.ActionCancel})
}

// submitAnswer passes the client's answer to the run. It returns an error if the content does not match the schema, so
// that the client can be asked again. It logs any other error and returns nil. If ctx has ended, it does nothing.
func (t *answerCall) submitAnswer(ctx context.Context, run string, interrupt event.Interrupt, answer mcpserver.ElicitResult) *agent.ContentError {
	if ctx.Err() != nil {
		return nil
	}
	err := t.h.Agent.Answer(ctx, t.caller, run, mcptool.InputOf(interrupt, answer.Action, answer.Content))
	if invalid, ok := errors.AsType[*agent.ContentError](err); ok {
		return invalid
	}
	if err != nil && !isResolved(err) && ctx.Err() == nil {
		t.h.Logger.WarnContext(ctx, "the run did not accept the answer of an MCP client", "run_id", run, "error", err)
	}
	return nil
}

// suspendedResult returns the result of a call whose run is suspended. It requests the input if the client can give it
// with another call, and otherwise says where a person can give it.
func (t *answerCall) suspendedResult(run event.Run, s event.Suspended) mcpserver.Result {
	if requests := t.inputRequests(s.Interrupts); len(requests) > 0 {
		return mcpserver.Result{InputRequests: requests, RequestState: native.EventID(run.Last)}
	}
	result := mcptool.SuspendedResult(t.h.runStatus(run))
	if t.hasOwnOutput { // the status of a run does not conform to the agent's output schema
		result.Structured = nil
		result.IsError = true
	}
	return toCallResult(result)
}

// failedResult returns the result of a call that failed with err. It has the problem document that POST /answer would
// return, unless the tool has an output schema of its own. run is the zero value if no run was started. failedResult
// logs unknown errors, which the client sees only as "internal".
func (t *answerCall) failedResult(ctx context.Context, run event.Run, err error) mcpserver.Result {
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
		writeFieldError(&b, f.Pointer, f.Detail)
	}
	result := mcptool.FailedResult(run, p, b.String())
	if t.hasOwnOutput {
		result.Structured = nil // a problem does not conform to the agent's output schema
	}
	return toCallResult(result)
}
