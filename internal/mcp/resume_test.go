package mcp

import (
	"net/http"
	"sync/atomic"
	"testing"

	"answerd/internal/mcp/config"
)

// A stream that breaks off after an event with an id is resumed (2025-11-25
// basic/transports), and the tool runs once.
func TestBrokenStreamIsResumed(t *testing.T) {
	var calls atomic.Int64
	var id atomic.Value
	s := &script{}
	s.call = func(w http.ResponseWriter, _ *http.Request, m message) {
		calls.Add(1)
		id.Store(string(m.ID))
		events(w)("id: 7\nretry: 1\ndata: \n\n")
	}
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet {
			return false
		}
		if r.Header.Get("Last-Event-ID") != "7" {
			http.Error(w, "which?", http.StatusBadRequest)
			return true
		}
		events(w)("data: {\"jsonrpc\":\"2.0\",\"id\":" + id.Load().(string) + ",\"result\":" + text("late") + "}\n\n")
		return true
	}
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	if got := must(t, res, err).Text(); got != "late" || calls.Load() != 1 {
		t.Errorf("%q after %d calls, want late and 1", got, calls.Load())
	}
}

// A stream that cannot be resumed ends its own call alone.
func TestRefusedResumeFailsTheCall(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusBadRequest} {
		s := &script{}
		s.call = func(w http.ResponseWriter, _ *http.Request, m message) {
			if m.Params.Meta["do"] == "bad" {
				events(w)("id: 7\nretry: 1\ndata: \n\n")
				return
			}
			reply(w, m.ID, text("ok"))
		}
		s.before = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet {
				http.Error(w, "no", status)
			}
			return r.Method == http.MethodGet
		}
		c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
		_, err := c.Call(t.Context(), Call{Tool: "t", Meta: map[string]any{"do": "bad"}})
		if e := kind(t, err); e.Kind != UnknownOutcome {
			t.Errorf("%d: %v, want Kind UnknownOutcome", status, e)
		}
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		must(t, res, err)
	}
}

// A server that holds its stream open after the answer holds up nothing.
func TestResponseBeforeTheEndOfTheStreamIsUsed(t *testing.T) {
	s := &script{call: func(w http.ResponseWriter, r *http.Request, m message) {
		events(w)("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + text("ok") + "}\n\n")
		<-r.Context().Done()
	}}
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	must(t, res, err)
}
