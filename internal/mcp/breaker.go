package mcp

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"answerd/internal/mcp/transport"
)

// Thresholds of the breaker: when it opens, and for how long.
const (
	maxStreak   = 5                // failures in a row
	minSample   = 20               // calls, half of which must have failed …
	sampleTime  = 10 * time.Second // … within this time
	breakerTime = 5 * time.Second  // until a call may try again
)

// breaker holds calls back from a server that keeps failing, so that a run gets the error at once
// instead of after a timeout, and the server gets time to recover. After breakerTime, one call is
// let through as a trial. If it succeeds, the breaker closes; otherwise it stays open for another
// breakerTime.
//
// A breaker has neither a timer nor a goroutine: it decides everything when a call asks. The zero
// value is closed.
type breaker struct {
	mu      sync.Mutex // protects what follows
	streak  int        // failures since the last success
	seconds [sampleTime / time.Second]sample
	opened  time.Time // zero while closed
	retry   time.Time // when open: the earliest time for a trial
	trial   int       // number of the trial in flight; 0 if there is none
	trials  int       // trials so far
	turns   int       // how often it opened or closed
	noted   int       // failures counted so far
}

// sample counts the calls that ended within one second.
type sample struct {
	second      int64
	calls, fail int
}

// callOutcome says what a call's outcome tells about its server.
type callOutcome int

const (
	saysNothing callOutcome = iota // the caller canceled, or nothing was sent
	works                          // the server answered, even with a JSON-RPC error
	fails
)

// outcomeOf returns what failure, or a result if failure is nil, says about the server.
func outcomeOf(failure *transport.Failure) callOutcome {
	if failure == nil {
		return works
	}
	if errors.As(failure.Err, new(*wrongArguments)) { // nothing was sent
		return saysNothing
	}
	switch failure.Kind {
	case Cancelled, Denied:
		return saysNothing
	case Unavailable, Timeout, Protocol, UnknownOutcome:
		return fails
	}
	return works
}

// breakerPass admits one call. trial is 0 unless the call is a trial of an open breaker.
type breakerPass struct{ turn, noted, trial int }

// openFailure returns why a call would not be admitted now, or nil.
func (b *breaker) openFailure() *transport.Failure {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.openFailureLocked(time.Now())
}

// openFailureLocked returns why a call is not admitted, or nil if one is.
func (b *breaker) openFailureLocked(now time.Time) *transport.Failure {
	mayTry := b.trial == 0 && !now.Before(b.retry)
	if b.opened.IsZero() || mayTry {
		return nil
	}
	return &transport.Failure{Kind: Unavailable, Public: b.openReasonLocked(now), NotRun: true}
}

// openReasonLocked returns why the breaker is open. The text may be shown to the caller.
func (b *breaker) openReasonLocked(now time.Time) string {
	wait := b.retry.Sub(now)
	switch {
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

// withdrawCall ends the trial without a result if the pass is one: its call now waits for a person, so the
// next call becomes the trial.
func (b *breaker) withdrawCall(p breakerPass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.trial != 0 && p.trial == b.trial {
		b.trial = 0
	}
}

// recordOutcome counts the outcome of a call. It ignores a call that began before the breaker last
// opened or closed, since that call tells nothing about the server's present state. It also ignores
// a failure if another failure was counted while the call was in flight: when one lost connection
// ends many calls, that is one failure. retryAfter is the server's Retry-After, 0 if it sent none;
// the breaker stays open for at least breakerTime.
func (b *breaker) recordOutcome(pass breakerPass, outcome callOutcome, retryAfter time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if pass.turn != b.turns {
		return
	}
	now := time.Now()

	until := now.Add(max(breakerTime, retryAfter))
	if !b.opened.IsZero() {
		mine := pass.trial != 0 && pass.trial == b.trial
		if mine {
			b.trial = 0
		}
		switch {
		case outcome == works:
			b.resetLocked()
		case outcome == fails && mine: // a withdrawn trial has been replaced by a later one
			b.retry = until
		}
		return
	}

	switch {
	case outcome == saysNothing, outcome == fails && pass.noted != b.noted:
		return
	case outcome == works:
		b.streak = 0
	case outcome == fails:
		b.streak++
		b.noted++
	}
	if b.isTrippedLocked(now, outcome) {
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
	failsOften := calls >= minSample && 2*fail >= calls
	return failsOften || b.streak >= maxStreak
}

// resetLocked closes the breaker. Outcomes of calls that were admitted before no longer count.
func (b *breaker) resetLocked() {
	b.opened = time.Time{}
	b.retry = time.Time{}
	b.trial = 0
	b.streak, b.seconds = 0, [len(b.seconds)]sample{}
	b.turns++
}

// currentState returns when the breaker opened, why (a text that may be shown to the caller), and
// whether the next call would be a trial. since is zero while the breaker is closed.
func (b *breaker) currentState() (since time.Time, reason string, halfOpen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.opened.IsZero() {
		return time.Time{}, "", false
	}
	now := time.Now()
	return b.opened, b.openReasonLocked(now), b.openFailureLocked(now) == nil
}
