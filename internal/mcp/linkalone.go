package mcp

import "github.com/modelcontextprotocol/go-sdk/jsonrpc"

// Over a connection that all calls share, a server's log messages and requests don't
// say which call they are about (facts 2d). A guess could show one caller's question
// to another, so they go to a call only where there is no other that they could be
// about; elsewhere requests are declined and log messages dropped. (From 2026-07-28 on
// questions are part of answers, and need none of this.)

// maxLeft bounds the calls of a connection that are remembered as given up.
const maxLeft = 1000

// mayAsk reports whether the server may ask something back while it works on a request
// of that method (2026-07-28 basic/utilities/mrtr).
func mayAsk(method string) bool {
	return method == methodCall || method == methodRead || method == methodPrompt
}

// alone is the exchange of the one call that the server can be working on. Where there
// is none, or several, it is nil, and counted.
func (l *link) alone() *exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	var x *exchange
	calls := len(l.left)
	for _, q := range l.asked {
		if q.sent && mayAsk(q.method) {
			x = q.x
			calls++
		}
	}
	if calls == 1 && x != nil && !l.crowded {
		return x
	}
	l.strays++
	return nil
}

// leaveLocked notes that a call was given up that the server has. Until it answers all
// the same it may go on with it, and some of them answer never: they need not (2025-11-25
// basic/utilities/cancellation).
func (l *link) leaveLocked(q *question) {
	switch {
	case !mayAsk(q.method):
	case len(l.left) == maxLeft:
		l.crowded = true
	default:
		l.left[q.id] = struct{}{}
	}
}

// overdue notes an answer that comes when nobody waits for it any more, and reports whether
// somebody did.
func (l *link) overdue(id jsonrpc.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, late := l.left[id]
	delete(l.left, id)
	return late
}
