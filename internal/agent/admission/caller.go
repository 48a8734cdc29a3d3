package admission

import "time"

// callerState has the counts of one caller.
type callerState struct {
	active, waiting int
	tokens          float64 // starts that are left, of a bucket of Rate.N; 1 without a rate
	filled          time.Time
}

// callerLocked returns the caller with that name with its tokens as of now; nil if there are too many
// callers to remember another one.
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

func (g *Gate) addCallerLocked(name string, now time.Time) *callerState {
	c := &callerState{tokens: float64(max(g.Rate.N, 1)), filled: now}
	g.callers[name] = c
	return c
}

// refillTokensLocked adds the tokens that became due since the last time (a token bucket).
func (g *Gate) refillTokensLocked(c *callerState, now time.Time) {
	if g.Rate.N > 0 {
		full := float64(g.Rate.N)
		c.tokens = min(full, c.tokens+full*now.Sub(c.filled).Seconds()/g.Rate.Per.Seconds())
	}
	c.filled = now
}

func (g *Gate) spendTokenLocked(c *callerState) {
	if g.Rate.N > 0 {
		c.tokens--
	}
}

// countActiveLocked counts a slot that a caller has taken.
func (g *Gate) countActiveLocked(c *callerState, now time.Time) {
	c.active++
	g.active++
	if g.active == g.Max {
		g.pace.markFull(now)
	}
}

// forgetIdleLocked removes a caller that has no run, no waiter and all of its tokens.
func (g *Gate) forgetIdleLocked(name string, c *callerState, now time.Time) {
	g.refillTokensLocked(c, now)
	if c.active == 0 && c.waiting == 0 && c.tokens >= float64(g.Rate.N) {
		delete(g.callers, name)
	}
}

// forgetAllIdleLocked removes all idle callers, at most once a second since it looks at every caller.
func (g *Gate) forgetAllIdleLocked(now time.Time) {
	if now.Sub(g.swept) < time.Second {
		return
	}
	g.swept = now
	for name, c := range g.callers {
		g.forgetIdleLocked(name, c, now)
	}
}
