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

	"answerd/internal/auth/authtest"
)

// newVerifier returns a verifier of the tokens of i that requires the scope "ask", and its log.
func newVerifier(t testing.TB, i *authtest.IAM, change func(*VerifierConfig)) (*Verifier, *authtest.LogBuffer) {
	t.Helper()
	logged := &authtest.LogBuffer{}
	cfg := VerifierConfig{Issuer: i.URL, Audience: "answerd", JWKSURL: i.URL + "/jwks", Scope: "ask", Logger: logged.Logger()}
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

// authenticate does what api does with a request: it finds the token, verifies it and answers.
func authenticate(t testing.TB, v *Verifier, r *http.Request) (id Identity, status int, challenge string) {
	token, err := FromRequest(r)
	if err == nil {
		id, err = v.Verify(t.Context(), token)
	}
	if err == nil {
		return id, http.StatusOK, ""
	}
	authtest.CheckNoCanary(t, err.Error())
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

// tokenBuilder builds the tokens of the matrix.
type tokenBuilder struct {
	i   *authtest.IAM
	now int64 // Unix seconds
}

// signed is a good token but for the changes.
func (m tokenBuilder) signed(header, claims authtest.JSON) string {
	return authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(header), m.i.ClaimsJSON(claims))
}

// es256 is a good token with that signature.
func (m tokenBuilder) es256(signature []byte) string {
	return authtest.Base64([]byte(authtest.HeaderJSON(authtest.JSON{"alg": "ES256", "kid": "e1"}))) + "." + authtest.Base64([]byte(m.i.ClaimsJSON(nil))) + "." + authtest.Base64(signature)
}

// The matrix of authentication: every case is judged over a real key set, by the
// same three steps that a request takes.
func TestVerifyMatrix(t *testing.T) {
	i := authtest.NewIAM(t)
	i.PublishKeys(authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey), authtest.ECJWK("e1", &authtest.ECKey().PublicKey), authtest.RSAJWK("small", &authtest.ShortRSAKey().PublicKey))
	v, _ := newVerifier(t, i, nil)
	begin := time.Now()

	m := tokenBuilder{i, begin.Unix()}
	challenges := map[int]string{200: "", 400: badRequest, 401: invalidToken, 403: scopeMissing}
	for _, row := range slices.Concat(m.shapes(), m.keys(), m.confusions(t), m.addressees(), m.times(), m.subjects()) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+row.token)
		id, status, challenge := authenticate(t, v, r)
		if status != row.want || challenge != challenges[row.want] {
			t.Errorf("%s: %d %s, want %d", row.name, status, challenge, row.want)
		}
		if (status == 200) != (id.Subject != "") {
			t.Errorf("%s: got status %d for %+v, want a subject for 200 only", row.name, status, id)
		}
	}

	// One fetch at the start. All those kids came within 30 s of it.
	if n := i.KeyRequests.Load(); n > 1+int64(time.Since(begin)/keysCooldown) {
		t.Errorf("%d fetches of the keys, want at most %d", n, 1+int64(time.Since(begin)/keysCooldown))
	}
}

