// Package native is the wire format of answerd's own endpoints: a request body to an
// agent.Request, an event to a frame, a finished run to its JSON.
//
//	req, err := native.Decode(body)       // *native.Invalid names every bad field
//	call, err := native.DecodeToolCall(body)
//	buf = native.AppendFrame(buf, e)
//	view := native.Status(run)
//
// Decoding is strict, because a typo that is ignored is a question answered with the
// wrong settings: unknown fields, duplicate keys, wrong types, null, invalid UTF-8
// and trailing data are refused, all of them at once, each by its JSON pointer.
package native

import (
	"strconv"
	"strings"

	"answerd/internal/event"
)

// EventID returns the SSE id of an event, which is the position right after it.
func EventID(e event.Event) string { return e.RunID + ":" + strconv.FormatInt(e.Seq, 10) }

// AppendFrame appends the event as an SSE frame. An event is one line of JSON, and neither an
// id nor a type has a character that a frame cannot hold.
func AppendFrame(b []byte, e event.Event) []byte {
	b = append(append(b, "id: "...), e.RunID...)
	b = strconv.AppendInt(append(b, ':'), e.Seq, 10)
	b = append(append(b, "\nevent: "...), e.Body.Type()...)
	b = e.AppendJSON(append(b, "\ndata: "...))
	return append(b, "\n\n"...)
}

// ParsePosition reads what EventID returns. ok is false if id is not a position.
func ParsePosition(id string) (run string, seq int64, ok bool) {
	run, number, found := strings.Cut(id, ":")
	seq, err := strconv.ParseInt(number, 10, 64)
	return run, seq, found && run != "" && err == nil && seq >= 0 && number[0] != '+'
}
