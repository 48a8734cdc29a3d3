//go:build upstream

package upstream

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/oauth2"
)

// slowTokens is an OAuthHandler and a token source that hangs once it is told to.
type slowTokens struct {
	hang    atomic.Bool
	release chan struct{}
}

func (s *slowTokens) TokenSource(context.Context) (oauth2.TokenSource, error)        { return s, nil }
func (s *slowTokens) Authorize(context.Context, *http.Request, *http.Response) error { return nil }
func (s *slowTokens) Token() (*oauth2.Token, error) {
	if s.hang.Load() {
		<-s.release
	}
	return &oauth2.Token{AccessToken: "a"}, nil
}

func TestCallEndsInTimeWhileATokenIsFetched(t *testing.T) {
	tokens := &slowTokens{release: make(chan struct{})}
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m, textResult("ok")) })
	cs := dialSession(t, &mcp.StreamableClientTransport{Endpoint: s.URL, DisableStandaloneSSE: true, OAuthHandler: tokens}, legacy, nil)
	tokens.hang.Store(true)
	defer close(tokens.release)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = cs.CallTool(timeoutContext(t, 500*time.Millisecond), &mcp.CallToolParams{Name: "t"})
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("a call under a context of 0.5 s has not returned after 5 s, want 0.5 s: it waits for a token, with the connection's mutex held, and so does every other request of the session")
	}
}