// shapes are wrong as a JWS (RFC 7515), or as a header of ours.
func (m tokenBuilder) shapes() []matrixRow {
	good := m.signed(nil, nil)
	parts := strings.Split(good, ".")
	return []matrixRow{
		{"good", good, 200},
		{"good ES256", authtest.SignES256(authtest.ECKey(), authtest.HeaderJSON(authtest.JSON{"alg": "ES256", "kid": "e1"}), m.i.ClaimsJSON(nil)), 200},
		{"two parts", parts[0] + "." + parts[1], 401},
		{"five parts", good + ".x.y", 401},
		{"only dots", strings.Repeat(".", 8000), 401},
		{"padding", good + "==", 401},
		{"bad base64", "!" + good[1:], 400},
		{"bad JSON", authtest.Base64([]byte(`{`)) + ".e30.AA", 401},
		{"duplicate header member", authtest.SignRS256(authtest.RSAKey(), `{"alg":"none","alg":"RS256","kid":"k1"}`, m.i.ClaimsJSON(nil)), 401},
		{"duplicate claim", authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), `{"sub":"root",`+m.i.ClaimsJSON(nil)[1:]), 401},
		{"trailing data", authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil)+"{}", m.i.ClaimsJSON(nil)), 401},
		{"folded claim", m.signed(nil, authtest.JSON{"exp": nil, "EXP": m.now + 300}), 401},
		{"changed claims", parts[0] + "." + authtest.Base64([]byte(m.i.ClaimsJSON(authtest.JSON{"sub": "root"}))) + "." + parts[2], 401},
		{"loose last bits", good[:len(good)-1] + flipLastBit(good[len(good)-1]), 401},
		{"8 KiB and more", strings.Repeat("a", maxTokenBytes+1), 400},
		{"typ JWT", m.signed(authtest.JSON{"typ": "JWT"}, nil), 200},
		{"typ absent", m.signed(authtest.JSON{"typ": nil}, nil), 200},
		{"typ as media type", m.signed(authtest.JSON{"typ": "application/AT+JWT"}, nil), 200},
		{"typ JWT as media type", m.signed(authtest.JSON{"typ": "application/jwt"}, nil), 200},
		{"logout token", m.signed(authtest.JSON{"typ": "logout+jwt"}, nil), 401},
		{"typ a number", m.signed(authtest.JSON{"typ": 1}, nil), 401},
	}
}

