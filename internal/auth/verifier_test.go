package auth

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// verifier is one for the tokens of i; scope "ask" is needed.
func (i *iam) verifier(t testing.TB, change func(*VerifierConfig)) (*Verifier, *logBuffer) {
	t.Helper()
	logged := &logBuffer{}
	cfg := VerifierConfig{Issuer: i.URL, Audience: "answerd", JWKSURL: i.URL + "/jwks", Scope: "ask", Logger: logged.logger()}
	if change != nil {
		change(&cfg)
	}
	v, err := NewVerifier(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v, logged
}

// judge is what api does with a request: find the token, verify it, answer.
func judge(t testing.TB, v *Verifier, r *http.Request) (id Identity, status int, challenge string) {
	token, err := FromRequest(r)
	if err == nil {
		id, err = v.Verify(t.Context(), token)
	}
	if err == nil {
		return id, http.StatusOK, ""
	}
	checkQuiet(t, err.Error())
	status, challenge = Challenge(err, metadataURL)
	return id, status, challenge
}

const (
	metadataURL  = "https://answerd.example/.well-known/oauth-protected-resource"
	realm        = `Bearer realm="answerd"`
	more         = `, resource_metadata="` + metadataURL + `"`
	anonymous    = realm + more
	invalidToken = realm + `, error="invalid_token"` + more
	badRequest   = realm + `, error="invalid_request"` + more
	scopeMissing = realm + `, error="insufficient_scope", scope="ask"` + more
)

// matrixRow is one case of the matrix of authentication.
type matrixRow struct {
	name  string
	token string
	want  int
}

// mint makes the tokens of the matrix.
type mint struct {
	i   *iam
	now int64 // Unix seconds
}

// signed is a good token but for the changes.
func (m mint) signed(header, claims fields) string {
	return signRS256(rsaKey(), goodHeader(header), m.i.goodClaims(claims))
}

// es256 is a good token with that signature.
func (m mint) es256(signature []byte) string {
	return b64([]byte(goodHeader(fields{"alg": "ES256", "kid": "e1"}))) + "." + b64([]byte(m.i.goodClaims(nil))) + "." + b64(signature)
}

// The matrix of authentication: every case is judged over a real key set, by the
// same three steps that a request takes.
func TestAuthenticationMatrix(t *testing.T) {
	i := newIAM(t)
	i.publish(rsaJWK("k1", &rsaKey().PublicKey), ecJWK("e1", &ecKey().PublicKey), rsaJWK("small", &smallKey().PublicKey))
	v, _ := i.verifier(t, nil)
	begin := time.Now()
	m := mint{i, begin.Unix()}
	challenges := map[int]string{200: "", 400: badRequest, 401: invalidToken, 403: scopeMissing}
	for _, row := range slices.Concat(m.shapes(), m.keys(), m.confusions(t), m.addressees(), m.times(), m.subjects()) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+row.token)
		id, status, challenge := judge(t, v, r)
		if status != row.want || challenge != challenges[row.want] {
			t.Errorf("%s: %d %s, want %d", row.name, status, challenge, row.want)
		}
		if (status == 200) != (id.Subject != "") {
			t.Errorf("%s: %d for %+v", row.name, status, id)
		}
	}
	// F28: one fetch at the start. All those kids came within 30 s of it.
	if n := i.keyCalls.Load(); n > 1+int64(time.Since(begin)/keysCooldown) {
		t.Errorf("%d fetches of the keys", n)
	}
}

