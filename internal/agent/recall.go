package agent

import (
	"context"
	"errors"

	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// remember makes the loop ready to go through the past of its run.
func (l *loop) remember() {
	p := l.past
	if p == nil {
		return
	}
	l.parts = p.parts
	for id := range p.calls {
		l.callIDs[id] = true
	}
	l.window.told = p.told["context_tokens"] > 0
	l.budget.remember(p.told, p.raised)
}

// step is the step of that number, from 1, if it ended; nil else.
func (p *past) step(n int) *pastStep {
	if p == nil || n > len(p.steps) || !p.steps[n-1].ended {
		return nil
	}
	return p.steps[n-1]
}

// recall is think for a step that the log has.
func (l *loop) recall(s *pastStep, tools []llm.Tool) reply {
	l.squeeze(tools)
	l.step++
	l.said.Reset()
	l.said.WriteString(s.text)
	l.meta.Usage.InputTokens += s.usage.InputTokens
	l.meta.Usage.OutputTokens += s.usage.OutputTokens
	l.meta.Usage.TotalTokens += s.usage.TotalTokens
	return s.reply
}

// beginStep opens the step that comes next, or again.
func (l *loop) beginStep(ctx context.Context) error {
	if l.past != nil && l.step == len(l.past.steps) {
		return l.run.out.Append(ctx, event.StepReset{Step: l.step, Reason: "takeover"})
	}
	return l.run.out.Append(ctx, event.StepStart{Step: l.step})
}

// recallCalls takes the endings of calls that the log has, and what its budget knows of
// the others. The calls without an ending have yet to be made, or to be given up.
func (l *loop) recallCalls(ctx context.Context, calls []*call, endings []ending) (going []*call) {
	l.budget.beginTurn(len(calls))
	for i, c := range calls {
		known := l.past.known(c.CallID)
		if known == nil {
			going = append(going, c)
			continue
		}
		worked, isResult := known.end.(event.ToolResult)
		own := l.search != nil && c.Tool == l.search.tool.Name
		if known.end != nil || known.sent {
			l.budget.recallCall(i, known.sent || own && isResult)
		}
		if known.end == nil {
			going = append(going, c)
			continue
		}
		endings[i] = l.recallEnding(ctx, known)
		switch args, edited := known.edited(); {
		case isResult:
			c.args, c.edited = worked.Args, edited
		case edited:
			c.args, c.edited = args, true
		}
		if own {
			c.found = foundIn(worked)
		}
	}
	if s := l.past.step(l.step); s != nil {
		l.budget.recallSampled(s.sampled)
	}
	return going
}

// recallEnding is how a call ended, as far as the log still has it.
func (l *loop) recallEnding(ctx context.Context, c *pastCall) ending {
	end := ending{where: placeOf(l.run.ID, c.CallID)}
	if failed, ok := c.end.(event.ToolError); ok {
		end.failed = &failed
		if failed.Truncated != nil && failed.Truncated.URL == "" {
			end.where = ""
		}
		return end
	}
	worked := c.end.(event.ToolResult)
	end.worked = &worked
	end.result = &content.Result{Content: worked.Content, Structured: worked.Structured}
	if worked.Truncated == nil {
		return end
	}
	end.where = worked.Truncated.URL
	if whole, err := l.agent.Result(ctx, l.run.ID, c.CallID); err == nil {
		end.result = &content.Result{Content: whole.Content, Structured: whole.Structured}
	} else if end.where != "" {
		l.agent.Logger.WarnContext(ctx, "a result is no longer kept whole", "run_id", l.run.ID, "call_id", c.CallID, "error", err)
	}
	return end
}

// askedBefore is the question that rec asks as it was asked before the run came here: i
// is one that is open still, v what became of one that is not. Both are nil if nobody was
// asked, or of another call than this has become.
func (l *loop) askedBefore(ctx context.Context, rec event.Interrupt) (i *interrupt, v *verdict, _ error) {
	if rec.Kind == event.KindBudget {
		i, v = l.past.limitAsked(l.step, rec.Limit)
		return i, v, nil
	}
	c := l.past.known(rec.CallID)
	if c == nil || rec.Kind != event.KindApproval || c.approval == nil {
		return nil, nil, nil
	}
	if c.approval.ArgsSHA256 != rec.ArgsSHA256 {
		return nil, nil, l.withdraw(ctx, c)
	}
	if c.verdict != nil {
		return nil, c.verdict, nil
	}
	i, c.approval = newInterrupt(*c.approval, nil), nil
	return i, nil, nil
}

// withdraw closes the questions of a call that nobody waits for any more.
func (l *loop) withdraw(ctx context.Context, c *pastCall) error {
	if c == nil {
		return nil
	}
	open := c.forms
	if c.forms = nil; c.approval != nil && c.verdict == nil {
		open = append(open, *c.approval)
		c.approval = nil
	}
	ctx = context.WithoutCancel(ctx)
	for _, rec := range open {
		// So that nobody is told that his answer was taken.
		if err := l.agent.Log.AddInput(ctx, l.run.ID, rec.ID, closedInput); err != nil && !errors.Is(err, event.ErrDuplicateInput) {
			return err
		}
		if err := l.run.out.Append(ctx, newInterrupt(rec, nil).resolution(verdict{why: errWithdrawn})); err != nil {
			return err
		}
	}
	return nil
}
