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
	maxPages = 256            // pages of one list; its elements or bytes are bounded too
	maxTTL   = 24 * time.Hour // larger values of ttlMs count as this
)

// RequestFunc sends one request, for example with callMethod, and returns its result as received.
type RequestFunc func(*Request) (json.RawMessage, *transport.Failure)

// Do calls send with a new Request in the session, and returns its result. The Request ends with ctx and at deadline.
// tokens adds a bearer token; if it is nil, the session's token is used. Do is not for tools/call and resources/read.
func (s *Session) Do(ctx context.Context, tokens transport.Sender, deadline time.Time, send RequestFunc) (json.RawMessage, *transport.Failure) {
	request := NewRequest(ctx, s.pool.Life, deadline, s)
	defer request.Finish()
	request.Tokens = tokens
	return send(request)
}

// resultHeader has the members that all kinds of results have (2026-07-28).
type resultHeader struct {
	ResultType string          `json:"resultType"`
	TTLMs      json.RawMessage `json:"ttlMs"` // raw, so that an invalid value does not make decoding fail
}

// isComplete reports whether the result is final, and not for example input_required. Before 2026-07-28 all results
// are final and have no type.
func (h *resultHeader) isComplete() bool { return h.ResultType == "" || h.ResultType == "complete" }

// ttl returns how long the result with header h may be cached according to its ttlMs, at most maxTTL. It returns 0 if
// ttlMs is absent or invalid, and before 2026-07-28, when ttlMs has no meaning.
func (s *Session) ttl(h *resultHeader) time.Duration {
	ms, err := strconv.ParseFloat(string(h.TTLMs), 64)
	if err != nil || ms <= 0 || s.Protocol() < transport.StatelessVersion {
		return 0
	}
	return time.Duration(min(ms, float64(maxTTL/time.Millisecond))) * time.Millisecond
}

// rawResult is an SDK result type that keeps the result's JSON as received.
type rawResult struct {
	sdk.ResultBase
	raw json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler. It keeps a copy of data.
func (r *rawResult) UnmarshalJSON(data []byte) error {
	r.raw = bytes.Clone(data)
	return nil
}

// callMethod sends one message of request through the SDK, waits for the answer, and returns the result as received.
// method is one of rawMethods.
func callMethod[P interface {
	*T
	sdk.Params
}, T any](request *Request, method string, params P) (json.RawMessage, *transport.Failure) {
	res, err := sdk.CallCustomMethod[P, *rawResult](request.Context(), request.session.cs, transport.MethodPrefix+method, params)
	if err != nil {
		return nil, request.Failure(err)
	}
	return res.raw, nil
}
