package admission

import "time"

// callerState has the counts of one caller.
type callerState struct {
	active   int       // slots of the caller
	waiting  int       // requests of the caller in the queue
	tokens   float64   // starts that Limits.Rate still allows at the time refilled; always 1 without a rate
	refilled time.Time // when tokens became due were last added
}

// callerLocked returns the caller with that name, with its tokens as of now, and adds the caller if it is new. It
// returns nil if maxCallers other callers are in memory.
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

// addCallerLocked adds a caller with a full token bucket, even beyond maxCallers.
func (g *Gate) addCallerLocked(name string, now time.Time) *callerState {
	c := &callerState{tokens: float64(max(g.Rate.N, 1)), refilled: now}
	g.callers[name] = c
	return c
}

// refillTokensLocked adds the tokens that became due since caller.refilled, up to a full bucket.
func (g *Gate) refillTokensLocked(caller *callerState, now time.Time) {
	if g.Rate.N > 0 {
		full := float64(g.Rate.N)
		caller.tokens = min(full, caller.tokens+full*now.Sub(caller.refilled).Seconds()/g.Rate.Per.Seconds())
	}
	caller.refilled = now
}

// spendTokenLocked takes the token for one start from caller, if starts are limited.
func (g *Gate) spendTokenLocked(caller *callerState) {
	if g.Rate.N > 0 {
		caller.tokens--
	}
}

// returnTokenLocked gives caller back the token for a start that did not happen.
func (g *Gate) returnTokenLocked(caller *callerState) {
	if g.Rate.N > 0 {
		caller.tokens++
	}
}

// countActiveLocked counts one more slot as taken by caller.
func (g *Gate) countActiveLocked(caller *callerState, now time.Time) {
	caller.active++
	g.active++
	if g.active == g.Max {
		g.pace.markFull(now)
	}
}

// forgetIdleLocked removes caller from memory if it has no run, no waiter and a full token bucket: then it does
// not differ from a new caller.
func (g *Gate) forgetIdleLocked(name string, caller *callerState, now time.Time) {
	g.refillTokensLocked(caller, now)
	if caller.active == 0 && caller.waiting == 0 && caller.tokens >= float64(g.Rate.N) {
		delete(g.callers, name)
	}
}

// forgetAllIdleLocked removes all idle callers from memory. It does nothing within a second of the last time, because
// it looks at every caller.
func (g *Gate) forgetAllIdleLocked(now time.Time) {
	if now.Sub(g.lastSweep) < time.Second {
		return
	}
	g.lastSweep = now
	for name, c := range g.callers {
		g.forgetIdleLocked(name, c, now)
	}
}
