package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"answerd/internal/agent"
	"answerd/internal/auth"
	"answerd/internal/auth/token"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/telemetry"
	"answerd/internal/terminal"
)

// checkTimeout bounds a whole check. It is generous because the start of one MCP server's child process may take 60 s.
const checkTimeout = 90 * time.Second

// checkCommand runs `answerd check`. It prints how answerd understands its settings, and checks the services that the
// settings name.
func checkCommand(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	accept := flags.Bool("accept", false, "")
	strict := flags.Bool("strict", false, "")
	ask := flags.Bool("ask", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return &usageError{"check takes only -accept, -ask and -strict; answerd help describes the commands"}
	}
	cfg, err := loadConfig(environ)
	if err != nil {
		return err
	}
	if *strict {
		_, warnings, err := mcpServers(cfg)
		if err != nil {
			return err
		}
		if len(warnings) > 0 {
			return &configError{"MCP_CONFIG_PATH", "mcp.json: " + warnings[0]}
		}
	}
	// Names of models, errors of tools and the answer come from other services, and must not control the terminal.
	err = runCheck(ctx, cfg, *accept, *ask, terminal.PlainWriter(stdout), stderr)
	if ctx.Err() != nil {
		return terminal.ErrInterrupted
	}
	return err
}

// runCheck checks the settings, the services that they name and the MCP servers. It prints a report to stdout that ends
// with the next step for each problem. Log lines follow after the report. With accept it accepts the current tools of
// pinned servers, and with ask it asks the default model one question.
//
// The error is nil only if nothing failed: the event log on NATS, the IAM, the hook service, the issuer of callers'
// tokens, an enabled MCP server, a model endpoint, or the question. The definitions of all pinned tools must also be
// accepted.
func runCheck(ctx context.Context, cfg config, accept, ask bool, stdout, stderr io.Writer) error {
	ctx, stop := context.WithTimeout(ctx, checkTimeout)
	defer stop()
	level := cfg.LogLevel
	if level == "info" {
		level = "warn" // the report already says what the info lines would
	}
	delayed := &delayedLog{w: stderr}
	defer delayed.release()
	logger, err := telemetry.NewLogger(delayed, level, cfg.Debug)
	if err != nil {
		return &configError{"LOG_LEVEL", "must be debug, info, warn or error"}
	}

	// Check what needs no other service, and connect to the MCP servers.
	if err := checkOffline(ctx, cfg, logger); err != nil {
		return err
	}
	defer cfg.certificates.close()
	tools, err := connectTools(cfg, mcp.Options{Logger: logger, StartWait: checkTimeout})
	if err != nil {
		return err
	}
	defer tools.close()

	// Print and check each part, and collect in nextSteps what the operator has to do.
	printConfiguration(stdout, cfg)
	printModels(stdout, cfg)
	nextSteps, err := checkServices(ctx, cfg, tools.tokens, stdout)
	if err != nil {
		return err
	}
	serverSteps, err := checkServers(ctx, cfg, tools.client, accept, stdout)
	if err != nil {
		return err
	}
	nextSteps = append(nextSteps, serverSteps...)
	if ask {
		fmt.Fprintln(stdout)
		if err := askOnce(ctx, cfg, tools, stdout, logger); err != nil {
			fmt.Fprintf(stdout, "no answer: %v\n", err)
			nextSteps = append(nextSteps, "question: correct the model's settings; LOG_LEVEL=info answerd check -ask shows what the endpoint said")
		}
	}

	if len(nextSteps) == 0 {
		return nil
	}
	fmt.Fprintln(stdout, "\nnext steps:")
	for _, step := range nextSteps {
		fmt.Fprintln(stdout, "- "+step)
	}
	return errors.New("check failed")
}

