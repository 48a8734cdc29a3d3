// Package help lists the pages of the documentation that say what to do about a log line.
//
//	logger.Warn("MCP server is down", "reason", reason, help.Servers.Attr())
//
// If a line at level warn or error has no such attribute, the handler of package telemetry adds Troubleshooting. A test
// checks that the pages and their headings exist.
package help

import "log/slog"

// Key is the attribute's key in a log line.
const Key = "help"

// Page is the path of a documentation page, with one of its headings after #.
type Page string

// The pages, by the subject of the log line.
const (
	Troubleshooting Page = "docs/troubleshooting.md"

	Model     Page = "docs/troubleshooting.md#the-model"
	CutAnswer Page = "docs/tasks/limit-cost.md"
	Images    Page = "docs/providers.md#images"

	Servers        Page = "docs/troubleshooting.md#mcp-servers"
	ChildProcesses Page = "docs/mcp-servers.md#child-processes"
	Pins           Page = "docs/mcp-servers.md#pinned-definitions"
	ToolLists      Page = "docs/mcp-servers.md#lists-of-tools"
	ToolSchemas    Page = "docs/mcp-servers.md#arguments-and-results"
	ServerRequests Page = "docs/mcp-servers.md#resources-prompts-sampling-elicitation"
	ServerTokens   Page = "docs/mcp-auth.md"
	Delegation     Page = "docs/mcp-auth.md#servers-used-on-behalf-of-callers"
	SignIns        Page = "docs/mcp-auth.md#authorization_code"
	StoredSignIns  Page = "docs/mcp-auth.md#sign-ins-that-survive-a-restart"

	CallerTokens  Page = "docs/auth.md"
	SecretFiles   Page = "docs/tasks/rotate-secrets.md"
	Events        Page = "docs/events.md#where-events-are-stored"
	EventLogSpace Page = "docs/operations.md#space-for-the-event-log"
	Scaling       Page = "docs/scaling.md#when-something-fails"
	Hooks         Page = "docs/hooks.md"
	Webhooks      Page = "docs/tasks/webhooks.md"
	Requests      Page = "docs/troubleshooting.md#requests"
	RefusedRuns   Page = "docs/operations.md#answerdrunsrefused"
	DroppedLines  Page = "docs/operations.md#answerdloglinesdropped"
	Traces        Page = "docs/observability.md#traces"
	Metrics       Page = "docs/observability.md#metrics"
	ExportedLog   Page = "docs/observability.md#log"
)

// Attr returns the attribute with which a log line refers to the page.
func (p Page) Attr() slog.Attr { return slog.String(Key, string(p)) }