// shapes are wrong as a JWS (RFC 7515), or as a header of ours.
func (m mint) shapes() []matrixRow {
	good := m.signed(nil, nil)
	parts := strings.Split(good, ".")
	return []matrixRow{
		{"good", good, 200},
		{"good ES256", signES256(ecKey(), goodHeader(fields{"alg": "ES256", "kid": "e1"}), m.i.goodClaims(nil)), 200},
		{"two parts", parts[0] + "." + parts[1], 401},
		{"five parts", good + ".x.y", 401},
		{"only dots", strings.Repeat(".", 8000), 401},
		{"padding", good + "==", 401},
		{"bad base64", "!" + good[1:], 400},
		{"bad JSON", b64([]byte(`{`)) + ".e30.AA", 401},
		{"duplicate header member", signRS256(rsaKey(), `{"alg":"none","alg":"RS256","kid":"k1"}`, m.i.goodClaims(nil)), 401},
		{"duplicate claim", signRS256(rsaKey(), goodHeader(nil), `{"sub":"root",`+m.i.goodClaims(nil)[1:]), 401},
		{"trailing data", signRS256(rsaKey(), goodHeader(nil)+"{}", m.i.goodClaims(nil)), 401},
		{"folded claim", m.signed(nil, fields{"exp": nil, "EXP": m.now + 300}), 401},
		{"changed claims", parts[0] + "." + b64([]byte(m.i.goodClaims(fields{"sub": "root"}))) + "." + parts[2], 401},
		{"loose last bits", good[:len(good)-1] + flip(good[len(good)-1]), 401},
		{"8 KiB and more", strings.Repeat("a", maxInbound+1), 400},
		{"typ JWT", m.signed(fields{"typ": "JWT"}, nil), 200},
		{"typ absent", m.signed(fields{"typ": nil}, nil), 200},
		{"typ as media type", m.signed(fields{"typ": "application/AT+JWT"}, nil), 200},
		{"logout token", m.signed(fields{"typ": "logout+jwt"}, nil), 401},
		{"typ a number", m.signed(fields{"typ": 1}, nil), 401},
	}
}

