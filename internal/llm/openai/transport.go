package openai

import (
	"io"
	"net/http"
)

// endpointTransport sends the requests, below openai-go and below what Config.Transport wraps.
type endpointTransport struct{ next roundTripper }

// roundTripper is an *http.Transport, or one with certificates from files.
type roundTripper interface {
	http.RoundTripper
	CloseIdleConnections()
}

// RoundTrip sends the request's body as it was before openai-go and otelhttp wrapped it.
// net/http writes a body of a type that it doesn't know in a second write, through a buffer
// of 32 kB: a small request took 160 µs in place of 125. And RoundTrip bounds the body of an
// error reply, which openai-go reads to its end.
func (t endpointTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		wrapped := r.Body
		defer wrapped.Close()
		r = r.WithContext(r.Context()) // a copy: a RoundTripper may not change its request
		r.Body = body
	}
	res, err := t.next.RoundTrip(r)
	if err == nil && res.StatusCode >= 400 {
		res.Body = limitedBody{io.LimitReader(res.Body, maxErrorBody), res.Body}
	}
	return res, err
}

// limitedBody reads from one and closes another: a limited reader has no Close.
type limitedBody struct {
	io.Reader
	io.Closer
}
