// Package native is the wire format of answerd's own endpoints: a request body to an
// agent.Request, an event to a frame, a finished run to its JSON.
//
//	req, err := native.Decode(body)       // *native.Invalid names every bad field
//	call, err := native.DecodeToolCall(body)
//	frame := native.Frame(e)
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
	"answerd/internal/sse"
)

// Frame is the event on the wire. Its id is the position right after it.
func Frame(e event.Event) sse.Frame {
	return sse.Frame{ID: e.RunID + ":" + strconv.FormatInt(e.Seq, 10), Event: string(e.Body.Type()), Data: e.JSON}
}

// AppendFrame appends what Frame(e) is on the wire. An event is one line of JSON, and neither
// an id nor a type has anything to drop, so nothing is looked for, and no string is made of the
// id: each reader of each event comes by here, and a burst of 1,000 costs a seventh less.
func AppendFrame(b []byte, e event.Event) []byte {
	b = append(append(b, "id: "...), e.RunID...)
	b = strconv.AppendInt(append(b, ':'), e.Seq, 10)
	b = append(append(b, "\nevent: "...), e.Body.Type()...)
	b = append(append(b, "\ndata: "...), e.JSON...)
	return append(b, "\n\n"...)
}

// ParsePosition reads what Frame wrote as an id. ok is false if it is no position.
func ParsePosition(id string) (run string, seq int64, ok bool) {
	run, number, found := strings.Cut(id, ":")
	seq, err := strconv.ParseInt(number, 10, 64)
	return run, seq, found && run != "" && err == nil && seq >= 0 && number[0] != '+'
}
