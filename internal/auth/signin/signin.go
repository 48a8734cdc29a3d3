// Package signin finds out where people sign in at the issuer of callers' tokens. A page in their browser then gets a
// token there, with an authorization code and PKCE.
//
//	d := signin.NewDiscovery(issuer, client, logger)
//	defer d.Close()
//	endpoints, err := d.Endpoints(ctx)
//
// A Discovery may be used concurrently. Endpoints waits, until its context ends, only if no endpoints are known.
package signin

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"

	"answerd/internal/auth/issuer"
)

// Endpoints has the parts of an issuer's metadata that a browser needs to sign in (RFC 8414 section 2, OpenID Connect
// Discovery 1.0 section 3).
type Endpoints struct {
	Authorization string
	Token         string
	EndSession    string // where users sign out at the issuer; "" if there is no such page
	// IssuerInResponse means that every authorization response has the parameter iss (RFC 9207 section 3).
	IssuerInResponse bool
	// OpenID means that the metadata lists the scope openid or lists no scopes, so openid can be requested.
	OpenID bool
}

// Discovery finds one issuer's sign-in endpoints.
type Discovery struct {
	source    issuer.Source
	logger    *slog.Logger
	endpoints *issuer.Cache[Endpoints]
	known     atomic.Bool // read has succeeded, so endpoints has a value
}

// NewDiscovery returns a Discovery for the issuer called name. It sends no request before Endpoints is called. client
// must come from fetch.NewClient. Callers must call Close.
func NewDiscovery(name string, client *http.Client, logger *slog.Logger) *Discovery {
	d := &Discovery{source: issuer.Source{Issuer: name, Name: "the metadata of AUTH_ISSUER", Client: client}, logger: logger}
	d.endpoints = issuer.NewCache(d.source.Name, d.read)
	return d
}

// Close cancels a request in flight, and waits until it has ended.
func (d *Discovery) Close() { d.endpoints.Close() }

// Endpoints returns the issuer's endpoints. It waits only if none are known. If the known endpoints are more than an
// hour old, it returns them and starts to read them again. Errors are *fetch.Error, or wrap that of ctx.
func (d *Discovery) Endpoints(ctx context.Context) (Endpoints, error) { return d.endpoints.Get(ctx) }

// read requests the metadata and returns its endpoints. It logs a failure, and says whether known endpoints stay in use.
func (d *Discovery) read(ctx context.Context) (endpoints Endpoints, _ error) {
	document, err := d.source.Read(ctx)
	if err == nil {
		endpoints, err = d.parse(document)
	}
	switch {
	case err == nil:
		d.known.Store(true)
	case d.known.Load():
		d.logger.WarnContext(ctx, "the metadata for the console's sign-in cannot be read again; the last one is used", "error", err.Error())
	default:
		d.logger.WarnContext(ctx, "the console offers no sign-in", "error", err.Error())
	}
	return endpoints, err
}

// parse returns the endpoints in the document. It returns an error if a browser cannot sign in with them, because the
// authorization or token endpoint is missing or must not be used, or because PKCE with S256 is not supported.
func (d *Discovery) parse(document issuer.Document) (Endpoints, error) {
	authorization, okAuthorization := document.Endpoint("authorization_endpoint")
	token, okToken := document.Endpoint("token_endpoint")
	if !okAuthorization || !okToken {
		return Endpoints{}, d.source.UnusableError("names no https addresses of an authorization endpoint and a token endpoint")
	}
	// Servers older than RFC 8414 do not list the methods, but most of them support S256.
	methods, err := document.Strings("code_challenge_methods_supported")
	hasS256 := methods == nil || slices.Contains(methods, "S256")
	if err != nil || !hasS256 {
		return Endpoints{}, d.source.UnusableError("does not list S256 among the methods of PKCE")
	}
	endSession, _ := document.Endpoint("end_session_endpoint")
	scopes, scopesErr := document.Strings("scopes_supported")
	listsOpenID := scopes == nil || slices.Contains(scopes, "openid")
	return Endpoints{
		Authorization:    authorization,
		Token:            token,
		EndSession:       endSession,
		IssuerInResponse: string(document.Object["authorization_response_iss_parameter_supported"]) == "true",
		OpenID:           scopesErr == nil && listsOpenID,
	}, nil
}
