package sse

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
)

// ErrTooLarge means that an event or a comment exceeds the reader's bound.
var ErrTooLarge = errors.New("sse: event exceeds the size limit")

// Bounds of a Reader, in bytes.
const (
	defaultMaxEvent = 1 << 20
	firstBuffer     = 2 << 10
	maxEmptyReads   = 100 // reads without data or an error in sequence, as in bufio
)

// byteOrderMark may begin a stream and is ignored.
var byteOrderMark = []byte("\ufeff")

// Reader reads events from a stream. It supports LF, CR and CRLF, a byte order mark, comments,
// data with several lines, and unknown fields. It keeps the last id and the retry time, for
// reconnecting. It may be used by one goroutine.
type Reader struct {
	src      io.Reader
	maxEvent int

	buf      []byte // buf[start:end] was read and is not used yet
	start    int
	end      int
	scanned  int    // bytes of buf[start:end] that have no line break
	err      error  // of the source
	begun    bool   // the stream's first bytes were checked for a byte order mark
	skipLF   bool   // the last line ended in CR, so a following LF belongs to it
	size     int    // bytes of the event so far, with line breaks
	data     []byte // of the event so far
	hasData  bool   // the event has a data field, which may be empty
	hasID    bool   // the event has an id field, which may be empty
	lastName string // of the previous event; most events repeat it, which saves an allocation
	lastID   string // the same for the id

	eventID string        // of the last event that had one
	retry   time.Duration // 0 if the stream has not set one
	cut     bool          // see Cut
}

// NewReader returns a Reader of r. maxEvent bounds the bytes of one event, all its lines together,
// and of one comment; 0 or less means 1 MiB. The reader uses at most three times as much memory,
// and 4 KiB at first.
func NewReader(r io.Reader, maxEvent int) *Reader {
	if maxEvent <= 0 {
		maxEvent = defaultMaxEvent
	}
	return &Reader{src: r, maxEvent: maxEvent}
}

// LastEventID returns the id of the last event that had one, even if that had no data. It returns "" if that
// id is empty: the stream then cannot be resumed. An event that lacks its closing blank line does not count,
// because the rest of it may be missing (Cut).
func (r *Reader) LastEventID() string { return r.eventID }

// Retry returns the reconnection time that the stream has set last, or 0 if it has set none.
func (r *Reader) Retry() time.Duration { return r.retry }

// Cut reports whether the last event lacked its closing blank line. The stream may then have ended
// in the middle of it.
func (r *Reader) Cut() bool { return r.cut }

// Next returns the next event that has a data field. Data belongs to the reader and is valid until
// the next call. The Event of an event without a name is "".
//
// At the end of the stream it returns io.EOF. If the last event lacks its closing blank line, Next
// returns it before that: the standard would drop it, but model endpoints leave out that line.
// ErrTooLarge and errors of the source end the stream, and an event that they interrupt is not
// returned.
func (r *Reader) Next() (Frame, error) {
	var frame Frame
	r.data, r.hasData, r.hasID, r.size = r.data[:0], false, false, 0
	for {
		line, err := r.readLine()
		if err != nil {
			if err == io.EOF && r.hasData {
				r.cut = true
				frame.Data = r.data
				return frame, nil
			}
			return Frame{}, err
		}
		switch {
		case len(line) > 0 && line[0] == ':':
			// Comments before an event, such as heartbeats, do not count towards its size: there can
			// be any number of them.
			if !r.hasData && frame.Event == "" && !r.hasID {
				r.size = 0
			}
		case len(line) > 0:
			r.parseField(&frame, line)
		case r.hasData:
			r.finishEvent(&frame)
			return frame, nil
		default: // an event without data is ignored, except for its id
			r.finishEvent(&frame)
			frame = Frame{}
			r.hasID = false
			r.size = 0
		}
	}
}

// finishEvent sets the data of the frame and keeps its id.
func (r *Reader) finishEvent(f *Frame) {
	if r.hasID {
		r.eventID = f.ID
	}
	f.Data = r.data
}

// parseField sets the field of frame that a "name: value" line has, or the retry time.
func (r *Reader) parseField(frame *Frame, line []byte) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "data":
		if r.hasData {
			r.data = append(r.data, '\n')
		}
		r.data = append(r.data, value...)
		r.hasData = true
	case "event":
		frame.Event = cachedString(&r.lastName, value)
	case "id":
		// The standard ignores an id that holds NUL.
		if bytes.IndexByte(value, 0) < 0 {
			frame.ID, r.hasID = cachedString(&r.lastID, value), true
		}
	case "retry":
		if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
			r.retry = time.Duration(ms) * time.Millisecond
		}
	}
}

// cachedString returns value as a string. If it is the same as the last one, it returns that
// without an allocation. Invalid UTF-8 becomes U+FFFD, as in a browser.
func cachedString(last *string, value []byte) string {
	if *last != string(value) {
		*last = strings.ToValidUTF8(string(value), "\ufffd")
	}
	return *last
}

// readLine returns the next line without its line break, valid until the next call. At the end of
// the stream, text without a line break counts as a line.
func (r *Reader) readLine() ([]byte, error) {
	for {
		r.skipPrefix()
		window := r.buf[r.start:r.end]
		if i := lineEnd(window, r.scanned); i >= 0 {
			r.skipLF = window[i] == '\r'
			return r.takeLine(i, 1)
		}
		r.scanned = len(window)
		if r.size+len(window) > r.maxEvent {
			r.err = ErrTooLarge
			r.end = 0
			r.start = 0
			r.scanned = 0
			return nil, ErrTooLarge
		}
		if r.err != nil {
			if r.err == io.EOF && len(window) > 0 {
				return r.takeLine(len(window), 0)
			}
			return nil, r.err
		}
		r.fillBuffer()
	}
}

// skipPrefix skips a byte order mark at the start of the stream, and the LF of a CRLF whose CR has
// ended the previous line. It does not wait for either: otherwise an event of a stream that uses
// CR would be delayed until the next byte arrives.
func (r *Reader) skipPrefix() {
	window := r.buf[r.start:r.end]
	if len(window) == 0 {
		return
	}
	if !r.begun {
		if len(window) < len(byteOrderMark) && bytes.HasPrefix(byteOrderMark, window) && r.err == nil {
			return // a line cannot end before the mark is complete
		}
		r.begun = true
		if bytes.HasPrefix(window, byteOrderMark) {
			r.start += len(byteOrderMark)
			r.scanned = 0
			return
		}
	}
	if r.skipLF {
		r.skipLF = false
		if window[0] == '\n' {
			r.start++
			r.scanned = 0
		}
	}
}

// takeLine returns the next n bytes as a line and skips the line break after them.
func (r *Reader) takeLine(n, ending int) ([]byte, error) {
	r.size += n + ending
	if r.size > r.maxEvent {
		r.err = ErrTooLarge
		r.end = 0
		r.start = 0
		r.scanned = 0
		return nil, ErrTooLarge
	}
	line := r.buf[r.start : r.start+n]
	r.start += n + ending
	r.scanned = 0
	return line, nil
}

// fillBuffer reads from the source once. It doubles a full buffer. readLine calls it only while
// the line may be within maxEvent, which bounds the buffer.
func (r *Reader) fillBuffer() {
	if r.start > 0 {
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
	if r.end == len(r.buf) {
		grown := make([]byte, max(2*len(r.buf), firstBuffer))
		copy(grown, r.buf[:r.end])
		r.buf = grown
	}
	for range maxEmptyReads {
		n, err := r.src.Read(r.buf[r.end:])
		r.end += n
		if err != nil {
			r.err = err
		}
		if n > 0 || err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}
