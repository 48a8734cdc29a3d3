package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the image has no zone database

	contract "answerd/api"
	"answerd/internal/agent"
	"answerd/internal/agent/admission"
	"answerd/internal/agent/delivery"
	"answerd/internal/agent/prompt"
	"answerd/internal/agent/webhook"
	"answerd/internal/api"
	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/signin"
	"answerd/internal/console"
	"answerd/internal/event"
	"answerd/internal/llm/genai"
	"answerd/internal/mcp"
	"answerd/internal/receipt"
	"answerd/internal/telemetry"
	"answerd/internal/tlsconfig"
)

// serve builds the parts of the service, bottom up, serves until ctx ends, and drains. Deferred
// functions close the parts in reverse order, so each part is closed before those that it uses. It
// calls listening with the address as soon as it accepts connections.
//
// The order of the parts matters. Telemetry is the first, so that it still exports what all others
// record while they are closed. The log comes before the MCP servers, which keep sign-ins in it, and is
// closed after them. What reads files again ends before the parts that it would change. The listener is
// the last: a request that arrives finds everything that it needs. When the service ends, drainService
// comes before all deferred functions, so no run uses a part that is being closed.
func serve(ctx context.Context, cfg config, stderr io.Writer, listening func(addr string)) error {
	// Listen for signals from the start: the second one may arrive before the drain begins.
	stages, stop := newShutdownStages(ctx)
	defer stop()
	logger, err := telemetry.NewLogger(stderr, cfg.LogLevel, cfg.Debug)
	if err != nil {
		return &configError{"LOG_LEVEL", "must be debug, info, warn or error"}
	}
	cfg.logSettingWarnings(logger)
	tel, err := newTelemetry(ctx, cfg, logger)
	if err != nil {
		return err
	}
	defer stages.closeLogged(logger, "telemetry", tel.Shutdown)

	// Who may call: certificates, tokens and rules.
	defer cfg.certificates.close()
	defer cfg.certificates.startReloading(ctx, "TLS certificates", logger)()
	verifier, err := newVerifier(cfg, logger)
	if err != nil {
		return err
	}
	if verifier != nil {
		defer verifier.Close()
	}
	rules, endRules, err := newRules(ctx, cfg, logger)
	if err != nil {
		return err
	}
	defer endRules()

	// The log, the models and the MCP servers.
	limits := cfg.limitMemory(containerMemory, logger)
	log, closeLog, err := openLog(ctx, cfg, limits.log, logger)
	if err != nil {
		return err
	}
	defer closeLog()
	models := openModels(ctx, cfg, tel, logger)
	defer func() { models.end() }()
	tools, err := connectTools(cfg, mcp.Options{Transport: tel.Transport, SignIns: cfg.signIns(log, logger), ToolNames: cfg.toolNames(log), Logger: logger})
	if err != nil {
		return err
	}
	defer tools.close()
	defer tools.startReloading(ctx, cfg, logger)()
	if err := observeServers(tel, tools.client); err != nil {
		return err
	}
	endExpiry, err := observeCertificates(ctx, tel, logger, func() []usedCertificate {
		return slices.Concat(cfg.certificates.inUse(), models.usedCertificates(), usedByTools(tools.client))
	})
	if err != nil {
		return err
	}
	defer endExpiry()

	// The other parts of the agent and the API.
	hooks, err := newHooks(cfg, tel, logger)
	if err != nil {
		return err
	}
	if hooks != nil {
		defer hooks.Close()
	}
	prompt, err := newPrompt(cfg)
	if err != nil {
		return err
	}
	metricsHandler, endMetrics, err := serveMetrics(cfg, tel.Metrics(), logger)
	if err != nil {
		return err
	}
	defer endMetrics()
	refused, err := newAuthFailureCounter(tel.Meter("answerd/api"))
	if err != nil {
		return err
	}
	signIn, endSignIn := newConsoleSignIn(cfg, logger)
	defer endSignIn()
	receipts, err := cfg.newReceiptSigner()
	if err != nil {
		return err
	}

	listener, err := cfg.listen()
	if err != nil {
		return err
	}
	defer listener.Close()

	// The deliveries and the agent are the last parts that can fail. They use the log from their start, and
	// the agent claims runs at once. Only the drain stops them, so no step after them may return early.
	deliveries, err := newDeliveries(cfg, log, tel, logger)
	if err != nil {
		return err
	}
	options := cfg.agentOptions()
	options.Model, options.Tools, options.Log = models.router, tools.client, log
	options.Prompt, options.Hooks, options.Deliveries, options.Rules = prompt, hooks, deliveries, rules
	options.MemoryShort, options.Memory = newMemoryCheck(log), admission.NewMemory(limits.runs)
	options.Logger, options.Tracer, options.Meter = logger, tel.Tracer("answerd/agent"), tel.Meter("answerd/agent")
	runs, err := agent.New(options)
	if err != nil {
		return err
	}
	defer models.startReloading(ctx, cfg, runs)()
	defer cfg.startReloadingAgents(ctx, runs, tools.client, logger)()

	handler := api.New(api.Options{
		Agent: runs, Log: log, Receipts: receipts, Verifier: verifier, OnAuthFailure: refused,
		CORSOrigins: cfg.CORSOrigins, AllowedHosts: cfg.AllowedHosts, PublicURL: cfg.PublicURL,
		MaxBody: int64(cfg.MaxBodyBytes), Heartbeat: cfg.HeartbeatInterval, WriteTimeout: cfg.WriteTimeout,
		MaxStreams: cfg.MaxStreams, MaxStreamsPerCaller: cfg.MaxStreamsPerPrincipal,
		Metrics: metricsHandler, OpenAPI: contract.OpenAPI,
		Console: console.Handler(console.Options{TraceURL: cfg.TraceURL, SignIn: signIn, Authenticated: verifier != nil}),
		Version: version, Logger: logger, TraceID: telemetry.TraceID,
	})
	server := newServer(tel.Handler(handler, handler.RoutePattern))

	failed := make(chan error, 1)
	go func() {
		failed <- serveConnections(server, newLimitedListener(listener, cfg.maxConnections()), cfg.certificates.server)
	}()
	cfg.logConfiguration(logger, tools.client.Servers(), listener.Addr().String())
	logger.Info("listening", "addr", listener.Addr().String(), "scheme", cfg.scheme(), "version", version)
	listening(listener.Addr().String())

	delay := cfg.ShutdownDelay
	select {
	case err = <-failed: // Serve returns only after an error, since Shutdown was not called yet
		delay = 0 // skip the readiness delay: the listener does not answer probes any more
	case <-ctx.Done():
	}
	return errors.Join(err, drainService(stages, handler, runs, server, delay, cfg.DrainTimeout, logger))
}

