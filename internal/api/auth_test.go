package api_test

import (
	"bufio"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/auth"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// Only a token in the Authorization header authenticates a request, whatever a proxy in front of us
// or a probe adds, and every route answers the same (RFC 6750 section 3.1).
func TestRoutesNeedAToken(t *testing.T) {
	t.Parallel()
	iam := newMint(t)
	v := iam.newVerifier(t, nil)

	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Verifier = v })
	good := iam.bearerToken("ada")
	_, bare, _ := strings.Cut(good, " ")
	for name, header := range map[string][]string{
		"nothing": nil, "another scheme": {"Authorization", "Basic " + bare}, "an empty token": {"Authorization", "Bearer "},
		"a cookie": {"Cookie", "access_token=" + bare + "; Authorization=" + good}, "another header": {"X-Api-Key", bare}, "a proxy's": {"Proxy-Authorization", good},
		"a user by header": {"X-Forwarded-User", "ada"}, "an address by header": {"X-Forwarded-For", "127.0.0.1"}, "a path by header": {"X-Original-URL", "/healthz"},
		"a rewritten path": {"X-Rewrite-URL", "/healthz"}, "a probe": {"User-Agent", "kube-probe/1.34"}, "an inner call": {"X-Internal", "true"},
	} {
		for _, route := range []string{
			"POST /answer", "POST /answer/stream", "GET /answer/stream?question=a", "GET /answer/stream?question=a&access_token=" + bare, "POST /answer?access_token=" + bare,
			"GET /runs/run_a", "GET /runs/run_a/events", "GET /runs/run_a/results/c", "POST /runs/run_a/input", "POST /runs/run_a/cancel",
			"GET /tools", "POST /tools/meet/call", "GET /servers", "POST /servers/default/refresh", "GET /servers/default/prompts",
			"POST /mcp", "DELETE /mcp",
		} {
			method, path, _ := strings.Cut(route, " ")
			resp := s.do(t, method, path, question, header...)
			p := wantProblem(t, resp, 401, "unauthenticated")
			about := s.URL + "/.well-known/oauth-protected-resource"
			if path == "/mcp" {
				about += path // which is a resource of its own (RFC 9728 section 3.1)
			}
			if got := resp.Header.Get("WWW-Authenticate"); got != `Bearer realm="answerd", resource_metadata="`+about+`"` {
				t.Errorf("%s, %s: challenge %s, want %s", route, name, got, `Bearer realm="answerd", resource_metadata="`+about+`"`)
			}
			if said, _ := json.Marshal(p); strings.Contains(string(said), bare) {
				t.Errorf("%s, %s: the problem repeats the token, said %q, want no %s", route, name, string(said), bare)
			}
		}
	}

	wantProblem(t, s.do(t, "GET", "/tools", "", "Authorization", "Bearer a b"), 400, "invalid_request")
	wantProblem(t, s.do(t, "GET", "/tools", "", "Authorization", "Bearer "+strings.Repeat("a", 9000)), 400, "invalid_request")
	if len(s.Model.Requests()) != 0 || len(s.Tools.Entered) != 0 {
		t.Errorf("without a valid token: %d model requests, %d calls, want 0 and 0", len(s.Model.Requests()), len(s.Tools.Entered))
	}
	if resp := s.do(t, "GET", "/tools", "", "Authorization", good); resp.StatusCode != 200 {
		t.Errorf("the token's owner: %s, want 200", resp.Status)
	}
}

