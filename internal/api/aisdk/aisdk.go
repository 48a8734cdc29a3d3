// Package aisdk is the API format for the AI SDK's useChat: its UI messages to an
// agent.Request, the run's events to a UI message stream as versions 5, 6 and 7 of the
// SDK read it.
//
//	q, err := aisdk.Decode(body)              // *aisdk.Invalid names the field
//	enc := aisdk.NewEncoder(aisdk.Header{MessageID: id, RunID: run.ID, ThreadID: run.ThreadID})
//	frames := enc.Encode(e)                   // for every event of the run, from the first
//
// A chat is a thread, and a message of the assistant is a run. The tools of MCP servers
// are dynamic and executed by the provider: without that the SDK's helper for automatic
// sending posts for ever. What a server asks the person is a call of a client tool named
// "elicitation", whose output is {"action", "content"}.
//
// Only chunks are sent that all three versions know, since an unknown one is fatal to the
// stream; those of approvals, which version 5 lacks, come only when a person must agree.
package aisdk

import "encoding/json"

// Header is what a stream says about its message.
type Header struct {
	MessageID string // of the message that the stream makes or goes on with
	RunID     string
	ThreadID  string
	// After is the event at which the stream before this one ended, in the same run; 0
	// for the first. The encoder sees the events up to it and says nothing of them.
	After int64
	// NoApprovals is for pages that have no chunks for approvals: what was declined on
	// their behalf is a tool that failed.
	NoApprovals bool
	// Outputs are the outputs of the tool "elicitation" that the page posted to get this
	// stream, by interrupt; the run's events do not repeat them.
	Outputs map[string]json.RawMessage
}

// ElicitationTool is the name of the client tool by which servers ask the person.
const ElicitationTool = "elicitation"

// Bounds of a request, below the bound of the whole body.
const (
	maxMessages = 1024
	maxParts    = 4096
	maxMedia    = 32
	maxID       = 128
	maxReason   = 1024 // of an approval or a refusal; the rest is cut off
)

// Invalid is a request that cannot be run as it stands.
type Invalid struct {
	Field   string // such as messages[2].parts
	Message string // for the caller
}

func (e *Invalid) Error() string { return e.Field + ": " + e.Message }
