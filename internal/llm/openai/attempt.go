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
	if res != nil {
		defer res.Body.Close()
	}
	isRefused := res != nil && res.StatusCode/100 != 2
	switch {
	// If the status arrived before the connection was cut, it explains the failure better.
	case isRefused && ctx.Err() == nil:
		return responseError(res)
	case err != nil:
		return m.classifyError(ctx, context.Cause(reqCtx), idle, answer, connectError(err))
	}
	err = m.readResponse(answer, idle, res)
	if answer.extensionBytes > maxExtensions || answer.content.isDropped() {
		m.log.WarnContext(ctx, "members of a model's answer are dropped, because they are too large to be sent back",
			"bytes", answer.extensionBytes+answer.content.size, "limit", maxExtensions)
	}
	if err == nil || errors.Is(err, errStopped) {
		return err
	}
	return m.classifyError(ctx, context.Cause(reqCtx), idle, answer, err)
}

// classifyError returns the result of an attempt whose request or reply failed with err: an error as described at
// makeAttempt, or nil if the answer is complete. cause is the cause of the request's context, which has the reason if
// the idle timer cut the connection. The order of the cases matters: if ctx has ended, that explains every other error,
// and a timeout explains an error that only says that reading failed.
func (m *Model) classifyError(ctx context.Context, cause error, idle *idleTimer, answer *assembler, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	timedOut := timeoutError(cause, idle.currentLimit())
	var modelErr *llm.Error
	if timedOut == nil && errors.As(err, &modelErr) {
		var retryable *retryableError
		if errors.As(err, &retryable) && answer.partSent {
			return modelErr // the consumer already has parts of the answer, so the request must not be retried
		}
		return err
	}
	// The connection broke or timed out. After finish_reason the answer is complete, and only the usage may be missing.
	if answer.hasFinished() {
		return answer.finishAnswer(nil)
	}
	if timedOut != nil {
		return timedOut
	}
	return answer.finishAnswer(err)
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
	return &retryableError{err: modelErr, retry: wasTried}
}

// noParams is null, which the SDK encodes without visiting the fields of the parameters. With empty parameters, an
// answer without tools took 6 % more CPU time.
var noParams = param.NullStruct[sdk.ChatCompletionNewParams]()

// postRequest sends body and returns the reply as soon as its headers have arrived. The caller must close the reply's
// body. If the error is nil, the body is limited to maxStream bytes, and idle limits the time of each read. If the
// status is 4xx or 5xx, postRequest returns both the reply and an error. If no reply came, the reply is nil.
func (m *Model) postRequest(ctx context.Context, idle *idleTimer, key string, body []byte) (*http.Response, error) {
	var res *http.Response
	options := slices.Concat([]option.RequestOption{option.WithAPIKey(key)}, m.options, []option.RequestOption{
		// The body is passed as bytes instead of as noParams, because the SDK's parameter types would marshal the tools
		// again for each request.
		option.WithRequestBody("application/json", body),
		option.WithResponseBodyInto(&res), // the undecoded reply
	})
	_, err := m.chat.New(ctx, noParams, options...)
	// If "error" in an error reply is not an object, as in Ollama's, or the body ends early, the SDK returns an error
	// of a different type. In that case, too, res is the reply.
	if refused, ok := errors.AsType[*sdk.Error](err); ok {
		res = refused.Response
	}
	if err == nil {
		res.Body = &timedBody{ReadCloser: res.Body, timer: idle, remaining: maxStream}
	}
	return res, err
}
