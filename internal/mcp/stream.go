package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"
	"answerd/internal/sse"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// maxEventID bounds the ids of events, in bytes: they come back as a header.
const maxEventID = 1 << 10

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
	requests int // the server's own requests so far
}

// newStream returns the stream in body, which the exchange must have counted as opened.
func newStream(x *exchange, id jsonrpc.ID, body io.ReadCloser, log *slog.Logger) *stream {
	return &stream{x: x, id: id, body: body, log: log, eventReader: newEventReader(body)}
}

// eventReader reads the messages of an event stream.
type eventReader struct {
	in    *sse.Reader
	noise *noise
}

// noise counts what is read of a stream. Comments and events without a message are silence,
// and bounded together like one message.
type noise struct {
	in io.Reader
	n  int
}

// Read implements io.Reader.
func (r *noise) Read(p []byte) (int, error) {
	if r.n > maxBody {
		return 0, transport.AnswerTooLarge(maxBody)
	}
	n, err := r.in.Read(p)
	r.n += n
	return n, err
}

func newEventReader(body io.Reader) eventReader {
	n := &noise{in: body}
	return eventReader{sse.NewReader(n, maxBody), n}
}

// next returns the next message, which is valid until the following call.
func (r *eventReader) next() (jsonrpc.Message, error) {
	for {
		e, err := r.in.Next()
		if errors.Is(err, sse.ErrTooLarge) {
			err = transport.AnswerTooLarge(maxBody)
		}
		if err != nil {
			return nil, err
		}
		// MCP has no events but "message"; what others carry is not for us.
		if len(e.Data) == 0 || e.Event != "" && e.Event != "message" {
			continue
		}
		msg, err := decodeMessage(e.Data)
		if err != nil && r.in.Cut() {
			return nil, io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, transport.BadReply("an event does not decode", err)
		}
		r.noise.n = 0
		return msg, nil
	}
}

// lastID returns the id of the last event, by which the stream can be resumed; "" where
// there is none, or none that is fit for a header.
func (r *eventReader) lastID() string {
	if id := r.in.LastEventID(); len(id) <= maxEventID && !strings.ContainsFunc(id, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return id
	}
	return ""
}

// retry returns how long the server wants to be left alone before its stream is resumed; 0:
// it didn't say.
func (r *eventReader) retry() time.Duration {
	if d := r.in.Retry(); d > 0 {
		return min(max(d, transport.MinBackoff/10), transport.MaxRetryAfter)
	}
	return 0
}

// next returns the next message that concerns the SDK, or the answer, which is the last. The
// error is a *failure unless the stream broke.
func (s *stream) next() (msg jsonrpc.Message, err error) {
	defer transport.Recover(s.log, func(f *transport.Failure) { msg, err = nil, f })
	for {
		msg, err := s.eventReader.next()
		if err != nil {
			return nil, err
		}
		if msg, f := s.message(msg); f != nil {
			return nil, f
		} else if msg != nil {
			return msg, nil
		}
	}
}

// finish reads a stream that was answered to its end, so that the connection is kept. See
// exchange.finish for a server that holds it open.
func (s *stream) finish() {
	survived(s.log, func() { _, _ = io.CopyN(io.Discard, s.body, maxError) })
	s.close()
}

// close closes the body and tells the exchange. It is the last thing that is done with s.
func (s *stream) close() {
	_ = s.body.Close() // whatever comes of it, nothing is lost
	s.x.closed()
}

// message looks at one JSON-RPC message and returns it if it concerns the SDK, or is the
// answer.
func (s *stream) message(msg jsonrpc.Message) (jsonrpc.Message, *transport.Failure) {
	// A message is progress of a kind: only silence and noise are bounded by size.
	// How long a call may take in all is bounded by its limit.
	s.x.limit.touch()
	switch m := msg.(type) {
	case *jsonrpc.Response:
		if m.ID != s.id {
			return nil, transport.BadReply("it answers another request", nil)
		}
		return m, nil // nothing is read after it, so it keeps its memory
	case *jsonrpc.Request:
		m.Params = bytes.Clone(m.Params)
		if m.IsCall() {
			// The SDK answers each one with a POST of ours.
			s.requests++
			if s.requests > maxServerRequests {
				return nil, transport.BadReply("too many requests in one stream", nil)
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
	x.notes.enqueue(notification{progress: &Progress{Progress: p.Progress, Total: p.Total, Message: wire.Truncate(p.Message, maxProgressText)}})
}
