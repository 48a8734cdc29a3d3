package mcp

import "time"

// adriftTime is how long a server may go on with a call that was given up.
const adriftTime = time.Minute

// alone is the exchange of the only call that the server can be working on. All calls
// share the connection, and no message but progress says which of them it is about: a
// question must not reach the person behind another call, so where there are several,
// or one was given up lately, it is nobody's. (From 2026-07-28 on questions are part of
// answers, and need none of this.)
func (l *link) alone() *exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.adrift) < adriftTime {
		return nil
	}
	var one *exchange
	for _, q := range l.asked {
		if one != nil || q.x == nil {
			return nil
		}
		one = q.x
	}
	return one
}
