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

// Write sends msg. For a request it returns when the answer has come. An error ends the session, so
// it returns one only in the handshake.
func (c *httpConn) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	trip := RoundTripOf(ctx)
	if trip == nil {
		return errors.New("the context of a message carries no RoundTrip")
	}
	// Here, and not only where the call began: after a panic that goes through the SDK, the SDK waits
	// for the end of the request, and its session can never be closed.
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
		// The handshake waits for the reply, and its context bounds it: a server may do its own work first.
		return c.notify(ctx, answerTimeout, http.MethodPost, m)
	default:
		_ = c.notify(ctx, NotifyTimeout, http.MethodPost, m)
	}
	return nil
}

// sendResponse sends the answer to a request of the server.
func (c *httpConn) sendResponse(ctx, life context.Context, msg jsonrpc.Message) {
	// A RoundTrip of its own, because each answer may renew a token once. The context's is the handshake's.
	ctx = context.WithValue(ctx, roundTripKey{}, &RoundTrip{Session: c.session})
	_ = repeatAnswer(ctx, life, func(ctx context.Context) *Failure {
		f, _ := errors.AsType[*Failure](c.notify(ctx, answerTimeout, http.MethodPost, msg))
		return f
	})
}

// repeatAnswer sends the answer to a request of the server by post, and sends it again until life ends if it may not have
// got through: a server does not need a second one, and ignores it. It returns the last failure.
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

// sendRequest sends a request of ours and processes the reply.
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
		body, failure := readJSON(resp, trip.answerLimit())
		c.idle.putConn(resp)
		var answer *jsonrpc.Response
		if failure == nil {
			answer, failure = decodeReply(msg.ID, body)
		}
		if failure != nil {
			trip.fail(failure)
			return
		}
		c.deliverAnswer(ctx, trip, msg, answer)
	default:
		// 202 and 204 come here too: a request that is accepted but never answered would keep its
		// caller waiting until the timeout.
		drainBody(resp, maxRefusal)
		c.idle.putConn(resp)
		trip.fail(BadReply(fmt.Sprintf("content type %.60q", resp.Header.Get("Content-Type")), nil))
	}
}

// deliverAnswer hands the SDK the answer to m.
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

// noteInitialized notes what initialize has negotiated. A version that the SDK does not know ends the
// handshake.
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

