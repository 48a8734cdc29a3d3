package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"time"

	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Write implements sdk.Connection. It returns when the reply to msg has been processed: the answer to a request is
// then queued for Read, or the RoundTrip has failed. The SDK ends the session if Write returns an error, so it returns
// one only if notifications/initialized fails or ctx carries no RoundTrip.
func (c *httpConn) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	roundTrip := RoundTripOf(ctx)
	if roundTrip == nil {
		return errors.New("the context of a message carries no RoundTrip")
	}
	// A panic must not reach the SDK, even if the SDK's caller recovers from it: the SDK would wait forever for the
	// end of this request, and its session could never be closed.
	defer Recover(c.Logger, roundTrip.fail)
	request, isRequest := msg.(*jsonrpc.Request)
	switch {
	case !isRequest:
		c.sendResponse(ctx, roundTrip.life, msg)
	case request.IsCall():
		c.sendRequest(ctx, roundTrip, standardName(request))
	case request.Method == notificationCancelled:
		c.cancelRequest(ctx, roundTrip, request)
	case request.Method == notificationInitialized:
		if c.wantsStandaloneStream() {
			c.openStandaloneStream()
		}
		// Part of the handshake, whose context limits its time: a server may take long to initialize itself.
		return c.notify(ctx, answerTimeout, http.MethodPost, request)
	default:
		_ = c.notify(ctx, NotifyTimeout, http.MethodPost, request)
	}
	return nil
}

// sendResponse sends msg, answerd's answer to a server's request, with repeatAnswer. It ignores a failure.
func (c *httpConn) sendResponse(ctx, life context.Context, msg jsonrpc.Message) {
	ctx = withRoundTrip(ctx, c.session) // in place of the handshake's RoundTrip
	_ = repeatAnswer(ctx, life, func(ctx context.Context) *Failure {
		failure, _ := errors.AsType[*Failure](c.notify(ctx, answerTimeout, http.MethodPost, msg))
		return failure
	})
}

// repeatAnswer calls post, which sends answerd's answer to a server's request, until the answer has arrived. It calls
// post again only after failures that may be temporary: no reply, 429, or 5xx. A server that gets the answer twice
// ignores the second one. repeatAnswer stops after answerTimeout, and when ctx or life ends. It returns the last
// attempt's failure, or nil if the answer has arrived.
func repeatAnswer(ctx, life context.Context, post func(context.Context) *Failure) (failure *Failure) {
	ctx, stop := context.WithTimeout(ctx, answerTimeout)
	defer stop()
	for attempt := 0; ctx.Err() == nil; attempt++ {
		failure = post(ctx)
		if failure == nil || failure.Lost {
			return failure
		}
		status := failure.Status // 0 if the server did not reply
		mayBeTemporary := status == 0 || status == http.StatusTooManyRequests || status >= 500
		if !mayBeTemporary || !Pause(life, max(Backoff(attempt), failure.RetryAfter())) {
			return failure
		}
	}
	return failure
}

// sendRequest sends the request msg and processes the reply. It delivers the server's answer to the SDK. If it gets no
// valid answer, it ends roundTrip with the failure instead (RoundTrip.fail).
func (c *httpConn) sendRequest(ctx context.Context, roundTrip *RoundTrip, msg *jsonrpc.Request) {
	roundTrip.prepareMessage()
	if c.sessionLost() {
		roundTrip.fail(LostSession(nil))
		return
	}
	if serverMayAsk(msg.Method) {
		c.session.inflight.add(roundTrip) // the server may send its requests on the standalone stream
	}
	r, err := c.newRequest(roundTrip.traceConn(ctx), http.MethodPost, msg)
	if err != nil {
		roundTrip.fail(unsentFailure(err))
		return
	}
	c.idle.waitAndTake(ctx)
	resp, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		roundTrip.fail(roundTrip.failureWithoutReply(err))
		return
	}
	if !isSuccess(resp) {
		c.processRefusal(ctx, roundTrip, msg, resp)
		return
	}
	if msg.Method == methodInitialize {
		c.setSessionID(resp.Header.Get(sessionHeader))
	}
	switch mediaType(resp) {
	case "text/event-stream":
		c.readStream(ctx, roundTrip, msg, resp)
	case "application/json":
		c.processJSON(ctx, roundTrip, msg, resp)
	default:
		// This includes 202 and 204 without a body, because no answer will follow.
		drainBody(resp)
		c.idle.put(resp)
		roundTrip.fail(BadReply(fmt.Sprintf("content type %.60q", resp.Header.Get("Content-Type")), nil))
	}
}

