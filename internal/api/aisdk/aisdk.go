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

import (
	"cmp"
	"encoding/json"

	"answerd/internal/event"
)

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

// formatName is how the record of a run says whose it is.
const formatName = "aisdk"

// StoredRequest is what has to be known of a run's request to tell the run again.
type StoredRequest struct {
	Format      string `json:"face"`
	MessageID   string `json:"message_id"` // that the run goes on with; "" for one of its own
	NoApprovals bool   `json:"no_approvals"`
}

// Header returns the beginning of a header that tells the run from its first event.
func (r StoredRequest) Header(run event.Run) Header {
	return Header{MessageID: cmp.Or(r.MessageID, run.ID), RunID: run.ID, ThreadID: run.ThreadID, NoApprovals: r.NoApprovals}
}

// Encode returns the record as it is kept with the run.
func (r StoredRequest) Encode() []byte {
	r.Format = formatName
	b, _ := json.Marshal(r) // texts always marshal
	return b
}

// DecodeStored reads what Encode returns. A record of another API format is empty.
func DecodeStored(data []byte) StoredRequest {
	var r StoredRequest
	if json.Unmarshal(data, &r) != nil || r.Format != formatName {
		return StoredRequest{}
	}
	return r
}
