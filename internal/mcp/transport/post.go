package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Write implements sdk.Connection. It returns when the reply to msg is processed. For a request, the answer is then
// queued for Read, or the RoundTrip has failed. The SDK ends the session after an error, so Write returns an error
// only if notifications/initialized fails or ctx carries no RoundTrip.
func (c *httpConn) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	trip := RoundTripOf(ctx)
	if trip == nil {
		return errors.New("the context of a message carries no RoundTrip")
	}
	// The panic must not reach the SDK, even if the caller of the SDK recovers from it: the SDK would wait for
	// the end of this request forever, and its session could never be closed.
	defer Recover(c.Logger, trip.fail)
	m, ok := msg.(*jsonrpc.Request)
	switch {
	case !ok:
		c.sendResponse(ctx, trip.life, msg)
	case m.IsCall():
		c.sendRequest(ctx, trip, standardName(m))
	case m.Method == notificationCancelled:
		c.cancelRequest(ctx, trip, m)
	case m.Method == notificationInitialized:
		if c.wantsStandaloneStream() {
			c.openStandaloneStream()
		}
		// Part of the handshake, whose context bounds it: a server may take long to initialize itself.
		return c.notify(ctx, answerTimeout, http.MethodPost, m)
	default:
		_ = c.notify(ctx, NotifyTimeout, http.MethodPost, m)
	}
	return nil
}

// sendResponse sends msg, our answer to a request of the server, until repeatAnswer gives up.
func (c *httpConn) sendResponse(ctx, life context.Context, msg jsonrpc.Message) {
	// ctx carries the RoundTrip of the handshake. The answer gets its own, so that it can renew a token.
	ctx = context.WithValue(ctx, roundTripKey{}, &RoundTrip{Session: c.session})
	_ = repeatAnswer(ctx, life, func(ctx context.Context) *Failure {
		f, _ := errors.AsType[*Failure](c.notify(ctx, answerTimeout, http.MethodPost, msg))
		return f
	})
}

// repeatAnswer calls post, which sends our answer to a request of the server, until the answer has arrived. It calls
// post again only after failures that may be temporary: no reply, 429, or 5xx. A server that gets the answer
// twice ignores the second one. repeatAnswer returns the failure of the last attempt; nil if the answer has arrived. It
// gives up after answerTimeout, and when ctx or life ends.
func repeatAnswer(ctx, life context.Context, post func(context.Context) *Failure) (last *Failure) {
	ctx, stop := context.WithTimeout(ctx, answerTimeout)
	defer stop()
	for failures := 0; ctx.Err() == nil; failures++ {
		if last = post(ctx); last == nil || last.Lost {
			break
		}
		mayRepeat := last.Status == 0 || last.Status == http.StatusTooManyRequests || last.Status >= 500
		if !mayRepeat || !Pause(life, max(Backoff(failures), last.RetryAfter())) {
			break
		}
	}
	return last
}

// sendRequest sends one of our requests and processes the reply. It hands the answer to the SDK, or fails trip.
func (c *httpConn) sendRequest(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request) {
	trip.prepareMessage()
	if c.sessionLost() {
		trip.fail(LostSession(nil))
		return
	}
	if serverMayAsk(msg.Method) && c.session.standalone.Load() {
		c.session.inflight.add(trip)
	}
	r, err := c.newRequest(trip.traceConn(ctx), http.MethodPost, msg)
	if err != nil {
		trip.fail(noReply(err, false))
		return
	}
	c.idle.takeConn(ctx)
	resp, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		trip.fail(noReply(err, trip.sent.Load()))
		return
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		c.processRefusal(ctx, trip, msg, resp)
		return
	}
	if msg.Method == methodInitialize {
		id := resp.Header.Get(sessionHeader)
		c.session.hasID.Store(id != "")
		c.mu.Lock()
		c.id = id
		c.mu.Unlock()
	}

	switch mediaType(resp) {
	case "text/event-stream":
		trip.streamOpened()
		c.readStream(ctx, trip, msg, resp)
	case "application/json":
		c.processJSON(ctx, trip, msg, resp)
	default:
		// Also for 202 and 204 without a body, because no answer will follow.
		drainBody(resp)
		c.idle.putConn(resp)
		trip.fail(BadReply(fmt.Sprintf("content type %.60q", resp.Header.Get("Content-Type")), nil))
	}
}

