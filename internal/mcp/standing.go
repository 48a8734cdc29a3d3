package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// standing is the stream of a session over HTTP that belongs to no request: the GET of
// the versions with sessions (2025-11-25 basic/transports, "Listening for Messages from
// the Server"). Updates of resources come on it, and what servers ask that don't say
// for which call they ask it.
//
// It is the body of the SDK's own GET, and never ends before the session does: the SDK
// gives a session up whose standing stream is refused, or breaks too often (facts,
// section 2, "Streams"). The GETs to the server are made here, by whoever reads the
// body, one after the other and with backoff. Of what comes the SDK is given the
// server's requests only, which it answers with POSTs.
type standing struct {
	next http.RoundTripper
	get  *http.Request // the SDK's; its context ends with the session
	s    *session
	log  *slog.Logger

	over     bool           // the server has no such stream, or no such session any more
	resp     *http.Response // nil while there is no stream
	in       eventReader
	cut      context.CancelFunc // ends resp
	requests int                // of the server, on this stream
	opened   time.Time
	failures int    // streams in a row that were refused or soon ended
	lastID   string // of the last event with an id, for the server to go on from
	pause    time.Duration
	out      []byte // for the SDK, not read yet
}

// calmStream is how long a stream must have lasted for the next one not to wait longer
// than the one before.
const calmStream = 10 * time.Second

// maxEventID bounds the ids of events, in bytes: they come back as a header.
const maxEventID = 1 << 10

// stand answers the SDK's GET for the standing stream, if this session is to have one.
// The first GET is made before the session is used: what servers say while nobody
// listens, most of them forget. But no longer than sideTime: some send the reply's
// header along with the first event.
func (g guard) stand(r *http.Request, x *exchange) (*http.Response, error) {
	if !g.stands(x.received()) {
		return emptyReply(r, http.StatusMethodNotAllowed), nil
	}
	b := &standing{next: g.next, get: r, s: x.session, log: g.log}
	x.session.standing.Store(true)
	b.open(sideTime)
	resp := emptyReply(r, http.StatusOK)
	resp.Header.Set("Content-Type", "text/event-stream")
	resp.Body = b
	return resp, nil
}

// stands reports whether a session is to have a standing stream, by the result of its
// initialize.
func (g guard) stands(initialized json.RawMessage) bool {
	var w struct {
		Capabilities struct {
			Resources struct {
				Subscribe bool `json:"subscribe"`
			} `json:"resources"`
		} `json:"capabilities"`
	}
	return g.listen || g.watch && json.Unmarshal(initialized, &w) == nil && w.Capabilities.Resources.Subscribe
}

// Read gives the SDK what concerns it. It returns nothing but that until the session
// ends.
func (b *standing) Read(p []byte) (int, error) {
	ctx := b.get.Context()
	for len(b.out) == 0 {
		if ctx.Err() != nil || b.resp == nil && !b.wait() {
			return 0, ctx.Err()
		}
		b.advance()
	}
	n := copy(p, b.out)
	b.out = b.out[n:]
	return n, nil
}

// advance opens a stream, or reads one event of the one that there is. A panic costs that
// stream, and counts like one that broke: this is a goroutine of the SDK's.
func (b *standing) advance() {
	defer recovered(b.log, func(*failure) {
		b.end()
		b.failures++
	})
	if b.resp == nil {
		b.open(0)
		return
	}
	b.step()
}

// Close ends the stream that there is.
func (b *standing) Close() error {
	b.end()
	return nil
}

// wait waits before the next GET. It returns false if the session has ended, which is
// all that there is to wait for when the streams are over.
func (b *standing) wait() bool {
	if b.over {
		<-b.get.Context().Done()
		return false
	}
	d := backoff(b.failures)
	if b.pause > 0 && b.failures < 2 {
		d = b.pause // as the server asked for
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.get.Context().Done():
		return false
	}
}

// open makes a GET, whose reply must have begun within patience; 0: at any time.
func (b *standing) open(patience time.Duration) {
	ctx, cut := context.WithCancel(b.get.Context())
	// An exchange of its own: each GET may renew a token once.
	x := &exchange{session: b.s}
	r := b.get.Clone(context.WithValue(ctx, exchangeKey{}, x))
	if b.lastID != "" {
		r.Header.Set("Last-Event-ID", b.lastID)
	}
	if patience > 0 {
		late := time.AfterFunc(patience, cut)
		defer late.Stop()
	}
	resp, err := b.next.RoundTrip(r)
	b.failures++
	switch {
	case err != nil:
		cut()
	case resp.StatusCode == http.StatusOK && mediaType(resp) == "text/event-stream":
		b.s.hears(true)
		b.resp, b.cut, b.opened, b.requests = resp, cut, time.Now(), 0
		b.in = eventReader{in: bufio.NewReader(resp.Body)}
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
	case !b.opened.IsZero() && b.get.Header.Get(sessionHeader) != "" && forgets(status, body):
		b.over = true
		b.s.forgotten()
	case status < 300, status == http.StatusMethodNotAllowed, status == http.StatusNotFound, status == http.StatusNotImplemented:
		b.over = true
		b.log.Warn("MCP server has no standalone stream", "status", status)
	}
}

// forgets reports whether a refusal of a request with a session id says that the
// session is gone: 404 does, whatever the body says (2025-11-25 basic/transports); the
// TypeScript SDK's servers answer 400.
func forgets(status int, body []byte) bool {
	return status == http.StatusNotFound ||
		status == http.StatusBadRequest && bytes.Contains(bytes.ToLower(body), []byte("session"))
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
	b.s.hears(false)
}

// step reads one event.
func (b *standing) step() {
	e, err := b.in.event()
	if err != nil {
		b.end()
		return
	}
	if e.id != "" && len(e.id) <= maxEventID && !badHeaderValue(e.id) {
		b.lastID = e.id
	}
	if ms, err := strconv.Atoi(e.retry); err == nil {
		b.pause = max(time.Duration(ms)*time.Millisecond, minBackoff/10)
	}
	if len(e.data) == 0 {
		return
	}
	b.in.quiet = 0
	msg, err := jsonrpc.DecodeMessage(e.data)
	if err != nil {
		b.end() // whatever comes next on it is no better
		return
	}
	// A Response answers nothing that was asked here.
	if m, ok := msg.(*jsonrpc.Request); ok {
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
		data, err := jsonrpc.EncodeMessage(b.s.asked.tag(m, b.s.company.alone()))
		if err == nil {
			b.out = fmt.Appendf(b.out, "data: %s\n\n", data)
		}
	case m.Method == "notifications/progress":
		b.s.company.report(m.Params)
	case m.Method == "notifications/message":
		if x := b.s.company.alone(); x != nil {
			x.logged(m.Params)
		}
	default:
		b.s.changed(m.Method, m.Params)
	}
}

var _ io.ReadCloser = (*standing)(nil)
