package oauth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
	"answerd/internal/mcp/oauth/oauthtest"
)

func writeScopes(*http.Request) []string { return []string{"basic", "write"} }

// privateKey is a key for private_key_jwt, and its public half.
func privateKey(t *testing.T) (Text, crypto.PublicKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return Text{Value: auth.NewSecret(encodePEM(t, key))}, key.Public()
}

func encodePEM(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// Invalid metadata is reported, and no request is sent to the addresses in it.
func TestMetadataThatIsHostileIsRefused(t *testing.T) {
	thief := oauthtest.New(t)
	big := strings.Repeat("x", maxMetadata)
	for want, change := range map[string]func(*fixture){
		"names another resource":                func(w *fixture) { w.mcp.Metadata["resource"] = "https://evil.example/mcp" },
		"names another resource (origin)":       func(w *fixture) { w.mcp.Metadata["resource"] = w.mcp.URL },
		"names another resource (none)":         func(w *fixture) { w.mcp.Metadata["resource"] = nil },
		"names another resource (query)":        func(w *fixture) { w.mcp.Metadata["resource"] = w.mcp.URL + "/mcp?tenant=a" },
		"names no authorization server":         func(w *fixture) { w.mcp.Metadata["authorization_servers"] = nil },
		"is not the JSON of RFC 9728":           func(w *fixture) { w.mcp.Metadata["authorization_servers"] = "https://a.example" },
		"must be https":                         func(w *fixture) { w.mcp.Metadata["authorization_servers"] = []string{"http://10.0.0.1"} },
		"is not a URL":                          func(w *fixture) { w.mcp.Metadata["authorization_servers"] = []string{"javascript:alert(1)"} },
		"must not contain credentials":          func(w *fixture) { w.mcp.Metadata["authorization_servers"] = []string{"https://a:b@c.example"} },
		"must not have a query":                 func(w *fixture) { w.mcp.Metadata["authorization_servers"] = []string{w.as.URL + "?x"} },
		"answered with too many bytes":          func(w *fixture) { w.mcp.Metadata["x"] = big },
		"names another issuer":                  func(w *fixture) { w.as.Metadata["issuer"] = thief.URL },
		"names another issuer (slash)":          func(w *fixture) { w.as.Metadata["issuer"] = w.as.URL + "/" },
		"names another issuer (path)":           func(w *fixture) { w.as.Metadata["issuer"] = w.as.URL + "/a" },
		"is not the JSON of RFC 8414":           func(w *fixture) { w.as.Metadata["token_endpoint"] = 7 },
		"names no token endpoint":               func(w *fixture) { w.as.Metadata["token_endpoint"] = "http://10.0.0.1/token" },
		"names no token endpoint (none)":        func(w *fixture) { w.as.Metadata["token_endpoint"] = nil },
		"names no token endpoint (elsewhere)":   func(w *fixture) { w.as.Metadata["token_endpoint"] = thief.URL + "/token" },
		"names no authorization endpoint":       func(w *fixture) { w.as.Metadata["authorization_endpoint"] = "javascript:alert(1)" },
		"names no registration endpoint":        func(w *fixture) { w.as.Metadata["registration_endpoint"] = "file:///etc/passwd" },
		"offers no PKCE with S256":              func(w *fixture) { w.as.Metadata["code_challenge_methods_supported"] = nil },
		"offers no PKCE with S256 (plain)":      func(w *fixture) { w.as.Metadata["code_challenge_methods_supported"] = []string{"plain"} },
		"set the client id":                     func(w *fixture) { w.as.Metadata["registration_endpoint"] = nil },
		"answered with too many bytes (issuer)": func(w *fixture) { w.as.Metadata["x"] = big },
	} {
		w := newFixture(t, Config{Kind: AuthorizationCode}, change)
		w.mustFail(userNamed("ann"))
		a, err := w.Authorize(t.Context(), userNamed("ann"), "")
		plain, _, _ := strings.Cut(want, " (")
		if err == nil || !strings.Contains(err.Error(), plain) {
			t.Errorf("%s: %v, %v", want, a, err)
		}
		if len(thief.Visits)+len(thief.Requests) > 0 || len(w.as.Requests) > 0 {
			t.Errorf("%s: got requests to another server or for a token, want none", want)
		}
	}
}

// Redirects are not followed, whichever server sends them.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stolen.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	t.Cleanup(thief.Close)
	redirect := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	t.Cleanup(redirect.Close)
	w := newFixture(t, Config{Kind: ClientCredentials}, func(w *fixture) { w.cfg.TokenURL = redirect.URL + "/token" })
	if e := w.mustFail(userNamed("ann")); stolen.Load() != 0 || !strings.Contains(e.Error(), "redirect") {
		t.Errorf("stolen %d, %v, want stolen 0, error containing redirect", stolen.Load(), e)
	}
}

