package openai

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"

	"answerd/internal/auth/fetch"
)

// endpointTransport sends the requests that openai-go makes. It repeats a request that was lost on an idle connection,
// and limits the size of error replies. Config.Transport may wrap it.
type endpointTransport struct{ next roundTripper }

// roundTripper is an *http.Transport, or the transport of tlsconfig.Source, which reads certificates from files.
type roundTripper interface {
	http.RoundTripper
	CloseIdleConnections()
}

// RoundTrip sends the request. If the request went out on an idle connection that the endpoint had closed, RoundTrip
// sends it once more on a new connection. It also limits the body of an error reply, because openai-go reads that to
// its end.
//
// An endpoint that closes an idle connection has usually not read the request. If it has, the model is asked twice,
// which costs tokens but changes nothing else.
func (t endpointTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	var reused atomic.Bool
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) { reused.Store(c.Reused) },
	})
	res, err := t.send(ctx, r)
	mayRepeat := r.GetBody != nil && ctx.Err() == nil
	if err != nil && mayRepeat && reused.Load() && isClosedByPeer(err) {
		t.next.CloseIdleConnections() // the endpoint has probably closed all idle connections
		res, err = t.send(r.Context(), r)
	}
	err = fetch.WithoutReply(err) // the reply may repeat the key
	if err == nil && res.StatusCode >= 400 {
		res.Body = limitedBody{io.LimitReader(res.Body, maxErrorBody), res.Body}
	}
	return res, err
}

// send sends a copy of the request with a new body from r.GetBody, and closes the body of r. openai-go and otelhttp
// wrap r.Body in types of their own. net/http sends a body of an unknown type in a second write, through a buffer of 32
// kB, which made a small request take 160 µs instead of 125 µs.
func (t endpointTransport) send(ctx context.Context, r *http.Request) (*http.Response, error) {
	r = r.WithContext(ctx) // a copy, because a RoundTripper must not change its request
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		wrapped := r.Body
		defer wrapped.Close()
		r.Body = body
	}
	return t.next.RoundTrip(r)
}

// isClosedByPeer reports whether err, an error from a RoundTripper, says that the endpoint closed the connection before
// the first byte of the reply. net/http itself repeats only requests with an idempotent method, and a POST of which it
// has written nothing.
func isClosedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "server closed idle connection") // net/http does not export it
}

// limitedBody adds Close to a limited reader.
type limitedBody struct {
	io.Reader
	io.Closer
}
