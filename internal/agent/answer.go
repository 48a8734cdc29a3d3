package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// answerWait bounds how long Answer waits for the run to go on. Its executor may just
// have died, and another one has yet to find that out.
const answerWait = 10 * time.Second

// Answer gives a person's answers to what a run waits for, all of them or none, wherever
// the run is executed, and returns when they are in the log; usually the run has gone on
// by then. Only the run's owner may; to anybody else there is no such run. The first
// answer to a question wins: one that comes at the same moment may leave those after it
// ungiven. Errors: *InvalidError, *ContentError, ErrUnknownInterrupt, ErrAnswered,
// ErrExpired, or the log's or ctx's.
func (a *Agent) Answer(ctx context.Context, by auth.Identity, run string, answers ...Input) error {
	r, err := a.Log.Run(ctx, run)
	if err == nil && !by.Owns(auth.Identity{Issuer: r.Owner.Issuer, Subject: r.Owner.Subject}) {
		return event.ErrNotFound
	}
	if err != nil {
		return err
	}
	asked := make([]event.Interrupt, len(answers))
	answers = slices.Clone(answers) // checking completes them
	for n := range answers {
		if asked[n], err = a.question(ctx, r, answers[n].ID); err != nil {
			return err
		}
		if time.Now().UnixMilli() >= asked[n].ExpiresAt {
			return ErrExpired
		}
		if err := a.checkInput(asked[n], &answers[n]); err != nil {
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
	return a.awaitAnswered(ctx, r, asked)
}

// awaitAnswered waits a while for the events that say what became of the answers.
func (a *Agent) awaitAnswered(ctx context.Context, r event.Run, asked []event.Interrupt) error {
	open := make(map[string]bool, len(asked))
	for _, i := range asked {
		open[i.ID] = true
	}
	over := time.NewTimer(answerWait)
	defer over.Stop()
	for pos := r.Last.Seq; ; {
		page, err := a.Log.After(ctx, r.ID, pos)
		if err != nil {
			return err
		}
		for _, e := range page.Events {
			_, answered := aboutInterrupt(e)
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

// question is the record of what a run asks, by its log: the run may be executed
// elsewhere, or by nobody while it waits. The error says why it takes no answer.
func (a *Agent) question(ctx context.Context, r event.Run, id string) (event.Interrupt, error) {
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
			asked, answered := aboutInterrupt(e)
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

// aboutInterrupt is the question that an event asks, or the id of the one that it
// answers.
func aboutInterrupt(e event.Event) (asked event.Interrupt, answered string) {
	switch b := e.Body.(type) {
	case event.Elicitation:
		return event.Interrupt{
			ID: b.InterruptID, Kind: event.KindElicitation, Call: b.Call, Message: b.Message, Mode: b.Mode, Schema: b.Schema, URL: b.URL,
			HeldOpen: b.HeldOpen, CreatedAt: e.Time, ExpiresAt: b.ExpiresAt,
		}, ""
	case event.ApprovalRequired:
		return event.Interrupt{
			ID: b.InterruptID, Kind: event.KindApproval, Call: b.Call, Message: b.Message, Args: b.Args, ArgsSHA256: digest(b.Args),
			ToolVersion: b.ToolVersion, CreatedAt: e.Time, ExpiresAt: b.ExpiresAt,
		}, ""
	case event.BudgetRequired:
		return event.Interrupt{
			ID: b.InterruptID, Kind: event.KindBudget, Message: b.Message, Limit: b.Limit, Used: b.Used, Max: b.Max, CreatedAt: e.Time, ExpiresAt: b.ExpiresAt,
		}, ""
	case event.ElicitationResolved:
		return asked, b.InterruptID
	case event.ApprovalResolved:
		return asked, b.InterruptID
	case event.BudgetResolved:
		return asked, b.InterruptID
	}
	return asked, ""
}

// checkInput refuses an answer that the question does not allow.
func (a *Agent) checkInput(asked event.Interrupt, in *Input) error {
	switch asked.Kind {
	case event.KindApproval:
		return a.checkApproval(asked, in)
	case event.KindBudget:
		return a.checkRaise(asked, *in)
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
	case in.Action != mcp.Decline && in.Action != mcp.Cancel:
		return &InvalidError{"/action", "must be accept, decline or cancel"}
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
