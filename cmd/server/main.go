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
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
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

// command is a subcommand of answerd, such as ask.
type command struct {
	name string
	args string // arguments as the help prints them, such as "[flags] QUESTION"
	// description is the help text: one line that says what the command does, then one for each flag. printHelp trims
	// the white space around each line.
	description string
	takesArgs   bool // if false, the function run returns a *usageError for arguments
	// run executes the command and returns when it is done. reportError turns its error into the exit code.
	run func(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error
}

// commands returns all commands in the order in which the help lists them.
func commands() []command {
	return []command{
		{name: "serve", description: "serve, configured by the environment; the default", run: serveCommand},
		{name: "demo", takesArgs: true, run: demoCommand,
			description: "serve with an IAM, an MCP server and a stand-in for a model on this machine; no key needed"},
		{name: "ask", args: "[flags] QUESTION", takesArgs: true, run: askCommand,
			description: `ask one question: of the answerd at -url or at ADDR, otherwise of one in this process;
				-token-file F: send the token in this file; -agent A: ask this named agent; -thread T: use this thread;
				-json: print the answer as JSON; -export FILE: write the run into this file; -yes: approve every call`},
		{name: "chat", args: "[flags]", takesArgs: true, run: chatCommand, description: "the same as a conversation"},
		{name: "eval", args: "SUITE.yaml [flags]", takesArgs: true, run: evalCommand,
			description: `ask the questions of a suite and check the answers, in this process;
				-url U: of the answerd there; -token-file F: send the token in this file; -parallel N: questions at a time;
				-out F: write the report as JSON; -junit F: as JUnit XML;
				-against F: compare with the settings in this environment file`},
		{name: "check", args: "[-accept] [-ask] [-strict]", takesArgs: true, run: checkCommand,
			description: `print what is configured and ask the model endpoint, the IAM, the callers' issuer and every MCP server;
				-accept: accept the tools of pinned servers as they are now;
				-ask: ask the model one question, with one read-only tool;
				-strict: refuse members of mcp.json that are not known`},
		{name: "replay", args: "[flags] FILE|DIRECTORY ...", takesArgs: true, run: replayCommand,
			description: `run exports of runs again, offline, and print what differs;
				-model M: ask this model with the recorded results of tools, and print both answers;
				-tools: compare the definitions of tools with those of the MCP servers now`},
		{name: "verify", args: "-jwks URL|FILE FILE", takesArgs: true, run: verifyCommand,
			description: `check an export against the receipt of its run;
				-receipt FILE: the receipt, otherwise beside the export with the ending .jws;
				-jwks: the public keys, as at /.well-known/jwks.json`},
		{name: "version", description: "versions of answerd, Go and the MCP protocol",
			run: func(_ context.Context, _ []string, _ environment, stdout, _ io.Writer) error {
				return printVersion(stdout)
			}},
		{name: "health", description: "ask a running answerd at ADDR whether it is alive",
			run: func(ctx context.Context, _ []string, environ environment, _, _ io.Writer) error {
				return checkHealth(ctx, environ)
			}},
		{name: "help", description: "this text",
			run: func(_ context.Context, _ []string, _ environment, stdout, _ io.Writer) error {
				return printHelp(stdout)
			}},
	}
}

// serveCommand runs `answerd serve` with the settings in environ until ctx ends.
func serveCommand(ctx context.Context, _ []string, environ environment, _, stderr io.Writer) error {
	c, err := loadConfig(environ)
	if err != nil {
		return err
	}
	return serve(ctx, c, stderr, func(string) {})
}

// printHelp prints the commands and the most important settings, and names the documents that list all settings.
func printHelp(stdout io.Writer) error {
	var b strings.Builder
	b.WriteString("answerd answers questions over HTTP: a language model uses the tools of your MCP servers.\n\nCommands:\n")
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		name := strings.TrimSpace("answerd " + c.name + " " + c.args)
		for line := range strings.Lines(c.description) {
			fmt.Fprintf(table, "  %s\t%s\n", name, strings.TrimSpace(line))
			name = "" // only the first line of a description has the name beside it
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

// main runs the command that the arguments name, and exits with the exit code for its error.
func main() {
	// The first signal ends ctx and starts the drain; serve listens for the second.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// Catch SIGPIPE: if the reader of stderr exits first, a write must return an error instead of ending this process
	// (os/signal, "SIGPIPE").
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	stderr := telemetry.NewLogWriter(os.Stderr)
	// net/http logs with the default logger, and its lines must have the format of all others.
	if logger, err := telemetry.NewLogger(stderr, "info", false); err == nil {
		slog.SetDefault(logger)
		log.SetOutput(quotationCutter{log.Writer()})
	}
	err := run(ctx, os.Args[1:], newEnvironment(os.Environ()), os.Stdout, stderr)
	stop()
	code := reportError(err, stderr)
	closeCtx, cancel := context.WithTimeout(context.Background(), stderrTimeout)
	_ = stderr.Close(closeCtx) // if stderr fails, the error cannot be reported anywhere
	cancel()
	os.Exit(code)
}

// quotationCutter is the writer of the default logger of package log. It writes lines to its Writer without the text
// between double quotes: net/http quotes bytes that a peer sent unasked, which may repeat a request with its keys.
type quotationCutter struct{ io.Writer }

var quotation = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// Write implements io.Writer.
func (c quotationCutter) Write(line []byte) (int, error) {
	if _, err := c.Writer.Write(quotation.ReplaceAllLiteral(line, []byte("[cut]"))); err != nil {
		return 0, err
	}
	return len(line), nil
}

// stderrTimeout bounds how long the process waits, before it exits, for stderr to accept the last lines.
const stderrTimeout = time.Second

// run executes the command in args[0], or serve if args is empty. A help flag in args prints the help instead, but not
// after --, where a question may contain it. run returns when the command is done. For serve, that is after the drain
// that follows the end of ctx.
func run(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	name := "serve"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	flags := args
	if i := slices.Index(args, "--"); i >= 0 {
		flags = args[:i]
	}
	switch {
	case isHelpFlag(name), slices.ContainsFunc(flags, isHelpFlag):
		name, args = "help", nil
	case name == "-version", name == "--version":
		name = "version"
	}
	var names []string
	for _, c := range commands() {
		if c.name != name {
			names = append(names, c.name)
			continue
		}
		if len(args) > 0 && !c.takesArgs {
			return &usageError{name + " takes no arguments; answerd help describes the commands"}
		}
		return c.run(ctx, args, environ, stdout, stderr)
	}
	return &usageError{fmt.Sprintf("%.40q is not a command; the commands are %s", name, strings.Join(names, ", "))}
}

// isHelpFlag reports whether arg asks for help.
func isHelpFlag(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

// reportError prints err on one line, with the page that explains it, and returns the exit code: 0 for nil, 130 after
// an interrupt, 2 for settings, arguments or a suite that cannot be used, and 1 for other errors.
func reportError(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	if errors.Is(err, terminal.ErrInterrupted) {
		fmt.Fprintln(stderr, "answerd:", err)
		return 130 // 128 + SIGINT, as in shells
	}
	fmt.Fprintf(stderr, "answerd: %v (see %s)\n", err, helpPage(err))
	var configErr *configError
	var usageErr *usageError
	var suiteErr *eval.Error
	if errors.As(err, &configErr) || errors.As(err, &usageErr) || errors.As(err, &suiteErr) {
		return 2
	}
	return 1
}

// printVersion prints the versions of answerd, Go and the MCP protocol, and the commit of this build.
func printVersion(stdout io.Writer) error {
	// The linker sets commit only in releases. Other builds record the commit in the build info.
	rev := commit
	if info, ok := debug.ReadBuildInfo(); ok && rev == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				rev = s.Value
			}
		}
	}
	_, err := fmt.Fprintf(stdout, "answerd %s\ncommit  %s\ngo      %s\nmcp     %s\n",
		version, cmp.Or(rev, "unknown"), runtime.Version(), strings.Join(mcp.ProtocolVersions(), ", "))
	return err
}
