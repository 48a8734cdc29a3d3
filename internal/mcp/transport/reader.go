package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Read implements sdk.Connection. It returns the next message that is meant for the SDK, and processes the
// messages before it. An error means that the connection has ended. Close ends Read; the context is not used.
func (c *streamConn) Read(context.Context) (msg jsonrpc.Message, err error) {
	defer Recover(c.log, func(f *Failure) {
		c.endConnection(f)
		msg, err = nil, f
	})
	for {
		data, err := c.nextMessage()
		if c.failRequest(err) {
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

// nextMessage returns the text of the next message. Servers of 2025-03-26 may send several messages in one
// batch (JSON-RPC section 6), which nextMessage returns one by one. A batch that does not decode is dropped.
func (c *streamConn) nextMessage() (json.RawMessage, error) {
	for len(c.batch) == 0 {
		data, err := c.conn.Read()
		switch {
		case err != nil:
			return nil, err
		case len(data) == 0 || data[0] != '[':
			return data, nil
		case json.Unmarshal(data, &c.batch) != nil:
			c.dropMessage("a batch does not decode")
			c.batch = nil
		}
	}
	data := c.batch[0]
	c.batch = c.batch[1:]
	return data, nil
}

// processMessage processes the message in data. It returns the message for the SDK, or nil if the SDK must not
// get it.
func (c *streamConn) processMessage(data json.RawMessage) jsonrpc.Message {
	msg, err := decodeStreamed(data)
	if err != nil {
		answer, _ := msg.(*jsonrpc.Response)
		c.processUndecodable(answer, err)
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

// processAnswer ends the pending request that msg answers, and returns msg for the SDK. It returns nil if no
// request waits for msg, or if msg is not a valid answer; then it has failed the request.
func (c *streamConn) processAnswer(msg *jsonrpc.Response) jsonrpc.Message {
	pending := c.removePending(msg.ID)
	if pending == nil {
		if !c.removeAbandoned(msg.ID) {
			c.dropMessage("it answers no open request")
		}
		return nil
	}
	c.endIfAmbiguous()
	if pending.trip != nil {
		f := pending.trip.acceptAnswer(msg)
		// The read limit of the connection may be higher, because of another request.
		if limit := pending.trip.answerLimit(); f == nil && len(msg.Result) > limit {
			f = AnswerTooLarge(limit)
		}
		if f != nil {
			pending.trip.fail(f)
			return nil
		}
	}
	return msg
}

// processUndecodable processes a message that does not decode because of err. answer has the id of the request
// that the message would have answered, and that request fails. If answer is nil or no request with its id is
// pending, the message is dropped: it may be a log line in JSON.
func (c *streamConn) processUndecodable(answer *jsonrpc.Response, err error) {
	var pending *pendingRequest
	if answer != nil {
		pending = c.removePending(answer.ID)
	}
	if pending == nil {
		c.dropMessage("it is not JSON-RPC")
	} else if pending.trip != nil {
		pending.trip.fail(BadReply("it does not decode", err))
	}
}

// processRequest returns a request of the server for the SDK, which answers it. Elicitation and sampling
// requests go through Session.Request first, with the call that they are about. processRequest drops the request
// and returns nil if its id is in use, or if maxServerRequests are unanswered: the SDK's queue is not bounded.
func (c *streamConn) processRequest(msg *jsonrpc.Request) jsonrpc.Message {
	c.mu.Lock()
	_, inUse := c.incoming[msg.ID]
	full := len(c.incoming) >= maxServerRequests
	if !inUse && !full {
		c.incoming[msg.ID] = struct{}{}
	}
	c.mu.Unlock()
	switch {
	case inUse:
		c.dropMessage("its request id is in use")
		return nil
	case full:
		c.dropMessage("too many requests at a time")
		return nil
	case msg.Method == methodElicit, msg.Method == methodSample:
		trip := c.onlyCall(true)
		if trip != nil {
			trip.timer.noteActivity()
		}
		return c.session.Request(msg, trip)
	}
	return msg
}

// processNotification processes a notification, whose text is data, and returns it for the SDK. It returns nil
// for progress and log messages, which it hands to their call, and for the end of a subscription. The goroutine
// that reads answers runs it, so a call gets its notifications before its answer.
func (c *streamConn) processNotification(msg *jsonrpc.Request, data json.RawMessage) jsonrpc.Message {
	switch msg.Method {
	case notificationProgress:
		c.processProgress(data)
		return nil
	case notificationMessage:
		if trip := c.onlyCall(false); trip != nil {
			trip.timer.noteActivity()
			trip.countOrAbort(len(data))
			c.session.Log(trip, data)
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

// endSubscription ends a subscription that the server has cancelled, and that it need not answer then (2026-07-28
// basic/patterns/cancellation). params are those of its notification "notifications/cancelled". endSubscription returns
// false if they name no pending subscription.
func (c *streamConn) endSubscription(params json.RawMessage) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := ownID(cancelledID(params))
	pending := c.pending[id]
	if pending == nil || pending.method != methodListen {
		return false
	}
	c.removePendingLocked(id)
	if pending.trip != nil {
		pending.trip.fail(&Failure{Kind: Unavailable, Public: "it ended the subscription"})
	}
	return true
}

// processProgress hands a progress notification to the pending RoundTrip that its token names, or drops it.
// Each notification puts off the idle timeout of that RoundTrip, and counts against its limits.
func (c *streamConn) processProgress(message json.RawMessage) {
	c.mu.Lock()
	trip := c.byToken[progressToken(message)]
	c.mu.Unlock()
	if trip == nil {
		c.dropMessage("progress of no open request")
		return
	}
	trip.timer.noteActivity()
	trip.countOrAbort(len(message))
	c.session.Progress(trip, message)
}

// progressToken returns the progress token in the text of a notification; "" if there is none or it is not a
// string, as all of our tokens are. It searches the text instead of decoding it, because most messages of a
// flood are dropped. A match is the name of a member, since quotes within JSON strings are escaped.
func progressToken(message []byte) string {
	_, rest, _ := bytes.Cut(message, []byte(`"progressToken"`))
	rest = bytes.TrimLeft(rest, " \t\r\n:")
	if len(rest) == 0 || rest[0] != '"' {
		return ""
	}
	token, _, _ := bytes.Cut(rest[1:], []byte(`"`))
	return string(token)
}

// dropMessage counts a dropped message. It logs the reason for the first maxDropLog messages of a connection,
// the first of them as a warning. The text of the message is not logged: it may hold data of callers.
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

// On a connection that all calls share, a server's log messages and requests do not say which call
// they are about. A guess could show one caller's question to another caller. So a message goes to a call
// only if it cannot be about another call. Otherwise requests are declined and log messages dropped. This
// includes abandoned calls: they were cancelled after they were sent, and the server may still work on them.
// (From 2026-07-28 on questions are part of answers, and this does not apply.)

const (
	// maxAbandoned bounds the abandoned calls that a connection keeps.
	maxAbandoned = 1000
	// minConnectionAge is how old a connection must be to be replaced because of abandoned calls. Without
	// it, a process could reach the bound of maxStarts within startSpan.
	minConnectionAge = startSpan
)

// onlyCall returns the RoundTrip of the only call that the server can be working on. If there is no such call,
// or another call is possible, it returns nil and counts the message as unmatched. isQuestion says that the
// message is a request of the server, which is then declined.
func (c *streamConn) onlyCall(isQuestion bool) *RoundTrip {
	c.mu.Lock()
	defer c.mu.Unlock()
	var trip *RoundTrip
	inFlight := 0
	for _, pending := range c.pending {
		if pending.sent && serverMayAsk(pending.method) {
			trip = pending.trip
			inFlight++
		}
	}
	onlyOne := inFlight == 1 && trip != nil
	if onlyOne && !c.hasAbandonedLocked() {
		return trip
	}
	if onlyOne && isQuestion {
		c.declinedQuestion = true // only because of abandoned calls
	}
	c.unmatched++
	return nil
}

// hasAbandonedLocked reports whether the server may still work on an abandoned call.
func (c *streamConn) hasAbandonedLocked() bool { return len(c.abandoned) > 0 || c.abandonedOverflow }

// endIfAmbiguous ends the connection if abandoned calls have made it decline a question and may do so again: the
// server need not answer an abandoned call (2025-11-25 basic/utilities/cancellation), so the state could last.
// On the next connection, questions can be attributed to calls. It does nothing while a request is in flight,
// which would fail, and before the connection has reached minConnectionAge.
func (c *streamConn) endIfAmbiguous() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.declinedQuestion || !c.hasAbandonedLocked() || len(c.pending) > 0 || time.Since(c.opened) < minConnectionAge {
		return
	}
	c.endConnectionLocked(&Failure{
		Kind:   Unavailable,
		Public: "it has not ended a call that was cancelled, so it is connected again",
		NotRun: true,
	})
}

// addAbandonedLocked records that pending was cancelled after it was sent. It ignores methods during which the
// server does not ask anything.
func (c *streamConn) addAbandonedLocked(pending *pendingRequest) {
	switch {
	case !serverMayAsk(pending.method):
	case len(c.abandoned) == maxAbandoned:
		c.abandonedOverflow = true
	default:
		c.abandoned[pending.id] = struct{}{}
	}
}

// removeAbandoned removes the abandoned call id, which the server has answered after all. It returns false if
// id is not an abandoned call.
func (c *streamConn) removeAbandoned(id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, found := c.abandoned[id]
	delete(c.abandoned, id)
	if !c.hasAbandonedLocked() {
		c.declinedQuestion = false // the next question can be attributed
	}
	return found
}
