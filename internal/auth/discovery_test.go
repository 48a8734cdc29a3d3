package auth

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"answerd/internal/auth/authtest"
)

// publishMetadata makes an IAM serve a document at one path.
func publishMetadata(i *authtest.IAM, path string, document authtest.JSON) {
	body, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	i.HandleMetadata(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(body)
	})
}

// RFC 8414 and OpenID Connect Discovery: the keys are those that the metadata of the issuer names,
// wherever it is, and the document must name the issuer exactly.
func TestKeySetIsDiscoveredFromTheIssuer(t *testing.T) {
	const rfc8414, openID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	for name, c := range map[string]struct {
		issuerPath, path string
		change           authtest.JSON // of the document
		good             bool
	}{
		"RFC 8414":                       {"", rfc8414, nil, true},
		"OpenID":                         {"", openID, nil, true},
		"RFC 8414 with a path":           {"/realms/a", rfc8414 + "/realms/a", nil, true},
		"OpenID with a path":             {"/realms/a", "/realms/a" + openID, nil, true},
		"issuer with a slash at the end": {"/", openID, nil, true},
		"another issuer":                 {"", rfc8414, authtest.JSON{"issuer": "https://other.example"}, false},
		"issuer but for the slash":       {"", rfc8414, authtest.JSON{"issuer": "{issuer}/"}, false},
		"no issuer":                      {"", rfc8414, authtest.JSON{"issuer": nil}, false},
		"no keys":                        {"", rfc8414, authtest.JSON{"jwks_uri": nil}, false},
		"keys over plain http":           {"", rfc8414, authtest.JSON{"jwks_uri": "http://iam.example/jwks"}, false},
		"keys on another local port":     {"", rfc8414, authtest.JSON{"jwks_uri": "{other}/jwks"}, false},
		"keys of a wrong type":           {"", rfc8414, authtest.JSON{"jwks_uri": 7}, false},
		"no metadata":                    {"", "/nowhere", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			i := authtest.NewIAM(t)
			issuer, other := i.URL+c.issuerPath, authtest.NewIAM(t) // with the same keys
			document := authtest.JSON{"issuer": issuer, "jwks_uri": i.URL + "/jwks"}
			for member, value := range c.change {
				if text, ok := value.(string); ok {
					value = strings.NewReplacer("{issuer}", issuer, "{other}", other.URL).Replace(text)
				}
				document[member] = value
				if value == nil {
					delete(document, member)
				}
			}

			publishMetadata(i, c.path, document)
			v, _ := newVerifier(t, i, func(cfg *VerifierConfig) { cfg.Issuer, cfg.JWKSURL = issuer, "" })
			token := authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), authtest.ClaimsOf(issuer, nil))
			_, err := v.Verify(t.Context(), token)
			if c.good && err != nil || !c.good && !errors.Is(err, ErrKeysUnavailable) {
				t.Errorf("got %v, want the token accepted: %t, and else %v", err, c.good, ErrKeysUnavailable)
			}
			if n := i.KeyRequests.Load() + other.KeyRequests.Load(); !c.good && n != 0 {
				t.Errorf("got %d requests for keys, want none", n)
			}
		})
	}
}

// TestMetadataIsFoundBesideAWebApplication checks issuers that have the metadata of OpenID Connect only. They answer
// every other path as web applications do: with their page, or with a redirect to it.
func TestMetadataIsFoundBesideAWebApplication(t *testing.T) {
	const openID = "/.well-known/openid-configuration"
	page := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<!doctype html>\n<title>Sign in</title>"))
	}
	largePage := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write(make([]byte, 300<<10)) // more than a document may have
	}
	login := func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) }
	for name, c := range map[string]struct {
		other http.HandlerFunc // of all other paths
		path  string           // of the metadata
		err   string           // "" if the keys are found
	}{
		"page":                  {page, openID, ""},
		"large page with 404":   {largePage, openID, ""},
		"redirect":              {login, openID, ""},
		"page, no metadata":     {page, "/nowhere", "is not JSON"},
		"redirect, no metadata": {login, "/nowhere", "redirect"},
	} {
		i := authtest.NewIAM(t)
		i.HandleMetadata(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != c.path {
				c.other(w, r)
				return
			}
			_ = json.NewEncoder(w).Encode(authtest.JSON{"issuer": i.URL, "jwks_uri": i.URL + "/jwks"})
		})
		v, _ := newVerifier(t, i, func(cfg *VerifierConfig) { cfg.JWKSURL = "" })
		_, err := v.Verify(t.Context(), authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), authtest.ClaimsOf(i.URL, nil)))
		isWanted := err == nil
		if c.err != "" {
			isWanted = err != nil && strings.Contains(err.Error(), c.err)
		}
		if !isWanted {
			t.Errorf("%s: got %v, want %q", name, err, c.err)
		}
	}
}

// RFC 8414 section 2 does not require jwks_uri, but OpenID Connect Discovery does. An issuer may publish both documents.
func TestKeySetIsDiscoveredFromTheDocumentThatNamesIt(t *testing.T) {
	i := authtest.NewIAM(t)
	i.HandleMetadata(func(w http.ResponseWriter, r *http.Request) {
		document := authtest.JSON{"issuer": i.URL, "token_endpoint": i.URL + "/token"}
		if r.URL.Path == "/.well-known/openid-configuration" {
			document["jwks_uri"] = i.URL + "/jwks"
		}
		_ = json.NewEncoder(w).Encode(document)
	})
	v, _ := newVerifier(t, i, func(cfg *VerifierConfig) { cfg.JWKSURL = "" })
	token := authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), authtest.ClaimsOf(i.URL, nil))
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Errorf("got the error %v, want the token accepted", err)
	}
}

// movingIssuer is an issuer whose metadata may name other keys, or be away.
type movingIssuer struct {
	keys atomic.Value // string // path of the key set
	away atomic.Bool
	last atomic.Value // path of the last request, a string
}

func (m *movingIssuer) RoundTrip(r *http.Request) (*http.Response, error) {
	m.last.Store(r.URL.Path)
	switch {
	case r.URL.Path == m.keys.Load():
		return authtest.Response(http.StatusOK, string(authtest.JWKS(authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey)))), nil
	case strings.HasPrefix(r.URL.Path, "/.well-known/") && !m.away.Load():
		return authtest.Response(http.StatusOK, `{"issuer":"`+fakeIssuer+`","jwks_uri":"`+fakeIssuer+m.keys.Load().(string)+`"}`), nil
	}
	return authtest.Response(http.StatusServiceUnavailable, ""), nil
}

// The metadata is read with the keys, so that another jwks_uri is followed; while it is away, the last
// one is used.
func TestDiscoveredKeySetMayMove(t *testing.T) {
	authtest.RSAKey()
	synctest.Test(t, func(t *testing.T) {
		m := &movingIssuer{}
		m.keys.Store("/jwks")
		v, err := NewVerifier(VerifierConfig{Issuer: fakeIssuer, Audience: "answerd", HTTPClient: &http.Client{Transport: m}})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()

		checkFetches := func(last string) {
			t.Helper()
			if _, err := v.Verify(t.Context(), validToken("k1")); err != nil {
				t.Errorf("got %v, want the token accepted", err)
			}
			synctest.Wait() // keys that are only due are fetched in the background
			if got := m.last.Load(); got != last {
				t.Errorf("got the last request for %s, want %s", got, last)
			}
		}

		checkFetches("/jwks")
		m.keys.Store("/new")
		authtest.Advance(keysRefresh)
		checkFetches("/new")
		m.away.Store(true)
		authtest.Advance(keysMaxAge)
		checkFetches("/new")
	})
}
