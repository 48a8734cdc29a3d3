// Package issuer reads the metadata of an authorization server from the configuration (RFC 8414, OpenID Connect
// Discovery 1.0).
//
//	source := issuer.Source{Issuer: "https://iam.example", Name: "the metadata of AUTH_ISSUER", Client: client}
//	document, err := source.Read(ctx)
//	keySet, ok := document.Endpoint("jwks_uri")
//
// A Cache keeps the parts of the document that its user needs. The issuer must never come from an MCP server. Otherwise
// a server could name its own authorization server and get the client secret, as with the go-sdk's handler. Source,
// Document and Cache may be used concurrently.
package issuer

import (
	"context"
	"net/http"
	"time"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/strictjson"
)

// refresh is how old the value in a Cache may be before it is read again.
const refresh = time.Hour

// Source says which metadata to read.
type Source struct {
	Issuer string       // the issuer's URL
	Name   string       // what errors call the metadata
	Client *http.Client // made by fetch.NewClient, so that it follows no redirects
	Member string       // the member that the metadata must have; "" if it may lack any (see fetch.Metadata)
	// OtherIssuerHint is appended to the error for a document of another issuer, to say what to do. It may be "".
	OtherIssuerHint string
}

// Document is an issuer's metadata.
type Document struct {
	strictjson.Object
	issuer string
}

// Read fetches the metadata, within fetch.Timeout. It rejects a document whose issuer is not exactly s.Issuer (RFC 8414
// section 3.3), because another issuer's endpoints must not get secrets or codes of this one, and its keys must not
// verify tokens. Errors are *fetch.Error.
func (s Source) Read(ctx context.Context) (Document, error) {
	ctx, cancel := context.WithTimeout(ctx, fetch.Timeout)
	defer cancel()
	body, err := fetch.Metadata(ctx, s.Client, s.Issuer, s.Name, s.Member)
	if err != nil {
		return Document{}, err
	}
	members, err := strictjson.Parse(body)
	if err != nil {
		return Document{}, s.UnusableError("is not the JSON of RFC 8414")
	}
	if issuer, err := members.String("issuer"); err != nil || issuer != s.Issuer {
		return Document{}, s.UnusableError("names another issuer" + s.OtherIssuerHint)
	}
	return Document{members, s.Issuer}, nil
}

// UnusableError returns an error for a document that cannot be used. problem continues a sentence that begins with
// s.Name, such as "names no token endpoint".
func (s Source) UnusableError(problem string) error {
	return &fetch.Error{Public: s.Name + " " + problem}
}

// Endpoint returns the URL in the member called name. The second result is false if there is no such URL, or if neither
// a secret nor a browser may be sent to it (see fetch.AllowsEndpoint).
func (d Document) Endpoint(name string) (string, bool) {
	endpoint, err := d.String(name)
	if err != nil || !fetch.AllowsEndpoint(d.issuer, endpoint) {
		return "", false
	}
	return endpoint, true
}

// Cache stores a value from the metadata. After an hour it reads the value again, and callers get the old value until
// then.
type Cache[T any] struct {
	name   string
	values *fetch.Cache[dated[T]]
}

// dated is a value with the time when it was read. If readAt is zero, no value is known.
type dated[T any] struct {
	value  T
	readAt time.Time
}

// NewCache returns a Cache for the value that read returns. read should call Source.Read, and must end with its
// context. NewCache itself sends no request. name is what errors call the metadata. Callers must call Close.
func NewCache[T any](name string, read func(context.Context) (T, error)) *Cache[T] {
	return &Cache[T]{name, fetch.NewCache(func(ctx context.Context) (dated[T], error) {
		value, err := read(ctx)
		if err != nil {
			return dated[T]{}, err
		}
		return dated[T]{value, time.Now()}, nil
	}, fetch.Policy{})}
}

// Close cancels a request in flight, and waits until it has ended.
func (c *Cache[T]) Close() { c.values.Close() }

// Get returns the value. It waits only if no value is known. The error is then that of read, or it wraps that of ctx.
// If a known value cannot be read again, Get returns the known value without an error.
func (c *Cache[T]) Get(ctx context.Context) (T, error) {
	found, err := c.values.Get(ctx, c.name, func(d dated[T]) fetch.State {
		switch {
		case d.readAt.IsZero():
			return fetch.Expired
		case time.Since(d.readAt) >= refresh:
			return fetch.RefreshDue
		}
		return fetch.Fresh
	})
	return found.value, err
}
