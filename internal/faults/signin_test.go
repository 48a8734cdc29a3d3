package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/oauth/oauthtest"
)

// signInServer is an MCP server whose callers sign in, and its authorization server.
type signInServer struct {
	as       *oauthtest.Server
	resource *oauthtest.Resource
}

// newSignInServer starts both. It calls change before the first request.
func newSignInServer(t testing.TB, change func(*signInServer)) *signInServer {
	t.Helper()
	s := &signInServer{as: oauthtest.New(t)}
	mcp := &peer{list: resultReply(`{"tools":[{"name":"whoami","inputSchema":{"type":"object"}}]}`), cancelled: make(chan message, 64)}
	mcp.setCall(nil)
	s.resource = s.as.Protect(t, mcp)
	if change != nil {
		change(s)
	}
	return s
}

// redeemedCodes returns how many authorization codes were redeemed at the authorization server.
func (s *signInServer) redeemedCodes() int { return len(s.as.Granted("authorization_code")) }

// pendingSignIn is a run that waits for its caller to sign in.
type pendingSignIn struct {
	url  string         // of the authorization endpoint; "" if the run ended without asking
	rest chan eventList // receives the events of the run when it has ended
}

// query returns the query with which the authorization server sends the caller's browser back.
func (i pendingSignIn) query(t testing.TB) url.Values { return oauthtest.Browse(t, i.url) }

// askToSignIn starts a run that calls a tool, and reads it until it asks its caller to sign in or
// ends.
func (s *service) askToSignIn(t testing.TB, tool, auth string) pendingSignIn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	var reading sync.WaitGroup
	t.Cleanup(func() { cancel(); reading.Wait() })
	resp, err := s.send(ctx, "POST", "/answer/stream", fmt.Sprintf(`{"question":%q}`, tool+" {}"), "Authorization", auth)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := pendingSignIn{rest: make(chan eventList, 1)}
	got, err := readEvents(resp.Body, func(e streamEvent) bool {
		in.url = e.URL
		return e.Type != "elicitation"
	})
	if err != nil || len(got) == 0 {
		t.Fatalf("%s: got %+v, %v, want events (%s)", tool, got, err, resp.Status)
	}
	reading.Go(func() { in.rest <- s.readOn(ctx, got, auth) })
	return in
}

// readOn reads the rest of a run, and returns all its events. It stops early when ctx ends.
func (s *service) readOn(ctx context.Context, got eventList, auth string) eventList {
	for !got.last().terminal() {
		resp, err := s.send(ctx, "GET", "/runs/"+got.last().RunID+"/events", "", "Last-Event-ID", got.last().ID, "Authorization", auth)
		if err != nil {
			break
		}
		more, err := readEvents(resp.Body, nil)
		resp.Body.Close()
		if got = append(got, more...); err != nil {
			break
		}
	}
	return got
}

// callback opens the redirect URL with that query, as a browser does, and returns the status.
func (s *service) callback(t testing.TB, q url.Values) int {
	t.Helper()
	return s.request(t, "GET", "/oauth/callback?"+q.Encode(), "").status
}

