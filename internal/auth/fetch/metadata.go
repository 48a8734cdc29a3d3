package fetch

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// maxMetadata is the maximum size of a metadata document in bytes.
const maxMetadata = 256 << 10

// Metadata returns an issuer's metadata document. It tries the URLs where the issuer may publish it, in the order of
// the MCP specification (basic/authorization), and returns the first document. It checks only that the document begins
// like a JSON object. Errors are *Error and call the document subject.
//
// Unless member is "", it skips documents without this member, because RFC 8414 requires fewer members than OpenID
// Connect, and an issuer may publish both documents.
//
// It tries the next URL after a 4xx, after a redirect, and after a page that is not a JSON object. An issuer that is a
// web application may answer every unknown path with a redirect or a page, and publish only the document of OpenID
// Connect. Any other failure ends the search at once.
func Metadata(ctx context.Context, client *http.Client, issuer, subject, member string) ([]byte, error) {
	notFound := &Error{Public: subject + " was not found at any well-known URL"}
	var noDocument *Error // the first redirect, page or skipped document; preferred to notFound, because it says more
	for _, metadataURL := range metadataURLs(issuer) {
		reply, err := Get(ctx, client, metadataURL, subject, maxMetadata)
		fetchErr, _ := errors.AsType[*Error](err) // nil if err is nil, because all errors of Get are *Error
		switch {
		case fetchErr != nil && fetchErr.Status/100 == 3:
			noDocument = cmp.Or(noDocument, fetchErr)
		case err != nil:
			return nil, err
		case reply.Status == http.StatusOK && reply.lacksMember(member):
			noDocument = cmp.Or(noDocument, &Error{Public: subject + " has no " + member})
		case reply.Status == http.StatusOK && reply.IsObject():
			return reply.Body, nil
		case reply.Status == http.StatusOK:
			noDocument = cmp.Or(noDocument, &Error{Public: subject + " is not JSON", Status: reply.Status})
		default:
			notFound = &Error{Public: subject + " cannot be read", Status: reply.Status}
			if !IsAbsent(reply.Status) {
				return nil, notFound // the document may exist, so another one at a later URL must not replace it
			}
		}
	}
	return nil, cmp.Or(noDocument, notFound)
}

// IsAbsent reports whether a reply's status means that there is no document at the URL: a 4xx, except for those that
// ask the client to try again later (RFC 9110 section 15.5.9, RFC 8470 section 5.2, RFC 6585 section 4).
func IsAbsent(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status/100 == 4
}

// AllowsEndpoint reports whether an issuer's metadata may name this endpoint, to which secrets or browsers are sent:
// any https URL, or an http URL with the same origin as the issuer. Thus only an issuer on this machine that uses plain
// http can name an http URL on this machine. CheckEndpoint must accept the URL too.
func AllowsEndpoint(issuer, endpointURL string) bool {
	issuerURL, errIssuer := url.Parse(issuer)
	endpoint, errEndpoint := url.Parse(endpointURL)
	if errIssuer != nil || errEndpoint != nil || CheckEndpoint("the endpoint", endpointURL) != nil {
		return false
	}
	isSameOrigin := endpoint.Scheme == issuerURL.Scheme && endpoint.Host == issuerURL.Host
	return endpoint.Scheme == "https" || isSameOrigin
}

// metadataURLs returns the URLs where an issuer may publish its metadata: that of RFC 8414 section 3.1, the same with
// the suffix of OpenID Connect, and that of OpenID Connect Discovery 1.0 section 4. The last two differ only if the
// issuer has a path.
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
