package session

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers still use it.

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"time"

	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// LogMessage is one notifications/message during a call.
type LogMessage struct {
	Level  string // one of the eight of RFC 5424, such as "warning"
	Logger string // the server's name for the part that logs; "" if it gave none
	// Data is any JSON, as received. Data that is too large or too deep is replaced by a
	// string of its beginning. It is nil in a message that only has Omitted, at the end.
	Data json.RawMessage
	// Omitted is how many messages were left out right before this one, because they came
	// faster than they were read, or beyond the bound of a call.
	Omitted int
}

const (
	// logLevel is the least severe level that we ask servers for.
	logLevel     = "info"
	metaLogLevel = sdk.MetaKeyLogLevel
	// unknownLevel replaces a level that MCP does not have.
	unknownLevel = "notice"

	maxLogger  = 256     // bytes of a logger's name
	maxLogData = 8 << 10 // bytes of a message's data
)

// logLevels are the levels of MCP, which are those of RFC 5424.
var logLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// queueLog queues a log message if the caller of the request reads them. It never waits: it
// runs where messages are read.
func (x *Request) queueLog(params json.RawMessage) {
	var p struct {
		Level  string          `json:"level"`
		Logger string          `json:"logger"`
		Data   json.RawMessage `json:"data"`
	}
	if x.notifications == nil || !x.wantsLog || json.Unmarshal(params, &p) != nil {
		return
	}
	if !slices.Contains(logLevels, p.Level) {
		p.Level = unknownLevel
	}
	x.notifications.enqueue(notification{log: &LogMessage{Level: p.Level, Logger: wire.Printable(p.Logger, maxLogger), Data: boundLogData(p.Data)}})
}

// boundLogData returns the data of a message within its bounds.
func boundLogData(raw json.RawMessage) json.RawMessage {
	raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	switch {
	case len(raw) == 0:
		return json.RawMessage("null")
	case len(raw) <= maxLogData && wire.Depth(raw) <= schema.MaxDepth:
		return raw
	}
	begin := string(raw[:min(len(raw), maxLogData)])
	var s string
	if json.Unmarshal(raw, &s) == nil {
		begin = s
	}
	short, _ := json.Marshal(wire.Truncate(begin, maxLogData) + " […]") // strings always marshal
	return short
}

// setLogLevel asks a server of before 2026-07-28 for log messages, once per session: some
// send none otherwise. From then on each request asks for them by itself.
func (s *Session) setLogLevel() {
	if s.capabilities().Logging == nil || s.Protocol() >= transport.StatelessVersion {
		return
	}
	// A server that refuses sends what it likes, or nothing: no call depends on it.
	_, _ = s.Do(context.Background(), nil, time.Now().Add(transport.NotifyTimeout), func(x *Request) (json.RawMessage, *transport.Failure) {
		_ = s.cs.SetLoggingLevel(x.Context(), &sdk.SetLoggingLevelParams{Level: logLevel})
		return nil, nil
	})
}
