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
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the image has no zone database

	"github.com/KimMachineGun/automemlimit/memlimit"

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
)

// serviceParts holds the parts of the service that serve builds.
type serviceParts struct {
	cfg     config
	logger  *slog.Logger
	tel     *telemetry.Telemetry
	closers []func() // functions that close calls, last one first

	verifier *auth.Verifier // nil without inbound authentication
	rules    *auth.Rules    // nil without AUTH_RULES_FILE
	limits   memoryLimits
	log      event.Log
	models   *servedModels
	tools    toolset
	hooks    *webhook.Client // nil without HOOKS_URL
	prompt   *prompt.Prompt
}

// serve builds the parts of the service, serves until ctx ends or the listener fails, and drains. It calls listening
// with the listener's address as soon as it accepts connections.
//
// A part is built after the parts that it uses, and closed before them. Telemetry comes first, so that it still exports
// what the other parts record while they close. The log comes before the MCP servers, which store sign-ins in it. The
// listener comes late, so that a request finds all parts. At the end drainService runs before any part is closed, so
// that no run uses a closed part.
func serve(ctx context.Context, cfg config, stderr io.Writer, listening func(addr string)) error {
	// Count signals from the start, because the second one may arrive before the drain begins.
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

	s := &serviceParts{cfg: cfg, logger: logger, tel: tel}
	defer s.close()
	if err := s.openCallerChecks(ctx); err != nil {
		return err
	}
	if err := s.openLogModelsAndTools(ctx); err != nil {
		return err
	}
	if err := s.openHooksAndPrompt(); err != nil {
		return err
	}
	options, err := s.newAPIOptions()
	if err != nil {
		return err
	}
	listener, err := cfg.listen()
	if err != nil {
		return err
	}
	s.onClose(func() { _ = listener.Close() })

	runs, err := s.startAgent()
	if err != nil {
		return err
	}
	s.onClose(s.models.startReloading(ctx, cfg, runs))
	s.onClose(cfg.startReloadingAgents(ctx, runs, s.tools.client, logger))
	options.Agent = runs
	handler := api.New(options)
	server := newServer(tel.Handler(handler, handler.RoutePattern))

	failed := make(chan error, 1)
	go func() {
		failed <- serveConnections(server, newLimitedListener(listener, cfg.maxConnections()), &cfg)
	}()
	cfg.logConfiguration(logger, s.tools.client.Servers(), listener.Addr().String())
	logger.Info("listening", "addr", listener.Addr().String(), "scheme", cfg.scheme(), "version", version)
	listening(listener.Addr().String())

	delay := cfg.ShutdownDelay
	select {
	case err = <-failed: // always an error, since Shutdown has not been called yet
		delay = 0 // the delay is for readiness probes, which the listener cannot answer any more
	case <-ctx.Done():
	}
	return errors.Join(err, drainService(stages, handler, runs, server, delay, cfg.DrainTimeout, logger))
}

// onClose registers f for close, which calls the registered functions in reverse order.
func (s *serviceParts) onClose(f func()) { s.closers = append(s.closers, f) }

// close closes the parts in the reverse order in which they were built.
func (s *serviceParts) close() {
	for _, f := range s.closers {
		defer f() // defer reverses the order, and runs the remaining functions even if one panics
	}
}

// openCallerChecks sets the parts that decide who may call: the certificates, the verifier of tokens and the access
// rules. It also starts to watch the files of certificates and rules.
func (s *serviceParts) openCallerChecks(ctx context.Context) (err error) {
	s.onClose(s.cfg.certificates.close)
	s.onClose(s.cfg.certificates.startReloading(ctx, "TLS certificates", s.logger))
	if s.verifier, err = newVerifier(s.cfg, s.logger); err != nil {
		return err
	}
	if s.verifier != nil {
		s.onClose(s.verifier.Close)
	}
	rules, endRules, err := newRules(ctx, s.cfg, s.logger)
	if err != nil {
		return err
	}
	s.onClose(endRules)
	s.rules = rules
	return nil
}