// The table of authentication: each kind of token and header over real HTTP, through the whole
// handler, with the keys of a real endpoint. A refused request gets one of four fixed texts, and no
// other detail.
func TestAuthenticationMatrix(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	s := newService(t, addingModel(), nil, func(o *api.Options) {
		o.Verifier = m.newVerifier(t, func(c *auth.VerifierConfig) { c.Clients, c.MaxLifetime = []string{"web"}, time.Hour })
	})

	webToken := func(header, claims fields) string {
		if _, given := claims["azp"]; !given {
			claims = mergeFields(fields{"azp": "web"}, claims)
		}
		return m.validToken(header, claims)
	}

	signedToken := func(method jwt.SigningMethod, key crypto.PrivateKey, header fields) string {
		return m.sign(method, key, header, fields{"azp": "web"})
	}
	now := time.Now().Unix()
	whole := webToken(nil, nil)
	parts := strings.Split(whole, ".")
	der, err := x509.MarshalPKIXPublicKey(&m.rsa.PublicKey)
	if err != nil {
		t.Fatal(err)
	}

	evil := m.attacker.URL
	rows := []struct {
		name  string
		token string // behind "Bearer ", or the whole header where it begins with "="
		want  int
	}{
		{"RS256", whole, 200}, {"ES256", signedToken(jwt.SigningMethodES256, m.ec, fields{"kid": "e"}), 200}, {"EdDSA", signedToken(jwt.SigningMethodEdDSA, m.ed, fields{"kid": "o"}), 200},
		{"the scheme in another case", "=bEARER " + whole, 200},

		{"Basic", "=Basic YTpi", 401}, {"an empty bearer", "=Bearer ", 401}, {"the scheme alone", "=Bearer", 401},
		{"two tokens", "=Bearer a b", 400}, {"8 KiB and more", strings.Repeat("a", 8<<10+1), 400}, {"no scheme", "=" + whole, 401}, {"a comma", "=Bearer " + whole + ", Bearer " + whole, 400},

		{"two parts", parts[0] + "." + parts[1], 401}, {"a JWE's five parts", whole + ".x.y", 401}, {"only dots", strings.Repeat(".", 8000), 401}, {"padding", whole + "==", 401},
		{"bad base64", parts[0] + "." + parts[1] + "." + parts[2] + "~", 401}, {"bad JSON", base64URL([]byte("{")) + ".e30.AA", 401}, {"no JSON object", base64URL([]byte("[]")) + ".e30.AA", 401},
		{"a header member twice", m.signRaw(jwt.SigningMethodRS256, m.rsa, `{"alg":"none","alg":"RS256","kid":"r"}`, `{}`), 401},

		{"alg none", base64URL([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", 401}, {"alg NoNe", base64URL([]byte(`{"alg":"NoNe","kid":"r"}`)) + "." + parts[1] + ".AA", 401}, {"no alg", webToken(fields{"alg": nil}, nil), 401},
		{"HS256 with the public key's DER", signedToken(jwt.SigningMethodHS256, der, nil), 401}, {"HS256 with the modulus", signedToken(jwt.SigningMethodHS256, m.rsa.N.Bytes(), nil), 401},
		{"HS256 with the PEM", signedToken(jwt.SigningMethodHS256, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil), 401},
		{"an algorithm that is not allowed", signedToken(jwt.SigningMethodRS512, m.rsa, nil), 401}, {"an algorithm of another kind of key", signedToken(jwt.SigningMethodES256, m.ec, fields{"kid": "r"}), 401},
		{"a key that is for another algorithm", webToken(fields{"kid": "ps"}, nil), 401}, {"RS256 named, EdDSA signed", signedToken(jwt.SigningMethodEdDSA, m.ed, fields{"kid": "o", "alg": "RS256"}), 401},
		{"ES256 of zeroes", base64URL([]byte(`{"alg":"ES256","kid":"e"}`)) + "." + parts[1] + "." + base64URL(make([]byte, 64)), 401}, {"RSA below 2048 bits", signedToken(jwt.SigningMethodRS256, m.small, fields{"kid": "small"}), 401},

		{"an unknown kid", webToken(fields{"kid": "x"}, nil), 401}, {"a path for a kid", webToken(fields{"kid": "../../dev/null"}, nil), 401}, {"SQL for a kid", webToken(fields{"kid": "x' OR '1'='1"}, nil), 401},
		{"an address for a kid", webToken(fields{"kid": evil}, nil), 401}, {"1 KiB of kid", webToken(fields{"kid": strings.Repeat("k", 1024)}, nil), 401}, {"no kid among many", webToken(fields{"kid": nil}, nil), 401},
		{"the right kid, the wrong key", signedToken(jwt.SigningMethodRS256, m.rogue, nil), 401}, {"a jwk of its own", signedToken(jwt.SigningMethodRS256, m.rogue, fields{"jwk": rsaJWK("r", m.rogue)}), 401},
		{"a jku of its own", signedToken(jwt.SigningMethodRS256, m.rogue, fields{"jku": evil, "x5u": evil, "x5c": []string{"MIIB"}}), 401}, {"a jku that nobody asks", webToken(fields{"jku": evil, "x5u": evil}, nil), 200},
		{"crit", webToken(fields{"crit": []string{"exp"}}, nil), 401}, {"b64 false", webToken(fields{"b64": false}, nil), 401},
		{"a logout token", webToken(fields{"typ": "logout+jwt"}, nil), 401},

		{"another issuer", webToken(nil, fields{"iss": "https://evil.example"}), 401}, {"an issuer with a slash", webToken(nil, fields{"iss": "https://iam.example/"}), 401},
		{"another tenant", webToken(nil, fields{"iss": "https://iam.example/b"}), 401}, {"no issuer", webToken(nil, fields{"iss": nil}), 401},
		{"another audience", webToken(nil, fields{"aud": "other"}), 401}, {"no audience", webToken(nil, fields{"aud": nil}), 401}, {"no audience in a list", webToken(nil, fields{"aud": []string{}}), 401},
		{"a longer audience", webToken(nil, fields{"aud": "answerd2"}), 401}, {"another client", webToken(nil, fields{"azp": "evil"}), 401},

		{"no exp", webToken(nil, fields{"exp": nil}), 401}, {"expired for more than a minute", webToken(nil, fields{"exp": now - 61}), 401}, {"exp a string", webToken(nil, fields{"exp": "9999999999"}), 401},
		{"exp 1e300", webToken(nil, fields{"exp": 1e300}), 401}, {"exp negative", webToken(nil, fields{"exp": -1}), 401}, {"exp NaN", m.signRaw(jwt.SigningMethodRS256, m.rsa, `{"alg":"RS256","kid":"r"}`, `{"exp":NaN}`), 401},
		{"nbf beyond a minute", webToken(nil, fields{"nbf": now + 120}), 401}, {"iat beyond a minute", webToken(nil, fields{"iat": now + 120}), 401}, {"a life beyond the longest", webToken(nil, fields{"exp": now + 3700}), 401},
		{"expired within a minute", webToken(nil, fields{"exp": now - 30}), 200}, {"nbf within a minute", webToken(nil, fields{"nbf": now + 30}), 200},

		{"neither sub nor client_id", webToken(nil, fields{"sub": nil}), 401}, {"sub an object", webToken(nil, fields{"sub": fields{}}), 401}, {"client_id for sub", webToken(nil, fields{"sub": nil, "client_id": "web"}), 200},
		{"no scope", webToken(nil, fields{"scope": nil}), 403}, {"a longer scope", webToken(nil, fields{"scope": "asking"}), 403}, {"no scope, and expired", webToken(nil, fields{"scope": nil, "exp": now - 90}), 401},

		// CVE-2026-35030: the same beginning and end as a good one.
		{"other claims under a good signature", parts[0] + "." + base64URL([]byte(jsonText(fields{"sub": "root", "exp": now + 300}))) + "." + parts[2], 401},
	}
	begin := time.Now()
	said := make(map[int]string)
	challenge := func(attributes string) string {
		return `Bearer realm="answerd"` + attributes + `, resource_metadata="` + s.URL + `/.well-known/oauth-protected-resource"`
	}

	for _, row := range rows {
		header, isHeader := strings.CutPrefix(row.token, "=")
		if !isHeader {
			header = "Bearer " + row.token
		}
		resp := s.do(t, "GET", "/tools", "", "Authorization", header)
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}

		want := map[int]string{
			400: challenge(`, error="invalid_request"`), 401: challenge(`, error="invalid_token"`), 403: challenge(`, error="insufficient_scope", scope="ask"`),
		}[row.want]
		if isHeader && row.want == 401 {
			want = challenge("") // nothing that could be wrong: RFC 6750 section 3.1
		}
		if got := resp.Header.Get("WWW-Authenticate"); resp.StatusCode != row.want || got != want {
			t.Errorf("%s: %d %s, want %d %s", row.name, resp.StatusCode, got, row.want, want)
			continue
		}
		if row.want == 200 {
			continue
		}
		if kind := resp.Header.Get("Content-Type"); kind != "application/problem+json" || said[row.want] != "" && said[row.want] != string(body) {
			t.Errorf("%s: %s\n%s is not\n%s", row.name, kind, body, said[row.want])
		}
		said[row.want] = string(body)
	}

	if n := m.attacked.Load(); n != 0 {
		t.Errorf("%d requests to an address in a token, want 0", n)
	}

	// F28: all those keys that there are not, within 30 s of the first fetch.
	if n := m.fetched.Load(); n > 1+int64(time.Since(begin)/(30*time.Second)) {
		t.Errorf("%d fetches of the keys, want at most %d", n, 1+int64(time.Since(begin)/(30*time.Second)))
	}
}

func mergeFields(base, change fields) fields {
	maps.Copy(base, change)
	return base
}

// Headers that the client of net/http cannot send: two of a name, control characters, and more
// bytes than are allowed.
func TestHeadersThatNoClientSendsAreRefused(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Verifier = m.newVerifier(t, nil) })
	web := httptest.NewUnstartedServer(s.handler)
	web.Config.MaxHeaderBytes = api.MaxHeaderBytes
	web.Start()
	defer web.Close()

	bearer := "Authorization: Bearer " + m.validToken(nil, nil) + "\r\n"
	for name, c := range map[string]struct {
		headers string
		want    int
	}{
		"one": {bearer, 200}, "two": {bearer + bearer, 400}, "a good one behind an empty one": {"Authorization: \r\n" + bearer, 400}, "another scheme beside it": {bearer + "Authorization: Basic YTpi\r\n", 400},
		"a control character": {strings.Replace(bearer, "Bearer ", "Bearer \x01", 1), 400},
		"32 KiB":              {"Authorization: Bearer " + strings.Repeat("a", 32<<10) + "\r\n", 431},
	} {
		conn, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))

		go func() {
			_, _ = fmt.Fprintf(conn, "GET /tools HTTP/1.1\r\nHost: 127.0.0.1\r\n%sConnection: close\r\n\r\n", c.headers)
		}()

		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		resp.Body.Close()
		conn.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", name, resp.StatusCode, c.want)
		}
	}
}

