package native

import (
	"time"

	"answerd/internal/event"
)

// RunList is the body of GET /runs.
type RunList struct {
	Runs []ListedRun `json:"runs"`
	Next string      `json:"next,omitempty"` // the parameter before of the next page; "" after the last one
}

// ListedRun is a run in a list: what tells it from others, without what it answered.
type ListedRun struct {
	RunID     string       `json:"run_id"`
	ThreadID  string       `json:"thread_id"`
	TraceID   string       `json:"trace_id"`
	Status    event.Status `json:"status"`
	CreatedAt time.Time    `json:"created_at"`
	LastSeq   int64        `json:"last_seq"`
}

// NewRunList returns a page of runs.
func NewRunList(p event.RunPage) RunList {
	out := RunList{Runs: make([]ListedRun, len(p.Runs)), Next: p.Next}
	for i, r := range p.Runs {
		out.Runs[i] = ListedRun{r.ID, r.ThreadID, r.TraceID, r.Status(), r.Created.UTC(), r.Last.Seq}
	}
	return out
}
