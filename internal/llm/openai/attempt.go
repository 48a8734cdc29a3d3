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

// makeAttempt makes one request and emits the parts of its answer. It returns a *retryableError for an
// error after which another attempt may be made, ctx's error if ctx ended, errStopped if the consumer
// wants no more, and otherwise an *llm.Error. It returns when the reply's body is closed.
func (m *Model) makeAttempt(ctx context.Context, body []byte, emit emitter) error {
	// The request gets its own context, so that the idle timer can cut the connection and store
	// the reason as the context's cause. Cancelling the context also closes the connection when
	// the consumer stops early.
	reqCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := newIdleTimer(cancel, m.firstByteTimeout, m.idleTimeout)
	defer idle.stopTimer()

	answer := &assembler{yield: emit, endpoint: m.endpoint}
	res, err := m.postRequest(reqCtx, idle, body)
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
			"bytes", answer.extensionBytes+answer.content.bytes, "limit", maxExtensions)
	}
	if err == nil || errors.Is(err, errStopped) {
		return err
	}
	return m.classifyError(ctx, context.Cause(reqCtx), idle, answer, err)
}

// classifyError decides what err means. If we cut the connection ourselves, the reason is in
// cause and not in err. The order of the cases matters: the end of ctx explains every other error; a
// timeout of our own comes before an error that only says that reading failed; and an answer that has its
// finish_reason is complete, whatever happened to the connection after it.
func (m *Model) classifyError(ctx context.Context, cause error, w *idleTimer, answer *assembler, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	timedOut := timeoutError(cause, w.currentLimit())
	var own *llm.Error
	if timedOut == nil && errors.As(err, &own) {
		var f *retryableError
		if errors.As(err, &f) && answer.partSent {
			return own // the consumer already has parts of the answer, so it must not be retried
		}
		return err
	}
	// The connection broke or timed out. After finish_reason the answer is complete; only usage
	// may be missing.
	if answer.hasFinished() {
		return answer.finishAnswer(nil)
	}
	if timedOut != nil {
		return timedOut
	}
	return answer.finishAnswer(err)
}

// connectError returns the error for a request that got no reply.
func connectError(err error) error {
	failed := &retryableError{}
	// The HTTP client's errors are *url.Error. Their text begins with the address, which may
	// contain a key. Other errors come from the SDK for a request that it cannot make; they
	// would recur with every try.
	if sent, ok := errors.AsType[*url.Error](err); ok {
		failed.retry, err = true, sent.Err
	}
	failed.err = newError(llm.ModelError, publicUnreachable, fmt.Errorf("ask the model: %w", err))
	failed.err.Retryable, failed.err.Unavailable = failed.retry, failed.retry
	return failed
}

// noParams is null, which the SDK encodes without going through the fields of the parameters.
// With empty parameters an answer without tools took 6 % more CPU time.
var noParams = param.NullStruct[sdk.ChatCompletionNewParams]()

// postRequest sends body. It bounds the size of the reply's body, and idle limits the time of each
// read. If the status is 4xx or 5xx, it returns both a reply and an error.
func (m *Model) postRequest(ctx context.Context, idle *idleTimer, body []byte) (*http.Response, error) {
	var res *http.Response
	_, err := m.chat.New(ctx, noParams, slices.Concat([]option.RequestOption{option.WithAPIKey(m.key())}, m.options, []option.RequestOption{
		// The body is given as bytes: the SDK's parameter types would marshal the tools again
		// for each request. It replaces noParams.
		option.WithRequestBody("application/json", body),
		option.WithResponseBodyInto(&res), // the undecoded reply
	})...)
	// The SDK returns a different error for an error reply whose "error" is not an object, such
	// as Ollama's, or whose body ends early. res is the reply in that case too.
	if refused, ok := errors.AsType[*sdk.Error](err); ok {
		res = refused.Response
	}
	if err == nil {
		res.Body = &timedBody{ReadCloser: res.Body, timer: idle, remaining: maxStream}
	}
	return res, err
}
