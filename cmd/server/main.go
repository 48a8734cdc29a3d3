// Command server is answerd: ask a question over HTTP, and a language model answers
// it with the tools of your MCP servers.
//
//	answerd            serve, configured by the environment
//	answerd demo       serve with an IAM, an MCP server and a stand-in for a model; no key needed
//	answerd ask        ask one question in the terminal
//	answerd chat       the same as a conversation
//	answerd eval       ask the questions of a suite and check the answers
//	answerd check      read the configuration, fetch a token, list every server's tools;
//	                   with -accept, accept the tools of pinned servers as they are now;
//	                   with -ask, ask one question with one read-only tool;
//	                   with -strict, refuse members of mcp.json that are not known
//	answerd replay     run exports of runs again, offline, and print what differs
//	answerd verify     check an export against the receipt of its run
//	answerd version    versions of answerd, Go and the MCP protocol
//	answerd health     ask a running answerd at ADDR whether it is alive
//	answerd help       print the commands
//
// Exit codes: 0 success, 1 failure, 2 unusable configuration or arguments, 130 interrupted.
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
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"answerd/internal/eval"
	"answerd/internal/mcp"
	"answerd/internal/telemetry"
	"answerd/internal/terminal"
)

// command describes a command of answerd. The table of commands is what run looks a name up in, and
// what the help is printed from.
type command struct {
	name string
	args string // as help prints them
	does string // for the help: a line each for what it does and for its flags
	// flags reports whether the command reads arguments.
	flags bool
	// run executes the command and returns when it is done. Its error becomes the exit code (exitCode).
	run func(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error
}

// commands returns all commands, in the order of the help.
func commands() []command {
	return []command{
		{"serve", "", "serve, configured by the environment; the default", false, func(ctx context.Context, _ []string, environ environment, _, stderr io.Writer) error {
			c, err := loadConfig(environ)
			if err != nil {
				return err
			}
			return serve(ctx, c, stderr, func(string) {})
		}},
		{"demo", "", "serve with an IAM, an MCP server and a stand-in for a model on this machine; no key needed", true, demoCommand},
		{"ask", "[flags] QUESTION", "ask one question: of the answerd at -url or at ADDR, otherwise of one in this process;\n-token-file F: send the token in this file; -agent A: ask this named agent; -thread T: use this thread;\n-json: print the answer as JSON; -export FILE: write the run into this file; -yes: approve every call", true, askCommand},
		{"chat", "[flags]", "the same as a conversation", true, chatCommand},
		{"eval", "SUITE.yaml [flags]", "ask the questions of a suite and check the answers, in this process;\n-url U: of the answerd there; -token-file F: send the token in this file; -parallel N: questions at a time;\n-out F: write the report as JSON; -junit F: as JUnit XML;\n-against F: compare with the settings in this environment file", true, evalCommand},
		{"check", "[-accept] [-ask] [-strict]", "print what is configured and ask the model endpoint, the IAM, the callers' issuer and every MCP server;\n-accept: accept the tools of pinned servers as they are now;\n-ask: ask the model one question, with one read-only tool;\n-strict: refuse members of mcp.json that are not known", true, checkCommand},
		{"replay", "[flags] FILE|DIRECTORY ...", "run exports of runs again, offline, and print what differs;\n-model M: ask this model with the recorded results of tools, and print both answers;\n-tools: compare the definitions of tools with those of the MCP servers now", true, replayCommand},
		{"verify", "-jwks URL|FILE FILE", "check an export against the receipt of its run;\n-receipt FILE: the receipt, otherwise beside the export with the ending .jws;\n-jwks: the public keys, as at /.well-known/jwks.json", true, verifyCommand},
		{"version", "", "versions of answerd, Go and the MCP protocol", false, func(_ context.Context, _ []string, _ environment, stdout, _ io.Writer) error {
			return printVersion(stdout)
		}},
		{"health", "", "ask a running answerd at ADDR whether it is alive", false, func(ctx context.Context, _ []string, environ environment, _, _ io.Writer) error {
			return checkHealth(ctx, environ)
		}},
		{"help", "", "this text", false, func(_ context.Context, _ []string, _ environment, stdout, _ io.Writer) error {
			return printHelp(stdout)
		}},
	}
}

// commandNames returns the names of all commands, for an error on one line.
func commandNames() string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

// printHelp prints the commands and where the settings are described.
func printHelp(stdout io.Writer) error {
	var b strings.Builder
	b.WriteString("answerd answers questions over HTTP: a language model uses the tools of your MCP servers.\n\nCommands:\n")
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		name := strings.TrimSpace("answerd " + c.name + " " + c.args)
		for line := range strings.Lines(c.does) {
			fmt.Fprintf(table, "  %s\t%s\n", name, strings.TrimSpace(line))
			name = ""
		}
	}
	table.Flush()
	b.WriteString(`
Settings are environment variables; .env.example and docs/configuration.md list all of them. The first ones:
  LLM_BASE_URL      OpenAI-compatible endpoint, up to and including /v1; default: OpenAI's
  LLM_API_KEY       its key
  DEFAULT_MODEL_ID  model of questions that name none
  MCP_CONFIG_PATH   mcp.json with your MCP servers; MCP_URL for a single one
  ADDR              address to listen on; default: 127.0.0.1:8080

Without a key, begin with: answerd demo
Exit codes: 0 success, 1 failure, 2 unusable configuration or arguments, 130 interrupted.
`)
	_, err := io.WriteString(stdout, b.String())
	return err
}

