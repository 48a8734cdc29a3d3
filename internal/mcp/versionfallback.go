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

// cannotAskText matches the errors of servers whose tool tried to send a request to the client during its call.
// 2026-07-28 replaced these requests by results of type input_required. The texts are from FastMCP 4
// (server/context.py) and the Python SDK 2 (shared/exceptions.py).
var cannotAskText = regexp.MustCompile(`(?i)server-initiated requests is unavailable on 2026-07-28|no back-channel for server-initiated requests`)

// checkCannotAsk returns a failure if a call failed only because its tool asks the user in a way that protocol version
// 2026-07-28 does not have; otherwise nil. The call was made in the session used and ended with the result res or the
// failure f; the other one is nil. After such a failure, the server's later sessions begin with 2025-11-25, unless the
// configuration sets a version. The tool may have done something before it tried to ask. So the failure makes
// callWithRetry send the call again only if the tool may run twice.
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

// failureText returns the text of res if it is an error result, or the message of f if it is a JSON-RPC error, cut to
// maxErrorText bytes. Otherwise it returns "".
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