// keys try to choose the algorithm or the key.
func (m tokenBuilder) keys() []matrixRow {
	parts := strings.Split(m.signed(nil, nil), ".")
	return []matrixRow{
		{"none", authtest.Base64([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", 401},
		{"NoNe", authtest.Base64([]byte(`{"alg":"NoNe","kid":"k1"}`)) + "." + parts[1] + ".", 401},
		{"no alg", m.signed(authtest.JSON{"alg": nil}, nil), 401},
		{"alg a number", m.signed(authtest.JSON{"alg": 1}, nil), 401},
		{"alg not allowed", m.signed(authtest.JSON{"alg": "RS512"}, nil), 401},
		{"alg of another key type", m.signed(authtest.JSON{"alg": "ES256"}, nil), 401},
		{"ES256 with the RSA kid", authtest.SignES256(authtest.ECKey(), authtest.HeaderJSON(authtest.JSON{"alg": "ES256"}), m.i.ClaimsJSON(nil)), 401},
		{"RSA below 2048", authtest.SignRS256(authtest.ShortRSAKey(), authtest.HeaderJSON(authtest.JSON{"kid": "small"}), m.i.ClaimsJSON(nil)), 401},
		{"unknown kid", m.signed(authtest.JSON{"kid": "k2"}, nil), 401},
		{"kid a path", m.signed(authtest.JSON{"kid": "../../dev/null"}, nil), 401},
		{"kid SQL", m.signed(authtest.JSON{"kid": "x' OR '1'='1"}, nil), 401},
		{"kid a URL", m.signed(authtest.JSON{"kid": m.i.URL + "/jwks"}, nil), 401},
		{"kid 1 KiB", m.signed(authtest.JSON{"kid": strings.Repeat("k", 1024)}, nil), 401},
		{"no kid among two keys", m.signed(authtest.JSON{"kid": nil}, nil), 401},
		{"wrong key", authtest.SignRS256(authtest.OtherRSAKey(), authtest.HeaderJSON(nil), m.i.ClaimsJSON(nil)), 401},
		{"own jwk", authtest.SignRS256(authtest.OtherRSAKey(), authtest.HeaderJSON(authtest.JSON{"jwk": authtest.RSAJWK("k1", &authtest.OtherRSAKey().PublicKey)}), m.i.ClaimsJSON(nil)), 401},
		{"own jku", authtest.SignRS256(authtest.OtherRSAKey(), authtest.HeaderJSON(authtest.JSON{"jku": m.i.URL + "/evil", "x5u": m.i.URL + "/evil"}), m.i.ClaimsJSON(nil)), 401},
		{"own x5c", authtest.SignRS256(authtest.OtherRSAKey(), authtest.HeaderJSON(authtest.JSON{"x5c": []string{"MIIB"}}), m.i.ClaimsJSON(nil)), 401},
		{"ignored jku", m.signed(authtest.JSON{"jku": m.i.URL + "/evil"}, nil), 200},
		{"crit", m.signed(authtest.JSON{"crit": []string{"exp"}}, nil), 401},
		{"crit empty", m.signed(authtest.JSON{"crit": []string{}}, nil), 401},
		{"b64 false", m.signed(authtest.JSON{"b64": false}, nil), 401},
		{"zero ES256 signature", m.es256(make([]byte, 64)), 401},
		{"DER ES256 signature", m.es256(derSignature()), 401},
	}
}

// confusions are signed by HMAC with the forms of our public key (RFC 8725 section 2.1).
func (m tokenBuilder) confusions(t *testing.T) []matrixRow {
	der, err := x509.MarshalPKIXPublicKey(&authtest.RSAKey().PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	var rows []matrixRow
	for name, secret := range map[string][]byte{"DER": der, "modulus": authtest.RSAKey().N.Bytes(),
		"PEM": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})} {
		text := authtest.Base64([]byte(authtest.HeaderJSON(authtest.JSON{"alg": "HS256"}))) + "." + authtest.Base64([]byte(m.i.ClaimsJSON(nil)))
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(text))
		rows = append(rows, matrixRow{"HS256 with the public key as " + name, text + "." + authtest.Base64(mac.Sum(nil)), 401})
	}
	return rows
}

// addressees are claims of tokens for another audience.
func (m tokenBuilder) addressees() []matrixRow {
	return []matrixRow{
		{"iss wrong", m.signed(nil, authtest.JSON{"iss": "https://evil.example"}), 401},
		{"iss with slash", m.signed(nil, authtest.JSON{"iss": m.i.URL + "/"}), 401},
		{"iss missing", m.signed(nil, authtest.JSON{"iss": nil}), 401},
		{"iss a list", m.signed(nil, authtest.JSON{"iss": []string{m.i.URL}}), 401},
		{"aud one string", m.signed(nil, authtest.JSON{"aud": "answerd"}), 200},
		{"aud wrong", m.signed(nil, authtest.JSON{"aud": "other"}), 401},
		{"aud missing", m.signed(nil, authtest.JSON{"aud": nil}), 401},
		{"aud empty", m.signed(nil, authtest.JSON{"aud": []string{}}), 401},
		{"aud superstring", m.signed(nil, authtest.JSON{"aud": "answerd2"}), 401},
		{"aud in one string", m.signed(nil, authtest.JSON{"aud": "other answerd"}), 401},
		{"aud mixed", m.signed(nil, authtest.JSON{"aud": []any{"answerd", 1}}), 401},
	}
}

// times are early or late; 60 s of skew are allowed.
func (m tokenBuilder) times() []matrixRow {
	return []matrixRow{
		{"exp missing", m.signed(nil, authtest.JSON{"exp": nil}), 401},
		{"exp long past", m.signed(nil, authtest.JSON{"exp": m.now - 90}), 401},
		{"exp just past", m.signed(nil, authtest.JSON{"exp": m.now - 30}), 200},
		{"exp a string", m.signed(nil, authtest.JSON{"exp": "9999999999"}), 401},
		{"exp 1e300", m.signed(nil, authtest.JSON{"exp": 1e300}), 401},
		{"exp in the year 10000", m.signed(nil, authtest.JSON{"exp": 253402300800}), 401},
		{"exp negative", m.signed(nil, authtest.JSON{"exp": -1}), 401},
		{"exp NaN", authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), `{"exp":NaN}`), 401},
		{"exp null", authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), strings.Replace(m.i.ClaimsJSON(nil), `"exp":`, `"exp":null,"x":`, 1)), 401},
		{"exp a fraction", m.signed(nil, authtest.JSON{"exp": float64(m.now) + 300.5}), 200},
		{"nbf in 30 s", m.signed(nil, authtest.JSON{"nbf": m.now + 30}), 200},
		{"nbf in 90 s", m.signed(nil, authtest.JSON{"nbf": m.now + 90}), 401},
		{"iat in 30 s", m.signed(nil, authtest.JSON{"iat": m.now + 30}), 200},
		{"iat in 90 s", m.signed(nil, authtest.JSON{"iat": m.now + 90}), 401},
	}
}

