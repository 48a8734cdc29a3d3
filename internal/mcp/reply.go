package mcp

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"strings"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// readJSON reads a JSON body whole. Past the limit the connection is given up.
func readJSON(resp *http.Response) ([]byte, *transport.Failure) {
	defer resp.Body.Close()
	var body bytes.Buffer
	body.Grow(int(min(max(resp.ContentLength, 0), maxError)) + bytes.MinRead) // no more for what only says that it is large
	if _, err := body.ReadFrom(io.LimitReader(resp.Body, maxBody+1)); err != nil {
		return nil, transport.NoReply(err, true)
	}
	if body.Len() > maxBody {
		return nil, transport.AnswerTooLarge(maxBody)
	}
	return body.Bytes(), nil
}

// acceptAnswer returns the answer to the request id that data is.
func acceptAnswer(id jsonrpc.ID, data []byte) (*jsonrpc.Response, *transport.Failure) {
	msg, err := decodeMessage(data)
	if err != nil {
		return nil, transport.BadReply("it does not decode", err)
	}
	answer, ok := msg.(*jsonrpc.Response)
	if !ok || answer.ID != id {
		return nil, transport.BadReply("it answers another request", nil)
	}
	return answer, nil
}

// forgets reports whether a refusal of a request with a session id says that the
// session is gone: 404 does, whatever the body says (2025-11-25 basic/transports); the
// TypeScript SDK's servers answer 400.
func forgets(status int, body []byte) bool {
	return status == http.StatusNotFound ||
		status == http.StatusBadRequest && bytes.Contains(bytes.ToLower(body), []byte("session"))
}

// mediaType is the content type without parameters; "" where it is none.
func mediaType(resp *http.Response) string {
	value := resp.Header.Get("Content-Type")
	switch value {
	case "application/json", "text/event-stream": // nearly always, and not parsed
		return value
	}
	t, _, err := mime.ParseMediaType(value)
	if err != nil {
		return ""
	}
	return strings.ToLower(t)
}

// drain reads at most limit bytes of the body and closes it. A body that ends
// within the limit leaves its connection for the next request.
func drain(resp *http.Response, limit int64) []byte {
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, limit))
	return body
}

// closeBody is what a RoundTripper owes for a request that it doesn't send.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
