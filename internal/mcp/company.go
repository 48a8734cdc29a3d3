package mcp

import (
	"encoding/json"
	"sync"
)

// company is the calls under way in one session over HTTP. A message on its standing
// stream doesn't say which of them it is about, so, as on a connection that all calls
// share (linkalone.go), it is taken for that of the only one, or for none's. The zero
// value works.
type company struct {
	mu    sync.Mutex // protects what follows
	calls map[*exchange]struct{}
	left  bool // one was given up, which the server may go on with
}

// joinArray notes that x has sent a request that the server may ask something about.
func (c *company) join(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[*exchange]struct{}{}
	}
	c.calls[x] = struct{}{}
}

// leave is the end of x, which join was called for or not. Over HTTP nothing ever says
// that the server is done with a call that was given up.
func (c *company) leave(x *exchange, givenUp bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, joined := c.calls[x]
	delete(c.calls, x)
	c.left = c.left || joined && givenUp
}

// crowded reports whether nobody can be told for certain to be alone any more.
func (c *company) crowded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// alone is the one call that the server can be working on; else nil.
func (c *company) alone() *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left || len(c.calls) != 1 {
		return nil
	}
	for x := range c.calls {
		x.limit.touch()
		return x
	}
	return nil
}

// report hands a progress notification to the call that its token names.
func (c *company) report(params json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for x := range c.calls {
		x.report(params)
	}
}
