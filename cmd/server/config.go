package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"answerd/internal/agent/admission"
	"answerd/internal/auth"
	"answerd/internal/llm"
)

// config is every setting, read once from the environment. The comments are the
// manual: the README's table and .env.example are made from them by a test. A field
// of type auth.Secret can also be given as a file, under its name with _FILE added.
type config struct {
	// Address to listen on. Beyond loopback the server refuses to start without inbound authentication.
	Addr string `env:"ADDR" envDefault:"127.0.0.1:8080"`
	// Exact origins whose pages may call, comma separated.
	CORSOrigins []string `env:"CORS_ORIGINS"`
	// Hosts, without port, that requests may be addressed to; that of PUBLIC_URL is one of them. Unset: the host of ADDR, loopback's names for a loopback address, any for a wildcard address.
	AllowedHosts []string `env:"ALLOWED_HOSTS"`

	// Address under which answerd is reached, without a path: browsers come back to {PUBLIC_URL}/oauth/callback from the authorization servers of MCP servers, and tokens of callers are for it. Unset: http:// and ADDR, for a loopback address.
	PublicURL string `env:"PUBLIC_URL"`

	// Address of a listener of its own for /metrics, which then wants no token and is nowhere else. Unset: /metrics is at ADDR, and wants a token where callers bring one.
	MetricsAddr string `env:"METRICS_ADDR"`

	// OpenAI-compatible endpoint, up to and including /v1. Unset: OPENAI_BASE_URL, else OpenAI's own.
	LLMBaseURL string `env:"LLM_BASE_URL"`
	// Its key. Unset: OPENAI_API_KEY.
	LLMAPIKey auth.Secret `env:"LLM_API_KEY"`
	// Model of requests that name none. Must be set at OpenAI's own endpoint. With MODELS_FILE it is one of its models; unset, the first.
	DefaultModelID string `env:"DEFAULT_MODEL_ID" envDefault:"xai.grok-4"`
	// How models call tools: native; text, for models without tool calling (TOOL: / PARAMETERS: in the prompt); or auto, which is native and also reads calls that the model writes as text.
	LLMToolCalling string `env:"LLM_TOOL_CALLING" envDefault:"auto"`
	// JSON file with the models that are served, and what each can do. Unset: whatever model a request names.
	ModelsFile string `env:"MODELS_FILE"`
	// Longest wait for the first byte of a model's answer.
	LLMFirstByteTimeout time.Duration `env:"LLM_FIRST_BYTE_TIMEOUT" envDefault:"60s"`
	// Longest silence within a model's answer.
	LLMIdleTimeout time.Duration `env:"LLM_IDLE_TIMEOUT" envDefault:"30s"`
	// Add what a model's endpoint says about an error to the problem's detail, for the caller. It is always in the log.
	LLMShowErrors bool `env:"LLM_SHOW_ERRORS" envDefault:"false"`
	// Repetitions of a failed model call, only before its first delta.
	LLMMaxRetries int `env:"LLM_MAX_RETRIES" envDefault:"2"`
	// Root certificates for LLM_BASE_URL, in PEM, in place of the system's. This and the other TLS files are read again when they change. A model of MODELS_FILE with a base_url has its own, in tls.
	LLMTLSCAFile string `env:"LLM_TLS_CA_FILE"`
	// Client certificate for LLM_BASE_URL, in PEM.
	LLMTLSCertFile string `env:"LLM_TLS_CERT_FILE"`
	// Its private key, not encrypted.
	LLMTLSKeyFile string `env:"LLM_TLS_KEY_FILE"`

	// One MCP server (streamable HTTP), named default.
	MCPURL string `env:"MCP_URL"`
	// Which calls of its tools a person must approve: never, destructive or always.
	MCPApproval string `env:"MCP_APPROVAL" envDefault:"never"`
	// An mcp.json with any number of servers; may be set beside MCP_URL. Read again when it changes, and on SIGHUP.
	MCPConfigPath string `env:"MCP_CONFIG_PATH"`
	// File of the tool definitions that were accepted for its servers with pin. Unset: beside it, mcp.json's is mcp.pins.json.
	MCPPinsPath string `env:"MCP_PINS_PATH"`
	// Longest silence of an MCP server that works on a call; ten times that bounds the call in all.
	Timeout time.Duration `env:"TIMEOUT" envDefault:"60s"`
	// Tool calls at a time per MCP server.
	MaxConcurrentCalls int `env:"MAX_CONCURRENT_CALLS" envDefault:"10"`

	// Messages of a question's history that are used.
	MaxHistory int `env:"MAX_HISTORY" envDefault:"16"`
	// Model turns with tools in one run; one more without tools sums up.
	MaxTurns int `env:"MAX_TURNS" envDefault:"10"`
	// Most tokens of one model answer. It is sent with each model request, unless less is left of the run's budget; an answer that goes on beyond it is cut. Unset: what the budget and the model allow.
	MaxOutputTokens int64 `env:"MAX_OUTPUT_TOKENS"`
	// With more tools than this a model is shown one to search them, and those that it found. 0: never for their number.
	ToolSearchMinTools int `env:"TOOL_SEARCH_MIN_TOOLS" envDefault:"64"`
	// Or with more bytes of names, descriptions and schemas. 0: never for their size.
	ToolSearchMinBytes byteSize `env:"TOOL_SEARCH_MIN_BYTES" envDefault:"64KiB"`
	// Tool calls in one run. This and the other limits of a run: unset is none, requests may ask for less, and a run that reaches one sums up.
	BudgetToolCalls int `env:"BUDGET_TOOL_CALLS"`
	// Tokens of all prompts of one run.
	BudgetInputTokens int64 `env:"BUDGET_INPUT_TOKENS"`
	// Tokens of all that the model says in one run.
	BudgetOutputTokens int64 `env:"BUDGET_OUTPUT_TOKENS"`
	// Both together.
	BudgetTotalTokens int64 `env:"BUDGET_TOTAL_TOKENS"`
	// Seconds of one run, without those in which it waits for a person; the last fifth, 15 s at most, is kept for summing up.
	BudgetSeconds float64 `env:"BUDGET_SECONDS"`
	// Bytes of tool results that the model is given in one run, such as 1MiB.
	BudgetResultBytes byteSize `env:"BUDGET_RESULT_BYTES"`
	// Money that one run may cost, in the currency of the models' prices; models without a price are refused then.
	BudgetCost float64 `env:"BUDGET_COST"`
	// How long a run waits for a person: for an approval, or for what an MCP server asks.
	InputTimeout time.Duration `env:"INPUT_TIMEOUT" envDefault:"15m"`
	// Name of the user in the system prompt.
	AgentUsername string `env:"AGENT_USERNAME" envDefault:"user"`
	// IANA time zone of the dates in the system prompt.
	AgentTimezone string `env:"AGENT_TIMEZONE" envDefault:"Europe/Rome"`
	// File with a Go template for the system prompt: username, today_long, today_iso, tools. Unset: the built-in one.
	SystemPromptFile string `env:"SYSTEM_PROMPT_FILE"`

	// Send the service's own JWT with MCP calls.
	EnableJWTToken bool `env:"ENABLE_JWT_TOKEN" envDefault:"false"`
	// IAM that issues it, at {IAM_BASE_URL}/oauth2/v1/token.
	IAMBaseURL string `env:"IAM_BASE_URL"`
	// The whole token URL, where it is another.
	IAMTokenURL string `env:"IAM_TOKEN_URL"`
	// Scope that is asked for.
	Scope string `env:"SCOPE" envDefault:"urn:opc:idm:__myscopes__"`
	// OAuth client of the service.
	IAMClientID string `env:"IAM_CLIENT_ID"`
	// Its secret.
	IAMClientSecret auth.Secret `env:"IAM_CLIENT_SECRET"`
	// Or: OCID of the OCI Vault secret that holds it.
	SecretOCID string `env:"SECRET_OCID"`
	// How to authenticate to OCI Vault: api_key, instance_principal or resource_principal.
	OCIAuthType string `env:"OCI_AUTH_TYPE" envDefault:"api_key"`
	// Root certificates for the IAM, in PEM, in place of the system's: for IAM_BASE_URL, IAM_TOKEN_URL and AUTH_JWKS_URL, and for MCP servers with auth of type exchange that have no tls of their own.
	IAMTLSCAFile string `env:"IAM_TLS_CA_FILE"`
	// Client certificate for the IAM, in PEM.
	IAMTLSCertFile string `env:"IAM_TLS_CERT_FILE"`
	// Its private key, not encrypted.
	IAMTLSKeyFile string `env:"IAM_TLS_KEY_FILE"`

	// Issuer of the JWTs that callers must bring. Unset: no inbound authentication.
	AuthIssuer string `env:"AUTH_ISSUER"`
	// Audience that they must name.
	AuthAudience string `env:"AUTH_AUDIENCE"`
	// Where the issuer's keys are.
	AuthJWKSURL string `env:"AUTH_JWKS_URL"`
	// Scope that they must have, if any.
	AuthScope string `env:"AUTH_SCOPE"`
	// Algorithms that may sign them, comma separated: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA.
	AuthAlgorithms []string `env:"AUTH_ALGORITHMS" envDefault:"RS256,ES256"`
	// Clients, comma separated, whose tokens are taken, by azp or else client_id. Unset: those of any.
	AuthClients []string `env:"AUTH_CLIENTS"`
	// Take only tokens of the type at+jwt (RFC 9068), which ID tokens are not.
	AuthRequireATJWT bool `env:"AUTH_REQUIRE_AT_JWT" envDefault:"false"`
	// Longest time from iat to exp of a token that is taken. 0: any.
	AuthMaxLifetime time.Duration `env:"AUTH_MAX_LIFETIME" envDefault:"0s"`
	// JSON file of rules, which callers may use which servers, tools and models: docs/rules.md. Read again when it changes, and on SIGHUP. Unset: everybody who is let in may use everything.
	AuthRulesFile string `env:"AUTH_RULES_FILE"`
	// Serve everybody who reaches ADDR, beyond loopback too.
	AuthAllowAnonymous bool `env:"AUTH_INSECURE_ALLOW_ANONYMOUS" envDefault:"false"`

	// Export traces by OTLP/HTTP. The standard OTEL_* settings apply; without an endpoint it is a start-up error.
	EnableTracing bool `env:"ENABLE_TRACING" envDefault:"false"`
	// Name of the service in traces and metrics. Unset: service.name in OTEL_RESOURCE_ATTRIBUTES, else answerd.
	OTelServiceName string `env:"OTEL_SERVICE_NAME"`
	// OTLP endpoint; /v1/traces is added.
	OTelEndpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	// OTLP endpoint of traces, used as it is.
	OTelTracesEndpoint string `env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"`
	// OTLP endpoint of OCI APM, used as it is.
	OCIAPMTracesURL string `env:"OCI_APM_TRACES_URL"`
	// Its data key, sent as authorization: dataKey …
	OCIAPMDataKey auth.Secret `env:"OCI_APM_DATA_KEY"`

	// Where a trace can be looked at, with {trace_id} in its place: the console links there.
	TraceURL string `env:"TRACE_URL"`

	// Where events are kept: file:DIR on this disk, which one process uses, or the servers of a NATS cluster with JetStream (nats:// or tls://, comma separated), which any number share. Unset: in memory, until the process ends.
	EventsURL auth.Secret `env:"EVENTS_URL"`
	// File to log in to that cluster with: .creds, or the seed of an NKey.
	EventsCredentialsFile string `env:"EVENTS_CREDENTIALS_FILE"`
	// How long a run is kept for resume after its last event.
	EventsRetention time.Duration `env:"EVENTS_RETENTION" envDefault:"1h"`
	// Bytes of events and results that are kept in all. The log in memory holds most events in two forms and counts both, and 1 KiB for each run; unset, it has at most a quarter of the memory limit (GOMEMLIMIT, or what is derived from the container's). Runs that ended first are deleted first. With file:, the file system needs a quarter more and 12 MiB: if this is set and it has less, the start fails; if this is unset, the log takes what there is.
	EventsMaxBytes byteSize `env:"EVENTS_MAX_BYTES" envDefault:"256MiB"`

	// Service that is asked about every tool call, by signed webhooks: docs/hooks.md.
	HooksURL string `env:"HOOKS_URL"`
	// Secret that signs the webhooks. Required with HOOKS_URL.
	HooksSecret auth.Secret `env:"HOOKS_SECRET"`

	// Runs at a time. More wait for at most a second, the callers in turn, and are refused with 503.
	MaxConcurrentRuns int `env:"MAX_CONCURRENT_RUNS" envDefault:"512"`
	// Runs of one caller at a time; more are refused with 429. Without AUTH_ISSUER a caller is an address, and behind a proxy all callers are one. Unset: as many as there may be.
	MaxRunsPerPrincipal int `env:"MAX_RUNS_PER_PRINCIPAL"`
	// Runs that one caller may start, such as 10/s, 60/m or 1000/h, all of which may come at once; faster ones are refused with 429. Unset: as many as he likes.
	RateLimit rateLimit `env:"RATE_LIMIT"`
	// Requests that are open at a time, streams above all; more are refused with 503.
	MaxStreams int `env:"MAX_STREAMS" envDefault:"10000"`
	// Those of one caller; more are refused with 429. Unset: as many as there may be.
	MaxStreamsPerPrincipal int `env:"MAX_STREAMS_PER_PRINCIPAL"`
	// Connections at a time; on more of them only probes are answered, and others with 503. Unset: a third of the files that the process may open, and no more than MAX_STREAMS and a tenth.
	MaxConnections int `env:"MAX_CONNECTIONS"`
	// How long a reader may take for 64 KiB of a response before it is let go.
	WriteTimeout time.Duration `env:"WRITE_TIMEOUT" envDefault:"10s"`
	// Bytes of a request body.
	MaxBodyBytes byteSize `env:"MAX_BODY_BYTES" envDefault:"1MiB"`
	// Silence of a stream before a comment keeps it open.
	HeartbeatInterval time.Duration `env:"HEARTBEAT_INTERVAL" envDefault:"15s"`
	// How long a run goes on that nobody reads.
	DisconnectGrace time.Duration `env:"DISCONNECT_GRACE" envDefault:"30s"`
	// How long everything goes on at shutdown while /readyz already says 503, so that load balancers find out. Kubernetes wants 5s; at a terminal nobody does.
	ShutdownDelay time.Duration `env:"SHUTDOWN_DELAY" envDefault:"0s"`
	// How long runs may take after that to end before they are cancelled.
	DrainTimeout time.Duration `env:"DRAIN_TIMEOUT" envDefault:"60s"`

	// debug, info, warn or error; JSON lines on stderr.
	LogLevel string `env:"LOG_LEVEL" envDefault:"info"`
	// The same as LOG_LEVEL=debug.
	Debug bool `env:"DEBUG" envDefault:"false"`
	// Put the arguments of tool calls into their lines in the log, which otherwise have a hash of them.
	AuditArguments bool `env:"AUDIT_ARGUMENTS" envDefault:"false"`

	eventsMaxBytesSet bool // else the event log may choose less

	certificates certificates // of the TLS files, other than those of MCP servers

	models   []llm.Profile       // of MODELS_FILE
	localURL string              // PUBLIC_URL, or where browsers on this machine reach ADDR; "" where neither is known
	lookup   func(string) string // the environment itself, for ${NAME} in MCP_CONFIG_PATH
	warnings []*configError      // settings that are probably a mistake, although the service can start
}

