package oauth

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"answerd/internal/auth"

	"github.com/golang-jwt/jwt/v5"
)

// The methods of client authentication (RFC 7591 section 2, OpenID Connect Core section 9).
const (
	methodBasic = "client_secret_basic"
	methodPost  = "client_secret_post"
	methodNone  = "none"
	methodKey   = "private_key_jwt"
)

const (
	registration    = "the registration endpoint"
	maxRegistration = 64 << 10 // bytes of its reply
	maxClientID     = 2 << 10  // bytes
	// registeredFor is how long a registration is used for new authorizations: an
	// authorization server that has forgotten it says so to the person, not to us.
	registeredFor = 24 * time.Hour
	assertionLife = time.Minute
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
)

// identity is who we are at one authorization server. It is sent to that one only.
type identity struct {
	id      string
	secret  auth.Secret
	method  string
	expires time.Time // from here on another one is registered; zero: it is configured
}

// configured is the client of the configuration.
func (c *Client) configured(a *authority) identity {
	who := identity{id: c.cfg.ClientID, secret: c.cfg.ClientSecret}
	switch {
	case !c.cfg.PrivateKey.IsZero():
		who.method = methodKey
	case who.secret.IsZero():
		who.method = methodNone
	default:
		who.method = secretMethod(a)
	}
	return who
}

// secretMethod is how a client secret is shown: in the header unless a takes it in the
// form only (RFC 8414 section 2: basic where it doesn't say).
func secretMethod(a *authority) string {
	if slices.Contains(a.methods, methodPost) && !slices.Contains(a.methods, methodBasic) {
		return methodPost
	}
	return methodBasic
}

// register makes us a client of a (RFC 7591). What for is that of a server with a
// browser's help, or on the user's own machine (SEP-837).
func (c *Client) register(ctx context.Context, a *authority) (identity, error) {
	method := methodNone
	if a.methods == nil || slices.Contains(a.methods, methodBasic) || slices.Contains(a.methods, methodPost) {
		method = secretMethod(a)
	}
	kind := "web"
	if u, err := url.Parse(c.cfg.RedirectURL); err == nil && u.Scheme == "http" {
		kind = "native" // which http is for: loopback only (OpenID Connect Registration section 2)
	}
	body, err := json.Marshal(map[string]any{
		"client_name": "answerd", "application_type": kind, "redirect_uris": []string{c.cfg.RedirectURL},
		"grant_types": []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"},
		"token_endpoint_auth_method": method, "dpop_bound_access_tokens": c.key != nil,
	})
	if err != nil {
		return identity{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.register, bytes.NewReader(body))
	if err != nil {
		return identity{}, wrong("%s cannot be asked", registration)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	got, err := auth.Do(c.egress.to(a.register, a.trusted), req, registration, maxRegistration)
	if err != nil {
		return identity{}, err
	}
	if got.Status != http.StatusCreated && got.Status != http.StatusOK {
		return identity{}, &auth.FetchError{Public: registration + " refused us", Status: got.Status}
	}
	return readRegistration(got.Body, method)
}

// readRegistration reads who we have become. asked is the method that we wished for,
// which the server may change.
func readRegistration(body []byte, asked string) (identity, error) {
	var w struct {
		ID      string  `json:"client_id"`
		Secret  string  `json:"client_secret"`
		Expires float64 `json:"client_secret_expires_at"`
		Method  string  `json:"token_endpoint_auth_method"`
	}
	if json.Unmarshal(body, &w) != nil || w.ID == "" || len(w.ID) > maxClientID || len(w.Secret) > maxClientID {
		return identity{}, wrong("%s gave no client id", registration)
	}
	who := identity{id: w.ID, secret: auth.NewSecret(w.Secret), method: asked, expires: time.Now().Add(registeredFor)}
	if w.Method != "" {
		who.method = w.Method
	}
	if !slices.Contains([]string{methodBasic, methodPost, methodNone}, who.method) || who.method != methodNone && w.Secret == "" {
		return identity{}, wrong("%s wants us to authenticate in a way that is not known here", registration)
	}
	if end := time.Unix(int64(min(w.Expires, 1e11)), 0); w.Expires > 0 && end.Before(who.expires) {
		who.expires = end
	}
	return who, nil
}

// sign makes a token request who's, as far as the form can.
func (c *Client) sign(form url.Values, a *authority, who identity) error {
	switch who.method {
	case methodBasic:
		return nil // in the header
	case methodPost:
		form.Set("client_secret", who.secret.Reveal())
	case methodKey:
		assertion, err := c.assertion(a, who)
		if err != nil {
			return err
		}
		form.Set("client_assertion_type", assertionType)
		form.Set("client_assertion", assertion)
	}
	if who.id != "" {
		form.Set("client_id", who.id)
	}
	return nil
}

// assertion is a JWT that says that we are who (RFC 7523 section 2.2). Its audience is
// the issuer and nothing else (RFC 7523bis): one that was meant for another server is
// good there only.
func (c *Client) assertion(a *authority, who identity) (string, error) {
	text, err := c.cfg.PrivateKey.read("the private key")
	if err != nil {
		return "", err
	}
	key, method, err := ParsePrivateKey(text)
	if err != nil {
		return "", &auth.FetchError{Public: err.Error()}
	}
	audience := a.issuer
	if audience == "" {
		audience = a.token
	}
	now := time.Now()
	signed, err := jwt.NewWithClaims(method, jwt.MapClaims{
		"iss": who.id, "sub": who.id, "aud": audience, "jti": rand.Text(),
		"iat": now.Unix(), "exp": now.Add(assertionLife).Unix(),
	}).SignedString(key)
	if err != nil {
		return "", wrong("the private key cannot sign")
	}
	return signed, nil
}

// ParsePrivateKey reads a key in PEM: PKCS #8, SEC 1 or PKCS #1, of RSA with 2048 bits or
// more, ECDSA over P-256, P-384 or P-521, or Ed25519. The error quotes nothing.
func ParsePrivateKey(text string) (crypto.Signer, jwt.SigningMethod, error) {
	block, _ := pem.Decode([]byte(strings.TrimSpace(text)))
	if block == nil {
		return nil, nil, wrong("the private key is not PEM")
	}
	var key any
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		if key, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		}
	}
	if err != nil {
		return nil, nil, wrong("the private key cannot be read")
	}
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		methods := map[elliptic.Curve]jwt.SigningMethod{
			elliptic.P256(): jwt.SigningMethodES256, elliptic.P384(): jwt.SigningMethodES384, elliptic.P521(): jwt.SigningMethodES512,
		}
		if m := methods[k.Curve]; m != nil {
			return k, m, nil
		}
	case *rsa.PrivateKey:
		if k.N.BitLen() >= 2048 {
			return k, jwt.SigningMethodRS256, nil
		}
	case ed25519.PrivateKey:
		return k, jwt.SigningMethodEdDSA, nil
	}
	return nil, nil, wrong("the private key is of no kind that can be used")
}
