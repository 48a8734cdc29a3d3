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
)

// Bounds of one reply, beside those of the answer that it holds.
const (
	maxEvent     = 1 << 20  // bytes of one event of a stream
	maxErrorBody = 64 << 10 // bytes read of an error reply, so that its connection can be kept
)

// Causes in the log of how a reply ended.
var (
	errStreamTooLarge = errors.New("the reply exceeds its size limit")
	errNoMoreData     = errors.New("the stream ended without finish_reason")
	done              = []byte("[DONE]")
)

// attempt makes one request and emits the parts of its answer. It returns a *failure for an
// error that may be retried, ctx's error if ctx ended, and otherwise an *llm.Error.
func (m *Model) attempt(ctx context.Context, body []byte, emit emitter) error {
	// The request has a context of its own, so that the watch can cut the connection and
	// leave the reason in its cause. Cancelling it is also what closes the connection of
	// a consumer that left.
	reqCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := newIdleTimer(cancel, m.firstByteTimeout, m.idleTimeout)
	defer w.stopTimer()

	a := &assembler{yield: emit, endpoint: m.endpoint}
	res, err := m.postRequest(reqCtx, w, body)
	if res != nil {
		defer res.Body.Close()
	}
	switch {
	// A status that came before a cut says more than the cut.
	case res != nil && ctx.Err() == nil && (res.StatusCode < 200 || res.StatusCode > 299):
		return responseError(res)
	case err != nil:
		return m.classifyError(ctx, context.Cause(reqCtx), w, a, connectError(err))
	}
	err = m.readResponse(a, w, res)
	if a.extensionBytes > maxExtensions || a.content.isDropped() {
		m.log.WarnContext(ctx, "members of a model's answer are dropped, because they are too large to be sent back", "bytes", a.extensionBytes+a.content.bytes, "limit", maxExtensions)
	}
	if err == nil || errors.Is(err, errStopped) {
		return err
	}
	return m.classifyError(ctx, context.Cause(reqCtx), w, a, err)
}

// classifyError decides what err means. If we cut the connection ourselves, the reason is in
// cause and not in err.
func (m *Model) classifyError(ctx context.Context, cause error, w *idleTimer, a *assembler, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	timedOut := timeoutError(cause, w.currentLimit())
	var own *llm.Error
	if timedOut == nil && errors.As(err, &own) {
		var f *retryableError
		if errors.As(err, &f) && a.partSent {
			return own // the consumer has parts of the answer: no second attempt
		}
		return err
	}
	// The connection broke, or fell silent. After finish_reason nothing is missing but
	// usage; the model had said everything.
	if a.hasFinished() {
		return a.finishAnswer(nil)
	}
	if timedOut != nil {
		return timedOut
	}
	return a.finishAnswer(err)
}

// connectError returns the error for a request that got no reply.
func connectError(err error) error {
	f := &retryableError{}
	// An error of the HTTP client's. Its text begins with the address, which may hold a key.
	// Others are the SDK's, over a request that cannot be made at all, and come again with
	// every try.
	if sent, ok := errors.AsType[*url.Error](err); ok {
		f.retry, err = true, sent.Err
	}
	f.err = newError(llm.ModelError, publicUnreachable, fmt.Errorf("ask the model: %w", err))
	f.err.Retryable, f.err.Unavailable = f.retry, f.retry
	return f
}

// postRequest sends body. The body of the reply is bounded and timed by w. If the status is
// 4xx or 5xx, it returns both a reply and an error.
func (m *Model) postRequest(ctx context.Context, w *idleTimer, body []byte) (*http.Response, error) {
	var res *http.Response
	_, err := m.chat.New(ctx, sdk.ChatCompletionNewParams{}, slices.Concat([]option.RequestOption{option.WithAPIKey(m.key())}, m.options, []option.RequestOption{
		// As bytes: the SDK's parameters would marshal the tools again with each request.
		option.WithRequestBody("application/json", body),
		option.WithResponseBodyInto(&res), // the reply as it is, for us to decode
	})...)
	// Of an error reply whose "error" is not an object, as Ollama's, and of one that breaks
	// off, the SDK returns another error. Then res is the reply all the same.
	if refused, ok := errors.AsType[*sdk.Error](err); ok {
		res = refused.Response
	}
	if err == nil {
		res.Body = &timedBody{ReadCloser: res.Body, timer: w, remaining: maxStream}
	}
	return res, err
}
