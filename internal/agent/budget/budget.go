// Package budget counts what a run uses and says what it may still use: calls, tokens, time,
// bytes of results and money.
//
//	var clock budget.Clock
//	ctx = clock.Start(ctx, limits.Seconds, out, guard)
//	defer clock.Stop()
//	b := budget.New(limits, maxTurns, price, &clock, closeChannel)
//	err := b.SpendTokens(ctx, out, usage) // after a model call
//	b.BeginTurn(len(calls))
//	limit, charged, changed := b.TryCall(0) // before each call
//	if limit := b.Spent(); limit != "" {
//		// the next turn sums up, or a person allows more
//	}
//
// Readers of the run learn of a limit from budget events, once at 80 % of it and once when it
// is reached. The methods of Budget and Clock may be called by any number of goroutines.
package budget

import (
	"context"
	"errors"
	"math"
	"sync"

	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// Limits bounds one run; a zero field means no limit. The run checks them before each call and
// after each turn, so the step that reaches a limit may exceed it, and so may the summing-up
// turn after it.
type Limits struct {
	ToolCalls    int     // calls that are made; refused ones don't count
	InputTokens  int64   // of all steps together, as the provider counts them
	OutputTokens int64   // likewise
	TotalTokens  int64   // likewise
	Seconds      float64 // from the start of the run
	ResultBytes  int64   // of tool results in the conversation; what goes beyond is cut
	Cost         float64 // in the operator's currency, by the model's prices
}

// Within returns the limits with every field lowered to that of limit.
func (l Limits) Within(limit Limits) Limits {
	return Limits{
		ToolCalls:    lowerLimit(l.ToolCalls, limit.ToolCalls),
		InputTokens:  lowerLimit(l.InputTokens, limit.InputTokens),
		OutputTokens: lowerLimit(l.OutputTokens, limit.OutputTokens),
		TotalTokens:  lowerLimit(l.TotalTokens, limit.TotalTokens),
		Seconds:      lowerLimit(l.Seconds, limit.Seconds),
		ResultBytes:  lowerLimit(l.ResultBytes, limit.ResultBytes),
		Cost:         lowerLimit(l.Cost, limit.Cost),
	}
}

// ByName returns the limits by the names that requests and events have for them; 0 means no limit.
func (l Limits) ByName() map[string]float64 {
	return map[string]float64{
		"tool_calls": float64(l.ToolCalls), "input_tokens": float64(l.InputTokens), "output_tokens": float64(l.OutputTokens),
		"total_tokens": float64(l.TotalTokens), "seconds": l.Seconds, "result_bytes": float64(l.ResultBytes), "cost": l.Cost,
	}
}

// lowerLimit returns the lower of two limits, where 0 means no limit.
func lowerLimit[N int | int64 | float64](a, b N) N {
	switch {
	case a <= 0:
		return b
	case b <= 0:
		return a
	}
	return min(a, b)
}

// Budget counts what a run has used of its Limits. Clock counts its seconds.
type Budget struct {
	price  *llm.Price // nil if unknown
	clock  *Clock
	notify func(changed chan struct{}) // closes changed, see New

	mu                   sync.Mutex // protects what follows: servers spend tokens while calls are charged
	turns, calls         counter
	input, output, total counter
	cost, bytes          counter
	seconds              float64       // the clock's limit; 0 is none
	sampled              event.Usage   // tokens that servers spent and the metadata does not have yet
	decided              []bool        // for each call of the turn: it was charged, or will not be made
	changed              chan struct{} // closed and made anew when one more call is decided
}

// counter counts towards one limit.
type counter struct {
	name      string
	used, max float64 // a max of 0 means no limit
	// reported is the level in percent that readers know of: 0, 80 or 100. It holds for the
	// limit reportedFor if the log already has events for a raised limit.
	reported    int
	reportedFor float64
}

// Status is how much of a limit is used.
type Status struct {
	Name      string
	Used, Max float64 // a Max of 0 means no limit
}

// New returns a Budget of which nothing is used. When a call has been decided, so that TryCall may decide about the
// next one, it calls notify with the channel that TryCall has returned. notify must close that channel.
func New(limits Limits, maxTurns int, price *llm.Price, clock *Clock, notify func(changed chan struct{})) *Budget {
	return &Budget{
		price:   price,
		clock:   clock,
		notify:  notify,
		turns:   counter{name: "max_turns", max: float64(maxTurns)},
		calls:   counter{name: "tool_calls", max: float64(limits.ToolCalls)},
		input:   counter{name: "input_tokens", max: float64(limits.InputTokens)},
		output:  counter{name: "output_tokens", max: float64(limits.OutputTokens)},
		total:   counter{name: "total_tokens", max: float64(limits.TotalTokens)},
		cost:    counter{name: "cost", max: limits.Cost},
		bytes:   counter{name: "result_bytes", max: float64(limits.ResultBytes)},
		seconds: limits.Seconds,
		changed: make(chan struct{}),
	}
}

// counters returns every counter; the seconds are the clock's.
func (b *Budget) counters() []*counter {
	return []*counter{&b.turns, &b.calls, &b.input, &b.output, &b.total, &b.cost, &b.bytes}
}

// counterLocked returns the counter with that name, or one without a limit if there is none.
func (b *Budget) counterLocked(name string) *counter {
	for _, c := range b.counters() {
		if c.name == name {
			return c
		}
	}
	return &counter{name: name}
}

// Spent returns the name of a limit after which no further turn with tools may follow, "" if
// none is reached.
func (b *Budget) Spent() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spentLocked()
}

