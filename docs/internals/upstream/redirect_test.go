//go:build upstream

package upstream

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestRedirectToAnotherHostIsNotFollowed(t *testing.T) {
	seen := make(chan string, 10)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen <- r.Method + " with Mcp-Session-Id " + r.Header.Get("Mcp-Session-Id")
	}))
	defer other.Close()
	to := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	s := newServer(t, func(w http.ResponseWriter, r *http.Request, _ message) {
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	})
	_, _ = openSession(t, s, legacy, nil).CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t"})
	select {
	case got := <-seen:
		t.Errorf("another host got the call: %s; want that it gets nothing", got)
	default:
	}
}
