// Package native implements answerd's own API format: it decodes a body to an agent.Request, and encodes
// an event as a frame and a run as JSON.
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
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"answerd/internal/event"
	"answerd/internal/sse"
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

// TokenExpired returns the frame that ends a stream because the caller's token has expired; the run
// goes on. The frame is not an event of the run, so it has no id, and an EventSource resumes after the
// last event that it got. Its seq is last, the one of that event, so that readers who check seq find
// neither a gap nor a new event.
func TokenExpired(run string, last int64) sse.Frame {
	data, _ := json.Marshal(struct { // nothing in it can fail
		Type  string `json:"type"`
		RunID string `json:"run_id"`
		Seq   int64  `json:"seq"`
		Time  int64  `json:"ts"`
	}{"token_expired", run, last, time.Now().UnixMilli()})
	return sse.Frame{Event: "token_expired", Data: data}
}
