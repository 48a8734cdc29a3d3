package mcp

import (
	"bytes"
	"cmp"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/tlsconfig"
	"answerd/internal/tlsconfig/tlstest"
)

// tlsURL returns the URL of a TLS server for a type of MCP server.
func tlsURL(kind, url string) string {
	if kind == config.TypeWebSocket {
		return "wss" + strings.TrimPrefix(url, "https")
	}
	return url
}

// trustOnly returns TLS files with the certificate of s as the only root.
func trustOnly(t testing.TB, s *httptest.Server) tlsconfig.Files {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	tlstest.ReplaceFile(t, path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	return tlsconfig.Files{CAFile: path}
}

// tlsHandlers returns an MCP server of each type that uses HTTP.
func tlsHandlers(t *testing.T) map[string]http.Handler {
	return map[string]http.Handler{
		config.TypeHTTP:      streamableHandler(t, newToolServer(nil), nil),
		config.TypeSSE:       newLegacyServer(),
		config.TypeWebSocket: newWSSDK(t, newToolServer(nil)),
	}
}

func TestTLSClientCertificateIsShownToServersOfEveryType(t *testing.T) {
	for kind, h := range tlsHandlers(t) {
		t.Run(kind, func(t *testing.T) {
			ca := tlstest.NewCA(t)
			server := ca.StartServer(t, h)
			until := time.Now().Add(5 * time.Hour).Truncate(time.Second)
			files := ca.WriteClient(t, t.TempDir(), until)
			c := newClient(t, Options{}, config.Server{Name: "a", Type: kind, URL: tlsURL(kind, server.URL), TLS: files})
			res, err := c.Call(t.Context(), Call{Tool: "echo", Args: []byte(`{"text":"hi"}`)})
			if got := string(mustResult(t, res, err).Payload()); got != `"hi"` {
				t.Errorf("got %s, want \"hi\"", got)
			}

			got := map[string]time.Time{}
			for _, cert := range c.Certificates() {
				got[cert.Server+" "+cert.Role] = cert.Expires
			}
			if len(got) != 2 || !got["a client"].Equal(until) || got["a server"].IsZero() {
				t.Errorf("got certificates %v, want a client until %s, and a server", got, until)
			}
			if err := c.Close(); err != nil { // before the server, which waits for open streams
				t.Error(err)
			}
		})
	}
}

// Without the right files there is no session, and the state says why.
func TestTLSRefusalIsTheReasonOfTheState(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	good := ca.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	foreign := other.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	expired := ca.WriteClient(t, t.TempDir(), time.Now().Add(-time.Hour))
	cert, key := ca.Issue(t, time.Now().Add(-time.Hour))
	untrusted := []string{"its TLS certificate is not trusted"}

	// In TLS 1.3 the server's alert and our request cross. If the connection is closed first, the alert
	// is lost.
	refused := []string{"it refused our TLS client certificate", "the connection was cut before its answer", "it cannot be reached"}
	for name, c := range map[string]struct {
		files   tlsconfig.Files
		old     bool   // the server's certificate has expired
		host    string // in the URL; "" means the address, for which the certificate is
		reasons []string
	}{
		"no files":                   {reasons: untrusted},
		"the roots of another CA":    {files: tlsconfig.Files{CAFile: foreign.CAFile, CertFile: good.CertFile, KeyFile: good.KeyFile}, reasons: untrusted},
		"no client certificate":      {files: tlsconfig.Files{CAFile: good.CAFile}, reasons: refused},
		"a certificate of another":   {files: tlsconfig.Files{CAFile: good.CAFile, CertFile: foreign.CertFile, KeyFile: foreign.KeyFile}, reasons: refused},
		"an expired certificate":     {files: expired, reasons: refused},
		"an expired server's":        {files: good, old: true, reasons: []string{"its TLS certificate has expired or is not valid yet"}},
		"another host's":             {files: good, host: "localhost", reasons: []string{"its TLS certificate is for another host name"}},
		"the certificate that works": {files: good, reasons: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			server := ca.StartServer(t, streamableHandler(t, newToolServer(nil), nil))
			if c.old {
				server = ca.StartServerWith(t, streamableHandler(t, newToolServer(nil), nil), cert, key)
			}
			url := strings.Replace(server.URL, "127.0.0.1", cmp.Or(c.host, "127.0.0.1"), 1)
			client := newClient(t, Options{}, config.Server{Name: "a", URL: url, TLS: c.files})
			offered := client.Tools(t.Context())
			if status := client.Servers()[0]; !slices.Contains(c.reasons, status.Reason) || (status.Reason == "") != (len(offered) > 0) {
				t.Errorf("got %s, reason %q and %d tools, want a reason of %q", status.State, status.Reason, len(offered), c.reasons)
			}
		})
	}
}

