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

// maxAsked is how often a person is asked the same again because the answer does not fit.
const maxAsked = 3

// hopsPointer is agent.HopsKey in a call's parameters, as a JSON pointer.
const hopsPointer = "/_meta/io.answerd~1hops"

// toolCall is a call of the tool while it goes on. Nothing of it is used by more than one
// goroutine at a time, except by those that ask.
type toolCall struct {
	h        *Handler
	call     *mcpserver.Call
	caller   auth.Identity
	narrator *mcptool.ProgressReporter

	// after is the event up to which an earlier call told the run. answered and misfits are
	// what this one brought answers to, and what was wrong with them.
	after    int64
	answered map[string]bool
	misfits  map[string]string

	patience chan struct{} // closed when the run waits for what only another call can bring
	over     bool          // it is closed

	asking  sync.WaitGroup // those who ask, by the open stream
	dismiss map[string]context.CancelFunc
}

// answer is the run when it has ended, or waits for a person whom only another call can
// ask. With an error it is the run that there was, if any.
func (t *toolCall) answer(ctx context.Context) (event.Run, error) {
	var run event.Run
	var err error
	if t.call.RequestState == "" {
		run, err = t.begin(ctx)
	} else {
		run, err = t.goOn(ctx)
	}
	if err != nil {
		return run, err
	}
	asking, stop := context.WithCancel(ctx)
	end, err := t.h.await(ctx, run.ID, t.patience, func(e event.Event) { t.see(asking, e) })
	stop()
	t.asking.Wait()
	if errors.Is(err, errGone) && !errors.Is(context.Cause(ctx), mcpserver.ErrClosed) {
		// The protocol's way to say that it should stop, whoever watches in the console. A
		// service that ends says nothing of the kind.
		_ = t.h.Agent.Cancel(context.WithoutCancel(ctx), run.ID)
	}
	if err != nil {
		return run, err
	}
	return end, nil
}

// begin starts the run that the call asks for.
func (t *toolCall) begin(ctx context.Context) (event.Run, error) {
	req, err := mcptool.Decode(t.call.Arguments)
	if err != nil {
		return event.Run{}, err
	}
	hops, ok := agent.ParseHops(t.call.Meta)
	if !ok {
		return event.Run{}, &native.Invalid{Errors: []native.FieldError{{Pointer: hopsPointer, Detail: "must be a whole number"}}}
	}
	if req, err = keyed(t.call.Request, t.call.Arguments, req); err != nil {
		return event.Run{}, err
	}
	req.Hops, req.Interactive, req.Awaited = hops, true, true
	req.AskAtLimit = false // there is no form for it
	return t.h.Agent.Start(agent.ContinueTrace(ctx, t.call.MetaStrings()), t.caller, req)
}

// goOn takes the answers that the call brings to the run which asked. The state names the
// run and the event that asked, and no more: who may go on with a run is its owner.
// A call that is repeated because its result was lost finds its answers given.
func (t *toolCall) goOn(ctx context.Context) (event.Run, error) {
	id, seq, ok := native.ParsePosition(t.call.RequestState)
	if !ok || seq == 0 {
		return event.Run{}, newProblem("invalid_request", "The requestState is none that this service gave.")
	}
	run, err := t.h.owned(t.call.Request, id)
	if err != nil {
		return event.Run{}, err
	}
	page, err := t.h.Log.After(ctx, id, seq-1)
	if err != nil {
		return run, err
	}
	var asked []event.Interrupt
	if len(page.Events) > 0 {
		if s, ok := page.Events[0].Body.(event.Suspended); ok {
			asked = s.Interrupts
		}
	}
	if asked == nil {
		return run, newProblem("invalid_request", "The requestState is none that this service gave.")
	}
	t.after = seq - 1 // where there is no answer, it is asked again
	if err := t.give(ctx, id, asked); err != nil {
		return run, err
	}
	if len(t.answered) > 0 {
		t.after = seq
	}
	return run, nil
}

// give gives the answers that the call has to what was asked: all at once, or, where
// they cannot be taken so, each for itself.
func (t *toolCall) give(ctx context.Context, run string, asked []event.Interrupt) error {
	t.answered, t.misfits = make(map[string]bool), make(map[string]string)
	var inputs []agent.Input
	for _, i := range asked {
		if a, ok := t.call.InputResponses[i.ID]; ok {
			inputs = append(inputs, mcptool.InputOf(i, a.Action, a.Content))
		}
	}
	all := t.h.Agent.Answer(ctx, t.caller, run, inputs...)
	for _, in := range inputs {
		err := all
		if all != nil && len(inputs) > 1 {
			err = t.h.Agent.Answer(ctx, t.caller, run, in)
		}
		if misfit, ok := errors.AsType[*agent.ContentError](err); ok {
			t.misfits[in.ID] = inWords(misfit)
			continue
		}
		if err != nil && !past(err) {
			return err
		}
		t.answered[in.ID] = true
	}
	return nil
}

