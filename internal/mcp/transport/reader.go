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

// Read returns the next message that concerns the SDK.
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

// nextMessage returns the next message. Servers of 2025-03-26 may send several at once (JSON-RPC
// section 6).
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

// processMessage processes one message and returns what the SDK is to have of it; nil for none.
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

// processAnswer records an answer for the RoundTrip that waits for it. It drops an answer without
// one, which is a duplicate or came after its caller gave up.
func (c *streamConn) processAnswer(msg *jsonrpc.Response) jsonrpc.Message {
	pending := c.removePending(msg.ID)
	if pending == nil {
		if !c.removeGivenUp(msg.ID) {
			c.dropMessage("it answers no open request")
		}
		return nil
	}
	c.endIfAmbiguous()
	if pending.trip != nil {
		f := pending.trip.acceptAnswer(msg)
		if limit := pending.trip.answerLimit(); f == nil && len(msg.Result) > limit { // the connection's limit is higher at the moment
			f = AnswerTooLarge(limit)
		}
		if f != nil {
			pending.trip.fail(f)
			return nil
		}
	}
	return msg
}

// processUndecodable fails the request that a message which does not decode would have answered.
// If it would answer none, such as a log line in JSON, it is dropped.
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

// processRequest bounds the server's requests: the SDK queues them without bound, and each costs
// an answer.
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

// processNotification processes a notification, whose text is data. Progress and log messages are
// handed to their call here, where answers are read too, so what came before the answer is there
// before the answer.
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

// endSubscription fails the subscription that the server ends with params of notifications/cancelled, since it
// need not be answered (2026-07-28 basic/patterns/cancellation). It reports whether they name one.
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

// processProgress hands a progress notification to the RoundTrip that its token names.
func (c *streamConn) processProgress(message json.RawMessage) {
	c.mu.Lock()
	trip := c.tokens[progressToken(message)]
	c.mu.Unlock()
	if trip == nil {
		c.dropMessage("progress of no open request")
		return
	}
	trip.timer.noteActivity()
	trip.countOrAbort(len(message))
	c.session.Progress(trip, message)
}

// progressToken returns the progress token in the text of a notification if it is a string, as ours
// are; else "". It does not decode the message, since most of a flood is dropped: quotes in a JSON
// string are escaped, so what it finds is the name of a member.
func progressToken(message []byte) string {
	_, rest, _ := bytes.Cut(message, []byte(`"progressToken"`))
	rest = bytes.TrimLeft(rest, " \t\r\n:")
	if len(rest) == 0 || rest[0] != '"' {
		return ""
	}
	token, _, _ := bytes.Cut(rest[1:], []byte(`"`))
	return string(token)
}

// dropMessage counts a message that is dropped. The first few of a connection are logged, without
// their text: that is the server's.
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
// they are about. A guess could show one caller's question to another. So they go to a call only if
// no other call could be meant. Otherwise requests are declined and log messages dropped. (From
// 2026-07-28 on questions are part of answers, and this does not apply.)

const (
	// maxGivenUp bounds the calls of a connection that are kept as given up.
	maxGivenUp = 1000
	// minConnectionAge is the age from which on a connection may be replaced because of calls that
	// were given up. A process is started at most maxStarts times within startSpan.
	minConnectionAge = startSpan
)

// onlyCall returns the RoundTrip of the one call that the server can be working on. Where there is
// none, or several, it returns nil and counts the message. isQuestion says that the server waits for
// an answer.
func (c *streamConn) onlyCall(isQuestion bool) *RoundTrip {
	c.mu.Lock()
	defer c.mu.Unlock()
	var trip *RoundTrip
	inFlight := 0
	for _, q := range c.pending {
		if q.sent && serverMayAsk(q.method) {
			trip = q.trip
			inFlight++
		}
	}
	onlyOne := inFlight == 1 && trip != nil
	if onlyOne && !c.hasGivenUpLocked() {
		return trip
	}
	c.ambiguous = c.ambiguous || onlyOne && isQuestion
	c.unmatched++
	return nil
}

// hasGivenUpLocked reports whether the server may be working on a call that was given up.
func (c *streamConn) hasGivenUpLocked() bool { return len(c.givenUp) > 0 || c.overflowed }

// endIfAmbiguous ends the connection if a question was declined only because it could be about a call that was given
// up. The server need not answer such a call (2025-11-25 basic/utilities/cancellation), and would then have all its
// questions declined; over the next connection they can be attributed. It waits until no request is in flight that
// would fail.
func (c *streamConn) endIfAmbiguous() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ambiguous && c.hasGivenUpLocked() && len(c.pending) == 0 && time.Since(c.opened) >= minConnectionAge {
		c.endConnectionLocked(&Failure{Kind: Unavailable, Public: "it has not ended a call that was cancelled, so it is connected again", NotRun: true})
	}
}

// giveUpLocked notes that a call was given up that the server has. The server may continue it
// until it answers all the same, and need not answer (2025-11-25 basic/utilities/cancellation).
func (c *streamConn) giveUpLocked(q *pendingRequest) {
	switch {
	case !serverMayAsk(q.method):
	case len(c.givenUp) == maxGivenUp:
		c.overflowed = true
	default:
		c.givenUp[q.id] = struct{}{}
	}
}

// removeGivenUp notes the answer to a call that was given up, and reports whether it was one.
func (c *streamConn) removeGivenUp(id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, late := c.givenUp[id]
	delete(c.givenUp, id)
	c.ambiguous = c.ambiguous && c.hasGivenUpLocked()
	return late
}
