//go:build upstream

package upstream

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Which of Close and the cancellation of server/discover comes first is a matter of luck:
// several attempts are made.
func TestConnectReturnsWhenItsContextEnds(t *testing.T) {
	for range 20 {
		checkConnectsInTime(t, func(http.ResponseWriter, *http.Request, message) bool { return false }, modern)
		if t.Failed() {
			return
		}
	}
}

// The handshake works, and the GET of the standalone stream gets no header.
func TestConnectDoesNotWaitForTheStandaloneStream(t *testing.T) {
	checkConnectsInTime(t, func(w http.ResponseWriter, r *http.Request, m message) bool {
		if r.Method != http.MethodPost {
			return false
		}
		if m.Method == "initialize" {
			replyJSON(w, m, handshakeResult(m))
		} else {
			w.WriteHeader(http.StatusAccepted)
		}
		return true
	}, legacy)
}

// checkConnectsInTime connects under a context of 1 s to a server that hangs where answer
// returns false.
func checkConnectsInTime(t *testing.T, answer func(http.ResponseWriter, *http.Request, message) bool, version string) {
	t.Helper()
	end := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m message
		_ = json.NewDecoder(r.Body).Decode(&m)
		if !answer(w, r, m) {
			<-end
		}
	}))
	defer s.Close()
	defer s.CloseClientConnections()
	defer close(end)
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		cs, err := mcp.NewClient(impl, nil).Connect(timeoutContext(t, time.Second), &mcp.StreamableClientTransport{Endpoint: s.URL, MaxRetries: -1}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err == nil {
			go cs.Close()
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("Connect under a context of 1 s: returned after %.1f s or later, want after about 1 s", took.Seconds())
	}
}
