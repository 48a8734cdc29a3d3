package token

import (
	"context"
	"net/http"
	"time"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/strictjson"
)

const (
	metadataName    = "the issuer's metadata"
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
	body, err := fetch.Metadata(ctx, m.client, m.issuer, metadataName)
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
	if err != nil || fetch.CheckEndpoint("", tokenURL) != nil || !fetch.EndpointAllowed(m.issuer, tokenURL) {
		return endpoint{}, &fetch.Error{Public: metadataName + " names no token endpoint that a secret may be sent to"}
	}
	return endpoint{tokenURL, time.Now()}, nil
}
