package mcp

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"answerd/internal/mcp/transport"
)

// When a breaker opens, and for how long (F12).
const (
	maxStreak   = 5                // failures in a row
	minSample   = 20               // calls, half of which must have failed …
	sampleTime  = 10 * time.Second // … within this time
	breakerTime = 5 * time.Second  // until a call may try again
)

// breaker keeps calls from a server that fails again and again, so that a run is told
// at once instead of after a time-out, and the server gets time to recover. After
// breakerTime the next call tries it, alone: if that works the breaker closes, else
// it stays open for another breakerTime.
//
// It holds no timer and no goroutine: everything is decided when a call asks. The
// zero value is closed.
type breaker struct {
	mu      sync.Mutex // protects what follows
	streak  int        // failures since the last success
	seconds [sampleTime / time.Second]sample
	opened  time.Time // zero while closed
	retry   time.Time // when open: the first moment that a call may try
	trial   int       // that call, while it is under way; else 0
	trials  int       // such calls so far
	turns   int       // times that it opened or closed
	noted   int       // failures that counted
}

// sample is the calls that ended within one second.
type sample struct {
	second      int64
	calls, fail int
}

// callOutcome is what the end of a call says about its server.
type callOutcome int

const (
	saysNothing callOutcome = iota // the caller left, or nothing was asked
	works                          // it answered, if only with an error of its own
	fails
)

// outcomeOf returns what f, or a result if f is nil, says about the server.
func outcomeOf(f *transport.Failure) callOutcome {
	if f == nil {
		return works
	}
	if errors.As(f.Err, new(*wrongArguments)) { // the server was not asked
		return saysNothing
	}
	switch f.Kind {
	case Cancelled, Denied:
		return saysNothing
	case Unavailable, Timeout, Protocol, UnknownOutcome:
		return fails
	}
	return works
}

// breakerPass admits one call. trial is 0 unless the call tries whether the server works again.
type breakerPass struct{ turn, noted, trial int }

// openFailure returns why a call would not be admitted now, or nil.
func (b *breaker) openFailure() *transport.Failure {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.openFailureLocked(time.Now())
}

func (b *breaker) openFailureLocked(now time.Time) *transport.Failure {
	if b.opened.IsZero() || b.trial == 0 && !now.Before(b.retry) {
		return nil
	}
	return &transport.Failure{Kind: Unavailable, Public: b.openReasonLocked(now), NotRun: true}
}

// openReasonLocked returns why the breaker is open, in words fit for the caller.
func (b *breaker) openReasonLocked(now time.Time) string {
	switch wait := b.retry.Sub(now); {
	case b.trial != 0:
		return "it failed too often; a call is trying it again"
	case wait <= 0:
		return "it failed too often; the next call tries it again"
	default:
		return fmt.Sprintf("it failed too often; tried again in %d s", (wait+time.Second-1)/time.Second)
	}
}

// admitCall admits one call, or returns why not. An admitted call must call recordOutcome.
func (b *breaker) admitCall() (breakerPass, *transport.Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.openFailureLocked(time.Now()); f != nil {
		return breakerPass{}, f
	}
	p := breakerPass{turn: b.turns, noted: b.noted}
	if !b.opened.IsZero() {
		b.trials++
		b.trial, p.trial = b.trials, b.trials
	}
	return p, nil
}

// withdrawCall gives the trial back if p is one: it waits for a person, and the next call may
// try instead.
func (b *breaker) withdrawCall(p breakerPass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.trial != 0 && p.trial == b.trial {
		b.trial = 0
	}
}

// recordOutcome counts the outcome of a call. A call from before the breaker last opened or
// closed says nothing about the server as it is now. Nor does one that fails after
// another failure that it was under way with: calls that one cut connection ends are
// one failure, however many they are. rest is how long the server wants to be left alone
// then, if it said so; shorter than breakerTime is no longer.
func (b *breaker) recordOutcome(p breakerPass, v callOutcome, rest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.turn != b.turns {
		return
	}
	now := time.Now()
	until := now.Add(max(breakerTime, rest))
	if !b.opened.IsZero() {
		mine := p.trial != 0 && p.trial == b.trial
		if mine {
			b.trial = 0
		}
		switch {
		case v == works:
			b.resetLocked()
		case v == fails && mine: // one that was given back has had another after it
			b.retry = until
		}
		return
	}
	switch {
	case v == saysNothing, v == fails && p.noted != b.noted:
		return
	case v == works:
		b.streak = 0
	case v == fails:
		b.streak++
		b.noted++
	}
	if b.isTrippedLocked(now, v) {
		b.opened, b.retry = now, until
		b.turns++
	}
}

// isTrippedLocked counts a call that ended now and reports whether the breaker opens.
func (b *breaker) isTrippedLocked(now time.Time, v callOutcome) bool {
	second := now.Unix()
	s := &b.seconds[second%int64(len(b.seconds))]
	if s.second != second {
		*s = sample{second: second}
	}
	s.calls++
	if v == works {
		return false
	}
	s.fail++
	calls, fail := 0, 0
	for _, s := range b.seconds {
		if second-s.second < int64(len(b.seconds)) {
			calls, fail = calls+s.calls, fail+s.fail
		}
	}
	return b.streak >= maxStreak || calls >= minSample && 2*fail >= calls
}

func (b *breaker) resetLocked() {
	b.opened, b.retry, b.trial = time.Time{}, time.Time{}, 0
	b.streak, b.seconds = 0, [len(b.seconds)]sample{}
	b.turns++
}

// currentState reports since when the breaker is open, why in words fit for the caller, and
// whether the next call may try; the zero time where it is closed.
func (b *breaker) currentState() (since time.Time, reason string, halfOpen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.opened.IsZero() {
		return time.Time{}, "", false
	}
	now := time.Now()
	return b.opened, b.openReasonLocked(now), b.openFailureLocked(now) == nil
}