// processRefusal ends a request whose reply has a status other than 2xx: the session is lost, the body has the answer, or
// the request fails with the status.
func (c *httpConn) processRefusal(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request, resp *http.Response) {
	body := drainBody(resp, maxRefusal)
	c.idle.putConn(resp)
	var answer *jsonrpc.Response // nil if there is none
	if mayCarryAnswer(resp.StatusCode) {
		answer, _ = decodeAnswer(msg.ID, body)
	}
	isToolError := resp.StatusCode == http.StatusBadRequest && answer != nil && isAboutParams(answer)
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

// refusesVersion reports whether the body of a reply with 400 says that the server does not have the protocol
// version of the session, such as after an update or a rollback, or that a session id is missing, which a server
// of an earlier version may have noticed first. answer is the answer in body, nil if there is none.
func refusesVersion(body []byte, answer *jsonrpc.Response) bool {
	if answer == nil {
		lower := bytes.ToLower(body)
		words := []string{"unsupported protocol version", "session", "not initialized"}
		return slices.ContainsFunc(words, func(s string) bool { return bytes.Contains(lower, []byte(s)) })
	}
	rpc, ok := errors.AsType[*jsonrpc.Error](answer.Error)
	return ok && rpc.Code == sdk.CodeUnsupportedProtocolVersion
}

// isAboutParams reports whether the server has read the params of a request and refused them. So it knows
// the session, and a session in its message is one of the tool.
func isAboutParams(answer *jsonrpc.Response) bool {
	rpc, ok := errors.AsType[*jsonrpc.Error](answer.Error)
	return ok && rpc.Code == jsonrpc.CodeInvalidParams
}

// mayCarryAnswer reports whether a JSON-RPC error in the body of a reply with that status is the answer: 4xx is, and the
// SDK reads in the error the versions that server/discover may be tried with. So is 500, which some servers send
// with an internal error. 401 and 429 say themselves what to do, about the token or with Retry-After, which a
// JSON-RPC error does not.
func mayCarryAnswer(status int) bool {
	isClientError := status >= 400 && status < 500
	return status == http.StatusInternalServerError || isClientError && status != http.StatusUnauthorized && status != http.StatusTooManyRequests
}

// notify sends a message that has no answer, or a DELETE, within timeout.
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
	// The status counts. A reply that has no end must not hold the sender up.
	defer time.AfterFunc(NotifyTimeout, stop).Stop()
	drainBody(resp, maxRefusal)
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

// Header values that all requests share. Appending to one copies it, because its capacity is used
// up.
var (
	jsonOnly     = []string{"application/json"}
	jsonOrStream = []string{"application/json, text/event-stream"}
	streamOnly   = []string{"text/event-stream"}
)

// newRequest returns a request of this session, with msg as its body unless msg is nil. It is sent once,
// and may be changed on the way.
func (c *httpConn) newRequest(ctx context.Context, method string, msg jsonrpc.Message) (*http.Request, error) {
	var body io.Reader
	if msg != nil {
		data, err := jsonrpc.EncodeMessage(msg)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data) // which net/http can read again, for a new token
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

	ours, _ := msg.(*jsonrpc.Request)
	switch {
	case ours != nil && ours.Method == methodDiscover:
		version = discoverVersion(ours.Params)
	case version == "":
		version = c.session.Protocol()
	}
	if version != "" {
		r.Header[versionHeader] = []string{version}
	}
	if ours != nil && version >= StatelessVersion {
		addRoutingHeaders(r.Header, ours, RoundTripOf(ctx))
	}
	return r, nil
}

// discoverVersion returns the protocol version of a server/discover.
func discoverVersion(params json.RawMessage) string {
	var w struct {
		Meta struct {
			Version string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(params, &w) // the SDK has written it
	return w.Meta.Version
}

// addRoutingHeaders adds the headers that proxies route by (2026-07-28 basic/transports, SEP-2243).
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
	key := "name"
	switch msg.Method {
	case methodCall, methodPrompt:
	case methodRead:
		key = "uri"
	default:
		return ""
	}
	var text string
	_ = wire.Members(msg.Params, func(name string, value json.RawMessage) { // the SDK has written it
		if name == key {
			text, _ = wire.Text(value)
		}
	})
	return text
}

const (
	// resendAfter is after how long a cancellation is sent for the second time; each further pause
	// is twice as long.
	resendAfter = 50 * time.Millisecond
	// readTime is the age from which on the server must have read a call.
	readTime = 2 * time.Second
	// maxResendPause bounds the pause: a cancellation that does not get through is given up 13 s
	// after the first, or up to 31 s if each one waits for its reply in vain.
	maxResendPause = 8 * time.Second
)

// cancelRequest sends notifications/cancelled for the request of trip, and sends it again while the
// request is so new that the server may not have read it. They are two POSTs on two connections,
// neither of which waits for the other, and a server drops a cancellation of a request that it
// does not know: the call would then run to its end. No reply tells when the request was read,
// since many servers send the headers with the result. A repetition does no harm, because the
// receiver ignores it (2025-11-25 basic/utilities/cancellation).
//
// A call that is read within readTime, and t after it was cancelled, is so cancelled at most
// t + 50 ms later. From 2026-07-28 on the end of the call's stream is its cancellation, which
// nothing can overtake, and there is no such notification over HTTP (basic/patterns/cancellation).
func (c *httpConn) cancelRequest(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request) {
	if trip.Handshake || !trip.sent.Load() || trip.noCancel.Load() || c.session.Protocol() >= StatelessVersion {
		// initialize must not be cancelled (2025-11-25 basic/lifecycle). Else there is nothing to
		// cancel.
		return
	}
	// The SDK gave it 5 s, which are over if the machine stood still that long.
	ctx = context.WithoutCancel(ctx)
	if !c.sendCancel(ctx, trip, msg) && trip.life.Err() == nil {
		// The SDK's session does not wait for these.
		c.background.Go(func() { c.resendCancel(ctx, trip, msg) })
	}
}

// sendCancel sends m, which cancels the request of trip, and reports whether it got through after the
// server must have read that request. A cancellation that is refused got through, too.
func (c *httpConn) sendCancel(ctx context.Context, trip *RoundTrip, m *jsonrpc.Request) (certain bool) {
	read := time.Since(time.Unix(0, trip.sentAt.Load())) >= readTime
	f, _ := errors.AsType[*Failure](c.notify(ctx, NotifyTimeout, http.MethodPost, m))
	return read && (f == nil || f.Kind != UnknownOutcome)
}

// resendCancel sends msg, which cancels the request of trip, until it is certain that the server has
// read it.
func (c *httpConn) resendCancel(ctx context.Context, trip *RoundTrip, msg *jsonrpc.Request) {
	defer Recover(c.Logger, func(*Failure) {})
	for wait := resendAfter; wait <= maxResendPause; wait *= 2 {
		// Some servers keep calls running after DELETE, so msg is sent a last time during close.
		closing := !Pause(trip.life, wait)
		if closing {
			Pause(ctx, resendAfter)
		}
		if c.sendCancel(ctx, trip, msg) || closing {
			return
		}
	}
}