// main runs the command and turns its error into an exit code. Everything else is in run, which
// tests call too.
func main() {
	// The first signal ends ctx and starts the drain; serve listens for the second.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// If the reader of stderr ends before this process, a write must return an error and not end
	// the process (os/signal, "SIGPIPE").
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	stderr := telemetry.NewLogWriter(os.Stderr)
	// net/http logs with the default logger; its lines must have the same format.
	if logger, err := telemetry.NewLogger(stderr, "info", false); err == nil {
		slog.SetDefault(logger)
	}
	err := run(ctx, os.Args[1:], newEnvironment(os.Environ()), os.Stdout, stderr)
	stop()
	code := exitCode(err, stderr)
	last, cancel := context.WithTimeout(context.Background(), stderrTimeout)
	_ = stderr.Close(last) // an error could not be reported any more
	cancel()
	os.Exit(code)
}

// stderrTimeout bounds how long the process waits at its end for stderr to accept the last
// lines.
const stderrTimeout = time.Second

// run executes a command, for main and for the end-to-end tests. It returns when the command
// is done, or drained after ctx has ended.
func run(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	name := "serve"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	switch {
	case isHelpFlag(name), slices.ContainsFunc(args, isHelpFlag):
		name, args = "help", nil
	case name == "-version", name == "--version":
		name = "version"
	}
	for _, c := range commands() {
		switch {
		case c.name != name:
		case len(args) > 0 && !c.flags:
			return &usageError{name + " takes no arguments; answerd help describes the commands"}
		default:
			return c.run(ctx, args, environ, stdout, stderr)
		}
	}
	return &usageError{fmt.Sprintf("%.40q is not a command; the commands are %s", name, commandNames())}
}

// isHelpFlag reports whether an argument asks for help.
func isHelpFlag(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

// exitCode prints err on one line and returns the exit code for it.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	if errors.Is(err, terminal.ErrInterrupted) {
		fmt.Fprintln(stderr, "answerd:", err)
		return 130 // as shells report a process that SIGINT ended
	}
	fmt.Fprintf(stderr, "answerd: %v (see %s)\n", err, helpPage(err))
	var config *configError
	var usage *usageError
	var suite *eval.Error
	if errors.As(err, &config) || errors.As(err, &usage) || errors.As(err, &suite) {
		return 2
	}
	return 1
}

// printVersion prints the versions that a bug report needs.
func printVersion(stdout io.Writer) error {
	// A build without the linker's values, such as go install, has the commit in its build info.
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
