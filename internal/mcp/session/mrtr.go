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

// answerInputs sends a request with send, answers what its result asks for, and sends it again with
// the answers and the server's state, until the result is complete. The SDK does this for its own
// result types only. A server that asks for nothing may be overloaded, so each round trip then
// waits twice as long as the one before.
//
// With handlers.Suspend, a result that asks a person ends the request: answerInputs then sets
// request.InputRequired and returns nil. The result can still be incomplete, after maxRoundTrips or if an
// answer failed; the caller must refuse it.
func (request *Request) answerInputs(handlers Handlers, send func(sdk.InputResponseMap, string) (json.RawMessage, *transport.Failure)) (json.RawMessage, *transport.Failure) {
	var answers sdk.InputResponseMap
	required := &content.InputRequired{} // of the latest result
	if handlers.Resume != nil {
		required = handlers.Resume.Required
		var err error
		if answers, err = request.answerAll(required.Requests, handlers.Resume.Answers); err != nil {
			return nil, transport.BadReply("it asks for something that cannot be answered", err)
		}
	}
	for sent, wait := required.RoundTrips+1, retryWait; ; sent, wait = sent+1, 2*wait {
		result, failure := send(answers, required.State)
		if failure != nil || sent >= maxRoundTrips {
			return result, failure
		}
		next, isRequired := content.DecodeInputRequired(result)
		if !isRequired {
			return result, nil
		}
		if next.IsTooLarge() {
			return nil, &transport.Failure{Kind: transport.TooLarge, Public: "what it asks for, or its requestState, is too large to be stored"}
		}
		next.RoundTrips = sent
		if handlers.Suspend && asksPerson(next) {
			request.InputRequired = next
			return nil, nil
		}
		if len(next.Requests) == 0 && !transport.Pause(request.Context(), wait) {
			return nil, request.Ended()
		}
		var err error
		answers, err = request.answerAll(next.Requests, nil)
		if request.Context().Err() != nil {
			return nil, request.Ended()
		}
		if errors.Is(err, errSamplingDisabled) {
			return nil, &transport.Failure{Kind: transport.Protocol, Public: errSamplingDisabled.Error()}
		}
		if err != nil {
			return result, nil
		}
		required = next
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
	for key, input := range in.Requests {
		if input.Method != methodElicit {
			continue
		}
		p := &sdk.ElicitParams{}
		if err := json.Unmarshal(input.Params, p); err != nil {
			return nil, fmt.Errorf("a request for %s: %w", input.Method, err)
		}
		e, err := decodeElicitation(p, serverRequest{params: input.Params}.requestedSchema(p.RequestedSchema))
		if err != nil {
			return nil, err
		}
		asked[key] = e
	}
	return asked, nil
}

// answerAll answers the requests of one result at the same time. given holds the answers that a
// person has given already, by the key of the request.
func (request *Request) answerAll(requests map[string]content.InputRequest, given map[string]ElicitationResult) (sdk.InputResponseMap, error) {
	answers := make(sdk.InputResponseMap, len(requests))
	var mu sync.Mutex // protects answers and errs
	var errs []error
	var wg sync.WaitGroup
	for key, input := range requests {
		wg.Go(func() {
			var givenAnswer *ElicitationResult
			if a, ok := given[key]; ok {
				givenAnswer = &a
			}
			answer, err := request.answerInput(input, givenAnswer)
			mu.Lock()
			defer mu.Unlock()
			answers[key] = answer
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return answers, errors.Join(errs...)
}

// answerInput has the SDK answer a request as if it had come as a message: the SDK checks
// forms and fills in their defaults. given is the person's answer; nil if they have to be asked.
func (request *Request) answerInput(input content.InputRequest, given *ElicitationResult) (sdk.InputResponse, error) {
	tagged := request.session.tagRequest(&jsonrpc.Request{Method: input.Method, Params: input.Params}, request, given)
	var req sdk.Request
	var params sdk.Params
	switch input.Method {
	case methodElicit:
		p := &sdk.ElicitParams{}
		req, params = &sdk.ElicitRequest{Session: request.session.cs, Params: p}, p
	case methodSample:
		p := &sdk.CreateMessageWithToolsParams{}
		req, params = &sdk.CreateMessageWithToolsRequest{Session: request.session.cs, Params: p}, p
	case methodRoots:
		p := &sdk.ListRootsParams{}
		req, params = &sdk.ListRootsRequest{Session: request.session.cs, Params: p}, p
	default:
		return nil, fmt.Errorf("a request for %.60q", input.Method)
	}
	if err := json.Unmarshal(tagged.Params, params); err != nil && tagged.Params != nil {
		return nil, fmt.Errorf("a request for %s: %w", input.Method, err)
	}
	result, err := request.session.handleRequest(request.Context(), input.Method, req)
	if err != nil {
		return nil, err
	}
	answer, ok := result.(sdk.InputResponse)
	if !ok {
		return nil, fmt.Errorf("an answer of type %T", result)
	}
	return answer, nil
}
