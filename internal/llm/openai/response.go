package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"answerd/internal/llm"
	"answerd/internal/sse"
)

// read hands out the parts of a reply with a good status.
func (m *Model) read(a *assembler, w *watch, res *http.Response) error {
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
		return failed(llm.ModelError, publicNonsense, fmt.Errorf("content type %.64q: %s", media, reported(head)))
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
func (m *Model) readWhole(a *assembler, r io.Reader) error {
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return readFailure(a, err)
	}
	if len(body) > maxAnswer {
		return failed(llm.ModelError, publicTooLarge, errors.New("the completion exceeds 16 MiB"))
	}
	if err := a.take(body, false); err != nil {
		return err
	}
	return a.end(errNoMoreData)
}

// readStream takes a completion that comes in chunks.
func (m *Model) readStream(a *assembler, w *watch, r io.Reader) error {
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
		return failed(llm.ModelError, publicTooLarge, err)
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
		return failed(llm.TooLarge, publicContext, err)
	}
	return failed(llm.ModelError, publicFailing, err)
}