// Files are replaced while calls run. No call fails, the session continues, and later calls show the
// new certificate.
func TestTLSRotationWhileCallsRun(t *testing.T) {
	var mu sync.Mutex // protects serials and sessions
	serials, sessions := map[string]int{}, map[string]bool{}
	h := streamableHandler(t, newToolServer(nil), nil)
	ca, dir := tlstest.NewCA(t), t.TempDir()
	server := ca.StartServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		serials[r.TLS.PeerCertificates[0].SerialNumber.String()]++
		if id := r.Header.Get(sessionHeader); id != "" {
			sessions[id] = true
		}
		mu.Unlock()
		h.ServeHTTP(w, r)
	}))

	c := newClient(t, Options{}, config.Server{Name: "a", URL: server.URL, ProtocolVersion: "2025-11-25", TLS: ca.WriteClient(t, dir, time.Now().Add(time.Hour))})
	c.Tools(t.Context())

	const rotations = 3
	for range rotations {
		var calls sync.WaitGroup
		for i := range 20 {
			calls.Go(func() {
				res, err := c.Call(t.Context(), Call{Tool: "echo", Args: fmt.Appendf(nil, `{"text":"%d"}`, i)})
				if err != nil || string(res.Payload()) != fmt.Sprintf(`"%d"`, i) {
					t.Errorf("call %d: %v, want its number", i, err)
				}
			})
		}
		ca.WriteClient(t, dir, time.Now().Add(time.Hour))
		c.ReloadTLS()
		calls.Wait()
	}

	res, err := c.Call(t.Context(), Call{Tool: "echo", Args: []byte(`{"text":"last"}`)})
	mustResult(t, res, err)
	mu.Lock()
	defer mu.Unlock()
	if len(serials) < 2 || len(serials) > rotations+1 || len(sessions) != 1 {
		t.Errorf("got certificates %v and sessions %v, want 2 to %d certificates and one session", serials, sessions, rotations+1)
	}
}

// A file that is broken when it is read again does not matter to the server, and not to others.
func TestTLSFilesThatBreakKeepTheOldOnesInUse(t *testing.T) {
	ca := tlstest.NewCA(t)
	server := ca.StartServer(t, streamableHandler(t, newToolServer(nil), nil))
	broken := ca.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	var log bytes.Buffer
	c := newClient(t, Options{Logger: textLog(&log)}, config.Server{Name: "a", URL: server.URL, TLS: broken})
	c.Tools(t.Context())
	tlstest.ReplaceFile(t, broken.KeyFile, []byte("SECRET"))
	c.ReloadTLS()
	res, err := c.Call(t.Context(), Call{Tool: "echo"})
	mustResult(t, res, err)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); !strings.Contains(text, "those in use stay") || !strings.Contains(text, broken.KeyFile) || strings.Contains(text, "SECRET") {
		t.Errorf("got log %s, want the file and that those in use stay", text)
	}
}

