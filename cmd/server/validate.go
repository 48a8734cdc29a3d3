package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"answerd/internal/agent"
	"answerd/internal/agent/delivery"
	"answerd/internal/agent/usage"
	"answerd/internal/agent/webhook"
	"answerd/internal/auth/fetch"
	"answerd/internal/eval"
	"answerd/internal/event/jetstream"
)

// validate returns a *configError for the first setting that is invalid or contradicts another one. It also normalizes
// the hosts, the origins and PUBLIC_URL, completes c.AllowedHosts and sets c.localURL.
func (c *config) validate() error {
	for _, rule := range c.settingRules() {
		if rule.violated {
			return &configError{rule.setting, rule.message}
		}
	}
	if err := c.checkPrice(); err != nil {
		return err
	}
	if err := c.checkWebhooks(); err != nil {
		return err
	}
	if err := c.normalizeHosts(); err != nil {
		return err
	}
	return c.checkAddr()
}

// settingRule is a rule about one setting.
type settingRule struct {
	setting  string // its name
	violated bool   // the configuration violates the rule
	message  string // what is wrong; follows the name of the setting in the error
}

// settingRules returns the rules that one condition can express, in the order in which validate checks them.
func (c *config) settingRules() []settingRule {
	return []settingRule{
		// The address.
		{"PORT", c.portSetsAddr && !isPort(c.Port), "must be 1 to 65535"},
		{"TLS_KEY_FILE", c.TLSCertFile != "" && c.TLSKeyFile == "", "must be set when TLS_CERT_FILE is"},
		{"TLS_CERT_FILE", c.TLSKeyFile != "" && c.TLSCertFile == "", "must be set when TLS_KEY_FILE is"},

		// Models.
		{"LLM_BASE_URL", !isURL(c.LLMBaseURL), "must be an http or https URL"},
		{"LLM_BASE_URL", hasChatPath(c.LLMBaseURL), "must end before /chat/completions, which answerd appends"},
		{"DEFAULT_MODEL_ID", !c.modelSet && len(c.models) == 0 && c.usesOpenAI(), "must be set when the model endpoint is OpenAI's own; or set LLM_BASE_URL to another"},
		{"LLM_API_KEY", !fetch.IsHeaderValue(c.LLMAPIKey.Reveal()), "or OPENAI_API_KEY has a line break or another control character, which an HTTP header cannot have"},
		{"LLM_TOOL_CALLING", !slices.Contains([]string{"auto", "native", "text"}, c.LLMToolCalling), "must be auto, native or text"},
		{"LLM_FIRST_BYTE_TIMEOUT", c.LLMFirstByteTimeout <= 0, "must be above 0"},
		{"LLM_IDLE_TIMEOUT", c.LLMIdleTimeout <= 0, "must be above 0"},
		{"LLM_MAX_RETRIES", c.LLMMaxRetries < 0 || c.LLMMaxRetries > 10, "must be 0 to 10"},

		// Tools and MCP servers.
		{"TIMEOUT", c.Timeout <= 0, "must be above 0"},
		{"MAX_CONCURRENT_CALLS", c.MaxConcurrentCalls != nil && *c.MaxConcurrentCalls < 1, "must be at least 1"},
		{"MCP_APPROVAL", !slices.Contains([]string{"never", "destructive", "always"}, c.MCPApproval), "must be never, destructive or always"},
		{"INPUT_TIMEOUT", c.InputTimeout <= 0, "must be above 0"},

		// Runs and their budgets.
		{"MAX_HISTORY", c.MaxHistory < 1, "must be at least 1"},
		{"MAX_TURNS", c.MaxTurns < 1, "must be at least 1"},
		{"MAX_OUTPUT_TOKENS", c.MaxOutputTokens < 0, "must not be negative"},
		{"TOOL_SEARCH_MIN_TOOLS", c.ToolSearchMinTools < 0, "must not be negative"},
		{"BUDGET_TOOL_CALLS", c.BudgetToolCalls < 0, "must not be negative"},
		{"BUDGET_INPUT_TOKENS", c.BudgetInputTokens < 0, "must not be negative"},
		{"BUDGET_OUTPUT_TOKENS", c.BudgetOutputTokens < 0, "must not be negative"},
		{"BUDGET_TOTAL_TOKENS", c.BudgetTotalTokens < 0, "must not be negative"},
		{"BUDGET_SECONDS", !inRange(c.BudgetSeconds, 86400), "must be 0 to 86400"},
		{"BUDGET_COST", !inRange(c.BudgetCost, 1e9), "must be 0 to 1000000000"},

		// The service's own token.
		{"IAM_BASE_URL", c.EnableJWTToken && c.IAMBaseURL == "" && c.IAMTokenURL == "", "must be set when ENABLE_JWT_TOKEN is"},
		{"IAM_BASE_URL", c.IAMBaseURL != "" && !isURL(c.IAMBaseURL), "must be an http or https URL"},
		{"IAM_TOKEN_URL", c.IAMTokenURL != "" && !isURL(c.IAMTokenURL), "must be an http or https URL"},
		{"IAM_CLIENT_ID", c.EnableJWTToken && c.IAMClientID == "", "must be set when ENABLE_JWT_TOKEN is"},
		{"IAM_CLIENT_SECRET", c.EnableJWTToken && c.IAMClientSecret.IsZero() && c.SecretOCID == "", "or SECRET_OCID must be set when ENABLE_JWT_TOKEN is"},
		{"OCI_AUTH_TYPE", !slices.Contains([]string{"api_key", "instance_principal", "resource_principal"}, c.OCIAuthType), "must be api_key, instance_principal or resource_principal"},

		// Authentication of callers.
		{"AUTH_ISSUER", c.AuthIssuer == "" && c.needsIssuer(), "must be set when another AUTH_ setting is"},
		{"AUTH_AUDIENCE", c.AuthIssuer != "" && c.AuthAudience == "", "must be set when AUTH_ISSUER is"},
		{"AUTH_JWKS_URL", c.AuthJWKSURL != "" && !isURL(c.AuthJWKSURL), "must be an http or https URL"},
		{"AUTH_JWKS_URL", c.AuthIssuer != "" && c.AuthJWKSURL == "" && fetch.CheckEndpoint("", c.AuthIssuer) != nil, "must be set, since AUTH_ISSUER is not an https URL whose metadata names the keys"},
		{"AUTH_CLIENTS", slices.Contains(trimElements(c.AuthClients), ""), "has a comma too many"},
		{"AUTH_MAX_LIFETIME", c.AuthMaxLifetime < 0, "must not be negative"},
		{"COST_CLAIM", c.CostClaim != "" && c.AuthIssuer == "", "needs AUTH_ISSUER, since only tokens have claims"},
		{"LIMIT_BY", c.LimitBy.claim() != "" && c.AuthIssuer == "", "needs AUTH_ISSUER, since only tokens have claims"},
		{"CONSOLE_OIDC_CLIENT_ID", c.ConsoleOIDCClientID != "" && fetch.CheckEndpoint("", c.AuthIssuer) != nil, "needs an AUTH_ISSUER that is an https URL, whose metadata names where people sign in"},
		{"CONSOLE_OIDC_CLIENT_ID", c.ConsoleOIDCClientID != "" && c.AuthClients != nil && !slices.Contains(trimElements(c.AuthClients), c.ConsoleOIDCClientID), "must be one of AUTH_CLIENTS"},
		{"CONSOLE_OIDC_CLIENT_ID", c.ConsoleOIDCClientID == "" && c.ConsoleOIDCScope != "", "must be set when CONSOLE_OIDC_SCOPE is"},

		// Metrics, logs and traces.
		{"METRICS_ADDR", c.MetricsAddr != "" && !isHostPort(c.MetricsAddr), "must be host:port"},
		{"METRICS_ADDR", c.MetricsAddr == c.Addr && !strings.HasSuffix(c.Addr, ":0"), "must differ from ADDR; unset, /metrics is served at ADDR"},
		{"OTEL_METRICS_EXPORTER", slices.ContainsFunc(trimElements(c.OTelMetricsExporter), func(name string) bool { return !slices.Contains([]string{"prometheus", "otlp", "none"}, name) }), "must be of prometheus, otlp and none, comma separated"},
		{"OTEL_METRICS_EXPORTER", c.exportsMetrics() && c.OTelMetricsEndpoint == "" && c.OTelEndpoint == "", "is otlp, but there is no endpoint: set OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"},
		{"OTEL_LOGS_EXPORTER", c.OTelLogsExporter != "none" && c.OTelLogsExporter != "otlp", "must be none or otlp"},
		{"OTEL_LOGS_EXPORTER", c.OTelLogsExporter == "otlp" && c.OTelLogsEndpoint == "" && c.OTelEndpoint == "", "is otlp, but there is no endpoint: set OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", c.OTelMaxQueueSize < 1 || c.OTelMaxQueueSize > 1_000_000, "must be 1 to 1000000"},
		{"OCI_APM_DATA_KEY", c.EnableTracing && c.OCIAPMTracesURL != "" && c.OCIAPMDataKey.IsZero(), "must be set when OCI_APM_TRACES_URL is"},
		{"TRACE_URL", c.TraceURL != "" && !(strings.Contains(c.TraceURL, "{trace_id}") && isURL(strings.ReplaceAll(c.TraceURL, "{trace_id}", "0"))), "must be an http or https URL with {trace_id}"},

		// Hooks and webhooks.
		{"HOOKS_SECRET", c.HooksURL != "" && c.HooksSecret.IsZero(), "must be set when HOOKS_URL is"},
		{"HOOKS_SECRET", (c.RunWebhookURL != "" || c.CallbackOrigins != nil) && c.HooksSecret.IsZero(), "must be set when RUN_WEBHOOK_URL or CALLBACK_ORIGINS is"},
		{"CALLBACK_ORIGINS", c.CallbackPrivate && c.CallbackOrigins == nil, "must be set when CALLBACK_PRIVATE_ADDRESSES is"},
		{"HOOKS_URL", c.HooksURL == "" && c.HooksEvents != nil, "must be set when HOOKS_EVENTS is"},
		{"HOOKS_EVENTS", slices.ContainsFunc(trimElements(c.HooksEvents), isUnknownHook), "must be of pre_model_call, model_result, interrupt and run_end, comma separated"},

		// The event log.
		{"EVENTS_URL", !c.EventsURL.IsZero() && jetstream.CheckURL(c.EventsURL.Reveal()) != nil, "must be file:DIR, or servers like nats://host:4222, comma separated"},
		{"EVENTS_CREDENTIALS_FILE", c.EventsCredentialsFile != "" && !c.sharesLog(), "goes with an EVENTS_URL of nats:// or tls://"},
		{"TOKENS_KEY_FILE", c.TokensKeyFile != "" && c.EventsURL.IsZero(), "needs EVENTS_URL, which says where sign-ins are stored"},
		{"EVENTS_RETENTION", c.EventsRetention <= 0, "must be above 0"},
		{"THREADS_RETENTION", c.ThreadsRetention <= 0, "must be above 0"},
		{"EVENTS_MAX_BYTES", c.EventsMaxBytes < 1<<20, "must be at least 1MiB"},

		// Limits of the service.
		{"MAX_CONCURRENT_RUNS", c.MaxConcurrentRuns < 1, "must be at least 1"},
		{"MAX_RUNS_PER_PRINCIPAL", c.MaxRunsPerPrincipal < 0, "must not be negative"},
		{"MAX_STREAMS", c.MaxStreams < 1, "must be at least 1"},
		{"MAX_STREAMS_PER_PRINCIPAL", c.MaxStreamsPerPrincipal < 0, "must not be negative"},
		{"MAX_CONNECTIONS", c.MaxConnections < 0, "must not be negative"},
		{"WRITE_TIMEOUT", c.WriteTimeout <= 0, "must be above 0"},
		{"MAX_BODY_BYTES", c.MaxBodyBytes < 1<<10, "must be at least 1KiB"},
		{"HEARTBEAT_INTERVAL", c.HeartbeatInterval <= 0, "must be above 0"},
		{"DISCONNECT_GRACE", c.DisconnectGrace < 0, "must not be negative"},
		{"SHUTDOWN_DELAY", c.ShutdownDelay < 0, "must not be negative"},
		{"DRAIN_TIMEOUT", c.DrainTimeout < 0, "must not be negative"},
	}
}

