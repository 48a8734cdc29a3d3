// Package budget counts what a run uses, and what it may still use: calls, tokens, time, bytes of results and money.
//
//	var clock budget.Clock
//	ctx = clock.Start(ctx, limits.Seconds, out, guard)
//	defer clock.Stop()
//	b := budget.New(limits, maxTurns, price, &clock, closeChannel)
//	err := b.SpendTokens(ctx, out, usage) // after a model call
//	b.BeginTurn(len(calls))
//	limit, charged, changed := b.TryCall(0) // before each call
//	if limit := b.ReachedLimit(); limit != "" {
//		// the next turn sums up, or a person allows more
//	}
//
// Readers of the run learn of a limit from budget events, once at 80 % of it and once when it is reached. The methods
// of Budget and Clock may be called concurrently, except where their comments say otherwise.
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

// Limits limits one run; a zero field means no limit. The run checks them before each call and after each turn. So the
// turn that reaches a limit may exceed it, and so may the last turn, in which the model summarizes.
type Limits struct {
	ToolCalls    int     // executed calls; refused calls do not count
	InputTokens  int64   // of all model calls together, as the provider counts them
	OutputTokens int64   // of all model calls together, as the provider counts them
	TotalTokens  int64   // of all model calls together, as the provider counts them
	Seconds      float64 // since the start of the run, except while it waits for a person
	ResultBytes  int64   // of tool results in the conversation; results are cut to fit
	Cost         float64 // in the operator's currency, at the model's prices
}

// Within returns the lower of l and other for each limit, where 0 means no limit.
func (l Limits) Within(other Limits) Limits {
	return Limits{
		ToolCalls:    Lower(l.ToolCalls, other.ToolCalls),
		InputTokens:  Lower(l.InputTokens, other.InputTokens),
		OutputTokens: Lower(l.OutputTokens, other.OutputTokens),
		TotalTokens:  Lower(l.TotalTokens, other.TotalTokens),
		Seconds:      Lower(l.Seconds, other.Seconds),
		ResultBytes:  Lower(l.ResultBytes, other.ResultBytes),
		Cost:         Lower(l.Cost, other.Cost),
	}
}

// ByName returns the limits by the names that requests and events use; 0 means no limit.
func (l Limits) ByName() map[string]float64 {
	return map[string]float64{
		"tool_calls":    float64(l.ToolCalls),
		"input_tokens":  float64(l.InputTokens),
		"output_tokens": float64(l.OutputTokens),
		"total_tokens":  float64(l.TotalTokens),
		"seconds":       l.Seconds,
		"result_bytes":  float64(l.ResultBytes),
		"cost":          l.Cost,
	}
}

// Lower returns the lower of two limits, where 0 means no limit.
func Lower[N int | int64 | float64](a, b N) N {
	switch {
	case a <= 0:
		return b
	case b <= 0:
		return a
	}
	return min(a, b)
}

// Budget counts how much of its Limits a run has used. Its Clock counts the seconds.
type Budget struct {
	price  *llm.Price // see SetPrice
	clock  *Clock
	notify func(changed chan struct{}) // closes changed; see New

	mu                   sync.Mutex // guards the fields below: sampling requests may spend tokens while calls are charged
	turns, calls         counter
	input, output, total counter // tokens
	cost, bytes          counter
	seconds              float64       // the clock's limit; 0 means no limit
	sampled              event.Usage   // tokens of sampling requests since the last TakeSampled
	decided              []bool        // for each of the turn's calls, whether it was charged or will not be made
	changed              chan struct{} // closed when another call is decided, and then replaced
}

// counter counts towards one limit.
type counter struct {
	name      string  // the limit's name in requests and events
	used, max float64 // a max of 0 means no limit
	// reported is the percentage in the last budget event: 0, 80 or 100. reportedFor, if not 0, is the raised limit
	// that reported refers to. After a takeover it may be above max: nothing is reported until Raise has raised max
	// that far again.
	reported    int
	reportedFor float64
}

// Status says how much of a limit is used.
type Status struct{ Used, Max float64 } // a Max of 0 means no limit

// New returns a Budget of which nothing is used. limits.Seconds is used only by Remaining and Status: the caller starts
// clock with it. A nil price means that the price is unknown; the run's model calls then cost nothing. Whenever one of
// a turn's calls is decided, the Budget calls notify with the channel that TryCall returned, so that waiting calls try
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

// SetPrice sets the price of the model that answers; nil means that it is unknown. It must not be called while tool
// calls are executed, because b.mu does not guard the price.
func (b *Budget) SetPrice(price *llm.Price) { b.price = price }

// counters returns all counters. Seconds have none, because the clock counts them.
func (b *Budget) counters() []*counter {
	return []*counter{&b.turns, &b.calls, &b.input, &b.output, &b.total, &b.cost, &b.bytes}
}

