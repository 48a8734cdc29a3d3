// Package sse turns Server-Sent Events into bytes and back, as the WHATWG
// HTML standard's section 9.2 defines them.
//
//	b = sse.Frame{ID: "run_1:1", Event: "start", Data: payload}.AppendTo(b)
//
//	r := sse.NewReader(resp.Body, 1<<20)
//	for {
//		f, err := r.Next()
//		if err == io.EOF {
//			break
//		}
//	}
//
// Writing appends to a byte slice and never fails; reading is bounded per
// event. Nothing here knows about HTTP or about what the data mean.
package sse

import (
	"bytes"
	"unicode/utf8"
)

// Frame is one event of a stream. An empty ID or Event is left out.
type Frame struct {
	ID    string
	Event string
	Data  []byte
}

// AppendTo appends the frame to b in wire form, its closing blank line included,
// and returns the longer slice. It never fails: CR, LF, NUL and bytes that are not
// UTF-8 are dropped from ID and Event, because any of the first two would end the
// line there and let the rest pass for fields of its own. A field that has nothing
// left is left out.
//
// Data becomes one data line per line, split at CR, LF and CRLF alike, so a reader
// gets LF in their place. There is always at least one data line: without one a
// browser drops the event, id and all. Lines end in LF alone, since some clients
// split events at "\n\n" and never see "\r\n\r\n".
func (f Frame) AppendTo(b []byte) []byte {
	b = appendField(b, "id: ", f.ID)
	b = appendField(b, "event: ", f.Event)
	for data := f.Data; ; {
		line, rest, more := cutLine(data)
		b = append(b, "data: "...)
		b = append(b, line...)
		b = append(b, '\n')
		if !more {
			break
		}
		data = rest
	}
	return append(b, '\n')
}

// AppendComment appends text as one comment line, which readers skip. It ends in
// exactly one LF: a blank line after it would reach some clients as an empty
// message. CR, LF, NUL and bytes that are not UTF-8 are dropped from text.
func AppendComment(b []byte, text string) []byte {
	b = append(b, ": "...)
	b = appendClean(b, text)
	return append(b, '\n')
}

// cutLine returns data up to its first line ending, what follows that ending, and
// whether there was one.
func cutLine(data []byte) (line, rest []byte, more bool) {
	i := lineEnd(data, 0)
	if i < 0 {
		return data, nil, false
	}
	rest = data[i+1:]
	if data[i] == '\r' && len(rest) > 0 && rest[0] == '\n' {
		rest = rest[1:]
	}
	return data[:i], rest, true
}

// lineEnd returns where in b, from offset from on, the first CR or LF stands, or -1.
// It searches a stretch at a time, so that text of many short lines which holds only
// one of the two is not searched to its end for the other at every line.
func lineEnd(b []byte, from int) int {
	const stretch = 512
	for from < len(b) {
		head := b[from:min(from+stretch, len(b))]
		lf := bytes.IndexByte(head, '\n')
		if lf >= 0 {
			head = head[:lf]
		}
		if cr := bytes.IndexByte(head, '\r'); cr >= 0 {
			return from + cr
		}
		if lf >= 0 {
			return from + lf
		}
		from += stretch
	}
	return -1
}

// appendField appends one field's line, or nothing if no byte of value is fit for it.
func appendField(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	start := len(b)
	b = append(b, name...)
	filled := len(b)
	if b = appendClean(b, value); len(b) == filled {
		return b[:start]
	}
	return append(b, '\n')
}

// appendClean appends what of s may stand inside one line.
func appendClean(b []byte, s string) []byte {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		bad := r == '\r' || r == '\n' || r == 0 || (r == utf8.RuneError && size == 1)
		if !bad {
			b = append(b, s[i:i+size]...)
		}
		i += size
	}
	return b
}
