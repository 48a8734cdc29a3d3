// Package event keeps what happened in a run, in order, readable from any position.
//
// A run is a sequence of events, numbered 1, 2, 3 … without a gap. One writer
// appends to it through a Writer, which keeps the promises below; any number of
// readers hold nothing but a position and ask the Log what comes after it.
//
//	w := event.NewWriter(log, run.ID)
//	err := w.Append(ctx, event.Start{Question: q})
//
//	for pos := int64(0); ; {
//		page, err := log.After(run.ID, pos)
//		for _, e := range page.Events {
//			send(e.AppendJSON(nil))
//			pos = e.Seq
//		}
//		if page.Ended {
//			return
//		}
//		<-page.More
//	}
//
// An event is in the log before anybody is told of it, the log gives it its number
// and its time, and reading never blocks: resume, a second reader, a late one and
// a slow one are all the same loop, and nothing is dropped.
//
// The order that every run keeps: start is first; exactly one terminal event is
// last; whatever was opened is closed before it; tool_call_start, tool_call_args,
// tool_call, tool_progress and then one tool_result or tool_error for every call,
// while parallel calls may interleave; the answer to a question before the end of its
// call, and after suspended nothing but a question, an answer or the end.
package event

import (
	"bytes"
	"encoding/json"
)

// Event is one thing that happened in a run. It is never changed once the log has it.
type Event struct {
	RunID string
	Seq   int64 // 1, 2, 3 … in the run
	Time  int64 // milliseconds since the Unix epoch
	Body  Body
	// JSON is the whole event as one line, shared by all readers; nil for a delta in the memory
	// log, where each reader encodes it (see AppendJSON).
	JSON []byte
}

// AppendJSON appends the whole event as one line of JSON.
//
// A delta in the memory log is encoded here and not when it is appended: an answer has one for
// each token, and often nobody reads them. To encode and keep them at once would take 16 % more
// allocated bytes for an answer of 64 tokens, and twice the memory for each delta in the log.
func (e Event) AppendJSON(b []byte) []byte {
	if e.JSON != nil {
		return append(b, e.JSON...)
	}
	return e.appendBody(b, e.Body.(appender))
}

// Terminal reports whether e ends its run.
func (e Event) Terminal() bool { return terminal(e.Body) }

func terminal(b Body) bool {
	switch b.(type) {
	case FinalAnswer, RunError, Cancelled:
		return true
	}
	return false
}

// marshal is json.Marshal for readers that are programs and event streams, not HTML pages:
// "<" stays one byte.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
