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

// cannotAskText matches the errors of servers whose tool wanted to send the client a request during its call.
// 2026-07-28 replaced these requests by results of the type input_required. The texts are from FastMCP 4
// (server/context.py) and the Python SDK 2 (shared/exceptions.py).
var cannotAskText = regexp.MustCompile(`(?i)server-initiated requests is unavailable on 2026-07-28|no back-channel for server-initiated requests`)

// checkCannotAsk returns a failure if a call failed only because its tool asks the user in a way that protocol
// version 2026-07-28 does not have, and nil otherwise. used is the session of the call; its outcome is the result res
// or the failure f, the other of which is nil. After that failure the server's later sessions begin with 2025-11-25,
// unless the version is configured. If the tool may run twice, the failure is one after which callWithRetry sends the
// call again: the tool may have done something before it asked.
func (s *server) checkCannotAsk(tool catalog.Resolved, used *session.Session, route callRoute, res *content.Result, f *transport.Failure) *transport.Failure {
	if used.Protocol() < transport.StatelessVersion || !cannotAskText.MatchString(failureText(res, f)) {
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
	saysRepeatable := a != nil && (a.ReadOnly || a.Idempotent)
	if saysRepeatable || s.isRepeatable(tool) {
		failed.NotRun, failed.Lost = true, true // so that callWithRetry sends the call again
	}
	return failed
}

// failureText returns the first maxErrorText bytes of the text of the result res if it is an error, or of the message
// of the failure f if it is a JSON-RPC error; otherwise "".
func failureText(res *content.Result, f *transport.Failure) string {
	if res != nil && res.IsError {
		return wire.Truncate(res.Text(), maxErrorText)
	}
	if f != nil {
		if e, ok := errors.AsType[*jsonrpc.Error](f.Err); ok {
			return wire.Truncate(e.Message, maxErrorText)
		}
	}
	return ""
}
