package demo

import (
	"crypto/rand"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// maxTokenRequest bounds the form of a token request, in bytes.
const maxTokenRequest = 16 << 10

// token is the token endpoint. The client is authenticated before anything else is
// judged, so that a stranger learns nothing about grants and scopes.
func (m *IAM) token(w http.ResponseWriter, r *http.Request) {
	// RFC 6749 section 5.1, for refusals as well.
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Pragma", "no-cache")
	if !m.isClient(r) {
		w.Header().Set("WWW-Authenticate", `Basic realm="demo-iam", charset="UTF-8"`)
		m.refuse(w, http.StatusUnauthorized, "invalid_client", "client authentication failed")
		return
	}
	form, status, err := tokenForm(w, r)
	if err != nil {
		m.refuse(w, status, "invalid_request", err.Error())
		return
	}
	switch form.Get("grant_type") {
	case "client_credentials":
	case "":
		m.refuse(w, http.StatusBadRequest, "invalid_request", "grant_type is missing")
		return
	default:
		m.refuse(w, http.StatusBadRequest, "unsupported_grant_type", "only client_credentials is supported")
		return
	}
	scope, ok := m.grantScope(form.Get("scope"))
	if !ok {
		m.refuse(w, http.StatusBadRequest, "invalid_scope", "the client may not ask for this scope")
		return
	}
	m.issue(w, scope)
}

// tokenForm reads the body's parameters. Those of the query don't count, and none
// may come twice (RFC 6749 section 3.2).
func tokenForm(w http.ResponseWriter, r *http.Request) (url.Values, int, error) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/x-www-form-urlencoded" {
		return nil, http.StatusBadRequest, errors.New("the body must be application/x-www-form-urlencoded")
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxTokenRequest)
	if err := r.ParseForm(); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, http.StatusRequestEntityTooLarge, errors.New("the body is too large")
		}
		return nil, http.StatusBadRequest, errors.New("the body is not a valid form")
	}
	for _, v := range r.PostForm {
		if len(v) > 1 {
			return nil, http.StatusBadRequest, errors.New("a parameter is repeated")
		}
	}
	return r.PostForm, 0, nil
}

// grantScope is what a request for asked gets: everything when it names nothing.
func (m *IAM) grantScope(asked string) (string, bool) {
	if asked == "" {
		return m.config.Scope, true
	}
	allowed := strings.Fields(m.config.Scope)
	for _, s := range strings.Fields(asked) {
		if !slices.Contains(allowed, s) {
			return "", false
		}
	}
	return asked, true
}

// issue answers with a token whose claims are those of RFC 9068 section 2.2.
func (m *IAM) issue(w http.ResponseWriter, scope string) {
	now := time.Now()
	expires := now.Add(m.config.Lifetime)
	signed, err := m.key.sign(jwt.MapClaims{
		"iss": m.config.Issuer, "aud": m.config.Audience,
		"sub": m.config.ClientID, "client_id": m.config.ClientID, "scope": scope,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": expires.Unix(), "jti": rand.Text(),
	})
	if err != nil {
		m.config.Logger.Error("sign a token", "error", err)
		m.refuse(w, http.StatusInternalServerError, "server_error", "the token could not be made")
		return
	}
	m.config.Logger.Info("token issued", "client_id", m.config.ClientID, "scope", scope, "expires", expires)
	writeJSON(w, http.StatusOK, map[string]any{
		"access_token": signed, "token_type": "Bearer",
		"expires_in": int64(m.config.Lifetime / time.Second), "scope": scope,
	})
}

// refuse answers with an error of RFC 6749 section 5.2.
func (m *IAM) refuse(w http.ResponseWriter, status int, code, description string) {
	m.config.Logger.Info("token refused", "status", status, "error", code)
	writeJSON(w, status, map[string]string{"error": code, "error_description": description})
}
