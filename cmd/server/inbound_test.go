package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
	"answerd/internal/demo"
	"answerd/internal/llm/llmtest"
)

// withInboundAuth returns the settings that require callers to have tokens of the test world's IAM.
func (w *testWorld) withInboundAuth(more ...string) []string {
	return append([]string{"AUTH_ISSUER", w.iam.url, "AUTH_AUDIENCE", demo.Audience, "AUTH_JWKS_URL", w.iam.url + demo.JWKSPath}, more...)
}

// callerToken returns a token of the test world's IAM for its one client.
func (w *testWorld) callerToken(t *testing.T) string {
	t.Helper()
	src, err := token.NewClientCredentials(token.ClientCredentialsConfig{
		TokenURL: w.iam.url + demo.TokenPath, ClientID: demoClient, Secret: token.FixedSecret(auth.NewSecret(clientSecret)), Scope: demo.Scope,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	token, err := src.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + token.Reveal()
}

// However ADDR is written: an address that other machines can reach is not served without
// authentication, unless a setting allows that.
func TestServeRefusesAnonymousAccessBeyondLoopback(t *testing.T) {
	here := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1"}
	for addr, open := range map[string]bool{
		":0": true, "0.0.0.0:0": true, "[::]:0": true, "[::ffff:0.0.0.0]:0": true, "0:0": true, "*:0": true, "10.0.0.1:0": true, "[fe80::1%lo]:0": true, "agent.example:0": true,
		"localhost.evil.example:0": true, "127.0.0.1.nip.io:0": true, "localhost.:0": true, "127.1:0": true,
		"127.0.0.1:0": false, "127.8.8.8:0": false, "[::1]:0": false, "[::ffff:127.0.0.1]:0": false, "localhost:0": false,
	} {
		_, err := loadConfig(newTestEnvironment(append(here, "ADDR", addr)...))
		if bad, ok := errors.AsType[*configError](err); ok != open || open && (bad.name != "ADDR" || reportError(err, io.Discard) != 2) {
			t.Errorf("%s: %v, want ADDR refused: %t", addr, err, open)
		}
		if _, err := loadConfig(newTestEnvironment(append(here, "ADDR", addr, "AUTH_INSECURE_ALLOW_ANONYMOUS", "true")...)); err != nil {
			t.Errorf("%s, and everybody may: %v", addr, err)
		}
	}

	// The name localhost may be anything; what counts is what was bound.
	c, err := loadConfig(newTestEnvironment(append(here, "ADDR", "localhost:0")...))
	if err != nil {
		t.Fatal(err)
	}

	for ip, open := range map[string]bool{"127.0.0.1": false, "::1": false, "10.0.0.1": true, "::": true, "0.0.0.0": true} {
		if err := c.checkBoundAddr(&net.TCPAddr{IP: net.ParseIP(ip)}); (err != nil) != open {
			t.Errorf("bound to %s: %v, want it refused: %t", ip, err, open)
		}
	}
}

// Without AUTH_JWKS_URL the keys are those that the metadata of AUTH_ISSUER names.
func TestServeDiscoversTheKeysOfTheIssuer(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	s := startAnswerd(t, w.environment(w.withInboundAuth("AUTH_JWKS_URL", "")...))
	for authorization, want := range map[string]int{w.callerToken(t): http.StatusOK, "Bearer x.y.z": http.StatusUnauthorized} {
		if status, body := getBody(t, newClient(t), s.url+"/tools", "Authorization", authorization); status != want {
			t.Errorf("got %d %s, want %d", status, body, want)
		}
	}
}

// PORT stands for ADDR where that is not set, with the same rule.
func TestPortIsUsedWithoutAnAddress(t *testing.T) {
	here := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "AUTH_INSECURE_ALLOW_ANONYMOUS", "true"}
	for settings, want := range map[string]string{"PORT 9000": ":9000", "PORT 9000 ADDR 127.0.0.1:1": "127.0.0.1:1", "PORT tcp://10.0.0.1:80 ADDR 127.0.0.1:1": "127.0.0.1:1", "": "127.0.0.1:8080"} {
		if c, err := loadConfig(newTestEnvironment(append(here, strings.Fields(settings)...)...)); err != nil || c.Addr != want {
			t.Errorf("%s: got %s, %v, want %s", settings, c.Addr, err, want)
		}
	}

	for _, port := range []string{"0", "65536", "-1", "http", "127.0.0.1:80"} {
		_, err := loadConfig(newTestEnvironment(append(here, "PORT", port)...))
		if bad, ok := errors.AsType[*configError](err); !ok || bad.name != "PORT" {
			t.Errorf("PORT=%s: got %v, want an error about PORT", port, err)
		}
	}

	_, err := loadConfig(newTestEnvironment(append(here[:2:2], "PORT", "9000")...))
	if bad, ok := errors.AsType[*configError](err); !ok || bad.name != "PORT" || !strings.Contains(bad.reason, "ADDR=127.0.0.1:9000") || reportError(err, io.Discard) != 2 {
		t.Errorf("without authentication: got %v, want an error about PORT that names ADDR=127.0.0.1:9000", err)
	}
}

// The health check asks where the server listens; the demo, which has no authentication, stays on
// loopback, and says how to reach it in a container.
func TestPortIsUsedByTheHealthCheckAndTheDemo(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	p := spawnAnswerd(t, []string{"PORT=" + port}, "demo")
	if line := p.waitForLine(t, "curl -N"); !strings.Contains(line, "http://127.0.0.1:"+port+"/") {
		t.Errorf("got %s, want the demo at 127.0.0.1:%s", line, port)
	}
	if err := checkHealth(t.Context(), newTestEnvironment("PORT", port)); err != nil {
		t.Errorf("got %v of the health check, want none", err)
	}
	p.waitForLine(t, "docker run -e AUTH_INSECURE_ALLOW_ANONYMOUS=true -p 127.0.0.1:"+port+":"+port)
}

// Other hosts cannot reach the loopback address of a container, so the demo listens at all addresses once that is allowed.
func TestPortOfTheDemoIsOpenToAllWhenThatIsAllowed(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	p := spawnAnswerd(t, []string{"PORT=" + port, "AUTH_INSECURE_ALLOW_ANONYMOUS=true"}, "demo")
	if line := p.waitForLine(t, "curl -N"); !strings.Contains(line, "http://localhost:"+port+"/") {
		t.Errorf("got %s, want the demo at all addresses, printed as localhost:%s", line, port)
	}
	if _, tools := getBody(t, newClient(t), "http://127.0.0.1:"+port+"/tools"); !strings.Contains(tools, `"calculate"`) || strings.Contains(tools, "connect_calendar") {
		t.Errorf("got %s, want tools without the one whose page only the container reaches", tools)
	}
}

func TestAllowedHostsIncludeThePublicURL(t *testing.T) {
	here := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "AUTH_INSECURE_ALLOW_ANONYMOUS", "true", "PUBLIC_URL", "https://Ask.example.com:8443"}
	for settings, want := range map[[4]string]string{
		{"ADDR", "10.0.0.1:1", "ALLOWED_HOSTS", "inner.example"}: "[inner.example ask.example.com]", {"ADDR", "10.0.0.1:1"}: "[10.0.0.1 ask.example.com]", {"ADDR", ":1"}: "[]",
	} {
		c, err := loadConfig(newTestEnvironment(append(here, settings[:]...)...))
		if got := fmt.Sprint(c.AllowedHosts); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s and no error", settings, got, err, want)
		}
	}
}

func TestLoadConfigNamesBadInboundSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.json")
	writeFile(t, path, "{\"rules\": [{\"tools\": [\"a\"]},\n {\"tool\": [\"b\"]}]}")

	on := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "ADDR", "127.0.0.1:0", "AUTH_ISSUER", "https://iam.example", "AUTH_AUDIENCE", "a", "AUTH_JWKS_URL", "https://iam.example/jwks"}
	for settings, want := range map[[2]string]string{
		{"AUTH_ALGORITHMS", "RS256, HS256"}:          `AUTH_ALGORITHMS: "HS256" is not a supported signature algorithm`,
		{"AUTH_JWKS_URL", "http://iam.example/jwks"}: "AUTH_JWKS_URL: the URL must be https, or http on the loopback address",
		{"AUTH_JWKS_URL", "nowhere"}:                 "AUTH_JWKS_URL: must be an http or https URL",
		{"AUTH_SCOPE", `a"b`}:                        "AUTH_SCOPE: the scope has characters that are not allowed in a scope",
		{"AUTH_CLIENTS", "web, "}:                    "AUTH_CLIENTS: has a comma too many",
		{"AUTH_MAX_LIFETIME", "-1s"}:                 "AUTH_MAX_LIFETIME: must not be negative",
		{"AUTH_RULES_FILE", path}:                    "AUTH_RULES_FILE: /rules/1/tool: unknown field",
		{"AUTH_RULES_FILE", path + "x"}:              "AUTH_RULES_FILE: cannot be read: no such file or directory",
		{"CONSOLE_OIDC_SCOPE", "openid"}:             "CONSOLE_OIDC_CLIENT_ID: must be set when CONSOLE_OIDC_SCOPE is",
		{"METRICS_ADDR", "9090"}:                     "METRICS_ADDR: must be host:port",
	} {
		for _, command := range [][]string{nil, {"check"}} {
			err := run(t.Context(), command, newTestEnvironment(append(on, settings[:]...)...), io.Discard, io.Discard)
			if reportError(err, io.Discard) != 2 || err.Error() != want {
				t.Errorf("%v: got %v, want %s", command, err, want)
			}
		}
	}

	for _, issuer := range []string{"https", "http://iam.example", "iam"} {
		_, err := loadConfig(newTestEnvironment(append(on, "AUTH_JWKS_URL", "", "AUTH_ISSUER", issuer)...))
		if bad, ok := errors.AsType[*configError](err); !ok || bad.name != "AUTH_JWKS_URL" {
			t.Errorf("issuer %s without the address of its keys: got %v, want an error about AUTH_JWKS_URL", issuer, err)
		}
	}

	for _, more := range [][]string{{"AUTH_ISSUER", "iam"}, {"AUTH_CLIENTS", "web, cli"}, {"AUTH_ISSUER", "", "AUTH_AUDIENCE", "", "AUTH_JWKS_URL", ""}} {
		_, err := loadConfig(newTestEnvironment(append(append(on, "CONSOLE_OIDC_CLIENT_ID", "console"), more...)...))
		if bad, ok := errors.AsType[*configError](err); !ok || bad.name != "CONSOLE_OIDC_CLIENT_ID" {
			t.Errorf("sign-in of the console with %v: got %v, want an error about CONSOLE_OIDC_CLIENT_ID", more, err)
		}
	}

	if _, err := loadConfig(newTestEnvironment(append(on, "CONSOLE_OIDC_CLIENT_ID", "console", "AUTH_CLIENTS", "web, console")...)); err != nil {
		t.Errorf("sign-in of the console as one of AUTH_CLIENTS: got %v, want no error", err)
	}
	_, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "AUTH_RULES_FILE", path))
	if bad, ok := errors.AsType[*configError](err); !ok || bad.name != "AUTH_ISSUER" {
		t.Errorf("rules without callers: %v, want a configError, name AUTH_ISSUER", err)
	}
}

