package mcp

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"answerd/internal/mcp/content"
	"answerd/internal/mcp/limiter"
	"answerd/internal/mcp/transport"
)

// When the breaker opens, and for how long.
const (
	maxStreak    = 5                // failures in a row that open it
	minSample    = 20               // calls within sampleWindow from which on a share of half failed calls opens it
	sampleWindow = 10 * time.Second // in whole seconds
	openTime     = 5 * time.Second  // from opening, or from a failed trial, until the next trial
)

// breaker holds calls back from a server that keeps failing, so that a run gets the error at once instead of after a
// timeout, and the server gets time to recover. After openTime, one call is let through as a trial. If it succeeds,
// the breaker closes; otherwise it stays open for another openTime.
//
// A breaker has neither a timer nor a goroutine: it decides everything when a call asks. The zero value is closed.
type breaker struct {
	mu          sync.Mutex // protects the fields below
	streak      int        // failures since the last success
	samples     [sampleWindow / time.Second]sample
	openedAt    time.Time // zero while closed
	retryAt     time.Time // when open: the earliest time for a trial
	trial       int       // number of the trial in flight; 0 if there is none
	lastTrial   int       // number of the latest trial
	transitions int       // how often it opened or closed
	failures    int       // failures counted while closed, never reset
}

// sample counts the calls that ended within one second.
type sample struct {
	second       int64 // Unix time
	calls, fails int
}

// callOutcome is the result of a call as evidence of whether its server works.
type callOutcome int

const (
	outcomeNeutral callOutcome = iota // no evidence: the caller canceled, or nothing was sent
	outcomeSuccess                    // the server answered, even with a JSON-RPC error
	outcomeFailure
)

// outcomeOf returns the outcome of a call that ended with failure, or with a result if failure is nil.
func outcomeOf(failure *transport.Failure) callOutcome {
	if failure == nil {
		return outcomeSuccess
	}
	if errors.As(failure.Err, new(*wrongArguments)) { // nothing was sent
		return outcomeNeutral
	}
	switch failure.Kind {
	case Cancelled, Denied:
		return outcomeNeutral
	case Unavailable, Timeout, Protocol, UnknownOutcome:
		return outcomeFailure
	}
	return outcomeSuccess
}

// loadOf returns the evidence that the result or the failure of a call gives about the server's load. The duration of
// a call that the tool refused, or that waits for a person, is no evidence.
func loadOf(res *content.Result, f *transport.Failure) limiter.Outcome {
	switch {
	case f == nil && !res.IsError && res.InputRequired == nil:
		return limiter.Answered
	case f == nil:
		return limiter.Unknown
	case f.Kind == Timeout, f.Status == http.StatusTooManyRequests, f.Status == http.StatusServiceUnavailable, f.Status == http.StatusGatewayTimeout:
		return limiter.Overload
	}
	return limiter.Unknown
}

// breakerPass is what admitCall gives to an admitted call: the breaker's counters at that time, with which
// recordOutcome finds out what has changed since.
type breakerPass struct {
	transitions int
	failures    int
	trial       int // number of the call as a trial of an open breaker; 0 for any other call
}

// openFailure returns the failure with which a call would be refused now, or nil if it would be admitted.
func (b *breaker) openFailure() *transport.Failure {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.openFailureLocked(time.Now())
}

// openFailureLocked is openFailure for a caller that holds b.mu.
func (b *breaker) openFailureLocked(now time.Time) *transport.Failure {
	mayTry := b.trial == 0 && !now.Before(b.retryAt)
	if b.openedAt.IsZero() || mayTry {
		return nil
	}
	return &transport.Failure{Kind: Unavailable, Public: b.openReasonLocked(now), NotRun: true}
}

// openReasonLocked returns why the open breaker refuses calls, and when it will let one through. The text may be
// shown to the caller.
func (b *breaker) openReasonLocked(now time.Time) string {
	wait := b.retryAt.Sub(now)
	switch {
	case b.trial != 0:
		return "it failed too often; a call is trying it again"
	case wait <= 0:
		return "it failed too often; the next call tries it again"
	default:
		return fmt.Sprintf("it failed too often; tried again in %d s", (wait+time.Second-1)/time.Second)
	}
}

