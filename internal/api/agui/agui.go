// Package agui is the AG-UI face: its RunAgentInput to an agent.Request, the run's
// events to AG-UI events, for clients of version 1.0 and of 0.0.59 alike.
//
//	q, err := agui.Decode(body)              // *agui.Invalid names the field
//	enc := agui.NewEncoder(agui.Header{ThreadID: q.ThreadID, ClientRunID: q.RunID, RunID: run.ID, V1: q.V1})
//	frames := enc.Encode(e)                  // for every event of the run, from the first
//
// Clients of 1.0 say so (protocolVersion); the shapes that 0.0.59 takes for fatal go to
// those alone. What a person must answer ends the AG-UI run with an interrupt outcome,
// and its resumption is a new AG-UI run on the same thread: to us both are one run.
package agui

// Header is what a stream says about its run.
type Header struct {
	ThreadID    string // as the client named it
	ClientRunID string // as the client named it
	RunID       string // our run's id, which makes the ids of messages unique in the thread
	V1          bool   // the client speaks 1.0
	// After is the event at which the AG-UI run before this one ended, in the same run of
	// ours; 0 for the first. The encoder sees the events up to it and says nothing of them.
	After int64
}

// Bounds of a request, below the bound of the whole body.
const (
	maxMessages = 1024
	maxMedia    = 32
	maxContext  = 128
	maxResume   = 256
	maxReason   = 1024 // of an approval or a refusal; the rest is cut off
	maxID       = 128
)

// Invalid is a request that cannot be run as it stands.
type Invalid struct {
	Field   string // such as messages[2].content
	Message string // for the caller
}

func (e *Invalid) Error() string { return e.Field + ": " + e.Message }

// Capabilities returns the body of GET /agui/capabilities.
func Capabilities() any {
	type m = map[string]any
	return m{
		"identity":  m{"name": "answerd", "type": "answerd"},
		"transport": m{"streaming": true, "websocket": false, "httpBinary": false, "pushNotifications": false, "resumable": false},
		"tools":     m{"supported": true, "parallelCalls": true, "clientProvided": true},
		"state":     m{"snapshots": false, "deltas": false},
		"reasoning": m{"supported": true, "streaming": true},
		"multimodal": m{
			"input": m{"image": true, "audio": true},
		},
		"humanInTheLoop": m{"supported": true, "approvals": true, "interrupts": true, "approveWithEdits": true},
	}
}