// RFC 9728, RFC 6750, and the matrix's line on metrics, over the whole service.
func TestProtectedResourceMetadataNamesTheIssuer(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	s := startAnswerd(t, w.environment(w.withInboundAuth("AUTH_SCOPE", demo.Scope, "METRICS_ADDR", "127.0.0.1:0")...))
	c := newClient(t)
	for path, resource := range map[string]string{"": "", "/mcp": "/mcp"} {
		status, body := getBody(t, c, s.url+"/.well-known/oauth-protected-resource"+path)
		want := fmt.Sprintf(`{"resource":%q,"authorization_servers":[%q],"scopes_supported":[%q],"bearer_methods_supported":["header"],"resource_name":"answerd"}`, s.url+resource, w.iam.url, demo.Scope)
		if status != 200 || body != want {
			t.Errorf("%s: got %d %s, want %s", path, status, body, want)
		}
	}

	if status, _ := getBody(t, c, s.url+"/tools"); status != 401 {
		t.Errorf("without a token: %d, want 401", status)
	}
	if status, body := getBody(t, c, s.url+"/tools", "Authorization", w.callerToken(t)); status != 200 {
		t.Errorf("with one: %d %s, want 200", status, body)
	}
	if status, _ := getBody(t, c, s.url+"/metrics", "Authorization", w.callerToken(t)); status != 404 {
		t.Errorf("metrics at ADDR: %d, want 404", status)
	}
	_, line, _ := strings.Cut(s.log.String(), `"serving metrics","addr":"`)
	addr, _, _ := strings.Cut(line, `"`)
	if status, body := getBody(t, c, "http://"+addr+"/metrics"); status != 200 || !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics at METRICS_ADDR: %d %.100s, want status 200, body containing go_goroutines", status, body)
	}
	if status, _ := getBody(t, c, "http://"+addr+"/tools"); status != 404 {
		t.Errorf("the rest at METRICS_ADDR: %d, want 404", status)
	}
}

