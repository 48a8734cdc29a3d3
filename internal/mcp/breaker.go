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

// Conditions under which the breaker opens, and how long it stays open.
const (
	maxStreak    = 5                // failures in a row that open it
	minSample    = 20               // calls within sampleWindow; from this many on, it opens if half of them failed
	sampleWindow = 10 * time.Second // in whole seconds
	openTime     = 5 * time.Second  // time from opening, or from a failed trial, to the next trial
)

// breaker refuses calls to a server that keeps failing, so that a run gets the error at once instead of after a
// timeout, and the server gets time to recover. After openTime, one call is admitted as a trial. If the trial
// succeeds, the breaker closes; otherwise it stays open for another openTime.
//
// A breaker has neither a timer nor a goroutine: it decides when a call asks. The zero value is closed.
type breaker struct {
	mu          sync.Mutex // protects the fields below
	streak      int        // failures since the last success
	samples     [sampleWindow / time.Second]sample
	openedAt    time.Time // zero while closed
	retryAt     time.Time // when open: the earliest time for a trial
	trial       int       // number of the current trial; 0 if none is in flight
	lastTrial   int       // number of the latest trial
	transitions int       // how often the breaker has opened or closed
	failures    int       // failures counted while closed, never reset
}

// sample counts the calls that ended within one second.
type sample struct {
	second       int64 // Unix time
	calls, fails int
}

// callOutcome is what a call's end says about whether its server works.
type callOutcome int

const (
	outcomeNeutral callOutcome = iota // no evidence: the call was cancelled, or nothing was sent
	outcomeSuccess                    // the server answered, even with a JSON-RPC error
	outcomeFailure
)

// outcomeOf returns the outcome of a call that ended with failure; nil means that the call has a result.
func outcomeOf(failure *transport.Failure) callOutcome {
	if failure == nil {
		return outcomeSuccess
	}
	if errors.As(failure.Err, new(*wrongArguments)) { // nothing was sent
		return outcomeNeutral
	}
	if isForbidden(failure) {
		return outcomeSuccess
	}
	switch failure.Kind {
	case Cancelled, Denied:
		return outcomeNeutral
	case Unavailable, Timeout, Protocol, UnknownOutcome:
		return outcomeFailure
	}
	return outcomeSuccess
}

// isForbidden reports whether failure, of a call, is the server's 403. The server works, and may execute other tools: a
// gateway may allow some tools and not others.
func isForbidden(failure *transport.Failure) bool { return failure.Status == http.StatusForbidden }

// limiterOutcome returns what a call's end says about the server's load. The call ended with failure or, if that is
// nil, with result. If the tool returned an error, or the call waits for a person, the duration says nothing, and the
// outcome is limiter.Unknown.
func limiterOutcome(result *content.Result, failure *transport.Failure) limiter.Outcome {
	if failure == nil {
		if result.IsError || result.InputRequired != nil {
			return limiter.Unknown
		}
		return limiter.Answered
	}
	switch failure.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return limiter.Overload
	}
	if failure.Kind == Timeout {
		return limiter.Overload
	}
	return limiter.Unknown
}

// breakerPass is the breaker's state when admitCall admitted a call. recordOutcome compares it with the state at the
// end of the call.
type breakerPass struct {
	transitions int
	failures    int
	trial       int // number of the trial that this call is; 0 if the breaker was closed
}

// openFailure returns the failure with which admitCall would refuse a call now, or nil if it would admit the call.
func (b *breaker) openFailure() *transport.Failure {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.openFailureLocked(time.Now())
}

// openFailureLocked does what openFailure does. b.mu must be held.
func (b *breaker) openFailureLocked(now time.Time) *transport.Failure {
	mayTry := b.trial == 0 && !now.Before(b.retryAt)
	if !b.isOpenLocked() || mayTry {
		return nil
	}
	return &transport.Failure{Kind: Unavailable, Public: b.openReasonLocked(now), NotRun: true}
}

