package faults

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/llm/llmtest"
)

func TestF26FailingTokenEndpointIsAskedSeldom(t *testing.T) {
	r := beginFault(t, "token endpoint: 503, hangs, HTML, expires_in 0, missing, negative, 1e12, a token of 1 MiB, 307", "the service runs; calls fail or work; at most 3 requests; the secret nowhere")
	var seen atomic.Int64
	other := serveHTTP(t, func(http.ResponseWriter, *http.Request) { seen.Add(1) })

	grant := func(token, expires string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer"%s}`, token, expires)
		}
	}

	tool := newPeer(t, nil)
	for _, c := range []struct {
		name  string
		h     http.HandlerFunc
		works bool
	}{
		{"503", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, false},
		{"hangs", func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }, false},
		{"HTML", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<p>sign in") }, false},
		{"expires_in missing", grant("x", ""), true},
		{"expires_in 1e12", grant("x", `,"expires_in":1e12`), true},
		{"expires_in 0", grant("x", `,"expires_in":0`), true},
		{"expires_in -1", grant("x", `,"expires_in":-1`), true},
		{"1 MiB", grant(strings.Repeat("x", 1<<20), ""), false},
		{"307", func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, other, http.StatusTemporaryRedirect) }, false},
	} {
		var asked atomic.Int64
		url := serveHTTP(t, func(w http.ResponseWriter, q *http.Request) {
			asked.Add(1)
			_ = q.ParseForm() // read to its end, so that a client that leaves is noticed
			c.h(w, q)
		})

		s := startWithTool(t, tool.url, append(jwtSettings(url), "TIMEOUT=1s", "LOG_LEVEL=debug")...)
		got := s.stream(t, nil)
		if got.last().Answer != "Done." {
			t.Errorf("%s: it ended with %+v, want Answer Done.", c.name, got.last())
		}
		if worked := len(got.ofType("tool_result")) == 1; worked != c.works || asked.Load() > 5 {
			t.Errorf("%s: worked %v after %d requests, want worked %v, asked at most 5", c.name, worked, asked.Load(), c.works)
		}
		if s.out.count("canary-secret") > 0 {
			t.Errorf("%s: log\n%s\nwant it without the secret", c.name, s.out)
		}
		r.record("%s: %d", c.name, asked.Load())
	}

	if seen.Load() != 0 {
		t.Errorf("the redirect was followed: seen %d, want 0", seen.Load())
	}
}

func TestF27ExpiringTokenIsRenewedBeforeItsEnd(t *testing.T) {
	r := beginFault(t, "tokens of 2 s, a run of more", "renewed before; the server sees no expired token, the model no 401")
	var mu sync.Mutex // guards issuedAt
	issuedAt := map[string]time.Time{}
	var n, late atomic.Int64
	url := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		token := fmt.Sprintf("token-%d", n.Add(1))
		mu.Lock()
		issuedAt[token] = time.Now()
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":2}`, token)
	})

	tool := (&peer{before: func(w http.ResponseWriter, q *http.Request) bool {
		mu.Lock()
		at, known := issuedAt[strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer ")]
		mu.Unlock()
		if !known || time.Since(at) > 5*time.Second {
			late.Add(1)
			http.Error(w, "expired", http.StatusUnauthorized)
			return true
		}
		return false
	}}).serve(t, nil)

	model := llmtest.New(t, func(q llmtest.Request) llmtest.Answer {
		turns := 0
		for _, m := range q.Messages {
			if len(m.ToolCalls) > 0 {
				turns++
			}
		}
		return func(w http.ResponseWriter, hq *http.Request) {
			<-time.After(1200 * time.Millisecond) // it thinks
			if turns == 3 {
				llmtest.Says("Done.")(w, hq)
				return
			}
			llmtest.Calls(llmtest.Call{ID: fmt.Sprintf("c%d", turns), Name: "t", Args: "{}"})(w, hq)
		}
	})

	s := start(t, append(jwtSettings(url), "LLM_BASE_URL="+model.URL, "MCP_URL="+tool.url)...)
	got := s.stream(t, nil)
	if len(got.ofType("tool_result")) != 3 || late.Load() != 0 || n.Load() < 2 {
		t.Errorf("%d results, %d refused, %d tokens, want 3, 0 and at least 2", len(got.ofType("tool_result")), late.Load(), n.Load())
	}
	r.record("%d tokens, %d refused", n.Load(), late.Load())
}

// issuer signs tokens of callers, and publishes its key.
type issuer struct {
	url     string
	key     *rsa.PrivateKey
	kid     string
	fetches atomic.Int64
	down    atomic.Bool
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key, kid: "k1"}
	i.url = serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		i.fetches.Add(1)
		if i.down.Load() {
			w.WriteHeader(503)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"keys":[{"kty":"RSA","use":"sig","alg":"RS256","kid":%q,"n":%q,"e":%q}]}`, i.kid,
			base64.RawURLEncoding.EncodeToString(key.N.Bytes()), base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes()))
	})
	return i
}

// bearerHeader returns the Authorization header of a caller, signed with the key kid.
func (i *issuer) bearerHeader(t testing.TB, kid, subject string, life time.Duration) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
		"iss": i.url, "aud": "answerd", "sub": subject, "iat": time.Now().Unix(), "exp": time.Now().Add(life).Unix(),
	})
	token.Header["kid"] = kid
	signed, err := token.SignedString(i.key)
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + signed
}

func (i *issuer) settings() []string {
	return []string{"AUTH_ISSUER=" + i.url, "AUTH_AUDIENCE=answerd", "AUTH_JWKS_URL=" + i.url + "/jwks"}
}

func TestF28UnavailableKeysAre503AndCachedKeysLast(t *testing.T) {
	r := beginFault(t, "JWKS down cold, up, down warm; 200 random key ids", "503 with Retry-After; 200; 200; at most 1 fetch more, all 401")
	i := newIssuer(t)
	i.down.Store(true)
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Yes.")))
	s := start(t, append(i.settings(), "LLM_BASE_URL="+model.URL)...)
	good := i.bearerHeader(t, "k1", "ada", time.Hour)
	cold := s.request(t, "POST", "/answer", question, "Authorization", good)
	if cold.status != 503 || cold.header.Get("Retry-After") == "" {
		t.Errorf("cold: %+v, want cold.status 503, Retry-After non-empty", cold)
	}
	i.down.Store(false)

	warm := 0
	for deadline := time.Now().Add(waitLimit); warm != 200 && time.Now().Before(deadline); {
		<-time.After(200 * time.Millisecond) // failures are not repeated at once
		warm = s.request(t, "POST", "/answer", question, "Authorization", good).status
	}

	i.down.Store(true)
	before := i.fetches.Load()

	for n := range 200 {
		if a := s.request(t, "POST", "/answer", question, "Authorization", i.bearerHeader(t, fmt.Sprintf("k%d", n+2), "eve", time.Hour)); a.status != 401 {
			t.Fatalf("random key id: %+v, want status 401", a)
		}
	}

	after := s.request(t, "POST", "/answer", question, "Authorization", good).status
	if n := i.fetches.Load() - before; n > 1 || warm != 200 || after != 200 {
		t.Errorf("%d fetches, warm %d, then %d, want n at most 1, warm 200, after 200", n, warm, after)
	}
	r.record("%d, %d, %d; %d fetches", cold.status, warm, after, i.fetches.Load()-before)
}
