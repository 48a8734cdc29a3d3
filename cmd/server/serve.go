package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	_ "time/tzdata" // the image has no zone database

	contract "answerd/api"
	"answerd/internal/agent"
	"answerd/internal/agent/admission"
	"answerd/internal/agent/hook"
	"answerd/internal/api"
	"answerd/internal/auth"
	"answerd/internal/console"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/telemetry"
)

// closeTimeout bounds what is left to do once every run has ended.
const closeTimeout = 5 * time.Second

// serve puts the parts together, bottom up, and serves until ctx ends or the second
// signal comes. listening is told the address once it is there.
func serve(ctx context.Context, c config, stderr io.Writer, listening func(addr string)) error {
	// From the start, so that no signal falls between the first and the drain.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	logger, err := telemetry.NewLogger(stderr, c.LogLevel, c.Debug)
	if err != nil {
		return &configError{"LOG_LEVEL", "must be debug, info, warn or error"}
	}
	tel, err := newTelemetry(ctx, c, logger)
	if err != nil {
		return err
	}
	defer closing(logger, "telemetry", tel.Shutdown)

	verifier, err := newVerifier(c, logger)
	if err != nil {
		return err
	}
	if verifier != nil {
		defer verifier.Close()
	}
	rules, unfollow, err := newRules(ctx, c, logger)
	if err != nil {
		return err
	}
	defer unfollow()
	log, closeLog, err := openLog(ctx, c, logger)
	if err != nil {
		return err
	}
	defer closeLog()
	native := newOpenAI(c, tel, logger)
	defer native.Close()
	tools, err := connectTools(c, mcp.Options{Transport: tel.Transport, Logger: logger})
	if err != nil {
		return err
	}
	defer tools.close()
	defer tools.followed(ctx, c, logger)()
	if err := observeServers(tel, tools.client); err != nil {
		return err
	}
	hooks, err := newHooks(c, tel)
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
	var memory admission.Memory
	runs, err := agent.New(agent.Options{
		Model: llm.NewServed(native, llm.ToolCalling(c.LLMToolCalling), c.profiles()), Tools: tools.client, Log: log,
		DefaultModel: c.DefaultModelID, Profiles: c.profiles(),
		ToolSearch: agent.ToolSearch{MinTools: c.ToolSearchMinTools, MinBytes: int(c.ToolSearchMinBytes)},
		Prompt:     prompt, MaxHistory: c.MaxHistory, MaxTurns: c.MaxTurns,
		Hooks: hooks, Rules: rules, Budget: c.budget(),
		MaxRuns: c.MaxConcurrentRuns, Grace: c.DisconnectGrace, Durable: !c.EventsURL.IsZero(),
		MaxRunsPerCaller: c.MaxRunsPerPrincipal, Rate: admission.Rate(c.RateLimit), MemoryShort: memory.Short,
		AnswerTime: c.InputTimeout, AuditArguments: c.AuditArguments,
		Logger: logger, Tracer: tel.Tracer("answerd/agent"), Meter: tel.Meter("answerd/agent"),
	})
	if err != nil {
		return err
	}
	figures, endMetrics, err := serveMetrics(c, tel.Metrics(), logger)
	if err != nil {
		return err
	}
	defer endMetrics()
	handler := api.New(api.Options{
		Agent: runs, Log: log, Verifier: verifier,
		CORSOrigins: c.CORSOrigins, AllowedHosts: c.AllowedHosts, PublicURL: c.PublicURL,
		MaxBody: int64(c.MaxBodyBytes), Heartbeat: c.HeartbeatInterval, WriteTimeout: c.WriteTimeout,
		MaxStreams: c.MaxStreams, MaxStreamsPerCaller: c.MaxStreamsPerPrincipal,
		Metrics: figures, OpenAPI: contract.OpenAPI, Console: console.Handler(),
		Logger: logger, TraceID: telemetry.TraceID,
	})
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return fmt.Errorf("listen on ADDR: %w", err)
	}
	if err := c.checkBound(listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	server := newServer(tel.Handler(handler, handler.Route))
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(limited(listener, c.maxConnections())) }()
	logger.Info("listening", "addr", listener.Addr().String(), "version", version)
	listening(listener.Addr().String())

	select {
	case err = <-failed: // only Shutdown ends a server well
	case <-ctx.Done():
	}
	logger.Info("draining", "timeout", c.DrainTimeout.String())
	handler.Unready()
	drain(runs, c.DrainTimeout, signals)
	return errors.Join(err, shutdown(server))
}

// drain lets the runs end within the time given, or until the second of signals, and
// then ends them. Requests for new runs are answered meanwhile, with a refusal.
func drain(runs *agent.Agent, timeout time.Duration, signals <-chan os.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var listening sync.WaitGroup
	defer listening.Wait()
	over := make(chan struct{})
	defer close(over)
	listening.Go(func() {
		for range 2 {
			select {
			case <-signals:
			case <-over:
				return
			}
		}
		cancel()
	})
	runs.Drain(ctx)
}