func TestF49SignInIsNotMixedUp(t *testing.T) {
	r := beginFault(t, "authorization servers and resources whose metadata names others (RFC 8414 3.3, RFC 9728 3.3), without PKCE S256; callbacks with another issuer (RFC 9207), another caller's code, an unknown state, a used state, and an honest server's code for a hostile one",
		"no token is requested, no code reaches another server, the caller has no access; the run ends with an answer")
	thief := newSignInServer(t, nil)
	servers := map[string]*signInServer{"thief": thief, "honest": newSignInServer(t, nil), "again": newSignInServer(t, nil), "two": newSignInServer(t, nil)}
	metadata := map[string]func(*signInServer){
		"otherissuer":    func(s *signInServer) { s.as.Metadata["issuer"] = thief.as.URL },
		"issuerslash":    func(s *signInServer) { s.as.Metadata["issuer"] = s.as.URL + "/" },
		"othertoken":     func(s *signInServer) { s.as.Metadata["token_endpoint"] = thief.as.URL + "/token" },
		"pkceplain":      func(s *signInServer) { s.as.Metadata["code_challenge_methods_supported"] = []string{"plain"} },
		"nopkce":         func(s *signInServer) { s.as.Metadata["code_challenge_methods_supported"] = nil },
		"scripturl":      func(s *signInServer) { s.as.Metadata["authorization_endpoint"] = "javascript:alert(1)" },
		"otherresource":  func(s *signInServer) { s.resource.Metadata["resource"] = thief.resource.URL + "/mcp" },
		"originresource": func(s *signInServer) { s.resource.Metadata["resource"] = s.resource.URL },
	}
	responses := map[string]func(url.Values){
		"issother":   func(q url.Values) { q.Set("iss", thief.as.URL) },
		"issmissing": func(q url.Values) { q.Del("iss") },
		"isstwice":   func(q url.Values) { q.Add("iss", q.Get("iss")) },
		"codetwice":  func(q url.Values) { q.Add("code", "another") },
	}
	for name, change := range metadata {
		servers[name] = newSignInServer(t, change)
	}
	for name, change := range responses {
		servers[name] = newSignInServer(t, func(s *signInServer) { s.as.Response = change })
	}
	file := map[string]any{}
	for name, s := range servers {
		file[name] = map[string]any{"url": s.resource.URL + "/mcp", "toolPrefix": name, "auth": map[string]any{"type": "authorization_code"}}
	}
	config, err := json.Marshal(map[string]any{"mcpServers": file})
	if err != nil {
		t.Fatal(err)
	}
	setting, _ := mcpConfig(t, string(config))
	model := llmtest.New(t, callModel)
	keys := newIssuer(t)
	s := start(t, append(keys.settings(), "LLM_BASE_URL="+model.URL, setting, "PUBLIC_URL=http://127.0.0.1:7")...)
	ann, eve := keys.bearerHeader(t, "k1", "ann", time.Hour), keys.bearerHeader(t, "k1", "eve", time.Hour)
	checkNotSignedIn := func(name string, in pendingSignIn) {
		t.Helper()
		if got := receiveWithin(t, in.rest, "the end of the run"); got.last().Answer != "Done." || len(got.ofType("tool_error")) != 1 {
			t.Errorf("%s: the run ended with %+v and %d failed calls, want an answer and 1", name, got.last(), len(got.ofType("tool_error")))
		}
		if n := servers[name].redeemedCodes(); n != 0 {
			t.Errorf("%s: %d codes were redeemed, want none", name, n)
		}
	}

	for name := range metadata {
		in := s.askToSignIn(t, name+"_sign_in", ann)
		if in.url != "" {
			t.Errorf("%s: the caller is sent to %s, want no sign-in", name, in.url)
			continue
		}
		checkNotSignedIn(name, in)
	}
	for name := range responses {
		in := s.askToSignIn(t, name+"_sign_in", ann)
		if status := s.callback(t, in.query(t)); status != http.StatusBadRequest {
			t.Errorf("%s: the callback is answered with %d, want %d", name, status, http.StatusBadRequest)
		}
		checkNotSignedIn(name, in)
	}

	// The authorization endpoint of a hostile server redirects the browser to an honest server. The
	// honest server's code then arrives with the hostile server's state.
	victim, attack := s.askToSignIn(t, "honest_sign_in", ann), s.askToSignIn(t, "thief_sign_in", ann)
	mixed, own := victim.query(t), attack.query(t)
	mixed.Set("state", own.Get("state"))
	if status := s.callback(t, mixed); status != http.StatusBadRequest {
		t.Errorf("an honest server's code for a hostile one: %d, want %d", status, http.StatusBadRequest)
	}
	checkNotSignedIn("thief", attack)
	made := url.Values{"code": mixed["code"], "state": {"made-up"}, "iss": mixed["iss"]}
	if status := s.callback(t, made); status != http.StatusBadRequest || servers["honest"].redeemedCodes() != 0 {
		t.Errorf("a made-up state: %d and %d codes redeemed, want %d and none", status, servers["honest"].redeemedCodes(), http.StatusBadRequest)
	}

	// Ann's browser opens a link with her state and the code of Eve's account.
	first, second := s.askToSignIn(t, "two_sign_in", ann), s.askToSignIn(t, "two_sign_in", eve)
	anns, eves := first.query(t), second.query(t)
	crossed := url.Values{"code": eves["code"], "state": anns["state"], "iss": anns["iss"]}
	if status := s.callback(t, crossed); status != http.StatusBadRequest {
		t.Errorf("Eve's code with Ann's state: %d, want %d", status, http.StatusBadRequest)
	}
	if got := receiveWithin(t, first.rest, "the end of Ann's run"); len(got.ofType("tool_error")) != 1 {
		t.Errorf("Eve's code with Ann's state: %+v, want a failed call", got.last())
	}

	// A correct callback works once.
	in := s.askToSignIn(t, "again_sign_in", ann)
	q := in.query(t)
	if status := s.callback(t, q); status != http.StatusOK {
		t.Errorf("a correct callback: %d, want %d", status, http.StatusOK)
	}
	if got := receiveWithin(t, in.rest, "the end of the run"); got.last().Answer != "Done." || len(got.ofType("tool_result")) != 1 {
		t.Errorf("after signing in the run ended with %+v, want a result and an answer", got.last())
	}
	if status := s.callback(t, q); status != http.StatusBadRequest || servers["again"].redeemedCodes() != 1 {
		t.Errorf("the same callback again: %d, %d codes redeemed, want %d and 1", status, servers["again"].redeemedCodes(), http.StatusBadRequest)
	}
	thief.as.Lock()
	visits, asked := len(thief.as.Visits), len(thief.as.Requests)
	thief.as.Unlock()
	if visits != 1 || asked != 0 {
		t.Errorf("the hostile authorization server has %d visits and %d token requests, want 1 and none", visits, asked)
	}
	for _, secret := range []string{"code-", "registered-", q.Get("state")} {
		if s.out.count(secret) > 0 {
			t.Errorf("the log contains %q, want it without secrets", secret)
		}
	}
	r.record("%d hostile servers, %d hostile callbacks, 0 codes redeemed", len(metadata), len(responses)+4)
}
