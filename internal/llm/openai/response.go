package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"

	"answerd/internal/llm"
	"answerd/internal/sse"
)

// readResponse emits the parts of a reply with a 2xx status. A body that begins with a brace is one JSON object, no
// matter what its Content-Type says. Any other body is an event stream if its Content-Type or its first bytes say so.
// Otherwise readResponse returns an error. It returns nil after a complete answer.
func (m *Model) readResponse(answer *assembler, idle *idleTimer, res *http.Response) error {
	var first [512]byte
	head, err := readFirstText(res.Body, first[:])
	if err != nil {
		return readError(answer, err)
	}
	rest := io.MultiReader(bytes.NewReader(head), res.Body)
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch {
	case head[0] == '{':
		// Some gateways ignore the request for a stream, and some send an error object with the content type of a
		// stream.
		return m.readCompletion(answer, rest)
	case media == "text/event-stream" || looksLikeEvents(head):
		return m.readStream(answer, idle, rest)
	default:
		return newError(llm.ModelError, publicNonsense, fmt.Errorf("content type %.64q: %s", media, loggableCodes(head)))
	}
}

// readFirstText reads from body until something other than white space arrives, and returns that without the white
// space before it. The result is a part of buf, and not empty if the error is nil.
func readFirstText(body io.Reader, buf []byte) ([]byte, error) {
	for {
		n, err := body.Read(buf)
		if text := bytes.TrimLeft(buf[:n], " \t\r\n"); len(text) > 0 {
			return text, nil // an error that came with it is returned again by the next Read
		}
		if err != nil {
			return nil, err
		}
	}
}

// looksLikeEvents reports whether head, the beginning of a body, looks like an event stream. The Content-Type alone is
// not reliable.
func looksLikeEvents(head []byte) bool {
	head = bytes.TrimPrefix(head, []byte("\ufeff"))
	fields := []string{":", "data:", "event:", "id:", "retry:"}
	return slices.ContainsFunc(fields, func(field string) bool { return bytes.HasPrefix(head, []byte(field)) })
}

// readCompletion reads a completion that is not streamed, of at most maxAnswer bytes, and emits its parts.
func (m *Model) readCompletion(answer *assembler, r io.Reader) error {
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return readError(answer, err)
	}
	if len(body) > maxAnswer {
		return newError(llm.ModelError, publicTooLarge, errors.New("the completion exceeds 16 MiB"))
	}
	if err := answer.decodeChunk(body); err != nil {
		return err
	}
	return answer.finishAnswer()
}

// readStream reads a completion that arrives in chunks, and emits its parts. It returns nil if the answer is complete
// at [DONE] or at the end of the stream. After finish_reason, it waits at most afterFinish for each read.
func (m *Model) readStream(answer *assembler, idle *idleTimer, body io.Reader) error {
	frames := sse.NewReader(body, maxEvent)
	for {
		frame, err := frames.Next()
		if err != nil {
			return readError(answer, err)
		}
		data := bytes.TrimSpace(frame.Data)
		if bytes.Equal(data, doneMarker) {
			if err := answer.finishAnswer(); err != nil {
				return err
			}
			drainStream(frames, idle)
			return nil
		}
		if len(data) == 0 {
			continue
		}
		if frame.Event == "error" {
			return answer.decodeErrorEvent(data)
		}
		if err := answer.decodeChunk(data); err != nil {
			return chunkError(frames, answer, err)
		}
		if answer.hasFinished() {
			idle.shortenIdle(afterFinish)
		}
	}
}

// drainStream reads the rest of the reply after [DONE], so that the connection can be reused. It gives up if no byte
// arrives for afterDone, or after maxDrained events.
func drainStream(frames *sse.Reader, idle *idleTimer) {
	idle.shortenIdle(afterDone)
	for range maxDrained {
		if _, err := frames.Next(); err != nil {
			return
		}
	}
}

// chunkError returns the error for a chunk that could not be decoded because of err. If the chunk was cut off, the
// connection counts as broken. If the chunk is malformed, chunkError returns err. To tell the two apart, it reads the
// next event, because only the last chunk of a stream can be cut off.
func chunkError(frames *sse.Reader, answer *assembler, err error) error {
	if !errors.Is(err, errCut) {
		return err
	}
	_, readErr := frames.Next()
	if readErr == nil {
		return err
	}
	if readErr == io.EOF {
		readErr = io.ErrUnexpectedEOF // the end came too early, so readError must not finish the answer
	}
	return readError(answer, readErr)
}

// readError returns the result for an answer after reading its reply failed with err. If err is io.EOF, it finishes the
// answer. A reply that exceeds a size limit is an *llm.Error. Any other error is wrapped, for classifyError.
func readError(answer *assembler, err error) error {
	switch {
	case err == io.EOF:
		return answer.finishAnswer()
	case errors.Is(err, sse.ErrTooLarge) || errors.Is(err, errStreamTooLarge):
		return newError(llm.ModelError, publicTooLarge, err)
	}
	return fmt.Errorf("read the answer: %w", err)
}

// streamError returns the error for an error object inside a stream. It is a *retryableError if the object contains or
// implies an HTTP status, and otherwise an *llm.Error.
func streamError(object []byte) error {
	if status := errorStatus(object); status != 0 {
		return statusError(status, object)
	}
	modelErr := newError(llm.ModelError, publicFailing, fmt.Errorf("error in the stream: %s", loggableCodes(object)))
	if exceedsContext(object) {
		modelErr.Kind, modelErr.Public = llm.TooLarge, publicContext
		modelErr.ContextTokens, modelErr.PromptTokens = contextSizes(object)
	}
	modelErr.Message = errorMessage(object)
	return modelErr
}
