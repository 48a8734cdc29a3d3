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
	x := RoundTripOf(ctx)
	if x == nil {
		return errors.New("the context of a message carries no RoundTrip")
	}
	// Here, and not only where the call began: after a panic that goes through the SDK, the SDK waits
	// for the end of the request, and its session can never be closed.
	defer Recover(c.Logger, x.fail)
	m, ok := msg.(*jsonrpc.Request)
	switch {
	case !ok:
		_ = c.notify(ctx, answerTimeout, http.MethodPost, msg)
	case m.IsCall():
		c.sendRequest(ctx, x, standardName(m))
	case m.Method == notificationCancelled:
		c.cancelRequest(ctx, x, m)
	case m.Method == notificationInitialized:
		if c.wantsStandaloneStream() {
			c.openStandaloneStream()
		}
		return c.notify(ctx, NotifyTimeout, http.MethodPost, m)
	default:
		_ = c.notify(ctx, NotifyTimeout, http.MethodPost, m)
	}
	return nil
}

// sendRequest sends a request of ours and processes the reply.
func (c *httpConn) sendRequest(ctx context.Context, x *RoundTrip, m *jsonrpc.Request) {
	x.begin()
	if c.stale() {
		x.fail(LostSession(nil))
		return
	}
	if serverMayAsk(m.Method) && c.session.standalone.Load() {
		c.session.inflight.add(x)
	}
	r, err := c.newRequest(x.traceConn(ctx), http.MethodPost, m)
	if err != nil {
		x.fail(noReply(err, false))
		return
	}
	c.idle.take(ctx)
	resp, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		x.fail(noReply(err, x.sent.Load()))
		return
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		c.processRefusal(ctx, x, m, resp)
		return
	}
	if m.Method == methodInitialize {
		id := resp.Header.Get(sessionHeader)
		c.session.hasID.Store(id != "")
		c.mu.Lock()
		c.id = id
		c.mu.Unlock()
	}
	switch mediaType(resp) {
	case "text/event-stream":
		x.streamOpened()
		c.readStream(ctx, x, m, resp)
	case "application/json":
		body, f := readJSON(resp, x.answerLimit())
		c.idle.put(resp)
		var answer *jsonrpc.Response
		if f == nil {
			answer, f = decodeAnswer(m.ID, body)
		}
		if f != nil {
			x.fail(f)
			return
		}
		c.deliverAnswer(ctx, x, m, answer)
	default:
		// 202 and 204 come here too: a request that is accepted but never answered would keep its
		// caller waiting until the timeout.
		drainBody(resp, maxRefusal)
		c.idle.put(resp)
		x.fail(BadReply(fmt.Sprintf("content type %.60q", resp.Header.Get("Content-Type")), nil))
	}
}

