package mcp

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"answerd/internal/jsontext"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// stream is a server's event stream, checked and bounded. Progress and log messages go to
// the call's own queue as they are read, so what came before the answer is there before the
// answer, and a flood of them never reaches the SDK's unbounded queue. At most one answer
// passes, to the request that the stream belongs to; after it the body is only read to its
// end.
type stream struct {
	x    *exchange
	id   jsonrpc.ID
	body io.ReadCloser
	log  *slog.Logger
	eventReader
	requests int           // the server's own requests so far
	lastID   string        // of the last event with one, by which the stream can be resumed
	retry    time.Duration // that the server wants to be left alone for before; 0: it didn't say
}

// buffers are those of streams that have ended. Most streams bring one short answer, and
// their buffer was half of what a call allocates.
var buffers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

// newStream is the stream in body, which the exchange must have counted as opened.
func newStream(x *exchange, id jsonrpc.ID, body io.ReadCloser, log *slog.Logger) *stream {
	in := buffers.Get().(*bufio.Reader)
	in.Reset(body)
	return &stream{x: x, id: id, body: body, log: log, eventReader: eventReader{in: in}}
}

// next is the next message that concerns the SDK, or the answer, which is the last. The
// error is a *failure unless the stream broke.
func (s *stream) next() (msg jsonrpc.Message, err error) {
	defer recovered(s.log, func(f *failure) { msg, err = nil, f })
	for {
		e, err := s.event()
		if errors.Is(err, io.EOF) && jsontext.Valid(e.data) {
			err = nil // some servers leave out the last blank line
		}
		if err != nil {
			return nil, err
		}
		if e.id != "" {
			s.lastID = e.id
		}
		if e.retry > 0 {
			s.retry = e.retry
		}
		if len(e.data) == 0 {
			continue
		}
		if msg, f := s.message(e.data); f != nil {
			return nil, f
		} else if msg != nil {
			return msg, nil
		}
	}
}

// finish reads a stream that was answered to its end, so that the connection is kept. See
// exchange.finish for a server that holds it open.
func (s *stream) finish() {
	survived(s.log, func() { _, _ = io.CopyN(io.Discard, s.in, maxError) })
	s.close()
}

// close closes the body and tells the exchange. It is the last thing that is done with s.
func (s *stream) close() {
	_ = s.body.Close() // whatever comes of it, nothing is lost
	s.in.Reset(nil)
	buffers.Put(s.in)
	s.x.closed()
}

// message looks at one JSON-RPC message and returns it if it concerns the SDK, or is the
// answer.
func (s *stream) message(data []byte) (jsonrpc.Message, *failure) {
	msg, err := s.x.decode(data)
	if err != nil {
		s.x.salvage(s.id, data)
		return nil, badReply("an event does not decode", err)
	}
	// A message is progress of a kind: only silence and noise are bounded by size.
	// How long a call may take in all is bounded by its limit.
	s.quiet = 0
	s.x.limit.touch()
	switch m := msg.(type) {
	case *jsonrpc.Response:
		if m.ID != s.id {
			return nil, badReply("it answers another request", nil)
		}
		s.x.answer(m)
		return m, nil
	case *jsonrpc.Request:
		if m.IsCall() {
			// The SDK answers each one with a POST of ours.
			s.requests++
			if s.requests > maxServerRequests {
				return nil, badReply("too many requests in one stream", nil)
			}
			// With the tag that tells our handler whose call it belongs to.
			return s.x.session.asked.tag(m, s.x), nil
		}
		switch m.Method {
		case "notifications/progress":
			s.x.report(m.Params)
			return nil, nil
		case "notifications/message":
			s.x.logged(m.Params)
			return nil, nil
		}
		s.x.session.changed(m.Method, m.Params)
		return m, nil
	}
	return nil, nil
}

// report gives a progress notification to whoever asked for it with this exchange's
// token.
func (x *exchange) report(params json.RawMessage) {
	var p struct {
		Token    any     `json:"progressToken"`
		Progress float64 `json:"progress"`
		Total    float64 `json:"total"`
		Message  string  `json:"message"`
	}
	if x.notes == nil || x.token == "" || json.Unmarshal(params, &p) != nil || p.Token != x.token {
		return
	}
	x.notes.put(note{progress: &Progress{Progress: p.Progress, Total: p.Total, Message: cut(p.Message, maxProgressText)}})
}