// counterLocked returns the counter called name, or a new one without a limit for an unknown name. b.mu must be held.
func (b *Budget) counterLocked(name string) *counter {
	for _, c := range b.counters() {
		if c.name == name {
			return c
		}
	}
	return &counter{name: name}
}

// ReachedLimit returns the name of a limit that is reached, so that no further turn with tools may follow, or "" if
// none is. It ignores max_turns, which has its own finish reason.
func (b *Budget) ReachedLimit() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reachedLimitLocked()
}

// reachedLimitLocked is ReachedLimit for callers that hold b.mu.
func (b *Budget) reachedLimitLocked() string {
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

// SpendTokens counts a model call's tokens and cost, and appends due budget events (reportLimits). An error comes from
// out.
func (b *Budget) SpendTokens(ctx context.Context, out *event.Writer, used event.Usage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countTokensLocked(used, b.CostOf(used))
	return reportLimits(ctx, out, &b.input, &b.output, &b.total, &b.cost)
}

// countTokensLocked counts tokens and their cost. A nil cost is unknown and not counted. b.mu must be held.
func (b *Budget) countTokensLocked(used event.Usage, cost *float64) {
	b.input.used += float64(used.InputTokens)
	b.output.used += float64(used.OutputTokens)
	b.total.used += float64(used.TotalTokens)
	if cost != nil {
		b.cost.used += *cost
	}
}

// CostOf returns what the tokens cost, rounded to 1e-12, or nil if the price is unknown.
func (b *Budget) CostOf(used event.Usage) *float64 {
	return b.price.CostOf(used.InputTokens, used.OutputTokens)
}

// ChargeResult counts a tool result that is added to the conversation, and returns as much of text as the limit
// result_bytes allows. If that is only a part, a note about the rest follows, which names url. url is where the whole
// result can be read, or "" if it cannot be read.
func (b *Budget) ChargeResult(text, url string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	size, left := float64(len(text)), b.bytes.remaining()
	if size <= left {
		b.bytes.used += size
		return text
	}
	b.bytes.used += left
	part, _ := content.TruncateText(text, int(left), url)
	return part
}

// ChargeMedia counts an image or audio that is added to the conversation. If the limit does not allow it, ChargeMedia
// counts nothing and returns false.
func (b *Budget) ChargeMedia(size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if float64(size) > b.bytes.remaining() {
		return false
	}
	b.bytes.used += float64(size)
	return true
}

// BeginTurn begins a turn with the given number of calls. TryCall, SkipCall or RestoreCall must decide each of them.
func (b *Budget) BeginTurn(calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decided = make([]bool, calls)
}

// EndTurn counts a turn that had calls, and appends the budget events that are due about calls, result bytes and turns
// (reportLimits). An error comes from out.
func (b *Budget) EndTurn(ctx context.Context, out *event.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turns.used++
	return reportLimits(ctx, out, &b.calls, &b.bytes, &b.turns)
}

// TryCall decides whether the turn's call at index may be made. It charges the call and returns charged, or returns the
// name of the limit that forbids the call. If it does neither, earlier calls of the turn may still use up the rest:
// call TryCall again once changed is closed. It must not be called again for a call that was charged.
//
// The calls of a turn run concurrently, but which of them a limit refuses must not depend on which is faster. So they
// are charged in call order. A call waits for earlier calls only if the limit does not allow all of them.
func (b *Budget) TryCall(index int) (limit string, charged bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	undecidedBefore := 0
	for _, decided := range b.decided[:index] {
		if !decided {
			undecidedBefore++
		}
	}
	limit = b.reachedLimitLocked()
	if limit == "" && b.calls.remaining() > float64(undecidedBefore) {
		b.calls.used++
		charged = true
		b.decideLocked(index)
	}
	return limit, charged, b.changed
}

// SkipCall marks the turn's call at index as decided without charging it, so that later calls do not wait for it. It
// does nothing if the call was charged.
func (b *Budget) SkipCall(index int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decideLocked(index)
}

// decideLocked marks the turn's call at index as decided, and wakes calls that wait for that. It does nothing if the
// call was already decided. b.mu must be held.
func (b *Budget) decideLocked(index int) {
	if !b.decided[index] {
		b.decided[index] = true
		b.notify(b.changed)
		b.changed = make(chan struct{})
	}
}

// SamplingTokens returns how many output tokens, at most wanted, a model call for an MCP server may use. ok is false if
// a limit on tokens or cost is reached, so that the call must not be made.
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

// SpendSampled counts a model call for an MCP server like SpendTokens, and for TakeSampled. An error comes from out.
func (b *Budget) SpendSampled(ctx context.Context, out *event.Writer, used event.Usage) error {
	b.mu.Lock()
	b.sampled = b.sampled.Plus(used)
	b.mu.Unlock()
	return b.SpendTokens(ctx, out, used)
}

// TakeSampled returns the tokens of model calls for MCP servers since the last TakeSampled.
func (b *Budget) TakeSampled() event.Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	sampled := b.sampled
	b.sampled = event.Usage{}
	return sampled
}