// openLogModelsAndTools sets the memory limits, and opens the event log, the model endpoints and the client of the MCP
// servers. It also starts the metrics of the MCP servers and the warnings about certificates that expire soon.
func (s *serviceParts) openLogModelsAndTools(ctx context.Context) error {
	s.limits = s.cfg.limitMemory(memlimit.FromCgroup, s.logger)
	log, closeLog, err := openLog(ctx, s.cfg, s.limits.log, s.logger)
	if err != nil {
		return err
	}
	s.onClose(closeLog)
	s.log = log

	s.models = openModels(ctx, s.cfg, s.tel, s.logger)
	s.onClose(s.models.close)

	s.tools, err = connectTools(s.cfg, mcp.Options{
		Transport: s.tel.Transport, SignIns: s.cfg.signIns(log, s.logger), ToolNames: s.cfg.toolNames(log), Logger: s.logger,
	})
	if err != nil {
		return err
	}
	s.onClose(s.tools.close)
	s.onClose(s.tools.startReloading(ctx, s.cfg, s.logger))
	if err := observeServers(s.tel, s.tools.client); err != nil {
		return err
	}
	endExpiry, err := observeCertificates(ctx, s.tel, s.logger, func() []usedCertificate {
		return slices.Concat(s.cfg.certificates.inUse(), s.models.usedCertificates(), usedByTools(s.tools.client))
	})
	if err != nil {
		return err
	}
	s.onClose(endExpiry)
	return nil
}

// openHooksAndPrompt sets the client of the operator's hook service and the template of the system prompt.
func (s *serviceParts) openHooksAndPrompt() (err error) {
	if s.hooks, err = newHooks(s.cfg, s.tel, s.logger); err != nil {
		return err
	}
	if s.hooks != nil {
		s.onClose(s.hooks.Close)
	}
	s.prompt, err = newPrompt(s.cfg)
	return err
}

// newAPIOptions returns the options of the HTTP handler, except for the agent. If METRICS_ADDR is set, it also starts
// the listener for metrics.
func (s *serviceParts) newAPIOptions() (api.Options, error) {
	metricsHandler, endMetrics, err := serveMetrics(s.cfg, s.tel.Metrics(), s.logger)
	if err != nil {
		return api.Options{}, err
	}
	s.onClose(endMetrics)
	countAuthFailure, err := newAuthFailureCounter(s.tel.Meter("answerd/api"))
	if err != nil {
		return api.Options{}, err
	}
	signIn, endSignIn := newConsoleSignIn(s.cfg, s.logger)
	s.onClose(endSignIn)
	receipts, err := s.cfg.newReceiptSigner()
	if err != nil {
		return api.Options{}, err
	}
	return api.Options{
		Log: s.log, Receipts: receipts, Verifier: s.verifier, OnAuthFailure: countAuthFailure,
		CORSOrigins: s.cfg.CORSOrigins, AllowedHosts: s.cfg.AllowedHosts, PublicURL: s.cfg.PublicURL,
		MaxBody: int64(s.cfg.MaxBodyBytes), Heartbeat: s.cfg.HeartbeatInterval, WriteTimeout: s.cfg.WriteTimeout,
		MaxStreams: s.cfg.MaxStreams, MaxStreamsPerCaller: s.cfg.MaxStreamsPerPrincipal,
		Metrics: metricsHandler, OpenAPI: contract.OpenAPI,
		Console: console.Handler(console.Options{TraceURL: s.cfg.TraceURL, SignIn: signIn, Authenticated: s.verifier != nil}),
		Version: version, Logger: s.logger, TraceID: telemetry.TraceID,
	}, nil
}

// startAgent starts the deliveries and the agent. Both use the log at once, and the agent claims runs. Only the drain
// stops them, so the caller must drain the agent before it closes the parts.
func (s *serviceParts) startAgent() (*agent.Agent, error) {
	deliveries, err := newDeliveries(s.cfg, s.log, s.tel, s.logger)
	if err != nil {
		return nil, err
	}
	c := &s.cfg
	return agent.New(agent.Options{
		Model: s.models.router, DefaultModel: c.DefaultModelID, Profiles: c.profiles(), Agents: c.agents,
		Tools: s.tools.client, ToolSearch: agent.ToolSearch{MinTools: c.ToolSearchMinTools, MinBytes: int(c.ToolSearchMinBytes)},
		Log: s.log, Durable: !c.EventsURL.IsZero(), ClaimDelay: c.claimDelay(), Retention: c.EventsRetention,
		Prompt: s.prompt, Hooks: s.hooks, Deliveries: deliveries, Rules: s.rules, BasePath: c.basePath(),
		MaxHistory: c.MaxHistory, MaxTurns: c.MaxTurns, MaxOutputTokens: c.MaxOutputTokens,
		Budget: c.budget(), CostClaim: c.CostClaim, CallerBudgets: c.BudgetPerCaller,
		MaxRuns: c.MaxConcurrentRuns, MaxRunsPerCaller: c.MaxRunsPerPrincipal, Rate: admission.Rate(c.RateLimit),
		MemoryShort: newMemoryCheck(s.log), Memory: admission.NewMemory(s.limits.runs),
		DisconnectGrace: c.DisconnectGrace, InputTimeout: c.InputTimeout,
		AuditArguments: c.AuditArguments, TraceUsers: c.TraceUsers, TraceContent: c.TraceContent,
		RecordModelRequests: c.RecordModelRequests, Version: version,
		Logger: s.logger, Tracer: s.tel.Tracer("answerd/agent"), Meter: s.tel.Meter("answerd/agent"),
	})
}