// spentLocked does not look at turns: they have a finish reason of their own.
func (b *Budget) spentLocked() string {
	for _, c := range []*counter{&b.calls, &b.input, &b.output, &b.total, &b.cost, &b.bytes} {
		if c.isReached() {
			return c.name
		}
	}
	if errors.Is(context.Cause(b.clock.ToolContext()), ErrToolTimeUsed) { // otherwise the run has ended
		return "seconds"
	}
	return ""
}

// SpendTokens counts a model call and appends budget events where they are due.
func (b *Budget) SpendTokens(ctx context.Context, out *event.Writer, u event.Usage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countTokensLocked(u)
	return reportLimits(ctx, out, &b.input, &b.output, &b.total, &b.cost)
}

// countTokensLocked counts the tokens of a model call, and their cost if the model has a price.
func (b *Budget) countTokensLocked(u event.Usage) {
	b.input.used += float64(u.InputTokens)
	b.output.used += float64(u.OutputTokens)
	b.total.used += float64(u.TotalTokens)
	if cost := b.CostOf(u); cost != nil {
		b.cost.used += *cost
	}
}

// CostOf returns what tokens cost, rounded to 1e-12; nil if the price is unknown.
func (b *Budget) CostOf(u event.Usage) *float64 {
	return b.price.CostOf(u.InputTokens, u.OutputTokens)
}

// ChargeResult counts a result that goes into the conversation and returns as much of it as
// the limit allows. url is where the whole result can be read, "" if nowhere.
func (b *Budget) ChargeResult(text, url string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.bytes.remaining()
	b.bytes.used += min(float64(len(text)), left)
	if float64(len(text)) <= left {
		return text
	}
	cut, _ := content.TruncateText(text, int(left), url)
	return cut
}

// ChargeMedia counts an image or audio that goes into the conversation. It reports false, and
// counts nothing, if the limit does not allow it.
func (b *Budget) ChargeMedia(size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if float64(size) > b.bytes.remaining() {
		return false
	}
	b.bytes.used += float64(size)
	return true
}

// BeginTurn prepares for n calls of a turn.
func (b *Budget) BeginTurn(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decided = make([]bool, n)
}

// EndTurn counts a turn with calls and appends budget events for what it used besides tokens.
func (b *Budget) EndTurn(ctx context.Context, out *event.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turns.used++
	return reportLimits(ctx, out, &b.calls, &b.bytes, &b.turns)
}

// TryCall charges the turn's call i, or returns the limit that refuses it. If it does neither,
// an earlier call of the turn may still take what is left: try again when changed is closed.
//
// The calls of a turn run together, and each may wait for hooks and people before it is
// charged. Which of them the limit refuses must not depend on which is faster, so they are
// charged as if they were made one after the other, in call order. A call has to wait for
// those before it only while that matters: when less is left than they may take.
func (b *Budget) TryCall(i int) (limit string, charged bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	undecidedBefore := 0
	for _, decided := range b.decided[:i] {
		if !decided {
			undecidedBefore++
		}
	}
	limit = b.spentLocked()
	if limit == "" && b.calls.remaining() > float64(undecidedBefore) {
		b.calls.used++
		charged = true
		b.decideLocked(i)
	}
	return limit, charged, b.changed
}

// SkipCall says that the turn's call i uses nothing from now on.
func (b *Budget) SkipCall(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decideLocked(i)
}

// decideLocked notes that call i of the turn was charged or uses nothing, and wakes the calls that wait for that.
func (b *Budget) decideLocked(i int) {
	if !b.decided[i] {
		b.decided[i] = true
		b.notify(b.changed)
		b.changed = make(chan struct{})
	}
}

// SamplingTokens returns how many of the wanted tokens a server's own model call may have; ok
// is false if none.
func (b *Budget) SamplingTokens(wanted int64) (limit int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range []*counter{&b.input, &b.output, &b.total, &b.cost} {
		if c.isReached() {
			return 0, false
		}
	}
	return int64(min(float64(wanted), b.output.remaining(), b.total.remaining())), true
}

// SpendSampled counts a model call on behalf of a server and appends budget events where they
// are due.
func (b *Budget) SpendSampled(ctx context.Context, out *event.Writer, u event.Usage) error {
	b.mu.Lock()
	b.sampled.InputTokens += u.InputTokens
	b.sampled.OutputTokens += u.OutputTokens
	b.sampled.TotalTokens += u.TotalTokens
	b.mu.Unlock()
	return b.SpendTokens(ctx, out, u)
}

