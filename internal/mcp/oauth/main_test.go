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

// world is an authorization server, a resource that it protects, and our Client for it.
type world struct {
	*Client
	t    *testing.T
	as   *oauthtest.Server
	mcp  *oauthtest.Resource
	http *http.Transport
	logs *record
}

// record is a log that tests look into.
type record struct {
	sync.Mutex
	buf bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.Lock()
	defer r.Unlock()
	return r.buf.Write(b)
}

func (r *record) String() string {
	r.Lock()
	defer r.Unlock()
	return r.buf.String()
}

const redirectURL = "http://127.0.0.1:7/oauth/callback" // nobody listens there

// newWorld is a world whose Client has that configuration. Its server says the body of
// the request again, and whose token came with it.
func newWorld(t *testing.T, cfg Config, change func(*world)) *world {
	t.Helper()
	w := &world{t: t, as: oauthtest.New(t), http: &http.Transport{MaxIdleConnsPerHost: 64}, logs: &record{}}
	w.mcp = w.as.Protect(t, http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(out, r.Header.Get("X-Subject")+" ")
		_, _ = io.Copy(out, r.Body)
	}))
	w.as.Clients["answerd"] = oauthtest.Client{Secret: "client-s3cret"}
	cfg.URL, cfg.RedirectURL = w.mcp.URL+"/mcp?tenant=a", redirectURL
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

func person(name string) auth.Identity {
	return auth.Identity{Issuer: "https://login.example", Subject: name, Token: auth.NewSecret("inbound-" + name)}
}

// post sends one request on behalf of who; the reply's body, or its status.
func (w *world) post(who auth.Identity) (string, error) {
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

// says checks that a request on behalf of who goes through as his.
func (w *world) says(who auth.Identity, want string) {
	w.t.Helper()
	if got, err := w.post(who); err != nil || got != want {
		w.t.Fatalf("got %q, %v, want %q\n%s", got, err, want, w.logs)
	}
}

// fails is the error of a request that doesn't go through.
func (w *world) fails(who auth.Identity) *Error {
	w.t.Helper()
	got, err := w.post(who)
	e, ok := errors.AsType[*Error](err)
	if !ok {
		w.t.Fatalf("got %q, %v", got, err)
	}
	return e
}

// begin is an authorization that a refusal of who's request asks for.
func (w *world) begin(who auth.Identity) *Authorization {
	w.t.Helper()
	if e := w.fails(who); !errors.Is(e, ErrConsent) {
		w.t.Fatal(e)
	}
	a, err := w.Authorize(w.t.Context(), who)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, w.logs)
	}
	return a
}

// agree takes who through his browser.
func (w *world) agree(who auth.Identity) *Authorization {
	w.t.Helper()
	a := w.begin(who)
	if found, err := w.Callback(w.t.Context(), oauthtest.Browse(w.t, a.URL)); !found || err != nil {
		w.t.Fatalf("%v, %v\n%s", found, err, w.logs)
	}
	<-a.Done
	return a
}

// parameters of the address that a person is sent to.
func (a *Authorization) parameters(t *testing.T) url.Values {
	t.Helper()
	u, err := url.Parse(a.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query()
}
