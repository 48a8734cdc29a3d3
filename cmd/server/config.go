package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"answerd/internal/agent/admission"
	"answerd/internal/agent/definition"
	"answerd/internal/agent/usage"
	"answerd/internal/auth"
	"answerd/internal/auth/sealed"
	"answerd/internal/llm"
)

// config holds all settings, read once from the environment. The comments are the manual: a test
// generates docs/configuration.md and .env.example from them. A comment that ends with a colon is
// the title of a section. A field of type auth.Secret can also be given as a file, under its name
// with _FILE added.
type config struct {
	// HTTP server:

	// Address to listen on. Beyond loopback, answerd refuses to start without inbound authentication.
	Addr string `env:"ADDR" envDefault:"127.0.0.1:8080"`
	// Port to listen on, at all addresses of the machine. Without effect if ADDR is set. Platforms such as Cloud Run and Heroku set it.
	Port string `env:"PORT"`
	// Certificate for ADDR, in PEM, with its intermediate certificates. With it, answerd serves https there (HTTP/1.1 and HTTP/2) and no http. The file is read again when it changes. Unset: http, for loopback or behind a proxy that terminates TLS.
	TLSCertFile string `env:"TLS_CERT_FILE"`
	// Private key of TLS_CERT_FILE, in PEM, not encrypted.
	TLSKeyFile string `env:"TLS_KEY_FILE"`
	// Exact origins whose pages may call the API from a browser, comma separated.
	CORSOrigins []string `env:"CORS_ORIGINS"`
	// Host names, without port, that requests may be addressed to. The host of PUBLIC_URL is always allowed. Unset: the host of ADDR; the names of loopback for a loopback address; any host for a wildcard address.
	AllowedHosts []string `env:"ALLOWED_HOSTS"`
	// Address under which browsers and other services reach answerd, such as https://ask.example.com or https://example.com/ask. Below its path answerd serves everything; a proxy may remove the path from requests or leave it. Authorization servers of MCP servers send browsers back to {PUBLIC_URL}/oauth/callback, and callers' tokens are issued for it. Unset: http:// (https:// with TLS_CERT_FILE) and ADDR, for a loopback address.
	PublicURL string `env:"PUBLIC_URL"`
	// Address of a separate listener for /metrics, which then needs no token. Unset: /metrics is served at ADDR, and needs a token where callers need one.
	MetricsAddr string `env:"METRICS_ADDR"`

	// Models:

	// OpenAI-compatible endpoint, up to and including /v1. Unset: OPENAI_BASE_URL, otherwise OpenAI's own endpoint.
	LLMBaseURL string `env:"LLM_BASE_URL"`
	// API key of LLM_BASE_URL. It is sent to no other endpoint. Unset: OPENAI_API_KEY.
	LLMAPIKey auth.Secret `env:"LLM_API_KEY"`
	// Model for requests that name none. It must be set for OpenAI's own endpoint. With MODELS_FILE it is one of the models in that file; unset, the first of them.
	DefaultModelID string `env:"DEFAULT_MODEL_ID" envDefault:"xai.grok-4"`
	// How models call tools. native: in the fields of Chat Completions. text: as text, for models without tool calling (TOOL: and PARAMETERS: in the prompt). auto: native, and calls that the model writes as text are read as well.
	LLMToolCalling string `env:"LLM_TOOL_CALLING" envDefault:"auto"`
	// JSON file with the models that callers may use, and what each can do: docs/providers.md. Unset: any model that a request names.
	ModelsFile string `env:"MODELS_FILE"`
	// YAML or JSON file with named agents, each with its own prompt, model, tools and limits: docs/tasks/several-agents.md. It is read again when it changes, and on SIGHUP. Unset: one agent, as the settings say.
	AgentsFile string `env:"AGENTS_FILE"`
	// Longest wait for the first byte of a model's answer.
	LLMFirstByteTimeout time.Duration `env:"LLM_FIRST_BYTE_TIMEOUT" envDefault:"60s"`
	// Longest silence within a model's answer.
	LLMIdleTimeout time.Duration `env:"LLM_IDLE_TIMEOUT" envDefault:"30s"`
	// Add the error message of the model's endpoint to the problem that the caller gets. The log always has it.
	LLMShowErrors bool `env:"LLM_SHOW_ERRORS" envDefault:"false"`
	// How often a failed model request is repeated. It is repeated only before its first delta.
	LLMMaxRetries int `env:"LLM_MAX_RETRIES" envDefault:"2"`
	// Root certificates for LLM_BASE_URL in PEM, instead of the system's. All TLS files are read again when they change. A model in MODELS_FILE that has its own base_url also has its own tls.
	LLMTLSCAFile string `env:"LLM_TLS_CA_FILE"`
	// Client certificate for LLM_BASE_URL, in PEM.
	LLMTLSCertFile string `env:"LLM_TLS_CERT_FILE"`
	// Private key of LLM_TLS_CERT_FILE, in PEM, not encrypted.
	LLMTLSKeyFile string `env:"LLM_TLS_KEY_FILE"`

	// MCP servers:

	// One MCP server that speaks Streamable HTTP. Its name is default.
	MCPURL string `env:"MCP_URL"`
	// Which calls to the server at MCP_URL a person must approve: never, destructive or always.
	MCPApproval string `env:"MCP_APPROVAL" envDefault:"never"`
	// An mcp.json with any number of MCP servers: docs/mcp-servers.md. It may be set together with MCP_URL. It is read again when it changes, and on SIGHUP.
	MCPConfigPath string `env:"MCP_CONFIG_PATH"`
	// File with the accepted tool definitions of servers that have pin. Unset: MCP_CONFIG_PATH with .pins.json at its end, such as mcp.pins.json beside mcp.json.
	MCPPinsPath string `env:"MCP_PINS_PATH"`
	// Longest silence of an MCP server during a call. A call may take ten times as long in total.
	Timeout time.Duration `env:"TIMEOUT" envDefault:"60s"`
	// Tool calls in flight per MCP server. Unset: each server's limit starts at 10 and adapts between 10 and 256, as far as its latency does not rise; timeouts and the statuses 429, 503 and 504 halve it.
	MaxConcurrentCalls *int `env:"MAX_CONCURRENT_CALLS"`

	// Agent and budgets:

	// Messages of a question's history that are used; the latest ones.
	MaxHistory int `env:"MAX_HISTORY" envDefault:"16"`
	// Model turns with tools in one run. One more turn without tools gives the final answer.
	MaxTurns int `env:"MAX_TURNS" envDefault:"10"`
	// Most tokens of one model answer. The limit is sent with each model request, unless less remains of the run's budget. A longer answer is cut. Unset: what the budget and the model allow.
	MaxOutputTokens int64 `env:"MAX_OUTPUT_TOKENS"`
	// With more tools than this, the model sees one tool that searches for tools, and the tools it found. The same if the tools take more than a third of its context window. 0: the number does not matter. With 0 for both limits, tools are never searched.
	ToolSearchMinTools int `env:"TOOL_SEARCH_MIN_TOOLS" envDefault:"64"`
	// The same for the total size of tool names, descriptions and schemas. 0: the size does not matter.
	ToolSearchMinBytes byteSize `env:"TOOL_SEARCH_MIN_BYTES" envDefault:"64KiB"`
	// Most tool calls of one run. Unset, as for the other budgets: unlimited. A question may ask for less. At a limit, the model is asked once for a final answer.
	BudgetToolCalls int `env:"BUDGET_TOOL_CALLS"`
	// Most tokens of all prompts of one run.
	BudgetInputTokens int64 `env:"BUDGET_INPUT_TOKENS"`
	// Most tokens of all model answers of one run.
	BudgetOutputTokens int64 `env:"BUDGET_OUTPUT_TOKENS"`
	// Most tokens of prompts and answers together.
	BudgetTotalTokens int64 `env:"BUDGET_TOTAL_TOKENS"`
	// Longest duration of one run in seconds. Waiting for a person does not count. The last fifth, at most 15 s, is reserved for the final answer.
	BudgetSeconds float64 `env:"BUDGET_SECONDS"`
	// Most bytes of tool results that the model gets in one run, for example 1MiB.
	BudgetResultBytes byteSize `env:"BUDGET_RESULT_BYTES"`
	// Highest cost of one run, in the currency of the prices in MODELS_FILE. Models without a price are then refused.
	BudgetCost float64 `env:"BUDGET_COST"`
	// How long a run waits for a person: for an approval, or for input that an MCP server asks for.
	InputTimeout time.Duration `env:"INPUT_TIMEOUT" envDefault:"15m"`
	// Name of the user in the system prompt.
	AgentUsername string `env:"AGENT_USERNAME" envDefault:"user"`
	// IANA time zone of the dates in the system prompt.
	AgentTimezone string `env:"AGENT_TIMEZONE" envDefault:"Europe/Rome"`
	// File with a Go template for the system prompt. The template can use username, today_long, today_iso and tools. Unset: a built-in prompt.
	SystemPromptFile string `env:"SYSTEM_PROMPT_FILE"`

	// Tokens for MCP servers:

	// Send the service's own JWT with MCP calls.
	EnableJWTToken bool `env:"ENABLE_JWT_TOKEN" envDefault:"false"`
	// Base URL of the IAM that issues this JWT, at {IAM_BASE_URL}/oauth2/v1/token.
	IAMBaseURL string `env:"IAM_BASE_URL"`
	// Complete token URL, if it differs from that.
	IAMTokenURL string `env:"IAM_TOKEN_URL"`
	// Scope that is requested for this JWT.
	Scope string `env:"SCOPE" envDefault:"urn:opc:idm:__myscopes__"`
	// OAuth client id of the service.
	IAMClientID string `env:"IAM_CLIENT_ID"`
	// OAuth client secret of the service.
	IAMClientSecret auth.Secret `env:"IAM_CLIENT_SECRET"`
	// OCID of the OCI Vault secret that holds the client secret, instead of IAM_CLIENT_SECRET.
	SecretOCID string `env:"SECRET_OCID"`
	// How to authenticate to OCI Vault: api_key, instance_principal or resource_principal.
	OCIAuthType string `env:"OCI_AUTH_TYPE" envDefault:"api_key"`
	// Root certificates for the IAM in PEM, instead of the system's. They apply to IAM_BASE_URL, IAM_TOKEN_URL, AUTH_ISSUER and AUTH_JWKS_URL, and to MCP servers with auth of type exchange that have no tls of their own.
	IAMTLSCAFile string `env:"IAM_TLS_CA_FILE"`
	// Client certificate for the IAM, in PEM.
	IAMTLSCertFile string `env:"IAM_TLS_CERT_FILE"`
	// Private key of IAM_TLS_CERT_FILE, in PEM, not encrypted.
	IAMTLSKeyFile string `env:"IAM_TLS_KEY_FILE"`

	// Callers:

	// Issuer of the JWTs that callers must send. Unset: no inbound authentication.
	AuthIssuer string `env:"AUTH_ISSUER"`
	// Audience that the tokens must have.
	AuthAudience string `env:"AUTH_AUDIENCE"`
	// URL of the issuer's signing keys (JWKS). Unset: what the issuer's metadata names (RFC 8414, OpenID Connect Discovery), which must name AUTH_ISSUER exactly. OCI IAM needs it.
	AuthJWKSURL string `env:"AUTH_JWKS_URL"`
	// Scope that the tokens must have. Unset: none.
	AuthScope string `env:"AUTH_SCOPE"`
	// Signature algorithms that are accepted, comma separated: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA.
	AuthAlgorithms []string `env:"AUTH_ALGORITHMS" envDefault:"RS256,ES256"`
	// OAuth clients whose tokens are accepted, comma separated. The client is the claim azp, otherwise client_id. Unset: any client.
	AuthClients []string `env:"AUTH_CLIENTS"`
	// Accept only access tokens of type at+jwt (RFC 9068). ID tokens never have this type.
	AuthRequireATJWT bool `env:"AUTH_REQUIRE_AT_JWT" envDefault:"false"`
	// Longest lifetime, from iat to exp, of a token that is accepted. 0: any.
	AuthMaxLifetime time.Duration `env:"AUTH_MAX_LIFETIME" envDefault:"0s"`
	// JSON file with rules about which callers may use which servers, tools, models and agents: docs/rules.md. It is read again when it changes, and on SIGHUP. Unset: authenticated callers may use everything.
	AuthRulesFile string `env:"AUTH_RULES_FILE"`
	// Claim of callers' tokens by which the metrics answerd_cost_total and answerd_tokens_total are divided, as their label claim: a name, or a JSON pointer such as /org/team. At most 1,000 values are named. Unset: the metrics have no such label.
	CostClaim string `env:"COST_CLAIM"`
	// OAuth client id of the console at AUTH_ISSUER: a public client with PKCE, whose redirect URI is PUBLIC_URL with a slash at its end, and whose origin may use the token endpoint (CORS). The console then offers to sign in: docs/console.md. Unset: people paste a token.
	ConsoleOIDCClientID string `env:"CONSOLE_OIDC_CLIENT_ID"`
	// Scope that the console requests. Unset: openid, where the issuer has it, and AUTH_SCOPE.
	ConsoleOIDCScope string `env:"CONSOLE_OIDC_SCOPE"`
	// Serve callers without authentication, even beyond loopback.
	AuthAllowAnonymous bool `env:"AUTH_INSECURE_ALLOW_ANONYMOUS" envDefault:"false"`

	// Traces:

	// Export traces with OTLP over HTTP. The standard OTEL_* variables apply. Without an endpoint answerd does not start.
	EnableTracing bool `env:"ENABLE_TRACING" envDefault:"false"`
	// Export nothing with OTLP, whatever other settings say. GET /metrics and the log remain.
	OTelSDKDisabled bool `env:"OTEL_SDK_DISABLED" envDefault:"false"`
	// Ended spans that may wait for the collector. Further ones are dropped and counted.
	OTelMaxQueueSize int `env:"OTEL_BSP_MAX_QUEUE_SIZE" envDefault:"2048"`
	// Name of the service in traces and metrics. Unset: service.name in OTEL_RESOURCE_ATTRIBUTES, otherwise answerd.
	OTelServiceName string `env:"OTEL_SERVICE_NAME"`
	// OTLP endpoint. /v1/traces, /v1/metrics or /v1/logs is appended.
	OTelEndpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	// OTLP endpoint for traces, used without change.
	OTelTracesEndpoint string `env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"`
	// Exporters of metrics, comma separated: prometheus (GET /metrics, which is always there) and otlp.
	OTelMetricsExporter []string `env:"OTEL_METRICS_EXPORTER" envDefault:"prometheus"`
	// OTLP endpoint for metrics, used without change. Unset: OTEL_EXPORTER_OTLP_ENDPOINT with /v1/metrics.
	OTelMetricsEndpoint string `env:"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"`
	// Exporter of the log: none, or otlp beside the lines on stderr.
	OTelLogsExporter string `env:"OTEL_LOGS_EXPORTER" envDefault:"none"`
	// OTLP endpoint for the log, used without change. Unset: OTEL_EXPORTER_OTLP_ENDPOINT with /v1/logs.
	OTelLogsEndpoint string `env:"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"`
	// OTLP endpoint of OCI APM, used without change.
	OCIAPMTracesURL string `env:"OCI_APM_TRACES_URL"`
	// Data key of OCI APM, sent as authorization: dataKey …
	OCIAPMDataKey auth.Secret `env:"OCI_APM_DATA_KEY"`
	// Add the caller to spans, as enduser.id and user.id.
	TraceUsers bool `env:"TRACE_USERS" envDefault:"false"`
	// Add questions, prompts, answers, arguments and results to spans, at most 16 KiB of each.
	TraceContent bool `env:"TRACE_CONTENT" envDefault:"false"`
	// Address of a page that shows a trace, with {trace_id} as a placeholder. The console links to it.
	TraceURL string `env:"TRACE_URL"`

	// Event log:

	// Where the event log is. file:DIR: in this directory, for one process. nats:// or tls:// addresses of NATS servers with JetStream, comma separated: shared by any number of processes. Unset: in memory, until the process ends.
	EventsURL auth.Secret `env:"EVENTS_URL"`
	// Credentials for NATS: a .creds file, or the seed of an NKey.
	EventsCredentialsFile string `env:"EVENTS_CREDENTIALS_FILE"`
	// File with the keys that encrypt users' sign-ins to MCP servers in the event log: tokens, and sign-ins that are not complete. One key per line, 32 random bytes in base64 or hex. The first one encrypts and all decrypt. All replicas need the same file. It is read again when it changes. Unset: sign-ins are in memory, and end with the process.
	TokensKeyFile string `env:"TOKENS_KEY_FILE"`
	// How long a run can be read after its last event.
	EventsRetention time.Duration `env:"EVENTS_RETENTION" envDefault:"1h"`
	// If false, a durable log writes what earlier versions can read: one message for each event, and jobs without their requests. Set it to false while an earlier version shares the log, and before a rollback.
	EventsBatch bool `env:"EVENTS_BATCH" envDefault:"true"`
	// How long a thread is kept after its last message. With the log in memory EVENTS_RETENTION applies instead.
	ThreadsRetention time.Duration `env:"THREADS_RETENTION" envDefault:"720h"`
	// Most bytes of events, results and threads in the log. The runs that ended first are deleted first. Threads may use a quarter of it; those that were not updated for longest are deleted first. Unset, the log takes less in a small container: at most about half of the memory limit (GOMEMLIMIT, or the limit derived from the container's). With file:, the file system needs a quarter more and 12 MiB. If it has less, answerd does not start when this is set, and takes a smaller bound when it is unset.
	EventsMaxBytes byteSize `env:"EVENTS_MAX_BYTES" envDefault:"256MiB"`

	// Hooks:

	// Service that answerd asks about tool calls, by signed webhooks: docs/hooks.md.
	HooksURL string `env:"HOOKS_URL"`
	// Secret that signs the webhooks. Required with HOOKS_URL, RUN_WEBHOOK_URL and CALLBACK_ORIGINS.
	HooksSecret auth.Secret `env:"HOOKS_SECRET"`
	// What the service is also asked about, comma separated: pre_model_call, model_result, interrupt, run_end. It is always asked about tool calls (pre_tool_call, tool_error, tool_result).
	HooksEvents []string `env:"HOOKS_EVENTS"`

	// Service that gets a signed POST at the end of every run, repeated for a day until it answers 2xx: docs/tasks/webhooks.md. Child runs are not sent. https, or http on the loopback address.
	RunWebhookURL string `env:"RUN_WEBHOOK_URL"`
	// Origins that the member callback of a question may have, comma separated, such as https://crm.example.com. The callback gets the same POST at the end of the run. https, or http on the loopback address. Unset: no callbacks.
	CallbackOrigins []string `env:"CALLBACK_ORIGINS"`
	// Let callbacks go to private addresses when the host name of an allowed origin resolves to one. An origin that is itself a private or loopback address needs no such permission. Link-local addresses are never used.
	CallbackPrivate bool `env:"CALLBACK_PRIVATE_ADDRESSES" envDefault:"false"`

	// Limits and shutdown:

	// Runs at a time. Further runs wait up to 10 s, fairly by caller, and are then refused with 503. A run that cannot begin in time, by the rate at which runs end, is refused at once.
	MaxConcurrentRuns int `env:"MAX_CONCURRENT_RUNS" envDefault:"512"`
	// Runs of one caller at a time. Further runs are refused with 429. Without AUTH_ISSUER a caller is an IP address, so that all callers behind a proxy are one. Unset: MAX_CONCURRENT_RUNS.
	MaxRunsPerPrincipal int `env:"MAX_RUNS_PER_PRINCIPAL"`
	// Runs that one caller may start per second, minute or hour: 10/s, 60/m, 1000/h. They may start at once. Further runs are refused with 429. Unset: unlimited.
	RateLimit rateLimit `env:"RATE_LIMIT"`
	// Whom the limits per caller count as one caller: subject, or claim:NAME for all callers whose tokens have the same value of that claim. NAME is a claim, such as tenant, or a JSON pointer, such as /org/team. A token without the claim counts by its subject. It applies to RATE_LIMIT, BUDGET_PER_CALLER, MAX_RUNS_PER_PRINCIPAL and MAX_STREAMS_PER_PRINCIPAL.
	LimitBy limitBy `env:"LIMIT_BY" envDefault:"subject"`
	// What all runs of one caller may use in a period, comma separated: cost=5/24h,total_tokens=2000000/7d. The names are cost, input_tokens, output_tokens and total_tokens; a period is 1m to 366d, and begins with the first use after the last one has ended. All replicas share it. Further runs are refused with 429 until the period ends, and runs in progress get one more model turn, without tools. Unset: unlimited.
	BudgetPerCaller callerBudgets `env:"BUDGET_PER_CALLER"`
	// Open requests, most of them streams. Further requests are refused with 503.
	MaxStreams int `env:"MAX_STREAMS" envDefault:"10000"`
	// Open requests of one caller. Further requests are refused with 429. Unset: MAX_STREAMS.
	MaxStreamsPerPrincipal int `env:"MAX_STREAMS_PER_PRINCIPAL"`
	// Open connections. On further connections only health probes are answered; other requests get 503. Unset: one third of the open-file limit, at most 1.1 × MAX_STREAMS.
	MaxConnections int `env:"MAX_CONNECTIONS"`
	// How long a client may take to read 64 KiB of a response. Slower clients are disconnected; their runs continue.
	WriteTimeout time.Duration `env:"WRITE_TIMEOUT" envDefault:"10s"`
	// Largest request body.
	MaxBodyBytes byteSize `env:"MAX_BODY_BYTES" envDefault:"1MiB"`
	// Silence on a stream after which a comment is sent to keep it open.
	HeartbeatInterval time.Duration `env:"HEARTBEAT_INTERVAL" envDefault:"15s"`
	// How long a run without readers continues before it is cancelled.
	DisconnectGrace time.Duration `env:"DISCONNECT_GRACE" envDefault:"30s"`
	// Time at shutdown between failing /readyz and refusing new runs. Use 5s on Kubernetes.
	ShutdownDelay time.Duration `env:"SHUTDOWN_DELAY" envDefault:"0s"`
	// How long running runs may take to end after that, before they are cancelled or handed over.
	DrainTimeout time.Duration `env:"DRAIN_TIMEOUT" envDefault:"60s"`

	// Log:

	// debug, info, warn or error. The log is JSON lines on stderr.
	LogLevel string `env:"LOG_LEVEL" envDefault:"info"`
	// The same as LOG_LEVEL=debug.
	Debug bool `env:"DEBUG" envDefault:"false"`
	// Write the arguments of tool calls to the log. Otherwise the log has a hash of them.
	AuditArguments bool `env:"AUDIT_ARGUMENTS" envDefault:"false"`
	// Store every request to the model with its run, for `GET /runs/{run_id}/export`. Each request has the
	// conversation so far, so this multiplies what a run stores.
	RecordModelRequests bool `env:"RECORD_MODEL_REQUESTS" envDefault:"false"`
	// File with the Ed25519 key that signs receipts of runs (`GET /runs/{run_id}/receipt`): PEM (PKCS #8), or a
	// JWK. With several keys in it, the first one signs, and all are published at `/.well-known/jwks.json`.
	ReceiptKeyFile string `env:"RECEIPT_KEY_FILE"`

	// The fields below are not settings: loadConfig derives them, or reads them from the files that settings name.

	eventsMaxBytesSet bool // EVENTS_MAX_BYTES is set; if false, the event log may choose a smaller bound
	portSetsAddr      bool // Addr was derived from PORT, because ADDR is not set

	certificates certificates // of TLS_*, LLM_TLS_* and IAM_TLS_*
	tokenKeys    *sealed.Keys // of TOKENS_KEY_FILE; nil if it is not set

	models            []llm.Profile // of MODELS_FILE; nil if it is not set
	modelSet          bool          // DEFAULT_MODEL_ID is set; if false, the first of models is the default
	modelsWatch       *fileWatch    // of MODELS_FILE; created before the file was read
	modelCertificates certificates  // of models

	agents      []definition.Agent // of AGENTS_FILE; nil if it is not set
	agentsWatch *fileWatch         // of AGENTS_FILE, created before the file was read, and of its prompt files

	listener net.Listener        // in place of a listener at ADDR; nil unless ask, chat or eval start the service
	localURL string              // PUBLIC_URL, or where browsers on this machine reach ADDR; "" if neither is known
	lookup   func(string) string // value of an environment variable, for ${NAME} in files; "" if it is not set
	warnings []*configError      // settings that are probably a mistake, although the service can start
}

