package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	maxBody  = 4 << 20  // bytes of one answer, uncompressed: JSON, or one event (F20)
	maxError = 64 << 10 // bytes read of a refusal
	// sideTime bounds requests that no caller waits for: notifications, and the DELETE
	// that ends a session. The SDK sends them on contexts that nobody cancels.
	sideTime = 2 * time.Second
	// answerTime bounds answers to a server's requests: one that is lost leaves the
	// server, and so the call, waiting.
	answerTime = 20 * time.Second

	sessionHeader = "Mcp-Session-Id"
	cancelled     = "notifications/cancelled"
)

// guard stands between the SDK and a server. The SDK ends the session that all runs
// share, with every call in it, at any reply it dislikes: an HTTP status, a content
// type, JSON that doesn't decode, an event that is too large. The guard sees each
// reply first and turns what is wrong with it into an error of that one request,
// which the SDK takes for a refused write: the session lives (F16). It also bounds
// what is read, since the SDK reads JSON and error bodies without limit (F20), and
// never sends the id of a session that the server forgot.
type guard struct {
	next   http.RoundTripper
	listen bool // each session has a standing stream, if the server has one
	watch  bool // where resources can be subscribed to
	log    *slog.Logger
	rests  *sync.WaitGroup // what nobody else waits for: streams that are read to their end, and repeated cancellations
}

func (g guard) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	x := exchangeOf(r.Context())
	if x == nil {
		closeBody(r)
		return nil, fmt.Errorf("%s without an exchange", r.Method)
	}
	// Here, and not only where the call began: a panic that goes through the SDK leaves
	// it waiting for the end of the request, and its session can never be closed.
	defer recovered(g.log, func(f *failure) { resp, err = nil, x.fail(f) })
	switch r.Method {
	case http.MethodGet:
		if x.handshake && r.Header.Get("Last-Event-ID") == "" {
			return g.stand(r, x)
		}
		return g.resume(r, x)
	case http.MethodDelete:
		return g.aside(r, x, http.StatusNoContent, sideTime)
	}
	id, method, err := outgoing(r)
	switch {
	case err != nil:
		closeBody(r)
		return nil, err
	case id.IsValid() && method != "":
		return g.ask(r, x, id, method)
	case method == cancelled && x.handshake:
		// initialize must not be cancelled (2025-11-25 basic/lifecycle), and telling
		// a server that doesn't answer holds the handshake up by 5 s.
		closeBody(r)
		return emptyReply(r, http.StatusAccepted), nil
	case method == cancelled:
		return g.takeBack(r, x)
	}
	bound := sideTime
	if method == "" {
		bound = answerTime
	}
	return g.aside(r, x, http.StatusAccepted, bound)
}

// outgoing is the id and the method of the message that r carries: an answer to the
// server has no method, a notification no id.
func outgoing(r *http.Request) (id jsonrpc.ID, method string, err error) {
	body, err := r.GetBody()
	if err != nil {
		return id, "", fmt.Errorf("read the request again: %w", err)
	}
	// Not jsonrpc.DecodeMessage, which costs 50 KiB: this is the SDK's own writing. For
	// the same reason it is valid.
	data := make([]byte, max(r.ContentLength, 0))
	if _, err := io.ReadFull(body, data); err != nil {
		return id, "", fmt.Errorf("read the request again: %w", err)
	}
	for name, value := range members(data) {
		switch name {
		case "id":
			id, err = idOf(value)
		case "method":
			method, _ = textOf(value)
		}
		if err != nil {
			return id, "", fmt.Errorf("read the request again: %w", err)
		}
	}
	return id, method, nil
}

// idOf is the id that a JSON value stands for, which is valid. Ours are numbers, and to
// read one by way of any costs more than all else in the message: strconv.ParseFloat needs
// so much stack that the call's goroutine gets a larger one there, copied, each time.
func idOf(value json.RawMessage) (jsonrpc.ID, error) {
	if n, err := strconv.ParseInt(string(value), 10, 53); err == nil {
		return jsonrpc.MakeID(float64(n))
	}
	var id any
	if err := json.Unmarshal(value, &id); err != nil {
		return jsonrpc.ID{}, err
	}
	return jsonrpc.MakeID(id)
}

// stale reports whether r carries the id of a session that the server forgot.
func stale(r *http.Request, x *exchange) bool {
	return r.Header.Get(sessionHeader) != "" && x.session.lost.Load()
}

// ask sends a request that has an answer, and checks the answer.
func (g guard) ask(r *http.Request, x *exchange, id jsonrpc.ID, method string) (*http.Response, error) {
	x.begin(id, method)
	if stale(r, x) {
		closeBody(r)
		return nil, x.fail(lostSession(nil))
	}
	if mayAsk(method) && x.session.standing.Load() {
		x.session.company.join(x)
	}
	ctx := x.traced(r.Context())
	if method == discover {
		// A server of before 2026-07-28 may not answer what it doesn't know; what is
		// left of the handshake's time is for initialize.
		dctx, cancel := context.WithCancel(ctx)
		defer time.AfterFunc(x.patience, cancel).Stop()
		ctx = dctx
	}
	resp, err := g.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, x.fail(noReply(err, x.sent.Load()))
	}
	keepID(r, resp)
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return g.refused(r, x, id, resp)
	}
	switch mediaType(resp) {
	case "text/event-stream":
		x.opened()
		s := newStream(x, id, resp.Body, g.log)
		if hollow[method] != nil && s.takes() {
			// Not waited for: the call has its answer, and exchange.finish bounds the rest.
			g.rests.Go(s.finish)
			return nil, errTaken
		}
		resp.Body = s
		return resp, nil
	case "application/json":
		body, f := readJSON(x, resp)
		taken := false
		if f == nil {
			body, taken, f = x.accept(id, body)
		}
		switch {
		case f != nil:
			return nil, x.fail(f)
		case taken:
			return nil, errTaken
		}
		resp.Body = io.NopCloser(bytes.NewReader(body))
		return resp, nil
	}
	// 202 and 204 come here too: a request that is accepted but never answered would
	// keep its caller waiting until the time-out.
	drain(resp, maxError)
	return nil, x.fail(badReply(fmt.Sprintf("content type %.60q", resp.Header.Get("Content-Type")), nil))
}

