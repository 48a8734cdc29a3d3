// Package sse encodes and decodes Server-Sent Events (HTML Living Standard, section 9.2).
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
// Writing appends to a byte slice and never fails. Reading limits the size of each event. The package depends neither
// on HTTP nor on the meaning of the data. A Reader may be used by one goroutine at a time.
package sse

import (
	"bytes"
	"unicode/utf8"
)

// Frame is one event of a stream. If ID or Event is "", the event does not have that field.
type Frame struct {
	ID    string
	Event string
	Data  []byte
}

// AppendTo appends the frame, including its closing blank line, to buf and returns the extended slice.
//
// It drops CR, LF, NUL and invalid UTF-8 from ID and Event, because a reader would take the text after a line break for
// another field. A field that becomes empty is left out.
//
// Each line of Data becomes one data field. CR, LF and CRLF all count as line breaks, and a reader gets LF for each of
// them. There is always at least one data field, because a browser ignores an event without data, and with it the
// event's id. Lines end in LF only, because some clients look for "\n\n" and would not find the end of an event in
// "\r\n\r\n".
func (f Frame) AppendTo(buf []byte) []byte {
	buf = appendField(buf, "id: ", f.ID)
	buf = appendField(buf, "event: ", f.Event)
	rest, more := f.Data, true
	for more {
		var line []byte
		line, rest, more = cutLine(rest)
		buf = append(buf, "data: "...)
		buf = append(buf, line...)
		buf = append(buf, '\n')
	}
	return append(buf, '\n')
}

// AppendComment appends text as a comment line, which readers ignore, to buf and returns the extended slice. The
// comment ends in exactly one LF, because some clients take a blank line after a comment for an empty event.
// AppendComment drops CR, LF, NUL and invalid UTF-8 from text.
func AppendComment(buf []byte, text string) []byte {
	buf = append(buf, ": "...)
	buf = appendClean(buf, text)
	return append(buf, '\n')
}

// cutLine splits data at its first line break. It returns the data before and after the line break. more is false, and
// line is all of data, if there is no line break.
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

// lineEnd returns the offset of the first CR or LF in b at or after the offset from, or -1 if there is none. It
// searches in steps of 512 bytes. If it searched all of b for a CR each time, a text with many short lines that end in
// LF would take quadratic time.
func lineEnd(b []byte, from int) int {
	const step = 512
	for ; from < len(b); from += step {
		part := b[from:min(from+step, len(b))]
		lf := bytes.IndexByte(part, '\n')
		if lf >= 0 {
			part = part[:lf]
		}
		if cr := bytes.IndexByte(part, '\r'); cr >= 0 {
			return from + cr
		}
		if lf >= 0 {
			return from + lf
		}
	}
	return -1
}

// appendField appends a field's line to buf. It appends nothing if appendClean leaves nothing of value.
func appendField(buf []byte, name, value string) []byte {
	if value == "" {
		return buf
	}
	start := len(buf)
	buf = append(buf, name...)
	valueStart := len(buf)
	buf = appendClean(buf, value)
	if len(buf) == valueStart {
		return buf[:start]
	}
	return append(buf, '\n')
}

// appendClean appends s without CR, LF, NUL and invalid UTF-8 to buf.
func appendClean(buf []byte, s string) []byte {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		isInvalid := r == utf8.RuneError && size == 1
		isAllowed := !isInvalid && r != '\r' && r != '\n' && r != 0
		if isAllowed {
			buf = append(buf, s[i:i+size]...)
		}
		i += size
	}
	return buf
}