// openAIHost is the host of OpenAI's own endpoint, which needs a key and a model.
const openAIHost = "api.openai.com"

// configError is the error for a setting that cannot be used. The process prints it as one line and exits with code 2.
type configError struct {
	name   string // of the setting
	reason string
}

// Error returns the name of the setting and the reason, on one line.
func (e *configError) Error() string { return e.name + ": " + e.reason }

// fileReason returns the reason of an error of package os without the operation and the path. The message that contains
// the reason names the setting instead.
func fileReason(err error) string {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		return pathErr.Err.Error()
	}
	return err.Error()
}

// parseFile reads the file at path and parses it with parse, without the byte order mark that editors on Windows write.
// name is the setting that has the path as its value. Every error, from reading or from parse, is a *configError for
// that setting.
func parseFile[T any](name, path string, parse func([]byte) (T, error)) (parsed T, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return parsed, &configError{name, "cannot be read: " + fileReason(err)}
	}
	if parsed, err = parse(bytes.TrimPrefix(data, []byte("\ufeff"))); err != nil {
		return parsed, &configError{name, err.Error()}
	}
	return parsed, nil
}

// limitBy is the value of LIMIT_BY: "subject", or "claim:" followed by the name of a claim.
type limitBy string

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *limitBy) UnmarshalText(text []byte) error {
	value := limitBy(text)
	if name := value.claim(); value != "subject" && (name == "" || name == "/") {
		return errors.New("want subject, or claim: and the name of a claim")
	}
	*l = value
	return nil
}