// readJSON reads a JSON body whole. Past the limit the connection is given up.
func readJSON(x *exchange, resp *http.Response) ([]byte, *failure) {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, noReply(err, true)
	}
	if len(body) > maxBody {
		return nil, tooLarge(maxBody)
	}
	return body, nil
}

// accept checks that data is the answer to the request id, notes it, and returns what
// of it the SDK is to have, if it needs any.
func (x *exchange) accept(id jsonrpc.ID, data []byte) (_ []byte, taken bool, _ *failure) {
	msg, err := x.decode(data)
	if err != nil {
		x.salvage(id, data)
		return nil, false, badReply("it does not decode", err)
	}
	resp, ok := msg.(*jsonrpc.Response)
	if !ok || resp.ID != id {
		return nil, false, badReply("it answers another request", nil)
	}
	x.answer(resp)
	data, taken = x.forSDK(resp, data)
	return data, taken, nil
}

// salvage notes the result of an answer that the SDK refuses to decode, which may be
// for its depth: one schema that is nested too deep would hide all other tools
// (F21). The SDK is told that the request failed; outcome finds the result.
func (x *exchange) salvage(id jsonrpc.ID, data []byte) {
	var w struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  json.RawMessage `json:"result"`
	}
	if json.Unmarshal(data, &w) == nil && w.Version == "2.0" && string(w.ID) == fmt.Sprint(id.Raw()) {
		x.answer(&jsonrpc.Response{ID: id, Result: w.Result})
	}
}

// refused turns a status outside 2xx into an error of this request.
func (g guard) refused(r *http.Request, x *exchange, id jsonrpc.ID, resp *http.Response) (*http.Response, error) {
	body := drain(resp, maxError)
	if r.Header.Get(sessionHeader) != "" && forgets(resp.StatusCode, body) {
		x.session.lost.Store(true)
		return nil, x.fail(lostSession(badStatus(resp.StatusCode)))
	}
	if resp.StatusCode >= 400 && resp.StatusCode < 500 {
		// A JSON-RPC error with a status of its own; the SDK reads it for the
		// versions that server/discover may be tried with.
		if body, _, f := x.accept(id, body); f == nil {
			resp.Body = io.NopCloser(bytes.NewReader(body))
			return resp, nil
		}
	}
	return nil, x.fail(refusal(resp))
}

// resume is the SDK's GET that continues a stream which broke off after an event
// with an id.
func (g guard) resume(r *http.Request, x *exchange) (*http.Response, error) {
	cut := func(err error) (*http.Response, error) {
		return nil, x.abort(&failure{kind: UnknownOutcome, public: "the connection was cut before its answer", err: err})
	}
	if x.resumes.Add(1) > maxResumes {
		return cut(fmt.Errorf("%d attempts to resume", maxResumes))
	}
	if stale(r, x) {
		return cut(nil)
	}
	// Under the call's own context, so a resumed call has no more time than another.
	resp, err := g.next.RoundTrip(r)
	if err != nil {
		return nil, err // the SDK tries again, until maxResumes
	}
	if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests {
		drain(resp, maxError)
		return nil, badStatus(resp.StatusCode)
	}
	if resp.StatusCode != http.StatusOK || mediaType(resp) != "text/event-stream" {
		drain(resp, maxError)
		if resp.StatusCode == http.StatusNotFound && r.Header.Get(sessionHeader) != "" {
			x.session.lost.Store(true)
		}
		return cut(badStatus(resp.StatusCode))
	}
	x.opened()
	resp.Body = newStream(x, x.asked(), resp.Body, g.log)
	return resp, nil
}

// aside sends what nobody waits for, within bound; ok is the status that the SDK is told.
func (g guard) aside(r *http.Request, x *exchange, ok int, bound time.Duration) (*http.Response, error) {
	if stale(r, x) {
		closeBody(r)
		return emptyReply(r, ok), nil
	}
	// The reply's body is of no use to the SDK, and the SDK would not close it in time.
	ctx, stop := context.WithTimeout(r.Context(), bound)
	defer stop()
	resp, err := g.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, x.failAside(noReply(err, true))
	}
	drain(resp, maxError)
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return nil, x.failAside(refusal(resp))
	}
	return emptyReply(r, ok), nil
}

// keepID hides a session id other than the request's own, which would break the
// SDK's session.
func keepID(r *http.Request, resp *http.Response) {
	if id := r.Header.Get(sessionHeader); id != "" && resp.Header.Get(sessionHeader) != id {
		resp.Header.Del(sessionHeader)
	}
}

// mediaType is the content type without parameters; "" where it is none.
func mediaType(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
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

// emptyReply is a reply that no server sent, for a request that was not worth one.
func emptyReply(r *http.Request, status int) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: r,
	}
}