// admitCall admits a call, or returns the failure with which it is refused. After openTime, an open breaker admits
// one call as its trial. An admitted call must call recordOutcome with its pass.
func (b *breaker) admitCall() (breakerPass, *transport.Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.openFailureLocked(time.Now()); f != nil {
		return breakerPass{}, f
	}
	pass := breakerPass{transitions: b.transitions, failures: b.failures}
	if !b.openedAt.IsZero() {
		b.lastTrial++
		b.trial = b.lastTrial
		pass.trial = b.trial
	}
	return pass, nil
}

// withdrawTrial makes the next call the trial if the call with this pass is the trial at present. That call now waits
// for a person and may take long. It must still call recordOutcome.
func (b *breaker) withdrawTrial(pass breakerPass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if pass.trial != 0 && pass.trial == b.trial {
		b.trial = 0
	}
}

// recordOutcome counts the outcome of a call, and opens or closes the breaker accordingly. It ignores a call that was
// admitted before the breaker last opened or closed, since that call is no evidence of the server's present state. It
// also ignores a failure if another failure was counted while the call was in flight: when one lost connection ends
// many calls, that is one failure. retryAfter is the server's Retry-After, 0 if it sent none; the breaker stays open
// for at least openTime.
func (b *breaker) recordOutcome(pass breakerPass, outcome callOutcome, retryAfter time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if pass.transitions != b.transitions {
		return
	}
	now := time.Now()
	retryAt := now.Add(max(openTime, retryAfter))
	if !b.openedAt.IsZero() {
		b.recordTrialLocked(pass, outcome, retryAt)
		return
	}

	switch {
	case outcome == outcomeNeutral, outcome == outcomeFailure && pass.failures != b.failures:
		return
	case outcome == outcomeSuccess:
		b.streak = 0
	case outcome == outcomeFailure:
		b.streak++
		b.failures++
	}
	calls, fails := b.addSampleLocked(now, outcome)
	failsOften := calls >= minSample && 2*fails >= calls
	if outcome == outcomeFailure && (failsOften || b.streak >= maxStreak) {
		b.openedAt = now
		b.retryAt = retryAt
		b.transitions++
	}
}

// recordTrialLocked counts the outcome of a call that an open breaker admitted. Any success closes the breaker. A
// failure delays the next trial only if the call is still the trial: a withdrawn one has been replaced by a later
// call.
func (b *breaker) recordTrialLocked(pass breakerPass, outcome callOutcome, retryAt time.Time) {
	isTrial := pass.trial != 0 && pass.trial == b.trial
	if isTrial {
		b.trial = 0
	}
	switch {
	case outcome == outcomeSuccess:
		b.closeLocked()
	case outcome == outcomeFailure && isTrial:
		b.retryAt = retryAt
	}
}

// addSampleLocked adds a call that ended now to the samples. It returns how many calls ended within sampleWindow, and
// how many of them failed.
func (b *breaker) addSampleLocked(now time.Time, outcome callOutcome) (calls, fails int) {
	second := now.Unix()
	current := &b.samples[second%int64(len(b.samples))]
	if current.second != second { // it is from an earlier window
		*current = sample{second: second}
	}
	current.calls++
	if outcome == outcomeFailure {
		current.fails++
	}
	for _, s := range b.samples {
		if second-s.second < int64(len(b.samples)) {
			calls += s.calls
			fails += s.fails
		}
	}
	return calls, fails
}

// closeLocked closes the breaker and forgets all failures. Outcomes of calls that were admitted before no longer
// count.
func (b *breaker) closeLocked() {
	b.openedAt = time.Time{}
	b.retryAt = time.Time{}
	b.trial = 0
	b.streak = 0
	b.samples = [len(b.samples)]sample{}
	b.transitions++
}

// currentState returns when the breaker opened, the reason (a text that may be shown to the caller), and whether the
// next call would be admitted as a trial. All are zero while the breaker is closed.
func (b *breaker) currentState() (openedAt time.Time, reason string, halfOpen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.openedAt.IsZero() {
		return time.Time{}, "", false
	}
	now := time.Now()
	return b.openedAt, b.openReasonLocked(now), b.openFailureLocked(now) == nil
}
