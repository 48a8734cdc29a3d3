package auth

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	metadataEndpoint = "the issuer's metadata"
	maxMetadata      = 256 << 10 // bytes
	metadataRefresh  = time.Hour // how soon a token endpoint that has moved is found
)

// metadata finds the token endpoint of an issuer that the configuration names (RFC
// 8414). Nothing that an MCP server says leads here: a server whose protected-resource
// metadata named an authorization server of its own was handed the client secret by
// the SDK's handler (facts section 0, finding 3).
type metadata struct {
	issuer    string
	client    *http.Client
	endpoints *renewal[endpoint]
}

// endpoint is a token endpoint, and when it was found.
type endpoint struct {
	url   string
	found time.Time
}

// newMetadata fetches nothing yet.
func newMetadata(issuer string, client *http.Client) *metadata {
	m := &metadata{issuer: issuer, client: client}
	m.endpoints = newRenewal(m.fetch, func(failures int, _ bool) time.Duration {
		if failures == 0 {
			return 0
		}
		return backoff(failures)
	})
	return m
}

// tokenEndpoint is where tokens are asked for. It waits under ctx only while that is
// not known; errors are *FetchError, or ctx's.
func (m *metadata) tokenEndpoint(ctx context.Context) (string, error) {
	m.endpoints.mu.Lock()
	if m.endpoints.have {
		defer m.endpoints.mu.Unlock()
		if time.Since(m.endpoints.value.found) >= metadataRefresh {
			_, _ = m.endpoints.startLocked() // this one will do until it is there
		}
		return m.endpoints.value.url, nil
	}
	under, err := m.endpoints.startLocked()
	m.endpoints.mu.Unlock()
	if err != nil {
		return "", err
	}
	found, err := under.wait(ctx, metadataEndpoint)
	return found.url, err
}

func (m *metadata) fetch(ctx context.Context) (endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := FetchMetadata(ctx, m.client, m.issuer, metadataEndpoint)
	if err != nil {
		return endpoint{}, err
	}
	return m.read(body)
}

// FetchMetadata returns the first metadata document that is found where an issuer may
// publish it, in the order of the MCP specification (basic/authorization). It is not
// checked. Whom names it in errors, which are *FetchError.
func FetchMetadata(ctx context.Context, client *http.Client, issuer, whom string) ([]byte, error) {
	err := &FetchError{Public: whom + " is nowhere"}
	for _, at := range metadataPlaces(issuer) {
		got, failure := Get(ctx, client, at, whom, maxMetadata)
		switch {
		case failure != nil:
			return nil, failure
		case got.Status == http.StatusOK:
			return got.Body, nil
		}
		err = &FetchError{Public: whom + " cannot be read", Status: got.Status}
		if got.Status/100 != 4 {
			break // it has some, and cannot give it now
		}
	}
	return nil, err
}

// read takes the token endpoint out of the document. RFC 8414 section 3.3: the document
// must name the very issuer that it was asked for, letter by letter, or it is somebody
// else's.
func (m *metadata) read(body []byte) (endpoint, error) {
	o, err := parseObject(body)
	if err != nil {
		return endpoint{}, &FetchError{Public: metadataEndpoint + " is not the JSON of RFC 8414"}
	}
	if issuer, err := o.text("issuer"); err != nil || issuer != m.issuer {
		return endpoint{}, &FetchError{Public: metadataEndpoint + " names another issuer"}
	}
	at, err := o.text("token_endpoint")
	if err != nil || CheckEndpoint("", at) != nil || !MayServe(m.issuer, at) {
		return endpoint{}, &FetchError{Public: metadataEndpoint + " names no token endpoint that a secret may be sent to"}
	}
	return endpoint{at, time.Now()}, nil
}

// MayServe reports whether an issuer may send us to that token endpoint: of its own
// origin, or https. An issuer elsewhere must not point at a port of this machine.
func MayServe(issuer, at string) bool {
	i, errI := url.Parse(issuer)
	a, errA := url.Parse(at)
	return errI == nil && errA == nil && (a.Scheme == "https" || a.Scheme == i.Scheme && a.Host == i.Host)
}

// metadataPlaces returns the addresses of an issuer's metadata: RFC 8414 section 3.1, the
// same for OpenID Connect, and OpenID Connect Discovery 1.0 section 4, which differ
// only for an issuer with a path.
func metadataPlaces(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil // CheckTokenEndpoint has refused it
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	origin := u.Scheme + "://" + u.Host
	places := []string{
		origin + "/.well-known/oauth-authorization-server" + path,
		origin + "/.well-known/openid-configuration" + path,
	}
	if path != "" {
		places = append(places, origin+path+"/.well-known/openid-configuration")
	}
	return places
}