const openAIHost = "api.openai.com"

// configError is a setting that cannot be used: one line, exit code 2.
type configError struct {
	name   string
	reason string
}

func (e *configError) Error() string { return e.name + ": " + e.reason }

// loadConfig reads the settings and checks what can be checked without the network.
func loadConfig(environ environment) (config, error) {
	settings, err := environ.readSettings()
	if err != nil {
		return config{}, err
	}
	modelSet := settings["DEFAULT_MODEL_ID"] != ""
	c := config{lookup: environ.get, eventsMaxBytesSet: settings["EVENTS_MAX_BYTES"] != ""}
	if err := env.ParseWithOptions(&c, env.Options{Environment: settings, FuncMap: settingParsers}); err != nil {
		return config{}, parseError(err)
	}
	if c.LLMBaseURL == "" {
		c.LLMBaseURL = environ.get("OPENAI_BASE_URL")
	}
	if c.LLMBaseURL == "" {
		c.LLMBaseURL = "https://" + openAIHost + "/v1"
	}
	if c.LLMAPIKey.IsZero() {
		c.LLMAPIKey = auth.NewSecret(environ.get("OPENAI_API_KEY"))
	}
	if err := c.readModels(modelSet); err != nil {
		return config{}, err
	}
	c.warnings = c.findWarnings(environ)
	if err := c.validate(modelSet || len(c.models) > 0); err != nil {
		return c, err
	}
	return c, c.readCertificates()
}

