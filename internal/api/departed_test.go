package api_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"testing"

	"answerd/internal/api"
)

// The problem of one request must not have the path and the trace id of another caller's. A caller who
// closes only their half of the connection counts as gone, and can still read the response.
func TestProblemsOfDepartedCallersAreTheirOwn(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	defer close(open)

	s := newService(t, waitingModel(open), nil, func(o *api.Options) {
		o.PublicURL = "http://127.0.0.1/base"
		o.TraceID = func(context.Context) string { return rand.Text() }
	})

	seen := map[string]bool{}
	for _, path := range []string{"/base/answer", "/answer"} {
		resp := s.sendBytes(t, rawPost(path, question), true)
		p := decodeResponse[struct {
			Instance string
			TraceID  string `json:"trace_id"`
		}](t, resp, http.StatusRequestTimeout)
		if p.Instance != "/base/answer" || p.TraceID == "" || seen[p.TraceID] {
			t.Errorf("%s: got %+v, want the instance /base/answer and a trace id of its own", path, p)
		}
		seen[p.TraceID] = true
	}
}