// serveConnections serves the connections of l until the server is shut down or l fails, over TLS if TLS_CERT_FILE is
// set. It never returns nil.
func serveConnections(server *http.Server, l net.Listener, c *config) error {
	if c.certificates.server == nil {
		return server.Serve(l)
	}
	server.TLSConfig = c.certificates.server.ServerConfig()
	// A stream's deadline cannot end a write to the connection, which blocks all its streams.
	server.HTTP2 = &http.HTTP2Config{WriteByteTimeout: c.WriteTimeout}
	return server.ServeTLS(l, "", "")
}

// newVerifier returns the verifier of callers' tokens, or nil without AUTH_ISSUER. It fetches no keys. The caller must
// close the verifier. Every error is a *configError.
func newVerifier(cfg config, logger *slog.Logger) (*auth.Verifier, error) {
	if cfg.AuthIssuer == "" {
		return nil, nil
	}
	if cfg.AuthJWKSURL != "" {
		if err := fetch.CheckEndpoint("the URL", cfg.AuthJWKSURL); err != nil {
			return nil, &configError{"AUTH_JWKS_URL", err.Error()}
		}
	}
	verifier, err := auth.NewVerifier(auth.VerifierConfig{
		Issuer: cfg.AuthIssuer, Audience: cfg.AuthAudience, JWKSURL: cfg.AuthJWKSURL, Scope: cfg.AuthScope,
		Algorithms: trimElements(cfg.AuthAlgorithms), Clients: trimElements(cfg.AuthClients),
		OnlyAccessTokens: cfg.AuthRequireATJWT, MaxLifetime: cfg.AuthMaxLifetime, LimitClaim: cfg.LimitBy.claim(),
		HTTPClient: cfg.certificates.client, Logger: logger,
	})
	switch {
	case errors.Is(err, auth.ErrAlgorithm):
		return nil, &configError{"AUTH_ALGORITHMS", err.Error()}
	case err != nil: // validate has already checked the issuer and the audience
		return nil, &configError{"AUTH_SCOPE", err.Error()}
	}
	return verifier, nil
}

// newConsoleSignIn returns signIn, which the console calls to learn at which endpoints people sign in. signIn reads them
// from the metadata of AUTH_ISSUER. Without CONSOLE_OIDC_CLIENT_ID, signIn is nil, and people paste a token instead. end
// cancels a pending request for the metadata and closes the connections.
func newConsoleSignIn(cfg config, logger *slog.Logger) (signIn func(context.Context) (console.SignIn, error), end func()) {
	if cfg.ConsoleOIDCClientID == "" {
		return nil, func() {}
	}
	client := fetch.NewClient(cfg.certificates.client)
	discovery := signin.NewDiscovery(cfg.AuthIssuer, client, logger)
	end = func() {
		discovery.Close()
		if cfg.certificates.client == nil { // otherwise certificates.close closes the connections that client shares
			client.CloseIdleConnections()
		}
	}
	signIn = func(ctx context.Context) (console.SignIn, error) {
		endpoints, err := discovery.Endpoints(ctx)
		if err != nil {
			return console.SignIn{}, err
		}
		scope := cmp.Or(cfg.ConsoleOIDCScope, cfg.AuthScope)
		if cfg.ConsoleOIDCScope == "" && endpoints.OpenID {
			scope = strings.TrimSpace("openid " + scope)
		}
		return console.SignIn{
			Issuer: cfg.AuthIssuer, ClientID: cfg.ConsoleOIDCClientID, Scope: scope, Audience: cfg.AuthAudience,
			AuthorizationEndpoint: endpoints.Authorization, TokenEndpoint: endpoints.Token,
			EndSessionEndpoint: endpoints.EndSession, IssuerInResponse: endpoints.IssuerInResponse,
		}, nil
	}
	return signIn, end
}