// needsIssuer reports whether a setting about callers' tokens or access rules is set, which needs AUTH_ISSUER.
func (c *config) needsIssuer() bool {
	return c.AuthAudience != "" || c.AuthJWKSURL != "" || c.AuthScope != "" || c.AuthClients != nil ||
		c.AuthRequireATJWT || c.AuthMaxLifetime != 0 || c.AuthRulesFile != ""
}

// checkPrice returns a *configError if a setting needs the price of the default model and the model has none.
func (c *config) checkPrice() error {
	if c.profiles()[c.DefaultModelID].Price != nil {
		return nil
	}
	if c.BudgetCost > 0 {
		return &configError{"BUDGET_COST", "needs the price of the default model, in MODELS_FILE"}
	}
	if slices.ContainsFunc(c.BudgetPerCaller, func(l usage.Limit) bool { return l.Name == "cost" }) {
		return &configError{"BUDGET_PER_CALLER", "a budget of cost needs the price of the default model, in MODELS_FILE"}
	}
	return nil
}

// checkWebhooks checks HOOKS_URL and RUN_WEBHOOK_URL, and checks and normalizes CALLBACK_ORIGINS.
func (c *config) checkWebhooks() error {
	if c.HooksURL != "" {
		if err := fetch.CheckEndpoint("the URL", c.HooksURL); err != nil {
			return &configError{"HOOKS_URL", err.Error()}
		}
	}
	if c.RunWebhookURL != "" {
		if err := fetch.CheckEndpoint("the URL", c.RunWebhookURL); err != nil {
			return &configError{"RUN_WEBHOOK_URL", err.Error()}
		}
	}
	for i, text := range c.CallbackOrigins {
		origin, err := delivery.ParseOrigin(text)
		if err != nil {
			return &configError{"CALLBACK_ORIGINS", err.Error()}
		}
		c.CallbackOrigins[i] = origin
	}
	return nil
}