func TestTLSFilesThatCannotBeUsedAreAnError(t *testing.T) {
	ca := tlstest.NewCA(t)
	files := ca.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	missing := files
	missing.CAFile += ".missing"
	want := `MCP server "a", tls.caFile: ` + missing.CAFile + ": cannot be read: no such file or directory"
	s := config.Server{Name: "a", URL: "https://127.0.0.1:9", TLS: missing}
	if _, err := New([]config.Server{s}, Options{Logger: quietLog()}); err == nil || err.Error() != want {
		t.Errorf("New: got %v, want %s", err, want)
	}
	server := ca.StartServer(t, streamableHandler(t, newToolServer(nil), nil))
	good := config.Server{Name: "b", URL: server.URL, TLS: files}
	c := newClient(t, Options{}, good)
	if err := c.Reload([]config.Server{good, s}); err == nil || err.Error() != want {
		t.Errorf("Reload: got %v, want %s", err, want)
	}
	if got := c.Servers(); len(got) != 1 || got[0].Name != "b" {
		t.Errorf("after a refused Reload: got %v, want the server b alone", got)
	}
	if err := c.Reload([]config.Server{good, {Name: "c", URL: server.URL, Disabled: true, TLS: missing}}); err != nil {
		t.Errorf("Reload with a disabled server: got %v, want no error", err)
	}
}

// The token endpoint of a server is asked with the server's certificates; that of exchange with the
// IAM's where the server has none.
func TestTLSAppliesToTokenEndpoints(t *testing.T) {
	ca, iamCA := tlstest.NewCA(t), tlstest.NewCA(t)
	own := ca.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	iamFiles := iamCA.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	iamSource, err := tlsconfig.Load(iamFiles)
	if err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		kind  config.AuthType
		files tlsconfig.Files
		ca    *tlstest.CA // of the token endpoint
	}{
		"client_credentials":               {config.AuthClientCredentials, own, ca},
		"exchange with the server's files": {config.AuthExchange, own, ca},
		"exchange with those of the IAM":   {config.AuthExchange, tlsconfig.Files{}, iamCA},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			endpoint := c.ca.StartServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got = r.TLS.PeerCertificates[0].SerialNumber.String()
				_, _ = io.WriteString(w, `{"access_token":"granted","token_type":"Bearer","expires_in":3600}`)
			}))

			var seen []string
			s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
				seen = append(seen, r.Header.Get("Authorization"))
				replyJSON(w, m.ID, textResult("ok"))
			}}

			cfg := config.Server{Name: "a", Auth: c.kind, TLS: c.files, Grant: config.Grant{
				TokenURL: endpoint.URL, ClientID: "answerd", ClientSecret: auth.NewSecret("secret")}}

			if c.files == (tlsconfig.Files{}) {
				cfg.URL = serveHTTP(t, s).URL
			} else {
				cfg.URL = ca.StartServer(t, s).URL
			}

			client := newClient(t, Options{TokenTLS: iamSource}, cfg)
			res, err := client.Call(t.Context(), Call{Tool: "t", Principal: auth.Identity{Issuer: "i", Subject: "ada", Token: auth.NewSecret("inbound")}})
			mustResult(t, res, err)
			if got == "" || len(seen) != 1 || seen[0] != "Bearer granted" {
				t.Errorf("got client certificate %q at the token endpoint and tokens %q at the server, want one and Bearer granted", got, seen)
			}
		})
	}
}

func TestTLSFilesAreReadByReloadForNewServersOnly(t *testing.T) {
	ca := tlstest.NewCA(t)
	files := ca.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	server := ca.StartServer(t, streamableHandler(t, newToolServer(nil), nil))
	s := config.Server{Name: "a", URL: server.URL, TLS: files}
	c := newClient(t, Options{}, s)
	c.Tools(t.Context())
	if err := os.Remove(files.KeyFile); err != nil {
		t.Fatal(err)
	}
	s.Timeout = time.Minute // the server is replaced, and keeps the certificates
	if err := c.Reload([]config.Server{s}); err != nil {
		t.Errorf("Reload: got %v, want no error", err)
	}
	res, err := c.Call(t.Context(), Call{Tool: "echo"})
	mustResult(t, res, err)
}
