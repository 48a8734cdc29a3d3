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

// Source says whose metadata is read.
type Source struct {
	Issuer string
	Name   string       // names the metadata in errors
	Client *http.Client // one of fetch.NewClient
	// OtherIssuer is what to do about a document of another issuer, for the error; it may be "".
	OtherIssuer string
}

// Document is the metadata of an issuer.
type Document struct {
	strictjson.Object
	issuer string
}

// Read fetches the metadata. The document must name exactly the issuer that was asked (RFC 8414 section 3.3);
// otherwise it belongs to another one, which must get no secret and no code of this one, and whose keys must
// not verify tokens. Errors are *fetch.Error, or the context's.
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

// Unusable returns the error about a document that lacks something. problem begins with a verb.
func (s Source) Unusable(problem string) error { return &fetch.Error{Public: s.Name + " " + problem} }

// Endpoint returns a URL of the document, and whether a secret or a browser may be sent there.
func (d Document) Endpoint(name string) (string, bool) {
	found, err := d.String(name)
	if err != nil || fetch.CheckEndpoint("", found) != nil || !fetch.EndpointAllowed(d.issuer, found) {
		return "", false
	}
	return found, true
}

// Cache stores a value from the metadata. A known value is used at once, and read again after an hour.
type Cache[T any] struct {
	name   string
	values *fetch.Cache[dated[T]]
}

// dated is a value and the time when it was read. The zero time means that no value is known.
type dated[T any] struct {
	value T
	read  time.Time
}

// NewCache returns a Cache of what read returns, which calls Source.Read. It does not send a request yet. name
// names the metadata in errors. The caller must Close the Cache.
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

// Get returns the value. It waits under ctx only while none is known. Errors are those of read, or the context's.
func (c *Cache[T]) Get(ctx context.Context) (T, error) {
	found, err := c.values.Get(ctx, c.name, func(d dated[T]) fetch.State {
		switch {
		case d.read.IsZero():
			return fetch.Expired
		case time.Since(d.read) >= refresh:
			return fetch.RefreshDue
		}
		return fetch.Fresh
	})
	return found.value, err
}
