package token

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/strictjson"
)

const (
	metadataName    = "the issuer's metadata"
	maxMetadata     = 256 << 10 // bytes
	metadataRefresh = time.Hour // after which a token endpoint is looked up again
)

// issuerMetadata finds the token endpoint of an issuer that the configuration names (RFC 8414).
// The issuer never comes from an MCP server: otherwise a server could name its own authorization
// server and get the client secret, as with the handler of the go-sdk.
type issuerMetadata struct {
	issuer    string
	client    *http.Client
	endpoints *fetch.Cache[endpoint]
}

// endpoint is a token endpoint and the time when it was found. An empty url means that it is
// unknown.
type endpoint struct {
	url   string
	found time.Time
}

// newIssuerMetadata does not send a request yet.
func newIssuerMetadata(issuer string, client *http.Client) *issuerMetadata {
	m := &issuerMetadata{issuer: issuer, client: client}
	m.endpoints = fetch.NewCache(m.fetchEndpoint, fetch.Policy{})
	return m
}

// tokenEndpoint returns the URL of the token endpoint. It waits under ctx only while that is
// unknown. A known endpoint is used until newer metadata could be read. Errors are *fetch.Error,
// or the context's.
func (m *issuerMetadata) tokenEndpoint(ctx context.Context) (string, error) {
	found, err := m.endpoints.Get(ctx, metadataName, func(e endpoint) fetch.State {
		switch {
		case e.url == "":
			return fetch.Expired
		case time.Since(e.found) >= metadataRefresh:
			return fetch.RefreshDue
		}
		return fetch.Fresh
	})
	return found.url, err
}

// fetchEndpoint fetches the metadata and returns the token endpoint in it.
func (m *issuerMetadata) fetchEndpoint(ctx context.Context) (endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, fetch.Timeout)
	defer cancel()
	body, err := FetchMetadata(ctx, m.client, m.issuer, metadataName)
	if err != nil {
		return endpoint{}, err
	}
	return m.parseEndpoint(body)
}

// parseEndpoint returns the token endpoint in the document. The document must name exactly the
// issuer that was asked (RFC 8414 section 3.3); otherwise it belongs to another issuer.
func (m *issuerMetadata) parseEndpoint(body []byte) (endpoint, error) {
	document, err := strictjson.Parse(body)
	if err != nil {
		return endpoint{}, &fetch.Error{Public: metadataName + " is not the JSON of RFC 8414"}
	}
	if issuer, err := document.String("issuer"); err != nil || issuer != m.issuer {
		return endpoint{}, &fetch.Error{Public: metadataName + " names another issuer"}
	}
	tokenURL, err := document.String("token_endpoint")
	if err != nil || fetch.CheckEndpoint("", tokenURL) != nil || !EndpointAllowed(m.issuer, tokenURL) {
		return endpoint{}, &fetch.Error{Public: metadataName + " names no token endpoint that a secret may be sent to"}
	}
	return endpoint{tokenURL, time.Now()}, nil
}

// FetchMetadata returns the first metadata document at the URLs where an issuer may publish it, in
// the order of the MCP specification (basic/authorization). It does not check the document. The
// subject names the document in errors, which are *fetch.Error.
func FetchMetadata(ctx context.Context, client *http.Client, issuer, subject string) ([]byte, error) {
	notFound := &fetch.Error{Public: subject + " was not found at any well-known URL"}
	for _, metadataURL := range metadataURLs(issuer) {
		reply, err := fetch.Get(ctx, client, metadataURL, subject, maxMetadata)
		switch {
		case err != nil:
			return nil, err
		case reply.Status == http.StatusOK:
			return reply.Body, nil
		}
		notFound = &fetch.Error{Public: subject + " cannot be read", Status: reply.Status}
		if reply.Status/100 != 4 {
			return nil, notFound // the document may exist: another URL must not take its place
		}
	}
	return nil, notFound
}

// EndpointAllowed reports whether the metadata of an issuer may name this endpoint: one of the
// issuer's own origin, or any https URL. An issuer elsewhere must not name a port of this machine.
func EndpointAllowed(issuer, endpointURL string) bool {
	i, errIssuer := url.Parse(issuer)
	e, errEndpoint := url.Parse(endpointURL)
	return errIssuer == nil && errEndpoint == nil && (e.Scheme == "https" || e.Scheme == i.Scheme && e.Host == i.Host)
}

// metadataURLs returns the URLs of an issuer's metadata: those of RFC 8414 section 3.1, also with
// the suffix of OpenID Connect, and that of OpenID Connect Discovery 1.0 section 4. The last two
// differ only for an issuer with a path.
func metadataURLs(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil // CheckTokenEndpoint has refused it
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	origin := u.Scheme + "://" + u.Host
	urls := []string{
		origin + "/.well-known/oauth-authorization-server" + path,
		origin + "/.well-known/openid-configuration" + path,
	}
	if path != "" {
		urls = append(urls, origin+path+"/.well-known/openid-configuration")
	}
	return urls
}