// A server may not lead us nearer to this machine than it is itself.
func TestEgressRefusesMorePrivateAddresses(t *testing.T) {
	for text, want := range map[string]fetch.AddressClass{
		"93.184.216.34": fetch.Public, "2606:2800:220:1::1": fetch.Public, "10.1.2.3": fetch.Private, "172.16.0.1": fetch.Private, "192.168.1.1": fetch.Private, "fd00::1": fetch.Private,
		"127.0.0.1": fetch.Local, "127.9.9.9": fetch.Local, "::1": fetch.Local, "::ffff:127.0.0.1": fetch.Local, "::ffff:10.0.0.1": fetch.Private,
		"169.254.169.254": fetch.Forbidden, "fe80::1": fetch.Forbidden, "0.0.0.0": fetch.Forbidden, "::": fetch.Forbidden, "224.0.0.1": fetch.Forbidden, "255.255.255.255": fetch.Forbidden,
		"100.64.0.1": fetch.Forbidden, "192.0.2.1": fetch.Forbidden, "198.18.0.1": fetch.Forbidden, "240.0.0.1": fetch.Forbidden, "64:ff9b::7f00:1": fetch.Forbidden, "2002:7f00:1::": fetch.Forbidden, "0.1.2.3": fetch.Forbidden,
		"::127.0.0.1": fetch.Forbidden, "::10.0.0.1": fetch.Forbidden, "fd00:ec2::254": fetch.Forbidden, "100.100.100.200": fetch.Forbidden, "fec0::1": fetch.Forbidden, "fe80::a9fe:a9fe": fetch.Forbidden,
		"::ffff:169.254.169.254": fetch.Forbidden, "3fff::1": fetch.Forbidden, "5f00::1": fetch.Forbidden, "192.88.99.1": fetch.Forbidden, "ff02::1": fetch.Forbidden,
		"fd20:ce::254": fetch.Forbidden, "fd00:ec2::23": fetch.Forbidden, "fd00:42::42": fetch.Forbidden, "::ffff:0:127.0.0.1": fetch.Forbidden, "4000::1": fetch.Forbidden, "100::1": fetch.Forbidden,
		// NAT64 (RFC 6052): in a network with IPv6 only, DNS gives such addresses for all of the IPv4 internet.
		"64:ff9b::5db8:d822": fetch.Public, "64:ff9b::a00:1": fetch.Forbidden, "64:ff9b::a9fe:a9fe": fetch.Forbidden, "64:ff9b::6464:64c8": fetch.Forbidden, "64:ff9b::": fetch.Forbidden, "64:ff9b:1::5db8:d822": fetch.Forbidden,
	} {
		if got := fetch.ClassifyAddress(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}

	var reached atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(inside.Close)

	for server, want := range map[string]int64{"https://mcp.example/mcp": 0, "https://10.0.0.1/mcp": 0, "http://127.0.0.1:1/mcp": 1, "http://localhost:1/mcp": 1} {
		c, err := New(Config{Kind: AuthorizationCode, URL: server})
		if err != nil {
			t.Fatal(err)
		}
		reached.Store(0)

		// localhost, too: what counts is the address that a name leads to.
		for _, at := range []string{inside.URL, strings.Replace(inside.URL, "127.0.0.1", "localhost", 1)} {
			_, err := fetch.Get(t.Context(), c.egress.httpClientFor(at, false), at, "it", maxMetadata)
			if (err == nil) != (want == 1) {
				t.Errorf("%s led to %s: %v, want %v", server, at, err, (want == 1))
			}
		}

		if reached.Load() != 2*want {
			t.Errorf("%s: got reached %d times, want %v", server, reached.Load(), 2*want)
		}
		c.Close()
	}
}

// The URLs at which metadata is looked for, and the issuers that it may name there.
func TestMetadataURLs(t *testing.T) {
	root := wellKnown
	for server, c := range map[string]struct{ given, want string }{
		"https://h/mcp":             {"", "https://h" + root + "/mcp=https://h/mcp; https://h" + root + "=https://h/mcp,https://h"},
		"https://h/a/mcp/":          {"", "https://h" + root + "/a/mcp=https://h/a/mcp/; https://h" + root + "=https://h/a/mcp/,https://h"},
		"https://h":                 {"", "https://h" + root + "=https://h,https://h"},
		"https://h/mcp?x=y":         {"https://h" + root, "https://h" + root + "=https://h/mcp,https://h"},
		"https://h/tenant":          {"https://h/tenant/prm", "https://h/tenant/prm=https://h/tenant"},
		"https://h/a":               {"https://H:443" + root, "https://H:443" + root + "=https://h/a,https://h"},
		"https://h/elsewhere":       {"https://other/prm", "https://other/prm=https://h/elsewhere"},
		"https://H.Example:443/Mcp": {"", "https://h.example" + root + "/Mcp=https://h.example/Mcp; https://h.example" + root + "=https://h.example/Mcp,https://h.example"},
	} {
		client, err := New(Config{Kind: ClientCredentials, URL: server})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, metadataURL := range client.metadataURLs(c.given) {
			got = append(got, metadataURL+"="+strings.Join(client.resourcesAt(metadataURL), ","))
		}
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s: got %s, want %v", server, text, c.want)
		}
		client.Close()
	}
}

