//go:build upstream

package upstream

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestBadStatusFailsOnlyItsCall(t *testing.T) {
	checkOnlyItsCallFails(t, func(w http.ResponseWriter, _ message) { http.Error(w, "no", http.StatusForbidden) })
}

func TestBadContentTypeFailsOnlyItsCall(t *testing.T) {
	checkOnlyItsCallFails(t, func(w http.ResponseWriter, _ message) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<p>hello")
	})
}

func TestUndecodableBodyFailsOnlyItsCall(t *testing.T) {
	checkOnlyItsCallFails(t, func(w http.ResponseWriter, _ message) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":`)
	})
}

func TestCutBodyFailsOnlyItsCall(t *testing.T) {
	checkOnlyItsCallFails(t, func(w http.ResponseWriter, _ message) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"jsonrpc"`)
	})
}

func TestUndecodableEventFailsOnlyItsCall(t *testing.T) {
	checkOnlyItsCallFails(t, func(w http.ResponseWriter, _ message) { startEventStream(w)(`{"jsonrpc":`) })
}

func TestAcceptedCallFailsOnlyItsCall(t *testing.T) {
	checkOnlyItsCallFails(t, func(w http.ResponseWriter, _ message) { w.WriteHeader(http.StatusAccepted) })
}

// A line without a colon is a field name with an empty value (HTML, section 9.2.6).
func TestEventLineWithoutColonFailsOnlyItsCall(t *testing.T) {
	checkOnlyItsCallFails(t, func(w http.ResponseWriter, _ message) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "retry\n\n")
	})
}

// The event has an id, so the client resumes the stream, which the server refuses (405).
func TestRefusedResumptionFailsOnlyItsCall(t *testing.T) {
	checkOnlyItsCallFails(t, func(w http.ResponseWriter, _ message) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1\nretry: 10\ndata:\n\n")
	})
}

// checkOnlyItsCallFails makes one call that gets a bad reply, and checks that another one in flight
// is not affected.
func checkOnlyItsCallFails(t *testing.T, bad func(http.ResponseWriter, message)) {
	t.Helper()
	waiting, release := make(chan struct{}), make(chan struct{})
	s := newServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
		switch m.Params.Name {
		case "waits":
			send := startEventStream(w)
			close(waiting)
			select {
			case <-release:
				send(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + textResult("done") + `}`)
			case <-r.Context().Done():
			}
		case "bad":
			bad(w, m)
		default:
			replyJSON(w, m, textResult("ok"))
		}
	})
	cs := openSession(t, s, legacy, nil)
	waited := make(chan error, 1)
	go func() {
		_, err := cs.CallTool(timeoutContext(t, 20*time.Second), &mcp.CallToolParams{Name: "waits"})
		waited <- err
	}()
	<-waiting
	_, err := cs.CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "bad"})
	if err == nil {
		skipOnError(t, fmt.Errorf("the bad reply was no error"))
	}
	close(release)
	if err := <-waited; err != nil {
		t.Errorf("the call beside it: got %v, want its result", err)
	}
	if _, err := cs.CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "next"}); err != nil {
		t.Errorf("the next call: got %v, want its result", err)
	}
}
