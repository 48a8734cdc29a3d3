// Package aisdk implements the API format of the AI SDK's useChat: it decodes UI messages to an agent.Request, and
// encodes the events of a run as a UI message stream for versions 5, 6 and 7 of the SDK.
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
	MessageID string // the id that the page has, or gets, for the message
	RunID     string
	ThreadID  string
	// After is the sequence number of the event that ended the run's earlier stream; 0 if this is its first stream. The
	// encoder also needs the events up to After, but returns no frames for them.
	After int64
	// NoApprovals is set for a page that does not know the chunks for approvals. The agent then declines calls that
	// need approval, and the stream shows them as tools that failed.
	NoApprovals bool
	// Outputs are the outputs of the tool "elicitation" that the page posted in the request for this stream, by
	// interrupt id. The encoder repeats them to the page, because the run's events have only the action.
	Outputs map[string]json.RawMessage
}

// ElicitationTool is the name of the client tool that represents an MCP server's question to the user.
const ElicitationTool = "elicitation"

// Bounds of a request, below the bound of the whole body.
const (
	maxMessages = 1024
	maxParts    = 4096 // of one message
	maxMedia    = 32   // files of one message
	maxID       = 128  // bytes
	maxReason   = 1024 // bytes of a decision's reason; the rest is cut off
	// maxCallID is above the ids that model endpoints give to calls: some have a signature of several kilobytes.
	maxCallID = 16 << 10
)

// Invalid is the error for a request that cannot be used.
type Invalid struct {
	Field   string // such as messages[2].parts; "" if the error is about the body as a whole
	Message string // written for the client
}

// Error returns the path of the field and the message.
func (e *Invalid) Error() string { return e.Field + ": " + e.Message }

// formatName distinguishes the stored requests of this API format from those of others.
const formatName = "aisdk"

// StoredRequest is what is needed of a request to stream its run again. The event log keeps it with the run, so that
// any replica can do so, even after a restart.
type StoredRequest struct {
	Format      string `json:"face"`       // formatName; Encode sets it
	MessageID   string `json:"message_id"` // the message that the run continues; "" if the run began a message
	NoApprovals bool   `json:"no_approvals"`
}

// Header returns the header for streaming the run from its first event. A message that the run began has the run's id.
func (r StoredRequest) Header(run event.Run) Header {
	return Header{MessageID: cmp.Or(r.MessageID, run.ID), RunID: run.ID, ThreadID: run.ThreadID, NoApprovals: r.NoApprovals}
}

// Encode returns the stored form of r.
func (r StoredRequest) Encode() []byte {
	r.Format = formatName
	b, _ := json.Marshal(r) // cannot fail: the members are strings and a bool
	return b
}

// DecodeStored decodes the result of Encode. For the stored request of another API format, it returns the zero value,
// whose Format is "".
func DecodeStored(data []byte) StoredRequest {
	var r StoredRequest
	if json.Unmarshal(data, &r) != nil || r.Format != formatName {
		return StoredRequest{}
	}
	return r
}
