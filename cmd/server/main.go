// Command server is answerd: ask a question over HTTP, and a language model answers
// it with the tools of your MCP servers.
//
//	answerd            serve, configured by the environment
//	answerd demo       the whole job on this machine, nothing installed, no key
//	answerd check      read the configuration, fetch a token, list every server's tools;
//	                   with -accept, accept the tools of pinned servers as they are now;
//	                   with -strict, refuse members of mcp.json that are not known
//	answerd version    versions of answerd, Go and the MCP protocol
//	answerd health     ask a running answerd at ADDR whether it is alive
//
// Exit codes: 0 fine, 1 failure, 2 unusable configuration or arguments.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"answerd/internal/mcp"
	"answerd/internal/telemetry"
)

const usage = "usage: answerd [serve | demo | check [-accept] [-strict] | version | health]"

func main() {
	// The first signal ends ctx and starts the drain; serve listens for the second.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The reader of our log may die before us. Then a write fails, and the process goes on
	// (os/signal, "SIGPIPE").
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	stderr := telemetry.NewLogWriter(os.Stderr)
	// What net/http says of its own accord goes the same way, as the same lines.
	if logger, err := telemetry.NewLogger(stderr, "info", false); err == nil {
		slog.SetDefault(logger)
	}
	err := run(ctx, os.Args[1:], newEnvironment(os.Environ()), os.Stdout, stderr)
	stop()
	code := exitCode(err, stderr)
	last, cancel := context.WithTimeout(context.Background(), stderrTimeout)
	_ = stderr.Close(last) // there is nowhere left to say so
	cancel()
	os.Exit(code)
}

// stderrTimeout bounds how long the process waits at its end for stderr to accept the last
// lines.
const stderrTimeout = time.Second

// run executes a command, for main and for the end-to-end tests. It returns when the command
// is done, or drained after ctx has ended.
func run(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	command := "serve"
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	if len(args) > 0 && command != "demo" && command != "check" {
		return &usageError{fmt.Sprintf("%s takes no arguments; %s", command, usage)}
	}
	switch command {
	case "serve":
		c, err := loadConfig(environ)
		if err != nil {
			return err
		}
		return serve(ctx, c, stderr, func(string) {})
	case "demo":
		return demoCommand(ctx, args, environ, stdout, stderr)
	case "check":
		return checkCommand(ctx, args, environ, stdout, stderr)
	case "version":
		return printVersion(stdout)
	case "health":
		return checkHealth(ctx, environ)
	}
	return &usageError{usage}
}

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// exitCode prints err on one line and returns the exit code for it.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "answerd:", err)
	var config *configError
	var usage *usageError
	if errors.As(err, &config) || errors.As(err, &usage) {
		return 2
	}
	return 1
}

// Set by the linker for releases.
var (
	version = "dev"
	commit  = ""
)

// printVersion prints the versions that a bug report needs.
func printVersion(stdout io.Writer) error {
	rev := commit
	if info, ok := debug.ReadBuildInfo(); ok && rev == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				rev = s.Value
			}
		}
	}
	if rev == "" {
		rev = "unknown"
	}
	_, err := fmt.Fprintf(stdout, "answerd %s\ncommit  %s\ngo      %s\nmcp     %s\n",
		version, rev, runtime.Version(), strings.Join(mcp.ProtocolVersions(), ", "))
	return err
}