// keys try to choose the algorithm or the key.
func (m mint) keys() []matrixRow {
	parts := strings.Split(m.signed(nil, nil), ".")
	return []matrixRow{
		{"none", b64([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", 401},
		{"NoNe", b64([]byte(`{"alg":"NoNe","kid":"k1"}`)) + "." + parts[1] + ".", 401},
		{"no alg", m.signed(fields{"alg": nil}, nil), 401},
		{"alg a number", m.signed(fields{"alg": 1}, nil), 401},
		{"alg not allowed", m.signed(fields{"alg": "RS512"}, nil), 401},
		{"alg of another key type", m.signed(fields{"alg": "ES256"}, nil), 401},
		{"ES256 with the RSA kid", signES256(ecKey(), goodHeader(fields{"alg": "ES256"}), m.i.goodClaims(nil)), 401},
		{"RSA below 2048", signRS256(smallKey(), goodHeader(fields{"kid": "small"}), m.i.goodClaims(nil)), 401},
		{"unknown kid", m.signed(fields{"kid": "k2"}, nil), 401},
		{"kid a path", m.signed(fields{"kid": "../../dev/null"}, nil), 401},
		{"kid SQL", m.signed(fields{"kid": "x' OR '1'='1"}, nil), 401},
		{"kid a URL", m.signed(fields{"kid": m.i.URL + "/jwks"}, nil), 401},
		{"kid 1 KiB", m.signed(fields{"kid": strings.Repeat("k", 1024)}, nil), 401},
		{"no kid among two keys", m.signed(fields{"kid": nil}, nil), 401},
		{"wrong key", signRS256(rogueKey(), goodHeader(nil), m.i.goodClaims(nil)), 401},
		{"own jwk", signRS256(rogueKey(), goodHeader(fields{"jwk": rsaJWK("k1", &rogueKey().PublicKey)}), m.i.goodClaims(nil)), 401},
		{"own jku", signRS256(rogueKey(), goodHeader(fields{"jku": m.i.URL + "/evil", "x5u": m.i.URL + "/evil"}), m.i.goodClaims(nil)), 401},
		{"own x5c", signRS256(rogueKey(), goodHeader(fields{"x5c": []string{"MIIB"}}), m.i.goodClaims(nil)), 401},
		{"ignored jku", m.signed(fields{"jku": m.i.URL + "/evil"}, nil), 200},
		{"crit", m.signed(fields{"crit": []string{"exp"}}, nil), 401},
		{"crit empty", m.signed(fields{"crit": []string{}}, nil), 401},
		{"b64 false", m.signed(fields{"b64": false}, nil), 401},
		{"zero ES256 signature", m.es256(make([]byte, 64)), 401},
		{"DER ES256 signature", m.es256(derSignature()), 401},
	}
}

// confusions are signed by HMAC with the forms of our public key (RFC 8725 section 2.1).
func (m mint) confusions(t *testing.T) []matrixRow {
	der, err := x509.MarshalPKIXPublicKey(&rsaKey().PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	var rows []matrixRow
	for name, secret := range map[string][]byte{"DER": der, "modulus": rsaKey().N.Bytes(),
		"PEM": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})} {
		text := b64([]byte(goodHeader(fields{"alg": "HS256"}))) + "." + b64([]byte(m.i.goodClaims(nil)))
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(text))
		rows = append(rows, matrixRow{"HS256 with the public key as " + name, text + "." + b64(mac.Sum(nil)), 401})
	}
	return rows
}

// addressees are for somebody else.
func (m mint) addressees() []matrixRow {
	return []matrixRow{
		{"iss wrong", m.signed(nil, fields{"iss": "https://evil.example"}), 401},
		{"iss with slash", m.signed(nil, fields{"iss": m.i.URL + "/"}), 401},
		{"iss missing", m.signed(nil, fields{"iss": nil}), 401},
		{"iss a list", m.signed(nil, fields{"iss": []string{m.i.URL}}), 401},
		{"aud one string", m.signed(nil, fields{"aud": "answerd"}), 200},
		{"aud wrong", m.signed(nil, fields{"aud": "other"}), 401},
		{"aud missing", m.signed(nil, fields{"aud": nil}), 401},
		{"aud empty", m.signed(nil, fields{"aud": []string{}}), 401},
		{"aud superstring", m.signed(nil, fields{"aud": "answerd2"}), 401},
		{"aud in one string", m.signed(nil, fields{"aud": "other answerd"}), 401},
		{"aud mixed", m.signed(nil, fields{"aud": []any{"answerd", 1}}), 401},
	}
}

// times are early or late; 60 s of skew are allowed.
func (m mint) times() []matrixRow {
	return []matrixRow{
		{"exp missing", m.signed(nil, fields{"exp": nil}), 401},
		{"exp long past", m.signed(nil, fields{"exp": m.now - 90}), 401},
		{"exp just past", m.signed(nil, fields{"exp": m.now - 30}), 200},
		{"exp a string", m.signed(nil, fields{"exp": "9999999999"}), 401},
		{"exp 1e300", m.signed(nil, fields{"exp": 1e300}), 401},
		{"exp in the year 10000", m.signed(nil, fields{"exp": 253402300800}), 401},
		{"exp negative", m.signed(nil, fields{"exp": -1}), 401},
		{"exp NaN", signRS256(rsaKey(), goodHeader(nil), `{"exp":NaN}`), 401},
		{"exp null", signRS256(rsaKey(), goodHeader(nil), strings.Replace(m.i.goodClaims(nil), `"exp":`, `"exp":null,"x":`, 1)), 401},
		{"exp a fraction", m.signed(nil, fields{"exp": float64(m.now) + 300.5}), 200},
		{"nbf in 30 s", m.signed(nil, fields{"nbf": m.now + 30}), 200},
		{"nbf in 90 s", m.signed(nil, fields{"nbf": m.now + 90}), 401},
		{"iat in 30 s", m.signed(nil, fields{"iat": m.now + 30}), 200},
		{"iat in 90 s", m.signed(nil, fields{"iat": m.now + 90}), 401},
	}
}

// subjects name nobody, or somebody without the scope.
func (m mint) subjects() []matrixRow {
	return []matrixRow{
		{"sub missing", m.signed(nil, fields{"sub": nil}), 401},
		{"sub blank", m.signed(nil, fields{"sub": " "}), 401},
		{"sub an object", m.signed(nil, fields{"sub": fields{"a": 1}, "client_id": "svc"}), 401},
		{"client_id instead", m.signed(nil, fields{"sub": nil, "client_id": "svc"}), 200},
		{"no scope", m.signed(nil, fields{"scope": nil}), 403},
		{"scope superstring", m.signed(nil, fields{"scope": "asking read"}), 403},
		{"scp list", m.signed(nil, fields{"scope": nil, "scp": []string{"read", "ask"}}), 200},
		{"scp string", m.signed(nil, fields{"scope": nil, "scp": "read ask"}), 200},
		{"scp beside scope", m.signed(nil, fields{"scope": "read", "scp": []string{"ask"}}), 403},
		{"scope a number", m.signed(nil, fields{"scope": 1}), 401},
		{"expired without scope", m.signed(nil, fields{"scope": nil, "exp": m.now - 90}), 401},
	}
}

func flip(last byte) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string(alphabet[strings.IndexByte(alphabet, last)^1])
}

