package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Read implements sdk.Connection. It returns the next message for the SDK, and processes those that the SDK must not
// get. An error means that the connection has ended. The context is not used: Close makes Read return.
func (c *streamConn) Read(context.Context) (_ jsonrpc.Message, err error) {
	defer Recover(c.log, func(f *Failure) {
		c.endConnection(f)
		err = f
	})
	for {
		data, err := c.batch.next(c.conn.Read)
		if requestErr, ok := errors.AsType[*requestError](err); ok {
			c.failRequest(requestErr)
			continue
		}
		if err != nil {
			c.endConnection(err)
			return nil, fmt.Errorf("read: %w", err)
		}
		if msg := c.processMessage(data); msg != nil {
			return msg, nil
		}
	}
}

// processMessage processes the message in data. It returns the message for the SDK, or nil if the SDK must not get it.
func (c *streamConn) processMessage(data json.RawMessage) jsonrpc.Message {
	msg, err := decodeStreamed(data)
	if err != nil {
		c.processUndecodable(err)
		return nil
	}
	switch m := msg.(type) {
	case *jsonrpc.Response:
		return c.processAnswer(m)
	case *jsonrpc.Request:
		if m.IsCall() {
			return c.processRequest(m)
		}
		return c.processNotification(m, data)
	}
	return nil
}

// processAnswer removes the pending request that msg answers, and returns msg for the SDK. If msg is not a valid
// answer, it fails the request and returns nil. If no request waits for msg, it returns nil.
func (c *streamConn) processAnswer(msg *jsonrpc.Response) jsonrpc.Message {
	pending := c.removePending(msg.ID)
	if pending == nil {
		if !c.removeAbandoned(msg.ID) {
			c.dropMessage("it answers no open request")
		}
		return nil
	}
	c.endIfAmbiguous()
	if pending.roundTrip == nil {
		return msg
	}
	failure := pending.roundTrip.acceptAnswer(msg)
	// The connection's read limit may be higher, because of another request.
	if limit := pending.roundTrip.answerLimit(); failure == nil && len(msg.Result) > limit {
		failure = AnswerTooLarge(limit)
	}
	if failure != nil {
		pending.roundTrip.fail(failure)
		return nil
	}
	return msg
}

// processUndecodable processes a message that failed to decode with err. If the message is a response to a pending
// request, that request fails. Otherwise the message is dropped: it may be a log line in JSON.
func (c *streamConn) processUndecodable(err error) {
	var pending *pendingRequest
	if response, ok := errors.AsType[*malformedResponse](err); ok {
		pending = c.removePending(response.id)
	}
	if pending == nil {
		c.dropMessage("it is not JSON-RPC")
		return
	}
	if pending.roundTrip != nil {
		pending.roundTrip.fail(BadReply("it does not decode", err))
	}
}

// processRequest returns msg, a request of the server, for the SDK, which answers it. For elicitation and sampling it
// first calls Session.Request with the call that msg is about. If msg's id is in use, or if maxServerRequests are
// unanswered, processRequest drops msg and returns nil, because the SDK's queue has no bound.
func (c *streamConn) processRequest(msg *jsonrpc.Request) jsonrpc.Message {
	if problem := c.addIncoming(msg.ID); problem != "" {
		c.dropMessage(problem)
		return nil
	}
	if msg.Method != methodElicit && msg.Method != methodSample {
		return msg
	}
	call := c.callOf(msg)
	if call != nil {
		call.noteActivity()
	}
	return c.session.Request(msg, call)
}

// addIncoming adds the id of a server's request to c.incoming. It returns "", or the reason for not adding it.
func (c *streamConn) addIncoming(id jsonrpc.ID) (problem string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, inUse := c.incoming[id]; inUse {
		return "its request id is in use"
	}
	if len(c.incoming) >= maxServerRequests {
		return "too many requests at a time"
	}
	c.incoming[id] = struct{}{}
	return ""
}

// processNotification processes msg, a notification whose text is data, and returns it for the SDK. It returns nil for
// progress and log messages, which it passes to their call, and for the end of a subscription. It runs in the
// goroutine that reads answers, so a call gets its notifications before its answer.
func (c *streamConn) processNotification(msg *jsonrpc.Request, data json.RawMessage) jsonrpc.Message {
	switch msg.Method {
	case notificationProgress:
		c.processProgress(data)
		return nil
	case notificationMessage:
		if call := c.callOf(msg); call != nil {
			call.noteActivity()
			call.countOrCancel(len(data))
			c.session.Log(call, data)
		}
		return nil
	case notificationCancelled:
		if c.endSubscription(msg.Params) {
			return nil
		}
	}
	c.session.Notification(msg.Method, msg.Params)
	return msg
}

// endSubscription ends the subscription that a notifications/cancelled message of the server refers to; params are the
// message's params. The server need not answer the subscription after that (2026-07-28 basic/patterns/cancellation).
// endSubscription returns false if params refer to no pending subscription.
func (c *streamConn) endSubscription(params json.RawMessage) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := ownID(cancelledID(params))
	pending := c.pending[id]
	if pending == nil || pending.method != methodListen {
		return false
	}
	c.removePendingLocked(id)
	if pending.roundTrip != nil {
		pending.roundTrip.fail(&Failure{Kind: Unavailable, Public: "it ended the subscription"})
	}
	return true
}

