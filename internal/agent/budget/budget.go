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

// Limits bounds one run; a zero field means no limit. The run checks the limits before each call and
// after each turn. So the turn that reaches a limit may exceed it, and the last turn, which sums up, too.
type Limits struct {
	ToolCalls    int     // calls that are made; refused calls do not count
	InputTokens  int64   // of all model calls together, as the provider counts them
	OutputTokens int64   // of all model calls together, as the provider counts them
	TotalTokens  int64   // of all model calls together, as the provider counts them
	Seconds      float64 // from the start of the run, without the time in which it waits for a person
	ResultBytes  int64   // of tool results in the conversation; results are cut to it
	Cost         float64 // in the operator's currency, by the model's prices
}

// Within returns the limits with every field lowered to that of limit, as lowerLimit does.
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

// Budget counts what a run has used of its Limits. Its Clock counts the seconds.
type Budget struct {
	price  *llm.Price // see SetPrice
	clock  *Clock
	notify func(changed chan struct{}) // closes changed, see New

	mu                   sync.Mutex // guards the fields below: servers may spend tokens while calls are charged
	turns, calls         counter
	input, output, total counter // tokens
	cost, bytes          counter
	seconds              float64       // the clock's limit; 0 means no limit
	sampled              event.Usage   // tokens of servers' model calls since the last TakeSampled
	decided              []bool        // for each call of the turn: it was charged, or will not be made
	changed              chan struct{} // closed when one more call is decided, and replaced by a new channel
}

// counter counts towards one limit.
type counter struct {
	name      string  // of the limit, in requests and events
	used, max float64 // a max of 0 means no limit
	// reported is the level in percent of the last budget event: 0, 80 or 100. If reportedFor is not 0, the event was
	// for this limit, to which a person has raised the limit before the run was taken over: until Raise has
	// raised max that far again, nothing is reported.
	reported    int
	reportedFor float64
}

// Status is how much of a limit is used.
type Status struct {
	Name      string
	Used, Max float64 // a Max of 0 means no limit
}

// New returns a Budget of which nothing is used. The seconds of limits are only for Remaining and Status: the caller
// starts clock with them. price is nil if it is unknown; then the model calls of the run cost nothing. Whenever a call
// of a turn is decided, the Budget calls notify with the channel that TryCall has returned, so that waiting calls try
// again. notify must close that channel and must not call the Budget.
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

// SetPrice sets the price of the model that answers; nil if it is unknown. It must not be called while calls are in
// flight.
func (b *Budget) SetPrice(price *llm.Price) { b.price = price }

// counters returns all counters. The seconds are not among them, because the clock counts these.
func (b *Budget) counters() []*counter {
	return []*counter{&b.turns, &b.calls, &b.input, &b.output, &b.total, &b.cost, &b.bytes}
}

// counterLocked returns the counter with that name. If there is none, it returns a new counter without a limit.
func (b *Budget) counterLocked(name string) *counter {
	for _, c := range b.counters() {
		if c.name == name {
			return c
		}
	}
	return &counter{name: name}
}

// Spent returns the name of a limit that is reached, after which no further turn with tools may follow; "" if no limit
// is reached. It does not consider max_turns, which has a finish reason of its own.
func (b *Budget) Spent() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spentLocked()
}

// spentLocked does what Spent describes. The caller holds b.mu.
func (b *Budget) spentLocked() string {
	for _, c := range []*counter{&b.calls, &b.input, &b.output, &b.total, &b.cost, &b.bytes} {
		if c.isReached() {
			return c.name
		}
	}
	if errors.Is(context.Cause(b.clock.ToolContext()), ErrToolTimeUsed) { // any other cause ends the whole run
		return "seconds"
	}
	return ""
}

// SpendTokens counts the tokens and the cost of a model call, and appends budget events as reportLimits does.
func (b *Budget) SpendTokens(ctx context.Context, out *event.Writer, used event.Usage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countTokensLocked(used, b.CostOf(used))
	return reportLimits(ctx, out, &b.input, &b.output, &b.total, &b.cost)
}

// countTokensLocked counts tokens and their cost; nil if the cost is unknown.
func (b *Budget) countTokensLocked(used event.Usage, cost *float64) {
	b.input.used += float64(used.InputTokens)
	b.output.used += float64(used.OutputTokens)
	b.total.used += float64(used.TotalTokens)
	if cost != nil {
		b.cost.used += *cost
	}
}

// CostOf returns what tokens cost, rounded to 1e-12; nil if the price is unknown.
func (b *Budget) CostOf(used event.Usage) *float64 {
	return b.price.CostOf(used.InputTokens, used.OutputTokens)
}

// ChargeResult counts a result that goes into the conversation, and returns the text that the limit of result_bytes
// allows: all of text, or a part with a note about the rest. url is where the whole result can be read, for the note;
// "" if it cannot be read.
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

// BeginTurn begins a turn with that many calls, of which TryCall or SkipCall has to decide each.
func (b *Budget) BeginTurn(calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decided = make([]bool, calls)
}

// EndTurn counts a turn with calls, and appends budget events about calls, result bytes and turns as reportLimits does.
func (b *Budget) EndTurn(ctx context.Context, out *event.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turns.used++
	return reportLimits(ctx, out, &b.calls, &b.bytes, &b.turns)
}

