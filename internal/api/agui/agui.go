// Package agui implements the API format of AG-UI: it decodes a RunAgentInput to an agent.Request, and encodes a run's
// events as AG-UI events, for clients of versions 1.0 and 0.0.59.
//
//	q, err := agui.Decode(body)              // *agui.Invalid names the field
//	enc := agui.NewEncoder(agui.Header{ThreadID: q.ThreadID, ClientRunID: q.RunID, RunID: run.ID, V1: q.V1})
//	frames := enc.Encode(e)                  // for every event of the run, from the first
//
// Clients of 1.0 send protocolVersion, and only they get events that are fatal to clients of
// 0.0.59. A question to a person ends the AG-UI run with an interrupt outcome. The client resumes
// with a new AG-UI run on the same thread; in this service, both are the same run.
//
// An Encoder depends only on the events that it got, so a stream can be encoded again for another
// reader. It is not safe for concurrent use.
package agui

// Header describes the AG-UI run that a stream shows.
type Header struct {
	ThreadID    string // the client's id of the thread
	ClientRunID string // the client's id of the AG-UI run
	RunID       string // the id of the run, which makes the ids of messages unique in the thread
	V1          bool   // the client uses version 1.0
	// After is the sequence number of the event that ended the run's previous AG-UI run; 0 if this is its first AG-UI
	// run. The encoder also needs the events up to After, but returns no frames for them.
	After int64
}

// Bounds of a request, below the bound of the whole body.
const (
	maxMessages = 1024
	maxMedia    = 32   // media parts of one message
	maxContext  = 128  // items
	maxResume   = 256  // items
	maxReason   = 1024 // bytes of a decision's reason; the rest is cut off
	maxID       = 128  // bytes
	// maxCallID is above the ids that model endpoints give to calls: some have a signature of several kilobytes.
	maxCallID = 16 << 10
)

// Invalid is the error for a request that cannot be used.
type Invalid struct {
	Field   string // such as messages[2].content; "" if the error is about the body as a whole
	Message string // written for the client
}

// Error returns the path of the field and the message.
func (e *Invalid) Error() string { return e.Field + ": " + e.Message }

// Capabilities returns the body of GET /agui/capabilities, to be encoded as JSON. Clients offer their users only the
// features that it declares.
func Capabilities() any {
	type m = map[string]any
	return m{
		"identity":  m{"name": "answerd", "type": "answerd"},
		"transport": m{"streaming": true, "websocket": false, "httpBinary": false, "pushNotifications": false, "resumable": false},
		"tools":     m{"supported": true, "parallelCalls": true, "clientProvided": true},
		"state":     m{"snapshots": false, "deltas": false},
		"reasoning": m{"supported": true, "streaming": true},
		"multimodal": m{
			"input": m{"image": true, "audio": true, "pdf": true},
		},
		"humanInTheLoop": m{"supported": true, "approvals": true, "interrupts": true, "approveWithEdits": true},
	}
}