// processProgress passes a progress notification to the pending RoundTrip whose progress token it has, or drops it.
// Each notification restarts that RoundTrip's idle timeout, and counts towards its limits.
func (c *streamConn) processProgress(message json.RawMessage) {
	c.mu.Lock()
	roundTrip := c.byToken[progressToken(message)]
	c.mu.Unlock()
	if roundTrip == nil {
		c.dropMessage("progress of no open request")
		return
	}
	roundTrip.noteActivity()
	roundTrip.countOrCancel(len(message))
	c.session.Progress(roundTrip, message)
}

// progressToken returns the progress token in message, the text of a notification. It returns "" if message has no
// token or one that is not a string; answerd's own tokens are strings. It searches the text instead of decoding it,
// because most messages of a flood are dropped. A match is always the name of a member, since quotes within JSON
// strings are escaped.
func progressToken(message []byte) string {
	_, rest, _ := bytes.Cut(message, []byte(`"progressToken"`))
	rest = bytes.TrimLeft(rest, " \t\r\n:")
	if len(rest) == 0 || rest[0] != '"' {
		return ""
	}
	token, _, _ := bytes.Cut(rest[1:], []byte(`"`))
	return string(token)
}

// dropMessage counts a dropped message. It logs the reason for a connection's first maxDropLog dropped messages, the
// first one as a warning. It does not log the message's text, which may contain users' data.
func (c *streamConn) dropMessage(reason string) {
	c.mu.Lock()
	c.dropped++
	n := c.dropped
	c.mu.Unlock()
	if n > maxDropLog {
		return
	}
	level := slog.LevelDebug
	if n == 1 {
		level = slog.LevelWarn
	}
	c.log.Log(context.Background(), level, "an MCP message was dropped", "reason", reason)
}

// On a connection that all calls share, a server's log messages and requests do not say which call they are about. A
// guess could show one user's question to another user. So a message goes to a call only if it cannot be about another
// call. Otherwise requests are declined and log messages are dropped. Abandoned calls count too: they were cancelled
// after they were sent, and the server may still work on them. (From 2026-07-28 on, questions are part of answers.)

const (
	// maxAbandoned is how many abandoned calls a connection keeps.
	maxAbandoned = 1000
	// minConnectionAge is how old a connection must be before it is replaced because of abandoned calls. Without it,
	// these replacements could use up the maxStarts that a process has within startSpan.
	minConnectionAge = startSpan
)

// callOf returns the call that msg, a request or a log message of the server, is about. If that call is not certain,
// callOf returns nil and counts msg as unmatched; a request is then declined.
func (c *streamConn) callOf(msg *jsonrpc.Request) *RoundTrip {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.onlyCallLocked()
	if call != nil && !c.hasAbandonedLocked() {
		return call
	}
	if call != nil && msg.IsCall() {
		c.declinedQuestion = true // only because of the abandoned calls
	}
	c.unmatched++
	return nil
}

// onlyCallLocked returns the only call in flight, apart from abandoned calls. It returns nil if no call or more than
// one is in flight. c.mu must be held.
func (c *streamConn) onlyCallLocked() *RoundTrip {
	var call *RoundTrip
	inFlight := 0
	for _, pending := range c.pending {
		if pending.sent && serverMayAsk(pending.method) {
			call = pending.roundTrip
			inFlight++
		}
	}
	if inFlight != 1 {
		return nil
	}
	return call
}

// hasAbandonedLocked reports whether the server may still work on an abandoned call. c.mu must be held.
func (c *streamConn) hasAbandonedLocked() bool { return len(c.abandoned) > 0 || c.abandonedOverflow }

// endIfAmbiguous ends the connection if a request of the server was declined because of abandoned calls, and the next
// one may be too. The server need not answer an abandoned call (2025-11-25 basic/utilities/cancellation), so requests
// could be declined forever. On the next connection they can be attributed to calls again. endIfAmbiguous does nothing
// while a request to the server is in flight, because that one would fail, and before minConnectionAge.
func (c *streamConn) endIfAmbiguous() {
	c.mu.Lock()
	defer c.mu.Unlock()
	isAmbiguous := c.declinedQuestion && c.hasAbandonedLocked()
	mayReplace := len(c.pending) == 0 && time.Since(c.opened) >= minConnectionAge
	if !isAmbiguous || !mayReplace {
		return
	}
	c.endConnectionLocked(&Failure{
		Kind:   Unavailable,
		Public: "it has not ended a call that was cancelled, so it is connected again",
		NotRun: true,
	})
}

// addAbandonedLocked records that pending was cancelled after it was sent. It ignores methods during which the server
// asks nothing. c.mu must be held.
func (c *streamConn) addAbandonedLocked(pending *pendingRequest) {
	switch {
	case !serverMayAsk(pending.method):
	case len(c.abandoned) == maxAbandoned:
		c.abandonedOverflow = true
	default:
		c.abandoned[pending.id] = struct{}{}
	}
}

// removeAbandoned removes the abandoned call with this id, which the server has answered after all. It returns false
// if id is not an abandoned call's.
func (c *streamConn) removeAbandoned(id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, found := c.abandoned[id]
	delete(c.abandoned, id)
	if !c.hasAbandonedLocked() {
		c.declinedQuestion = false // questions can be attributed again
	}
	return found
}
