// Package issuer reads the metadata of an authorization server that the configuration names (RFC 8414, OpenID
// Connect Discovery 1.0).
//
//	source := issuer.Source{Issuer: "https://iam.example", Name: "the metadata of AUTH_ISSUER", Client: client}
//	document, err := source.Read(ctx)
//	keySet, ok := document.Endpoint("jwks_uri")
//
// A Cache keeps what a caller needs of the document. An issuer of this package never comes from an MCP server:
// otherwise a server could name its own authorization server and get the client secret, as with the handler of
// the go-sdk. Source, Document and Cache may be used concurrently.
package issuer

import (
	"context"
	"net/http"
	"time"

	"answerd/internal/auth/fetch"
	"answerd/internal/auth/strictjson"
)

// refresh is the time after which a Cache reads the metadata again.
const refresh = time.Hour

// Source describes the metadata to read.
type Source struct {
	Issuer string       // the issuer's URL
	Name   string       // names the metadata in errors
	Client *http.Client // one of fetch.NewClient, which follows no redirects
	// OtherIssuer is appended to the error about a document of another issuer, to say what to do; it may be "".
	OtherIssuer string
}

// Document is the metadata of an issuer.
type Document struct {
	strictjson.Object
	issuer string
}

// Read fetches the metadata, within fetch.Timeout. It refuses a document whose issuer is not exactly s.Issuer (RFC 8414
// section 3.3): the endpoints of another issuer must not get secrets or codes of this one, and its keys must not verify
// tokens. Errors are *fetch.Error.
func (s Source) Read(ctx context.Context) (Document, error) {
	ctx, cancel := context.WithTimeout(ctx, fetch.Timeout)
	defer cancel()
	body, err := fetch.Metadata(ctx, s.Client, s.Issuer, s.Name)
	if err != nil {
		return Document{}, err
	}
	members, err := strictjson.Parse(body)
	if err != nil {
		return Document{}, s.Unusable("is not the JSON of RFC 8414")
	}
	if issuer, err := members.String("issuer"); err != nil || issuer != s.Issuer {
		return Document{}, s.Unusable("names another issuer" + s.OtherIssuer)
	}
	return Document{members, s.Issuer}, nil
}

// Unusable returns the error for a document that cannot be used. problem continues a sentence that begins with s.Name,
// such as "names no token endpoint".
func (s Source) Unusable(problem string) error { return &fetch.Error{Public: s.Name + " " + problem} }

// Endpoint returns the URL in the member with that name. It returns false if there is no such URL, or if neither a
// secret nor a browser may be sent there (fetch.CheckEndpoint, fetch.EndpointAllowed).
func (d Document) Endpoint(name string) (string, bool) {
	found, err := d.String(name)
	if err != nil || fetch.CheckEndpoint("", found) != nil || !fetch.EndpointAllowed(d.issuer, found) {
		return "", false
	}
	return found, true
}

// Cache stores a value from the metadata, and reads it again after an hour while callers use the old value.
type Cache[T any] struct {
	name   string
	values *fetch.Cache[dated[T]]
}

// dated is a value and the time when it was read. The zero time means that no value is known.
type dated[T any] struct {
	value  T
	readAt time.Time
}

// NewCache returns a Cache of the value that read returns. read calls Source.Read and must end with its context.
// NewCache does not send a request. name names the metadata in errors. The caller must Close the Cache.
func NewCache[T any](name string, read func(context.Context) (T, error)) *Cache[T] {
	return &Cache[T]{name, fetch.NewCache(func(ctx context.Context) (dated[T], error) {
		value, err := read(ctx)
		if err != nil {
			return dated[T]{}, err
		}
		return dated[T]{value, time.Now()}, nil
	}, fetch.Policy{})}
}

// Close cancels a request in flight and waits for it.
func (c *Cache[T]) Close() { c.values.Close() }

// Get returns the value. It waits only while no value is known; the error is then that of read, or wraps that of ctx. A
// failure to read a known value again is not an error: Get returns the known value.
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