func derSignature() []byte {
	der, err := asn1.Marshal(struct{ R, S *big.Int }{big.NewInt(1), big.NewInt(1)})
	if err != nil {
		panic(err)
	}
	return der
}

func TestIdentityIsWhatTheTokenSays(t *testing.T) {
	i := newIAM(t)
	v, _ := i.verifier(t, func(cfg *VerifierConfig) { cfg.Scope = "" })
	exp := time.Now().Add(time.Minute).Truncate(time.Second)
	id, err := v.Verify(t.Context(), signRS256(rsaKey(), goodHeader(nil), i.goodClaims(fields{"exp": exp.Unix()})))
	if err != nil || id.Issuer != i.URL || id.Subject != "ann" || strings.Join(id.Scopes, ",") != "ask,read" || !id.Expiry.Equal(exp) ||
		!id.Until().Equal(exp.Add(clockSkew)) || string(id.Claims["sub"]) != `"ann"` || !(Identity{}).Until().IsZero() {
		t.Errorf("got %+v, %v", id, err)
	}
	svc, err := v.Verify(t.Context(), signRS256(rsaKey(), goodHeader(nil), i.goodClaims(fields{"sub": nil, "client_id": "svc"})))
	if err != nil || svc.Subject != "svc" || svc.Owns(id) || !id.Owns(id) {
		t.Errorf("got %+v, %v", svc, err)
	}
}