// processJSON delivers the answer in resp, a JSON reply to msg, or fails trip if there is no valid answer in it.
func (c *httpConn) processJSON(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request, resp *http.Response) {
	body, failure := readJSON(resp, trip.answerLimit())
	c.idle.putConn(resp)
	if failure != nil {
		trip.fail(failure)
		return
	}
	answer, failure := decodeReply(msg.ID, body)
	if failure != nil {
		trip.fail(failure)
		return
	}
	c.deliverAnswer(ctx, trip, msg, answer)
}

// deliverAnswer hands the SDK the answer to m, or fails trip if the answer is not valid.
func (c *httpConn) deliverAnswer(ctx context.Context, trip *RoundTrip, m *jsonrpc.Request, answer *jsonrpc.Response) {
	if f := trip.acceptAnswer(answer); f != nil {
		trip.fail(f)
		return
	}
	if m.Method == methodInitialize {
		c.noteInitialized(answer.Result)
	}
	_ = c.deliver(ctx, answer) // an error means that the connection was closed
}

// noteInitialized records the protocol version and the capabilities in the result of initialize. It records nothing
// if the SDK does not support the version, since the SDK then ends the handshake.
func (c *httpConn) noteInitialized(result json.RawMessage) {
	var decoded struct {
		Version      string `json:"protocolVersion"`
		Capabilities struct {
			Resources struct {
				Subscribe bool `json:"subscribe"`
			} `json:"resources"`
			Tools struct {
				ListChanged bool `json:"listChanged"`
			} `json:"tools"`
		} `json:"capabilities"`
	}
	if json.Unmarshal(result, &decoded) != nil || !slices.Contains(sdk.SupportedProtocolVersions(), decoded.Version) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = decoded.Version
	c.canSubscribe = decoded.Capabilities.Resources.Subscribe
	c.announcesTools = decoded.Capabilities.Tools.ListChanged
}

// processRefusal processes resp, a reply to msg with a status other than 2xx. It fails trip with LostSession if the
// reply says that, delivers the JSON-RPC error in the body as the answer, or else fails trip with the status.
func (c *httpConn) processRefusal(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request, resp *http.Response) {
	body := drainBody(resp)
	c.idle.putConn(resp)
	var answer *jsonrpc.Response // nil if there is none
	if mayCarryAnswer(resp.StatusCode) {
		answer, _ = decodeAnswer(msg.ID, body)
	}
	// "session" may be a word of the tool in an answer to this request whose code no server uses for lost sessions.
	isToolError := resp.StatusCode == http.StatusBadRequest && answer != nil && !mayMeanLostSession(answer)
	if c.SessionID() != "" && saysSessionLost(resp.StatusCode, body) && !isToolError {
		c.session.Lost.Store(true)
		trip.fail(LostSession(badStatus(resp.StatusCode)))
		return
	}
	if !trip.Handshake && resp.StatusCode == http.StatusBadRequest && refusesVersion(body, answer) {
		trip.fail(&Failure{
			Kind:   Unavailable,
			Public: "it does not continue the session, or has another protocol version",
			NotRun: true,
			Lost:   true,
			Err:    badStatus(resp.StatusCode),
		})
		return
	}
	if answer != nil {
		c.deliverAnswer(ctx, trip, msg, answer)
		return
	}
	trip.fail(refusal(resp))
}

