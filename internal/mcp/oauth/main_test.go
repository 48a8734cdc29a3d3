package oauth

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"answerd/internal/auth"
	"answerd/internal/mcp/oauth/oauthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture has an authorization server, a resource that it protects, and our Client for it.
type fixture struct {
	*Client
	t    *testing.T
	as   *oauthtest.Server
	mcp  *oauthtest.Resource
	http *http.Transport
	logs *logBuffer
}

// logBuffer is a log that tests look into.
type logBuffer struct {
	sync.Mutex
	buf bytes.Buffer
}

func (r *logBuffer) Write(b []byte) (int, error) {
	r.Lock()
	defer r.Unlock()
	return r.buf.Write(b)
}

func (r *logBuffer) String() string {
	r.Lock()
	defer r.Unlock()
	return r.buf.String()
}

const redirectURL = "http://127.0.0.1:7/oauth/callback" // nobody listens there

// newFixture returns a fixture whose Client has that configuration. Its server says the body of
// the request again, and whose token came with it.
func newFixture(t *testing.T, cfg Config, change func(*fixture)) *fixture {
	t.Helper()
	w := &fixture{t: t, as: oauthtest.New(t), http: &http.Transport{MaxIdleConnsPerHost: 64}, logs: &logBuffer{}}
	w.mcp = w.as.Protect(t, http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(out, r.Header.Get("X-Subject")+" ")
		_, _ = io.Copy(out, r.Body)
	}))
	w.as.Clients["answerd"] = oauthtest.Client{Secret: "client-s3cret"}
	cfg.Name, cfg.URL, cfg.RedirectURL = "crm", w.mcp.URL+"/mcp?tenant=a", redirectURL
	cfg.Logger = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	switch cfg.Kind {
	case ClientCredentials:
		cfg.ClientID, cfg.ClientSecret = "answerd", auth.NewSecret("client-s3cret")
	case JWTBearer:
		cfg.Assertion = Text{Value: auth.NewSecret("workload")}
	case Enterprise:
		cfg.ClientID, cfg.ClientSecret = "answerd", auth.NewSecret("client-s3cret")
		cfg.IdP = IdP{TokenURL: w.as.URL + "/token", ClientID: "answerd", ClientSecret: auth.NewSecret("client-s3cret")}
	}
	var err error
	if w.Client, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(w)
	}
	t.Cleanup(func() { w.http.CloseIdleConnections() })
	t.Cleanup(w.Close)
	return w
}

func userNamed(name string) auth.Identity {
	return auth.Identity{Issuer: "https://login.example", Subject: name, Token: auth.NewSecret("inbound-" + name)}
}

// sendPost sends one request on behalf of who, and returns the reply's body, or its status.
func (w *fixture) sendPost(who auth.Identity) (string, error) {
	req, err := http.NewRequest(http.MethodPost, w.mcp.URL+"/mcp?tenant=a", strings.NewReader("hello"))
	if err != nil {
		return "", err
	}
	resp, err := w.For(who).Send(w.http, req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return resp.Status, nil
	}
	return string(body), nil
}

// mustSend checks that a request of who is answered with want.
func (w *fixture) mustSend(who auth.Identity, want string) {
	w.t.Helper()
	if got, err := w.sendPost(who); err != nil || got != want {
		w.t.Fatalf("got %q, %v, want %q\n%s", got, err, want, w.logs)
	}
}

// mustFail returns the error of a request of who, which must fail.
func (w *fixture) mustFail(who auth.Identity) *Error {
	w.t.Helper()
	got, err := w.sendPost(who)
	e, ok := errors.AsType[*Error](err)
	if !ok {
		w.t.Fatalf("got %q, %v, want an Error", got, err)
	}
	return e
}

// startAuthorization returns the authorization that a refused request of who requires.
func (w *fixture) startAuthorization(who auth.Identity) *Authorization {
	w.t.Helper()
	if e := w.mustFail(who); !errors.Is(e, ErrConsent) {
		w.t.Fatalf("error %v, want ErrConsent", e)
	}
	a, err := w.Authorize(w.t.Context(), who, "")
	if err != nil {
		w.t.Fatalf("error %v\n%s, want no error", err, w.logs)
	}
	return a
}

// signIn completes an authorization of who with a browser.
func (w *fixture) signIn(who auth.Identity) *Authorization {
	w.t.Helper()
	a := w.startAuthorization(who)
	if _, found, err := w.Callback(w.t.Context(), oauthtest.Browse(w.t, a.URL)); !found || err != nil {
		w.t.Fatalf("found %v, %v\n%s, want true and no error", found, err, w.logs)
	}
	return a
}

// parameters returns the query of the URL to which a person is sent for their consent.
func (a *Authorization) parameters(t *testing.T) url.Values {
	t.Helper()
	u, err := url.Parse(a.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query()
}