// past reports whether an answer comes to what is not asked any more: the run goes on, and
// its end says the rest.
func past(err error) bool {
	return errors.Is(err, agent.ErrAnswered) || errors.Is(err, agent.ErrExpired) || errors.Is(err, agent.ErrUnknownInterrupt)
}

// inWords is what is wrong with a form, for who filled it in.
func inWords(e *agent.ContentError) string {
	var b strings.Builder
	b.WriteString("This does not fit:")
	for _, f := range e.Fields {
		b.WriteString("\n- " + strings.TrimPrefix(f.Pointer+" "+f.Detail, " "))
	}
	return b.String()
}

// see tells an event to the host, and asks what it asks.
func (t *toolCall) see(ctx context.Context, e event.Event) {
	message := t.narrator.Message(e)
	if t.call.OpenStream {
		t.ask(ctx, e)
	}
	if e.Seq <= t.after {
		return
	}
	if s, ok := e.Body.(event.Suspended); ok && !t.over && t.stuck(s.Interrupts) {
		t.over = true
		close(t.patience)
	}
	if m, ok := e.Body.(event.LogMessage); ok {
		level, logger := mcptool.LogSource(m)
		t.call.Log(level, logger, m.Data)
	}
	if message != "" {
		t.call.Progress(float64(e.Seq), message)
	}
}

// stuck reports whether nothing of what the run waits for is on its way.
func (t *toolCall) stuck(waits []event.Interrupt) bool {
	for _, i := range waits {
		if t.answered[i.ID] || t.call.OpenStream && t.can(i) {
			return false
		}
	}
	return true
}

// can reports whether the host can ask its person that.
func (t *toolCall) can(i event.Interrupt) bool {
	if mcptool.ElicitationOf(i).Mode == mcpserver.ModeURL {
		return t.call.SupportsURL
	}
	return t.call.SupportsForm
}

// askable are the questions that another call can bring answers to.
func (t *toolCall) askable(waits []event.Interrupt) []mcpserver.Elicitation {
	var out []mcpserver.Elicitation
	for _, i := range waits {
		if !t.call.OpenStream && t.can(i) {
			out = append(out, question(i, t.misfits[i.ID]))
		}
	}
	return out
}

// question is what the host asks, and why again.
func question(i event.Interrupt, misfit string) mcpserver.Elicitation {
	q := mcpserver.Elicitation(mcptool.ElicitationOf(i))
	if misfit != "" {
		q.Message += "\n\n" + misfit
	}
	return q
}

// ask has the host ask what the event asks, and take back what was resolved otherwise: in
// the console, or because its time is over.
func (t *toolCall) ask(ctx context.Context, e event.Event) {
	if dismiss := t.dismiss[mcptool.ResolvedInterrupt(e.Body)]; dismiss != nil {
		dismiss()
	}
	i, ok := mcptool.InterruptOf(e.Body)
	if !ok || !t.can(i) {
		return
	}
	if t.dismiss == nil {
		t.dismiss = make(map[string]context.CancelFunc)
	}
	own, dismiss := context.WithCancel(ctx)
	t.dismiss[i.ID] = dismiss
	t.asking.Go(func() {
		defer dismiss()
		defer t.h.survived(own, "ask an MCP host")
		t.relay(own, e.RunID, i)
	})
}

// relay takes a question to the host's person, and the answer to the run. A host that
// fails to ask has answered, too: nobody decided.
func (t *toolCall) relay(ctx context.Context, run string, i event.Interrupt) {
	misfit := ""
	for n := range maxAsked + 1 {
		a, err := mcpserver.ElicitResult{Action: mcpserver.ActionCancel}, error(nil)
		if n < maxAsked {
			a, err = t.call.Elicit(ctx, question(i, misfit))
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			a = mcpserver.ElicitResult{Action: mcpserver.ActionCancel}
		}
		err = t.h.Agent.Answer(ctx, t.caller, run, mcptool.InputOf(i, a.Action, a.Content))
		bad, again := errors.AsType[*agent.ContentError](err)
		if err != nil && !again && !past(err) && ctx.Err() == nil {
			t.h.Logger.WarnContext(ctx, "an answer of an MCP host was not taken", "run_id", run, "error", err)
		}
		if !again {
			return
		}
		misfit = inWords(bad)
	}
}

// failed is the result of a call that has no answer.
func (t *toolCall) failed(ctx context.Context, run event.Run, err error) mcptool.Result {
	p, known := problemOf(err)
	if !known && ctx.Err() == nil {
		t.h.Logger.ErrorContext(ctx, "tool call failed", "run_id", run.ID, "error", err)
	}
	p.Instance = cmp.Or(p.Instance, "/mcp")
	p.TraceID = cmp.Or(p.TraceID, run.TraceID, t.h.TraceID(ctx))
	var b strings.Builder
	b.WriteString(p.Detail + " (" + p.Code + ")")
	for _, f := range p.Errors {
		b.WriteString("\n- " + strings.TrimPrefix(f.Pointer+" "+f.Detail, " "))
	}
	return mcptool.Failed(run, p, b.String())
}
