// Package signin finds where people sign in at the issuer of callers' tokens. A page that runs in
// their browser then gets a token there, with an authorization code and PKCE.
//
//	d := signin.NewDiscovery(issuer, client, logger)
//	defer d.Close()
//	endpoints, err := d.Endpoints(ctx)
//
// A Discovery may be used concurrently. Endpoints waits under its context, and only while nothing is
// known.
package signin

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/strictjson"
)

const (
	metadata = "the metadata of AUTH_ISSUER"
	refresh  = time.Hour // after which the metadata is read again
)

// Endpoints are the parts of an issuer's metadata that a browser needs to sign in (RFC 8414
// section 2, OpenID Connect Discovery 1.0 section 3).
type Endpoints struct {
	Authorization string
	Token         string
	EndSession    string // where the person signs out at the issuer; "" if there is no such page
	// IssuerInResponse means that every authorization response has iss (RFC 9207 section 3).
	IssuerInResponse bool
	// OpenID means that the scope openid can be requested.
	OpenID bool
}

// document is what the metadata said, and when. The zero document is unknown.
type document struct {
	endpoints Endpoints
	read      time.Time
}

// Discovery finds the endpoints of one issuer.
type Discovery struct {
	issuer   string
	client   *http.Client
	logger   *slog.Logger
	document *fetch.Cache[document]
}

// NewDiscovery does not send a request yet. The client must be one of fetch.NewClient. The caller must
// Close the Discovery.
func NewDiscovery(issuer string, client *http.Client, logger *slog.Logger) *Discovery {
	d := &Discovery{issuer: issuer, client: client, logger: logger}
	d.document = fetch.NewCache(d.fetchDocument, fetch.Policy{})
	return d
}

// Close cancels a request in flight and waits for it.
func (d *Discovery) Close() { d.document.Close() }

// Endpoints returns the endpoints. Known ones are returned at once, and read again after an hour.
// Errors are *fetch.Error, or the context's.
func (d *Discovery) Endpoints(ctx context.Context) (Endpoints, error) {
	doc, err := d.document.Get(ctx, metadata, func(doc document) fetch.State {
		switch {
		case doc.read.IsZero():
			return fetch.Expired
		case time.Since(doc.read) >= refresh:
			return fetch.RefreshDue
		}
		return fetch.Fresh
	})
	return doc.endpoints, err
}

// fetchDocument reads the metadata and logs a failure.
func (d *Discovery) fetchDocument(ctx context.Context) (document, error) {
	ctx, cancel := context.WithTimeout(ctx, fetch.Timeout)
	defer cancel()
	body, err := fetch.Metadata(ctx, d.client, d.issuer, metadata)
	var found Endpoints
	if err == nil {
		found, err = d.parse(body)
	}
	if err != nil {
		d.logger.WarnContext(ctx, "the console offers no sign-in", "error", err.Error())
		return document{}, err
	}
	return document{found, time.Now()}, nil
}

// parse returns the endpoints in the document, which must name exactly the configured issuer
// (RFC 8414 section 3.3): another one's endpoints must get no code of this one.
func (d *Discovery) parse(body []byte) (Endpoints, error) {
	members, err := strictjson.Parse(body)
	if err != nil {
		return Endpoints{}, &fetch.Error{Public: metadata + " is not the JSON of RFC 8414"}
	}
	if issuer, err := members.String("issuer"); err != nil || issuer != d.issuer {
		return Endpoints{}, &fetch.Error{Public: metadata + " names another issuer"}
	}
	authorization, okAuthorization := d.endpoint(members, "authorization_endpoint")
	token, okToken := d.endpoint(members, "token_endpoint")
	if !okAuthorization || !okToken {
		return Endpoints{}, &fetch.Error{Public: metadata + " names no https addresses of an authorization endpoint and a token endpoint"}
	}
	// Servers before RFC 8414 don't list the methods, and most of them know S256.
	if methods, err := members.Strings("code_challenge_methods_supported"); err != nil || methods != nil && !slices.Contains(methods, "S256") {
		return Endpoints{}, &fetch.Error{Public: metadata + " does not list S256 among the methods of PKCE"}
	}
	endSession, _ := d.endpoint(members, "end_session_endpoint")
	scopes, err := members.Strings("scopes_supported")
	return Endpoints{
		Authorization: authorization, Token: token, EndSession: endSession,
		IssuerInResponse: string(members["authorization_response_iss_parameter_supported"]) == "true",
		OpenID:           err == nil && (scopes == nil || slices.Contains(scopes, "openid")),
	}, nil
}

// endpoint returns an endpoint of the document, and whether a browser may be sent there.
func (d *Discovery) endpoint(members strictjson.Object, name string) (string, bool) {
	found, err := members.String(name)
	if err != nil || fetch.CheckEndpoint("", found) != nil || !fetch.EndpointAllowed(d.issuer, found) {
		return "", false
	}
	return found, true
}
