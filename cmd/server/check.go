package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"text/tabwriter"
	"time"

	"answerd/internal/mcp"
	"answerd/internal/telemetry"
)

const (
	checkTimeout  = 30 * time.Second // for all servers together
	healthTimeout = 3 * time.Second
)

// check connects to every MCP server as serve would, and calls no model. It fails
// unless all enabled servers answered.
func check(ctx context.Context, c config, stdout, stderr io.Writer) error {
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
	tools, err := connectTools(c, mcp.Options{Logger: logger, StartWait: checkTimeout})
	if err != nil {
		return err
	}
	defer tools.close()
	failed := false
	if tools.tokens != nil {
		_, err := tools.tokens.Token(ctx)
		failed = err != nil
		fmt.Fprintf(stdout, "token from %s: %s\n\n", c.tokenURL(), verdict(err))
	}
	tools.client.Tools(ctx) // waits until every server was tried
	if !printServers(stdout, tools.client) {
		failed = true
	}
	if failed {
		return errors.New("check failed")
	}
	return nil
}

func verdict(err error) string {
	if err != nil {
		return "failed: " + err.Error()
	}
	return "fetched"
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

// health asks the answerd at ADDR whether it is alive; a container has no other
// program that could.
func health(ctx context.Context, getenv func(string) string) error {
	addr := getenv("ADDR")
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
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", addr, resp.Status)
	}
	return nil
}