// newHooks returns the client of the operator's hook service, or nil without HOOKS_URL. The caller must close it. Every
// error is a *configError.
func newHooks(cfg config, tel *telemetry.Telemetry, logger *slog.Logger) (*webhook.Client, error) {
	if cfg.HooksURL == "" {
		return nil, nil
	}
	var events []webhook.Event
	for _, name := range trimElements(cfg.HooksEvents) {
		events = append(events, webhook.Event(name))
	}
	hooks, err := webhook.New(webhook.Options{
		URL: cfg.HooksURL, Secret: cfg.HooksSecret, CurrentSecret: cfg.currentSecret("HOOKS_SECRET", cfg.HooksSecret, logger),
		Events: events, Transport: tel.Transport,
		Tracer: tel.Tracer("answerd/agent/hook"), Meter: tel.Meter("answerd/agent/hook"),
	})
	if err != nil {
		return nil, &configError{"HOOKS_URL", err.Error()}
	}
	return hooks, nil
}

// newDeliveries starts the deliverer, which sends webhooks about ended runs. It returns nil if neither RUN_WEBHOOK_URL
// nor CALLBACK_ORIGINS is set. The drain of the agent that uses the deliverer stops it.
func newDeliveries(c config, log event.Log, tel *telemetry.Telemetry, logger *slog.Logger) (*delivery.Deliverer, error) {
	if c.RunWebhookURL == "" && c.CallbackOrigins == nil {
		return nil, nil
	}
	deliveries, err := delivery.New(delivery.Options{
		URL: c.RunWebhookURL, CallbackOrigins: c.CallbackOrigins, PrivateCallbacks: c.CallbackPrivate,
		Secret: c.HooksSecret, CurrentSecret: c.currentSecret("HOOKS_SECRET", c.HooksSecret, logger),
		Log: log, MaxBytes: int64(c.EventsMaxBytes) / 8, // leaves most of the log to the runs
		Local: c.EventsURL.IsZero(),
		Meter: tel.Meter("answerd/agent/delivery"), Logger: logger,
	})
	if err != nil {
		return nil, fmt.Errorf("set up deliveries: %w", err)
	}
	return deliveries, nil
}

// newReceiptSigner returns a signer with the keys in RECEIPT_KEY_FILE, or nil if that is not set. Every error is a
// *configError.
func (c config) newReceiptSigner() (*receipt.Signer, error) {
	if c.ReceiptKeyFile == "" {
		return nil, nil
	}
	return parseFile("RECEIPT_KEY_FILE", c.ReceiptKeyFile, receipt.ParseKeys)
}

// newPrompt returns the template of the system prompt: the one in SYSTEM_PROMPT_FILE, or the built-in one if that is
// not set. Every error is a *configError.
func newPrompt(cfg config) (*prompt.Prompt, error) {
	zone, err := time.LoadLocation(cfg.AgentTimezone)
	if err != nil {
		return nil, &configError{"AGENT_TIMEZONE", fmt.Sprintf("%q is not an IANA time zone", cfg.AgentTimezone)}
	}
	parse := func(text []byte) (*prompt.Prompt, error) {
		return prompt.New(prompt.Options{Template: string(text), Username: cfg.AgentUsername, Location: zone})
	}
	if cfg.SystemPromptFile == "" {
		return parse(nil)
	}
	return parseFile("SYSTEM_PROMPT_FILE", cfg.SystemPromptFile, parse)
}

// telemetryConfig returns which of traces, metrics and the log are exported, and where to. The most specific setting
// decides where traces go: OCI APM before OTEL_EXPORTER_OTLP_TRACES_ENDPOINT before OTEL_EXPORTER_OTLP_ENDPOINT.
func telemetryConfig(cfg config, logger *slog.Logger) telemetry.Config {
	t := telemetry.Config{
		ServiceName: cfg.OTelServiceName, Version: version, Tracing: cfg.EnableTracing, QueueSize: cfg.OTelMaxQueueSize, Logger: logger,
	}
	if cfg.TraceContent {
		t.MaxAttribute = genai.MaxBytes // the default would cut questions and answers
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

// newTelemetry starts the export of telemetry. The caller must shut it down. Every error is a *configError.
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
