package faults

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"math/big"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// keysCooldown is the time between two fetches of an issuer's keys, and some time for a busy machine.
const keysCooldown = 35 * time.Second

// rotatingSecret is a secret that a server accepts. While it is rotated, the old one is valid too.
type rotatingSecret struct {
	mu      sync.Mutex // guards the fields below
	valid   []string
	refused int
}

// accepts reports whether the server accepts a secret.
func (r *rotatingSecret) accepts(secret string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.valid, secret) {
		return true
	}
	r.refused++
	return false
}

// setValid replaces the secrets that are valid.
func (r *rotatingSecret) setValid(valid ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.valid = valid
}

// refusals returns how many requests had a secret that was not valid.
func (r *rotatingSecret) refusals() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// rotatingIssuer signs callers' tokens with the newest of its keys, and publishes all of them.
type rotatingIssuer struct {
	url string

	mu   sync.Mutex // guards keys
	keys []*rsa.PrivateKey
}

func newRotatingIssuer(t testing.TB) *rotatingIssuer {
	t.Helper()
	i := &rotatingIssuer{}
	i.addKey(t)
	i.url = serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		var keys []string
		for n, key := range i.keys {
			keys = append(keys, fmt.Sprintf(`{"kty":"RSA","use":"sig","alg":"RS256","kid":"k%d","n":%q,"e":%q}`, n,
				base64.RawURLEncoding.EncodeToString(key.N.Bytes()), base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes())))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"keys":[%s]}`, strings.Join(keys, ","))
	})
	return i
}

// addKey adds a key, with which tokens are signed from now on.
func (i *rotatingIssuer) addKey(t testing.TB) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, key)
}

// bearerToken returns the Authorization header of a caller.
func (i *rotatingIssuer) bearerToken() string {
	i.mu.Lock()
	n := len(i.keys) - 1
	key := i.keys[n]
	i.mu.Unlock()
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
		"iss": i.url, "aud": "answerd", "sub": "ada", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	})
	token.Header["kid"] = fmt.Sprintf("k%d", n)
	signed, err := token.SignedString(key)
	if err != nil {
		return "" // refused with 401, which fails the test
	}
	return "Bearer " + signed
}

func TestF53SecretsAreRotatedUnderLoad(t *testing.T) {
	r := beginFault(t, "under load: the issuer signs with a new key, the client secret of an authorization server is replaced in mcp.json, the model key in its file with a rolling restart; the old secret is valid until all replicas have the new one",
		"no run fails, no request has an invalid secret, no secret is in the log")
	modelKey, clientSecret, tokens := &rotatingSecret{}, &rotatingSecret{}, &rotatingSecret{}
	modelKey.setValid("canary-model-1")
	clientSecret.setValid("canary-client-1")
	var granted atomic.Int64
	iam := serveHTTP(t, func(w http.ResponseWriter, q *http.Request) {
		_, secret, _ := q.BasicAuth()
		w.Header().Set("Content-Type", "application/json")
		if !clientSecret.accepts(secret) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client"}`)
			return
		}
		token := fmt.Sprintf("canary-token-%d", granted.Add(1))
		tokens.mu.Lock()
		tokens.valid = append(tokens.valid, token)
		tokens.mu.Unlock()
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":2}`, token)
	})
	f := newFleet(t, startNATS(t).ClientURL())
	guarded := serveHTTP(t, func(w http.ResponseWriter, q *http.Request) {
		if !tokens.accepts(strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer ")) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		f.tool.ServeHTTP(w, q)
	})
	f.authorized = func(q *http.Request) bool {
		return modelKey.accepts(strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer "))
	}
	config := func(secret string) string {
		return fmt.Sprintf(`{"mcpServers":{"t":{"url":%q,"auth":{"type":"client_credentials","tokenUrl":%q,"clientId":"c","clientSecret":%q}}}}`, guarded, iam, secret)
	}
	setting, path := mcpConfig(t, config("canary-client-1"))
	keyFile := filepath.Join(t.TempDir(), "key")
	writeFile(t, keyFile, "canary-model-1\n")
	issuer := newRotatingIssuer(t)
	f.header = func() []string { return []string{"Authorization", issuer.bearerToken()} }
	f.env = append(slices.DeleteFunc(f.env, func(s string) bool { return strings.HasPrefix(s, "MCP_URL=") }), setting, "LLM_API_KEY_FILE="+keyFile, "LOG_LEVEL=debug",
		"AUTH_ISSUER="+issuer.url, "AUTH_AUDIENCE=answerd", "AUTH_JWKS_URL="+issuer.url)
	for range 2 {
		f.start(t)
	}
	f.waitUntilAllAnswer(t)
	all := []*service{f.replica(0), f.replica(1)}
	load := f.startLoad(t, 6, "load")

	// Keys are fetched at most once in 30 s, or an attacker could make answerd fetch them all the time.
	<-time.After(keysCooldown)
	issuer.addKey(t)
	f.waitUntilAllAnswer(t)

	clientSecret.setValid("canary-client-1", "canary-client-2")
	writeFile(t, path, config("canary-client-2"))
	for _, s := range all {
		s.signal(t, syscall.SIGHUP)
		s.waitForOutput(t, "MCP configuration read again")
	}
	// Token requests with the old secret may be under way until each replica has asked again.
	awaitTokens := func() {
		t.Helper()
		before := granted.Load()
		waitUntil(t, "tokens are granted", func() bool { return granted.Load() >= before+4 })
	}
	awaitTokens()
	clientSecret.setValid("canary-client-2")
	awaitTokens()

	modelKey.setValid("canary-model-1", "canary-model-2")
	writeFile(t, keyFile, "canary-model-2\n")
	for i := range 2 {
		if code := f.replica(i).stop(t); code != 0 {
			t.Errorf("replica %d ended with %d, want 0", i, code)
		}
		f.restart(t, i)
		all = append(all, f.replica(i))
	}
	modelKey.setValid("canary-model-2")
	f.waitUntilAllAnswer(t)
	load.stop(t)
	for name, secret := range map[string]*rotatingSecret{"model key": modelKey, "client secret": clientSecret, "token": tokens} {
		if n := secret.refusals(); n > 0 {
			t.Errorf("%d requests had an invalid %s, want 0", n, name)
		}
	}
	for _, s := range all {
		if n := s.out.count("canary-"); n > 0 {
			t.Errorf("the log contains secrets %d times, want 0", n)
		}
	}
	f.mu.Lock()
	for end, n := range f.ends {
		if end != "final_answer" {
			t.Errorf("%d runs ended with %s, want all to end with their answer", n, end)
		}
	}
	f.mu.Unlock()
	r.record("%d tokens; %s", granted.Load(), f.report(t))
}
