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

// checkCannotAsk returns a failure if a call of tool failed only because the tool asks the user in a way that protocol
// version 2026-07-28 does not have; otherwise nil. errorText is the error of the call, or "" if it had none. used is
// the call's session, and pool the session's pool. After such a failure, the server's later sessions begin with
// 2025-11-25, unless the configuration sets a version. The tool may have done something before it tried to ask. So the
// failure makes callWithRetry send the call again only if the tool may run twice.
func (s *server) checkCannotAsk(errorText string, tool catalog.Resolved, used *session.Session, pool *session.Pool) *transport.Failure {
	if used.Protocol() < transport.StatelessVersion || !cannotAskText.MatchString(errorText) {
		return nil
	}
	failed := &transport.Failure{Kind: Execution, Public: `the tool cannot ask the user with protocol version 2026-07-28: ` +
		`set "protocolVersion": "2025-11-25" for this server in mcp.json`}
	if s.cfg.ProtocolVersion != "" {
		return failed
	}
	s.dialer.useInitialize()
	if pool.DropSession(used) {
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

// errorResultText returns the text of an error result, cut to maxErrorText bytes. It returns "" for any other result.
func errorResultText(result *content.Result) string {
	if !result.IsError {
		return ""
	}
	return wire.Truncate(result.Text(), maxErrorText)
}

// rpcErrorText returns the message of the JSON-RPC error that failure wraps, cut to maxErrorText bytes. It returns ""
// if failure wraps none.
func rpcErrorText(failure *transport.Failure) string {
	e, ok := errors.AsType[*jsonrpc.Error](failure.Err)
	if !ok {
		return ""
	}
	return wire.Truncate(e.Message, maxErrorText)
}
