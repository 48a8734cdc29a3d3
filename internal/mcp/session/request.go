package session

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxPages = 256            // of one list, whose elements or bytes are bounded too
	maxTTL   = 24 * time.Hour // bound on the server's ttl for a list or resource
)

// RequestFunc sends one request, such as by ask, and returns its result as received.
type RequestFunc func(*Request) (json.RawMessage, *transport.Failure)

// Do sends a request in the session that is not a tool call. tokens are whose token it
// carries; nil: the session's.
func (s *Session) Do(ctx context.Context, tokens transport.Sender, deadline time.Time, send RequestFunc) (json.RawMessage, *transport.Failure) {
	request := NewRequest(ctx, s.pool.Life, deadline, s)
	defer request.Finish()
	request.Tokens = tokens
	return send(request)
}

// resultHeader is what a result says about itself (2026-07-28).
type resultHeader struct {
	ResultType string          `json:"resultType"`
	TTLMs      json.RawMessage `json:"ttlMs"` // raw, so that a bad one does not hide the rest
}

// isComplete reports whether the result is final. There are no other results before
// 2026-07-28.
func (h *resultHeader) isComplete() bool { return h.ResultType == "" || h.ResultType == "complete" }

// ttl returns how long a result of the session holds; 0 if the server did not say. Before
// 2026-07-28 a ttlMs has no meaning.
func (s *Session) ttl(h *resultHeader) time.Duration {
	ms, err := strconv.ParseFloat(string(h.TTLMs), 64)
	if err != nil || ms <= 0 || s.Protocol() < transport.StatelessVersion {
		return 0
	}
	return time.Duration(min(ms, float64(maxTTL/time.Millisecond))) * time.Millisecond
}

// rawResult is a result as the SDK received it.
type rawResult struct {
	sdk.ResultBase
	raw json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *rawResult) UnmarshalJSON(data []byte) error {
	r.raw = bytes.Clone(data)
	return nil
}

// ask sends a request of request by the SDK and returns its result as received.
func ask[P interface {
	*T
	sdk.Params
}, T any](request *Request, method string, params P) (json.RawMessage, *transport.Failure) {
	res, err := sdk.CallCustomMethod[P, *rawResult](request.Context(), request.session.cs, transport.MethodPrefix+method, params)
	if err != nil {
		return nil, request.Failure(err)
	}
	return res.raw, nil
}