// refusesVersion reports whether the body of a reply with status 400 says that the server does not support the protocol
// version of the session, such as after an update or a rollback. A server of an earlier version may instead complain
// about a missing session id or initialize. answer is the JSON-RPC error in body; nil if there is none.
func refusesVersion(body []byte, answer *jsonrpc.Response) bool {
	if answer == nil {
		lower := bytes.ToLower(body)
		words := []string{"unsupported protocol version", "session", "not initialized"}
		return slices.ContainsFunc(words, func(s string) bool { return bytes.Contains(lower, []byte(s)) })
	}
	rpc, ok := errors.AsType[*jsonrpc.Error](answer.Error)
	return ok && rpc.Code == sdk.CodeUnsupportedProtocolVersion
}

// mayMeanLostSession reports whether answer is a JSON-RPC error with one of lostSessionCodes.
func mayMeanLostSession(answer *jsonrpc.Response) bool {
	rpc, ok := errors.AsType[*jsonrpc.Error](answer.Error)
	return ok && slices.Contains(lostSessionCodes, rpc.Code)
}

// mayCarryAnswer reports whether a JSON-RPC error in the body of a reply with that status counts as the answer. It
// does for 4xx: the error of server/discover, for example, has the versions that the SDK may try. It also does for
// 500, which some servers send with an internal error. It does not for 401 and 429, whose status and headers say
// more than the error: the token is refused, or the header Retry-After says when to try again.
func mayCarryAnswer(status int) bool {
	switch status {
	case http.StatusInternalServerError:
		return true
	case http.StatusUnauthorized, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// notify sends a message that has no answer, or DELETE with a nil m, and waits for the reply for at most timeout. A
// reply without a 2xx status is an error. If the session is lost, notify sends nothing and returns nil.
func (c *httpConn) notify(ctx context.Context, timeout time.Duration, method string, m jsonrpc.Message) error {
	if c.sessionLost() {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	r, err := c.newRequest(ctx, method, m)
	if err != nil {
		return err
	}
	resp, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		return noReply(err, true)
	}
	// Only the status matters: a body without end must not delay the sender longer than NotifyTimeout.
	defer time.AfterFunc(NotifyTimeout, stop).Stop()
	drainBody(resp)
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return refusal(resp)
	}
	return nil
}

// Names of headers, in the form of http.Header.
const (
	versionHeader = "Mcp-Protocol-Version"
	methodHeader  = "Mcp-Method"
	nameHeader    = "Mcp-Name" // of the tool, prompt or resource that a request is about
)

// Header values that all requests share. They must not be changed. Appending to one of them copies it, because its
// length is its capacity.
var (
	jsonOnly     = []string{"application/json"}
	jsonOrStream = []string{"application/json, text/event-stream"}
	streamOnly   = []string{"text/event-stream"}
)

// newRequest returns an HTTP request of this session with the headers that MCP demands. msg is the body; it may be
// nil. If msg is one of our requests, ctx must carry its RoundTrip.
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

	c.mu.Lock()
	id, version := c.id, c.version
	c.mu.Unlock()
	if id != "" {
		r.Header[sessionHeader] = []string{id}
	}

	rpc, _ := msg.(*jsonrpc.Request) // nil for responses and without msg
	switch {
	case rpc != nil && rpc.Method == methodDiscover:
		version = discoverVersion(rpc.Params)
	case version == "": // a session without initialize
		version = c.session.Protocol()
	}
	if version != "" {
		r.Header[versionHeader] = []string{version}
	}
	if rpc != nil && version >= StatelessVersion {
		addRoutingHeaders(r.Header, rpc, RoundTripOf(ctx))
	}
	return r, nil
}

