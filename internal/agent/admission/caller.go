package admission

import "time"

// callerState holds what the gate counts for one caller.
type callerState struct {
	active   int       // the caller's slots
	waiting  int       // the caller's requests in the queue
	tokens   float64   // starts that Limits.Rate still allows, as of refilled; always 1 without a rate
	refilled time.Time // when tokens was last brought up to date
}

// callerLocked returns the state of the caller called name, with its tokens as of now. It adds the caller if it is new.
// It returns nil if the caller is new and maxCallers callers are already in memory. g.mu must be held.
func (g *Gate) callerLocked(name string, now time.Time) *callerState {
	caller := g.callers[name]
	if caller == nil {
		if len(g.callers) >= maxCallers {
			g.forgetAllIdleLocked(now)
		}
		if len(g.callers) >= maxCallers {
			return nil
		}
		return g.addCallerLocked(name, now)
	}
	g.refillTokensLocked(caller, now)
	return caller
}

// addCallerLocked adds a caller with a full token bucket. It does not check maxCallers. g.mu must be held.
func (g *Gate) addCallerLocked(name string, now time.Time) *callerState {
	c := &callerState{tokens: float64(max(g.Rate.N, 1)), refilled: now}
	g.callers[name] = c
	return c
}

// refillTokensLocked adds the tokens that are due since caller.refilled, up to a full bucket. g.mu must be held.
func (g *Gate) refillTokensLocked(caller *callerState, now time.Time) {
	if g.Rate.N > 0 {
		full := float64(g.Rate.N)
		caller.tokens = min(full, caller.tokens+full*now.Sub(caller.refilled).Seconds()/g.Rate.Per.Seconds())
	}
	caller.refilled = now
}

// spendTokenLocked takes one token from caller. It does nothing if the rate is not limited. g.mu must be held.
func (g *Gate) spendTokenLocked(caller *callerState) {
	if g.Rate.N > 0 {
		caller.tokens--
	}
}

// returnTokenLocked gives caller the token back for a start that did not happen. g.mu must be held.
func (g *Gate) returnTokenLocked(caller *callerState) {
	if g.Rate.N > 0 {
		caller.tokens++
	}
}

// countActiveLocked counts one more slot as taken by caller. g.mu must be held.
func (g *Gate) countActiveLocked(caller *callerState, now time.Time) {
	g.countRequestsLocked(caller, 1, 0)
	g.active++
	if g.active == g.Max {
		g.pace.markFull(now)
	}
}

// countRequestsLocked adds active and waiting, which may be negative, to what caller has. g.mu must be held.
func (g *Gate) countRequestsLocked(caller *callerState, active, waiting int) {
	wasBusy := caller.active+caller.waiting > 0
	caller.active += active
	caller.waiting += waiting
	isBusy := caller.active+caller.waiting > 0
	switch {
	case isBusy && !wasBusy:
		g.busy++
	case wasBusy && !isBusy:
		g.busy--
	}
}

// forgetIdleLocked removes a caller from memory if it has no run, no waiter and a full token bucket, because it is then
// in the same state as a new caller. g.mu must be held.
func (g *Gate) forgetIdleLocked(name string, caller *callerState, now time.Time) {
	g.refillTokensLocked(caller, now)
	if caller.active == 0 && caller.waiting == 0 && caller.tokens >= float64(g.Rate.N) {
		delete(g.callers, name)
	}
}

// forgetAllIdleLocked removes all idle callers from memory. Because it checks every caller, it does nothing if it last
// ran less than a second ago. g.mu must be held.
func (g *Gate) forgetAllIdleLocked(now time.Time) {
	if now.Sub(g.lastSweep) < time.Second {
		return
	}
	g.lastSweep = now
	for name, c := range g.callers {
		g.forgetIdleLocked(name, c, now)
	}
}
