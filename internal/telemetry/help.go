package telemetry

import "log/slog"

// Pages that explain what to do about lines of the log.
const (
	pageTroubleshooting = "docs/troubleshooting.md"
	pageModel           = "docs/troubleshooting.md#the-model"
	pageServers         = "docs/troubleshooting.md#mcp-servers"
	pageChildren        = "docs/mcp-servers.md#child-processes"
	pageTools           = "docs/mcp-servers.md#lists-of-tools"
	pageEventLog        = "docs/operations.md#space-for-the-event-log"
	pageHooks           = "docs/hooks.md"
	pageWebhooks        = "docs/tasks/webhooks.md"
	pageSignIns         = "docs/mcp-auth.md#authorization_code"
	pageScaling         = "docs/scaling.md#when-something-dies"
)

// helpPages has the page for a line at level warn or error, by its message. Lines that are not listed
// get pageTroubleshooting.
var helpPages = map[string]string{
	// Models.
	"the model endpoint returned an error":                                  pageModel,
	"model call failed":                                                     pageModel,
	"model call failed, trying again":                                       pageModel,
	"model answer cut: it exceeds its limit or repeats itself":              "docs/tasks/limit-cost.md",
	"the model takes no images, so it gets a line of text in place of each": "docs/providers.md#images",

	// MCP servers.
	"MCP server is down":                                      pageServers,
	"MCP server cannot be used":                               pageServers,
	"MCP resources could not be listed":                       pageServers,
	"cannot list prompts":                                     pageServers,
	"refresh failed":                                          pageServers,
	"MCP server process ended":                                pageChildren,
	"MCP server prints lines that are not MCP":                pageChildren,
	"MCP tools disabled":                                      "docs/mcp-servers.md#pinned-definitions",
	"MCP tool disabled":                                       "docs/mcp-servers.md#pinned-definitions",
	"MCP tool renamed":                                        pageTools,
	"MCP tool left out":                                       pageTools,
	"MCP tools left out":                                      pageTools,
	"MCP tools/list has a pagination loop":                    pageTools,
	"MCP tool not checked":                                    "docs/mcp-servers.md#arguments-and-results",
	"MCP result does not fit the tool's output schema":        "docs/mcp-servers.md#arguments-and-results",
	"MCP server asked for sampling, which is disabled for it": "docs/mcp-servers.md#resources-prompts-sampling-elicitation",
	"MCP server is used on behalf of callers, who bring no token: AUTH_ISSUER is not set": "docs/mcp-auth.md#servers-used-on-behalf-of-callers",

	// Authorization servers and the keys of callers' tokens.
	"token fetch failed":        "docs/mcp-auth.md",
	"signing keys fetch failed": "docs/auth.md",
	"issuer metadata fetch failed; the last URL of the signing keys is used": "docs/auth.md",
	"authorization cannot start":                           pageSignIns,
	"authorization failed":                                 pageSignIns,
	"the tokens of a user who signed out were not revoked": pageSignIns,
	"users' sign-ins to MCP servers are in memory and end with the process: TOKENS_KEY_FILE is not set": "docs/mcp-auth.md#sign-ins-that-survive-a-restart",
	"a stored secret cannot be used; its user has to sign in again":                                     "docs/mcp-auth.md#sign-ins-that-survive-a-restart",
	"the file of TOKENS_KEY_FILE cannot be used; the keys in use stay":                                  "docs/tasks/rotate-secrets.md",
	"the file of a secret cannot be used; the last secret is":                                           "docs/tasks/rotate-secrets.md",
	"TLS files of an MCP server refused; those in use stay":                                             "docs/tasks/rotate-secrets.md",

	// The event log and the runs in it.
	"event log disconnected":                         pageScaling,
	"event log disk full, refusing new runs":         pageEventLog,
	"event log disk not writable, refusing new runs": pageEventLog,
	"the event log has lost messages":                pageScaling,
	"run given up":                                   pageScaling,

	// Other services of the operator.
	"hook failed":       pageHooks,
	"delivery given up": pageWebhooks,
	"deliveries lost: the event log is in memory, and the process ends": pageWebhooks,
	"traces do not reach the collector":                                 "docs/observability.md#traces",
	"request rejected":                                                  "docs/operations.md#answerdrunsrefused",
	"log lines dropped":                                                 "docs/operations.md#answerdloglinesdropped",
	"metrics do not reach the collector":                                "docs/observability.md#metrics",
	"logs do not reach the collector":                                   "docs/observability.md#log",
}

// helpAttr returns the attribute help of a line: what to read about it. ok is false for a line below
// warn, and for one that has the attribute.
func helpAttr(r slog.Record) (help slog.Attr, ok bool) {
	if r.Level < slog.LevelWarn {
		return slog.Attr{}, false
	}
	ok = true
	r.Attrs(func(a slog.Attr) bool {
		ok = a.Key != "help"
		return ok
	})
	page := helpPages[r.Message]
	if page == "" {
		page = pageTroubleshooting
	}
	return slog.String("help", page), ok
}