// subjects are claims without a subject, or with a subject that lacks the scope.
func (m tokenBuilder) subjects() []matrixRow {
	return []matrixRow{
		{"sub missing", m.signed(nil, authtest.JSON{"sub": nil}), 401},
		{"sub blank", m.signed(nil, authtest.JSON{"sub": " "}), 401},
		{"sub an object", m.signed(nil, authtest.JSON{"sub": authtest.JSON{"a": 1}, "client_id": "svc"}), 401},
		{"client_id instead", m.signed(nil, authtest.JSON{"sub": nil, "client_id": "svc"}), 200},
		{"no scope", m.signed(nil, authtest.JSON{"scope": nil}), 403},
		{"scope superstring", m.signed(nil, authtest.JSON{"scope": "asking read"}), 403},
		{"scp list", m.signed(nil, authtest.JSON{"scope": nil, "scp": []string{"read", "ask"}}), 200},
		{"scp string", m.signed(nil, authtest.JSON{"scope": nil, "scp": "read ask"}), 200},
		{"scp beside scope", m.signed(nil, authtest.JSON{"scope": "read", "scp": []string{"ask"}}), 403},
		{"scope a number", m.signed(nil, authtest.JSON{"scope": 1}), 401},
		{"expired without scope", m.signed(nil, authtest.JSON{"scope": nil, "exp": m.now - 90}), 401},
	}
}

func flipLastBit(last byte) string {
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

func TestVerifyReturnsTheTokensIdentity(t *testing.T) {
	i := authtest.NewIAM(t)
	v, _ := newVerifier(t, i, func(cfg *VerifierConfig) { cfg.Scope = "" })
	exp := time.Now().Add(time.Minute).Truncate(time.Second)
	id, err := v.Verify(t.Context(), authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), i.ClaimsJSON(authtest.JSON{"exp": exp.Unix()})))
	if err != nil || id.Issuer != i.URL || id.Subject != "ann" || strings.Join(id.Scopes, ",") != "ask,read" || !id.Expiry.Equal(exp) ||
		!id.Until().Equal(exp.Add(clockSkew)) || string(id.Claims["sub"]) != `"ann"` || !(Identity{}).Until().IsZero() {
		t.Errorf("got %+v, %v, want ann of %s with ask and read until %v", id, err, i.URL, exp)
	}
	svc, err := v.Verify(t.Context(), authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), i.ClaimsJSON(authtest.JSON{"sub": nil, "client_id": "svc"})))
	if err != nil || svc.Subject != "client:svc" || svc.Owns(id) || !id.Owns(id) {
		t.Errorf("got %+v, %v, want the subject client:svc", svc, err)
	}
}

