package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/demo"
	"answerd/internal/tlsconfig"
	"answerd/internal/tlsconfig/tlstest"
)

// tlsEndpoint is a TLS endpoint that requires client certificates, in front of a service.
type tlsEndpoint struct {
	url   string
	files tlsconfig.Files
	ca    *tlstest.CA

	mu      sync.Mutex // protects serials
	serials []string   // of the client certificates, in the order of their first requests
}

func newTLSEndpoint(t *testing.T, target string) *tlsEndpoint {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	s := &tlsEndpoint{ca: tlstest.NewCA(t)}
	forward := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: to.Scheme, Host: to.Host}) },
	}
	server := s.ca.StartServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serial := r.TLS.PeerCertificates[0].SerialNumber.String()
		s.mu.Lock()
		if len(s.serials) == 0 || s.serials[len(s.serials)-1] != serial {
			s.serials = append(s.serials, serial)
		}
		s.mu.Unlock()
		forward.ServeHTTP(w, r)
	}))
	s.url = server.URL + to.Path
	s.files = s.ca.WriteClient(t, t.TempDir(), time.Now().Add(10*24*time.Hour))
	return s
}

// certificates returns how many client certificates the endpoint has seen, one after the other.
func (s *tlsEndpoint) certificates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.serials)
}

// replaceCertificate replaces the client certificate.
func (s *tlsEndpoint) replaceCertificate(t *testing.T) {
	s.ca.WriteClient(t, filepath.Dir(s.files.CAFile), time.Now().Add(10*24*time.Hour))
}

func (s *tlsEndpoint) settings(prefix string) []string {
	return []string{prefix + "_CA_FILE=" + s.files.CAFile, prefix + "_CERT_FILE=" + s.files.CertFile, prefix + "_KEY_FILE=" + s.files.KeyFile}
}

// S3.7: model endpoints, the IAM and MCP servers, all of which require client certificates, with
// files that are replaced while the service runs.
func TestServeShowsClientCertificatesEverywhere(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	model, own, iam, tools := newTLSEndpoint(t, w.model.URL), newTLSEndpoint(t, w.model.URL), newTLSEndpoint(t, w.iam.url), newTLSEndpoint(t, w.tools.url+demo.MCPPath)
	mcpFile := filepath.Join(t.TempDir(), "mcp.json")
	writeFile(t, mcpFile, fmt.Sprintf(`{"mcpServers": {"crm": {"url": %q, "auth": {"type": "jwt"}, "tls": {"caFile": %q, "certFile": "${DIR}/client.pem", "keyFile": %q}}}}`,
		tools.url, tools.files.CAFile, tools.files.KeyFile))
	models := modelsFile(t, fmt.Sprintf(`[{"id":"scripted"},{"id":"own","base_url":%q,"tls":{"ca_file":%q,"cert_file":"${OWN}/client.pem","key_file":%q}}]`,
		own.url, own.files.CAFile, own.files.KeyFile))
	env := append(w.environ(), "MCP_URL=", "MCP_CONFIG_PATH="+mcpFile, "MODELS_FILE="+models, "DIR="+filepath.Dir(tools.files.CAFile), "OWN="+filepath.Dir(own.files.CAFile),
		"LLM_BASE_URL="+model.url, "IAM_BASE_URL="+iam.url, "AUTH_ISSUER="+w.iam.url, "AUTH_AUDIENCE="+demo.Audience, "AUTH_JWKS_URL="+iam.url+demo.JWKSPath)
	env = append(append(env, model.settings("LLM_TLS")...), iam.settings("IAM_TLS")...)
	if err := run(t.Context(), []string{"check"}, newEnvironment(env), io.Discard, io.Discard); err != nil {
		t.Errorf("check: got %v, want no error", err)
	}

	p := spawnAnswerd(t, env)
	address, c, bearer := p.url(t), newClient(t), w.callerToken(t)
	askModel := func(model string) {
		t.Helper()
		answer := postQuestion(t, c, address, fmt.Sprintf(`{"question":"Two calls, please","model":%q}`, model), "Authorization", bearer)
		if !strings.Contains(string(answer.Metadata), `"tool_names":["`) {
			t.Errorf("model %s: got metadata %s, want tool calls", model, answer.Metadata)
		}
	}
	askModel("scripted")
	askModel("own")
	before := map[*tlsEndpoint]int{model: model.certificates(), own: own.certificates(), iam: iam.certificates(), tools: tools.certificates()}
	for s, n := range before {
		if n != 1 {
			t.Errorf("%s: got %d certificates, want 1", s.url, n)
		}
	}
	_, page := getBody(t, c, address+"/metrics", "Authorization", bearer)
	for _, labels := range []string{
		`connection="llm",name="",`, `connection="llm",name="own",`, `connection="iam",name="",`, `connection="mcp",name="crm",`,
	} {
		if !regexp.MustCompile(`answerd_tls_certificate_expiry_seconds\{` + labels + `role="client"\} 863\d+`).MatchString(page) {
			t.Errorf("the metrics lack the client certificate of %s, want its expiry", labels)
		}
	}

	tools.replaceCertificate(t)
	p.waitForLine(t, "MCP configuration read again")
	own.replaceCertificate(t)
	p.waitForLine(t, "TLS certificates of models read again")
	model.replaceCertificate(t)
	p.waitForLine(t, "TLS certificates read again")
	askModel("scripted")
	askModel("own")
	for _, s := range []*tlsEndpoint{model, own, tools} {
		if n := s.certificates(); n != 2 {
			t.Errorf("%s after the rotation: got %d certificates, want 2", s.url, n)
		}
	}

	tlstest.ReplaceFile(t, model.files.KeyFile, []byte("SECRET"))
	if line := p.waitForLine(t, "TLS certificates refused"); !strings.Contains(line, "LLM_TLS_KEY_FILE: "+model.files.KeyFile) || strings.Contains(line, "SECRET") {
		t.Errorf("got %s, want the setting and its file", line)
	}
	askModel("scripted")
}

