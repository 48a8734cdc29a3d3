package mcp

//lint:file-ignore SA1019 2026-07-28 deprecates sampling and roots (SEP-2577); servers go on asking for them.

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

const (
	maxRounds = 10 // requests of one call, as in the SDK
	roundWait = 50 * time.Millisecond
)

// inputRequired is a result that is not complete: the server asks something, or only wants
// the request again (2026-07-28 basic/utilities/mrtr).
type inputRequired struct {
	ResultType string                  `json:"resultType"`
	Requests   map[string]inputRequest `json:"inputRequests"`
	State      string                  `json:"requestState"`
}

type inputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// unfinished returns what a result asks for; false for one that is complete, and for one
// that says neither what it wants nor how to go on.
func unfinished(result json.RawMessage) (in inputRequired, ok bool) {
	if !bytes.Contains(result, []byte(`"input_required"`)) { // which spares large results another decoding
		return in, false
	}
	err := json.Unmarshal(result, &in)
	return in, err == nil && in.ResultType == "input_required" && (in.Requests != nil || in.State != "")
}

// rounds sends a request by send, answers what its result asks for, and sends it again with
// the answers and the server's state, until the result is complete. The SDK does this for its
// own result types only. Where nothing is asked, each round waits twice as long as the one
// before: a server may answer so because it has too much to do. What is not complete in the
// end checkType refuses.
func (x *exchange) rounds(send func(sdk.InputResponseMap, string) (json.RawMessage, *transport.Failure)) (json.RawMessage, *transport.Failure) {
	result, f := send(nil, "")
	for round, wait := 1, roundWait; f == nil && round < maxRounds; round, wait = round+1, 2*wait {
		in, more := unfinished(result)
		if !more {
			break
		}
		if len(in.Requests) == 0 && !transport.Pause(x.ctx, wait) {
			return nil, x.ended()
		}
		answers, err := x.answerAll(in.Requests)
		if x.ctx.Err() != nil {
			return nil, x.ended()
		}
		if err != nil {
			break
		}
		result, f = send(answers, in.State)
	}
	return result, f
}

// answerAll answers all that a result asks for.
func (x *exchange) answerAll(requests map[string]inputRequest) (sdk.InputResponseMap, error) {
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

// answerInput has the SDK answer a request as if it had come as a message: it checks forms,
// and fills in their defaults.
func (x *exchange) answerInput(r inputRequest) (sdk.InputResponse, error) {
	tagged := x.session.asked.tag(&jsonrpc.Request{Method: r.Method, Params: r.Params}, x)
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
	res, err := x.session.receive(x.ctx, r.Method, req)
	if err != nil {
		return nil, err
	}
	answer, ok := res.(sdk.InputResponse)
	if !ok {
		return nil, fmt.Errorf("an answer of type %T", res)
	}
	return answer, nil
}