// The tokens that docs/auth.md has settings for, with the claims that their issuers document. Not all of them are those
// of RFC 9068.
func TestTokensOfKnownIssuersAreAccepted(t *testing.T) {
	i := authtest.NewIAM(t)
	jwt := authtest.JSON{"typ": "JWT"}
	for _, c := range []struct {
		name, issuer, audience, scope string
		header, claims                authtest.JSON
		reason                        string // "" if the token is accepted
	}{
		{"Entra ID v2.0", "https://login.microsoftonline.com/t/v2.0", "6e74172b", "ask", jwt, authtest.JSON{"aud": "6e74172b", "azp": "web", "azpacr": "0", "scp": "ask read", "oid": "o", "tid": "t", "ver": "2.0"}, ""},
		{"Entra ID v2.0 of another tenant", "https://login.microsoftonline.com/t/v2.0", "6e74172b", "ask", jwt, authtest.JSON{"iss": "https://login.microsoftonline.com/u/v2.0", "aud": "6e74172b", "scp": "ask"}, "issuer"},
		{"Entra ID v2.0 of an application", "https://login.microsoftonline.com/t/v2.0", "6e74172b", "", jwt, authtest.JSON{"aud": "6e74172b", "azp": "job", "roles": []string{"Ask"}, "idtyp": "app"}, ""},
		{"Entra ID v1.0", "https://sts.windows.net/t/", "api://6e74172b", "ask", authtest.JSON{"typ": "JWT", "x5t": "k1"}, authtest.JSON{"aud": "api://6e74172b", "appid": "web", "appidacr": "0", "scp": "ask", "ver": "1.0"}, ""},
		{"Entra ID v1.0, the slash forgotten", "https://sts.windows.net/t", "api://6e74172b", "ask", jwt, authtest.JSON{"iss": "https://sts.windows.net/t/", "aud": "api://6e74172b", "scp": "ask"}, "issuer"},
		{"Auth0", "https://t.eu.auth0.com/", "https://answerd.example.com", "ask", jwt, authtest.JSON{"aud": []string{"https://answerd.example.com", "https://t.eu.auth0.com/userinfo"}, "azp": "web", "sub": "auth0|1", "scope": "openid ask"}, ""},
		{"Auth0 of a client", "https://t.eu.auth0.com/", "https://answerd.example.com", "ask", authtest.JSON{"typ": "at+jwt"}, authtest.JSON{"aud": "https://answerd.example.com", "client_id": "job", "sub": "job@clients", "gty": "client-credentials", "scope": "ask"}, ""},
		{"Okta", "https://o.okta.com/oauth2/default", "api://default", "ask", authtest.JSON{"typ": nil}, authtest.JSON{"aud": "api://default", "cid": "web", "uid": "u", "ver": 1, "scp": []string{"openid", "ask"}}, ""},
		{"Keycloak", "https://k.example.com/realms/r", "answerd", "ask", jwt, authtest.JSON{"aud": []string{"answerd", "account"}, "azp": "web", "typ": "Bearer", "scope": "profile ask", "realm_access": authtest.JSON{"roles": []string{"clerk"}}}, ""},
		{"Cognito", "https://cognito-idp.eu-west-1.amazonaws.com/p", "answerd", "", authtest.JSON{"typ": nil}, authtest.JSON{"aud": nil, "client_id": "web", "token_use": "access"}, "a_required_claim_is_missing"},
	} {
		v, _ := newVerifier(t, i, func(cfg *VerifierConfig) { cfg.Issuer, cfg.Audience, cfg.Scope = c.issuer, c.audience, c.scope })
		if c.claims["scope"] == nil {
			c.claims["scope"] = nil // the fixture has one
		}
		_, err := v.Verify(t.Context(), authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(c.header), authtest.ClaimsOf(c.issuer, c.claims)))
		if got := Reason(err); err == nil && c.reason != "" || err != nil && got != c.reason {
			t.Errorf("%s: got %v, want the reason %q", c.name, err, c.reason)
		}
	}
}

// RFC 9068 section 5: subjects and client ids are separate namespaces. A client whose id is a user's
// subject, or a user whose subject looks like a client, must not get the other's runs.
func TestClientAndUserOfTheSameNameAreDifferentOwners(t *testing.T) {
	i := authtest.NewIAM(t)
	v, _ := newVerifier(t, i, func(cfg *VerifierConfig) { cfg.Scope = "" })
	verify := func(claims authtest.JSON) Identity {
		t.Helper()
		id, err := v.Verify(t.Context(), authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), i.ClaimsJSON(claims)))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}

	for name, ids := range map[string][2]Identity{
		"the client is named like the user":    {verify(authtest.JSON{"sub": "ann"}), verify(authtest.JSON{"sub": nil, "client_id": "ann"})},
		"the user is named like a client":      {verify(authtest.JSON{"sub": "client:ann"}), verify(authtest.JSON{"sub": nil, "client_id": "ann"})},
		"a user is named like an escaped name": {verify(authtest.JSON{"sub": "user:client:ann"}), verify(authtest.JSON{"sub": "client:ann"})},
	} {
		if a, b := ids[0], ids[1]; a.Owns(b) || b.Owns(a) || a.Key() == b.Key() {
			t.Errorf("%s: got owners %q and %q, want different ones", name, a.Subject, b.Subject)
		}
	}

	if got := verify(authtest.JSON{"sub": "ann", "client_id": "web"}).Subject; got != "ann" {
		t.Errorf("got subject %q of a user's token with a client, want ann", got)
	}
}

