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

// readResponse emits the parts of a reply with a 2xx status. A body that begins with a brace is one JSON
// object, whatever its Content-Type says. Any other body is an event stream if its Content-Type or its
// first bytes say so.
func (m *Model) readResponse(answer *assembler, idle *idleTimer, res *http.Response) error {
	var first [512]byte
	n, err := readFirstText(res.Body, first[:])
	if n == 0 {
		return readError(answer, err)
	}
	head := first[:n]
	rest := io.MultiReader(bytes.NewReader(head), res.Body)
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch {
	case head[0] == '{':
		// Some gateways ignore the request for a stream, and some send an error object with the
		// content type of a stream.
		return m.readCompletion(answer, rest)
	case media == "text/event-stream" || looksLikeEvents(head):
		return m.readStream(answer, idle, rest)
	default:
		return newError(llm.ModelError, publicNonsense, fmt.Errorf("content type %.64q: %s", media, loggableCodes(head)))
	}
}

// readFirstText reads until something other than white space has arrived, and returns how many
// bytes of b are filled from there on.
func readFirstText(r io.Reader, b []byte) (int, error) {
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

// looksLikeEvents recognizes an event stream by its first bytes. The content type is not
// reliable.
func looksLikeEvents(head []byte) bool {
	head = bytes.TrimPrefix(head, []byte("\ufeff"))
	for _, field := range []string{":", "data:", "event:", "id:", "retry:"} {
		if bytes.HasPrefix(head, []byte(field)) {
			return true
		}
	}
	return false
}

// readCompletion reads a completion that is not streamed.
func (m *Model) readCompletion(answer *assembler, r io.Reader) error {
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return readError(answer, err)
	}
	if len(body) > maxAnswer {
		return newError(llm.ModelError, publicTooLarge, errors.New("the completion exceeds 16 MiB"))
	}
	if err := answer.decodeChunk(body, false); err != nil {
		return err
	}
	return answer.finishAnswer(errNoMoreData)
}

// readStream reads a completion that arrives in chunks.
func (m *Model) readStream(answer *assembler, idle *idleTimer, r io.Reader) error {
	frames := sse.NewReader(r, maxEvent)
	for {
		frame, err := frames.Next()
		if err != nil {
			return readError(answer, err)
		}
		data := bytes.TrimSpace(frame.Data)
		if bytes.Equal(data, done) {
			if err := answer.finishAnswer(errNoMoreData); err != nil {
				return err
			}
			drainStream(frames, idle)
			return nil
		}
		if len(data) == 0 {
			continue
		}
		if err := answer.decodeChunk(data, frame.Event == "error"); err != nil {
			return truncatedChunkError(frames, answer, err)
		}
		if answer.hasFinished() {
			idle.shortenIdle(afterFinish)
		}
	}
}

// drainStream reads the rest of the reply after [DONE], so that the connection can be reused.
func drainStream(frames *sse.Reader, w *idleTimer) {
	w.shortenIdle(afterDone)
	for range 8 {
		if _, err := frames.Next(); err != nil {
			return
		}
	}
}

// truncatedChunkError distinguishes a chunk that was cut off from a malformed one. Only a chunk
// at the end of the stream can be cut off.
func truncatedChunkError(frames *sse.Reader, answer *assembler, err error) error {
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
	return readError(answer, next)
}

// readError ends an answer when reading the reply returned err. classifyError handles errors
// that are neither a clean end nor one of our limits.
func readError(a *assembler, err error) error {
	switch {
	case err == io.EOF:
		return a.finishAnswer(errNoMoreData)
	case errors.Is(err, sse.ErrTooLarge) || errors.Is(err, errStreamTooLarge):
		return newError(llm.ModelError, publicTooLarge, err)
	}
	return fmt.Errorf("read the answer: %w", err)
}

// streamError returns the error that an endpoint reports inside a stream.
func streamError(object []byte) error {
	if status := errorStatus(object); status != 0 {
		return statusError(status, object)
	}
	err := fmt.Errorf("error in the stream: %s", loggableCodes(object))
	e := newError(llm.ModelError, publicFailing, err)
	if exceedsContext(string(object)) {
		e = newError(llm.TooLarge, publicContext, err)
		e.ContextTokens, e.PromptTokens = contextSizes(object)
	}
	e.Message = errorMessage(object)
	return e
}
