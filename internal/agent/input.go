package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"answerd/internal/agent/replay"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// resolutionWait bounds how long Answer waits until the run continues. The process that executes
// the run may just have died, and another process needs time to notice.
const resolutionWait = 10 * time.Second

// Answer stores a person's answers to the interrupts of a run. Any process may execute the run.
// Answer checks all answers before it stores the first one, and returns when the log has the
// resolutions, or after resolutionWait. Only the run's owner may answer; for everyone else the
// run does not exist. The first answer to an interrupt counts: if another request answers one at
// the same moment, Answer stores none of the following answers. Errors: *InvalidError,
// *ContentError, ErrUnknownInterrupt, ErrAnswered, ErrExpired, or those of the log or ctx.
func (a *Agent) Answer(ctx context.Context, by auth.Identity, run string, answers ...Input) error {
	r, err := a.Log.Run(ctx, run)
	if err == nil && !by.Owns(auth.Identity{Issuer: r.Owner.Issuer, Subject: r.Owner.Subject}) {
		return event.ErrNotFound
	}
	if err != nil {
		return err
	}
	asked := make([]event.Interrupt, len(answers))
	answers = slices.Clone(answers) // the checks complete them
	for n := range answers {
		if asked[n], err = a.findInterrupt(ctx, r, answers[n].ID); err != nil {
			return err
		}
		// If the run waits in this process, its timer decides, because this machine's clock may be set.
		if !a.isActive(run) && a.Log.Now().UnixMilli() >= asked[n].ExpiresAt {
			return ErrExpired
		}
		if err := a.validateInput(r, asked[n], &answers[n]); err != nil {
			return err
		}
	}
	for n, i := range asked {
		switch err := a.Log.AddInput(ctx, run, i.ID, encodeInput(answers[n], by)); {
		case errors.Is(err, event.ErrDuplicateInput), errors.Is(err, event.ErrEnded):
			return ErrAnswered
		case err != nil:
			return fmt.Errorf("give an answer: %w", err)
		}
		a.Logger.InfoContext(ctx, "interrupt answered", "run_id", run, "interrupt_id", i.ID, "kind", i.Kind, "subject", by.Subject)
	}
	return a.awaitResolutions(ctx, r, asked)
}

// wakeTimeout bounds how long FinishSignIn waits for the log.
const wakeTimeout = 10 * time.Second

// FinishSignIn handles the query that a browser brought back from the authorization server of an MCP
// server (mcp.Client.Callback). It answers the questions of the runs that wait for it, which any process
// may execute. found is false if the query belongs to no sign-in that has not ended, or, with an error,
// if the log does not answer: the same query may be handled later.
func (a *Agent) FinishSignIn(ctx context.Context, query url.Values) (found bool, err error) {
	waiters, found, err := a.Tools.Callback(ctx, query)
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
	defer stop()
	for _, waiter := range waiters {
		run, interrupt, _ := strings.Cut(waiter, " ")
		in := encodeInput(Input{ID: interrupt, Action: mcp.Accept}, auth.Identity{})
		switch err := a.Log.AddInput(ctx, run, interrupt, in); {
		case err == nil, errors.Is(err, event.ErrDuplicateInput), errors.Is(err, event.ErrEnded), errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound):
		default:
			a.Logger.WarnContext(ctx, "a run could not be told of a sign-in; it continues when its question expires", "run_id", run, "error", err)
		}
	}
	return found, err
}

// waiterName returns the name under which a run waits for a sign-in, with the interrupt that asks for it.
func waiterName(run, interrupt string) string { return run + " " + interrupt }