// Conditions that an operator can set for tokens that are otherwise valid.
func TestVerifierConfigRestrictsTokens(t *testing.T) {
	i := authtest.NewIAM(t)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.PublishKeys(authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey), authtest.JSON{"kty": "OKP", "crv": "Ed25519", "kid": "o1", "x": authtest.Base64(edKey.Public().(ed25519.PublicKey))})
	text := authtest.Base64([]byte(authtest.HeaderJSON(authtest.JSON{"alg": "EdDSA", "kid": "o1"}))) + "." + authtest.Base64([]byte(i.ClaimsJSON(nil)))
	signed := func(header, claims authtest.JSON) string {
		return authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(header), i.ClaimsJSON(claims))
	}

	ed := text + "." + authtest.Base64(ed25519.Sign(edKey, []byte(text)))
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
		{"at+jwt only, as media type", func(c *VerifierConfig) { c.OnlyAccessTokens = true }, signed(authtest.JSON{"typ": "application/at+jwt"}, nil), true},
		{"at+jwt only, an ID token", func(c *VerifierConfig) { c.OnlyAccessTokens = true }, signed(authtest.JSON{"typ": "JWT"}, nil), false},
		{"at+jwt only, no typ", func(c *VerifierConfig) { c.OnlyAccessTokens = true }, signed(authtest.JSON{"typ": nil}, nil), false},
		{"client by azp", func(c *VerifierConfig) { c.Clients = []string{"web"} }, signed(nil, authtest.JSON{"azp": "web"}), true},
		{"client by client_id", func(c *VerifierConfig) { c.Clients = []string{"web"} }, signed(nil, authtest.JSON{"client_id": "web"}), true},
		{"another client", func(c *VerifierConfig) { c.Clients = []string{"web"} }, signed(nil, authtest.JSON{"azp": "other", "client_id": "web"}), false},
		{"no client, and a stray comma", func(c *VerifierConfig) { c.Clients = []string{"web", ""} }, signed(nil, nil), false},
		{"no client", func(c *VerifierConfig) { c.Clients = []string{"web"} }, signed(nil, nil), false},
		{"azp a number", nil, signed(nil, authtest.JSON{"azp": 1}), false},
		{"short life", func(c *VerifierConfig) { c.MaxLifetime = time.Hour }, signed(nil, nil), true},
		{"long life", func(c *VerifierConfig) { c.MaxLifetime = time.Hour }, signed(nil, authtest.JSON{"exp": now + 3700}), false},
		{"life without iat", func(c *VerifierConfig) { c.MaxLifetime = time.Hour }, signed(nil, authtest.JSON{"iat": nil}), false},
	} {
		v, _ := newVerifier(t, i, c.change)
		if _, err := v.Verify(t.Context(), c.token); (err == nil) != c.good || err != nil && !errors.Is(err, ErrInvalidToken) {
			t.Errorf("%s: %v, want it accepted: %t, else ErrInvalidToken", c.name, err, c.good)
		}
	}
}

// CVE-2026-35030: a cache keyed by a part of the token mixes up its owners. Here
// tokens that begin and end alike are each judged on their own.
func TestVerifyDoesNotConfuseSimilarTokens(t *testing.T) {
	i := authtest.NewIAM(t)
	v, _ := newVerifier(t, i, nil)
	good := authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), i.ClaimsJSON(nil))
	if _, err := v.Verify(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	forged := parts[0] + "." + authtest.Base64([]byte(i.ClaimsJSON(authtest.JSON{"sub": "bob"}))) + "." + parts[2]
	if _, err := v.Verify(t.Context(), forged); !errors.Is(err, ErrInvalidToken) {
		t.Errorf("got %v, want %v", err, ErrInvalidToken)
	}
}