// checkServices checks the model endpoints, the event log, the IAM, the hook service and the issuer of callers' tokens,
// and prints the result of each. It returns the next step for each that failed. tokens is nil without ENABLE_JWT_TOKEN.
// An error means that the settings for callers' tokens cannot be used.
func checkServices(ctx context.Context, cfg config, tokens *token.ClientCredentials, stdout io.Writer) (nextSteps []string, _ error) {
	nextSteps = checkModelEndpoints(ctx, cfg, stdout)
	if !checkEventLog(ctx, cfg, stdout) {
		nextSteps = append(nextSteps, "EVENTS_URL: start NATS with JetStream, or correct the URL and EVENTS_CREDENTIALS_FILE")
	}
	nextSteps = append(nextSteps, checkToken(ctx, cfg, tokens, stdout)...)
	nextSteps = append(nextSteps, checkHooks(ctx, cfg, stdout)...)
	keySteps, err := checkSigningKeys(ctx, cfg, stdout)
	return append(nextSteps, keySteps...), err
}

// checkServers waits until answerd has tried to connect to every MCP server. Then it prints their pins, agents,
// sign-ins and states, and returns the next steps. With accept it accepts the current tools of pinned servers.
func checkServers(ctx context.Context, cfg config, tools *mcp.Client, accept bool, stdout io.Writer) (nextSteps []string, _ error) {
	tools.Tools(ctx) // waits for the first attempts to connect
	accepted, err := checkPins(stdout, tools, accept)
	if err != nil {
		return nil, err
	}
	if !accepted {
		nextSteps = append(nextSteps, "pins: accept the tools with answerd check -accept if the changes are meant, or ask who runs the server")
	}
	printAgents(ctx, stdout, cfg, tools)
	printSignIns(ctx, stdout, tools)
	return append(nextSteps, printServers(stdout, tools)...), nil
}

// checkOffline builds, as serve would, the parts that need files but no network. It returns the first error. It closes
// the parts again, so that only the directory of the event log remains.
func checkOffline(ctx context.Context, cfg config, logger *slog.Logger) error {
	if err := checkTelemetry(ctx, cfg); err != nil {
		return err
	}
	if _, err := cfg.newReceiptSigner(); err != nil {
		return err
	}
	if _, err := newPrompt(cfg); err != nil {
		return err
	}
	if _, err := readRules(cfg); err != nil {
		return err
	}
	verifier, err := newVerifier(cfg, logger)
	if err != nil {
		return err
	}
	if verifier != nil {
		verifier.Close()
	}
	return cfg.checkEventDirectory()
}

// checkTelemetry returns the error that serve would return because of the telemetry settings. It exports nothing.
func checkTelemetry(ctx context.Context, cfg config) error {
	silent, err := telemetry.NewLogger(io.Discard, "error", false)
	if err != nil {
		return fmt.Errorf("create the log: %w", err)
	}
	tel, err := newTelemetry(ctx, cfg, silent)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel() // otherwise Shutdown would send the metrics to the collector and wait for it
	_ = tel.Shutdown(ctx)
	return nil
}

// maxDelayedLog bounds the bytes that a delayedLog keeps.
const maxDelayedLog = 1 << 20

// delayedLog is an io.Writer that buffers log lines until release is called, so that they do not interrupt a report on
// the same terminal. It drops lines that do not fit into maxDelayedLog bytes.
type delayedLog struct {
	w        io.Writer
	mu       sync.Mutex // protects the fields below; held during writes to w
	buffer   []byte
	released bool
}

// Write implements io.Writer. Before release it always reports success, also for a line that it drops.
func (l *delayedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return l.w.Write(p)
	}
	if len(l.buffer)+len(p) <= maxDelayedLog {
		l.buffer = append(l.buffer, p...)
	}
	return len(p), nil
}

// release writes the buffered lines. Later calls of Write write at once.
func (l *delayedLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	_, _ = l.w.Write(l.buffer) // if stderr fails, the error cannot be reported anywhere
	l.buffer = nil
}

