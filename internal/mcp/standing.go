package mcp

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// standing is the stream of a session over HTTP that belongs to no request: the GET of
// the versions with sessions (2025-11-25 basic/transports, "Listening for Messages from
// the Server"). Updates of resources come on it, and what servers ask that don't say
// for which call they ask it.
//
// The GETs are made one after the other, with backoff, until the session ends or the server
// says that it has none. Of what comes the SDK is given the server's requests only, which it
// answers with POSTs.
type standing struct {
	c *streamable

	over     bool           // the server has no such stream, or no such session any more
	resp     *http.Response // nil while there is no stream
	in       eventReader
	cut      context.CancelFunc // ends resp
	requests int                // of the server, on this stream
	opened   time.Time
	failures int    // streams in a row that were refused or soon ended
	lastID   string // of the last event with an id, for the server to go on from
	pause    time.Duration
}

// calmStream is how long a stream must have lasted for the next one not to wait longer
// than the one before.
const calmStream = 10 * time.Second

// stand opens the standing stream. The first GET is made before the session is used: what
// servers say while nobody listens, most of them forget. But no longer than sideTime: some
// send the reply's header along with the first event.
func (c *streamable) stand() {
	c.of.standing.Store(true)
	b := &standing{c: c}
	b.advance(sideTime)
	c.work.Go(b.run)
}

// stands reports whether the session is to have a standing stream.
func (c *streamable) stands() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listen || c.watch && c.updates
}

// run reads the streams until the session ends.
func (b *standing) run() {
	defer b.end()
	for b.resp != nil || b.wait() {
		b.advance(0)
	}
}

// advance opens a stream, whose reply must have begun within patience (0: at any time), or
// reads one event of the one that there is. A panic costs that stream, and counts like one
// that broke.
func (b *standing) advance(patience time.Duration) {
	defer transport.Recover(b.c.log, func(*transport.Failure) {
		b.end()
		b.failures++
	})
	if b.resp == nil {
		b.open(patience)
		return
	}
	b.step()
}

// wait waits before the next GET. It returns false if there is to be none.
func (b *standing) wait() bool {
	d := transport.Backoff(b.failures)
	if b.pause > 0 && b.failures < 2 {
		d = b.pause // as the server asked for
	}
	return !b.over && transport.Pause(b.c.ctx, d)
}

// open makes a GET.
func (b *standing) open(patience time.Duration) {
	// An exchange of its own: each GET may renew a token once.
	ctx, cut := context.WithCancel(context.WithValue(b.c.ctx, exchangeKey{}, &exchange{session: b.c.of}))
	b.failures++
	r, err := b.c.request(ctx, http.MethodGet, nil)
	if err != nil {
		cut()
		return
	}
	if b.lastID != "" {
		r.Header.Set("Last-Event-ID", b.lastID)
	}
	if patience > 0 {
		late := time.AfterFunc(patience, cut)
		defer late.Stop()
	}
	resp, err := b.c.way.RoundTrip(r)
	switch {
	case err != nil:
		cut()
	case resp.StatusCode == http.StatusOK && mediaType(resp) == "text/event-stream":
		b.c.of.hears(true)
		b.resp, b.cut, b.opened, b.requests = resp, cut, time.Now(), 0
		b.in = newEventReader(resp.Body)
	default:
		b.refused(resp)
		cut()
	}
}

// refused is a reply that is no stream. One that says that the server has none is
// taken at its word, as 404 is where none was ever there (go-sdk#393); others may be
// different the next time.
func (b *standing) refused(resp *http.Response) {
	body := drain(resp, maxError)
	status := resp.StatusCode
	switch {
	case !b.opened.IsZero() && b.c.SessionID() != "" && forgets(status, body):
		b.over = true
		b.c.of.forgotten()
	case status < 300, status == http.StatusMethodNotAllowed, status == http.StatusNotFound, status == http.StatusNotImplemented:
		b.over = true
		b.c.log.Warn("MCP server has no standalone stream", "status", status)
	}
}

// end ends the stream that there is. What the server says from now on is missed.
func (b *standing) end() {
	if b.resp == nil {
		return
	}
	if time.Since(b.opened) > calmStream {
		b.failures = 0
	}
	b.cut()
	_ = b.resp.Body.Close()
	b.resp = nil
	b.c.of.hears(false)
}

// step reads one message.
func (b *standing) step() {
	msg, err := b.in.next()
	if id := b.in.lastID(); id != "" {
		b.lastID = id
	}
	if d := b.in.retry(); d > 0 {
		b.pause = d
	}
	if err != nil {
		b.end() // whatever comes next on it is no better
		return
	}
	// A Response answers nothing that was asked here.
	if m, ok := msg.(*jsonrpc.Request); ok {
		m.Params = bytes.Clone(m.Params)
		b.message(m)
	}
}

// message deals with one message of the server.
func (b *standing) message(m *jsonrpc.Request) {
	switch {
	case m.IsCall():
		// The SDK answers each one with a POST of ours.
		if b.requests++; b.requests > maxServerRequests {
			b.end()
			return
		}
		// The error is the end of the session.
		_ = b.c.deliver(b.c.ctx, b.c.of.asked.tag(m, b.c.of.company.alone()))
	case m.Method == "notifications/progress":
		b.c.of.company.report(m.Params)
	case m.Method == "notifications/message":
		if x := b.c.of.company.alone(); x != nil {
			x.logged(m.Params)
		}
	default:
		b.c.of.changed(m.Method, m.Params)
	}
}
