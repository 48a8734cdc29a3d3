package mcp

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers go on sending it.

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"time"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// LogMessage is one notifications/message during a call.
type LogMessage struct {
	Level  string // one of the eight of RFC 5424, such as "warning"
	Logger string // who says it, on the server; "" where it doesn't tell
	// Data is any JSON, as received. What is too large or too deep is a string that
	// begins like it. It is nil in one that only says what was left out at the end.
	Data json.RawMessage
	// Omitted is how many messages were left out right before this one, because
	// they came faster than they were read or were more than a call may have.
	Omitted int
}

const (
	// logLevel is the least severe level that servers are asked for.
	logLevel     = "info"
	metaLogLevel = sdk.MetaKeyLogLevel
	// unknownLevel stands for a level that MCP doesn't have.
	unknownLevel = "notice"

	maxLogger  = 256     // bytes of a logger's name
	maxLogData = 8 << 10 // bytes of a message's data
)

// logLevels are those of MCP, which are those of RFC 5424.
var logLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// logged gives a log message to whoever wants those of this exchange's call. It never
// waits: it runs where messages are read.
func (x *exchange) logged(params json.RawMessage) {
	var p struct {
		Level  string          `json:"level"`
		Logger string          `json:"logger"`
		Data   json.RawMessage `json:"data"`
	}
	if x.notes == nil || !x.wantsLog || json.Unmarshal(params, &p) != nil {
		return
	}
	if !slices.Contains(logLevels, p.Level) {
		p.Level = unknownLevel
	}
	x.notes.put(note{log: &LogMessage{Level: p.Level, Logger: wire.Printable(p.Logger, maxLogger), Data: logData(p.Data)}})
}

// logData bounds what a message carries.
func logData(raw json.RawMessage) json.RawMessage {
	raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	switch {
	case len(raw) == 0:
		return json.RawMessage("null")
	case len(raw) <= maxLogData && wire.Depth(raw) <= maxDepth:
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

// askForLogs tells a server of before 2026-07-28 which log messages we want, once per
// session: some send none before. From then on each request says it by itself.
func askForLogs(life context.Context, s *session) {
	r := s.cs.InitializeResult()
	if r == nil || r.Capabilities == nil || r.Capabilities.Logging == nil || r.ProtocolVersion >= transport.StatelessVersion {
		return
	}
	x := newExchange(context.Background(), life, time.Now().Add(sideTime))
	defer x.finish()
	x.session = s
	// A server that refuses it sends what it likes, or nothing: no call depends on it.
	_ = s.cs.SetLoggingLevel(x.ctx, &sdk.SetLoggingLevelParams{Level: logLevel})
}
