package session

//lint:file-ignore SA1019 2026-07-28 deprecates sampling and roots (SEP-2577); servers still use them.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Multi round-trip requests (2026-07-28 basic/utilities/mrtr): a server answers a request
// with input_required, and gets the request again with what it asked for.

const (
	maxRoundTrips = 10 // of one request, as in the SDK
	// retryWait is the pause before a request is sent again for which the server asked
	// nothing; it doubles with each round trip.
	retryWait = 50 * time.Millisecond
)

// inputRequired is a result that is not complete: the server asks something, or only wants
// the request again.
type inputRequired struct {
	ResultType string                  `json:"resultType"`
	Requests   map[string]inputRequest `json:"inputRequests"`
	State      string                  `json:"requestState"`
}

type inputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// decodeInputRequired returns what a result asks for. ok is false for one that is complete,
// and for one that neither asks for anything nor has a state.
func decodeInputRequired(result json.RawMessage) (in inputRequired, ok bool) {
	if !bytes.Contains(result, []byte(`"input_required"`)) { // a large result need not be decoded
		return in, false
	}
	err := json.Unmarshal(result, &in)
	return in, err == nil && in.ResultType == "input_required" && (in.Requests != nil || in.State != "")
}

// answerInputs sends a request by send, answers what its result asks for, and sends it again with
// the answers and the server's state, until the result is complete. The SDK does this for its own
// result types only. A server that asks for nothing may be overloaded, so each round trip then
// waits twice as long as the one before. The caller must refuse a result that is still not
// complete.
func (x *Request) answerInputs(send func(sdk.InputResponseMap, string) (json.RawMessage, *transport.Failure)) (json.RawMessage, *transport.Failure) {
	result, f := send(nil, "")
	for sent, wait := 1, retryWait; f == nil && sent < maxRoundTrips; sent, wait = sent+1, 2*wait {
		in, required := decodeInputRequired(result)
		if !required {
			break
		}
		if len(in.Requests) == 0 && !transport.Pause(x.Context(), wait) {
			return nil, x.Ended()
		}
		answers, err := x.answerAll(in.Requests)
		if x.Context().Err() != nil {
			return nil, x.Ended()
		}
		if err != nil {
			break
		}
		result, f = send(answers, in.State)
	}
	return result, f
}

// answerAll answers the requests of one result at the same time.
func (x *Request) answerAll(requests map[string]inputRequest) (sdk.InputResponseMap, error) {
	answers := make(sdk.InputResponseMap, len(requests))
	var mu sync.Mutex // protects answers and errs
	var errs []error
	var all sync.WaitGroup
	for id, r := range requests {
		all.Go(func() {
			answer, err := x.answerInput(r)
			mu.Lock()
			defer mu.Unlock()
			answers[id] = answer
			errs = append(errs, err)
		})
	}
	all.Wait()
	return answers, errors.Join(errs...)
}

// answerInput has the SDK answer a request as if it had come as a message: the SDK checks
// forms and fills in their defaults.
func (x *Request) answerInput(r inputRequest) (sdk.InputResponse, error) {
	tagged := x.session.tagRequest(&jsonrpc.Request{Method: r.Method, Params: r.Params}, x)
	var req sdk.Request
	var params sdk.Params
	switch r.Method {
	case methodElicit:
		p := &sdk.ElicitParams{}
		req, params = &sdk.ElicitRequest{Session: x.session.cs, Params: p}, p
	case methodSample:
		p := &sdk.CreateMessageWithToolsParams{}
		req, params = &sdk.CreateMessageWithToolsRequest{Session: x.session.cs, Params: p}, p
	case methodRoots:
		p := &sdk.ListRootsParams{}
		req, params = &sdk.ListRootsRequest{Session: x.session.cs, Params: p}, p
	default:
		return nil, fmt.Errorf("a request for %.60q", r.Method)
	}
	if err := json.Unmarshal(tagged.Params, params); err != nil && tagged.Params != nil {
		return nil, fmt.Errorf("a request for %s: %w", r.Method, err)
	}
	result, err := x.session.handleRequest(x.Context(), r.Method, req)
	if err != nil {
		return nil, err
	}
	answer, ok := result.(sdk.InputResponse)
	if !ok {
		return nil, fmt.Errorf("an answer of type %T", result)
	}
	return answer, nil
}
