package native

import (
	"encoding/json"
	"time"

	"answerd/internal/sse"
)

// TokenExpired returns the frame that ends a stream whose caller's token has ended, while the
// run goes on. It is no event of the run, so it has no id: a browser's EventSource, and
// whoever does as it does, goes on after the last event that it saw. Its seq is that of
// last, so that readers who leave out what they have seen, or look for gaps, find none.
func TokenExpired(run string, last int64) sse.Frame {
	data, _ := json.Marshal(struct { // nothing in it can fail
		Type  string `json:"type"`
		RunID string `json:"run_id"`
		Seq   int64  `json:"seq"`
		Time  int64  `json:"ts"`
	}{"token_expired", run, last, time.Now().UnixMilli()})
	return sse.Frame{Event: "token_expired", Data: data}
}