// deliverAnswer hands the SDK the answer to m.
func (c *httpConn) deliverAnswer(ctx context.Context, x *RoundTrip, m *jsonrpc.Request, answer *jsonrpc.Response) {
	if f := x.acceptAnswer(answer); f != nil {
		x.fail(f)
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
	var w struct {
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
	if json.Unmarshal(result, &w) != nil || !slices.Contains(sdk.SupportedProtocolVersions(), w.Version) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version, c.canUpdate, c.announces = w.Version, w.Capabilities.Resources.Subscribe, w.Capabilities.Tools.ListChanged
}

// processRefusal processes a reply with a status other than 2xx.
func (c *httpConn) processRefusal(ctx context.Context, x *RoundTrip, m *jsonrpc.Request, resp *http.Response) {
	body := drainBody(resp, maxRefusal)
	c.idle.put(resp)
	if c.SessionID() != "" && saysSessionLost(resp.StatusCode, body) {
		c.session.Lost.Store(true)
		x.fail(LostSession(badStatus(resp.StatusCode)))
		return
	}
	switch {
	case resp.StatusCode < 400, resp.StatusCode >= 500:
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusTooManyRequests:
		// These say what to do, about the token or with Retry-After; a JSON-RPC error in the body does not.
	default:
		// A JSON-RPC error with a status of its own; the SDK reads it for the versions that
		// server/discover may be tried with.
		if answer, f := decodeAnswer(m.ID, body); f == nil {
			c.deliverAnswer(ctx, x, m, answer)
			return
		}
	}
	x.fail(refusal(resp))
}

// notify sends a message that has no answer, or a DELETE, within timeout.
func (c *httpConn) notify(ctx context.Context, timeout time.Duration, method string, m jsonrpc.Message) error {
	if c.stale() {
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

// newRequest returns a request of this session, with m as its body unless m is nil. It is sent once,
// and may be changed on the way.
func (c *httpConn) newRequest(ctx context.Context, method string, m jsonrpc.Message) (*http.Request, error) {
	var body io.Reader
	if m != nil {
		data, err := jsonrpc.EncodeMessage(m)
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
	ours, _ := m.(*jsonrpc.Request)
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
func addRoutingHeaders(h http.Header, m *jsonrpc.Request, x *RoundTrip) {
	h[methodHeader] = []string{m.Method}
	if name := targetName(m); name != "" {
		h[nameHeader] = []string{wire.HeaderValue(name)}
	}
	if m.Method == methodCall {
		for name, value := range x.Headers {
			h.Set(name, value)
		}
	}
}

// targetName returns the name of the tool or prompt, or the URI of the resource, that m is about; ""
// for other methods.
func targetName(m *jsonrpc.Request) string {
	key := "name"
	switch m.Method {
	case methodCall, methodPrompt:
	case methodRead:
		key = "uri"
	default:
		return ""
	}
	var text string
	_ = wire.Members(m.Params, func(name string, value json.RawMessage) { // the SDK has written it
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

// cancelRequest sends notifications/cancelled for the request of x, and sends it again while the
// request is so new that the server may not have read it. They are two POSTs on two connections,
// neither of which waits for the other, and a server drops a cancellation of a request that it
// does not know: the call would then run to its end. No reply tells when the request was read,
// since many servers send the headers with the result. A repetition does no harm, because the
// receiver ignores it (2025-11-25 basic/utilities/cancellation).
//
// A call that is read within readTime, and t after it was cancelled, is so cancelled at most
// t + 50 ms later. From 2026-07-28 on the end of the call's stream is its cancellation, which
// nothing can overtake.
func (c *httpConn) cancelRequest(ctx context.Context, x *RoundTrip, m *jsonrpc.Request) {
	if x.Handshake || !x.sent.Load() || x.failed.Load() {
		// initialize must not be cancelled (2025-11-25 basic/lifecycle). Else there is nothing to
		// cancel.
		return
	}
	// The SDK gave it 5 s, which are over if the machine stood still that long.
	ctx = context.WithoutCancel(ctx)
	if !c.sendCancel(ctx, x, m) && x.life.Err() == nil && c.session.Protocol() < StatelessVersion {
		// The SDK's session does not wait for these.
		c.background.Go(func() { c.resendCancel(ctx, x, m) })
	}
}

// sendCancel sends m, which cancels the request of x, and reports whether it got through after the
// server must have read that request. A cancellation that is refused got through, too.
func (c *httpConn) sendCancel(ctx context.Context, x *RoundTrip, m *jsonrpc.Request) (certain bool) {
	read := time.Since(time.Unix(0, x.sentAt.Load())) >= readTime
	f, _ := errors.AsType[*Failure](c.notify(ctx, NotifyTimeout, http.MethodPost, m))
	return read && (f == nil || f.Kind != UnknownOutcome)
}

// resendCancel sends m, which cancels the request of x, until it is certain that the server has
// read it.
func (c *httpConn) resendCancel(ctx context.Context, x *RoundTrip, m *jsonrpc.Request) {
	defer Recover(c.Logger, func(*Failure) {})
	for wait := resendAfter; wait <= maxResendPause; wait *= 2 {
		// Some servers keep calls running after DELETE, so m is sent a last time during close.
		closing := !Pause(x.life, wait)
		if closing {
			Pause(ctx, resendAfter)
		}
		if c.sendCancel(ctx, x, m) || closing {
			return
		}
	}
}