// F28: without keys no token can be verified. That is 503 and says nothing about the token. A
// request that was accepted before continues.
func TestCallersAreNotRefusedWhileTheKeysAreUnavailable(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	s := newService(t, addingModel(), nil, func(o *api.Options) {
		o.Verifier = m.newVerifier(t, func(c *auth.VerifierConfig) { c.JWKSURL = down.URL })
	})
	resp := s.do(t, "GET", "/tools", "", "Authorization", "Bearer "+m.validToken(nil, nil))
	wantProblem(t, resp, 503, "overloaded")
	if resp.Header.Get("Retry-After") == "" || resp.Header.Get("WWW-Authenticate") != "" {
		t.Errorf(`header %v, want Get("Retry-After") non-empty, Get("WWW-Authenticate") empty`, resp.Header)
	}
}

// Requests that are refused for another reason than their token, and requests that need no token.
func TestAuthenticationMatrixOfOtherConfigurations(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	parsed, err := auth.ParseRules([]byte(`{"rules": [{"subjects": ["ada"], "tools": ["add"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, addingModel(), func(o *agent.Options) { o.Rules = auth.NewRules(parsed) }, func(o *api.Options) {
		o.Verifier = m.newVerifier(t, nil)
		o.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	})

	ada, eve := "Bearer "+m.validToken(nil, nil), "Bearer "+m.validToken(nil, fields{"sub": "eve"})
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		want                     int
	}{
		{"health", "GET", "/healthz", "", nil, 200}, {"metrics", "GET", "/metrics", "", nil, 401}, {"metrics with a token", "GET", "/metrics", "", []string{"Authorization", ada}, 200},
		{"a path of a public one", "GET", "/healthz/../tools", "", nil, 404}, {"a path behind a semicolon", "GET", "/tools;/healthz", "", nil, 404}, {"two slashes", "GET", "//tools", "", nil, 404},
		{"an escaped slash", "GET", "/healthz%2f..%2ftools", "", nil, 404}, {"a question mark", "GET", "/tools?/healthz", "", nil, 401}, {"a trailing slash", "GET", "/tools/", "", nil, 404},
		{"text", "POST", "/answer", question, []string{"Authorization", ada, "Content-Type", "text/plain"}, 415},
		{"a form", "POST", "/answer", "question=x", []string{"Authorization", ada, "Content-Type", "application/x-www-form-urlencoded"}, 415},
		{"a method that there is not", "GET", "/answer", "", []string{"Authorization", ada}, 405},
		{"a tool that is allowed", "POST", "/tools/add/call", `{"args":{"a":1,"b":2}}`, []string{"Authorization", ada}, 200},
		{"a tool that is not", "POST", "/tools/echo/call", `{"args":{"text":"x"}}`, []string{"Authorization", ada}, 403},
		{"a stranger's question", "POST", "/answer", question, []string{"Authorization", eve}, 403},
		{"a stranger's tool", "POST", "/tools/add/call", `{"args":{"a":1,"b":2}}`, []string{"Authorization", eve}, 403},
		{"a stranger's refresh", "POST", "/servers/default/refresh", "", []string{"Authorization", eve}, 404},
		{"readiness, now that all servers were tried", "GET", "/readyz", "", nil, 200},
		{"another host", "GET", "/tools", "", []string{"Authorization", ada, "Host", "evil.example"}, 421},
	} {
		resp := s.do(t, c.method, c.path, c.body, c.header...)
		if resp.StatusCode != c.want || c.want == 405 && resp.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %d, want %d %v", c.name, resp.StatusCode, c.want, resp.Header)
		}
	}

	// Each caller sees only what the rules allow.
	listTools := func(who string) string {
		var names []string
		for _, tool := range decodeResponse[struct{ Tools []struct{ Name string } }](t, s.do(t, "GET", "/tools", "", "Authorization", who), 200).Tools {
			names = append(names, tool.Name)
		}
		for _, server := range decodeResponse[struct{ Servers []struct{ Name string } }](t, s.do(t, "GET", "/servers", "", "Authorization", who), 200).Servers {
			names = append(names, server.Name)
		}
		for _, model := range decodeResponse[struct{ Data []struct{ ID string } }](t, s.do(t, "GET", "/v1/models", "", "Authorization", who), 200).Data {
			names = append(names, model.ID)
		}
		return strings.Join(names, " ")
	}
	if got := listTools(ada); !strings.HasPrefix(got, "add default scripted") {
		t.Errorf(`the caller of the rule sees %s, want it to start with "add default scripted"`, got)
	}
	if got := listTools(eve); got != "" {
		t.Errorf("the stranger sees %s, want empty", got)
	}

	// The caller's token is sent to nobody else.
	decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Authorization", ada), 200)
	for _, r := range s.Model.Requests() {
		if sent := fmt.Sprint(r.Header, string(r.Body)); strings.Contains(sent, strings.TrimPrefix(ada, "Bearer ")) {
			t.Errorf("the model's endpoint got the caller's token: sent %q, want no %q", sent, strings.TrimPrefix(ada, "Bearer "))
		}
	}
}

// exchangeFixture is an MCP server that is used on behalf of its callers, and the IAM that
// exchanges their tokens.
type exchangeFixture struct {
	tools *mcp.Client

	mu       sync.Mutex // protects what follows
	subjects []string   // the tokens that were exchanged
	called   []string   // the tokens of tools/call
	received string     // whatever the MCP server got
}

func newExchangeFixture(t *testing.T) *exchangeFixture {
	e := &exchangeFixture{}
	iam := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.subjects = append(e.subjects, r.FormValue("subject_token"))
		fmt.Fprintf(w, `{"access_token":"exchanged-%d","token_type":"Bearer","expires_in":3600}`, len(e.subjects))
	}))
	t.Cleanup(iam.Close)

	server := sdk.NewServer(&sdk.Implementation{Name: "crm", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "add"}, func(context.Context, *sdk.CallToolRequest, struct {
		A int `json:"a"`
		B int `json:"b"`
	}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "3"}}}, nil, nil
	})

	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil)
	crm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		e.mu.Lock()
		e.received += fmt.Sprint(r.URL, r.Header, string(body), "\n")
		if strings.Contains(string(body), "tools/call") {
			e.called = append(e.called, r.Header.Get("Authorization"))
		}
		e.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(crm.Close)
	var err error
	e.tools, err = mcp.New([]config.Server{{Name: "crm", URL: crm.URL, Auth: config.AuthExchange, Grant: config.Grant{
		TokenURL: iam.URL, ClientID: "answerd", ClientSecret: auth.NewSecret("x"),
	}}}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.tools.Close() })
	return e
}

// RFC 8693: tools are called on behalf of the caller who asked. The caller's token is sent to the
// IAM and nowhere else: not to the MCP server, and not into the events of the run.
func TestToolCallsUseTheCallersDelegatedToken(t *testing.T) {
	t.Parallel()
	iam := newMint(t)
	v := iam.newVerifier(t, nil)
	e := newExchangeFixture(t)

	s := newService(t, addingModel(), func(o *agent.Options) { o.Tools = e.tools }, func(o *api.Options) { o.Verifier = v })
	var brought []string
	for n, name := range []string{"ada", "bob"} {
		bearer := iam.bearerToken(name)
		brought = append(brought, strings.TrimPrefix(bearer, "Bearer "))
		a := decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Authorization", bearer), 200)
		said := s.do(t, "GET", "/runs/"+a.RunID+"/events", "", "Authorization", bearer)
		events, err := io.ReadAll(said.Body)
		if err != nil || !strings.Contains(string(events), "tool_result") || strings.Contains(string(events), brought[n]) {
			t.Errorf("error %v\n%s, want events containing tool_result, events without brought[n], no error", err, events)
		}
	}

	// A call without a model is made on behalf of its caller, too.
	eve := iam.bearerToken("eve")
	decodeResponse[map[string]any](t, s.do(t, "POST", "/tools/add/call", `{"args":{"a":1,"b":2}}`, "Authorization", eve), 200)
	brought = append(brought, strings.TrimPrefix(eve, "Bearer "))
	e.mu.Lock()
	defer e.mu.Unlock()
	if got := strings.Join(e.subjects, " "); got != strings.Join(brought, " ") {
		t.Errorf("exchanged %s, want %s", got, strings.Join(brought, " "))
	}
	if got, want := strings.Join(e.called, ", "), "Bearer exchanged-1, Bearer exchanged-2, Bearer exchanged-3"; got != want {
		t.Errorf("called with %s, want %s", got, want)
	}

	for _, token := range brought {
		if strings.Contains(e.received, token) {
			t.Errorf("the MCP server got the caller's own token: received %q, want no %q", e.received, token)
		}
	}
}

// Without inbound authentication callers have no token, so a server that needs one has no tools,
// and its state says why.
func TestDelegationNeedsAToken(t *testing.T) {
	t.Parallel()
	e := newExchangeFixture(t)
	s := newService(t, addingModel(), func(o *agent.Options) { o.Tools = e.tools }, nil)
	decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200)
	status := decodeResponse[struct {
		Servers []mcp.ServerStatus `json:"servers"`
	}](t, s.do(t, "GET", "/servers", ""), 200)
	if st := status.Servers[0]; st.State != mcp.Connecting || !strings.Contains(st.Reason, "first caller") {
		t.Errorf(`server status %+v, want State Connecting, Reason containing "first caller"`, st)
	}
	p := wantProblem(t, s.do(t, "POST", "/servers/crm/refresh", ""), 502, "unavailable")
	if !strings.Contains(p.Detail, "first caller") {
		t.Errorf(`problem %+v, want Detail containing "first caller"`, p)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.subjects) != 0 || e.received != "" {
		t.Errorf("%d exchanges; the server got %s, want 0 and empty", len(e.subjects), e.received)
	}
}