// TakeSampled returns what servers have spent since the last TakeSampled.
func (b *Budget) TakeSampled() event.Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.sampled
	b.sampled = event.Usage{}
	return u
}

// Remaining returns the limits of a child run: what remains of this budget, divided by share, the number
// of children that use it at the same time. calls is false if a limited number of calls is used up.
func (b *Budget) Remaining(share int) (limits Limits, calls bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	part := func(c *counter) float64 {
		if c.max <= 0 {
			return 0
		}
		return max(c.remaining()/float64(share), math.SmallestNonzeroFloat64)
	}
	whole := func(c *counter) int64 { return int64(math.Ceil(part(c))) }
	calls = b.calls.max <= 0 || b.calls.remaining() >= float64(share)
	limits = Limits{
		ToolCalls: int(part(&b.calls)), InputTokens: whole(&b.input), OutputTokens: whole(&b.output),
		TotalTokens: whole(&b.total), ResultBytes: whole(&b.bytes), Cost: part(&b.cost),
	}
	if b.seconds > 0 {
		// The child must end before the time for tools does.
		reserve := min(b.seconds/5, maxReserve.Seconds())
		limits.Seconds = max(b.seconds-reserve-b.clock.Elapsed().Seconds(), 0.001)
	}
	return limits, calls
}

// SpendChild counts what a child run has used and appends budget events where they are due.
func (b *Budget) SpendChild(ctx context.Context, out *event.Writer, s event.Spent) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countChildLocked(s)
	return reportLimits(ctx, out, &b.input, &b.output, &b.total, &b.cost, &b.calls)
}

// RestoreChild counts what a child run has used in another process.
func (b *Budget) RestoreChild(s event.Spent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countChildLocked(s)
}

// countChildLocked counts what a child run has used.
func (b *Budget) countChildLocked(s event.Spent) {
	b.input.used += float64(s.Usage.InputTokens)
	b.output.used += float64(s.Usage.OutputTokens)
	b.total.used += float64(s.Usage.TotalTokens)
	b.calls.used += float64(s.Calls)
	if s.Cost != nil {
		b.cost.used += *s.Cost
	}
}

// Status returns how much is used of the limit with that name.
func (b *Budget) Status(name string) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name == "seconds" {
		return Status{Name: name, Used: b.clock.Elapsed().Seconds(), Max: b.seconds}
	}
	c := b.counterLocked(name)
	return Status{Name: name, Used: c.used, Max: c.max}
}

// Raise sets a higher limit. Readers are told again when it is near, unless the log already
// has that. Of the seconds it only notes the limit; Clock.Raise applies it.
func (b *Budget) Raise(name string, limit float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name == "seconds" {
		b.seconds = limit
		return
	}
	c := b.counterLocked(name)
	c.max = limit
	if limit > c.reportedFor {
		c.reported, c.reportedFor = 0, limit
	}
}

// Restore sets what the log of the run says: the level in percent that readers know of, by
// limit, and what people raised limits to. Used amounts are restored as the run is replayed.
func (b *Budget) Restore(reported map[string]int, raised map[string]float64) {
	for _, c := range b.counters() {
		c.reported, c.reportedFor = reported[c.name], raised[c.name]
	}
}

// RestoreCall decides the turn's call i as the log says, which has recorded whether it was charged.
func (b *Budget) RestoreCall(i int, charged bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if charged {
		b.calls.used++
	}
	b.decideLocked(i)
}

// RestoreSampled counts what servers spent in a replayed step.
func (b *Budget) RestoreSampled(u event.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countTokensLocked(u)
	b.sampled = u
}

func (c *counter) isReached() bool { return c.max > 0 && c.used >= c.max }

// remaining returns what may still be used.
func (c *counter) remaining() float64 {
	if c.max <= 0 {
		return math.Inf(1)
	}
	return max(c.max-c.used, 0)
}

// reportLimits appends a budget event for each counter, once at 80 % of its limit and once
// when the limit is reached.
func reportLimits(ctx context.Context, out *event.Writer, counters ...*counter) error {
	for _, c := range counters {
		level := 0
		switch {
		case c.max <= 0:
		case c.isReached():
			level = 100
		case c.used*100 >= c.max*80:
			level = 80
		}
		if level <= c.reported || c.max < c.reportedFor {
			continue
		}
		// Money is counted in fractions that are not exact in binary, so it is rounded.
		used := math.Round(c.used*1e6) / 1e6
		err := out.Append(ctx, event.Budget{Limit: c.name, Used: used, Max: c.max})
		if errors.Is(err, event.ErrSuspended) {
			// A server asked the model while the run waits for a person. Readers learn of it
			// with the next use.
			return nil
		}
		c.reported = level
		if err != nil {
			return err
		}
	}
	return nil
}