// isSuccess reports whether resp has a 2xx status.
func isSuccess(resp *http.Response) bool { return resp.StatusCode >= 200 && resp.StatusCode < 300 }

// setSessionID records the id that the server has given to the session; "" if it gave none.
func (c *httpConn) setSessionID(id string) {
	c.session.hasID.Store(id != "")
	c.id.Store(id)
}

// processJSON delivers the answer in resp, a JSON reply to msg, to the SDK. Without a valid answer it fails roundTrip.
func (c *httpConn) processJSON(ctx context.Context, roundTrip *RoundTrip, msg *jsonrpc.Request, resp *http.Response) {
	body, failure := readJSON(resp, roundTrip.answerLimit())
	c.idle.put(resp)
	if failure != nil {
		roundTrip.fail(failure)
		return
	}
	answer, failure := decodeReply(msg.ID, body)
	if failure != nil {
		roundTrip.fail(failure)
		return
	}
	c.deliverAnswer(ctx, roundTrip, msg, answer)
}

// deliverAnswer delivers answer, the answer to msg, to the SDK. If answer is not valid, it fails roundTrip.
func (c *httpConn) deliverAnswer(ctx context.Context, roundTrip *RoundTrip, msg *jsonrpc.Request, answer *jsonrpc.Response) {
	if failure := roundTrip.acceptAnswer(answer); failure != nil {
		roundTrip.fail(failure)
		return
	}
	if msg.Method == methodInitialize {
		c.noteInitialized(answer.Result)
	}
	_ = c.deliver(ctx, answer) // an error means that the connection was closed
}

// noteInitialized records result, the result of initialize. If the SDK does not support the version in it, it records
// nothing, because the SDK then ends the handshake.
func (c *httpConn) noteInitialized(result json.RawMessage) {
	var decoded initializeResult
	if json.Unmarshal(result, &decoded) == nil && slices.Contains(sdk.SupportedProtocolVersions(), decoded.Version) {
		c.initialized.Store(&decoded)
	}
}

// processRefusal processes resp, a reply to msg with a status other than 2xx. It fails roundTrip with a failure that is
// Lost if the reply says that the session is lost or, after the handshake, that the server refuses the session's
// protocol version. Otherwise it delivers the JSON-RPC error in the body as the answer. Without such an error, it fails
// roundTrip with the status.
func (c *httpConn) processRefusal(ctx context.Context, roundTrip *RoundTrip, msg *jsonrpc.Request, resp *http.Response) {
	body := drainBody(resp)
	c.idle.put(resp)
	status := resp.StatusCode
	var answer *jsonrpc.Response // nil if the body has none
	if mayCarryAnswer(status) {
		answer, _ = decodeAnswer(msg.ID, body)
	}
	isBadRequest := status == http.StatusBadRequest
	// "session" may be a word of the tool in an answer to this request whose code no server uses for lost sessions.
	isToolError := isBadRequest && answer != nil && !hasCode(answer, lostSessionCodes...)
	// Servers of 2026-07-28 answer an unknown method with 404, and some do so in sessions of earlier versions too.
	isUnknownMethod := answer != nil && hasCode(answer, jsonrpc.CodeMethodNotFound)
	switch {
	case c.SessionID() != "" && saysSessionLost(status, body) && !isToolError && !isUnknownMethod:
		c.session.Lost.Store(true)
		roundTrip.fail(LostSession(statusFailure(status)))
	case isBadRequest && !roundTrip.Handshake && refusesVersion(body, answer):
		roundTrip.fail(&Failure{
			Kind:   Unavailable,
			Public: "it does not continue the session, or has another protocol version",
			NotRun: true,
			Lost:   true,
			Err:    statusFailure(status),
		})
	case answer != nil:
		c.deliverAnswer(ctx, roundTrip, msg, answer)
	default:
		roundTrip.fail(replyFailure(resp))
	}
}

// unsupportedVersion matches the texts with which servers refuse a protocol version. Those built with the SDKs for C# and
// Rust write the name of the header.
var unsupportedVersion = regexp.MustCompile(`(?i)unsupported (mcp.)?protocol.version|protocol.version.*not supported`)

