package signin_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"answerd/internal/auth/authtest"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/signin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The endpoints are those of the issuer's own metadata. Endpoints that a browser must not be sent
// to, or that would reveal codes, are refused.
func TestEndpointsAreThoseOfTheIssuersMetadata(t *testing.T) {
	for name, c := range map[string]struct {
		change authtest.JSON // of the document
		want   func(issuer string) signin.Endpoints
		err    string
	}{
		"all": {nil, func(i string) signin.Endpoints {
			return signin.Endpoints{Authorization: i + "/authorize", Token: i + "/token", EndSession: i + "/logout", IssuerInResponse: true, OpenID: true}
		}, ""},
		"only what is needed": {authtest.JSON{"end_session_endpoint": nil, "authorization_response_iss_parameter_supported": nil, "scopes_supported": nil, "code_challenge_methods_supported": nil}, func(i string) signin.Endpoints {
			return signin.Endpoints{Authorization: i + "/authorize", Token: i + "/token", OpenID: true}
		}, ""},
		"no openid": {authtest.JSON{"scopes_supported": []string{"a"}, "end_session_endpoint": "javascript:alert(1)"}, func(i string) signin.Endpoints {
			return signin.Endpoints{Authorization: i + "/authorize", Token: i + "/token", IssuerInResponse: true}
		}, ""},
		"another issuer":                {authtest.JSON{"issuer": "https://other.example"}, nil, "names another issuer"},
		"no authorization endpoint":     {authtest.JSON{"authorization_endpoint": nil}, nil, "names no https addresses"},
		"no token endpoint":             {authtest.JSON{"token_endpoint": nil}, nil, "names no https addresses"},
		"a script":                      {authtest.JSON{"authorization_endpoint": "javascript:alert(1)"}, nil, "names no https addresses"},
		"plain http":                    {authtest.JSON{"token_endpoint": "http://iam.example/token"}, nil, "names no https addresses"},
		"another port of this machine":  {authtest.JSON{"token_endpoint": "http://127.0.0.1:1/token"}, nil, "names no https addresses"},
		"an endpoint of the wrong type": {authtest.JSON{"token_endpoint": 7}, nil, "names no https addresses"},
		"PKCE without S256":             {authtest.JSON{"code_challenge_methods_supported": []string{"plain"}}, nil, "does not list S256"},
	} {
		t.Run(name, func(t *testing.T) {
			i := authtest.NewIAM(t)
			document := authtest.JSON{
				"issuer": i.URL, "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token", "end_session_endpoint": i.URL + "/logout",
				"code_challenge_methods_supported": []string{"plain", "S256"}, "authorization_response_iss_parameter_supported": true, "scopes_supported": []string{"openid"},
			}

			for member, value := range c.change {
				document[member] = value
				if value == nil {
					delete(document, member)
				}
			}

			i.HandleMetadata(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(document) })
			var log authtest.LogBuffer
			client := fetch.NewClient(nil)
			t.Cleanup(client.CloseIdleConnections)
			d := signin.NewDiscovery(i.URL, client, log.Logger())
			t.Cleanup(d.Close)

			got, err := d.Endpoints(t.Context())
			if c.want == nil {
				if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(log.String(), c.err) {
					t.Errorf("Endpoints = %v, %v, log %s, want the error %q, also in the log", got, err, log.String(), c.err)
				}
				return
			}

			if want := c.want(i.URL); err != nil || got != want {
				t.Errorf("Endpoints = %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

// issuerWithOutages serves metadata, or the status 503.
type issuerWithOutages struct{ away atomic.Bool }

func (i *issuerWithOutages) RoundTrip(*http.Request) (*http.Response, error) {
	if i.away.Load() {
		return authtest.Response(http.StatusServiceUnavailable, ""), nil
	}
	return authtest.Response(http.StatusOK, `{"issuer":"https://iam.example","authorization_endpoint":"https://iam.example/a","token_endpoint":"https://iam.example/t"}`), nil
}

// TestLogSaysWhetherSignInIsOffered checks the log while the metadata cannot be read: before the first time
// there is no sign-in, and later the endpoints that are known stay in use.
func TestLogSaysWhetherSignInIsOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, log := &issuerWithOutages{}, authtest.LogBuffer{}
		d := signin.NewDiscovery("https://iam.example", fetch.NewClient(&http.Client{Transport: i}), log.Logger())
		defer d.Close()
		const none, known = "the console offers no sign-in", "the last one is used"
		i.away.Store(true)
		if _, err := d.Endpoints(t.Context()); err == nil || !strings.Contains(log.String(), none) || strings.Contains(log.String(), known) {
			t.Errorf("Endpoints = %v, log %s, want an error and %q", err, log.String(), none)
		}
		i.away.Store(false)
		authtest.Advance(time.Minute)
		if _, err := d.Endpoints(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := len(log.String())
		i.away.Store(true)
		authtest.Advance(2 * time.Hour)
		if _, err := d.Endpoints(t.Context()); err != nil {
			t.Errorf("Endpoints = %v, want those that are known", err)
		}
		synctest.Wait() // they are read in the background
		if text := log.String()[before:]; !strings.Contains(text, known) || strings.Contains(text, none) {
			t.Errorf("log %s, want %q", text, known)
		}
	})
}
