//go:build upstream

package upstream

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestErrorsDoNotShowTheSessionID(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, _ message) { http.Error(w, "gone", http.StatusNotFound) })
	_, err := openSession(t, s, legacy, nil).CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t"})
	if err != nil && strings.Contains(err.Error(), "session-1") {
		t.Errorf("the error's text has the session id, which is a credential, want it without: %q", err)
	}
}
