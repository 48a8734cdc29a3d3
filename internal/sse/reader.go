package sse

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
)

// ErrTooLarge means that an event or a comment exceeds the reader's maxEvent.
var ErrTooLarge = errors.New("sse: event exceeds the size limit")

// Bounds of a Reader.
const (
	defaultMaxEvent = 1 << 20 // bytes
	firstBuffer     = 2 << 10 // bytes
	maxEmptyReads   = 100     // reads without data or an error in sequence, as in bufio
)

// byteOrderMark may begin a stream and is ignored.
var byteOrderMark = []byte("\ufeff")

// Reader reads events from a stream. It supports LF, CR and CRLF, a byte order mark, comments,
// data with several lines, and unknown fields. It keeps the last id and the retry time, for
// reconnecting. It may be used by one goroutine.
type Reader struct {
	src      io.Reader
	maxEvent int // bytes

	buf        []byte // buf[start:end] was read from src and is not part of a line yet
	start      int
	end        int
	scanned    int   // number of bytes from start on that were searched, and have no line break
	err        error // the error of src, or ErrTooLarge; no more is read then
	checkedBOM bool  // the stream's first bytes were checked for a byte order mark
	skipLF     bool  // the last line ended in CR, so a following LF belongs to its line break

	// The state of the event that Next reads.
	size    int    // bytes so far, with line breaks
	data    []byte // the data so far
	hasData bool   // the event has a data field, which may be empty
	hasID   bool   // the event has an id field, which may be empty

	cachedEvent string // the last event field, see cachedString
	cachedID    string // the last id field

	lastEventID string        // see LastEventID
	retry       time.Duration // see Retry
	cut         bool          // see Cut
}

// NewReader returns a Reader of r. maxEvent bounds the bytes of one event, all its lines together,
// and of one comment; 0 or less means 1 MiB. The reader uses memory of at most three times maxEvent,
// and 4 KiB at first.
func NewReader(r io.Reader, maxEvent int) *Reader {
	if maxEvent <= 0 {
		maxEvent = defaultMaxEvent
	}
	return &Reader{src: r, maxEvent: maxEvent}
}

// LastEventID returns the id of the last event that had an id, with or without data. It returns "" if that
// id is empty, or no event had one: the stream cannot be resumed then. An event that lacks its closing blank line does
// not count, because a part of it may be missing (Cut).
func (r *Reader) LastEventID() string { return r.lastEventID }

// Retry returns the last reconnection time that the stream has set, or 0 if it has not set any.
func (r *Reader) Retry() time.Duration { return r.retry }

// Cut reports whether the last event that Next returned lacked its closing blank line. The stream may have ended
// in the middle of that event.
func (r *Reader) Cut() bool { return r.cut }

// Next waits for the next event that has a data field, and returns it. Data belongs to the reader and is valid until
// the next call. ID is that of this event, and "" if it has none; see LastEventID.
//
// At the end of the stream, Next returns io.EOF. An event at the end that lacks its closing blank line is returned
// before io.EOF, and Cut is true then. The standard would drop this event, but model endpoints leave out the line.
// ErrTooLarge and errors of the source end the stream: every later call returns the same error. An event that such an
// error interrupts is not returned.
func (r *Reader) Next() (Frame, error) {
	var frame Frame
	r.data, r.hasData, r.hasID, r.size = r.data[:0], false, false, 0
	for {
		line, err := r.readLine()
		hasFields := r.hasData || r.hasID || frame.Event != ""
		switch {
		case err == io.EOF && r.hasData:
			r.cut = true
			frame.Data = r.data
			return frame, nil
		case err != nil:
			return Frame{}, err
		case len(line) > 0 && line[0] == ':' && hasFields: // a comment
		case len(line) > 0 && line[0] == ':':
			// Comments before the first field of an event, such as heartbeats, do not count towards its size:
			// there can be any number of them.
			r.size = 0
		case len(line) > 0:
			r.parseField(&frame, line)
		default: // a blank line ends the event
			if r.hasID {
				r.lastEventID = frame.ID
			}
			if r.hasData {
				frame.Data = r.data
				return frame, nil
			}
			// An event without data is ignored, except for its id.
			frame, r.hasID, r.size = Frame{}, false, 0
		}
	}
}

