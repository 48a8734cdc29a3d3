package llm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"

	"answerd/internal/sse"

	"github.com/openai/openai-go/v3"
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

// try makes one request and hands out what it yields. What may be tried again is a
// *failure; ctx's own end is ctx's error; all else is an *Error.
func (m *OpenAI) try(ctx context.Context, body []byte, emit emitter) error {
	// The request has a context of its own, so that the watch can cut the connection and
	// leave the reason in its cause. Cancelling it is also what closes the connection of
	// a consumer that left.
	reqCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := newWatch(cancel, m.firstByte, m.idle)
	defer w.stop()

	a := &assembler{emit: emit}
	res, err := m.post(reqCtx, w, body)
	if res != nil {
		defer res.Body.Close()
	}
	switch {
	// A status that came before a cut says more than the cut.
	case res != nil && ctx.Err() == nil && (res.StatusCode < 200 || res.StatusCode > 299):
		return replyFailure(res)
	case err != nil:
		return m.settle(ctx, context.Cause(reqCtx), w, a, connectFailure(err))
	}
	err = m.read(a, w, res)
	if err == nil || errors.Is(err, errStopped) {
		return err
	}
	return m.settle(ctx, context.Cause(reqCtx), w, a, err)
}

// settle decides what err means once the reasons for which we ourselves may have cut
// the connection are known: they show in the cause and not in err.
func (m *OpenAI) settle(ctx context.Context, cause error, w *watch, a *assembler, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	timedOut := timeout(cause, w.allowed())
	var own *Error
	if timedOut == nil && errors.As(err, &own) {
		var f *failure
		if errors.As(err, &f) && a.spoken {
			return own // the consumer has heard the beginning: no second try
		}
		return err
	}
	// The connection broke, or fell silent. After finish_reason nothing is missing but
	// usage; the model had said everything.
	if a.finished() {
		return a.end(nil)
	}
	if timedOut != nil {
		return timedOut
	}
	return a.end(err)
}

// connectFailure returns the failure of a request that got no reply.
func connectFailure(err error) error {
	f := &failure{}
	// An error of the HTTP client's. Its text begins with the address, which may hold a key.
	// Others are the SDK's, over a request that cannot be made at all, and come again with
	// every try.
	if sent, ok := errors.AsType[*url.Error](err); ok {
		f.again, err = true, sent.Err
	}
	f.err = failed(ModelError, publicUnreachable, fmt.Errorf("ask the model: %w", err))
	f.err.Retryable = f.again
	return f
}

// post sends body. The reply's own body is bounded and under w. A reply can come along with
// an error, where its status is 4xx or 5xx.
func (m *OpenAI) post(ctx context.Context, w *watch, body []byte) (*http.Response, error) {
	var res *http.Response
	_, err := m.chat.New(ctx, openai.ChatCompletionNewParams{},
		// As bytes: the SDK's parameters would marshal the tools again with each request.
		option.WithRequestBody("application/json", body),
		option.WithResponseBodyInto(&res)) // the reply as it is, for us to decode
	// Of an error reply whose "error" is not an object, as Ollama's, and of one that breaks
	// off, the SDK returns another error. Then res is the reply all the same.
	if refused, ok := errors.AsType[*openai.Error](err); ok {
		res = refused.Response
	}
	if err == nil {
		res.Body = &watchedBody{ReadCloser: res.Body, watch: w, left: maxStream}
	}
	return res, err
}

// read hands out the parts of a reply with a good status.
func (m *OpenAI) read(a *assembler, w *watch, res *http.Response) error {
	var first [512]byte
	n, err := firstText(res.Body, first[:])
	if n == 0 {
		return readFailure(a, err)
	}
	head := first[:n]
	rest := io.MultiReader(bytes.NewReader(head), res.Body)
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch {
	case head[0] == '{':
		// Some gateways answer whole although a stream was asked for, and some put an
		// error object under the stream's content type.
		return m.readWhole(a, rest)
	case media == "text/event-stream" || looksLikeEvents(head):
		return m.readStream(a, w, rest)
	default:
		return failed(ModelError, publicNonsense, fmt.Errorf("content type %.64q: %s", media, reported(head)))
	}
}

// firstText reads until something other than white space has come and returns how much
// of b is filled from there on.
func firstText(r io.Reader, b []byte) (int, error) {
	for {
		n, err := r.Read(b)
		if text := bytes.TrimLeft(b[:n], " \t\r\n"); len(text) > 0 {
			return copy(b, text), nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// looksLikeEvents recognises a stream by its first bytes, whatever its content type is.
func looksLikeEvents(head []byte) bool {
	head = bytes.TrimPrefix(head, []byte("\ufeff"))
	for _, field := range []string{":", "data:", "event:", "id:", "retry:"} {
		if bytes.HasPrefix(head, []byte(field)) {
			return true
		}
	}
	return false
}

// readWhole takes a completion that came in one piece.
func (m *OpenAI) readWhole(a *assembler, r io.Reader) error {
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return readFailure(a, err)
	}
	if len(body) > maxAnswer {
		return failed(ModelError, publicTooLarge, errors.New("the completion exceeds 16 MiB"))
	}
	if err := a.take(body, false); err != nil {
		return err
	}
	return a.end(errNoMoreData)
}

// readStream takes a completion that comes in chunks.
func (m *OpenAI) readStream(a *assembler, w *watch, r io.Reader) error {
	frames := sse.NewReader(r, maxEvent)
	for {
		f, err := frames.Next()
		if err != nil {
			return readFailure(a, err)
		}
		data := bytes.TrimSpace(f.Data)
		if bytes.Equal(data, done) {
			if err := a.end(errNoMoreData); err != nil {
				return err
			}
			drain(frames, w)
			return nil
		}
		if len(data) == 0 {
			continue
		}
		if err := a.take(data, f.Event == "error"); err != nil {
			return truncation(frames, a, err)
		}
		if a.finished() {
			w.shorten(afterFinish)
		}
	}
}

// drain reads what follows [DONE], so that the connection can be used again.
func drain(frames *sse.Reader, w *watch) {
	w.shorten(afterDone)
	for range 8 {
		if _, err := frames.Next(); err != nil {
			return
		}
	}
}

// truncation tells a last chunk that was cut short from one that never was a chunk: the
// former stands at the stream's end.
func truncation(frames *sse.Reader, a *assembler, err error) error {
	if !errors.Is(err, errCut) {
		return err
	}
	_, next := frames.Next()
	switch next {
	case nil:
		return err
	case io.EOF:
		next = io.ErrUnexpectedEOF
	}
	return readFailure(a, next)
}

// readFailure ends an answer whose reply gives err in place of more bytes. What is
// neither a clean end nor a bound of ours is for settle to judge.
func readFailure(a *assembler, err error) error {
	switch {
	case err == io.EOF:
		return a.end(errNoMoreData)
	case errors.Is(err, sse.ErrTooLarge) || errors.Is(err, errStreamTooLarge):
		return failed(ModelError, publicTooLarge, err)
	}
	return fmt.Errorf("read the answer: %w", err)
}

// streamFailure is the failure that an endpoint reports inside a stream.
func streamFailure(object []byte) error {
	if status := errorStatus(object); status != 0 {
		return statusFailure(status, object)
	}
	err := fmt.Errorf("error in the stream: %s", reported(object))
	if overContext(string(object)) {
		return failed(TooLarge, publicContext, err)
	}
	return failed(ModelError, publicFailing, err)
}
