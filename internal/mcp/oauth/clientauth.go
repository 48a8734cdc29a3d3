package oauth

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
)

// Client authentication methods (RFC 7591 section 2, OpenID Connect Core section 9).
const (
	methodBasic = "client_secret_basic"
	methodPost  = "client_secret_post"
	methodNone  = "none"
	methodKey   = "private_key_jwt"
)

// configuredClient returns the client that the configuration names, with the authentication method that fits its
// credentials and server.
func (c *Client) configuredClient(server *authServer) clientIdentity {
	client := clientIdentity{id: c.cfg.ClientID, secret: c.cfg.ClientSecret}
	switch {
	case !c.cfg.PrivateKey.IsZero():
		client.method = methodKey
	case client.secret.IsZero():
		client.method = methodNone
	default:
		client.method = secretAuthMethod(server)
	}
	return client
}

// secretAuthMethod returns the method with which a configured client secret is sent first: methodPost if server
// accepts it only in the form, otherwise methodBasic, which is also the default if server states no methods (RFC 8414
// section 2).
func secretAuthMethod(server *authServer) string {
	if slices.Contains(server.AuthMethods, methodPost) && !slices.Contains(server.AuthMethods, methodBasic) {
		return methodPost
	}
	return methodBasic
}

// registeredAuthMethod returns the authentication method for the registration of a new client at server. It prefers
// methodPost, because servers built with the Python SDK, such as FastMCP servers, look for the client only in the form.
func registeredAuthMethod(server *authServer) string {
	switch {
	case slices.Contains(server.AuthMethods, methodPost):
		return methodPost
	case server.AuthMethods == nil, slices.Contains(server.AuthMethods, methodBasic):
		return methodBasic
	}
	return methodNone
}

// mayUsePost reports whether a request of g.client that g.server refused with reply should be repeated with methodPost:
// the request used methodBasic, the server did not accept the client, and its metadata lists methodPost. Some servers
// list both methods but accept a client only by one of them. Sending the client id in the form in addition to the
// header is not an alternative, because some servers refuse that.
func (g *grant) mayUsePost(reply fetch.Reply) bool {
	isClientRefused := token.ErrorCode(reply.Body) == codeInvalidClient
	return g.client.method == methodBasic && isClientRefused && slices.Contains(g.server.AuthMethods, methodPost)
}

// addClientAuth adds to form, the parameters of a request to server, those that identify and authenticate client. For
// methodBasic it adds nothing, because newClientRequest sends id and secret in the Authorization header.
func (c *Client) addClientAuth(form url.Values, server *authServer, client clientIdentity) error {
	switch client.method {
	case methodBasic:
		return nil
	case methodPost:
		form.Set("client_secret", client.secret.Reveal())
	case methodKey:
		assertion, err := c.clientAssertion(server, client)
		if err != nil {
			return err
		}
		form.Set("client_assertion_type", assertionType)
		form.Set("client_assertion", assertion)
	}
	if client.id != "" {
		form.Set("client_id", client.id)
	}
	return nil
}

const (
	minRSABits        = 2048 // RFC 7518 section 3.3
	assertionType     = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	assertionLifetime = time.Minute
)

// clientAssertion returns a JWT that authenticates client (RFC 7523 section 2.2). Its audience is only the issuer
// (draft-ietf-oauth-rfc7523bis), or the token endpoint if no issuer is configured, so that no other server can use it.
// It reads the private key for each assertion, because the key's file may be replaced.
func (c *Client) clientAssertion(server *authServer, client clientIdentity) (string, error) {
	text, err := c.cfg.PrivateKey.readText("the private key")
	if err != nil {
		return "", err
	}
	key, method, err := ParsePrivateKey(text)
	if err != nil {
		return "", &fetch.Error{Public: err.Error()}
	}
	now := time.Now()
	assertion := jwt.NewWithClaims(method, jwt.MapClaims{
		"iss": client.id,
		"sub": client.id,
		"aud": cmp.Or(server.Issuer, server.TokenURL),
		"jti": rand.Text(),
		"iat": now.Unix(),
		"exp": now.Add(assertionLifetime).Unix(),
	})
	signed, err := assertion.SignedString(key)
	if err != nil {
		return "", fetchErrorf("the private key cannot sign")
	}
	return signed, nil
}

// ParsePrivateKey decodes a private key in PEM (PKCS #8, SEC 1 or PKCS #1): RSA with 2048 bits or more, ECDSA over
// P-256, P-384 or P-521, or Ed25519. It also returns the algorithm to sign with. The error does not quote the key.
//
// It skips other PEM blocks before the key, as crypto/tls does: openssl ecparam -genkey writes the curve's parameters
// first, and a file may begin with the certificate.
func ParsePrivateKey(text string) (crypto.Signer, jwt.SigningMethod, error) {
	block, rest := pem.Decode([]byte(strings.TrimSpace(text)))
	if block == nil {
		return nil, nil, fetchErrorf("the private key is not PEM")
	}
	for !strings.HasSuffix(block.Type, "PRIVATE KEY") {
		block, rest = pem.Decode(rest)
		if block == nil {
			return nil, nil, fetchErrorf("the PEM has no private key")
		}
	}
	key, err := decodePrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, fetchErrorf("the private key cannot be read")
	}

	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		methods := map[elliptic.Curve]jwt.SigningMethod{
			elliptic.P256(): jwt.SigningMethodES256,
			elliptic.P384(): jwt.SigningMethodES384,
			elliptic.P521(): jwt.SigningMethodES512,
		}
		if method := methods[k.Curve]; method != nil {
			return k, method, nil
		}
	case *rsa.PrivateKey:
		if k.N.BitLen() >= minRSABits {
			return k, jwt.SigningMethodRS256, nil
		}
	case ed25519.PrivateKey:
		return k, jwt.SigningMethodEdDSA, nil
	}
	return nil, nil, fetchErrorf("the private key is of an unsupported type")
}

// decodePrivateKey decodes a private key in DER: PKCS #8, SEC 1 or PKCS #1.
func decodePrivateKey(der []byte) (key any, err error) {
	if key, err = x509.ParsePKCS8PrivateKey(der); err == nil {
		return key, nil
	}
	if key, err = x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	return x509.ParsePKCS1PrivateKey(der)
}
