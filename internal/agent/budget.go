package agent

import (
	"context"
	"errors"
	"sync"

	"answerd/internal/event"
)

// budget counts what a run may still use. Seconds are not here: they are the
// deadline of the run's context.
type budget struct {
	mu            sync.Mutex // protects what follows: servers spend tokens while calls are taken
	calls, tokens limit
	sampled       event.Usage // by servers, not yet in the metadata
}

// limit is one bound. A max of 0 is none.
type limit struct {
	name      string
	used, max int64
	told      int64 // percent of the bound that readers were told of: 0, 80 or 100
}

func newBudget(b Budget) *budget {
	return &budget{
		calls:  limit{name: "tool_calls", max: int64(b.ToolCalls)},
		tokens: limit{name: "total_tokens", max: b.TotalTokens},
	}
}

// spent reports whether no further turn with tools may follow.
func (b *budget) spent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spentLocked()
}

func (b *budget) spentLocked() bool { return b.calls.reached() || b.tokens.reached() }

// takeCall counts one tool call, or refuses it.
func (b *budget) takeCall() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spentLocked() {
		return false
	}
	b.calls.used++
	return true
}

// spendTokens counts a model call and tells readers.
func (b *budget) spendTokens(ctx context.Context, out *event.Writer, u event.Usage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens.used += u.TotalTokens
	return b.tokens.report(ctx, out)
}

// reportCalls tells readers of the calls taken.
func (b *budget) reportCalls(ctx context.Context, out *event.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls.report(ctx, out)
}

// tokensFor is how many of the wanted tokens a server may have; ok is false if none.
func (b *budget) tokensFor(wanted int64) (limit int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.tokens.reached():
		return 0, false
	case b.tokens.max > 0:
		return min(wanted, b.tokens.max-b.tokens.used), true
	}
	return wanted, true
}

// spendSampled counts a model call on behalf of a server and tells readers.
func (b *budget) spendSampled(ctx context.Context, out *event.Writer, u event.Usage) error {
	b.mu.Lock()
	b.sampled.InputTokens += u.InputTokens
	b.sampled.OutputTokens += u.OutputTokens
	b.sampled.TotalTokens += u.TotalTokens
	b.mu.Unlock()
	return b.spendTokens(ctx, out, u)
}

// takeSampled is what servers have spent since it was asked last.
func (b *budget) takeSampled() event.Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.sampled
	b.sampled = event.Usage{}
	return u
}

func (l *limit) reached() bool { return l.max > 0 && l.used >= l.max }

// report appends a budget event once at 80 % of the bound and once at the bound.
func (l *limit) report(ctx context.Context, out *event.Writer) error {
	level := int64(0)
	switch {
	case l.max <= 0:
	case l.reached():
		level = 100
	case l.used*100 >= l.max*80:
		level = 80
	}
	if level <= l.told {
		return nil
	}
	err := out.Append(ctx, event.Budget{Limit: l.name, Used: l.used, Max: l.max})
	if errors.Is(err, event.ErrSuspended) {
		return nil // a server had the model say something; readers learn of it with the next use
	}
	l.told = level
	return err
}
