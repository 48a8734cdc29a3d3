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
func serve(ctx context.Context, c config, stderr io.Writer, listening func(addr string)) error {
	// Listen for signals from the start: the second one may arrive before the drain begins.
	stages, stop := newShutdownStages(ctx)
	defer stop()
	logger, err := telemetry.NewLogger(stderr, c.LogLevel, c.Debug)
	if err != nil {
		return &configError{"LOG_LEVEL", "must be debug, info, warn or error"}
	}
	c.logSettingWarnings(logger)
	tel, err := newTelemetry(ctx, c, logger)
	if err != nil {
		return err
	}
	defer stages.closeLogged(logger, "telemetry", tel.Shutdown)

	defer c.certificates.close()
	defer c.certificates.startReloading(ctx, "TLS certificates", logger)()
	verifier, err := newVerifier(c, logger)
	if err != nil {
		return err
	}
	if verifier != nil {
		defer verifier.Close()
	}
	rules, endRules, err := newRules(ctx, c, logger)
	if err != nil {
		return err
	}
	defer endRules()
	limits := c.limitMemory(containerMemory, logger)
	log, closeLog, err := openLog(ctx, c, limits.log, logger)
	if err != nil {
		return err
	}
	defer closeLog()
	models := openModels(ctx, c, tel, logger)
	defer func() { models.end() }()
	tools, err := connectTools(c, mcp.Options{Transport: tel.Transport, SignIns: c.signIns(log, logger), ToolNames: c.toolNames(log), Logger: logger})
	if err != nil {
		return err
	}
	defer tools.close()
	defer tools.startReloading(ctx, c, logger)()
	if err := observeServers(tel, tools.client); err != nil {
		return err
	}
	endExpiry, err := observeCertificates(ctx, tel, logger, func() []usedCertificate {
		return slices.Concat(c.certificates.used(), models.usedCertificates(), usedByTools(tools.client))
	})
	if err != nil {
		return err
	}
	defer endExpiry()
	hooks, err := newHooks(c, tel, logger)
	if err != nil {
		return err
	}
	if hooks != nil {
		defer hooks.Close()
	}
	prompt, err := newPrompt(c)
	if err != nil {
		return err
	}
	metricsHandler, endMetrics, err := serveMetrics(c, tel.Metrics(), logger)
	if err != nil {
		return err
	}
	defer endMetrics()
	refused, err := newAuthFailureCounter(tel.Meter("answerd/api"))
	if err != nil {
		return err
	}
	signIn, endSignIn := newConsoleSignIn(c, logger)
	defer endSignIn()
	receipts, err := c.receipts()
	if err != nil {
		return err
	}
	listener, err := c.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	// The deliveries and the agent are the last parts that can fail. They use the log from their start, and
	// the agent claims runs at once. Only the drain stops them, so no step after them may return early.
	deliveries, err := newDeliveries(c, log, tel, logger)
	if err != nil {
		return err
	}
	runs, err := agent.New(agent.Options{
		Model: models.router, Tools: tools.client, Log: log,
		BasePath: c.basePath(), DefaultModel: c.DefaultModelID, Profiles: c.profiles(), Agents: c.agents,
		ToolSearch: agent.ToolSearch{MinTools: c.ToolSearchMinTools, MinBytes: int(c.ToolSearchMinBytes)},
		Prompt:     prompt, MaxHistory: c.MaxHistory, MaxTurns: c.MaxTurns, MaxOutputTokens: c.MaxOutputTokens,
		Hooks: hooks, Deliveries: deliveries, Rules: rules, Budget: c.budget(),
		MaxRuns: c.MaxConcurrentRuns, DisconnectGrace: c.DisconnectGrace, Durable: !c.EventsURL.IsZero(), ClaimDelay: c.claimDelay(),
		MaxRunsPerCaller: c.MaxRunsPerPrincipal, Rate: admission.Rate(c.RateLimit), MemoryShort: newMemoryCheck(log), Memory: admission.NewMemory(limits.runs),
		InputTimeout: c.InputTimeout, AuditArguments: c.AuditArguments, TraceUsers: c.TraceUsers, TraceContent: c.TraceContent,
		CostClaim: c.CostClaim, CallerBudgets: c.BudgetPerCaller,
		Retention: c.EventsRetention, Version: version, RecordModelRequests: c.RecordModelRequests,
		Logger: logger, Tracer: tel.Tracer("answerd/agent"), Meter: tel.Meter("answerd/agent"),
	})
	if err != nil {
		return err
	}
	defer models.startReloading(ctx, c, runs)()
	defer c.startReloadingAgents(ctx, runs, tools.client, logger)()
	handler := api.New(api.Options{
		Receipts: receipts, Agent: runs, Log: log, Verifier: verifier, OnAuthFailure: refused,
		CORSOrigins: c.CORSOrigins, AllowedHosts: c.AllowedHosts, PublicURL: c.PublicURL,
		MaxBody: int64(c.MaxBodyBytes), Heartbeat: c.HeartbeatInterval, WriteTimeout: c.WriteTimeout,
		MaxStreams: c.MaxStreams, MaxStreamsPerCaller: c.MaxStreamsPerPrincipal,
		Version: version, Metrics: metricsHandler, OpenAPI: contract.OpenAPI, Console: console.Handler(console.Options{TraceURL: c.TraceURL, SignIn: signIn, Authenticated: verifier != nil}),
		Logger: logger, TraceID: telemetry.TraceID,
	})
	server := newServer(tel.Handler(handler, handler.RoutePattern))
	failed := make(chan error, 1)
	go func() {
		failed <- serveConnections(server, newLimitedListener(listener, c.maxConnections()), c.certificates.server)
	}()
	c.logConfiguration(logger, tools.client.Servers(), listener.Addr().String())
	logger.Info("listening", "addr", listener.Addr().String(), "scheme", c.scheme(), "version", version)
	listening(listener.Addr().String())

	delay := c.ShutdownDelay
	select {
	case err = <-failed: // Serve returns only after an error, since Shutdown was not called yet
		delay = 0 // skip the readiness delay: the listener does not answer probes any more
	case <-ctx.Done():
	}
	return errors.Join(err, drainService(stages, handler, runs, server, delay, c.DrainTimeout, logger))
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
func newVerifier(c config, logger *slog.Logger) (*auth.Verifier, error) {
	if c.AuthIssuer == "" {
		return nil, nil
	}
	if c.AuthJWKSURL != "" {
		if err := fetch.CheckEndpoint("the URL", c.AuthJWKSURL); err != nil {
			return nil, &configError{"AUTH_JWKS_URL", err.Error()}
		}
	}
	v, err := auth.NewVerifier(auth.VerifierConfig{
		Issuer: c.AuthIssuer, Audience: c.AuthAudience, JWKSURL: c.AuthJWKSURL, Scope: c.AuthScope, Algorithms: trimElements(c.AuthAlgorithms),
		Clients: trimElements(c.AuthClients), OnlyAccessTokens: c.AuthRequireATJWT, MaxLifetime: c.AuthMaxLifetime, HTTPClient: c.certificates.client, LimitClaim: c.LimitBy.claim(), Logger: logger,
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
func newConsoleSignIn(c config, logger *slog.Logger) (func(context.Context) (console.SignIn, error), func()) {
	if c.ConsoleOIDCClientID == "" {
		return nil, func() {}
	}
	client := fetch.NewClient(c.certificates.client)
	discovery := signin.NewDiscovery(c.AuthIssuer, client, logger)
	end := func() {
		discovery.Close()
		if c.certificates.client == nil {
			client.CloseIdleConnections()
		}
	}
	return func(ctx context.Context) (console.SignIn, error) {
		e, err := discovery.Endpoints(ctx)
		scope := cmp.Or(c.ConsoleOIDCScope, c.AuthScope)
		if c.ConsoleOIDCScope == "" && e.OpenID {
			scope = strings.TrimSpace("openid " + scope)
		}
		return console.SignIn{
			Issuer: c.AuthIssuer, ClientID: c.ConsoleOIDCClientID, AuthorizationEndpoint: e.Authorization, TokenEndpoint: e.Token,
			EndSessionEndpoint: e.EndSession, IssuerInResponse: e.IssuerInResponse, Scope: scope, Audience: c.AuthAudience,
		}, err
	}, end
}

// newHooks returns the client of the operator's webhook service, or nil if none is configured.
func newHooks(c config, tel *telemetry.Telemetry, logger *slog.Logger) (*webhook.Client, error) {
	if c.HooksURL == "" {
		return nil, nil
	}
	var events []webhook.Event
	for _, name := range trimElements(c.HooksEvents) {
		events = append(events, webhook.Event(name))
	}
	o := webhook.Options{
		URL: c.HooksURL, Secret: c.HooksSecret, Events: events, Transport: tel.Transport,
		Tracer: tel.Tracer("answerd/agent/hook"), Meter: tel.Meter("answerd/agent/hook"),
	}
	if file := c.newSecretFile("HOOKS_SECRET", c.HooksSecret, logger); file != nil {
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

// receipts returns the signer of receipts, or nil without a key.
func (c config) receipts() (*receipt.Signer, error) {
	if c.ReceiptKeyFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(c.ReceiptKeyFile)
	if err != nil {
		return nil, &configError{"RECEIPT_KEY_FILE", "cannot be read: " + fileReason(err)}
	}
	signer, err := receipt.ParseKeys(data)
	if err != nil {
		return nil, &configError{"RECEIPT_KEY_FILE", err.Error()}
	}
	return signer, nil
}

// newPrompt returns the template of the system prompt: the operator's or the built-in one.
func newPrompt(c config) (*prompt.Prompt, error) {
	zone, err := time.LoadLocation(c.AgentTimezone)
	if err != nil {
		return nil, &configError{"AGENT_TIMEZONE", fmt.Sprintf("%q is not an IANA time zone", c.AgentTimezone)}
	}
	var text []byte
	if c.SystemPromptFile != "" {
		if text, err = os.ReadFile(c.SystemPromptFile); err != nil {
			return nil, &configError{"SYSTEM_PROMPT_FILE", "cannot be read: " + fileReason(err)}
		}
	}
	p, err := prompt.New(prompt.Options{Template: string(text), Username: c.AgentUsername, Location: zone})
	if err != nil {
		return nil, &configError{"SYSTEM_PROMPT_FILE", err.Error()}
	}
	return p, nil
}

// newTelemetry creates traces and metrics. Of the settings for the export of traces, the most
// specific one wins.
func newTelemetry(ctx context.Context, c config, logger *slog.Logger) (*telemetry.Telemetry, error) {
	t := telemetry.Config{ServiceName: c.OTelServiceName, Version: version, Tracing: c.EnableTracing, Logger: logger}
	if c.TraceContent {
		t.MaxAttribute = genai.MaxBytes
	}
	switch {
	case c.OCIAPMTracesURL != "":
		t.Endpoint, t.Headers = c.OCIAPMTracesURL, telemetry.OCIHeaders(c.OCIAPMDataKey.Reveal())
	case c.OTelTracesEndpoint != "":
		t.Endpoint = c.OTelTracesEndpoint
	case c.OTelEndpoint != "":
		t.Endpoint = strings.TrimSuffix(c.OTelEndpoint, "/") + "/v1/traces"
	}
	base := strings.TrimSuffix(c.OTelEndpoint, "/")
	if c.exportsMetrics() {
		t.MetricsEndpoint = cmp.Or(c.OTelMetricsEndpoint, base+"/v1/metrics")
	}
	if c.OTelLogsExporter == "otlp" {
		t.LogsEndpoint = cmp.Or(c.OTelLogsEndpoint, base+"/v1/logs")
	}
	tel, err := telemetry.New(ctx, t)
	if err != nil && !c.EnableTracing {
		return nil, &configError{"OTEL_EXPORTER_OTLP_ENDPOINT", err.Error()}
	}
	if err != nil {
		return nil, &configError{"ENABLE_TRACING", err.Error()}
	}
	return tel, nil
}
