package oauth

import (
	"net/http"
	"testing"
	"time"

	"answerd/internal/auth/fetch"
)

// TestMalformedScopeDoesNotLoseTheRefreshToken decodes a reply whose scope is a list, as Twitch has it.
func TestMalformedScopeDoesNotLoseTheRefreshToken(t *testing.T) {
	const body = `{"access_token": "a", "token_type": "bearer", "scope": ["crm"], "refresh_token": "r"}`
	reply, err := parseTokenReply(fetch.Reply{Status: http.StatusOK, Body: []byte(body)}, time.Now(), nil)
	if err != nil || reply.refresh.Reveal() != "r" || reply.scopes != nil {
		t.Errorf("parseTokenReply = %q, %q, %v, want the refresh token r and no scopes", reply.refresh.Reveal(), reply.scopes, err)
	}
}
