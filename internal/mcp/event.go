package mcp

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"
)

// maxEventID bounds the ids of events, in bytes: they come back as a header.
const maxEventID = 1 << 10

// eventReader reads server-sent events within bounds.
type eventReader struct {
	in    *bufio.Reader
	quiet int // bytes read since the last message; who reads it says when one came
}

// sseEvent is what of an event matters here.
type sseEvent struct {
	id    string        // fit for a header; "" where there is none
	retry time.Duration // 0 where there is none
	data  []byte
}

// event reads to the end of the next event. Comments, and events of other types,
// count as silence.
func (s *eventReader) event() (sseEvent, error) {
	var e sseEvent
	other := false
	for {
		line, own, err := s.line()
		if err != nil {
			return e, err
		}
		if len(line) == 0 {
			// MCP has no events but "message"; what others carry is not for us.
			if other {
				e.data = nil
			}
			return e, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			other = len(value) > 0 && string(value) != "message"
		case "id":
			if id := string(value); len(id) <= maxEventID && !badHeaderValue(id) {
				e.id = id
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 16); err == nil {
				// At most 65 s, since the call's time-out rules anyway; and never without a pause.
				e.retry = max(time.Duration(ms)*time.Millisecond, minBackoff/10)
			}
		case "data":
			switch {
			case e.data != nil:
				e.data = append(append(e.data, '\n'), value...)
			case own && len(value) > 0:
				e.data = value // a large result need not be copied once more
			default:
				e.data = append(e.data, value...)
			}
		}
	}
}

// line is the next line without its end; it is valid until the next read, unless its
// memory is its own.
func (s *eventReader) line() (_ []byte, own bool, _ error) {
	var long []byte
	for {
		part, err := s.in.ReadSlice('\n')
		if s.quiet += len(part); s.quiet > maxBody {
			return nil, false, tooLarge(maxBody)
		}
		if err == nil && long == nil {
			return bytes.TrimRight(part, "\r\n"), false, nil
		}
		if cap(long)-len(long) < len(part) {
			long = slices.Grow(long, len(long)+len(part)) // append alone grows by a quarter: five copies of a large result
		}
		long = append(long, part...)
		switch {
		case err == nil:
			return bytes.TrimRight(long, "\r\n"), true, nil
		case errors.Is(err, io.EOF) && len(long) > 0:
			return bytes.TrimRight(long, "\r\n"), true, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		}
	}
}
