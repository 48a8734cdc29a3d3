// Package native implements answerd's own API format: it decodes a body to an agent.Request, and
// encodes an event as a frame and a run as JSON.
//
//	req, err := native.Decode(body)       // *native.Invalid names every bad field
//	call, err := native.DecodeToolCall(body)
//	buf = native.AppendFrame(buf, e)
//	view := native.NewStatus(run, problem)
//
// Decoding is strict, because a request with an ignored typo would be answered with the wrong
// settings. Decode refuses unknown fields, duplicate keys, wrong types, null, invalid UTF-8 and
// trailing data. It reports all of them at once, each by its JSON pointer (RFC 6901).
//
// The package has no state and starts no goroutine, so its functions may be called concurrently.
package native

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// EventID returns the event's SSE id: its run's id and its sequence number. A client that reconnects sends the id back
// as Last-Event-ID (HTML Living Standard, section 9.2), and gets the events after it.
func EventID(e event.Event) string { return e.RunID + ":" + strconv.FormatInt(e.Seq, 10) }

// AppendFrame appends e as an SSE frame to b. It needs no escaping: the event is one line of JSON, and neither an id
// nor a type contains a character that a frame cannot hold.
func AppendFrame(b []byte, e event.Event) []byte {
	b = append(b, "id: "...)
	b = append(b, e.RunID...)
	b = append(b, ':')
	b = strconv.AppendInt(b, e.Seq, 10)
	b = append(b, "\nevent: "...)
	b = append(b, e.Body.Type()...)
	b = append(b, "\ndata: "...)
	b = e.AppendJSON(b)
	return append(b, "\n\n"...)
}

// ParsePosition parses an id that EventID returned. ok is false if id does not have the form run:number, or the number
// is negative or has a plus sign. The run may still have no event with this number.
func ParsePosition(id string) (run string, seq int64, ok bool) {
	run, number, hasColon := strings.Cut(id, ":")
	seq, err := strconv.ParseInt(number, 10, 64)
	isPosition := err == nil && seq >= 0 && number[0] != '+'
	return run, seq, hasColon && run != "" && isPosition
}

// TokenExpired returns the frame that ends a stream because the caller's token has expired. The run continues. The
// frame has no id, because it is not an event of the run, so an EventSource resumes after the last event that it
// received. last is that event's sequence number. The frame repeats it as seq, so that clients that check the sequence
// find neither a gap nor a new event.
func TokenExpired(run string, last int64) sse.Frame {
	data, _ := json.Marshal(struct { // cannot fail for strings and numbers
		Type  string `json:"type"`
		RunID string `json:"run_id"`
		Seq   int64  `json:"seq"`
		Time  int64  `json:"ts"` // milliseconds, as in events
	}{"token_expired", run, last, time.Now().UnixMilli()})
	return sse.Frame{Event: "token_expired", Data: data}
}