// refusesVersion reports whether a reply with status 400 says that the server does not support the session's protocol
// version, for example after an update or a rollback. A server of an earlier version may instead complain about a
// missing session id or initialize. answer is the JSON-RPC error in body, or nil.
func refusesVersion(body []byte, answer *jsonrpc.Response) bool {
	if answer == nil {
		lower := bytes.ToLower(body)
		return unsupportedVersion.Match(body) || bytes.Contains(lower, []byte("session")) ||
			bytes.Contains(lower, []byte("not initialized"))
	}
	rpc, ok := errors.AsType[*jsonrpc.Error](answer.Error)
	return ok && (rpc.Code == sdk.CodeUnsupportedProtocolVersion || unsupportedVersion.MatchString(rpc.Message))
}

// hasCode reports whether answer is a JSON-RPC error with one of codes.
func hasCode(answer *jsonrpc.Response, codes ...int64) bool {
	rpc, ok := errors.AsType[*jsonrpc.Error](answer.Error)
	return ok && slices.Contains(codes, rpc.Code)
}

// mayCarryAnswer reports whether a JSON-RPC error in the body of a reply with this status counts as the answer. It
// does for 4xx: the error of server/discover, for example, has the versions that the SDK may try. It also does for
// 500, which some servers send with an internal error. It does not for 401, which refuses the token, and for 429,
// whose Retry-After header says when to try again.
func mayCarryAnswer(status int) bool {
	switch status {
	case http.StatusInternalServerError:
		return true
	case http.StatusUnauthorized, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// notify sends an HTTP request with this method whose body is msg, a message that has no answer; msg is nil for DELETE.
// It waits for the reply, for at most timeout. A status other than 2xx is an error. If the session is lost, notify
// sends nothing and returns nil.
func (c *httpConn) notify(ctx context.Context, timeout time.Duration, method string, msg jsonrpc.Message) error {
	if c.sessionLost() {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	r, err := c.newRequest(ctx, method, msg)
	if err != nil {
		return err
	}
	resp, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		return unansweredFailure(err)
	}
	// Only the status matters: a body without end must not delay the sender for more than NotifyTimeout.
	defer time.AfterFunc(NotifyTimeout, stop).Stop()
	drainBody(resp)
	if !isSuccess(resp) {
		return replyFailure(resp)
	}
	return nil
}

// Names of headers, in the canonical form of http.Header.
const (
	versionHeader = "Mcp-Protocol-Version"
	methodHeader  = "Mcp-Method"
	nameHeader    = "Mcp-Name" // the tool, prompt or resource that a request is about
)

// Header values that all requests share. They must not be changed. Appending to one of them copies it, because its
// length equals its capacity.
var (
	jsonOnly     = []string{"application/json"}
	jsonOrStream = []string{"application/json, text/event-stream"}
	streamOnly   = []string{"text/event-stream"}
)

// newRequest returns an HTTP request of this session with the headers that MCP requires. msg is the body; nil for
// none. If msg is a request, ctx must carry its RoundTrip.
func (c *httpConn) newRequest(ctx context.Context, method string, msg jsonrpc.Message) (*http.Request, error) {
	var body io.Reader
	if msg != nil {
		data, err := encodeMessage(msg)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data) // net/http sets GetBody for this type; Bearer.Send needs it
	}

	r, err := http.NewRequestWithContext(ctx, method, c.URL, body)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", method, err)
	}

	switch method {
	case http.MethodPost:
		r.Header["Content-Type"], r.Header["Accept"] = jsonOnly, jsonOrStream
	case http.MethodGet:
		r.Header["Accept"] = streamOnly
	}

	if id := c.SessionID(); id != "" {
		r.Header[sessionHeader] = []string{id}
	}
	request, isRequest := msg.(*jsonrpc.Request)
	version := c.versionOf(request)
	if version != "" {
		r.Header[versionHeader] = []string{version}
	}
	if isRequest && version >= StatelessVersion {
		addRoutingHeaders(r.Header, request, RoundTripOf(ctx))
	}
	return r, nil
}

// versionOf returns the protocol version for the headers of an HTTP request whose body is msg, a request or a
// notification. msg is nil for any other body. The version is "" until it is negotiated.
func (c *httpConn) versionOf(msg *jsonrpc.Request) string {
	if msg != nil && msg.Method == methodDiscover {
		var params struct {
			Meta struct {
				Version string `json:"io.modelcontextprotocol/protocolVersion"`
			} `json:"_meta"`
		}
		_ = json.Unmarshal(msg.Params, &params) // cannot fail: the SDK has written the params
		return params.Meta.Version
	}
	if initialized := c.initialized.Load(); initialized != nil {
		return initialized.Version
	}
	return c.session.Protocol() // no initialize in this session, or not yet
}

