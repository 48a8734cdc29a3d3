package agent

import (
	"context"

	"answerd/internal/event"
)

// budget counts what a run may still use. Seconds are not here: they are the
// deadline of the run's context.
type budget struct {
	calls, tokens limit
}

// limit is one bound. A max of 0 is none.
type limit struct {
	name      string
	used, max int64
	told      int64 // percent of the bound that readers were told of: 0, 80 or 100
}

func newBudget(b Budget) budget {
	return budget{
		calls:  limit{name: "tool_calls", max: int64(b.ToolCalls)},
		tokens: limit{name: "total_tokens", max: b.TotalTokens},
	}
}

// spent reports whether no further turn with tools may follow.
func (b *budget) spent() bool { return b.calls.reached() || b.tokens.reached() }

// takeCall counts one tool call, or refuses it.
func (b *budget) takeCall() bool {
	if b.spent() {
		return false
	}
	b.calls.used++
	return true
}

// spendTokens counts a model call and tells readers.
func (b *budget) spendTokens(ctx context.Context, out *event.Writer, u event.Usage) error {
	b.tokens.used += u.TotalTokens
	return b.tokens.report(ctx, out)
}

// reportCalls tells readers of the calls taken.
func (b *budget) reportCalls(ctx context.Context, out *event.Writer) error {
	return b.calls.report(ctx, out)
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
	l.told = level
	return out.Append(ctx, event.Budget{Limit: l.name, Used: l.used, Max: l.max})
}
