// Command conformance drives this module's MCP client under the public conformance
// suite for MCP clients, @modelcontextprotocol/conformance.
//
//	conformance [flags] http://localhost:4711/mcp
//
// The suite starts it once per scenario against a server of its own, and judges what
// that server saw. The scenario is named by MCP_CONFORMANCE_SCENARIO, what it wants
// to be done by MCP_CONFORMANCE_CONTEXT (JSON), the protocol version to speak by
// MCP_CONFORMANCE_PROTOCOL_VERSION.
//
// What a scenario asks of the client is what answerd itself would do: the command
// says so to package mcp and does nothing beside it. expected-failures.yml lists
// the scenarios that package mcp does not pass yet, each with its reason; run.sh
// is what `make conformance` runs.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"answerd/internal/mcp"
)

// patience is less than the suite's own 30 s for a scenario, so that a client that
// hangs says where; callTime leaves room for the other calls where the suite waits
// for something that never comes.
const (
	patience = 25 * time.Second
	callTime = 8 * time.Second
)

func main() {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	if err := run(ctx, os.Args, os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, getenv func(string) string) error {
	s, err := newScenario(getenv)
	if err != nil {
		return err
	}
	server, err := mcp.SingleServer(args[len(args)-1])
	if err != nil {
		return fmt.Errorf("use the suite's server: %w", err)
	}
	server.ProtocolVersion, server.Timeout = s.protocol, callTime
	// Some of its servers ask nowhere else (elicitation-sep1034-client-defaults).
	server.StandaloneStream = true
	s.authorize(&server)
	client, err := mcp.New([]mcp.ServerConfig{server}, mcp.Options{
		StartWait:   patience,
		RedirectURL: "http://localhost:3000/callback", // nobody is there: the person below looks where it leads
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Version:     "conformance",
	})
	if err != nil {
		return fmt.Errorf("configure the client: %w", err)
	}
	defer client.Close()
	return s.play(ctx, client)
}
