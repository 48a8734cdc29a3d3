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

// Limits of a Reader.
const (
	defaultMaxEvent = 1 << 20 // bytes
	firstBuffer     = 2 << 10 // bytes
	maxEmptyReads   = 100     // consecutive reads without data or an error, as in bufio
)

// byteOrderMark may be at the start of a stream, where it is ignored.
var byteOrderMark = []byte("\ufeff")

// Reader reads events from a stream. It supports LF, CR and CRLF, a byte order mark, comments, data with several lines,
// and unknown fields. It keeps the last id and the retry time, which a client needs to reconnect. It may be used by one
// goroutine at a time.
type Reader struct {
	src      io.Reader
	maxEvent int // maximum size of an event in bytes

	buf        []byte // buf[start:end] was read from src but not yet returned as a line
	start      int
	end        int
	scanned    int   // number of bytes from start that are known to have no line break
	err        error // the error of src, or ErrTooLarge; once it is set, src is not read any more
	checkedBOM bool  // the start of the stream was checked for a byte order mark
	skipLF     bool  // the last line ended in CR, so a following LF belongs to its line break

	// The state of the event that Next reads.
	size    int    // number of bytes so far, including line breaks
	data    []byte // the data so far
	hasData bool   // the event has a data field, which may be empty
	hasID   bool   // the event has an id field, which may be empty

	cachedEvent string // value of the last event field, see cachedString
	cachedID    string // value of the last id field

	lastEventID string        // see LastEventID
	retry       time.Duration // see Retry
	cut         bool          // see Cut
}

// NewReader returns a Reader that reads from r. maxEvent is the maximum size in bytes of one event with all its lines,
// and of one comment. If it is 0 or less, the maximum is 1 MiB. The Reader uses at most three times as much memory, and
// 4 KiB at first.
func NewReader(r io.Reader, maxEvent int) *Reader {
	if maxEvent <= 0 {
		maxEvent = defaultMaxEvent
	}
	return &Reader{src: r, maxEvent: maxEvent}
}

// LastEventID returns the id of the last event that had one, even if that event had no data. It returns "" if that id
// is empty or if no event had an id, which means that the stream cannot be resumed. An event without its closing blank
// line does not count, because a part of it may be missing (see Cut).
func (r *Reader) LastEventID() string { return r.lastEventID }

// Retry returns the last reconnection time that the stream has sent, or 0 if it has sent none.
func (r *Reader) Retry() time.Duration { return r.retry }

// Cut reports whether the last event that Next returned lacked its closing blank line. The stream may then have ended
// in the middle of that event.
func (r *Reader) Cut() bool { return r.cut }

// Next waits for the next event that has a data field, and returns it. Frame.Data belongs to the Reader and is valid
// until the next call. Frame.ID is "" if this event has no id (see LastEventID).
//
// At the end of the stream, Next returns io.EOF. If the last event lacks its closing blank line, Next returns the event
// before io.EOF, and Cut then returns true. The standard would drop this event, but some model endpoints leave out the
// line. ErrTooLarge and errors of the source end the stream: Next drops the unfinished event, and every later call
// returns the same error.
func (r *Reader) Next() (Frame, error) {
	var frame Frame
	r.data = r.data[:0]
	r.hasData, r.hasID, r.size = false, false, 0
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
		case len(line) > 0 && line[0] == ':': // a comment
			// Comments before an event's first field, such as heartbeats, do not count towards its size, because any
			// number of them may precede it.
			if !hasFields {
				r.size = 0
			}
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
			// An event without data is ignored except for its id.
			frame, r.hasID, r.size = Frame{}, false, 0
		}
	}
}

// parseField reads a line "name: value". It sets frame.ID, frame.Event or r.retry, or appends the value to r.data. It
// ignores unknown names and invalid values.
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

// cachedString returns value as a string and stores it in *cache. If *cache already has the same text, it allocates no
// memory, because most events repeat the name of the previous event. Invalid UTF-8 becomes U+FFFD, as in a browser.
func cachedString(cache *string, value []byte) string {
	if *cache != string(value) {
		*cache = strings.ToValidUTF8(string(value), "\ufffd")
	}
	return *cache
}

// readLine returns the next line without its line break. The line is valid until the next call. At the end of the
// stream, remaining text without a line break counts as a line. After that, readLine returns io.EOF.
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

// failTooLarge sets r.err to ErrTooLarge, so that every later read fails, drops the unread bytes, and returns r.err.
func (r *Reader) failTooLarge() error {
	r.err = ErrTooLarge
	r.start = 0
	r.end = 0
	r.scanned = 0
	return r.err
}

// skipPrefix skips a byte order mark at the start of the stream, and the LF of a CRLF whose CR has ended the previous
// line. It looks only at bytes that are already in the buffer. If it waited for the byte after a CR, each event of a
// stream that uses CR would be delayed until the next one arrives.
func (r *Reader) skipPrefix() {
	unread := r.buf[r.start:r.end]
	if len(unread) == 0 {
		return
	}
	if !r.checkedBOM {
		if len(unread) < len(byteOrderMark) && bytes.HasPrefix(byteOrderMark, unread) && r.err == nil {
			return // the mark may be incomplete: readLine reads more, because there is no line break yet
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

// takeLine returns the next n bytes as a line, and also consumes the line break of breakSize bytes after them. It adds
// both to the event's size, and returns ErrTooLarge if the size exceeds maxEvent.
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

// fillBuffer waits until the source returns data or an error, and stores the error in r.err. It doubles the buffer if
// it is full. The buffer stays bounded, because readLine calls fillBuffer only while the unread bytes are within
// maxEvent.
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
