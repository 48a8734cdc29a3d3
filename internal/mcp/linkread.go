package mcp

import (
	"context"
	"encoding/json"
	"log/slog"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// receive looks at one message, and returns what of it the SDK is to have: nil for
// what the link deals with itself.
func (l *link) receive(data json.RawMessage) jsonrpc.Message {
	msg, err := decodeMessage(data)
	if err != nil {
		answer, _ := msg.(*jsonrpc.Response)
		l.undecodable(answer, err)
		return nil
	}
	switch m := msg.(type) {
	case *jsonrpc.Response:
		return l.answered(m)
	case *jsonrpc.Request:
		if m.IsCall() {
			return l.requested(m)
		}
		return l.notified(m)
	}
	return nil
}

// answered notes an answer for the exchange that waits for it. One that nobody waits
// for is dropped: a duplicate, or late because its caller gave up.
func (l *link) answered(m *jsonrpc.Response) jsonrpc.Message {
	q := l.take(m.ID)
	if q == nil {
		if !l.overdue(m.ID) {
			l.drop("it answers no open request")
		}
		return nil
	}
	if q.x != nil {
		if f := q.x.answer(m); f != nil {
			q.x.fail(f)
			return nil
		}
	}
	return m
}

// undecodable is a message that cannot be read. If it is nobody's answer, such as a log line
// in JSON, it is dropped.
func (l *link) undecodable(answer *jsonrpc.Response, err error) {
	var q *question
	if answer != nil {
		q = l.take(answer.ID)
	}
	if q == nil {
		l.drop("it is not JSON-RPC")
	} else if q.x != nil {
		q.x.fail(transport.BadReply("it does not decode", err))
	}
}

// requested lets a request of the server pass. The SDK queues them without bound, and
// each costs an answer.
func (l *link) requested(m *jsonrpc.Request) jsonrpc.Message {
	l.mu.Lock()
	_, again := l.theirs[m.ID]
	full := len(l.theirs) >= maxServerRequests
	if !again && !full {
		l.theirs[m.ID] = struct{}{}
	}
	l.mu.Unlock()
	switch {
	case again:
		l.drop("its request id is in use")
		return nil
	case full:
		l.drop("too many requests at a time")
		return nil
	case m.Method == methodElicit, m.Method == methodSample:
		x := l.alone()
		if x != nil {
			x.limit.touch()
		}
		return l.of.asked.tag(m, x)
	}
	return m
}

// notified deals with a notification. Progress goes to its call's own queue here, where
// answers are read too, so what came before the answer is there before the answer.
func (l *link) notified(m *jsonrpc.Request) jsonrpc.Message {
	switch m.Method {
	case "notifications/progress":
		l.progress(m.Params)
		return nil
	case "notifications/message":
		if x := l.alone(); x != nil {
			x.limit.touch()
			x.logged(m.Params)
		}
		return nil
	}
	l.of.changed(m.Method, m.Params)
	return m
}

// progress hands a progress notification to the exchange that its token names.
func (l *link) progress(params json.RawMessage) {
	var p struct {
		Token any `json:"progressToken"`
	}
	token, ok := "", false
	if json.Unmarshal(params, &p) == nil {
		token, ok = p.Token.(string) // ours are strings
	}
	l.mu.Lock()
	x := l.tokens[token]
	l.mu.Unlock()
	if !ok || x == nil {
		l.drop("progress that nobody asked for, or late")
		return
	}
	x.limit.touch()
	x.report(params)
}

// drop notes that a message was dropped. The first few of a connection reach the log,
// without their text: it is the server's.
func (l *link) drop(why string) {
	l.mu.Lock()
	l.dropped++
	n := l.dropped
	l.mu.Unlock()
	if n > maxDropLog {
		return
	}
	level := slog.LevelDebug
	if n == 1 {
		level = slog.LevelWarn
	}
	l.log.Log(context.Background(), level, "an MCP message was dropped", "reason", why)
}