func TestTLSFilesThatCannotBeUsedAreExitCode2(t *testing.T) {
	ca := tlstest.NewCA(t)
	files := ca.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	missing := files.CAFile + ".missing"
	mcpFile := filepath.Join(t.TempDir(), "mcp.json")
	writeFile(t, mcpFile, fmt.Sprintf(`{"mcpServers": {"crm": {"url": "https://crm.example", "tls": {"caFile": %q}}}}`, missing))

	for want, settings := range map[string][]string{
		"LLM_TLS_CA_FILE: " + missing + ": cannot be read: no such file or directory":                                 {"LLM_TLS_CA_FILE", missing},
		"IAM_TLS_KEY_FILE: must be set, since the client certificate is":                                              {"IAM_TLS_CERT_FILE", files.CertFile},
		"LLM_TLS_CERT_FILE: " + files.KeyFile + ": has no certificate in PEM":                                         {"LLM_TLS_CERT_FILE", files.KeyFile, "LLM_TLS_KEY_FILE", files.KeyFile},
		"MODELS_FILE: /1/tls/ca_file: " + missing + ": cannot be read: no such file or directory":                     {"MODELS_FILE", modelsFile(t, fmt.Sprintf(`[{"id":"scripted"},{"id":"b","base_url":"https://b","tls":{"ca_file":%q}}]`, missing)), "DEFAULT_MODEL_ID", "scripted"},
		"MODELS_FILE: /0/tls/cafile: unknown field":                                                                   {"MODELS_FILE", modelsFile(t, `[{"id":"scripted","tls":{"cafile":"x"}}]`)},
		"MCP_CONFIG_PATH: MCP server \"crm\", tls.caFile: " + missing + ": cannot be read: no such file or directory": {"MCP_CONFIG_PATH", mcpFile},
	} {
		err := run(t.Context(), nil, newTestEnvironment(append([]string{"ADDR", "127.0.0.1:0", "LLM_BASE_URL", "http://127.0.0.1:9/v1"}, settings...)...), io.Discard, io.Discard)
		if err == nil || err.Error() != want || reportError(err, io.Discard) != 2 {
			t.Errorf("got %v, want exit code 2 and %s", err, want)
		}
	}
}

// A certificate that expires within 14 days is logged once a day; one that was replaced is not.
func TestExpiryOfCertificatesIsLoggedOnceADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		start := time.Now()
		current := usedCertificate{"mcp", "crm", "client", start.Add(15*day + time.Minute)}

		log := &syncBuffer{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			warnOfExpiry(ctx, slog.New(slog.NewTextHandler(log, nil)), func() []usedCertificate {
				return []usedCertificate{current, {"llm", "", "client", start.Add(365 * day)}}
			})
		}()

		for _, step := range []struct {
			after time.Duration
			soon  int
			over  int
		}{{0, 0, 0}, {day + 2*time.Hour, 1, 0}, {day - 2*time.Hour, 1, 0}, {2*time.Hour + time.Minute, 2, 0}, {20 * day, 14, 8}} {
			<-time.After(step.after)
			synctest.Wait()
			text := log.String()
			if soon, over := strings.Count(text, "expires soon"), strings.Count(text, "has expired"); soon != step.soon || over != step.over {
				t.Errorf("after %s: got %d warnings before the expiry and %d after it, want %d and %d", time.Since(start), soon, over, step.soon, step.over)
			}
		}

		if text := log.String(); !strings.Contains(text, "connection=mcp name=crm role=client") || !strings.Contains(text, "days_left=13") {
			t.Errorf("log %s, want the client certificate of crm with 13 days left", text)
		}
		cancel()
		<-done
	})
}
