package fetch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// maxMetadata bounds a metadata document, in bytes.
const maxMetadata = 256 << 10

// Metadata returns the first metadata document at the URLs where an issuer may publish it, in
// the order of the MCP specification (basic/authorization). It does not check the document. The
// subject names the document in errors, which are *fetch.Error.
//
// A redirect, and a page that is not a JSON object, mean like a 4xx that there is no document: issuers that
// are web applications answer every path in that way, and may have the document of OpenID Connect only.
func Metadata(ctx context.Context, client *http.Client, issuer, subject string) ([]byte, error) {
	notFound, noDocument := &Error{Public: subject + " was not found at any well-known URL"}, (*Error)(nil)
	for _, metadataURL := range metadataURLs(issuer) {
		reply, err := Get(ctx, client, metadataURL, subject, maxMetadata)
		refused, _ := errors.AsType[*Error](err)
		switch {
		case refused != nil && refused.Status/100 == 3:
			noDocument = refused
		case err != nil:
			return nil, err
		case reply.Status == http.StatusOK && bytes.HasPrefix(bytes.TrimLeft(reply.Body, " \t\r\n"), []byte("{")):
			return reply.Body, nil
		case reply.Status == http.StatusOK:
			noDocument = &Error{Public: subject + " is not JSON", Status: reply.Status}
		default:
			notFound = &Error{Public: subject + " cannot be read", Status: reply.Status}
			if !IsAbsent(reply.Status) {
				return nil, notFound // the document may exist: another URL must not take its place
			}
		}
	}
	return nil, cmp.Or(noDocument, notFound)
}

// IsAbsent reports whether the status of a reply means that there is no document at the URL: a 4xx, except
// those that ask to try again later (RFC 9110 section 15.5.9, RFC 8470 section 5.2, RFC 6585 section 4).
func IsAbsent(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status/100 == 4
}

// EndpointAllowed reports whether the metadata of an issuer may name this endpoint: one of the
// issuer's own origin, or any https URL. An issuer elsewhere must not name a port of this machine.
func EndpointAllowed(issuer, endpointURL string) bool {
	issuerURL, errIssuer := url.Parse(issuer)
	endpoint, errEndpoint := url.Parse(endpointURL)
	if errIssuer != nil || errEndpoint != nil {
		return false
	}
	isSameOrigin := endpoint.Scheme == issuerURL.Scheme && endpoint.Host == issuerURL.Host
	return endpoint.Scheme == "https" || isSameOrigin
}

// metadataURLs returns the URLs of an issuer's metadata: those of RFC 8414 section 3.1, also with
// the suffix of OpenID Connect, and that of OpenID Connect Discovery 1.0 section 4. The last two
// differ only for an issuer with a path.
func metadataURLs(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil // CheckEndpoint has refused it
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
