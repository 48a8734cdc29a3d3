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

// refillTokensLocked adds the tokens that became due since c.refilled, up to a full bucket.
func (g *Gate) refillTokensLocked(c *callerState, now time.Time) {
	if g.Rate.N > 0 {
		full := float64(g.Rate.N)
		c.tokens = min(full, c.tokens+full*now.Sub(c.refilled).Seconds()/g.Rate.Per.Seconds())
	}
	c.refilled = now
}

// spendTokenLocked takes the token for one start from c, if starts are limited.
func (g *Gate) spendTokenLocked(c *callerState) {
	if g.Rate.N > 0 {
		c.tokens--
	}
}

// returnTokenLocked gives c back the token for a start that did not happen.
func (g *Gate) returnTokenLocked(c *callerState) {
	if g.Rate.N > 0 {
		c.tokens++
	}
}

// countActiveLocked counts one more slot as taken by the caller c.
func (g *Gate) countActiveLocked(c *callerState, now time.Time) {
	c.active++
	g.active++
	if g.active == g.Max {
		g.pace.markFull(now)
	}
}

// forgetIdleLocked removes the caller c from memory if it has no run, no waiter and a full token bucket: then it does
// not differ from a new caller.
func (g *Gate) forgetIdleLocked(name string, c *callerState, now time.Time) {
	g.refillTokensLocked(c, now)
	if c.active == 0 && c.waiting == 0 && c.tokens >= float64(g.Rate.N) {
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
