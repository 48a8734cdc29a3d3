package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"answerd/internal/api"
)

// Nothing but a token in its one header opens a door, whatever somebody in front of us
// or a probe might say; and every door says the same (RFC 6750 section 3.1).
func TestNothingButATokenOpensADoor(t *testing.T) {
	iam := newMint(t)
	v := iam.verifier(t, nil)
	s := serve(t, adds(), nil, func(o *api.Options) { o.Verifier = v })
	good := iam.bearer("ada")
	_, bare, _ := strings.Cut(good, " ")
	for name, header := range map[string][]string{
		"nothing": nil, "another scheme": {"Authorization", "Basic " + bare}, "an empty token": {"Authorization", "Bearer "},
		"a cookie": {"Cookie", "access_token=" + bare + "; Authorization=" + good}, "another header": {"X-Api-Key", bare}, "a proxy's": {"Proxy-Authorization", good},
		"a user by header": {"X-Forwarded-User", "ada"}, "an address by header": {"X-Forwarded-For", "127.0.0.1"}, "a path by header": {"X-Original-URL", "/healthz"},
		"a rewritten path": {"X-Rewrite-URL", "/healthz"}, "a probe": {"User-Agent", "kube-probe/1.34"}, "an inner call": {"X-Internal", "true"},
	} {
		for _, door := range []string{
			"POST /answer", "POST /answer/stream", "GET /answer/stream?question=a", "GET /answer/stream?question=a&access_token=" + bare, "POST /answer?access_token=" + bare,
			"GET /runs/run_a", "GET /runs/run_a/events", "GET /runs/run_a/results/c", "POST /runs/run_a/input", "POST /runs/run_a/cancel",
			"GET /tools", "POST /tools/meet/call", "GET /servers", "POST /servers/default/refresh", "GET /servers/default/prompts",
			"POST /mcp", "DELETE /mcp",
		} {
			method, path, _ := strings.Cut(door, " ")
			resp := s.do(t, method, path, question, header...)
			p := refused(t, resp, 401, "unauthenticated")
			about := s.URL + "/.well-known/oauth-protected-resource"
			if path == "/mcp" {
				about += path // which is a resource of its own (RFC 9728 section 3.1)
			}
			if got := resp.Header.Get("WWW-Authenticate"); got != `Bearer realm="answerd", resource_metadata="`+about+`"` {
				t.Errorf("%s, %s: challenge %s", door, name, got)
			}
			if said, _ := json.Marshal(p); strings.Contains(string(said), bare) {
				t.Errorf("%s, %s: the problem repeats the token", door, name)
			}
		}
	}
	refused(t, s.do(t, "GET", "/tools", "", "Authorization", "Bearer a b"), 400, "invalid_request")
	refused(t, s.do(t, "GET", "/tools", "", "Authorization", "Bearer "+strings.Repeat("a", 9000)), 400, "invalid_request")
	if len(s.Model.Requests()) != 0 || len(s.Tools.Entered) != 0 {
		t.Error("somebody came in without a token")
	}
	if resp := s.do(t, "GET", "/tools", "", "Authorization", good); resp.StatusCode != 200 {
		t.Errorf("the token's owner: %s", resp.Status)
	}
}
