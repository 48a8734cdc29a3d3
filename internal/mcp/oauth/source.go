package oauth

import (
	"context"
	"errors"
	"io"
	"net/http"

	"answerd/internal/auth"
)

// maxSends is how often one request is sent: without a token, with one, with a nonce,
// with a renewed token, and with one of more rights. A server that always refuses gets
// no more (F18).
const maxSends = 5

// Source is the tokens of one principal. It may be used concurrently.
type Source struct {
	c  *Client
	id auth.Identity
}

// Send sends r with a token of the principal's, if he has one or one can be got without
// asking anybody, and again after a refusal that a token, a renewed one or one of more
// rights may help. r is changed, and must have a body that can be got again, or none. The
// reply is the server's last word. Errors are *Error, of a request that was not carried
// out, or next's.
func (s *Source) Send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	h, err := s.c.take(s.id)
	if err != nil {
		closeBody(r)
		return nil, failed(err)
	}
	defer s.c.release(h)
	token, err := h.token(r.Context())
	if err != nil {
		closeBody(r)
		return nil, failed(err)
	}
	t := try{h: h}
	for sends := 1; ; sends++ {
		if err := s.c.dress(r, token); err != nil {
			closeBody(r)
			return nil, failed(err)
		}
		resp, err := next.RoundTrip(r)
		if err == nil && s.c.key != nil {
			t.fresh = s.c.key.hear(r.URL, resp.Header)
		}
		if err != nil || resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden || sends == maxSends {
			return resp, err
		}
		better, err := t.refused(r, resp, token)
		if errors.Is(err, errFinal) {
			return resp, nil
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxChallenge))
		_ = resp.Body.Close()
		if err != nil {
			return nil, err
		}
		token = better
		if r, err = again(r); err != nil {
			return nil, &Error{Public: "the request cannot be sent again", Err: err}
		}
	}
}

// token is the one to send with; zero where the server is to be asked for a challenge.
func (h *holder) token(ctx context.Context) (auth.Secret, error) {
	if token, ok := h.kept.Cached(); !ok && h.waits() {
		return auth.Secret{}, nil
	} else if ok && h.c.cfg.Kind == AuthorizationCode && !h.refreshable() {
		return token, nil // there is none to refresh it with
	}
	return h.kept.Token(ctx)
}

func (h *holder) refreshable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.grant.refresh.IsZero()
}

// dress puts token on r, with a proof of our key where it is bound to it.
func (c *Client) dress(r *http.Request, token auth.Secret) error {
	r.Header.Del("DPoP")
	if token.IsZero() {
		return nil
	}
	if c.key == nil {
		r.Header.Set("Authorization", "Bearer "+token.Reveal())
		return nil
	}
	r.Header.Set("Authorization", "DPoP "+token.Reveal())
	return c.key.prove(r, token)
}

// again is r as it can be sent once more.
func again(r *http.Request) (*http.Request, error) {
	out := r.Clone(r.Context())
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		out.Body = body
	}
	return out, nil
}

// closeBody is what a RoundTripper owes for a request that it doesn't send.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