// isOpenLocked reports whether the breaker is open. b.mu must be held.
func (b *breaker) isOpenLocked() bool { return !b.openedAt.IsZero() }

// openReasonLocked says why the open breaker refuses calls, and when it will admit one. The text may be shown to
// users. b.mu must be held.
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

// admitCall admits a call, or returns the failure with which it refuses the call. Once openTime has passed, an open
// breaker admits one call as its trial. After a call was admitted, recordOutcome must be called with its pass.
func (b *breaker) admitCall() (breakerPass, *transport.Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.openFailureLocked(time.Now()); f != nil {
		return breakerPass{}, f
	}
	pass := breakerPass{transitions: b.transitions, failures: b.failures}
	if b.isOpenLocked() {
		b.lastTrial++
		b.trial = b.lastTrial
		pass.trial = b.trial
	}
	return pass, nil
}

// withdrawTrial lets another call become the trial, if the call with this pass is the current trial. It is used when
// the call begins to wait for a person, which may take long. recordOutcome must still be called with pass.
func (b *breaker) withdrawTrial(pass breakerPass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if pass.trial != 0 && pass.trial == b.trial {
		b.trial = 0
	}
}

// recordOutcome counts the outcome of the call that was admitted with pass, and opens or closes the breaker. It
// ignores calls that were admitted before the breaker last opened or closed, because they say nothing about the
// server's present state. It also ignores a failure if another one was counted while the call was in flight, so that a
// lost connection that ends many calls counts as one failure. retryAfter is the server's Retry-After, or 0. If this
// call opens the breaker or was its trial and failed, the next trial waits for the longer of openTime and retryAfter.
func (b *breaker) recordOutcome(pass breakerPass, outcome callOutcome, retryAfter time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if pass.transitions != b.transitions {
		return
	}
	now := time.Now()
	retryAt := now.Add(max(openTime, retryAfter))
	switch {
	case b.isOpenLocked():
		b.recordTrialLocked(pass, outcome, retryAt)
	case outcome == outcomeSuccess:
		b.streak = 0
		b.addSampleLocked(now, outcome)
	case outcome == outcomeFailure && pass.failures == b.failures:
		b.streak++
		b.failures++
		calls, fails := b.addSampleLocked(now, outcome)
		failsOften := calls >= minSample && 2*fails >= calls
		if failsOften || b.streak >= maxStreak {
			b.openedAt = now
			b.retryAt = retryAt
			b.transitions++
		}
	}
}

// recordTrialLocked counts the outcome of a call that an open breaker admitted. A success closes the breaker, even
// that of a withdrawn trial. A failure delays the next trial until retryAt, but only if the call is still the trial,
// since a later call may have replaced it. b.mu must be held.
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

// addSampleLocked counts a call that ended now. It returns how many calls ended within sampleWindow, and how many of
// these failed. b.mu must be held.
func (b *breaker) addSampleLocked(now time.Time, outcome callOutcome) (calls, fails int) {
	second := now.Unix()
	current := &b.samples[second%int64(len(b.samples))]
	if current.second != second { // left over from an earlier window
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

// closeLocked closes the breaker and forgets all failures. Later, recordOutcome ignores calls that were admitted
// before. b.mu must be held.
func (b *breaker) closeLocked() {
	b.openedAt = time.Time{}
	b.retryAt = time.Time{}
	b.trial = 0
	b.streak = 0
	b.samples = [len(b.samples)]sample{}
	b.transitions++
}

// currentState returns when the breaker opened, a reason that may be shown to users, and whether the next call would
// be admitted as a trial. While the breaker is closed, it returns zero values.
func (b *breaker) currentState() (openedAt time.Time, reason string, halfOpen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOpenLocked() {
		return time.Time{}, "", false
	}
	now := time.Now()
	return b.openedAt, b.openReasonLocked(now), b.openFailureLocked(now) == nil
}