// parseField reads a line "name: value". It sets the ID or the Event of frame, adds the value to r.data, or sets
// r.retry. It ignores unknown names and invalid values.
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
		frame.Event = cachedString(&r.cachedEvent, value)
	case "id":
		// The standard ignores an id that contains NUL.
		if bytes.IndexByte(value, 0) < 0 {
			frame.ID = cachedString(&r.cachedID, value)
			r.hasID = true
		}
	case "retry":
		if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
			r.retry = time.Duration(ms) * time.Millisecond
		}
	}
}

// cachedString returns value as a string, and stores it in cache. If cache has the same string already, no memory is
// allocated: most events repeat the name of the previous event. Invalid UTF-8 becomes U+FFFD, as in a browser.
func cachedString(cache *string, value []byte) string {
	if *cache != string(value) {
		*cache = strings.ToValidUTF8(string(value), "\ufffd")
	}
	return *cache
}

// readLine returns the next line without its line break. The line is valid until the next call. At the end of
// the stream, text without a line break counts as a line, and then readLine returns io.EOF.
func (r *Reader) readLine() ([]byte, error) {
	for {
		r.skipPrefix()
		unread := r.buf[r.start:r.end]
		if i := lineEnd(unread, r.scanned); i >= 0 {
			r.skipLF = unread[i] == '\r'
			return r.takeLine(i, 1)
		}
		r.scanned = len(unread)
		if r.size+len(unread) > r.maxEvent {
			return nil, r.failTooLarge()
		}
		if r.err == io.EOF && len(unread) > 0 {
			return r.takeLine(len(unread), 0)
		}
		if r.err != nil {
			return nil, r.err
		}
		r.fillBuffer()
	}
}

// failTooLarge drops the unread bytes and sets and returns r.err, so that every later read fails.
func (r *Reader) failTooLarge() error {
	r.err = ErrTooLarge
	r.start = 0
	r.end = 0
	r.scanned = 0
	return r.err
}

// skipPrefix skips a byte order mark at the start of the stream, and the LF of a CRLF whose CR has
// ended the previous line. It skips only bytes that are in the buffer. To read until it is known whether an LF follows
// a CR would delay each event of a stream that uses CR until the next byte arrives.
func (r *Reader) skipPrefix() {
	unread := r.buf[r.start:r.end]
	if len(unread) == 0 {
		return
	}
	if !r.checkedBOM {
		if len(unread) < len(byteOrderMark) && bytes.HasPrefix(byteOrderMark, unread) && r.err == nil {
			return // the mark may be incomplete; its bytes contain no line break, so readLine reads on
		}
		r.checkedBOM = true
		if bytes.HasPrefix(unread, byteOrderMark) {
			r.start += len(byteOrderMark)
			r.scanned = 0
			return
		}
	}
	if r.skipLF {
		r.skipLF = false
		if unread[0] == '\n' {
			r.start++
			r.scanned = 0
		}
	}
}

// takeLine returns the next n bytes as a line, and skips the line break of breakSize bytes after them. It adds both to
// the size of the event, and returns ErrTooLarge if the event exceeds maxEvent.
func (r *Reader) takeLine(n, breakSize int) ([]byte, error) {
	r.size += n + breakSize
	if r.size > r.maxEvent {
		return nil, r.failTooLarge()
	}
	line := r.buf[r.start : r.start+n]
	r.start += n + breakSize
	r.scanned = 0
	return line, nil
}

// fillBuffer waits until the source returns data or an error, and sets r.err to the error. It doubles the buffer if it
// is full. readLine calls it only while the unread bytes are within maxEvent, which bounds the buffer.
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