// shutdown closes the listener and waits for the last responses. Followers have seen
// their runs end; whoever still holds a connection is cut.
func shutdown(server *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return server.Close()
	}
	return nil
}

func newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: api.ReadHeaderTimeout,
		ReadTimeout:       api.ReadTimeout,
		IdleTimeout:       api.IdleTimeout,
		MaxHeaderBytes:    api.MaxHeaderBytes,
		ConnContext:       markSurplus,
	}
}

func newVerifier(c config, logger *slog.Logger) (*auth.Verifier, error) {
	if c.AuthIssuer == "" {
		return nil, nil
	}
	if err := auth.CheckEndpoint("the URL", c.AuthJWKSURL); err != nil {
		return nil, &configError{"AUTH_JWKS_URL", err.Error()}
	}
	v, err := auth.NewVerifier(auth.VerifierConfig{
		Issuer: c.AuthIssuer, Audience: c.AuthAudience, JWKSURL: c.AuthJWKSURL, Scope: c.AuthScope, Algorithms: trimmed(c.AuthAlgorithms),
		Clients: trimmed(c.AuthClients), OnlyAccessTokens: c.AuthRequireATJWT, MaxLifetime: c.AuthMaxLifetime, Logger: logger,
	})
	switch {
	case errors.Is(err, auth.ErrAlgorithm):
		return nil, &configError{"AUTH_ALGORITHMS", err.Error()}
	case err != nil:
		return nil, &configError{"AUTH_SCOPE", err.Error()}
	}
	return v, nil
}

// trimmed are the elements of a list, however it was spaced; nil of none.
func trimmed(list []string) (out []string) {
	for _, s := range list {
		out = append(out, strings.TrimSpace(s))
	}
	return out
}

func newOpenAI(c config, tel *telemetry.Telemetry, logger *slog.Logger) *llm.OpenAI {
	return llm.NewOpenAI(llm.OpenAIConfig{
		BaseURL: c.LLMBaseURL, APIKey: c.LLMAPIKey.Reveal(),
		FirstByteTimeout: c.LLMFirstByteTimeout, IdleTimeout: c.LLMIdleTimeout, MaxRetries: c.LLMMaxRetries,
		Transport: tel.Transport,
		Tracer:    tel.Tracer("answerd/llm"), Meter: tel.Meter("answerd/llm"), Logger: logger,
	})
}

// newHooks is the client of the service that is asked about tool calls; nil where
// there is none.
func newHooks(c config, tel *telemetry.Telemetry) (*hook.Client, error) {
	if c.HooksURL == "" {
		return nil, nil
	}
	hooks, err := hook.New(hook.Options{
		URL: c.HooksURL, Secret: c.HooksSecret, Transport: tel.Transport,
		Tracer: tel.Tracer("answerd/agent/hook"), Meter: tel.Meter("answerd/agent/hook"),
	})
	if err != nil {
		return nil, &configError{"HOOKS_URL", err.Error()}
	}
	return hooks, nil
}

func newPrompt(c config) (*agent.Prompt, error) {
	zone, err := time.LoadLocation(c.AgentTimezone)
	if err != nil {
		return nil, &configError{"AGENT_TIMEZONE", fmt.Sprintf("%q is not an IANA time zone", c.AgentTimezone)}
	}
	var text []byte
	if c.SystemPromptFile != "" {
		if text, err = os.ReadFile(c.SystemPromptFile); err != nil {
			return nil, &configError{"SYSTEM_PROMPT_FILE", "cannot be read: " + reasonOf(err)}
		}
	}
	p, err := agent.NewPrompt(agent.PromptOptions{Template: string(text), Username: c.AgentUsername, Location: zone})
	if err != nil {
		return nil, &configError{"SYSTEM_PROMPT_FILE", err.Error()}
	}
	return p, nil
}

// newTelemetry resolves where traces go; the more specific setting wins.
func newTelemetry(ctx context.Context, c config, logger *slog.Logger) (*telemetry.Telemetry, error) {
	t := telemetry.Config{ServiceName: c.OTelServiceName, Version: version, Tracing: c.EnableTracing, Logger: logger}
	switch {
	case c.OCIAPMTracesURL != "":
		t.Endpoint, t.Headers = c.OCIAPMTracesURL, telemetry.OCIHeaders(c.OCIAPMDataKey.Reveal())
	case c.OTelTracesEndpoint != "":
		t.Endpoint = c.OTelTracesEndpoint
	case c.OTelEndpoint != "":
		t.Endpoint = strings.TrimSuffix(c.OTelEndpoint, "/") + "/v1/traces"
	}
	tel, err := telemetry.New(ctx, t)
	if err != nil {
		return nil, &configError{"ENABLE_TRACING", err.Error()}
	}
	return tel, nil
}

// closing runs one last step, bounded, and logs what it could not do.
func closing(logger *slog.Logger, what string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		logger.Warn("closing failed", "what", what, "error", err)
	}
}
