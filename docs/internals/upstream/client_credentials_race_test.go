//go:build upstream && race

package upstream

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth/extauth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// Calls of one session are refused together, when a token is revoked. The race detector
// reports the handler's fields.
func TestClientCredentialsHandlerIsSafeForConcurrentUse(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/token" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token":"a","token_type":"Bearer","expires_in":3600}`)
	}))
	defer s.Close()
	h, err := extauth.NewClientCredentialsHandler(&extauth.ClientCredentialsHandlerConfig{Credentials: &oauthex.ClientCredentials{
		ClientID: "c", ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: "s"},
	}})
	skipOnError(t, err)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			req, _ := http.NewRequestWithContext(timeoutContext(t, 20*time.Second), http.MethodPost, s.URL+"/mcp", nil)
			resp := &http.Response{StatusCode: http.StatusUnauthorized, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
			if err := h.Authorize(req.Context(), req, resp); err != nil {
				t.Log(err)
			}
		})
	}
	all.Wait()
}