// addRoutingHeaders adds the headers by which proxies route requests (2026-07-28 basic/transports, SEP-2243): msg's
// method, the name of msg's target, and for tools/call the Headers of roundTrip.
func addRoutingHeaders(header http.Header, msg *jsonrpc.Request, roundTrip *RoundTrip) {
	header[methodHeader] = []string{msg.Method}
	if name := targetName(msg); name != "" {
		header[nameHeader] = []string{wire.HeaderValue(name)}
	}
	if msg.Method == methodCall {
		for name, value := range roundTrip.Headers {
			header.Set(name, value)
		}
	}
}

// targetName returns the tool, prompt or resource that msg is about: the text of the member "name" or "uri" of its
// params. It returns "" for other methods.
func targetName(msg *jsonrpc.Request) string {
	var targetKey string
	switch msg.Method {
	case methodCall, methodPrompt:
		targetKey = "name"
	case methodRead:
		targetKey = "uri"
	default:
		return ""
	}
	var target string
	// Members cannot fail: the SDK has written the params.
	_ = wire.Members(msg.Params, func(key string, value json.RawMessage) {
		if key == targetKey {
			target, _ = wire.Text(value)
		}
	})
	return target
}

const (
	// resendAfter is the pause between the first and the second cancellation of a request. Each later pause is twice
	// as long as the one before.
	resendAfter = 50 * time.Millisecond
	// maxReadDelay is the time within which a server is assumed to read a request that was sent.
	maxReadDelay = 2 * time.Second
	// maxResendPause is the longest pause between two cancellations. The last one is sent about 13 s after the first,
	// or up to 31 s after it if no cancellation gets a reply.
	maxResendPause = 8 * time.Second
)

// cancelRequest sends msg, the notifications/cancelled for the request of roundTrip. If the server may not have read
// that request yet (maxReadDelay), cancelRequest sends msg again in the background. Request and cancellation are POSTs
// on two connections, and a server ignores the cancellation of a request that it does not know yet. Without a
// repetition, the call would run to its end. No reply shows when the server has read a request, since many servers send
// the headers with the result. A server ignores a second cancellation (2025-11-25 basic/utilities/cancellation).
//
// If the server reads the request within maxReadDelay, at time t after the first cancellation, and replies come at
// once, the next cancellation is sent by 2t + 50 ms. From 2026-07-28 on, cancelRequest sends nothing, because the end
// of the request's stream cancels the request (basic/patterns/cancellation).
func (c *httpConn) cancelRequest(ctx context.Context, roundTrip *RoundTrip, msg *jsonrpc.Request) {
	// The handshake's requests must not be cancelled (2025-11-25 basic/lifecycle).
	mayCancel := !roundTrip.Handshake && roundTrip.sent.Load() && !roundTrip.noCancel.Load()
	if !mayCancel || c.session.Protocol() >= StatelessVersion {
		return
	}
	// The SDK's context ends after 5 s. If the machine was suspended, that time may already be over.
	ctx = context.WithoutCancel(ctx)
	if !c.sendCancel(ctx, roundTrip, msg) && roundTrip.life.Err() == nil {
		c.background.Go(func() { c.resendCancel(ctx, roundTrip, msg) })
	}
}

// sendCancel sends msg, the cancellation of roundTrip's request, once. It returns true if msg need not be sent again:
// the server had certainly read the request before, and has received msg. An error status counts as received.
func (c *httpConn) sendCancel(ctx context.Context, roundTrip *RoundTrip, msg *jsonrpc.Request) (isEffective bool) {
	isRequestRead := time.Since(time.Unix(0, roundTrip.sentAt.Load())) >= maxReadDelay
	failure, _ := errors.AsType[*Failure](c.notify(ctx, NotifyTimeout, http.MethodPost, msg))
	isReceived := failure == nil || failure.Kind != UnknownOutcome
	return isRequestRead && isReceived
}

// resendCancel repeats msg, the cancellation of roundTrip's request, with growing pauses until a cancellation is
// certainly effective or the pause exceeds maxResendPause. When the life of roundTrip ends, it sends msg one last time.
func (c *httpConn) resendCancel(ctx context.Context, roundTrip *RoundTrip, msg *jsonrpc.Request) {
	defer Recover(c.Logger, func(*Failure) {})
	for pause := resendAfter; pause <= maxResendPause; pause *= 2 {
		// Closing the session is not enough: some servers keep calls running after DELETE.
		isClosing := !Pause(roundTrip.life, pause)
		if isClosing {
			Pause(ctx, resendAfter)
		}
		if c.sendCancel(ctx, roundTrip, msg) || isClosing {
			return
		}
	}
}