// awaitResolutions waits for the events that resolve the interrupts, but at most for
// resolutionWait.
func (a *Agent) awaitResolutions(ctx context.Context, r event.Run, asked []event.Interrupt) error {
	open := make(map[string]bool, len(asked))
	for _, i := range asked {
		open[i.ID] = true
	}
	over := time.NewTimer(resolutionWait)
	defer over.Stop()
	for pos := r.Last.Seq; ; {
		page, err := a.Log.After(ctx, r.ID, pos)
		if err != nil {
			return err
		}
		for _, e := range page.Events {
			_, answered := replay.InterruptOf(e)
			delete(open, answered)
			pos = e.Seq
		}
		switch {
		case page.Ended || len(open) == 0:
			return nil
		case len(page.Events) > 0:
			continue
		}
		select {
		case <-page.More:
		case <-over.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// findInterrupt looks up an open interrupt in the run's log, because the run may be executed by
// another process, or by none while it is parked. The error explains why the interrupt cannot be
// answered.
func (a *Agent) findInterrupt(ctx context.Context, r event.Run, id string) (event.Interrupt, error) {
	if s, waits := r.Last.Body.(event.Suspended); waits {
		for _, i := range s.Interrupts {
			if i.ID == id {
				return i, nil
			}
		}
	}
	var found event.Interrupt
	for pos := int64(0); ; {
		page, err := a.Log.After(ctx, r.ID, pos)
		if err != nil {
			return found, err
		}
		for _, e := range page.Events {
			pos = e.Seq
			asked, answered := replay.InterruptOf(e)
			switch {
			case asked.ID == id && id != "":
				found = asked
			case answered != id || id == "":
			case e.Time >= found.ExpiresAt:
				return found, ErrExpired
			default:
				return found, ErrAnswered
			}
		}
		switch {
		case len(page.Events) > 0 && !page.Ended:
		case found.ID == "":
			return found, ErrUnknownInterrupt
		default:
			return found, nil
		}
	}
}

// validateInput refuses an answer that does not fit its interrupt.
func (a *Agent) validateInput(r event.Run, asked event.Interrupt, in *Input) error {
	switch asked.Kind {
	case event.KindApproval:
		return a.validateApproval(asked, in)
	case event.KindBudget:
		return a.validateBudgetIncrease(r, asked, *in)
	}
	switch {
	case in.Approved != nil || in.Reason != "" || in.Args != nil:
		return &InvalidError{"/approved", "goes with an approval; an elicitation is answered with action"}
	case in.Action == mcp.Accept:
		err := mcp.Elicitation{Mode: asked.Mode, Schema: asked.Schema, URL: asked.URL}.Check(in.Content)
		if wrong, ok := errors.AsType[*mcp.ContentError](err); ok {
			return contentErrorAt("/content", wrong.Fields)
		}
		return err
	case in.Action != mcp.Decline && in.Action != mcp.Cancel:
		return &InvalidError{"/action", "must be accept, decline or cancel"}
	case in.Content != nil:
		return &InvalidError{"/content", "goes with the action accept only"}
	}
	return nil
}

// validateApproval also checks arguments that a person wrote in place of the model's, against
// the tool's schema and with the same lossless repairs.
func (a *Agent) validateApproval(asked event.Interrupt, in *Input) error {
	switch {
	case in.Approved == nil:
		return &InvalidError{"/approved", "required: this asks for an approval"}
	case in.Action != "" || in.Content != nil:
		return &InvalidError{"/action", "goes with an elicitation; an approval is answered with approved"}
	case in.Args == nil:
		return nil
	case !*in.Approved:
		return &InvalidError{"/args", "goes with approved true only"}
	case len(in.Args) > maxArgs:
		return &ContentError{[]InvalidError{{"/args", fmt.Sprintf("must not be longer than %d bytes", maxArgs)}}}
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(in.Args, &object) != nil || object == nil || !bytes.HasPrefix(in.Args, []byte("{")) {
		return &ContentError{[]InvalidError{{"/args", "must be an object"}}}
	}
	args, err := a.Tools.CheckArgs(asked.Tool, in.Args)
	if wrong, ok := errors.AsType[*mcp.CallError](err); ok {
		return contentErrorAt("/args", wrong.Fields)
	}
	in.Args = args
	return err
}

// contentErrorAt returns an error for fields below a member of the body.
func contentErrorAt(at string, fields []mcp.ContentField) error {
	out := &ContentError{}
	for _, f := range fields {
		out.Fields = append(out.Fields, InvalidError{at + f.Pointer, f.Detail})
	}
	return out
}

// inboxRetry is the pause after the log failed to return inputs.
const inboxRetry = time.Second

// storedInput encodes an Input in the log, with the person who gave it.
type storedInput struct {
	Approved *bool    `json:"approved,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Args     jsonText `json:"args,omitempty"`
	Action   string   `json:"action,omitempty"`
	Content  jsonText `json:"content,omitempty"`
	Issuer   string   `json:"issuer,omitempty"`
	Subject  string   `json:"subject,omitempty"`
	Closed   bool     `json:"closed,omitempty"` // set by the run itself: later answers are refused
}

// closedInput is stored instead of an answer. Each interrupt has one input, so later answers are
// refused.
var closedInput = []byte(`{"closed":true}`)

// encodeInput returns an answer as the log stores it. Only the identity of the person is kept, not their claims.
func encodeInput(in Input, by auth.Identity) []byte {
	data, _ := json.Marshal(storedInput{ // raw JSON that was checked always marshals
		Approved: in.Approved, Reason: in.Reason, Args: in.Args, Action: in.Action, Content: in.Content, Issuer: by.Issuer, Subject: by.Subject,
	})
	return data
}

// decodeInput returns the answer to the interrupt with that id. Data that cannot be decoded
// counts as no answer.
func decodeInput(id string, data []byte) resolution {
	var g storedInput
	if json.Unmarshal(data, &g) != nil || g.Closed {
		return resolution{unanswered: ErrExpired}
	}
	return resolution{
		Input: Input{ID: id, Approved: g.Approved, Reason: g.Reason, Args: g.Args, Action: g.Action, Content: g.Content},
		by:    auth.Identity{Issuer: g.Issuer, Subject: g.Subject},
	}
}

// newInbox returns an inbox that does not listen. A run listens once it has a job, or at its first question.
func newInbox(r *run) inbox {
	return inbox{run: r, stopped: make(chan struct{}), undelivered: make(map[string]resolution), waiting: make(map[string]*interrupt)}
}

// expectAnswer arranges that i gets its answer, immediately if it has already arrived.
func (b *inbox) expectAnswer(i *interrupt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, came := b.undelivered[i.ID]; came {
		i.answer <- v
		return
	}
	b.waiting[i.ID] = i
	b.startListeningLocked()
}

// startListening starts the goroutine that receives inputs, once; stopListening ends it.
func (b *inbox) startListening() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.startListeningLocked()
}

func (b *inbox) startListeningLocked() {
	if b.cancel != nil {
		return
	}
	// Inputs are received even after the run's context has ended: withdrawing a question needs
	// to know whether an answer arrived first.
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.run.ctx))
	b.cancel = cancel
	go func() {
		defer close(b.stopped)
		b.run.runGuarded(func() { b.receiveLoop(ctx) })
	}()
}

// stopListening returns when the goroutine has ended.
func (b *inbox) stopListening() {
	b.mu.Lock()
	cancel := b.cancel
	b.mu.Unlock()
	if cancel != nil {
		cancel()
		<-b.stopped
	}
}

// receiveLoop delivers inputs as they arrive, until ctx ends or the run loses its job. It is also where a run
// that appends nothing, because a server or a model is slow, notices that another process has taken it over.
func (b *inbox) receiveLoop(ctx context.Context) {
	var lost <-chan struct{}
	if b.run.job != nil {
		lost = b.run.job.Lost()
	}
	for {
		_, more, err := b.receiveAvailable(ctx)
		var retry <-chan time.Time
		if err != nil {
			retry = time.After(inboxRetry)
		}
		select {
		case <-more:
		case <-retry:
		case <-lost:
			b.run.relinquish(errTakenOver)
			return
		case <-ctx.Done():
			return
		}
	}
}

// receiveAvailable delivers the stored inputs and returns them. more is closed when further
// inputs are stored.
func (b *inbox) receiveAvailable(ctx context.Context) (all []event.Input, more <-chan struct{}, _ error) {
	for {
		page, err := b.run.agent.Log.Inputs(ctx, b.run.ID, b.pos)
		if err != nil || len(page.Inputs) == 0 {
			return all, page.More, err
		}
		for _, in := range page.Inputs {
			b.deliverInput(in)
		}
		all = append(all, page.Inputs...)
	}
}

// deliverInput hands an input to the interrupt that waits for it, or stores it until an
// interrupt does. It never blocks: the log has at most one input of each id, and answer has room for one.
// Only one goroutine at a time may call it, since it moves pos.
func (b *inbox) deliverInput(in event.Input) {
	if in.ID == event.CancelID {
		b.run.cancel(errRequested)
	}
	b.pos = in.Pos
	b.mu.Lock()
	defer b.mu.Unlock()
	v := decodeInput(in.ID, in.Data)
	if i := b.waiting[in.ID]; i != nil {
		i.answer <- v
		delete(b.waiting, in.ID)
		return
	}
	b.undelivered[in.ID] = v
}

// inbox delivers the inputs of a run to the goroutines of the run that wait for them. Any
// process may have stored an input. The inbox also notices that another process took over the
// run.
type inbox struct {
	run     *run
	stopped chan struct{} // closed when the last input has been delivered

	mu          sync.Mutex // guards the fields below
	cancel      context.CancelFunc
	undelivered map[string]resolution // inputs for interrupts that do not wait yet
	waiting     map[string]*interrupt

	pos int64 // the last position that was received; used by receiveAvailable
}