// TestResourceMayBeSpelledInAnotherWay checks that metadata describes a server whose URL is written with
// capitals or with the default port, in the configuration or in the metadata: those are the same URL (RFC 3986
// section 6.2), and MCP asks clients to accept capitals (basic/authorization, canonical server URI).
func TestResourceMayBeSpelledInAnotherWay(t *testing.T) {
	for _, c := range []struct {
		server, resource string
		ok               bool
	}{
		{"https://H.Example/mcp", "https://h.example/mcp", true},
		{"https://h.example:443/mcp", "https://h.example/mcp", true},
		{"https://h.example/mcp", "HTTPS://H.EXAMPLE:443/mcp", true},
		{"http://LOCALHOST:80/mcp", "http://localhost/mcp", true},
		{"https://h.example:8443/mcp", "https://h.example/mcp", false},
		{"https://h.example:80/mcp", "https://h.example/mcp", false},
		{"https://h.example/mcp", "https://h.example/MCP", false},
		{"https://h.example/mcp", "http://h.example/mcp", false},
		{"https://h.example/mcp", "https://h.example.evil/mcp", false},
		{"https://h.example/mcp", "", false},
	} {
		client, err := New(Config{Kind: ClientCredentials, URL: c.server})
		if err != nil {
			t.Fatal(err)
		}
		client.Close()
		body := `{"resource":"` + c.resource + `","authorization_servers":["https://as.example"]}`
		got, err := parseResource([]byte(body), client.resourcesAt(client.metadataURLs("")[0]))
		if ok := err == nil; ok != c.ok || ok && got.name != c.resource {
			t.Errorf("%s with metadata of %s: %+v, %v, want it accepted: %t", c.server, c.resource, got, err, c.ok)
		}
	}
}

// Before 2025-06-18 servers had no metadata of their own: the origin is the issuer. The SDKs of that time wrote it
// with a slash at its end.
func TestDiscoveryWithoutMetadataUsesTheServersOrigin(t *testing.T) {
	for _, slash := range []string{"", "/"} {
		testServersOrigin(t, slash)
	}
}