// agentOptions returns the options of the agent that are settings. serve adds the parts that the agent uses.
func (c *config) agentOptions() agent.Options {
	return agent.Options{
		BasePath: c.basePath(), DefaultModel: c.DefaultModelID, Profiles: c.profiles(), Agents: c.agents,
		ToolSearch: agent.ToolSearch{MinTools: c.ToolSearchMinTools, MinBytes: int(c.ToolSearchMinBytes)},
		MaxHistory: c.MaxHistory, MaxTurns: c.MaxTurns, MaxOutputTokens: c.MaxOutputTokens,
		Budget: c.budget(), CostClaim: c.CostClaim, CallerBudgets: c.BudgetPerCaller,
		MaxRuns: c.MaxConcurrentRuns, MaxRunsPerCaller: c.MaxRunsPerPrincipal, Rate: admission.Rate(c.RateLimit),
		DisconnectGrace: c.DisconnectGrace, Durable: !c.EventsURL.IsZero(), ClaimDelay: c.claimDelay(), Retention: c.EventsRetention,
		InputTimeout: c.InputTimeout, AuditArguments: c.AuditArguments, TraceUsers: c.TraceUsers, TraceContent: c.TraceContent,
		Version: version, RecordModelRequests: c.RecordModelRequests,
	}
}

// serveConnections serves the connections of l, over TLS if there is a certificate.
func serveConnections(server *http.Server, l net.Listener, certificate *tlsconfig.Source) error {
	if certificate == nil {
		return server.Serve(l)
	}
	server.TLSConfig = certificate.ServerConfig()
	return server.ServeTLS(l, "", "")
}

