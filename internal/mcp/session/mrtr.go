package session

//lint:file-ignore SA1019 2026-07-28 deprecates sampling and roots (SEP-2577); servers still use them.

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"answerd/internal/mcp/content"
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

// answerInputs sends a request by send, answers what its result asks for, and sends it again with
// the answers and the server's state, until the result is complete. The SDK does this for its own
// result types only. A server that asks for nothing may be overloaded, so each round trip then
// waits twice as long as the one before. With Suspend, a result that asks a person ends the
// request: x.InputRequired is set then, and nil returned. The caller must refuse a result that is
// still not complete.
func (x *Request) answerInputs(h Handlers, send func(sdk.InputResponseMap, string) (json.RawMessage, *transport.Failure)) (json.RawMessage, *transport.Failure) {
	var answers sdk.InputResponseMap
	in, given := &content.InputRequired{}, map[string]ElicitationResult(nil)
	if h.Resume != nil {
		var err error
		in, given = h.Resume.Required, h.Resume.Answers
		if answers, err = x.answerAll(in.Requests, given); err != nil {
			return nil, transport.BadReply("it asks for something that cannot be answered", err)
		}
	}
	for sent, wait := in.RoundTrips+1, retryWait; ; sent, wait = sent+1, 2*wait {
		result, f := send(answers, in.State)
		if f != nil || sent >= maxRoundTrips {
			return result, f
		}
		next, required := content.DecodeInputRequired(result)
		if !required {
			return result, nil
		}
		if next.IsTooLarge() {
			return nil, &transport.Failure{Kind: transport.TooLarge, Public: "what it asks for, or its requestState, is too large to be stored"}
		}
		if next.RoundTrips = sent; h.Suspend && asksPerson(next) {
			x.InputRequired = next
			return nil, nil
		}
		if len(next.Requests) == 0 && !transport.Pause(x.Context(), wait) {
			return nil, x.Ended()
		}
		var err error
		answers, err = x.answerAll(next.Requests, nil)
		if x.Context().Err() != nil {
			return nil, x.Ended()
		}
		if errors.Is(err, errSamplingDisabled) {
			return nil, &transport.Failure{Kind: transport.Protocol, Public: errSamplingDisabled.Error()}
		}
		if err != nil {
			return result, nil
		}
		in = next
	}
}

// asksPerson reports whether a result asks a person something, and all that it asks them is safe
// to show.
func asksPerson(in *content.InputRequired) bool {
	asked, err := Elicitations(in)
	return err == nil && len(asked) > 0
}

// Elicitations returns what a result asks a person, by the key of the request.
func Elicitations(in *content.InputRequired) (map[string]Elicitation, error) {
	asked := make(map[string]Elicitation)
	for key, r := range in.Requests {
		if r.Method != methodElicit {
			continue
		}
		p := &sdk.ElicitParams{}
		if err := json.Unmarshal(r.Params, p); err != nil {
			return nil, fmt.Errorf("a request for %s: %w", r.Method, err)
		}
		e, err := decodeElicitation(p, serverRequest{params: r.Params}.requestedSchema(p.RequestedSchema))
		if err != nil {
			return nil, err
		}
		asked[key] = e
	}
	return asked, nil
}

// answerAll answers the requests of one result at the same time. given are the answers that a
// person has given already.
func (x *Request) answerAll(requests map[string]content.InputRequest, given map[string]ElicitationResult) (sdk.InputResponseMap, error) {
	answers := make(sdk.InputResponseMap, len(requests))
	var mu sync.Mutex // protects answers and errs
	var errs []error
	var all sync.WaitGroup
	for id, r := range requests {
		all.Go(func() {
			var of *ElicitationResult
			if a, ok := given[id]; ok {
				of = &a
			}
			answer, err := x.answerInput(r, of)
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
// forms and fills in their defaults. given is the person's answer; nil if they have to be asked.
func (x *Request) answerInput(r content.InputRequest, given *ElicitationResult) (sdk.InputResponse, error) {
	tagged := x.session.tagRequest(&jsonrpc.Request{Method: r.Method, Params: r.Params}, x, given)
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