// discoverVersion returns the protocol version in the params of server/discover.
func discoverVersion(params json.RawMessage) string {
	var w struct {
		Meta struct {
			Version string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(params, &w) // the SDK has written it
	return w.Meta.Version
}

// addRoutingHeaders adds the headers by which proxies route the request m (2026-07-28 basic/transports, SEP-2243):
// its method, the name of its target, and for tools/call the Headers of trip.
func addRoutingHeaders(h http.Header, m *jsonrpc.Request, trip *RoundTrip) {
	h[methodHeader] = []string{m.Method}
	if name := targetName(m); name != "" {
		h[nameHeader] = []string{wire.HeaderValue(name)}
	}
	if m.Method == methodCall {
		for name, value := range trip.Headers {
			h.Set(name, value)
		}
	}
}

// targetName returns the name of the tool or prompt, or the URI of the resource, that msg is about; ""
// for other methods.
func targetName(msg *jsonrpc.Request) string {
	var key string
	switch msg.Method {
	case methodCall, methodPrompt:
		key = "name"
	case methodRead:
		key = "uri"
	default:
		return ""
	}
	var target string
	_ = wire.Members(msg.Params, func(name string, value json.RawMessage) { // the SDK wrote them, so they are valid
		if name == key {
			target, _ = wire.Text(value)
		}
	})
	return target
}

const (
	// resendAfter is the pause between the first and the second cancellation of a request. Each further pause is
	// twice as long.
	resendAfter = 50 * time.Millisecond
	// maxReadDelay is the time after which the server must have read a request that was sent.
	maxReadDelay = 2 * time.Second
	// maxResendPause bounds the pause between two cancellations. So the last one is sent 13 s after the first, or
	// up to 31 s after it if no cancellation gets a reply.
	maxResendPause = 8 * time.Second
)

// cancelRequest sends msg, the notifications/cancelled for the request of trip. While the server may not have read
// the request yet (maxReadDelay), cancelRequest sends msg again in the background: request and cancellation are POSTs
// on two connections, and a server ignores the cancellation of a request that it does not know. The call would then
// run to its end. No reply shows when the server has read a request, since many servers send the headers with
// the result. A server ignores a second cancellation (2025-11-25 basic/utilities/cancellation).
//
// If the server reads the request within maxReadDelay, and at time t after the first cancellation, the next
// cancellation follows at 2t + 50 ms at the latest, provided that replies come at once. From 2026-07-28 on
// cancelRequest sends nothing: the end of the request's stream is the cancellation (basic/patterns/cancellation).
func (c *httpConn) cancelRequest(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request) {
	// Requests of the handshake must not be cancelled (2025-11-25 basic/lifecycle).
	if trip.Handshake || !trip.sent.Load() || trip.noCancel.Load() || c.session.Protocol() >= StatelessVersion {
		return
	}
	// The SDK's context ends after 5 s, which may be over already if the machine was suspended.
	ctx = context.WithoutCancel(ctx)
	if !c.sendCancel(ctx, trip, msg) && trip.life.Err() == nil {
		c.background.Go(func() { c.resendCancel(ctx, trip, msg) })
	}
}

// sendCancel sends m, which cancels the request of trip, once. It returns true if the server certainly had read the
// request before and has got m. A reply with an error status counts, too.
func (c *httpConn) sendCancel(ctx context.Context, trip *RoundTrip, m *jsonrpc.Request) (certain bool) {
	requestRead := time.Since(time.Unix(0, trip.sentAt.Load())) >= maxReadDelay
	f, _ := errors.AsType[*Failure](c.notify(ctx, NotifyTimeout, http.MethodPost, m))
	return requestRead && (f == nil || f.Kind != UnknownOutcome)
}

// resendCancel sends msg, which cancels the request of trip, with growing pauses until sendCancel is certain, or the
// pause exceeds maxResendPause. When the life of trip ends, it sends msg a last time.
func (c *httpConn) resendCancel(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request) {
	defer Recover(c.Logger, func(*Failure) {})
	for wait := resendAfter; wait <= maxResendPause; wait *= 2 {
		// Closing the session does not replace the cancellation: some servers keep calls running after DELETE.
		closing := !Pause(trip.life, wait)
		if closing {
			Pause(ctx, resendAfter)
		}
		if c.sendCancel(ctx, trip, msg) || closing {
			return
		}
	}
}
