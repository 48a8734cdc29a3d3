package mcp

import (
	"errors"
	"regexp"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"
)

// cannotAsk is how servers say that a tool wanted to send us a request during its call, which 2026-07-28
// replaced by results of the type input_required: FastMCP 4 (server/context.py) and the Python SDK 2
// (shared/exceptions.py).
var cannotAsk = regexp.MustCompile(`(?i)server-initiated requests is unavailable on 2026-07-28|no back-channel for server-initiated requests`)

// checkCannotAsk returns nil unless a call in the session used failed only because its tool asks in a
// way that the negotiated version does not have. Then the server's later sessions begin with 2025-11-25,
// unless the version is configured. The failure is one that callWithRetry repeats if the tool may run
// twice: what it did before it asked is not known.
func (s *server) checkCannotAsk(tool catalog.Resolved, used *session.Session, route callRoute, res *content.Result, f *transport.Failure) *transport.Failure {
	if used.Protocol() < transport.StatelessVersion || !cannotAsk.MatchString(failureText(res, f)) {
		return nil
	}
	failed := &transport.Failure{Kind: Execution, Public: `the tool cannot ask the user with protocol version 2026-07-28: ` +
		`set "protocolVersion": "2025-11-25" for this server in mcp.json`}
	if s.cfg.ProtocolVersion != "" {
		return failed
	}
	s.dialer.useInitialize()
	if route.pool.DropSession(used) {
		s.log.Warn("MCP server cannot ask the user with its protocol version, using 2025-11-25", "tool", tool.Name, "protocol", used.Protocol())
	}
	failed.Public += ". answerd uses that version from the next call on"
	a := tool.Annotations
	isHarmless := a != nil && (a.ReadOnly || a.Idempotent)
	if isHarmless || s.isRepeatable(tool) {
		failed.NotRun, failed.Lost = true, true
	}
	return failed
}

// failureText returns the text of a result that is an error, or of a JSON-RPC error; else "".
func failureText(res *content.Result, f *transport.Failure) string {
	if res != nil && res.IsError {
		return wire.Truncate(res.Text(), maxRejection)
	}
	if f != nil {
		if e, ok := errors.AsType[*jsonrpc.Error](f.Err); ok {
			return wire.Truncate(e.Message, maxRejection)
		}
	}
	return ""
}
