package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// Input is a person's answer to something that a run waits for: Approved for an
// approval, Action for an elicitation.
type Input struct {
	ID string // of the interrupt

	Approved *bool
	Reason   string   // for the model; of a refusal, mostly
	Args     jsonText // replaces the arguments of an approved call, a JSON object; nil leaves them

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

// ContentError is an answer that does not fit what was asked for: a form, or the
// arguments of a tool.
type ContentError struct{ Fields []InvalidError }

func (e *ContentError) Error() string { return "the answer does not fit what was asked for" }

// interrupt is a question that a run waits for its owner to answer. All that decides
// what an answer may be is in the record.
type interrupt struct {
	event.Interrupt // not changed once it is asked

	done     <-chan struct{} // closed when the person has done elsewhere what was asked; nil else
	answer   chan verdict    // of capacity 1
	resolved chan struct{}   // closed when the answer is in the log

	mu  sync.Mutex // protects what follows
	end error      // why no answer is taken any more; nil while it is open
}

// verdict is what became of a question.
type verdict struct {
	Input
	by  auth.Identity
	why error // why nobody answered; nil if somebody did
}

// Why nobody answered, besides ErrExpired.
var (
	errNobody    = errors.New("nobody can be asked")
	errWithdrawn = errors.New("the question was withdrawn")
	errTooMany   = errors.New("too many questions are open")
)

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

// ask asks the owner of the run, and waits for the answer for as long as the run allows
// and ctx goes on. That done is closed is an answer, too: yes. The answer is in the log
// when it returns. The error is the log's.
func (l *loop) ask(ctx context.Context, rec event.Interrupt, done <-chan struct{}) (verdict, error) {
	now, patience := time.Now(), l.agent.AnswerTime
	if !l.run.req.Interactive {
		patience = 0
	}
	rec.ID, rec.CreatedAt, rec.ExpiresAt = newID("int"), now.UnixMilli(), now.Add(patience).UnixMilli()
	i := &interrupt{Interrupt: rec, done: done, answer: make(chan verdict, 1), resolved: make(chan struct{})}
	defer close(i.resolved)
	if patience == 0 {
		v := verdict{why: errNobody}
		i.settle(ErrAnswered)
		return v, l.run.waits.pass(ctx, i, v)
	}
	if err := l.run.waits.ask(ctx, i); err != nil {
		i.settle(ErrExpired)
		if errors.Is(err, errTooMany) {
			return verdict{why: err}, nil
		}
		return verdict{}, err
	}
	v := i.await(ctx, patience)
	return v, l.run.waits.resolve(ctx, i, v)
}

// await waits for the answer.
func (i *interrupt) await(ctx context.Context, patience time.Duration) verdict {
	expiry := time.NewTimer(patience)
	defer expiry.Stop()
	otherwise, end := verdict{why: ErrExpired}, ErrExpired
	select {
	case v := <-i.answer:
		return v
	case <-i.done:
		otherwise, end = verdict{Input: Input{Action: mcp.Accept}}, ErrAnswered
	case <-expiry.C:
	case <-ctx.Done():
		otherwise, end = verdict{why: errWithdrawn}, ErrAnswered // by the server, or the end of the run
		select {
		case <-i.done: // which is why the question was withdrawn
			otherwise = verdict{Input: Input{Action: mcp.Accept}}
		default:
		}
	}
	if i.settle(end) {
		return otherwise
	}
	return <-i.answer // it came at the last moment, and was taken
}

// resolution is the event that says what became of the question.
func (i *interrupt) resolution(v verdict) event.Body {
	if i.Kind == event.KindApproval {
		r := event.ApprovalResolved{Call: i.Call, InterruptID: i.ID, Approved: v.approves(), Reason: v.Reason, By: v.by.Subject}
		if v.why != nil {
			r.Reason = v.why.Error()
		}
		return r
	}
	return event.ElicitationResolved{Call: i.Call, InterruptID: i.ID, Action: v.action()}
}

func (v verdict) approves() bool { return v.why == nil && v.Approved != nil && *v.Approved }

// action is the answer to an elicitation: no where nobody is there who could say yes.
func (v verdict) action() string {
	switch {
	case v.why == nil:
		return v.Action
	case errors.Is(v.why, errNobody):
		return mcp.Decline
	}
	return mcp.Cancel
}

// elicit asks the owner of the run on behalf of one call's server, and waits for the
// answer: in memory, for as long as this process and the call live.
func (l *loop) elicit(ctx context.Context, c event.Call, e mcp.Elicitation) (res mcp.ElicitationResult, err error) {
	defer recovered(&err) // the goroutine is not ours
	v, err := l.ask(ctx, event.Interrupt{
		Kind: event.KindElicitation, Call: c, Message: e.Message, Mode: e.Mode, Schema: e.Schema, URL: e.URL,
	}, e.Done)
	if err != nil {
		return mcp.ElicitationResult{}, err
	}
	return mcp.ElicitationResult{Action: v.action(), Content: v.Content}, nil
}

// Answer gives a person's answer to what a run waits for, and returns when it is in the
// log. Only the run's owner may; to anybody else there is no such run. The first answer
// wins. Errors: *InvalidError, *ContentError, ErrUnknownInterrupt, ErrAnswered,
// ErrExpired, or the log's or ctx's.
func (a *Agent) Answer(ctx context.Context, by auth.Identity, run string, in Input) error {
	a.mu.Lock()
	r := a.active[run]
	a.mu.Unlock()
	if r == nil {
		return a.answeredBefore(ctx, by, run, in.ID)
	}
	if !by.Owns(r.caller) {
		return event.ErrNotFound
	}
	i := r.waits.find(in.ID)
	if i == nil {
		return ErrUnknownInterrupt
	}
	if err := i.ended(); err != nil {
		return err
	}
	if time.Now().UnixMilli() >= i.ExpiresAt {
		return ErrExpired
	}
	if err := a.checkInput(i.Interrupt, &in); err != nil {
		return err
	}
	if !i.settle(ErrAnswered) {
		return i.ended()
	}
	i.answer <- verdict{Input: in, by: by}
	a.Logger.InfoContext(ctx, "interrupt answered", "run_id", run, "interrupt_id", in.ID, "kind", i.Kind, "subject", by.Subject)
	select {
	case <-i.resolved:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// checkInput refuses an answer that the question does not allow.
func (a *Agent) checkInput(asked event.Interrupt, in *Input) error {
	if asked.Kind == event.KindApproval {
		return a.checkApproval(asked, in)
	}
	switch {
	case in.Approved != nil || in.Reason != "" || in.Args != nil:
		return &InvalidError{"/approved", "goes with an approval; an elicitation is answered with action"}
	case in.Action == mcp.Accept:
		err := mcp.Elicitation{Mode: asked.Mode, Schema: asked.Schema, URL: asked.URL}.Check(in.Content)
		if wrong, ok := errors.AsType[*mcp.ContentError](err); ok {
			return misfit("/content", wrong.Fields)
		}
		return err
	case in.Content != nil:
		return &InvalidError{"/content", "goes with the action accept only"}
	}
	return nil
}

// checkApproval also judges the arguments that a person wrote instead of the model's: by
// what the model's were judged by, and with the same coercion (S1.5).
func (a *Agent) checkApproval(asked event.Interrupt, in *Input) error {
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
		return misfit("/args", wrong.Fields)
	}
	in.Args = args
	return err
}

// misfit is what is wrong with the body's member at.
func misfit(at string, fields []mcp.ContentField) error {
	out := &ContentError{}
	for _, f := range fields {
		out.Fields = append(out.Fields, InvalidError{at + f.Pointer, f.Detail})
	}
	return out
}

// answeredBefore is what has become of an interrupt of a run that has ended, by the
// log: there is nothing else left of it.
func (a *Agent) answeredBefore(ctx context.Context, by auth.Identity, run, id string) error {
	r, err := a.Log.Run(ctx, run)
	if err == nil && !by.Owns(auth.Identity{Issuer: r.Owner.Issuer, Subject: r.Owner.Subject}) {
		return event.ErrNotFound
	}
	var expires int64
	for pos := int64(0); err == nil; {
		var page event.Page
		if page, err = a.Log.After(ctx, run, pos); err != nil {
			break
		}
		for _, e := range page.Events {
			pos = e.Seq
			asked, answered, until := aboutInterrupt(e.Body)
			switch {
			case asked == id:
				expires = until
			case answered == id && e.Time >= expires:
				return ErrExpired
			case answered == id:
				return ErrAnswered
			}
		}
		if page.Ended || len(page.Events) == 0 {
			return ErrUnknownInterrupt
		}
	}
	return err
}

// aboutInterrupt is the id of the question that an event asks, or answers.
func aboutInterrupt(b event.Body) (asked, answered string, expires int64) {
	switch b := b.(type) {
	case event.Elicitation:
		return b.InterruptID, "", b.ExpiresAt
	case event.ApprovalRequired:
		return b.InterruptID, "", b.ExpiresAt
	case event.ElicitationResolved:
		return "", b.InterruptID, 0
	case event.ApprovalResolved:
		return "", b.InterruptID, 0
	}
	return "", "", 0
}
