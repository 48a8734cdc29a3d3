package agent

import (
	"context"
	"errors"
	"math"
	"sync"

	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// Budget bounds one run; a zero field is no bound. What is used is looked at before
// each call and after each turn, so that the step which reaches a bound may go beyond
// it, and so may the summing-up turn after it.
type Budget struct {
	ToolCalls    int     // calls that are made; refused ones don't count
	InputTokens  int64   // of all steps together, as the provider counts them
	OutputTokens int64   // likewise
	TotalTokens  int64   // likewise
	Seconds      float64 // from the start of the run
	ResultBytes  int64   // of tool results in the conversation; what goes beyond is cut
	Cost         float64 // in the operator's currency, by the model's prices
}

// within is b where it asks for no more than limit allows, and limit where it does.
func (b Budget) within(limit Budget) Budget {
	return Budget{
		ToolCalls:    lower(b.ToolCalls, limit.ToolCalls),
		InputTokens:  lower(b.InputTokens, limit.InputTokens),
		OutputTokens: lower(b.OutputTokens, limit.OutputTokens),
		TotalTokens:  lower(b.TotalTokens, limit.TotalTokens),
		Seconds:      lower(b.Seconds, limit.Seconds),
		ResultBytes:  lower(b.ResultBytes, limit.ResultBytes),
		Cost:         lower(b.Cost, limit.Cost),
	}
}

// checkCost refuses a limit of money on a model whose price nobody knows: it would
// never be reached.
func (a *Agent) checkCost(r Request) error {
	switch {
	case a.Profiles[r.Model].Price != nil:
		return nil
	case r.Budget.Cost > 0:
		return &InvalidError{"/budget/cost", "no price is configured for this model"}
	case a.Budget.Cost > 0:
		return &InvalidError{"/model", "no price is configured for this model, and the cost of every run is limited"}
	}
	return nil
}

// lower is the lower of two bounds, where 0 is none.
func lower[N int | int64 | float64](a, b N) N {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// budget counts what a run may still use. Its seconds are the clock's.
type budget struct {
	price *llm.Price // nil is unknown
	clock *clock
	waits *waits

	mu                   sync.Mutex // protects what follows: servers spend tokens while calls are taken
	turns, calls         limit
	input, output, total limit
	cost, bytes          limit
	seconds              float64       // that the clock has; 0 is no limit
	sampled              event.Usage   // by servers, not yet in the metadata
	settled              []bool        // of the turn's calls: it was taken, or will not be made
	moved                chan struct{} // closed, and made anew, when one more is settled
}

// limit is one bound. A max of 0 is none.
type limit struct {
	name      string
	used, max float64
	told      int     // percent of the bound that readers were told of: 0, 80 or 100
	toldOf    float64 // the raised bound of which that is true; 0 if it was not raised
}

func newBudget(r Request, price *llm.Price, c *clock, w *waits) *budget {
	return &budget{
		price:  price,
		clock:  c,
		waits:  w,
		turns:  limit{name: "max_turns", max: float64(r.MaxTurns)},
		calls:  limit{name: "tool_calls", max: float64(r.Budget.ToolCalls)},
		input:  limit{name: "input_tokens", max: float64(r.Budget.InputTokens)},
		output: limit{name: "output_tokens", max: float64(r.Budget.OutputTokens)},
		total:  limit{name: "total_tokens", max: float64(r.Budget.TotalTokens)},
		cost:   limit{name: "cost", max: r.Budget.Cost},
		bytes:  limit{name: "result_bytes", max: float64(r.Budget.ResultBytes)},
		moved:  make(chan struct{}),

		seconds: r.Budget.Seconds,
	}
}

// spent is the name of a limit after which no further turn with tools may follow, "" if
// none is reached.
func (b *budget) spent() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spentLocked()
}

// spentLocked is the name of a limit that is reached, "" if none is. Turns are no part
// of it: they have a finish reason of their own.
func (b *budget) spentLocked() string {
	for _, l := range []*limit{&b.calls, &b.input, &b.output, &b.total, &b.cost, &b.bytes} {
		if l.reached() {
			return l.name
		}
	}
	if b.clock.tools.Err() != nil {
		return "seconds"
	}
	return ""
}

// remember says what readers know of the limits already, in percent, and to what these
// were raised.
func (b *budget) remember(told map[string]int, raised map[string]float64) {
	for _, l := range b.limits() {
		l.told, l.toldOf = told[l.name], raised[l.name]
	}
}

func (b *budget) limits() []*limit {
	return []*limit{&b.turns, &b.calls, &b.input, &b.output, &b.total, &b.cost, &b.bytes}
}

// spendTokens counts a model call and tells readers.
func (b *budget) spendTokens(ctx context.Context, out *event.Writer, u event.Usage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countLocked(u)
	return report(ctx, out, &b.input, &b.output, &b.total, &b.cost)
}

func (b *budget) countLocked(u event.Usage) {
	b.input.used += float64(u.InputTokens)
	b.output.used += float64(u.OutputTokens)
	b.total.used += float64(u.TotalTokens)
	if cost := b.costOf(u); cost != nil {
		b.cost.used += *cost
	}
}

// costOf is what tokens cost, to a millionth of a millionth; nil where nobody knows.
func (b *budget) costOf(u event.Usage) *float64 {
	if b.price == nil {
		return nil
	}
	// Prices are per million. What is left of them beyond that has no end in binary.
	cost := math.Round(float64(u.InputTokens)*b.price.Input*1e6+float64(u.OutputTokens)*b.price.Output*1e6) / 1e12
	return &cost
}

// takeResult counts a result that goes into the conversation, and returns as much of
// it as may. where is the place of the whole, if it has one.
func (b *budget) takeResult(text, where string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.bytes.left()
	b.bytes.used += min(float64(len(text)), left)
	if float64(len(text)) <= left {
		return text
	}
	cut, _ := content.TruncateText(text, int(left), where)
	return cut
}

// takeMedia counts a picture or sound that goes into the conversation, or refuses it.
func (b *budget) takeMedia(size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if float64(size) > b.bytes.left() {
		return false
	}
	b.bytes.used += float64(size)
	return true
}

// endTurn counts a turn with calls, and tells readers of what it used besides tokens.
func (b *budget) endTurn(ctx context.Context, out *event.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turns.used++
	return report(ctx, out, &b.calls, &b.bytes, &b.turns)
}

// tokensFor is how many of the wanted tokens a server may have; ok is false if none.
func (b *budget) tokensFor(wanted int64) (limit int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.input.reached() || b.output.reached() || b.total.reached() || b.cost.reached() {
		return 0, false
	}
	return int64(min(float64(wanted), b.output.left(), b.total.left())), true
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

// recallSampled counts what servers spent before the run came here.
func (b *budget) recallSampled(u event.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countLocked(u)
	b.sampled = u
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

// left is what may still be used.
func (l *limit) left() float64 {
	if l.max <= 0 {
		return math.Inf(1)
	}
	return max(l.max-l.used, 0)
}

// report appends a budget event for each limit, once at 80 % of it and once at the
// limit.
func report(ctx context.Context, out *event.Writer, limits ...*limit) error {
	for _, l := range limits {
		level := 0
		switch {
		case l.max <= 0:
		case l.reached():
			level = 100
		case l.used*100 >= l.max*80:
			level = 80
		}
		if level <= l.told || l.max < l.toldOf {
			continue
		}
		// To a millionth: money is counted in fractions that have no end in binary.
		used := math.Round(l.used*1e6) / 1e6
		err := out.Append(ctx, event.Budget{Limit: l.name, Used: used, Max: l.max})
		if errors.Is(err, event.ErrSuspended) {
			return nil // a server had the model say something; readers learn of it with the next use
		}
		if l.told = level; err != nil {
			return err
		}
	}
	return nil
}
