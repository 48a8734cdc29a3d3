package aisdk

import (
	"cmp"
	"encoding/json"

	"answerd/internal/event"
)

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
