// Package aisdk implements the API format of the AI SDK's useChat: it decodes UI messages to an
// agent.Request, and encodes the events of a run as a UI message stream for versions 5, 6 and 7 of
// the SDK.
//
//	q, err := aisdk.Decode(body)              // *aisdk.Invalid names the field
//	enc := aisdk.NewEncoder(aisdk.Header{MessageID: id, RunID: run.ID, ThreadID: run.ThreadID})
//	frames := enc.Encode(e)                   // for every event of the run, from the first
//
// A chat is a thread, and a message of the assistant is a run. The tools of MCP servers are
// dynamic tools that the provider executes. If they were client tools, the SDK's
// sendAutomaticallyWhen helper would post the message again after each result, without end. An
// elicitation is a call of the client tool "elicitation", whose output is {"action", "content"}.
//
// The stream has only chunks that all three versions know, because an unknown chunk is fatal to a
// stream. Version 5 has no chunks for approvals; they are sent only when a call needs approval.
//
// An Encoder depends only on the events that it got, so the stream of a run can be encoded again
// for a page that reconnects. It is not safe for concurrent use.
package aisdk

import (
	"cmp"
	"encoding/json"

	"answerd/internal/event"
)

// Header describes the message that a stream creates or continues.
type Header struct {
	MessageID string // of the message that the stream creates or continues
	RunID     string
	ThreadID  string
	// After is the event at which the earlier stream of the same run ended; 0 for the first. The
	// encoder needs the events up to After too, and encodes nothing for them.
	After int64
	// NoApprovals is for pages that do not know the chunks for approvals. A call that was declined
	// because of that is encoded as a tool that failed.
	NoApprovals bool
	// Outputs are the outputs of the tool "elicitation" that the page posted to get this
	// stream, by interrupt; the run's events do not repeat them.
	Outputs map[string]json.RawMessage
}

// ElicitationTool names the client tool that represents a server's question to the person.
const ElicitationTool = "elicitation"

// Bounds of a request, below the bound of the whole body.
const (
	maxMessages = 1024
	maxParts    = 4096
	maxMedia    = 32
	maxID       = 128
	maxReason   = 1024 // of an approval or a refusal; the rest is cut off
	// maxCallID is above the ids that model endpoints give to calls: some have a signature of several kilobytes.
	maxCallID = 16 << 10
)

// Invalid is the error for a request that cannot be used.
type Invalid struct {
	Field   string // such as messages[2].parts
	Message string // for the caller
}

// Error returns the field and what it must be.
func (e *Invalid) Error() string { return e.Field + ": " + e.Message }

// formatName distinguishes the stored requests of this API format from those of others.
const formatName = "aisdk"

// StoredRequest is the part of a request that is needed to stream its run again. It is stored with
// the run, so that any replica can do that, also after a restart.
type StoredRequest struct {
	Format      string `json:"face"`
	MessageID   string `json:"message_id"` // the message that the run continues; "" if it began one
	NoApprovals bool   `json:"no_approvals"`
}

// Header returns the header for a stream of the run from its first event. A run that began a
// message gives the message its own id.
func (r StoredRequest) Header(run event.Run) Header {
	return Header{MessageID: cmp.Or(r.MessageID, run.ID), RunID: run.ID, ThreadID: run.ThreadID, NoApprovals: r.NoApprovals}
}

// Encode returns the stored form of r.
func (r StoredRequest) Encode() []byte {
	r.Format = formatName
	b, _ := json.Marshal(r) // cannot fail for strings
	return b
}

// DecodeStored decodes what Encode returns. It returns the zero value for the request of another API
// format.
func DecodeStored(data []byte) StoredRequest {
	var r StoredRequest
	if json.Unmarshal(data, &r) != nil || r.Format != formatName {
		return StoredRequest{}
	}
	return r
}
