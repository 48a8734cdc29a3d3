package aisdk

import (
	"cmp"
	"encoding/json"

	"answerd/internal/event"
)

// face is how the record of a run says whose it is.
const face = "aisdk"

// Record is what has to be known of a run's request to tell the run again.
type Record struct {
	Face        string `json:"face"`
	MessageID   string `json:"message_id"` // that the run goes on with; "" for one of its own
	NoApprovals bool   `json:"no_approvals"`
}

// Header is the beginning of a header that tells the run from its first event.
func (r Record) Header(run event.Run) Header {
	return Header{MessageID: cmp.Or(r.MessageID, run.ID), RunID: run.ID, ThreadID: run.ThreadID, NoApprovals: r.NoApprovals}
}

// Bytes is the record as it is kept with the run.
func (r Record) Bytes() []byte {
	r.Face = face
	b, _ := json.Marshal(r) // texts always marshal
	return b
}

// ReadRecord reads what Bytes wrote. A record of another face is empty.
func ReadRecord(data []byte) Record {
	var r Record
	if json.Unmarshal(data, &r) != nil || r.Face != face {
		return Record{}
	}
	return r
}
