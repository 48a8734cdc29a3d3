package client

import (
	"context"
	"errors"
	"io"
	"net/http"

	"answerd/internal/sse"
)

const maxEventBytes = 8 << 20 // of one event of a stream

// ErrNoEvents says that a stream has no events after the position that was asked for: the run has ended.
var ErrNoEvents = errors.New("the run ended, and its last event was lost")

// Stream reads the events of a run as they happen.
type Stream struct {
	body   io.ReadCloser
	events *sse.Reader
}

// Stream sends a request whose response is a stream of events. The caller must close the stream.
func (c *Client) Stream(ctx context.Context, method, path string, body any, header http.Header) (*Stream, error) {
	header = header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	header.Set("Accept", "text/event-stream")
	resp, err := c.Open(ctx, method, path, body, header)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNoContent {
		resp.Body.Close()
		return nil, ErrNoEvents
	}
	return &Stream{resp.Body, sse.NewReader(resp.Body, maxEventBytes)}, nil
}

// Next returns the next event. At the end of the stream the error is io.EOF, whether or not the run has ended.
// If the stream ends in the middle of an event, the error is io.ErrUnexpectedEOF, and the event is not returned: its
// id is that of an event which the caller does not have. A response without chunks, such as that of HTTP/1.0 which
// nginx asks for by default, can end there without another error.
func (s *Stream) Next() (sse.Frame, error) {
	frame, err := s.events.Next()
	if err == nil && s.events.Cut() {
		return sse.Frame{}, io.ErrUnexpectedEOF
	}
	return frame, err
}

// Close ends the request.
func (s *Stream) Close() { s.body.Close() }
