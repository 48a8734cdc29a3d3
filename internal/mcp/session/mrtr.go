package session

//lint:file-ignore SA1019 2026-07-28 deprecates sampling and roots (SEP-2577); servers still use them.

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"answerd/internal/mcp/content"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Multi round-trip requests (2026-07-28 basic/utilities/mrtr): a server answers a request with the result
// input_required, which contains requests to the client. The client sends its own request again with the answers.

const (
	maxRoundTrips = 10 // how often one request is sent at most, as in the SDK
	// retryWait is the pause before a request is sent again if its result was input_required but had no requests to
	// the client. It doubles with each round trip.
	retryWait = 50 * time.Millisecond
	maxReason = 300 // bytes of an error's text in a failure's Public
)

// sendFunc sends one message of a request and returns the result as received. answers are the answers to the server's
// requests and state is the server's state; both are empty in the first message.
type sendFunc func(answers sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure)

// answerInputs sends a request with send until the result is complete. Before each repetition it answers the requests
// in the result, and passes the answers and the server's state to send. The SDK does this only for its own types.
//
// If handlers.Suspend is set and a result asks the user something, answerInputs sets request.InputRequired and returns
// nil, nil. handlers.Resume continues from there. After maxRoundTrips, the result may still be incomplete; the caller
// of answerInputs must refuse it.
func (request *Request) answerInputs(handlers Handlers, send sendFunc) (json.RawMessage, *transport.Failure) {
	var answers sdk.InputResponseMap     // to the requests in required.Requests
	required := &content.InputRequired{} // the latest result
	if handlers.Resume != nil {
		required = handlers.Resume.Required
		var err error
		if answers, err = request.answerAll(required.Requests, handlers.Resume.Answers); err != nil {
			return nil, cannotAnswer(err)
		}
	}
	sent := required.RoundTrips // how often the request was sent so far, also before it was suspended
	for wait := retryWait; ; wait *= 2 {
		result, failure := send(answers, required.State)
		sent++
		if failure != nil || sent >= maxRoundTrips {
			return result, failure
		}
		next, ok := content.DecodeInputRequired(result)
		if !ok { // the result is complete
			return result, nil
		}
		if next.IsTooLarge() {
			return nil, &transport.Failure{
				Kind:   transport.TooLarge,
				Public: "what it asks for, or its requestState, is too large to be stored",
			}
		}
		next.RoundTrips = sent
		if handlers.Suspend && asksPerson(next) {
			request.InputRequired = next
			return nil, nil
		}
		answers, failure = request.answerRequired(next, wait)
		if failure != nil {
			return nil, failure
		}
		required = next
	}
}

// answerRequired returns the answers to the requests in required. A server that requires input but has no requests only
// asks to be called again later, for example because it is overloaded: answerRequired then returns no answers, after
// wait. The failure says why the input cannot be given, or why the request has ended.
func (request *Request) answerRequired(required *content.InputRequired, wait time.Duration) (sdk.InputResponseMap, *transport.Failure) {
	if len(required.Requests) == 0 && !transport.Pause(request.Context(), wait) {
		return nil, request.Ended()
	}
	answers, err := request.answerAll(required.Requests, nil)
	switch {
	case request.Context().Err() != nil:
		return nil, request.Ended()
	case errors.Is(err, errSamplingDisabled): // its text names the setting to change
		return nil, &transport.Failure{Kind: transport.Protocol, Public: errSamplingDisabled.Error()}
	case err != nil:
		return nil, cannotAnswer(err)
	}
	return answers, nil
}

// cannotAnswer returns the failure of a request to which the server answered with input_required, if answerd refuses
// to give the input because of err.
func cannotAnswer(err error) *transport.Failure {
	reason := strings.ReplaceAll(err.Error(), transport.RefusedRequest, "")
	return &transport.Failure{
		Kind:   transport.Protocol,
		Public: "it asks for something that cannot be answered: " + wire.Printable(reason, maxReason),
		Err:    err,
	}
}

// asksPerson reports whether required has elicitations and all of them are allowed (Elicitations).
func asksPerson(required *content.InputRequired) bool {
	asked, err := Elicitations(required)
	return err == nil && len(asked) > 0
}

// Elicitations returns the elicitations in required, by their keys in required.Requests. If one does not decode or is
// not allowed, it returns an error.
func Elicitations(required *content.InputRequired) (map[string]Elicitation, error) {
	asked := make(map[string]Elicitation)
	for key, input := range required.Requests {
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

// answerAll answers requests concurrently, and returns the answers by the requests' keys. resumeAnswers has the user's
// answers from Handlers.Resume by the same keys; it may be nil. The error joins the errors of all requests.
func (request *Request) answerAll(
	requests map[string]content.InputRequest, resumeAnswers map[string]ElicitationResult,
) (sdk.InputResponseMap, error) {
	answers := make(sdk.InputResponseMap, len(requests))
	var mu sync.Mutex // protects answers and errs
	var errs []error
	var wg sync.WaitGroup
	for key, input := range requests {
		wg.Go(func() {
			var resumeAnswer *ElicitationResult
			if a, ok := resumeAnswers[key]; ok {
				resumeAnswer = &a
			}
			answer, err := request.answerInput(input, resumeAnswer)
			mu.Lock()
			defer mu.Unlock()
			answers[key] = answer
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return answers, errors.Join(errs...)
}

// answerInput answers input, one request in a result. It passes input to the SDK as if it were a message from the
// server, so that the SDK calls answerd's handlers. resumeAnswer is the user's answer from Handlers.Resume; nil if the
// user must be asked.
func (request *Request) answerInput(input content.InputRequest, resumeAnswer *ElicitationResult) (sdk.InputResponse, error) {
	session := request.session
	message := &jsonrpc.Request{Method: input.Method, Params: input.Params}
	tagged := session.tagRequest(message, request, resumeAnswer)
	var sdkRequest sdk.Request
	var params sdk.Params // those of sdkRequest
	switch input.Method {
	case methodElicit:
		p := &sdk.ElicitParams{}
		sdkRequest, params = &sdk.ElicitRequest{Session: session.cs, Params: p}, p
	case methodSample:
		p := &sdk.CreateMessageWithToolsParams{}
		sdkRequest, params = &sdk.CreateMessageWithToolsRequest{Session: session.cs, Params: p}, p
	case methodRoots:
		p := &sdk.ListRootsParams{}
		sdkRequest, params = &sdk.ListRootsRequest{Session: session.cs, Params: p}, p
	default:
		return nil, fmt.Errorf("a request for %.60q", input.Method)
	}
	if err := json.Unmarshal(tagged.Params, params); err != nil && tagged.Params != nil {
		return nil, fmt.Errorf("a request for %s: %w", input.Method, err)
	}
	result, err := session.handleRequest(request.Context(), input.Method, sdkRequest)
	if err != nil {
		return nil, err
	}
	answer, ok := result.(sdk.InputResponse)
	if !ok {
		return nil, fmt.Errorf("an answer of type %T", result)
	}
	return answer, nil
}