// newVerifier returns the verifier of callers' tokens, or nil if there is no inbound
// authentication.
func newVerifier(cfg config, logger *slog.Logger) (*auth.Verifier, error) {
	if cfg.AuthIssuer == "" {
		return nil, nil
	}
	if cfg.AuthJWKSURL != "" {
		if err := fetch.CheckEndpoint("the URL", cfg.AuthJWKSURL); err != nil {
			return nil, &configError{"AUTH_JWKS_URL", err.Error()}
		}
	}
	v, err := auth.NewVerifier(auth.VerifierConfig{
		Issuer: cfg.AuthIssuer, Audience: cfg.AuthAudience, JWKSURL: cfg.AuthJWKSURL, Scope: cfg.AuthScope, Algorithms: trimElements(cfg.AuthAlgorithms),
		Clients: trimElements(cfg.AuthClients), OnlyAccessTokens: cfg.AuthRequireATJWT, MaxLifetime: cfg.AuthMaxLifetime, HTTPClient: cfg.certificates.client, LimitClaim: cfg.LimitBy.claim(), Logger: logger,
	})
	switch {
	case errors.Is(err, auth.ErrAlgorithm):
		return nil, &configError{"AUTH_ALGORITHMS", err.Error()}
	case err != nil:
		return nil, &configError{"AUTH_SCOPE", err.Error()}
	}
	return v, nil
}

// newConsoleSignIn returns what the console needs to let people sign in, or nil if they paste a token,
// and the function that ends the discovery of it.
func newConsoleSignIn(cfg config, logger *slog.Logger) (func(context.Context) (console.SignIn, error), func()) {
	if cfg.ConsoleOIDCClientID == "" {
		return nil, func() {}
	}
	client := fetch.NewClient(cfg.certificates.client)
	discovery := signin.NewDiscovery(cfg.AuthIssuer, client, logger)
	end := func() {
		discovery.Close()
		if cfg.certificates.client == nil {
			client.CloseIdleConnections()
		}
	}
	return func(ctx context.Context) (console.SignIn, error) {
		e, err := discovery.Endpoints(ctx)
		scope := cmp.Or(cfg.ConsoleOIDCScope, cfg.AuthScope)
		if cfg.ConsoleOIDCScope == "" && e.OpenID {
			scope = strings.TrimSpace("openid " + scope)
		}
		return console.SignIn{
			Issuer: cfg.AuthIssuer, ClientID: cfg.ConsoleOIDCClientID, AuthorizationEndpoint: e.Authorization, TokenEndpoint: e.Token,
			EndSessionEndpoint: e.EndSession, IssuerInResponse: e.IssuerInResponse, Scope: scope, Audience: cfg.AuthAudience,
		}, err
	}, end
}

// newHooks returns the client of the operator's webhook service, or nil if none is configured.
func newHooks(cfg config, tel *telemetry.Telemetry, logger *slog.Logger) (*webhook.Client, error) {
	if cfg.HooksURL == "" {
		return nil, nil
	}
	var events []webhook.Event
	for _, name := range trimElements(cfg.HooksEvents) {
		events = append(events, webhook.Event(name))
	}
	o := webhook.Options{
		URL: cfg.HooksURL, Secret: cfg.HooksSecret, Events: events, Transport: tel.Transport,
		Tracer: tel.Tracer("answerd/agent/hook"), Meter: tel.Meter("answerd/agent/hook"),
	}
	if file := cfg.newSecretFile("HOOKS_SECRET", cfg.HooksSecret, logger); file != nil {
		o.CurrentSecret = func() auth.Secret { return auth.NewSecret(file.read()) }
	}
	hooks, err := webhook.New(o)
	if err != nil {
		return nil, &configError{"HOOKS_URL", err.Error()}
	}
	return hooks, nil
}

