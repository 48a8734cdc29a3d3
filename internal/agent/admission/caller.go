package admission

import "time"

// caller is what is remembered of one.
type caller struct {
	in, waiting int
	tokens      float64 // starts that are left, of a bucket of Rate.N; 1 without a rate
	filled      time.Time
}

// callerLocked returns the caller of that name, with what his bucket holds now; nil where there
// are more than can be remembered.
func (g *Gate) callerLocked(name string, now time.Time) *caller {
	c := g.callers[name]
	if c == nil {
		if len(g.callers) >= maxCallers {
			g.sweepLocked(now)
		}
		if len(g.callers) >= maxCallers {
			return nil
		}
		return g.addLocked(name, now)
	}
	g.fillLocked(c, now)
	return c
}

func (g *Gate) addLocked(name string, now time.Time) *caller {
	c := &caller{tokens: float64(max(g.Rate.N, 1)), filled: now}
	g.callers[name] = c
	return c
}

// fillLocked gives a caller what time has brought (a token bucket).
func (g *Gate) fillLocked(c *caller, now time.Time) {
	if g.Rate.N > 0 {
		full := float64(g.Rate.N)
		c.tokens = min(full, c.tokens+full*now.Sub(c.filled).Seconds()/g.Rate.Per.Seconds())
	}
	c.filled = now
}

func (g *Gate) spendLocked(c *caller) {
	if g.Rate.N > 0 {
		c.tokens--
	}
}

// countLocked counts a caller in who did not wait.
func (g *Gate) countLocked(c *caller, now time.Time) {
	g.spendLocked(c)
	g.enteredLocked(c, now)
}

func (g *Gate) enteredLocked(c *caller, now time.Time) {
	c.in++
	g.in++
	if g.in == g.Max {
		g.pace.full(now)
	}
}

// forgetLocked forgets a caller of whom nothing is left to remember.
func (g *Gate) forgetLocked(name string, c *caller, now time.Time) {
	g.fillLocked(c, now)
	if c.in == 0 && c.waiting == 0 && c.tokens >= float64(g.Rate.N) {
		delete(g.callers, name)
	}
}

// sweepLocked forgets those whose bucket has filled up meanwhile. At most once a second:
// it looks at everybody.
func (g *Gate) sweepLocked(now time.Time) {
	if now.Sub(g.swept) < time.Second {
		return
	}
	g.swept = now
	for name, c := range g.callers {
		g.forgetLocked(name, c, now)
	}
}