func TestNewVerifierChecksItsConfiguration(t *testing.T) {
	good := VerifierConfig{Issuer: "https://iam.example", Audience: "a", JWKSURL: "https://iam.example/jwks"}
	for name, change := range map[string]func(*VerifierConfig){
		"no issuer":   func(c *VerifierConfig) { c.Issuer = "" },
		"no audience": func(c *VerifierConfig) { c.Audience = "" },
		"no JWKS URL, and an issuer that is not a URL": func(c *VerifierConfig) { c.JWKSURL, c.Issuer = "", "iam" },
		"no JWKS URL, and an issuer over plain http":   func(c *VerifierConfig) { c.JWKSURL, c.Issuer = "", "http://iam.example" },
		"JWKS over plain http":                         func(c *VerifierConfig) { c.JWKSURL = "http://iam.example/jwks" },
		"alg none":                                     func(c *VerifierConfig) { c.Algorithms = []string{"none"} },
		"symmetric alg":                                func(c *VerifierConfig) { c.Algorithms = []string{"RS256", "HS256"} },
		"quote in the scope":                           func(c *VerifierConfig) { c.Scope = `a" b` },
	} {
		cfg := good
		change(&cfg)
		if _, err := NewVerifier(cfg); err == nil {
			t.Errorf("%s: got accepted, want an error", name)
		}
	}
}

func FuzzVerify(f *testing.F) {
	keys := authtest.RoundTripFunc(func(*http.Request) (*http.Response, error) {
		return authtest.Response(http.StatusOK, string(authtest.JWKS(authtest.RSAJWK("k1", &authtest.RSAKey().PublicKey), authtest.ECJWK("e1", &authtest.ECKey().PublicKey)))), nil
	})
	v, err := NewVerifier(VerifierConfig{Issuer: fakeIssuer, Audience: "answerd", JWKSURL: fakeIssuer + "/jwks",
		HTTPClient: &http.Client{Transport: keys}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(v.Close)

	minted := []string{
		authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), authtest.ClaimsOf(fakeIssuer, nil)),
		authtest.SignES256(authtest.ECKey(), authtest.HeaderJSON(authtest.JSON{"alg": "ES256", "kid": "e1"}), authtest.ClaimsOf(fakeIssuer, nil)),
	}

	for _, token := range minted {
		if _, err := v.Verify(f.Context(), token); err != nil {
			f.Fatal(err)
		}
		f.Add(token)
	}

	f.Add(authtest.SignRS256(authtest.RSAKey(), `{"alg":"RS256","kid":"k1","crit":[]}`, `{"exp":1e300}`))
	f.Add(authtest.Base64([]byte(`{"alg":"none"}`)) + ".e30.")
	f.Add("a.b.c")
	f.Add("....")

	f.Fuzz(func(t *testing.T, token string) {
		id, err := v.Verify(t.Context(), token)
		if status, _ := Challenge(err, metadataURL); err != nil && (status < 400 || status > 401) {
			t.Errorf("%d for %v, want 400 or 401", status, err)
		}
		// Only the issuer can make one.
		if err == nil && (id.Subject != "ann" || !slices.Contains(minted, token)) {
			t.Errorf("accepted %q of %q, want a token that the issuer made for ann", token, id.Subject)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	i := authtest.NewIAM(b)
	v, _ := newVerifier(b, i, nil)
	for name, token := range map[string]string{
		"RS256": authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), i.ClaimsJSON(nil)),
		"ES256": authtest.SignES256(authtest.ECKey(), authtest.HeaderJSON(authtest.JSON{"alg": "ES256", "kid": "e1"}), i.ClaimsJSON(nil)),
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
