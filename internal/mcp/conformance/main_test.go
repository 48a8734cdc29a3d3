// Package conformance drives this module's MCP client under the public conformance
// suite for MCP clients, @modelcontextprotocol/conformance. It has tests only: run.sh,
// which is what `make conformance` runs, builds them, and the suite starts that binary
// as a client,
//
//	client http://localhost:4711/mcp
//
// once per scenario against a server of its own, and judges what that server saw. The
// scenario is named by MCP_CONFORMANCE_SCENARIO, what it wants to be done by
// MCP_CONFORMANCE_CONTEXT (JSON), the protocol version to speak by
// MCP_CONFORMANCE_PROTOCOL_VERSION.
//
// What a scenario asks of the client is what answerd itself would do: the client says so
// to package mcp and does nothing beside it. expected-failures.yml lists the scenarios
// that package mcp does not pass yet, each with its reason.
package conformance

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// scenarioTime is less than the suite's own 30 s for a scenario, so that a client that
// hangs says where; callTime leaves room for the other calls where the suite waits
// for something that never comes.
const (
	scenarioTime = 25 * time.Second
	callTime     = 8 * time.Second
)

// TestMain lets the test binary be the client, where the suite starts it.
func TestMain(m *testing.M) {
	if os.Getenv("MCP_CONFORMANCE_SCENARIO") == "" {
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), scenarioTime)
	err := runScenario(ctx, os.Args, os.Getenv)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runScenario plays the scenario against the server whose address comes last.
func runScenario(ctx context.Context, args []string, getenv func(string) string) error {
	s, err := newScenario(getenv)
	if err != nil {
		return err
	}
	server, err := config.SingleServer(args[len(args)-1])
	if err != nil {
		return fmt.Errorf("use the suite's server: %w", err)
	}
	server.ProtocolVersion, server.Timeout = s.protocol, callTime
	// Some of its servers ask nowhere else (elicitation-sep1034-client-defaults).
	server.StandaloneStream = new(true)
	s.authorize(&server)
	client, err := mcp.New([]config.Server{server}, mcp.Options{
		StartWait:   scenarioTime,
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
