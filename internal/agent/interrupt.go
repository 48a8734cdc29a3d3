package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// Input is a person's answer to something that a run waits for.
type Input struct {
	ID     string // of the interrupt
	Action string // accept, decline or cancel
	// Content is what an accepted form was filled in with, a JSON object; nil else.
	Content jsonText
}

// Why an answer is not taken.
var (
	ErrUnknownInterrupt = errors.New("the run asks nothing of that id")
	ErrAnswered         = errors.New("that was answered before")
	ErrExpired          = errors.New("the time to answer that is over")
)

// ContentError is an answer that does not fit the form that was asked for.
type ContentError struct{ Fields []InvalidError }

func (e *ContentError) Error() string { return "the content does not fit the form" }

// interrupt is a question that a run waits for somebody to answer.
type interrupt struct {
	question mcp.Elicitation
	answer   chan mcp.ElicitationResult // of capacity 1
	resolved chan struct{}              // closed when elicitation_resolved is in the log

	mu  sync.Mutex // protects what follows
	end error      // why no answer is taken any more; nil while it is open
}

// settle ends the time to answer, and reports whether it was not over before.
func (i *interrupt) settle(end error) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.end != nil {
		return false
	}
	i.end = end
	return true
}

func (i *interrupt) ended() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.end
}

// elicit asks the reader of the run on behalf of one call, and waits for the answer:
// in memory, for as long as this process and the call live.
func (l *loop) elicit(ctx context.Context, c event.Call, e mcp.Elicitation) (res mcp.ElicitationResult, err error) {
	defer recovered(&err) // the goroutine is not ours
	id, patience := newID("int"), l.agent.AnswerTime
	i := &interrupt{question: e, answer: make(chan mcp.ElicitationResult, 1), resolved: make(chan struct{})}
	defer close(i.resolved)
	if !l.run.req.Interactive {
		patience = 0
		i.settle(ErrAnswered)
	}
	l.run.keep(id, i)
	err = l.run.out.Append(ctx, event.Elicitation{
		Call: c, InterruptID: id, Mode: e.Mode, Message: e.Message, Schema: e.Schema, URL: e.URL,
		ExpiresAt: time.Now().Add(patience).UnixMilli(),
	})
	if err != nil {
		i.settle(ErrExpired)
		return mcp.ElicitationResult{}, err
	}
	res = mcp.ElicitationResult{Action: mcp.Decline} // nobody is there who could say yes
	if patience > 0 {
		l.run.clock.hold()
		res = i.await(ctx, patience)
		l.run.clock.resume()
	}
	// Whatever became of the run: what was opened is closed.
	return res, l.run.out.Append(context.WithoutCancel(ctx), event.ElicitationResolved{Call: c, InterruptID: id, Action: res.Action})
}

// await waits for the answer. When the time is over, or ctx ends, that is cancel.
func (i *interrupt) await(ctx context.Context, patience time.Duration) mcp.ElicitationResult {
	expiry := time.NewTimer(patience)
	defer expiry.Stop()
	end, otherwise := ErrExpired, mcp.Cancel
	select {
	case res := <-i.answer:
		return res
	case <-i.question.Done:
		end, otherwise = ErrAnswered, mcp.Accept
	case <-expiry.C:
	case <-ctx.Done():
		end = ErrAnswered // by the server, or the end of the run
	}
	if i.settle(end) {
		return mcp.ElicitationResult{Action: otherwise}
	}
	return <-i.answer // it came at the last moment, and was taken
}

// keep makes the interrupt known to Answer for as long as the run goes on.
func (r *run) keep(id string, i *interrupt) {
	r.interruptsMu.Lock()
	defer r.interruptsMu.Unlock()
	if r.interrupts == nil {
		r.interrupts = make(map[string]*interrupt)
	}
	r.interrupts[id] = i
}

func (r *run) interrupt(id string) *interrupt {
	r.interruptsMu.Lock()
	defer r.interruptsMu.Unlock()
	return r.interrupts[id]
}

// Answer gives a person's answer to what a run waits for, and returns when it is in the
// log. by is who answers, who must have been found to own the run. The first answer
// wins. Errors: *InvalidError, *ContentError, ErrUnknownInterrupt, ErrAnswered,
// ErrExpired, or the log's or ctx's.
func (a *Agent) Answer(ctx context.Context, by auth.Identity, run string, in Input) error {
	a.mu.Lock()
	r := a.active[run]
	a.mu.Unlock()
	if r == nil {
		return a.answeredBefore(ctx, run, in.ID)
	}
	i := r.interrupt(in.ID)
	if i == nil {
		return ErrUnknownInterrupt
	}
	if err := i.ended(); err != nil {
		return err
	}
	if err := check(i.question, in); err != nil {
		return err
	}
	if !i.settle(ErrAnswered) {
		return i.ended()
	}
	i.answer <- mcp.ElicitationResult{Action: in.Action, Content: in.Content}
	a.Logger.InfoContext(ctx, "elicitation answered", "run_id", run, "interrupt_id", in.ID, "action", in.Action, "subject", by.Subject)
	select {
	case <-i.resolved:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// check refuses an answer that the question does not allow.
func check(question mcp.Elicitation, in Input) error {
	if in.Action != mcp.Accept {
		if in.Content != nil {
			return &InvalidError{"/content", "goes with the action accept only"}
		}
		return nil
	}
	err := question.Check(in.Content)
	wrong, ok := errors.AsType[*mcp.ContentError](err)
	if !ok {
		return err
	}
	out := &ContentError{}
	for _, f := range wrong.Fields {
		out.Fields = append(out.Fields, InvalidError{"/content" + f.Pointer, f.Detail})
	}
	return out
}

// answeredBefore is what has become of an interrupt of a run that has ended, by the
// log: there is nothing else left of it.
func (a *Agent) answeredBefore(ctx context.Context, run, id string) error {
	var expires int64
	for pos := int64(0); ; {
		page, err := a.Log.After(ctx, run, pos)
		if err != nil {
			return err
		}
		for _, e := range page.Events {
			pos = e.Seq
			switch b := e.Body.(type) {
			case event.Elicitation:
				if b.InterruptID == id {
					expires = b.ExpiresAt
				}
			case event.ElicitationResolved:
				if b.InterruptID == id && e.Time >= expires {
					return ErrExpired
				} else if b.InterruptID == id {
					return ErrAnswered
				}
			}
		}
		if page.Ended || len(page.Events) == 0 {
			return ErrUnknownInterrupt
		}
	}
}
