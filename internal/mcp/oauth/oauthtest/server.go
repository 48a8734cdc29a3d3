// Package oauthtest provides a real authorization server, a resource that it protects, and a user's browser, over
// loopback HTTP, for the tests of other packages.
//
//	as := oauthtest.New(t)
//	mcp := as.Protect(t, inner)           // answers 401 with a challenge
//	query := oauthtest.Browse(t, address) // the query of the redirect that the browser gets
//
// The authorization server checks the client's authentication, PKCE, the redirect URL, the resource, and proofs of
// possession. It refuses a second use of a code or refresh token, and scopes for which a client has not registered. The
// fields of a Server may be changed under Lock.
package oauthtest

import (
	"crypto"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Client is a client that the server knows.
type Client struct {
	Secret   string
	Key      crypto.PublicKey // for private_key_jwt
	Redirect string           // "": any
	Scopes   []string         // scopes that a client which has registered itself may request
}

// Request is one token request that was authenticated.
type Request struct {
	Grant, Client, Method string
	Form                  url.Values
}

// Server is an authorization server. New starts one.
type Server struct {
	*httptest.Server
	sync.Mutex // protects the fields below

	Clients  map[string]Client
	Metadata map[string]any                // merged into the metadata; nil removes a member
	Response func(url.Values)              // changes the query with which browsers are redirected
	Fail     func(r Request) (code string) // refuses a token request with the returned error code, unless it is ""
	FailWith int                           // status of such a refusal; 0 means 400
	Life     int                           // lifetime of tokens in seconds; 0: not stated
	Refresh  bool                          // issue refresh tokens
	Nonce    string                        // nonce that proofs must have at the token endpoint
	Subject  string                        // the user who signs in next
	Scope    string                        // if not "", granted instead of the requested scope
	// NeedsClientID makes the server refuse token and revocation requests without client_id in the form, as the Python
	// SDK does.
	NeedsClientID bool

	Requests []Request    // token requests received
	Visits   []url.Values // queries of requests to the authorization endpoint
	Reads    int          // how often the metadata was read
	Reused   int          // how many used refresh tokens were sent again
	Revoked  []string     // tokens that clients asked to revoke (RFC 7009)

	codes   map[string]url.Values
	refresh map[string]token
	spent   map[string]bool // refresh tokens that were used
	tokens  map[string]token
}

// token has the data of an access or refresh token.
type token struct {
	subject, client, resource, thumbprint string
	scopes                                []string
}

// New starts a server that knows no client and accepts every registration.
func New(t testing.TB) *Server {
	s := &Server{
		Clients: map[string]Client{}, Metadata: map[string]any{}, Life: 3600, Refresh: true, Subject: "ann",
		codes: map[string]url.Values{}, refresh: map[string]token{}, spent: map[string]bool{}, tokens: map[string]token{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", s.serveMetadata)
	mux.HandleFunc("POST /register", s.serveRegistration)
	mux.HandleFunc("GET /authorize", s.serveAuthorization)
	mux.HandleFunc("POST /token", s.serveToken)
	mux.HandleFunc("POST /revoke", s.serveRevocation)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// serveMetadata serves the metadata of RFC 8414, merged with s.Metadata.
func (s *Server) serveMetadata(w http.ResponseWriter, _ *http.Request) {
	s.Lock()
	defer s.Unlock()
	s.Reads++
	m := map[string]any{
		"issuer": s.URL, "authorization_endpoint": s.URL + "/authorize", "token_endpoint": s.URL + "/token",
		"registration_endpoint": s.URL + "/register", "code_challenge_methods_supported": []string{"S256"},
		"authorization_response_iss_parameter_supported": true,
		"token_endpoint_auth_methods_supported":          []string{"client_secret_basic", "client_secret_post", "private_key_jwt", "none"},
	}
	writeMetadata(w, m, s.Metadata)
}

// writeMetadata sends the document metadata with the members of changes. A nil value in changes removes the member.
func writeMetadata(w http.ResponseWriter, metadata, changes map[string]any) {
	maps.Copy(metadata, changes)
	maps.DeleteFunc(metadata, func(_ string, value any) bool { return value == nil })
	writeJSON(w, http.StatusOK, metadata)
}

// serveRegistration registers a client (RFC 7591).
func (s *Server) serveRegistration(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Redirects []string `json:"redirect_uris"`
		Method    string   `json:"token_endpoint_auth_method"`
		Scope     string   `json:"scope"`
	}
	if json.NewDecoder(r.Body).Decode(&in) != nil || len(in.Redirects) != 1 {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": "invalid_client_metadata"})
		return
	}
	s.Lock()
	defer s.Unlock()
	id, secret := "client-"+rand.Text(), "registered-"+rand.Text()
	s.Clients[id] = Client{Secret: secret, Redirect: in.Redirects[0], Scopes: strings.Fields(in.Scope)}
	writeJSON(w, http.StatusCreated, map[string]any{"client_id": id, "client_secret": secret, "token_endpoint_auth_method": in.Method})
}

// serveAuthorization serves the authorization endpoint. It signs Subject in without interaction.
func (s *Server) serveAuthorization(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	q := r.URL.Query()
	s.Visits = append(s.Visits, q)
	redirect, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || !s.acceptsAuthorization(q) {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	code := "code-" + rand.Text()
	q.Set("subject", s.Subject)
	s.codes[code] = q
	response := url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {s.URL}}
	if s.Response != nil {
		s.Response(response)
	}
	redirect.RawQuery = response.Encode()
	http.Redirect(w, r, redirect.String(), http.StatusFound)
}

// acceptsAuthorization reports whether q is a valid authorization request of a known client, with PKCE and a resource.
// A client that has registered itself may use only its own redirect URL and scopes.
func (s *Server) acceptsAuthorization(q url.Values) bool {
	client, isKnown := s.Clients[q.Get("client_id")]
	isUnregistered := func(scope string) bool { return !slices.Contains(client.Scopes, scope) }
	switch {
	case !isKnown, q.Get("response_type") != "code", q.Get("resource") == "":
		return false
	case q.Get("code_challenge_method") != "S256", len(q.Get("code_challenge")) != 43: // a SHA-256 in base64url
		return false
	case client.Redirect == "":
		return true
	}
	return client.Redirect == q.Get("redirect_uri") && !slices.ContainsFunc(strings.Fields(q.Get("scope")), isUnregistered)
}

// serveRevocation revokes a token and all other tokens of the same user and client.
func (s *Server) serveRevocation(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	if r.ParseForm() != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": "invalid_request"})
		return
	}
	id, _, ok := s.authenticate(r)
	if !ok {
		writeJSON(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		return
	}
	text := r.PostForm.Get("token")
	s.Revoked = append(s.Revoked, text)
	revoked, isRefreshToken := s.refresh[text]
	if !isRefreshToken {
		revoked = s.tokens[text]
	}
	sameOwner := func(_ string, t token) bool { return t.client == id && t.subject == revoked.subject }
	maps.DeleteFunc(s.refresh, sameOwner)
	maps.DeleteFunc(s.tokens, sameOwner)
}

// Revoke invalidates all access tokens, and with all set also the refresh tokens.
func (s *Server) Revoke(all bool) {
	s.Lock()
	defer s.Unlock()
	clear(s.tokens)
	if all {
		clear(s.refresh)
	}
}

// Granted returns the token requests with this grant type so far, including refused ones.
func (s *Server) Granted(grant string) []Request {
	s.Lock()
	defer s.Unlock()
	var out []Request
	for _, r := range s.Requests {
		if r.Grant == grant {
			out = append(out, r)
		}
	}
	return out
}

// Browse opens address as a browser would, and returns the query of the URL to which the server redirects it.
func Browse(t testing.TB, address string) url.Values {
	t.Helper()
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer browser.CloseIdleConnections()
	resp, err := browser.Get(address)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		t.Errorf("%s: %s: %v", address, resp.Status, err)
		return nil
	}
	return to.Query()
}

// writeJSON sends a reply with the given status and the JSON of body.
func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
