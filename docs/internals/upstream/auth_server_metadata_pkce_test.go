//go:build upstream

package upstream

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// client_credentials has no authorization endpoint, and so no code to challenge.
func TestMetadataWithoutPKCEServesClientCredentials(t *testing.T) {
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"issuer":%q,"token_endpoint":"%s/token","grant_types_supported":["client_credentials"]}`, s.URL, s.URL)
	}))
	defer s.Close()
	_, err := oauthex.GetAuthServerMeta(timeoutContext(t, 10*time.Second), s.URL+"/.well-known/oauth-authorization-server", s.URL, s.Client())
	if err != nil {
		t.Errorf("metadata of a server with client_credentials alone: got %v, want no error", err)
	}
}
