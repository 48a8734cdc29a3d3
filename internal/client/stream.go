package client

import (
	"context"
	"errors"
	"io"
	"net/http"

	"answerd/internal/sse"
)

const maxEventBytes = 8 << 20 // bounds one event of a stream

// ErrNoEvents is the error of Client.Stream if the run has ended and has no events after the requested position (204).
var ErrNoEvents = errors.New("the run ended, and its last event was lost")

// Stream reads the events of a run as they happen.
type Stream struct {
	body   io.ReadCloser
	events *sse.Reader
}

// Stream sends a request as Open does and returns the response as a stream of events. The caller must close the stream.
// If the run has no more events, the error is ErrNoEvents.
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
	return &Stream{body: resp.Body, events: sse.NewReader(resp.Body, maxEventBytes)}, nil
}

// Next waits for the next event and returns it. The frame is valid until the next call. At the end of the stream the
// error is io.EOF, whether or not the run has ended.
//
// If the stream ends in the middle of an event, the error is io.ErrUnexpectedEOF, and Next does not return that event:
// its id must not be used to resume. net/http does not detect such an end if the response is not chunked, as with
// HTTP/1.0, which nginx uses by default.
func (s *Stream) Next() (sse.Frame, error) {
	frame, err := s.events.Next()
	if err == nil && s.events.Cut() {
		return sse.Frame{}, io.ErrUnexpectedEOF
	}
	return frame, err
}

// Close ends the request. The run may continue without this reader.
func (s *Stream) Close() { s.body.Close() }