// newDeliveries returns the deliverer of webhooks about ended runs, or nil if no receiver is configured. The
// agent drains it.
func newDeliveries(c config, log event.Log, tel *telemetry.Telemetry, logger *slog.Logger) (*delivery.Deliverer, error) {
	if c.RunWebhookURL == "" && c.CallbackOrigins == nil {
		return nil, nil
	}
	o := delivery.Options{
		URL: c.RunWebhookURL, CallbackOrigins: c.CallbackOrigins, PrivateCallbacks: c.CallbackPrivate, Secret: c.HooksSecret,
		Log: log, MaxBytes: int64(c.EventsMaxBytes) / 8, Local: c.EventsURL.IsZero(),
		Meter: tel.Meter("answerd/agent/delivery"), Logger: logger,
	}
	if file := c.newSecretFile("HOOKS_SECRET", c.HooksSecret, logger); file != nil {
		o.CurrentSecret = func() auth.Secret { return auth.NewSecret(file.read()) }
	}
	d, err := delivery.New(o)
	if err != nil {
		return nil, fmt.Errorf("set up deliveries: %w", err)
	}
	return d, nil
}

// newReceiptSigner returns the signer of receipts with the keys of RECEIPT_KEY_FILE, or nil if that is not set.
func (c config) newReceiptSigner() (*receipt.Signer, error) {
	if c.ReceiptKeyFile == "" {
		return nil, nil
	}
	return parseFile("RECEIPT_KEY_FILE", c.ReceiptKeyFile, receipt.ParseKeys)
}

// newPrompt returns the template of the system prompt: the operator's or the built-in one.
func newPrompt(cfg config) (*prompt.Prompt, error) {
	zone, err := time.LoadLocation(cfg.AgentTimezone)
	if err != nil {
		return nil, &configError{"AGENT_TIMEZONE", fmt.Sprintf("%q is not an IANA time zone", cfg.AgentTimezone)}
	}
	var text []byte
	if cfg.SystemPromptFile != "" {
		if text, err = os.ReadFile(cfg.SystemPromptFile); err != nil {
			return nil, &configError{"SYSTEM_PROMPT_FILE", "cannot be read: " + fileReason(err)}
		}
	}
	p, err := prompt.New(prompt.Options{Template: string(text), Username: cfg.AgentUsername, Location: zone})
	if err != nil {
		return nil, &configError{"SYSTEM_PROMPT_FILE", err.Error()}
	}
	return p, nil
}

// telemetryConfig returns what is exported. Of the settings for the export of traces, the most specific one wins.
func telemetryConfig(cfg config, logger *slog.Logger) telemetry.Config {
	t := telemetry.Config{ServiceName: cfg.OTelServiceName, Version: version, Tracing: cfg.EnableTracing, QueueSize: cfg.OTelMaxQueueSize, Logger: logger}
	if cfg.TraceContent {
		t.MaxAttribute = genai.MaxBytes
	}
	base := strings.TrimSuffix(cfg.OTelEndpoint, "/")
	switch {
	case !cfg.EnableTracing:
	case cfg.OCIAPMTracesURL != "":
		t.Endpoint, t.Headers = cfg.OCIAPMTracesURL, telemetry.OCIHeaders(cfg.OCIAPMDataKey.Reveal())
	case cfg.OTelTracesEndpoint != "":
		t.Endpoint = cfg.OTelTracesEndpoint
	case base != "":
		t.Endpoint = base + "/v1/traces"
	}
	if cfg.exportsMetrics() {
		t.MetricsEndpoint = cmp.Or(cfg.OTelMetricsEndpoint, base+"/v1/metrics")
	}
	if cfg.OTelLogsExporter == "otlp" {
		t.LogsEndpoint = cmp.Or(cfg.OTelLogsEndpoint, base+"/v1/logs")
	}
	return t
}

// newTelemetry creates traces and metrics.
func newTelemetry(ctx context.Context, cfg config, logger *slog.Logger) (*telemetry.Telemetry, error) {
	tel, err := telemetry.New(ctx, telemetryConfig(cfg, logger))
	if err != nil && !cfg.EnableTracing {
		return nil, &configError{"OTEL_EXPORTER_OTLP_ENDPOINT", err.Error()}
	}
	if err != nil {
		return nil, &configError{"ENABLE_TRACING", err.Error()}
	}
	return tel, nil
}
