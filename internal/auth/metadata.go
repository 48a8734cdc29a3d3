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

// fetch tries the places where an issuer may publish its metadata, in the order of the
// MCP specification (basic/authorization).
func (m *metadata) fetch(ctx context.Context) (endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var err error
	for _, place := range MetadataPlaces(m.issuer) {
		var got Reply
		if got, err = m.request(ctx, place); err != nil {
			return endpoint{}, err
		}
		if got.Status == http.StatusOK {
			return m.read(got.Body)
		}
		err = &FetchError{Public: metadataEndpoint + " cannot be read", Status: got.Status}
		if got.Status/100 != 4 {
			break // it has some, and cannot give it now
		}
	}
	return endpoint{}, err
}

func (m *metadata) request(ctx context.Context, place string) (Reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, place, nil)
	if err != nil {
		return Reply{}, &FetchError{Public: metadataEndpoint + " cannot be asked for"}
	}
	req.Header.Set("Accept", "application/json")
	return Do(m.client, req, metadataEndpoint, maxMetadata)
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

// MetadataPlaces are the addresses of an issuer's metadata: RFC 8414 section 3.1, the
// same for OpenID Connect, and OpenID Connect Discovery 1.0 section 4, which differ
// only for an issuer with a path.
func MetadataPlaces(issuer string) []string {
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