// Remaining returns the limits of each of a number of child runs that run concurrently: the rest of this budget,
// divided by children. Seconds are not divided, but end with the parent's time for tools. For a limit that is used up,
// Remaining returns the smallest possible limit, because 0 would mean no limit. Calls have no such limit: if fewer
// calls are left than there are children, hasCalls is false, and the children must not make calls.
func (b *Budget) Remaining(children int) (limits Limits, hasCalls bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	share := func(c *counter) float64 {
		if c.max <= 0 {
			return 0 // no limit
		}
		return max(c.remaining()/float64(children), math.SmallestNonzeroFloat64)
	}
	roundedUp := func(c *counter) int64 { return int64(math.Ceil(share(c))) }
	limits = Limits{
		ToolCalls:    int(share(&b.calls)),
		InputTokens:  roundedUp(&b.input),
		OutputTokens: roundedUp(&b.output),
		TotalTokens:  roundedUp(&b.total),
		ResultBytes:  roundedUp(&b.bytes),
		Cost:         share(&b.cost),
	}
	if b.seconds > 0 {
		reserve := min(b.seconds/5, maxReserve.Seconds()) // as in Clock
		limits.Seconds = max(b.seconds-reserve-b.clock.Elapsed().Seconds(), 0.001)
	}
	hasCalls = b.calls.max <= 0 || b.calls.remaining() >= float64(children)
	return limits, hasCalls
}

// SpendChild counts what a child run used, and appends due budget events (reportLimits). An error comes from out.
func (b *Budget) SpendChild(ctx context.Context, out *event.Writer, spent event.Spent) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countChildLocked(spent)
	return reportLimits(ctx, out, &b.input, &b.output, &b.total, &b.cost, &b.calls)
}

// RestoreChild counts what a child run used in an earlier process. It appends no events: the log already has them.
func (b *Budget) RestoreChild(spent event.Spent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countChildLocked(spent)
}

// countChildLocked counts what a child run has used. b.mu must be held.
func (b *Budget) countChildLocked(spent event.Spent) {
	b.countTokensLocked(spent.Usage, spent.Cost)
	b.calls.used += float64(spent.Calls)
}

// Status returns how much of the limit called name is used.
func (b *Budget) Status(name string) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name == "seconds" {
		return Status{Used: b.clock.Elapsed().Seconds(), Max: b.seconds}
	}
	c := b.counterLocked(name)
	return Status{Used: c.used, Max: c.max}
}

// Raise raises the limit called name. Budget events become due for it again, unless Restore has said that the log
// already has them. For "seconds", Raise only stores the limit; the caller must also call Clock.Raise.
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

// Restore sets what the log of a run says about each limit, by name: the percentage in the last budget event, and the
// value that people raised the limit to. Call it before the run is replayed, which restores the amounts used, and
// before other goroutines use b.
func (b *Budget) Restore(reported map[string]int, raised map[string]float64) {
	for _, c := range b.counters() {
		c.reported, c.reportedFor = reported[c.name], raised[c.name]
	}
}

// RestoreCall decides the call at index in a replayed turn. charged says whether the log has it as charged.
func (b *Budget) RestoreCall(index int, charged bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if charged {
		b.calls.used++
	}
	b.decideLocked(index)
}

// RestoreSampled counts the tokens of a replayed step's model calls for MCP servers, as the next result of TakeSampled.
func (b *Budget) RestoreSampled(used event.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countTokensLocked(used, b.CostOf(used))
	b.sampled = used
}

// isReached reports whether the limit is used up. Without a limit it returns false.
func (c *counter) isReached() bool { return c.max > 0 && c.used >= c.max }

// remaining returns how much of the limit is left, at least 0. Without a limit it returns infinity.
func (c *counter) remaining() float64 {
	if c.max <= 0 {
		return math.Inf(1)
	}
	return max(c.max-c.used, 0)
}

// reportLimits appends a budget event for each counter that has reached 80 % or 100 % of its limit since its last
// event. While the run is suspended, it appends nothing; the events follow at the next use. Budget.mu must be held.
func reportLimits(ctx context.Context, out *event.Writer, counters ...*counter) error {
	for _, c := range counters {
		level := c.level()
		if level <= c.reported || c.max < c.reportedFor {
			continue
		}
		// Costs are fractions that are not exact in binary, so round them.
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

// level returns the highest percentage of the limit, among those that budget events report, that is used: 0, 80 or 100.
func (c *counter) level() int {
	switch {
	case c.isReached():
		return 100
	case c.max > 0 && c.used*100 >= c.max*80:
		return 80
	}
	return 0
}