// printConfiguration prints how answerd understands the settings, without secrets.
func printConfiguration(stdout io.Writer, cfg config) {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CONFIGURATION")
	key := "without a key"
	if !cfg.LLMAPIKey.IsZero() {
		key = "with a key"
	}
	fmt.Fprintf(table, "endpoint\t%s, %s\n", publicURL(cfg.LLMBaseURL), key)
	fmt.Fprintf(table, "model\t%s, tool calling %s\n", cfg.DefaultModelID, cfg.LLMToolCalling)
	fmt.Fprintf(table, "agents\t%s\n", cfg.describeAgents())
	fmt.Fprintf(table, "servers\t%s\n", cfg.describeServers())
	fmt.Fprintf(table, "authentication\t%s\n", cfg.describeAuthentication())
	fmt.Fprintf(table, "address\t%s\n", cfg.Addr)
	level := cfg.LogLevel
	if cfg.Debug {
		level = "debug"
	}
	fmt.Fprintf(table, "log\tlevel %s; events %s\n", level, cfg.describeEventLog())
	table.Flush()
	for _, warning := range cfg.warnings {
		fmt.Fprintf(stdout, "warning: %v\n", warning)
	}
	fmt.Fprintln(stdout)
}

// describeAuthentication describes how callers are authenticated, for people.
func (c *config) describeAuthentication() string {
	if c.AuthIssuer == "" {
		return "none, every caller is anonymous"
	}
	return fmt.Sprintf("bearer JWT of %s for %s", publicURL(c.AuthIssuer), c.AuthAudience)
}

// maxLoggedServers bounds the server names in the line that logConfiguration writes.
const maxLoggedServers = 20

// logConfiguration logs how answerd understands its settings, in one line and without secrets. addr is the listener's
// address.
func (c *config) logConfiguration(logger *slog.Logger, servers []mcp.ServerStatus, addr string) {
	names := []string{} // not nil, so that it is an array in the log line, and not null
	for _, s := range servers {
		if s.State != mcp.Disabled {
			names = append(names, s.Name)
		}
	}
	rate := "none"
	if c.RateLimit.N > 0 {
		rate = fmt.Sprintf("%d per %s", c.RateLimit.N, c.RateLimit.Per)
	}
	logger.Info("configuration",
		"model_endpoint", publicURL(c.LLMBaseURL), "default_model", c.DefaultModelID, "models", len(c.models),
		"agents", c.agentIDs(),
		"servers", names[:min(len(names), maxLoggedServers)], "server_count", len(names),
		"authentication", c.describeAuthentication(), "event_log", c.describeEventLog(),
		slog.Group("limits", "runs", c.MaxConcurrentRuns, "streams", c.MaxStreams, "connections", c.maxConnections(), "rate", rate, "turns", c.MaxTurns),
		"console", cmp.Or(c.PublicURL, c.scheme()+"://"+localAddr(addr))+"/")
}

// localAddr replaces a wildcard host in the listener address addr with localhost, so that a browser on this machine can
// open it.
func localAddr(addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("localhost", port)
	}
	return addr
}

// describeServers lists the settings that name MCP servers with their values, for people.
func (c *config) describeServers() string {
	var settings []string
	if c.MCPURL != "" {
		settings = append(settings, "MCP_URL "+publicURL(c.MCPURL))
	}
	if c.MCPConfigPath != "" {
		settings = append(settings, "MCP_CONFIG_PATH "+c.MCPConfigPath)
	}
	if len(settings) == 0 {
		return "none: set MCP_URL or MCP_CONFIG_PATH to give the model tools"
	}
	return strings.Join(settings, ", ")
}

