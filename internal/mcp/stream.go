package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// stream is a server's event stream as the SDK may see it: checked, bounded, and
// only what concerns the SDK. Progress and log messages go to the call's own queue as
// they are read, so what came before the answer is there before the answer, and a
// flood of them never reaches the SDK's unbounded queue. At most one answer passes, to the
// request that the stream belongs to; after it the body is only read to its end.
type stream struct {
	x    *exchange
	id   jsonrpc.ID
	body io.ReadCloser
	log  *slog.Logger
	eventReader
	out      []byte // for the SDK, not read yet
	requests int    // the server's own requests so far
	hasID    bool   // an event had an id, so the stream can be resumed
	answered bool
	spoken   bool  // there was a message for the SDK
	taken    bool  // the answer is one that the SDK needs not see
	err      error // what Read returns once out is empty
}

// newStream is the stream in body, which the exchange must have counted as opened.
func newStream(x *exchange, id jsonrpc.ID, body io.ReadCloser, log *slog.Logger) *stream {
	return &stream{x: x, id: id, body: body, log: log, eventReader: eventReader{in: bufio.NewReader(body)}}
}

// Read gives the SDK what passed. It reads on only when that is used up, so a slow
// SDK slows the server down and nothing piles up here.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.out) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		s.step()
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

// takes reads on until there is something for the SDK, and reports whether that is an
// answer which it needs not see, with nothing before it.
func (s *stream) takes() bool {
	// Ids are kept, for the SDK to resume with.
	for !s.spoken && len(s.out) < maxError && s.err == nil {
		s.step()
	}
	return s.taken && s.err == nil
}

// finish reads a stream that was taken to its end.
func (s *stream) finish() {
	s.step()
	_ = s.Close() // the exchange has its answer
}

// Close closes the body and tells the exchange.
func (s *stream) Close() error {
	err := s.body.Close()
	s.x.closed()
	return err
}

// step reads one event, or the rest of the body.
func (s *stream) step() {
	defer recovered(s.log, func(f *failure) { s.out, s.err = nil, s.x.abort(f) })
	if s.answered {
		// To the end, so that the connection is kept. See exchange.finish for a
		// server that holds it open.
		_, _ = io.CopyN(io.Discard, s.in, maxError)
		s.err = io.EOF
		return
	}
	e, err := s.event()
	if errors.Is(err, io.EOF) && json.Valid(e.data) {
		err = nil // some servers leave out the last blank line
	}
	switch f, bad := errors.AsType[*failure](err); {
	case bad:
		s.err = s.x.abort(f)
		return
	case err != nil:
		s.broken(err)
		return
	}
	if e.id != "" {
		s.hasID = true
		s.x.resumes.Store(0)
		s.out = append(append(s.out, "id: "...), e.id...)
		s.out = append(s.out, '\n')
	}
	if e.retry != "" {
		s.out = append(append(s.out, "retry: "...), e.retry...)
		s.out = append(s.out, '\n')
	}
	if len(e.data) > 0 {
		pass, f := s.message(e.data)
		if f != nil {
			s.out, s.err = nil, s.x.abort(f)
			return
		}
		if pass != nil {
			s.spoken = true
			// A line feed in valid JSON is only a blank.
			s.out = append(append(s.out, "data: "...), bytes.ReplaceAll(pass, []byte("\n"), []byte(" "))...)
			s.out = append(s.out, '\n')
		}
	}
	if len(s.out) > 0 {
		s.out = append(s.out, '\n')
	}
}

// broken is the end of the stream before the answer. The SDK resumes it if an event
// had an id; else the answer is lost, and the tool may have run (F15).
func (s *stream) broken(err error) {
	s.err = io.EOF
	if !s.hasID {
		s.x.fail(&failure{kind: UnknownOutcome, public: "the connection was cut before its answer", err: err})
	}
}

// message looks at one JSON-RPC message and returns what the SDK is to have of it.
func (s *stream) message(data []byte) ([]byte, *failure) {
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
		s.answered = true
		s.x.answer(m)
		data, s.taken = s.x.forSDK(m, data)
		return data, nil
	case *jsonrpc.Request:
		if m.IsCall() {
			// The SDK answers each one with a POST of ours.
			s.requests++
			if s.requests > maxServerRequests {
				return nil, badReply("too many requests in one stream", nil)
			}
			return s.request(m, data)
		}
		if m.Method == "notifications/progress" {
			s.x.report(m.Params)
			return nil, nil
		}
		if m.Method == "notifications/message" {
			s.x.logged(m.Params)
			return nil, nil
		}
		s.x.session.changed(m.Method, m.Params)
		return data, nil
	}
	return nil, nil
}

// request is a request of the server's, with the tag that tells our handler whose call
// it belongs to.
func (s *stream) request(m *jsonrpc.Request, data []byte) ([]byte, *failure) {
	tagged := s.x.session.asked.tag(m, s.x)
	if tagged == m {
		return data, nil
	}
	data, err := jsonrpc.EncodeMessage(tagged)
	if err != nil {
		return nil, badReply("a request does not encode", err)
	}
	return data, nil
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
