package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"answerd/internal/event"
	"answerd/internal/values"
)

const (
	// minPeriod and maxPeriod limit the period of a Limit.
	minPeriod = time.Minute
	maxPeriod = 366 * 24 * time.Hour
	maxLimits = 8
	// storeTimeout is how long a run waits for its use to be stored, and storeTries how often it tries again because
	// other processes store at the same moment.
	storeTimeout = 5 * time.Second
	storeTries   = 20
	// maxPending is how many callers' use may wait to be stored while the store fails.
	maxPending = 1 << 16
)

// Limit limits what all runs of one caller may use in one period. A period begins with the first use after the previous
// period has ended.
type Limit struct {
	Name   string // cost, input_tokens, output_tokens or total_tokens
	Max    float64
	Period time.Duration
}

// ParseLimits parses limits such as "cost=5/24h,total_tokens=2000000/7d". One name may occur several times, with
// different periods. There may be at most maxLimits limits. The error tells the operator what is wrong.
func ParseLimits(text string) (limits []Limit, _ error) {
	for part := range strings.SplitSeq(text, ",") {
		limit, err := parseLimit(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(limits, func(other Limit) bool { return other.key() == limit.key() }) {
			return nil, fmt.Errorf("%s is given twice for this period", limit.Name)
		}
		limits = append(limits, limit)
	}
	if len(limits) > maxLimits {
		return nil, fmt.Errorf("at most %d budgets", maxLimits)
	}
	return limits, nil
}

// parseLimit parses one limit, such as cost=5/24h. The number must be above 0, the period from minPeriod to maxPeriod.
func parseLimit(text string) (limit Limit, err error) {
	name, bound, hasBound := strings.Cut(text, "=")
	number, period, hasPeriod := strings.Cut(bound, "/")
	if !hasBound || !hasPeriod {
		return limit, errors.New("want name=number/period, such as cost=5/24h, comma separated")
	}
	if _, known := (amounts{}).byName(name); !known {
		return limit, errors.New("the names are cost, input_tokens, output_tokens and total_tokens")
	}
	limit.Name = name
	limit.Max, err = strconv.ParseFloat(number, 64)
	isInRange := limit.Max > 0 && limit.Max <= 1e15 // false for NaN
	if err != nil || !isInRange {
		return limit, fmt.Errorf("%s: want a number above 0", name)
	}
	limit.Period, err = parsePeriod(period)
	if err != nil || limit.Period < minPeriod || limit.Period > maxPeriod {
		return limit, fmt.Errorf("%s: want a period of 1m to 366d, such as 30m, 24h or 7d", name)
	}
	return limit, nil
}

// parsePeriod parses a duration. Besides what time.ParseDuration accepts, it may be a number of days, such as 7d.
func parsePeriod(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}

// key identifies the limit in stored values. It does not contain Max, so that the operator can change the maximum.
func (l Limit) key() string { return l.Name + "/" + l.Period.String() }

// String returns the limit in the form that ParseLimits reads, with short periods: 24h instead of 24h0m0s.
func (l Limit) String() string {
	length := l.Period.String()
	if strings.HasSuffix(length, "m0s") {
		length = strings.TrimSuffix(length, "0s")
	}
	if strings.HasSuffix(length, "h0m") {
		length = strings.TrimSuffix(length, "0m")
	}
	return l.Name + "=" + strconv.FormatFloat(l.Max, 'f', -1, 64) + "/" + length
}

// ErrSpent means that a caller has used up one of their limits.
var ErrSpent = errors.New("the budget of the caller is used up")

// SpentError says which limit a caller has used up, and when its period ends (Until). It wraps ErrSpent.
type SpentError struct {
	Limit Limit
	Used  float64
	Until time.Time
	// RetryAfter is the time until Until, in whole seconds, at least 1 s.
	RetryAfter time.Duration
}

func (e *SpentError) Error() string { return ErrSpent.Error() + ": " + e.Limit.String() }
func (e *SpentError) Unwrap() error { return ErrSpent }

// amounts is what model calls use: tokens and cost.
type amounts struct {
	Input, Output, Total int64
	Cost                 float64
}

func (a amounts) plus(b amounts) amounts {
	return amounts{a.Input + b.Input, a.Output + b.Output, a.Total + b.Total, a.Cost + b.Cost}
}

// byName returns the amount that a Limit with this name limits. known is false if ParseLimits has no such name.
func (a amounts) byName(name string) (amount float64, known bool) {
	switch name {
	case "cost":
		return a.Cost, true
	case "input_tokens":
		return float64(a.Input), true
	case "output_tokens":
		return float64(a.Output), true
	case "total_tokens":
		return float64(a.Total), true
	}
	return 0, false
}

// period is how much of a limit a caller has used, in the form that is stored.
type period struct {
	From int64   `json:"from"` // when the period began, in ms since the Unix epoch, by the store's clock
	Used float64 `json:"used"`
}

// budgets counts what callers use towards their limits, in a store that all processes share. Use that cannot be stored
// stays in memory, counts in this process, and is stored with the caller's next use.
//
// Use is charged after each model call and never in advance, because the tokens are not known before. So calls in
// flight can exceed a limit that another call reaches, and processes learn of each other's use only when they store or
// check. Each caller has one value with all their periods. It is written by compare-and-set: if two processes add at
// the same time, the slower one reads the value again and adds to that.
//
// If a process dies with pending use, that use is lost, in the caller's favour.
type budgets struct {
	limits []Limit
	store  values.Store
	logger *slog.Logger

	mu      sync.Mutex // protects the field below
	pending map[string]*pendingUse
}

// pendingUse is what a caller has used but the store does not have yet.
type pendingUse struct {
	stored   map[string]period // the value that was last stored; nil if unknown
	waiting  amounts           // to be stored next
	inFlight amounts           // being stored right now
	// isBeingStored is set while one goroutine stores the caller's use, without holding mu. Other goroutines then only
	// add to waiting, and that goroutine continues until nothing is waiting.
	isBeingStored bool
}

// total returns what the store does not have yet, as far as this process knows. p may be nil, which means nothing.
func (p *pendingUse) total() amounts {
	if p == nil {
		return amounts{}
	}
	return p.waiting.plus(p.inFlight)
}

// check returns a *SpentError if the caller has used up a limit. It returns an error that wraps event.ErrUnavailable if
// the store does not answer, or if the use of at least maxPending callers waits to be stored: otherwise a failure of
// the store would lift all limits.
//
// check reads the pending use before the store. If it read the store first, use that is stored in between would be in
// neither figure. In this order it may be in both, so a caller close to a limit may be refused a moment too early.
func (b *budgets) check(ctx context.Context, caller string) error {
	b.mu.Lock()
	pending := b.pending[caller].total()
	tooManyPending := len(b.pending) >= maxPending
	b.mu.Unlock()
	stored, _, err := b.loadPeriods(ctx, caller)
	if err != nil {
		return fmt.Errorf("read what a caller has used: %w: %w", event.ErrUnavailable, err)
	}
	if tooManyPending {
		return fmt.Errorf("store what callers have used: %w", event.ErrUnavailable)
	}
	if spent := b.findSpentLimit(stored, pending); spent != nil {
		return spent
	}
	return nil
}

// charge adds what a caller has used. It returns a *SpentError if a limit is now used up, and nil if not. Of several
// runs of the same caller in this process, one stores what all of them have used. charge tries to store for at most
// storeTimeout, even after ctx has ended. Use that could not be stored stays pending and still counts.
func (b *budgets) charge(ctx context.Context, caller string, use amounts) *SpentError {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	pending := b.pending[caller]
	if pending == nil {
		pending = &pendingUse{}
		b.pending[caller] = pending
	}
	pending.waiting = pending.waiting.plus(use)
	b.storeLocked(ctx, caller, pending) // may remove pending from b.pending
	return b.findSpentLimit(pending.stored, pending.total())
}

// storeLocked stores pending.waiting until nothing is waiting or the store fails. Then it removes the caller from
// b.pending, or logs the failure. If another goroutine already does this, it returns at once, and the other goroutine
// stores this use too. The caller must hold b.mu, which is released during requests to the store.
func (b *budgets) storeLocked(ctx context.Context, caller string, pending *pendingUse) {
	if pending.isBeingStored {
		return
	}
	pending.isBeingStored = true
	defer func() { pending.isBeingStored = false }()
	for pending.waiting != (amounts{}) {
		pending.inFlight, pending.waiting = pending.waiting, amounts{}
		use := pending.inFlight
		b.mu.Unlock()
		stored, err := b.addToStored(ctx, caller, use)
		b.mu.Lock()
		pending.inFlight = amounts{}
		if err != nil {
			pending.waiting = pending.waiting.plus(use)
			b.logger.WarnContext(ctx, "what a caller has used could not be stored; it counts in this process", "error", err)
			return
		}
		pending.stored = stored
	}
	delete(b.pending, caller)
}

// flush tries once more, for all callers, to store what could not be stored before. It stops when ctx ends.
func (b *budgets) flush(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for caller, pending := range b.pending {
		if ctx.Err() != nil {
			return
		}
		b.storeLocked(ctx, caller, pending)
	}
}

// findSpentLimit returns an error if the stored and the pending use together have reached a limit, or nil. If several
// limits are reached, the error names the one whose period ends last, because the caller is refused until then.
func (b *budgets) findSpentLimit(stored map[string]period, pending amounts) (longest *SpentError) {
	now := b.store.Now()
	for _, limit := range b.limits {
		current := limit.current(stored, now)
		pendingAmount, _ := pending.byName(limit.Name)
		used := current.Used + pendingAmount
		if used < limit.Max {
			continue
		}
		until := time.UnixMilli(current.From).Add(limit.Period)
		if longest == nil || until.After(longest.Until) {
			secondsLeft := until.Sub(now) / time.Second // rounded down, so add a second
			retryAfter := max(secondsLeft+1, 1) * time.Second
			longest = &SpentError{Limit: limit, Used: used, Until: until, RetryAfter: retryAfter}
		}
	}
	return longest
}

// current returns the limit's stored period or, if none is stored or it has ended, a period that begins now.
func (l Limit) current(stored map[string]period, now time.Time) period {
	if l.isCurrent(stored, now) {
		return stored[l.key()]
	}
	return period{From: now.UnixMilli()}
}

// isCurrent reports whether a period of the limit is stored and has not ended.
func (l Limit) isCurrent(stored map[string]period, now time.Time) bool {
	s, ok := stored[l.key()]
	return ok && now.Before(time.UnixMilli(s.From).Add(l.Period))
}

// loadPeriods returns a caller's stored periods by Limit.key, or nil if none are stored. SetValue needs revision.
func (b *budgets) loadPeriods(ctx context.Context, caller string) (stored map[string]period, revision uint64, err error) {
	value, revision, err := b.store.Value(ctx, values.NewKey("caller budget", caller))
	if err != nil {
		return nil, 0, err
	}
	if len(value) > 0 {
		if err := json.Unmarshal(value, &stored); err != nil {
			return nil, 0, fmt.Errorf("decode what a caller has used: %w", err)
		}
	}
	return stored, revision, nil
}

// addToStored adds use to a caller's stored periods, and returns the new sums. If another process changes the value
// between the read and the write, addToStored tries again, storeTries times in total, with pauses that get longer.
func (b *budgets) addToStored(ctx context.Context, caller string, use amounts) (map[string]period, error) {
	for try := range storeTries {
		stored, revision, err := b.loadPeriods(ctx, caller)
		if err != nil {
			return nil, err
		}
		sum, ttl := b.addUse(stored, use)
		value, err := json.Marshal(sum)
		if err != nil {
			return nil, fmt.Errorf("encode what a caller has used: %w", err)
		}
		newRevision, err := b.store.SetValue(ctx, values.NewKey("caller budget", caller), value, revision, ttl+time.Second)
		if err != nil {
			return nil, fmt.Errorf("store what a caller has used: %w", err)
		}
		hasConflict := newRevision == 0 // another process has changed the value since loadPeriods
		if !hasConflict {
			return sum, nil
		}
		pause := rand.N(time.Millisecond << min(try, 7))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, errors.New("store what a caller has used: too many processes do at the same time")
}

// addUse returns stored with use added, and how long it is until the last of these periods ends. It also adds to stored
// periods of limits that this process does not have: other processes may have them, during an update or a rollback.
func (b *budgets) addUse(stored map[string]period, use amounts) (sum map[string]period, ttl time.Duration) {
	now := b.store.Now()
	sum = make(map[string]period)
	for _, limit := range append(b.otherLimits(stored, now), b.limits...) {
		current := limit.current(stored, now)
		amount, _ := use.byName(limit.Name)
		current.Used += amount
		sum[limit.key()] = current
		ttl = max(ttl, time.UnixMilli(current.From).Add(limit.Period).Sub(now))
	}
	return sum, ttl
}

// otherLimits returns the limits, without Max, that have a current period in stored but are not in b.limits.
func (b *budgets) otherLimits(stored map[string]period, now time.Time) (others []Limit) {
	for key := range stored {
		name, duration, _ := strings.Cut(key, "/") // see Limit.key
		length, err := time.ParseDuration(duration)
		isOurs := slices.ContainsFunc(b.limits, func(l Limit) bool { return l.key() == key })
		other := Limit{Name: name, Period: length}
		if err == nil && !isOurs && other.isCurrent(stored, now) {
			others = append(others, other)
		}
	}
	return others
}