func testServersOrigin(t *testing.T, slash string) {
	var self *httptest.Server
	given, want := 0, "" // tokens so far, and the one that is accepted
	self = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/oauth-authorization-server":
			_, _ = io.WriteString(w, `{"issuer":"`+self.URL+slash+`","token_endpoint":"`+self.URL+`/token"}`)
		case "/token":
			given++
			_, _ = fmt.Fprintf(w, `{"access_token":"canary-%d","token_type":"Bearer","expires_in":60}`, given)
		case "/mcp":
			if r.Header.Get("Authorization") != "Bearer "+want {
				w.WriteHeader(http.StatusUnauthorized)
			}
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(self.Close)
	c, err := New(Config{Kind: ClientCredentials, URL: self.URL + "/mcp", ClientID: "a", ClientSecret: auth.NewSecret("b")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for _, want = range []string{"canary-1", "canary-2"} { // the second one is found by a new search
		req, _ := http.NewRequest(http.MethodGet, self.URL+"/mcp", nil)
		resp, err := c.For(auth.Identity{}).Send(transport, req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("issuer %s%s, %s: response %+v, %v, want StatusCode 200, no error", self.URL, slash, want, resp, err)
		}
		resp.Body.Close()
	}
}

// TestDiscoveryDoesNotTakeRateLimitsForMissingMetadata reads the metadata of a server that limits requests, on
// a host that other servers share. The first authorization server that is found gets the client secret, and
// keeps it, so it must not be the host's own only because the server was busy.
func TestDiscoveryDoesNotTakeRateLimitsForMissingMetadata(t *testing.T) {
	for _, status := range []int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests} {
		w := newFixture(t, Config{Kind: ClientCredentials}, nil)
		var shared *httptest.Server
		shared = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == wellKnown+"/mcp":
				out.WriteHeader(status)
			case r.URL.Path == wellKnown:
				_, _ = io.WriteString(out, `{"resource":"`+shared.URL+`","authorization_servers":["`+shared.URL+`"]}`)
			case r.URL.Path == "/.well-known/oauth-authorization-server":
				_, _ = io.WriteString(out, `{"issuer":"`+shared.URL+`","token_endpoint":"`+shared.URL+`/token"}`)
			case r.URL.Path == "/token":
				t.Errorf("status %d: got a token request at the host's authorization server, want none", status)
			case r.Header.Get("Authorization") == "":
				out.WriteHeader(http.StatusUnauthorized)
			}
		}))
		t.Cleanup(shared.Close)
		cfg := w.cfg
		cfg.URL = shared.URL + "/mcp"
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		req, _ := http.NewRequest(http.MethodGet, cfg.URL, nil)
		resp, err := c.For(auth.Identity{}).Send(w.http, req)
		if err == nil {
			resp.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("status %d", status)) {
			t.Errorf("error %v, want one about the status %d", err, status)
		}
	}
}

// The log says why an authorization server refused to register us, if it does so in the words of RFC 7591.
func TestRefusedRegistrationIsLoggedWithItsCode(t *testing.T) {
	for code, want := range map[string]string{"invalid_redirect_uri": "(status 400): invalid_redirect_uri", "s3cret": "(status 400)"} {
		refusing := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
			out.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(out, `{"error":"`+code+`"}`)
		}))
		t.Cleanup(refusing.Close)
		w := newFixture(t, Config{Kind: AuthorizationCode}, nil)
		_, err := w.registerClient(t.Context(), &authServer{RegisterURL: refusing.URL}, nil)
		if err == nil || !strings.HasSuffix(err.Error(), "refused the registration "+want) {
			t.Errorf("registerClient after %s = %v, want an error that ends with %s", code, err, want)
		}
	}
}

// The registration that an authorization server returns is checked.
func TestRegistrationIsChecked(t *testing.T) {
	for body, want := range map[string]string{
		`{"client_id":"a","client_secret":"b"}`:                                                   "a client_secret_basic",
		`{"client_id":"a","client_secret":"b","token_endpoint_auth_method":"client_secret_post"}`: "a client_secret_post",
		`{"client_id":"a","token_endpoint_auth_method":"none"}`:                                   "a none",
		`{"client_id":"a"}`: "a none",
		`{"client_id":"a","token_endpoint_auth_method":"client_secret_post"}`:                  "a none",
		`{"client_id":"a","token_endpoint_auth_method":"tls_client_auth","client_secret":"b"}`: "",
		`{"client_secret":"b"}`: "",
		`{"client_id":"` + strings.Repeat("a", maxClientID+1) + `","client_secret":"b"}`: "",
		`[]`: "",
	} {
		who, err := parseRegistration([]byte(body), methodBasic, nil)
		if got := who.id + " " + who.method; (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%.80s: %s, %v, want %q", body, got, err, want)
		}
	}
}

