// Package event has the types of events, the rules of their order, and the Log interface. The
// logs themselves are in event/memory and event/jetstream.
//
// A run is a sequence of events, numbered 1, 2, 3 … without a gap. One writer appends to it through a Writer, which
// enforces the order below. The state of a reader is a position: it asks the Log for the events after it.
//
//	w := event.NewWriter(log, run.ID)
//	err := w.Append(ctx, event.Start{Question: q})
//
//	for pos := int64(0); ; {
//		page, err := log.After(ctx, run.ID, pos)
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
// An event is in the log before any reader sees it, and the log gives it its number and its
// time. Reading does not block the writer or other readers. So a resumed stream, a second
// reader and a slow reader all use the same loop, and each of them gets every event.
//
// The order of every run:
//
//   - start is first, and exactly one terminal event is last.
//   - Every part, call and step is closed before the terminal event.
//   - The events of a call come in the order tool_call_start, tool_call_args, tool_call,
//     tool_progress, and one tool_result or tool_error. Parallel calls may interleave.
//   - An interrupt of a call is resolved before the call ends.
//   - After suspended comes an interrupt, the resolution of one, or the terminal event.
package event

import (
	"bytes"
	"encoding/json"
)

// Event is one event of a run. It does not change once the log has it.
type Event struct {
	RunID string
	Seq   int64 // 1, 2, 3 … in the run
	Time  int64 // milliseconds since the Unix epoch
	Body  Body
	// JSON is the whole event in one line without a line feed. All readers share it, so it must not be changed.
	JSON []byte
}

// Terminal reports whether the event ends its run.
func (e Event) Terminal() bool { return isTerminal(e.Body) }

// Settled reports whether a run whose newest event is e has ended or is suspended.
func (e Event) Settled() bool {
	_, suspended := e.Body.(Suspended)
	return suspended || e.Terminal()
}

// CallID returns the id of the call that the event belongs to; "" if it does not belong to a call.
func (e Event) CallID() string {
	if b, ok := e.Body.(interface{ call() Call }); ok {
		return b.call().CallID
	}
	return ""
}

// EndsCall reports whether the event has the outcome of a call. childRunID is the run that the call started; "" if the
// call started none.
func (e Event) EndsCall() (childRunID string, ok bool) {
	switch b := e.Body.(type) {
	case ToolResult:
		return b.ChildRunID, true
	case ToolError:
		return b.ChildRunID, true
	}
	return "", false
}

// isTerminal reports whether an event with that body ends its run.
func isTerminal(body Body) bool {
	switch body.(type) {
	case FinalAnswer, RunError, Cancelled:
		return true
	}
	return false
}

// marshalJSON returns the JSON of a value without escapes for HTML: "<" stays one byte.
func marshalJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
