package sse

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
)

// ErrTooLarge says that an event, or a comment, is longer than the reader's bound.
var ErrTooLarge = errors.New("sse: event exceeds the size limit")

// Bounds of a Reader, in bytes.
const (
	defaultMaxEvent = 1 << 20
	firstBuffer     = 2 << 10
	maxEmptyReads   = 100 // as bufio: a source that gives nothing so often never will
)

var byteOrderMark = []byte("\ufeff")

// Reader takes events from a stream. It understands LF, CR and CRLF, a byte order
// mark, comments, data over several lines and fields that it does not know, and
// keeps the last id and retry time for whoever reconnects. It is for one goroutine.
type Reader struct {
	src      io.Reader
	maxEvent int

	buf      []byte // what was read ahead is buf[start:end]
	start    int
	end      int
	scanned  int // of buf[start:end], how much is known to hold no line ending
	err      error
	begun    bool // the place where a byte order mark may stand is behind us
	skipLF   bool // the last line ended in CR: an LF that follows belongs to it
	size     int  // bytes of the event so far, its line endings included
	data     []byte
	hasData  bool
	lastName string // of the previous event: streams repeat it, so its string is kept
	lastID   string

	eventID string        // of the last event that had one
	retry   time.Duration // 0: the stream has named none
	cut     bool
}

// NewReader returns a Reader of r that takes at most maxEvent bytes for one event,
// all its lines together, and for one comment; 0 or less is 1 MiB. Memory follows
// from it: the reader holds at most three times as much, and 4 KiB to begin with.
func NewReader(r io.Reader, maxEvent int) *Reader {
	if maxEvent <= 0 {
		maxEvent = defaultMaxEvent
	}
	return &Reader{src: r, maxEvent: maxEvent}
}

// LastEventID returns the id of the last event that had one, with data or without.
func (r *Reader) LastEventID() string { return r.eventID }

// Retry returns the last reconnection time that the stream has named; 0 if none.
func (r *Reader) Retry() time.Duration { return r.retry }

// Cut reports whether the last event lacked its closing blank line: the stream may have
// ended in the middle of it.
func (r *Reader) Cut() bool { return r.cut }

// Next returns the next event that has a data line. Its Data is the reader's own
// and valid until the following call. The name of an event without one is "".
//
// At a clean end it returns io.EOF. What stands there without its closing blank
// line is delivered first: the standard would drop it, but model endpoints leave
// that line out of their last event. ErrTooLarge and the source's errors end the
// stream; an event that they cut is not delivered.
func (r *Reader) Next() (Frame, error) {
	var f Frame
	r.data, r.hasData, r.size = r.data[:0], false, 0
	for {
		line, err := r.readLine()
		if err != nil {
			if err == io.EOF && r.hasData {
				r.cut = true
				r.finishEvent(&f)
				return f, nil
			}
			return Frame{}, err
		}
		switch {
		case len(line) > 0 && line[0] == ':':
			// Heartbeats between events may go on for ever, so they do not add up.
			if !r.hasData && f.Event == "" && f.ID == "" {
				r.size = 0
			}
		case len(line) > 0:
			r.parseField(&f, line)
		case r.hasData:
			r.finishEvent(&f)
			return f, nil
		default: // a blank line after no data drops what came before it, but for the id
			r.finishEvent(&f)
			f, r.size = Frame{}, 0
		}
	}
}

// finishEvent ends the event f.
func (r *Reader) finishEvent(f *Frame) {
	if f.ID != "" {
		r.eventID = f.ID
	}
	f.Data = r.data
}

// parseField takes one "name: value" line into f.
func (r *Reader) parseField(f *Frame, line []byte) {
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
		f.Event = cachedString(&r.lastName, value)
	case "id":
		// The standard ignores an id that holds NUL.
		if bytes.IndexByte(value, 0) < 0 {
			f.ID = cachedString(&r.lastID, value)
		}
	case "retry":
		if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
			r.retry = time.Duration(ms) * time.Millisecond
		}
	}
}

// cachedString returns value as a string, the last one again if it is the same. Bytes that
// are not UTF-8 become U+FFFD, as in a browser's decoder.
func cachedString(last *string, value []byte) string {
	if *last != string(value) {
		*last = strings.ToValidUTF8(string(value), "\ufffd")
	}
	return *last
}

// readLine returns the next line without its ending, valid until the next call. Text
// before a clean end counts as a line; an empty rest does not.
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
			r.err, r.end, r.start, r.scanned = ErrTooLarge, 0, 0, 0
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

// skipPrefix passes over a byte order mark at the start of the stream and over the LF of
// a CRLF whose CR has already ended a line. Neither is waited for: a stream of bare
// CR must not be held up until its next byte comes.
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

// takeLine hands out n bytes of what was read and passes over the ending behind them.
func (r *Reader) takeLine(n, ending int) ([]byte, error) {
	if r.size += n + ending; r.size > r.maxEvent {
		r.err, r.end, r.start, r.scanned = ErrTooLarge, 0, 0, 0
		return nil, ErrTooLarge
	}
	line := r.buf[r.start : r.start+n]
	r.start += n + ending
	r.scanned = 0
	return line, nil
}

// fillBuffer reads more from the source, once. The buffer doubles until it holds the
// longest line that is allowed, then no more is asked of it.
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
