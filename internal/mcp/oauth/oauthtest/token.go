package oauthtest

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

const (
	grantExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	grantBearer   = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	typeIDJAG     = "urn:ietf:params:oauth:token-type:id-jag"
)

// serveToken serves the token endpoints of an authorization server and of an identity provider. As an identity
// provider, it exchanges a token such as "inbound-ann" for an assertion about ann. As an authorization server, it
// accepts such assertions of any Server.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	refuse := func(status int, code string) { writeJSON(w, status, map[string]string{"error": code}) }
	if r.ParseForm() != nil {
		refuse(http.StatusBadRequest, "invalid_request")
		return
	}

	thumbprint, code := "", ""
	if proof := r.Header.Get("DPoP"); proof != "" {
		thumbprint, code = checkProof(proof, http.MethodPost, s.URL+"/token", "", s.Nonce)
		if s.Nonce != "" {
			w.Header().Set("DPoP-Nonce", s.Nonce)
		}
		if code != "" {
			refuse(http.StatusBadRequest, code)
			return
		}
	}

	id, method, ok := s.authenticate(r)
	if !ok {
		refuse(http.StatusUnauthorized, "invalid_client")
		return
	}
	in := Request{r.PostForm.Get("grant_type"), id, method, r.PostForm}
	s.Requests = append(s.Requests, in)

	if s.Fail != nil {
		if code := s.Fail(in); code != "" {
			refuse(cmp.Or(s.FailWith, http.StatusBadRequest), code)
			return
		}
	}

	t, code := s.issueToken(in)
	if code != "" {
		refuse(http.StatusBadRequest, code)
		return
	}
	if in.Grant == grantExchange {
		writeJSON(w, http.StatusOK, map[string]string{
			"access_token":      "jag|" + t.subject + "|" + in.Form.Get("audience") + "|" + in.Form.Get("resource"),
			"issued_token_type": typeIDJAG,
			"token_type":        "N_A",
		})
		return
	}

	t.client, t.thumbprint = id, thumbprint
	s.writeToken(w, t)
}

// writeToken answers with an access token for t and, if s.Refresh is set and t is a user's token, a refresh token.
func (s *Server) writeToken(w http.ResponseWriter, t token) {
	if s.Scope != "" {
		t.scopes = strings.Fields(s.Scope)
	}
	accessToken := "canary-" + rand.Text()
	s.tokens[accessToken] = t
	tokenType := "Bearer"
	if t.thumbprint != "" {
		tokenType = "DPoP"
	}
	reply := map[string]any{"access_token": accessToken, "token_type": tokenType, "scope": strings.Join(t.scopes, " ")}
	if s.Life != 0 {
		reply["expires_in"] = s.Life
	}
	if s.Refresh && t.subject != serviceSubject {
		refreshToken := "canary-refresh-" + rand.Text()
		s.refresh[refreshToken] = t
		reply["refresh_token"] = refreshToken
	}
	writeJSON(w, http.StatusOK, reply)
}

const serviceSubject = "service" // the subject of tokens that no user has

// issueToken returns the token that in requests, or an error code (RFC 6749 section 5.2); "" if it has issued one.
func (s *Server) issueToken(in Request) (_ token, errorCode string) {
	form := in.Form
	t := token{subject: serviceSubject, resource: form.Get("resource"), scopes: strings.Fields(form.Get("scope"))}
	switch in.Grant {
	case "client_credentials":
		return t, ""
	case "authorization_code":
		authorized, ok := s.codes[form.Get("code")]
		delete(s.codes, form.Get("code")) // it can be used once
		challenge := sha256.Sum256([]byte(form.Get("code_verifier")))
		hasVerifier := base64.RawURLEncoding.EncodeToString(challenge[:]) == authorized.Get("code_challenge")
		isSameClient := authorized.Get("client_id") == in.Client && authorized.Get("redirect_uri") == form.Get("redirect_uri")
		if !ok || !hasVerifier || !isSameClient || authorized.Get("resource") != form.Get("resource") {
			return t, "invalid_grant"
		}
		t.subject, t.scopes = authorized.Get("subject"), strings.Fields(authorized.Get("scope"))
		return t, ""
	case "refresh_token":
		refreshToken := form.Get("refresh_token")
		old, ok := s.refresh[refreshToken]
		delete(s.refresh, refreshToken) // it can be used once
		if s.spent[refreshToken] {
			s.Reused++
		}
		s.spent[refreshToken] = true
		if !ok || old.client != in.Client {
			return t, "invalid_grant"
		}
		return old, ""
	case grantExchange:
		user, ok := strings.CutPrefix(form.Get("subject_token"), "inbound-")
		if !ok || form.Get("requested_token_type") != typeIDJAG || form.Get("audience") == "" || t.resource == "" {
			return t, "invalid_grant"
		}
		t.subject = user
		return t, ""
	case grantBearer:
		parts := strings.Split(form.Get("assertion"), "|")
		if len(parts) == 4 && parts[0] == "jag" && parts[2] == s.URL && parts[3] == t.resource {
			t.subject = parts[1]
			return t, ""
		}
		if form.Get("assertion") == "workload" {
			return t, ""
		}
		return t, "invalid_grant"
	}
	return t, "unsupported_grant_type"
}

// authenticate returns the client that has sent r and the method by which it authenticates itself. ok is false if the
// client is unknown or its credentials are wrong.
func (s *Server) authenticate(r *http.Request) (id, method string, ok bool) {
	id, method = r.PostForm.Get("client_id"), "none"
	secret := r.PostForm.Get("client_secret")
	if secret != "" {
		method = "client_secret_post"
	}
	if user, password, basic := r.BasicAuth(); basic {
		id, _ = url.QueryUnescape(user)
		secret, _ = url.QueryUnescape(password)
		method = "client_secret_basic"
	}
	if s.NeedsClientID && r.PostForm.Get("client_id") != id {
		return id, method, false
	}
	if assertion := r.PostForm.Get("client_assertion"); assertion != "" {
		client := s.Clients[id]
		_, err := jwt.Parse(assertion, func(*jwt.Token) (any, error) { return client.Key, nil },
			jwt.WithAudience(s.URL), jwt.WithIssuer(id), jwt.WithSubject(id), jwt.WithExpirationRequired())
		return id, "private_key_jwt", err == nil && client.Key != nil
	}
	if method == "none" && id == "" && r.PostForm.Get("grant_type") == grantBearer {
		return id, method, true // the assertion alone authenticates the request
	}
	client, known := s.Clients[id]
	return id, method, known && client.Secret == secret && client.Key == nil
}