// claim returns the claim's name, or a JSON pointer to the claim. It returns "" for "subject".
func (l limitBy) claim() string {
	name, ok := strings.CutPrefix(string(l), "claim:")
	if !ok {
		return ""
	}
	return name
}

// callerBudgets is the value of BUDGET_PER_CALLER, such as cost=5/24h,total_tokens=2000000/24h.
type callerBudgets []usage.Limit

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *callerBudgets) UnmarshalText(text []byte) (err error) {
	*b, err = usage.ParseLimits(string(text))
	return err
}

// maxRate bounds the number in a rateLimit.
const maxRate = 1_000_000

// rateLimit is the value of RATE_LIMIT: a number per second, minute or hour, such as 10/s, 60/m or 1000/h.
type rateLimit admission.Rate

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *rateLimit) UnmarshalText(text []byte) error {
	number, unit, _ := strings.Cut(string(text), "/")
	per := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || per == 0 || n < 1 || n > maxRate {
		return fmt.Errorf("want 1 to %d per s, m or h", maxRate)
	}
	*r = rateLimit{N: int(n), Per: per}
	return nil
}

// byteSize is a number of bytes, written with or without a unit: 1048576, 1MiB.
type byteSize int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *byteSize) UnmarshalText(text []byte) error {
	units := []struct {
		suffix string
		size   int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"B", 1}, {"", 1}} // B ends the other units, so it comes after them
	for _, u := range units {
		number, ok := strings.CutSuffix(string(text), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n < 0 || n > (1<<62)/u.size { // otherwise n * u.size could overflow
			return errSize
		}
		*b = byteSize(n * u.size)
		return nil
	}
	return errSize
}