// TryCall decides whether the call of the turn with that index may be made. It charges the call and returns charged, or
// returns the name of the limit that refuses the call. If it does neither, earlier calls of the turn may still take
// what is left: call TryCall again when changed is closed. It must not be called for a call that was charged.
//
// The calls of a turn run at the same time, and which of them a limit refuses must not depend on which is faster. So
// they are charged in call order. A call waits for the calls before it only if the limit does not allow them all.
func (b *Budget) TryCall(index int) (limit string, charged bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	undecidedBefore := 0
	for _, decided := range b.decided[:index] {
		if !decided {
			undecidedBefore++
		}
	}
	limit = b.spentLocked()
	if limit == "" && b.calls.remaining() > float64(undecidedBefore) {
		b.calls.used++
		charged = true
		b.decideLocked(index)
	}
	return limit, charged, b.changed
}

// SkipCall decides that the call of the turn with that index will not be charged, so that later calls do not wait for
// it. It does nothing if the call was charged.
func (b *Budget) SkipCall(index int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decideLocked(index)
}

// decideLocked marks the call of the turn with that index as decided, and wakes the calls that wait for its decision.
// It does nothing if the call was decided before.
func (b *Budget) decideLocked(index int) {
	if !b.decided[index] {
		b.decided[index] = true
		b.notify(b.changed)
		b.changed = make(chan struct{})
	}
}

// SamplingTokens returns how many of the wanted output tokens a model call on behalf of a server may have. ok is false
// if a limit of tokens or cost is reached, so that the call must not be made.
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

// SpendSampled counts a model call on behalf of a server as SpendTokens does, and also for TakeSampled.
func (b *Budget) SpendSampled(ctx context.Context, out *event.Writer, used event.Usage) error {
	b.mu.Lock()
	b.sampled.InputTokens += used.InputTokens
	b.sampled.OutputTokens += used.OutputTokens
	b.sampled.TotalTokens += used.TotalTokens
	b.mu.Unlock()
	return b.SpendTokens(ctx, out, used)
}

// TakeSampled returns the tokens of model calls on behalf of servers since the last TakeSampled.
func (b *Budget) TakeSampled() event.Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.sampled
	b.sampled = event.Usage{}
	return u
}

// Remaining returns the limits of a child run: what remains of this budget, divided by share, the number of children
// that run at the same time. Seconds are not divided. In place of a limit that is used up it returns the smallest
// limit, since 0 means no limit. For calls there is no such limit: hasCalls is false if fewer calls remain than there
// are children, and then the child must not make calls.
func (b *Budget) Remaining(share int) (limits Limits, hasCalls bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	part := func(c *counter) float64 {
		if c.max <= 0 {
			return 0 // no limit
		}
		return max(c.remaining()/float64(share), math.SmallestNonzeroFloat64)
	}
	whole := func(c *counter) int64 { return int64(math.Ceil(part(c))) }
	hasCalls = b.calls.max <= 0 || b.calls.remaining() >= float64(share)
	limits = Limits{
		ToolCalls: int(part(&b.calls)), InputTokens: whole(&b.input), OutputTokens: whole(&b.output),
		TotalTokens: whole(&b.total), ResultBytes: whole(&b.bytes), Cost: part(&b.cost),
	}
	if b.seconds > 0 {
		// The child must end before the time for tools is over.
		reserve := min(b.seconds/5, maxReserve.Seconds())
		limits.Seconds = max(b.seconds-reserve-b.clock.Elapsed().Seconds(), 0.001)
	}
	return limits, hasCalls
}

// SpendChild counts what a child run has used, and appends budget events as reportLimits does.
func (b *Budget) SpendChild(ctx context.Context, out *event.Writer, spent event.Spent) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countChildLocked(spent)
	return reportLimits(ctx, out, &b.input, &b.output, &b.total, &b.cost, &b.calls)
}

// RestoreChild counts what a child run has used in another process. It appends no events, because the log has them.
func (b *Budget) RestoreChild(spent event.Spent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countChildLocked(spent)
}

// countChildLocked counts what a child run has used.
func (b *Budget) countChildLocked(spent event.Spent) {
	b.countTokensLocked(spent.Usage, spent.Cost)
	b.calls.used += float64(spent.Calls)
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

// Raise sets a higher limit. Budget events are due again for it, unless Restore says that the log already
// has them. For "seconds" it only stores the limit; the caller must also call Clock.Raise.
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

// Restore sets what the log of a run says, by the names of limits: the level in percent of the last budget event, and
// the limit to which people raised it. It is called before the run is replayed, which restores the amounts used, and
// before any other goroutine uses b.
func (b *Budget) Restore(reported map[string]int, raised map[string]float64) {
	for _, c := range b.counters() {
		c.reported, c.reportedFor = reported[c.name], raised[c.name]
	}
}

// RestoreCall decides the call with that index of a replayed turn: charged is what the log says.
func (b *Budget) RestoreCall(index int, charged bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if charged {
		b.calls.used++
	}
	b.decideLocked(index)
}

// RestoreSampled counts the tokens of model calls on behalf of servers in a replayed step, and stores them for
// TakeSampled in place of what was there.
func (b *Budget) RestoreSampled(used event.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countTokensLocked(used, b.CostOf(used))
	b.sampled = used
}

// isReached reports whether the limit is used up; false without a limit.
func (c *counter) isReached() bool { return c.max > 0 && c.used >= c.max }

// remaining returns how much of the limit is left, at least 0; infinity without a limit.
func (c *counter) remaining() float64 {
	if c.max <= 0 {
		return math.Inf(1)
	}
	return max(c.max-c.used, 0)
}

// reportLimits appends a budget event for each counter that has come to 80 % or 100 % of its limit since it was last
// reported. While the run is suspended it appends nothing and returns nil; the events follow at the next use. The
// caller holds Budget.mu.
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
			return nil // a server asked the model while the run waits for a person
		}
		c.reported = level
		if err != nil {
			return err
		}
	}
	return nil
}
