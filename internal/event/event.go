// Package event defines the event types, the rules for their order, and the Log interface. The packages event/memory
// and event/jetstream implement the logs.
//
// A run is a sequence of events, numbered 1, 2, 3 … without gaps. A run's one Writer appends to it and enforces the
// order below. A reader's only state is a position: it asks the Log for the events after that position.
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
// An event is in the log before any reader sees it, and the log assigns its number and time. Reading does not block the
// writer or other readers. So a resumed stream, a second reader and a slow reader all use the same loop, and each of
// them gets every event.
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

// Event is one event of a run. It is immutable once the log has it.
type Event struct {
	RunID string
	Seq   int64 // the event's number in its run: 1, 2, 3 …
	Time  int64 // milliseconds since the Unix epoch
	Body  Body
	// JSON is the whole event in one line, without a line feed. All readers share JSON, so it must not be changed.
	JSON []byte
}

// Terminal reports whether the event ends its run.
func (e Event) Terminal() bool { return isTerminal(e.Body) }

// Settled reports whether e, as the newest event of a run, means that the run has ended or is suspended.
func (e Event) Settled() bool {
	_, suspended := e.Body.(Suspended)
	return suspended || e.Terminal()
}

// CallID returns the id of the event's tool call, or "" if the event does not belong to a call.
func (e Event) CallID() string {
	if b, ok := e.Body.(interface{ call() Call }); ok {
		return b.call().CallID
	}
	return ""
}

// EndsCall reports whether the event is the outcome of a call. If so, childRunID is the run that the call started, or
// "" if it started none.
func (e Event) EndsCall() (childRunID string, ok bool) {
	switch b := e.Body.(type) {
	case ToolResult:
		return b.ChildRunID, true
	case ToolError:
		return b.ChildRunID, true
	}
	return "", false
}

// isTerminal reports whether an event with this body ends its run.
func isTerminal(body Body) bool {
	switch body.(type) {
	case FinalAnswer, RunError, Cancelled:
		return true
	}
	return false
}

// MarshalJSON returns the JSON of v without HTML escapes, so that "<" stays one byte.
func MarshalJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
