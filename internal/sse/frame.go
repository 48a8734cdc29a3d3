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
// Writing appends to a byte slice and never fails. Reading bounds the size of each event. The package
// knows neither HTTP nor the meaning of the data. A Reader may be used by one goroutine.
package sse

import (
	"bytes"
	"unicode/utf8"
)

// Frame is one event of a stream. A Frame with an empty ID or Event has no such field.
type Frame struct {
	ID    string
	Event string
	Data  []byte
}

// AppendTo appends the frame, with its closing blank line, to buf and returns the longer slice.
//
// It never fails. It drops CR, LF, NUL and invalid UTF-8 from ID and Event, because a line break
// there would make the rest a field of its own. A field that becomes empty is left out.
//
// Each line of Data becomes one data field. CR, LF and CRLF all count as line breaks, and a reader
// gets LF for each. There is always at least one data field, because without one a browser ignores
// the event and its id. Lines end in LF only, because some clients look for "\n\n" and would not
// find the end of an event in "\r\n\r\n".
func (f Frame) AppendTo(buf []byte) []byte {
	buf = appendField(buf, "id: ", f.ID)
	buf = appendField(buf, "event: ", f.Event)
	for data := f.Data; ; {
		line, rest, more := cutLine(data)
		buf = append(buf, "data: "...)
		buf = append(buf, line...)
		buf = append(buf, '\n')
		if !more {
			break
		}
		data = rest
	}
	return append(buf, '\n')
}

// AppendComment appends text as one comment line, which readers ignore. It ends in exactly one LF,
// because some clients take a blank line after it for an empty event. It drops CR, LF, NUL and
// invalid UTF-8 from text.
func AppendComment(b []byte, text string) []byte {
	b = append(b, ": "...)
	b = appendClean(b, text)
	return append(b, '\n')
}

// cutLine returns data up to its first line break, the data after that, and whether there was one.
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

// lineEnd returns the offset of the first CR or LF in b from offset from on, or -1. It searches in
// steps of 512 bytes. Otherwise a text with many short lines that end in LF would be searched to
// its end for a CR at each line, which takes quadratic time.
func lineEnd(b []byte, from int) int {
	const step = 512
	for from < len(b) {
		head := b[from:min(from+step, len(b))]
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
		from += step
	}
	return -1
}

// appendField appends the line of one field, or nothing if no byte of value is allowed in it.
func appendField(buf []byte, name, value string) []byte {
	if value == "" {
		return buf
	}
	start := len(buf)
	buf = append(buf, name...)
	filled := len(buf)
	buf = appendClean(buf, value)
	if len(buf) == filled {
		return buf[:start]
	}
	return append(buf, '\n')
}

// appendClean appends the bytes of s that are allowed within a line.
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