// checkPins prints how the tools of pinned servers differ from the accepted definitions. With accept it writes the
// current definitions to the pins file. Otherwise accepted is false if some tools stay disabled until the operator
// accepts them. The error means that the pins file could not be written.
func checkPins(stdout io.Writer, tools *mcp.Client, accept bool) (accepted bool, _ error) {
	waiting := 0 // tools that are disabled until they are accepted
	for _, change := range tools.PinChanges() {
		fmt.Fprintf(stdout, "%s: %q of server %s\n%s\n", change.Kind, change.Tool, change.Server, change.Diff())
		if change.Kind != catalog.PinRemoved {
			waiting++
		}
	}
	switch {
	case accept:
		if err := tools.AcceptPins(); err != nil {
			return false, fmt.Errorf("accept: %w", err)
		}
		fmt.Fprintf(stdout, "accepted: %d\n\n", waiting)
	case waiting > 0:
		fmt.Fprintf(stdout, "tools that are disabled until you accept them with answerd check -accept: %d\n\n", waiting)
		return false, nil
	}
	return true, nil
}

// fetchResult describes the outcome of fetching a token or keys, for people. err is nil after a success.
func fetchResult(err error) string {
	if err != nil {
		return "failed: " + err.Error()
	}
	return "fetched"
}

// printSignIns prints where callers sign in, for each server that requires a sign-in, or why they cannot sign in.
func printSignIns(ctx context.Context, stdout io.Writer, tools *mcp.Client) {
	for _, s := range tools.Servers() {
		host, err := tools.SignInAt(ctx, s.Name)
		switch {
		case errors.Is(err, mcp.ErrUnknownServer): // the server requires no sign-in
		case err != nil:
			fmt.Fprintf(stdout, "callers cannot sign in to %s: %v\n\n", s.Name, err)
		default:
			fmt.Fprintf(stdout, "callers sign in to %s at %s\n\n", s.Name, host)
		}
	}
}

// printServers prints a table of the MCP servers. It returns the next step for each enabled server that is not
// connected.
func printServers(stdout io.Writer, tools *mcp.Client) (nextSteps []string) {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SERVER\tTYPE\tSTATE\tPROTOCOL\tTOOLS\tREASON")
	for _, s := range tools.Servers() {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", s.Name, s.Type, s.State, s.Protocol, s.Tools, s.Reason)
		if s.State != mcp.Connected && s.State != mcp.Disabled {
			nextSteps = append(nextSteps, fmt.Sprintf("server %s: %s", s.Name, serverNextStep(s.Reason)))
		}
	}
	table.Flush()
	return nextSteps
}

// serverNextSteps lists what an operator can do about a server that is not connected. serverNextStep uses the first
// entry whose reason is a substring of the server's reason.
var serverNextSteps = []struct{ reason, step string }{
	{"signed in", "sign in once: ask a question that uses it, and open the link that the answer names"},
	{"exit status 127", "its command was not found: give the whole path of the program, or set PATH in its env"},
	{"not found", "give the whole path of the program, or set PATH in its env"},
	{"process ended", "run its command in a terminal; what it wrote to stderr is in the log"},
	{"connection refused", "start it, or correct the host and the port of its url"},
	{"HTTP 404", "correct the path of its url, which is often /mcp or /sse"},
	{"HTTP 401", "set its auth or bearerToken, which has to be a token that the server accepts"},
	{"HTTP 403", "set its auth or bearerToken, which has to be a token that the server accepts"},
	{"token", "correct the settings of its auth"},
}

// serverNextStep returns what an operator can do about a server that is not connected because of reason.
func serverNextStep(reason string) string {
	for _, s := range serverNextSteps {
		if strings.Contains(reason, s.reason) {
			return s.step
		}
	}
	return "correct its entry or the server; LOG_LEVEL=debug answerd check shows each attempt"
}