// settingParsers accept more spellings than Go's own: yes and on for true, and a bare number of
// seconds for a duration.
var settingParsers = map[reflect.Type]env.ParserFunc{
	reflect.TypeFor[bool](): func(s string) (any, error) {
		switch strings.ToLower(s) {
		case "yes", "y", "on":
			return true, nil
		case "no", "n", "off":
			return false, nil
		}
		return strconv.ParseBool(s)
	},
	reflect.TypeFor[time.Duration](): func(s string) (any, error) {
		if seconds, err := strconv.ParseUint(s, 10, 31); err == nil {
			return time.Duration(seconds) * time.Second, nil
		}
		return time.ParseDuration(s)
	},
}

// fileReason returns why a file cannot be read, without its path, which the setting names.
func fileReason(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// parseError returns an error that names the setting instead of the struct's field.
func parseError(err error) error {
	var parse env.ParseError
	if errors.As(err, &parse) {
		f, _ := reflect.TypeFor[config]().FieldByName(parse.Name)
		return &configError{f.Tag.Get("env"), fmt.Sprintf("not a %s: %v", typeName(parse.Type), parseReason(parse.Err))}
	}
	return &configError{"environment", strings.ReplaceAll(err.Error(), "\n", " ")}
}

func parseReason(err error) error {
	var number *strconv.NumError
	if errors.As(err, &number) {
		return number.Err
	}
	return err
}

func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration like 30s"
	case reflect.TypeFor[rateLimit]():
		return "rate like 10/s"
	case reflect.TypeFor[byteSize]():
		return "size like 1MiB"
	case reflect.TypeFor[int](), reflect.TypeFor[int64]():
		return "whole number"
	case reflect.TypeFor[float64]():
		return "number"
	case reflect.TypeFor[bool]():
		return "truth value"
	}
	return t.String()
}

// maxRate bounds the number in a rate.
const maxRate = 1_000_000

// rateLimit is a number per period, written 10/s, 60/m or 1000/h.
type rateLimit admission.Rate

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *rateLimit) UnmarshalText(text []byte) error {
	number, unit, _ := strings.Cut(string(text), "/")
	per := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || per == 0 || n < 1 || n > maxRate {
		return errors.New("not a rate")
	}
	*r = rateLimit{N: int(n), Per: per}
	return nil
}