// Keys of other kinds, and weak ones, are refused without a word of what they are.
func TestParsePrivateKey(t *testing.T) {
	_, edwards, _ := ed25519.GenerateKey(rand.Reader)
	strong, _ := rsa.GenerateKey(rand.Reader, 2048)
	elliptic384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)

	elliptic256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	parameters := string(pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7}}))
	elliptic224, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	for want, text := range map[string]string{
		"EdDSA": encodePEM(t, edwards), "RS256": encodePEM(t, strong), "ES384": encodePEM(t, elliptic384),
		"ES256":            parameters + encodePEM(t, elliptic256), // as openssl ecparam -genkey writes it
		"unsupported type": encodePEM(t, elliptic224), "not PEM": "s3cret", "has no private key": parameters,
		"cannot be read": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("s3cret")})),
	} {
		_, method, err := ParsePrivateKey(text)
		switch {
		case err == nil && method.Alg() != want, err != nil && !strings.Contains(err.Error(), want), err != nil && strings.Contains(err.Error(), "s3cret"):
			t.Errorf("%s: %v, %v", want, method, err)
		}
	}
}

// The number of principals is bounded, and one with a request in flight stays.
func TestUserTokensAreBounded(t *testing.T) {
	c, err := New(Config{Kind: AuthorizationCode, URL: "https://mcp.example/mcp"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	busy, _ := c.acquireUser(auth.Identity{Subject: "busy"})

	for n := range maxUsers + 10 {
		h, err := c.acquireUser(auth.Identity{Subject: "p", Issuer: strings.Repeat("i", n)})
		if err != nil {
			t.Fatal(err)
		}
		c.releaseUser(h)
	}

	if again, _ := c.acquireUser(auth.Identity{Subject: "busy"}); c.users.Len() != maxUsers || again != busy {
		t.Errorf("got %d users, want %v, %v", c.users.Len(), maxUsers, busy)
	}
}

// A server's header is read or says nothing; what is read is clean.
func FuzzChallenge(f *testing.F) {
	for _, seed := range []string{
		`Bearer resource_metadata="https://h/prm", scope="a b", error="insufficient_scope"`, `DPoP error="use_dpop_nonce"`, `Bearer`, `Basic realm="x", Bearer scope=a`,
		`Negotiate abc==`, `Bearer scope="`, `Bearer scope="\"`, `,,,=`, "Bearer scope=\"a\x00b c\"", `bearer SCOPE="x", scope="y"`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		c := parseChallenge(http.Header{"Www-Authenticate": {header}})
		if len(c.scopes) > maxScopes {
			t.Errorf("got %d scopes, want at most %v", len(c.scopes), maxScopes)
		}
		for _, s := range c.scopes {
			if s == "" || len(s) > maxScope || strings.ContainsAny(s, " \"\\\x00\r\n") {
				t.Errorf("scope %q, want 1 to %d characters without spaces, quotes, backslashes and controls", s, maxScope)
			}
		}
	})
}

// Nothing that metadata says makes us panic, or use what must not be used.
func FuzzMetadata(f *testing.F) {
	for _, seed := range []string{
		`{"resource":"https://h/mcp","authorization_servers":["https://a"],"scopes_supported":["x"]}`, `{"issuer":"https://a","token_endpoint":"https://a/t","authorization_endpoint":"https://a/a","code_challenge_methods_supported":["S256"]}`,
		`{}`, `null`, `[]`, `{"resource":"https://h/mcp","authorization_servers":[""]}`,
	} {
		f.Add([]byte(seed))
	}
	c, err := New(Config{Kind: AuthorizationCode, URL: "https://h/mcp"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(c.Close)
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := parseResource(body, []string{"https://h/mcp"}); err == nil && token.CheckTokenEndpoint(r.issuer, "") != nil {
			t.Errorf("issuer %q, want a valid token endpoint", r.issuer)
		}
		a, err := c.parseAuthServer(body, "https://a", false)
		if err != nil {
			return
		}
		for _, at := range []string{a.TokenURL, a.AuthorizeURL} {
			if u, err := url.Parse(at); err != nil || u.Scheme != "https" && !(u.Scheme == "http" && fetch.ClassifyHost(u.Hostname()) == fetch.Local) {
				t.Errorf("endpoint %q, want https, or http on this host", at)
			}
		}
	})
}