// What an operator may want of tokens beyond that they are in order.
func TestAnOperatorMayWantMoreOfATokenThanThatItIsInOrder(t *testing.T) {
	i := newIAM(t)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.publish(rsaJWK("k1", &rsaKey().PublicKey), fields{"kty": "OKP", "crv": "Ed25519", "kid": "o1", "x": b64(edKey.Public().(ed25519.PublicKey))})
	text := b64([]byte(goodHeader(fields{"alg": "EdDSA", "kid": "o1"}))) + "." + b64([]byte(i.goodClaims(nil)))
	signed := func(header, claims fields) string {
		return signRS256(rsaKey(), goodHeader(header), i.goodClaims(claims))
	}
	ed := text + "." + b64(ed25519.Sign(edKey, []byte(text)))
	now := time.Now().Unix()
	for _, c := range []struct {
		name   string
		change func(*VerifierConfig)
		token  string
		good   bool
	}{
		{"EdDSA by default", nil, ed, false},
		{"EdDSA", func(c *VerifierConfig) { c.Algorithms = []string{"EdDSA"} }, ed, true},
		{"RS256 where only EdDSA may sign", func(c *VerifierConfig) { c.Algorithms = []string{"EdDSA"} }, signed(nil, nil), false},
		{"at+jwt only", func(c *VerifierConfig) { c.OnlyAccessTokens = true }, signed(nil, nil), true},
		{"at+jwt only, as media type", func(c *VerifierConfig) { c.OnlyAccessTokens = true }, signed(fields{"typ": "application/at+jwt"}, nil), true},
		{"at+jwt only, an ID token", func(c *VerifierConfig) { c.OnlyAccessTokens = true }, signed(fields{"typ": "JWT"}, nil), false},
		{"at+jwt only, no typ", func(c *VerifierConfig) { c.OnlyAccessTokens = true }, signed(fields{"typ": nil}, nil), false},
		{"client by azp", func(c *VerifierConfig) { c.Clients = []string{"web"} }, signed(nil, fields{"azp": "web"}), true},
		{"client by client_id", func(c *VerifierConfig) { c.Clients = []string{"web"} }, signed(nil, fields{"client_id": "web"}), true},
		{"another client", func(c *VerifierConfig) { c.Clients = []string{"web"} }, signed(nil, fields{"azp": "other", "client_id": "web"}), false},
		{"no client, and a stray comma", func(c *VerifierConfig) { c.Clients = []string{"web", ""} }, signed(nil, nil), false},
		{"no client", func(c *VerifierConfig) { c.Clients = []string{"web"} }, signed(nil, nil), false},
		{"azp a number", nil, signed(nil, fields{"azp": 1}), false},
		{"short life", func(c *VerifierConfig) { c.MaxLifetime = time.Hour }, signed(nil, nil), true},
		{"long life", func(c *VerifierConfig) { c.MaxLifetime = time.Hour }, signed(nil, fields{"exp": now + 3700}), false},
		{"life without iat", func(c *VerifierConfig) { c.MaxLifetime = time.Hour }, signed(nil, fields{"iat": nil}), false},
	} {
		v, _ := i.verifier(t, c.change)
		if _, err := v.Verify(t.Context(), c.token); (err == nil) != c.good || err != nil && !errors.Is(err, ErrInvalidToken) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// CVE-2026-35030: a cache keyed by a part of the token mixes up its owners. Here
// tokens that begin and end alike are each judged on their own.
func TestTokensThatLookAlikeAreJudgedOnTheirOwn(t *testing.T) {
	i := newIAM(t)
	v, _ := i.verifier(t, nil)
	good := signRS256(rsaKey(), goodHeader(nil), i.goodClaims(nil))
	if _, err := v.Verify(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	forged := parts[0] + "." + b64([]byte(i.goodClaims(fields{"sub": "bob"}))) + "." + parts[2]
	if _, err := v.Verify(t.Context(), forged); !errors.Is(err, ErrInvalidToken) {
		t.Errorf("got %v", err)
	}
}

func TestVerifierConfigurationIsChecked(t *testing.T) {
	good := VerifierConfig{Issuer: "https://iam.example", Audience: "a", JWKSURL: "https://iam.example/jwks"}
	for name, change := range map[string]func(*VerifierConfig){
		"no issuer":            func(c *VerifierConfig) { c.Issuer = "" },
		"no audience":          func(c *VerifierConfig) { c.Audience = "" },
		"no JWKS URL":          func(c *VerifierConfig) { c.JWKSURL = "" },
		"JWKS over plain http": func(c *VerifierConfig) { c.JWKSURL = "http://iam.example/jwks" },
		"alg none":             func(c *VerifierConfig) { c.Algorithms = []string{"none"} },
		"symmetric alg":        func(c *VerifierConfig) { c.Algorithms = []string{"RS256", "HS256"} },
		"quote in the scope":   func(c *VerifierConfig) { c.Scope = `a" b` },
	} {
		cfg := good
		change(&cfg)
		if _, err := NewVerifier(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzVerify(f *testing.F) {
	keys := roundTrip(func(*http.Request) (*http.Response, error) {
		return respond(http.StatusOK, string(jwks(rsaJWK("k1", &rsaKey().PublicKey), ecJWK("e1", &ecKey().PublicKey)))), nil
	})
	v, err := NewVerifier(VerifierConfig{Issuer: fakeIssuer, Audience: "answerd", JWKSURL: fakeIssuer + "/jwks",
		HTTPClient: &http.Client{Transport: keys}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(v.Close)
	minted := []string{
		signRS256(rsaKey(), goodHeader(nil), claimsOf(fakeIssuer, nil)),
		signES256(ecKey(), goodHeader(fields{"alg": "ES256", "kid": "e1"}), claimsOf(fakeIssuer, nil)),
	}
	for _, token := range minted {
		if _, err := v.Verify(f.Context(), token); err != nil {
			f.Fatal(err)
		}
		f.Add(token)
	}
	f.Add(signRS256(rsaKey(), `{"alg":"RS256","kid":"k1","crit":[]}`, `{"exp":1e300}`))
	f.Add(b64([]byte(`{"alg":"none"}`)) + ".e30.")
	f.Add("a.b.c")
	f.Add("....")
	f.Fuzz(func(t *testing.T, token string) {
		id, err := v.Verify(t.Context(), token)
		if status, _ := Challenge(err, metadataURL); err != nil && (status < 400 || status > 401) {
			t.Errorf("%d for %v", status, err)
		}
		// Only the issuer can make one.
		if err == nil && (id.Subject != "ann" || !slices.Contains(minted, token)) {
			t.Errorf("accepted %q", token)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	i := newIAM(b)
	v, _ := i.verifier(b, nil)
	for name, token := range map[string]string{
		"RS256": signRS256(rsaKey(), goodHeader(nil), i.goodClaims(nil)),
		"ES256": signES256(ecKey(), goodHeader(fields{"alg": "ES256", "kid": "e1"}), i.goodClaims(nil)),
	} {
		b.Run(name, func(b *testing.B) {
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(ctx, token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
