package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"text/tabwriter"
	"time"

	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/telemetry"
)

const (
	checkTimeout  = 90 * time.Second // for all servers together; a child process has 60 s to come up
	healthTimeout = 3 * time.Second
)

// checkCommand runs answerd check.
func checkCommand(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	accept := flags.Bool("accept", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return &usageError{"check takes only -accept; " + usage}
	}
	c, err := loadConfig(environ)
	if err != nil {
		return err
	}
	return runCheck(ctx, c, *accept, stdout, stderr)
}

// runCheck connects to every MCP server as serve would, and calls no model. It fails
// unless the event log and all enabled servers answered, and all definitions of pinned tools are
// accepted, which accept does.
func runCheck(ctx context.Context, c config, accept bool, stdout, stderr io.Writer) error {
	ctx, stop := context.WithTimeout(ctx, checkTimeout)
	defer stop()
	if c.LogLevel == "info" {
		c.LogLevel = "warn" // the table is the message
	}
	logger, err := telemetry.NewLogger(stderr, c.LogLevel, c.Debug)
	if err != nil {
		return &configError{"LOG_LEVEL", "must be debug, info, warn or error"}
	}
	if _, err := newPrompt(c); err != nil {
		return err
	}
	if _, err := readRules(c); err != nil {
		return err
	}
	if verifier, err := newVerifier(c, logger); err != nil {
		return err
	} else if verifier != nil {
		verifier.Close()
	}
	if err := c.checkEventDirectory(); err != nil {
		return err
	}
	tools, err := connectTools(c, mcp.Options{Logger: logger, StartWait: checkTimeout})
	if err != nil {
		return err
	}
	defer tools.close()
	printModels(stdout, c)
	failed := !printEventLog(ctx, c, stdout)
	if tools.tokens != nil {
		_, err := tools.tokens.Token(ctx)
		failed = failed || err != nil
		fmt.Fprintf(stdout, "token from %s: %s\n\n", c.tokenURL(), tokenResult(err))
	}
	tools.client.Tools(ctx) // waits until every server was tried
	pinned, err := checkPins(stdout, tools.client, accept)
	if err != nil {
		return err
	}
	printSignIns(ctx, stdout, tools.client)
	if !printServers(stdout, tools.client) || !pinned {
		failed = true
	}
	if failed {
		return errors.New("check failed")
	}
	return nil
}

// checkPins prints how the tools of pinned servers differ from what was accepted, and
// accepts them if asked to. It reports whether all of them may be used.
func checkPins(stdout io.Writer, tools *mcp.Client, accept bool) (bool, error) {
	waiting := 0
	for _, ch := range tools.PinChanges() {
		fmt.Fprintf(stdout, "%s: %q of server %s\n%s\n", ch.Kind, ch.Tool, ch.Server, ch.Diff())
		if ch.Kind != catalog.PinRemoved {
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

func tokenResult(err error) string {
	if err != nil {
		return "failed: " + err.Error()
	}
	return "fetched"
}

// printSignIns prints where callers sign in to the servers that require it, as far as that can
// be discovered without a caller.
func printSignIns(ctx context.Context, stdout io.Writer, tools *mcp.Client) {
	for _, s := range tools.Servers() {
		host, err := tools.SignInAt(ctx, s.Name)
		switch {
		case errors.Is(err, mcp.ErrUnknownServer):
		case err != nil:
			fmt.Fprintf(stdout, "callers cannot sign in to %s: %v\n\n", s.Name, err)
		default:
			fmt.Fprintf(stdout, "callers sign in to %s at %s\n\n", s.Name, host)
		}
	}
}

// printServers prints the table and reports whether every enabled server answered.
func printServers(stdout io.Writer, tools *mcp.Client) bool {
	ok := true
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVER\tTYPE\tSTATE\tPROTOCOL\tTOOLS\tREASON")
	for _, s := range tools.Servers() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", s.Name, s.Type, s.State, s.Protocol, s.Tools, s.Reason)
		ok = ok && (s.State == mcp.Connected || s.State == mcp.Disabled)
	}
	w.Flush()
	return ok
}

// checkHealth asks the answerd at ADDR whether it is alive, for containers that have no other
// HTTP client.
func checkHealth(ctx context.Context, environ environment) error {
	addr := environ.get("ADDR")
	if addr == "" {
		addr = "127.0.0.1:8080"
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return &configError{"ADDR", "must be host:port"}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	ctx, stop := context.WithTimeout(ctx, healthTimeout)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return err
	}
	// Itself it reaches by no proxy, and a redirect is no answer.
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", addr, resp.Status)
	}
	return nil
}