// checkAddr checks ADDR and PUBLIC_URL, completes c.AllowedHosts and sets c.localURL. ADDR must be a loopback address,
// unless callers are authenticated or the operator allows anonymous callers.
func (c *config) checkAddr() error {
	host, port, _ := net.SplitHostPort(c.Addr)
	if !isHostPort(c.Addr) {
		return &configError{"ADDR", "must be host:port"}
	}
	if !fetch.IsLoopback(host) && c.lacksAuthentication() {
		return c.unauthenticatedError()
	}
	if err := c.checkPublicURL(); err != nil {
		return err
	}
	c.addAllowedHosts(host)
	c.localURL = c.PublicURL
	if c.localURL == "" && fetch.IsLoopback(host) && port != "0" {
		c.localURL = c.scheme() + "://" + c.Addr
	}
	return nil
}

// scheme returns the URL scheme at ADDR: https if TLS_CERT_FILE is set, otherwise http.
func (c *config) scheme() string {
	if c.TLSCertFile != "" {
		return "https"
	}
	return "http"
}

// checkPublicURL checks PUBLIC_URL and removes a trailing slash. The URL becomes part of OAuth redirect URIs and of
// header values, so it must not be plain HTTP beyond loopback, and must not contain quotes.
func (c *config) checkPublicURL() error {
	if c.PublicURL == "" {
		return nil
	}
	u, err := url.Parse(c.PublicURL)
	isSecure := fetch.CheckEndpoint("", c.PublicURL) == nil
	if err != nil || !isSecure || !isBasePath(u.EscapedPath()) || u.RawQuery != "" || strings.ContainsAny(u.Host, `"\`) {
		return &configError{"PUBLIC_URL", "must be https://host or https://host/path, or http:// on a loopback address; a path has letters, digits and -._~"}
	}
	c.PublicURL = strings.TrimSuffix(c.PublicURL, "/")
	return nil
}

// isBasePath reports whether API paths can be appended to p. p must be "" or a path such as /a/b, and may end with a
// slash. It may contain only unreserved characters (RFC 3986 section 2.3), and no empty or dot segments.
func isBasePath(p string) bool {
	p = strings.TrimSuffix(p, "/")
	isUnreserved := func(r rune) bool {
		return r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-._~", r))
	}
	hasOther := strings.ContainsFunc(p, func(r rune) bool { return r != '/' && !isUnreserved(r) })
	return p == "" || path.Clean(p) == p && !hasOther
}

// basePath returns the path of PUBLIC_URL, or "" if the URL has none. checkPublicURL has removed a trailing slash.
func (c *config) basePath() string {
	u, err := url.Parse(c.PublicURL)
	if err != nil {
		return ""
	}
	return u.Path
}

// redirectURL returns the redirect URI for sign-ins to MCP servers. It returns "" if the address that browsers use is
// unknown.
func (c *config) redirectURL() string {
	if c.localURL == "" {
		return ""
	}
	return c.localURL + "/oauth/callback"
}

// usesOpenAI reports whether LLM_BASE_URL is OpenAI's own endpoint.
func (c *config) usesOpenAI() bool {
	u, err := url.Parse(c.LLMBaseURL)
	return err == nil && u.Hostname() == openAIHost
}

// tokenURL returns the token endpoint for the service's own JWT: IAM_TOKEN_URL, or else a URL derived from
// IAM_BASE_URL.
func (c *config) tokenURL() string {
	if c.IAMTokenURL != "" {
		return c.IAMTokenURL
	}
	return strings.TrimSuffix(c.IAMBaseURL, "/") + "/oauth2/v1/token"
}

// pinsPath returns the path of the file with the accepted tool definitions: MCP_PINS_PATH, or else a path derived from
// MCP_CONFIG_PATH. It returns "" if neither is set.
func (c *config) pinsPath() string {
	if c.MCPPinsPath != "" || c.MCPConfigPath == "" {
		return c.MCPPinsPath
	}
	return strings.TrimSuffix(c.MCPConfigPath, ".json") + ".pins.json"
}

// isUnknownHook reports whether name is not a hook event.
func isUnknownHook(name string) bool { return !slices.Contains(webhook.Events(), webhook.Event(name)) }

// isPort reports whether s is a TCP port from 1 to 65535.
func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// isHostPort reports whether s has the form host:port that net.Listen accepts.
func isHostPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = net.LookupPort("tcp", port) // accepts a valid number or a service name
	return err == nil
}

// hasChatPath reports whether the base URL s ends with the path of Chat Completions. Other programs want the path
// there, so users often include it.
func hasChatPath(s string) bool {
	u, err := url.Parse(s)
	return err == nil && strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/chat/completions")
}

// isURL reports whether s is an http or https URL with a host.
func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// checkURLFlag returns a *usageError if url, the value of -url, is given and is not an http or https URL. Users often
// leave the scheme out.
func checkURLFlag(url string) error {
	if url != "" && !isURL(url) {
		return &usageError{"-url must be an http or https URL, such as http://127.0.0.1:8080"}
	}
	return nil
}

// unauthenticatedError returns the error for listening beyond loopback without authentication, where any program in the
// network could use the tools. It names the setting that the address comes from, PORT or ADDR.
func (c *config) unauthenticatedError() error {
	if c.portSetsAddr {
		return &configError{"PORT", "listens beyond loopback and no inbound authentication is set: set AUTH_ISSUER, or ADDR=127.0.0.1:" + c.Port + " to serve this machine alone, or AUTH_INSECURE_ALLOW_ANONYMOUS=true to serve everybody"}
	}
	return &configError{"ADDR", "is not loopback and no inbound authentication is set: set AUTH_ISSUER, or AUTH_INSECURE_ALLOW_ANONYMOUS=true to serve everybody"}
}

// lacksAuthentication reports whether callers need no token although the operator has not allowed anonymous callers.
// Such a service may only listen on loopback.
func (c *config) lacksAuthentication() bool { return c.AuthIssuer == "" && !c.AuthAllowAnonymous }

// checkBoundAddr returns an error if the listener's address addr is beyond loopback and lacksAuthentication is true.
// checkAddr alone is not enough, because this machine's resolver decides which address a name such as localhost has.
func (c *config) checkBoundAddr(addr net.Addr) error {
	tcp, ok := addr.(*net.TCPAddr)
	if c.lacksAuthentication() && (!ok || !tcp.IP.IsLoopback()) {
		return c.unauthenticatedError()
	}
	return nil
}

// addAllowedHosts completes c.AllowedHosts. host is the host of ADDR. If ALLOWED_HOSTS is not set, the list gets host,
// or all loopback names if host is one of them. For a wildcard host it then stays empty, which allows all hosts. A list
// that is not empty also gets the host of PUBLIC_URL.
func (c *config) addAllowedHosts(host string) {
	if len(c.AllowedHosts) == 0 {
		ip := net.ParseIP(host)
		switch {
		case fetch.IsLoopback(host):
			c.AllowedHosts = []string{"localhost", "127.0.0.1", "::1", host}
		case host != "" && (ip == nil || !ip.IsUnspecified()):
			c.AllowedHosts = []string{strings.ToLower(host)}
		default:
			return
		}
	}
	if u, err := url.Parse(c.PublicURL); err == nil && u.Host != "" {
		c.AllowedHosts = append(c.AllowedHosts, strings.ToLower(u.Hostname()))
	}
}

// normalizeHosts brings ALLOWED_HOSTS and CORS_ORIGINS into the form that requests are compared with. It returns a
// *configError for a value that no request can match.
func (c *config) normalizeHosts() error {
	for i, given := range c.AllowedHosts {
		host := strings.Trim(strings.TrimSpace(given), "[]") // the brackets of an IPv6 address
		host = strings.ToLower(strings.TrimSuffix(host, "."))
		hasPort := strings.Contains(host, ":") && net.ParseIP(host) == nil
		if host == "" || hasPort || strings.ContainsAny(host, "/@* ") {
			return &configError{"ALLOWED_HOSTS", fmt.Sprintf("%q is not a host like app.example.com, without scheme and port", given)}
		}
		c.AllowedHosts[i] = host
	}
	for i, given := range c.CORSOrigins {
		u, err := url.Parse(strings.ToLower(strings.TrimSpace(given)))
		if err != nil || !isOrigin(u) {
			return &configError{"CORS_ORIGINS", fmt.Sprintf("%q is not an origin like https://app.example.com", given)}
		}
		// Browsers leave the default port out (RFC 6454 section 6.2).
		defaultPort := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
		c.CORSOrigins[i] = u.Scheme + "://" + strings.TrimSuffix(u.Host, defaultPort)
	}
	return nil
}

// isOrigin reports whether u has a scheme and a host, and nothing else except for a port.
func isOrigin(u *url.URL) bool {
	hasMore := u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != ""
	return u.Scheme != "" && u.Host != "" && !hasMore
}

// budget returns the budget of every run, from the BUDGET_ settings.
func (c *config) budget() agent.Budget {
	return agent.Budget{
		ToolCalls: c.BudgetToolCalls, InputTokens: c.BudgetInputTokens, OutputTokens: c.BudgetOutputTokens,
		TotalTokens: c.BudgetTotalTokens, Seconds: c.BudgetSeconds, ResultBytes: int64(c.BudgetResultBytes), Cost: c.BudgetCost,
	}
}

// inRange reports whether n is between 0 and limit. It returns false for NaN.
func inRange(n, limit float64) bool { return n >= 0 && n <= limit }

// settingPages maps the beginning of a setting's name to the page that explains the setting. The first match counts.
var settingPages = []struct{ prefix, page string }{
	{"MODELS_FILE", "docs/providers.md#several-models"},
	{"LLM_", "docs/providers.md"},
	{"DEFAULT_MODEL_ID", "docs/providers.md"},
	{"MCP_", "docs/mcp-servers.md"},
	{"AGENTS_FILE", "docs/tasks/several-agents.md"},
	{"IAM_", "docs/mcp-auth.md#jwt"},
	{"ENABLE_JWT_TOKEN", "docs/mcp-auth.md#jwt"},
	{"SECRET_OCID", "docs/mcp-auth.md#jwt"},
	{"OCI_AUTH_TYPE", "docs/mcp-auth.md#jwt"},
	{"TOKENS_KEY_FILE", "docs/mcp-auth.md#sign-ins-that-survive-a-restart"},
	{"AUTH_RULES_FILE", "docs/rules.md"},
	{"AUTH_", "docs/auth.md"},
	{"CONSOLE_OIDC_", "docs/console.md#sign-in"},
	{"HOOKS_", "docs/hooks.md"},
	{"RUN_WEBHOOK_URL", "docs/tasks/webhooks.md"},
	{"CALLBACK_", "docs/tasks/webhooks.md"},
	{"RECEIPT_KEY_FILE", "docs/tasks/debugging-a-run.md#receipts"},
	{"EVENTS_MAX_BYTES", "docs/operations.md#space-for-the-event-log"},
	{"EVENTS_", "docs/events.md#where-events-are-stored"},
	{"SYSTEM_PROMPT_FILE", "docs/tasks/system-prompt.md"},
	{"BUDGET_PER_CALLER", "docs/tasks/cost-per-team.md"},
	{"COST_CLAIM", "docs/tasks/cost-per-team.md"},
	{"LIMIT_BY", "docs/tasks/cost-per-team.md"},
	{"BUDGET_", "docs/tasks/limit-cost.md"},
	{"ENABLE_TRACING", "docs/observability.md#traces"},
	{"OCI_APM_", "docs/observability.md#traces"},
	{"TRACE_", "docs/observability.md#traces"},
	{"OTEL_METRICS_", "docs/observability.md#metrics"},
	{"OTEL_LOGS_", "docs/observability.md#log"},
	{"OTEL_", "docs/observability.md"},
	{"TLS_", "docs/deploy/reverse-proxy.md"},
	{"PUBLIC_URL", "docs/deploy/reverse-proxy.md"},
	{"ADDR", "docs/troubleshooting.md#at-start"},
	{"PORT", "docs/troubleshooting.md#at-start"},
}

// helpPage returns where to read more about err: a command for a *usageError, otherwise a page of docs/. For a
// *configError it is the page of the setting, and for an error of a suite the page about evaluation. Other errors count
// as errors of a setting if their text begins with its name, as in "EVENTS_URL: cannot connect".
func helpPage(err error) string {
	if _, ok := errors.AsType[*usageError](err); ok {
		return "answerd help"
	}
	name, _, _ := strings.Cut(err.Error(), ":")
	if _, ok := errors.AsType[*eval.Error](err); ok || name == "eval" {
		return "docs/tasks/evaluation-in-ci.md"
	}
	if c, ok := errors.AsType[*configError](err); ok {
		name = c.name
	}
	for _, p := range settingPages {
		if strings.HasPrefix(name, p.prefix) {
			return p.page
		}
	}
	if slices.Contains(settingNames(), name) {
		return "docs/configuration.md"
	}
	return "docs/troubleshooting.md"
}
