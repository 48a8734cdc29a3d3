package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"answerd/internal/llm"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
)

// makeAttempt makes one request with the API key and emits the parts of its answer. It returns nil after a complete
// answer, ctx's error if ctx ended, and errStopped if the consumer wants no more parts. Any other error is an
// *llm.Error, wrapped in a *retryableError if the retry loop may make another attempt. makeAttempt closes the reply's
// body.
func (m *Model) makeAttempt(ctx context.Context, key string, body []byte, emit emitter) error {
	// The request gets its own context, so that the idle timer can cut the connection and store the reason as the
	// context's cause. Cancelling this context also closes the connection if the consumer stops early.
	reqCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := newIdleTimer(cancel, m.firstByteTimeout, m.idleTimeout)
	defer idle.stopTimer()

	answer := &assembler{yield: emit, endpoint: m.endpoint}
	res, err := m.postRequest(reqCtx, idle, key, body)
	if err != nil {
		return classifyError(ctx, idle.timeoutError(reqCtx), answer, connectError(err))
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return responseError(res) // even after a timeout, because the status explains the failure better
	}
	err = m.readResponse(answer, idle, res)
	if answer.extensionBytes > maxExtensions || answer.content.isDropped() {
		m.log.WarnContext(ctx, "members of a model's answer are dropped, because they are too large to be sent back",
			"bytes", answer.extensionBytes+answer.content.size, "limit", maxExtensions)
	}
	if err == nil || errors.Is(err, errStopped) {
		return err
	}
	return classifyError(ctx, idle.timeoutError(reqCtx), answer, err)
}

// classifyError returns the result of an attempt whose request or reply failed with err: an error as described at
// makeAttempt, or nil if the answer is complete. timeout is the error of the idle timer, or nil if the timer did not cut
// the connection. The order of the cases matters: if ctx has ended, that explains every other error, and a timeout
// explains an error that only says that reading failed.
func classifyError(ctx context.Context, timeout *llm.Error, answer *assembler, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if modelErr, ok := errors.AsType[*llm.Error](err); ok && timeout == nil {
		if answer.partSent {
			return modelErr // not a *retryableError, because the consumer already has parts of the answer
		}
		return err
	}
	// The connection broke or timed out. After finish_reason the answer is complete, and only the usage may be missing.
	if answer.hasFinished() {
		return answer.finishAnswer()
	}
	if timeout != nil {
		return timeout
	}
	return answer.truncatedError(err)
}

// connectError returns the error for a request that got no reply. The error is retryable if the HTTP client at least
// tried to send the request. An SDK error about a request that it cannot build would occur again with every attempt.
func connectError(err error) error {
	clientErr, wasTried := errors.AsType[*url.Error](err)
	if wasTried {
		err = clientErr.Err // drop the URL, which may contain a key
	}
	modelErr := newError(llm.ModelError, publicUnreachable, fmt.Errorf("ask the model: %w", err))
	modelErr.Retryable, modelErr.Unavailable = wasTried, wasTried
	return &retryableError{err: modelErr}
}

// noParams is null, which the SDK encodes without visiting the fields of the parameters. With empty parameters, an
// answer without tools took 6 % more CPU time.
var noParams = param.NullStruct[sdk.ChatCompletionNewParams]()

// postRequest sends body and returns the reply, of any status, as soon as its headers have arrived. The caller
// must close the reply's body. Below status 400, the body is limited to maxStream bytes, and idle limits the time of
// each read. An error means that no reply came.
func (m *Model) postRequest(ctx context.Context, idle *idleTimer, key string, body []byte) (*http.Response, error) {
	var res *http.Response
	options := slices.Concat([]option.RequestOption{option.WithAPIKey(key)}, m.options, []option.RequestOption{
		// The body is passed as bytes instead of as noParams, because the SDK's parameter types would marshal the tools
		// again for each request.
		option.WithRequestBody("application/json", body),
		option.WithResponseBodyInto(&res), // the undecoded reply
	})
	_, err := m.chat.New(ctx, noParams, options...)
	if res == nil {
		return nil, err
	}
	if err == nil { // from status 400 on, the SDK returns an error too, and has already read the body
		res.Body = &timedBody{ReadCloser: res.Body, timer: idle, remaining: maxStream}
	}
	return res, nil
}