// F36: rules are read again on SIGHUP. Invalid rules are refused, and the ones in use stay.
func TestRulesAreReloaded(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	path := filepath.Join(t.TempDir(), "rules.json")
	writeFile(t, path, `{"rules": [{"subjects": ["*"], "tools": ["calculate"]}]}`)

	env := w.environ()
	for more := w.withInboundAuth("AUTH_RULES_FILE", path); len(more) > 0; more = more[2:] {
		env = append(env, more[0]+"="+more[1])
	}

	p := spawnAnswerd(t, env)
	url, c, bearer := p.url(t), newClient(t), w.callerToken(t)
	listTools := func() (names []string) {
		_, body := getBody(t, c, url+"/tools", "Authorization", bearer)
		for _, part := range strings.Split(body, `"name":"`)[1:] {
			name, _, _ := strings.Cut(part, `"`)
			names = append(names, name)
		}
		return names
	}

	if got := fmt.Sprint(listTools()); got != "[calculate]" {
		t.Errorf("got %q, want [calculate]", got)
	}
	writeFile(t, path, `{"rules": [{"subjets": ["*"]}]}`)
	p.signal(t, syscall.SIGHUP)
	if line, want := p.waitForLine(t, "access rules refused"), "/rules/0/subjets: unknown field"; !strings.Contains(line, want) {
		t.Errorf("line %q, want it to contain %q", line, want)
	}
	if got := fmt.Sprint(listTools()); got != "[calculate]" {
		t.Errorf("got %q, want [calculate]", got)
	}
	writeFile(t, path, `{"rules": [{"subjects": ["somebody"]}]}`)
	p.signal(t, syscall.SIGHUP)
	p.waitForLine(t, "access rules read again")
	if got := listTools(); len(got) != 0 {
		t.Errorf("tools %q, want 0", got)
	}
	resp := post(t, c, url+"/answer", `{"question":"?"}`, "Authorization", bearer)
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a question: %s, want 403", resp.Status)
	}
}

// Operators must see failed attempts to log in.
func TestAuthFailuresAreCountedByReason(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, llmtest.Turns(llmtest.Says("Yes.")))
	s := startAnswerd(t, w.environment(w.withInboundAuth()...))
	c := newClient(t)
	for _, authorization := range []string{"", "Bearer x", "Bearer x", w.callerToken(t)} {
		getBody(t, c, s.url+"/tools", "Authorization", authorization)
	}
	_, page := getBody(t, c, s.url+"/metrics", "Authorization", w.callerToken(t))
	for reason, n := range map[string]int{"no_token": 1, "header": 2, "expired": 0} {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^answerd_logins_refused_total\{[^}]*reason="%s"[^}]*\} %d$`, reason, n)).MatchString(page) {
			t.Errorf("metrics:\n%s\nwant %d refusals of %s", page, n, reason)
		}
	}
}