// errSize is the error of byteSize.UnmarshalText.
var errSize = errors.New("want a whole number with B, KiB, MiB, GiB or no unit")

// usageError is the error for command line arguments that cannot be used. The process prints it as one line and exits
// with code 2.
type usageError struct{ text string }

// Error returns the text.
func (e *usageError) Error() string { return e.text }

// sharesLog reports whether the event log is on NATS, where other processes may use it too.
func (c *config) sharesLog() bool {
	return !c.EventsURL.IsZero() && !strings.HasPrefix(c.EventsURL.Reveal(), "file:")
}

// exportsMetrics reports whether metrics are exported with OTLP. Serving GET /metrics does not count as an export.
func (c *config) exportsMetrics() bool {
	return slices.Contains(trimElements(c.OTelMetricsExporter), "otlp")
}

// trimElements returns the elements of list without surrounding white space. It keeps elements that were only white
// space, as "". It returns nil if list is empty.
func trimElements(list []string) (out []string) {
	for _, s := range list {
		out = append(out, strings.TrimSpace(s))
	}
	return out
}

// version and commit of this build. The linker sets them in releases.
var (
	version = "dev"
	commit  = ""
)

// settingNames returns the names of all environment variables that loadConfig reads as settings: those in the tags of
// config, the same with _FILE for secrets, and OPENAI_API_KEY and OPENAI_BASE_URL.
func settingNames() []string {
	names := []string{"OPENAI_API_KEY", "OPENAI_BASE_URL"}
	for f := range reflect.TypeFor[config]().Fields() {
		name := f.Tag.Get("env")
		if name == "" {
			continue
		}
		names = append(names, name)
		if f.Type == reflect.TypeFor[auth.Secret]() {
			names = append(names, name+"_FILE")
		}
	}
	return names
}