// askOnce asks the default model one question, and prints the tool calls and the answer. The model gets one read-only
// tool that needs no approval, if such a tool exists. The question is executed by an agent, like those of the command
// serve, but its events are kept in memory and it exports no traces. The error is nil only if the run ends with an answer.
func askOnce(ctx context.Context, cfg config, tools toolset, stdout io.Writer, logger *slog.Logger) error {
	cfg.EnableTracing = false
	tel, err := newTelemetry(ctx, cfg, logger)
	if err != nil {
		return err
	}
	defer func() { _ = tel.Shutdown(ctx) }()
	models := openModels(ctx, cfg, tel, logger)
	defer models.close()
	prompt, err := newPrompt(cfg)
	if err != nil {
		return err
	}
	log := memory.New(memory.Options{})
	a, err := agent.New(agent.Options{
		Model: models.router, DefaultModel: cfg.DefaultModelID, Profiles: cfg.profiles(),
		Tools: tools.client, Log: log, Prompt: prompt,
		MaxTurns: 3, MaxOutputTokens: cfg.MaxOutputTokens, // one call and the answer take two turns
		Logger: logger, Tracer: tel.Tracer("answerd/agent"), Meter: tel.Meter("answerd/agent"),
	})
	if err != nil {
		return err
	}
	defer a.Drain(ctx)
	question := testQuestion(a.ToolsFor(ctx, auth.Identity{}), stdout)
	fmt.Fprintf(stdout, "asking %s: %s\n", cfg.DefaultModelID, question.Question)
	run, err := a.Start(ctx, auth.Identity{}, question)
	if err != nil {
		return fmt.Errorf("start a run: %w", err)
	}
	return printRun(ctx, log, run.ID, stdout)
}

// testQuestion returns a question that makes the model call the first tool that needs no approval and whose server
// describes it as read-only (MCP, readOnlyHint). A tool without that hint may change something (MCP), so check must not
// call it even if the configuration requires no approval: the model chooses the arguments, and the operator does not see
// them first. Without such a tool the question needs no call, and testQuestion prints why if tools has others.
func testQuestion(tools []catalog.Tool, stdout io.Writer) agent.Request {
	for _, tool := range tools {
		isReadOnly := tool.Annotations != nil && tool.Annotations.ReadOnly
		if isReadOnly && !tool.NeedsApproval {
			return agent.Request{
				Question:   fmt.Sprintf("Call the tool %s once, with arguments of your choice, and say in one sentence what it returned.", tool.Name),
				ToolChoice: agent.ToolAuto, Tools: []string{tool.Name}, Background: true,
			}
		}
	}
	if len(tools) > 0 {
		fmt.Fprintln(stdout, "the model gets no tool: none is read-only (readOnlyHint) and needs no approval")
	}
	return agent.Request{Question: "Answer with the word ready.", ToolChoice: agent.ToolNone, Background: true}
}

// printRun follows the run with the id runID until it ends, and prints each call's result and the answer. The error is
// nil only if the run ended with an answer.
func printRun(ctx context.Context, log event.Log, runID string, stdout io.Writer) error {
	for position := int64(0); ; {
		page, err := log.After(ctx, runID, position)
		if err != nil {
			return fmt.Errorf("read the run: %w", err)
		}
		for _, e := range page.Events {
			position = e.Seq
			switch b := e.Body.(type) {
			case event.ToolResult:
				fmt.Fprintf(stdout, "called %s: it answered in %d ms\n", b.Tool, b.DurationMS)
			case event.ToolError:
				fmt.Fprintf(stdout, "called %s: %s: %s\n", b.Tool, b.Kind, b.Payload)
			case event.FinalAnswer:
				fmt.Fprintf(stdout, "answer: %s\n\n", strings.TrimSpace(b.Answer))
				return nil
			case event.RunError:
				return errors.New(b.Message)
			case event.Cancelled:
				return errors.New("the run was cancelled: " + b.Reason)
			}
		}
		if page.More == nil {
			continue // the log has more events than fit into a page
		}
		select {
		case <-page.More:
		case <-ctx.Done():
			return fmt.Errorf("wait for the answer: %w", context.Cause(ctx))
		}
	}
}
