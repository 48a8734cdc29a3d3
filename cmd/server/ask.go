package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"answerd/internal/eval"
	mcpconfig "answerd/internal/mcp/config"
	"answerd/internal/terminal"
)

const (
	maxQuestion = 1 << 20 // bytes of a question that is read from stdin
	maxParallel = 64      // highest value of -parallel
)

// askFlags holds the flags of the commands ask and chat. The help text of commands describes them.
type askFlags struct {
	url       string // "" asks the answerd at ADDR, or one in this process if no answerd listens there
	tokenFile string
	thread    string
	agent     string
	export    string // file to write the run's export to; "" writes none

	json bool // print the answer as JSON
	yes  bool // approve every call
}

// askCommand runs `answerd ask`, which asks one question. Without an argument it reads the question from stdin, unless
// stdin is a terminal.
func askCommand(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	const usage = `usage: answerd ask [-url U] [-token-file F] [-agent A] [-thread T] [-json] [-export FILE] [-yes] "question"`
	flags, words, err := parseAskFlags("ask", args)
	if err != nil {
		return &usageError{usage}
	}
	question := strings.Join(words, " ")
	if question == "" && !term.IsTerminal(int(os.Stdin.Fd())) {
		text, err := io.ReadAll(io.LimitReader(os.Stdin, maxQuestion+1))
		if err != nil {
			return fmt.Errorf("read the question from stdin: %w", err)
		}
		if len(text) > maxQuestion {
			return &usageError{fmt.Sprintf("the question on stdin is longer than %d bytes", maxQuestion)}
		}
		question = string(text)
	}
	if strings.TrimSpace(question) == "" {
		return &usageError{usage}
	}
	return withSession(ctx, flags, environ, stdout, stderr, func(s *terminal.Session) error { return s.Ask(ctx, question) })
}

// chatCommand runs `answerd chat`, which reads questions from stdin and asks them all in one thread.
func chatCommand(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	flags, words, err := parseAskFlags("chat", args)
	if err != nil || len(words) > 0 {
		return &usageError{"usage: answerd chat [-url U] [-token-file F] [-agent A] [-thread T] [-yes]"}
	}
	return withSession(ctx, flags, environ, stdout, stderr, func(s *terminal.Session) error { return s.Chat(ctx) })
}

// parseAskFlags parses the arguments of command, ask or chat. words are the arguments that are not flags.
func parseAskFlags(command string, args []string) (f askFlags, words []string, err error) {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.StringVar(&f.url, "url", "", "base URL of a running answerd")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the bearer token")
	flags.StringVar(&f.agent, "agent", "", "named agent that answers")
	flags.StringVar(&f.thread, "thread", "", "thread that the question continues")
	flags.BoolVar(&f.yes, "yes", false, "approve every call")
	if command == "ask" {
		flags.StringVar(&f.export, "export", "", "file for the export of the run")
		flags.BoolVar(&f.json, "json", false, "print the answer as JSON")
	}
	words, err = parseFlags(flags, args)
	return f, words, err
}

// parseFlags parses args into flags and returns the arguments that are not flags. Unlike flags.Parse, it accepts flags
// after other arguments too. Everything after -- is an argument. It prints nothing, so the caller must report the
// error.
func parseFlags(flags *flag.FlagSet, args []string) (words []string, _ error) {
	flags.SetOutput(io.Discard)
	var afterDashes []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, afterDashes = args[:i], args[i+1:]
	}
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		args = flags.Args() // begins with an argument that is not a flag
		if len(args) > 0 {
			words = append(words, args[0])
			args = args[1:]
		}
	}
	return append(words, afterDashes...), nil
}

// withSession calls use with a session and returns its error. The session is with the answerd at -url, or without -url
// the one at ADDR on this machine. If none listens there, withSession starts one in this process, waits for its MCP
// servers before it calls use, and stops it before it returns.
func withSession(ctx context.Context, flags askFlags, environ environment, stdout, stderr io.Writer, use func(*terminal.Session) error) error {
	url := flags.url
	if err := checkURLFlag(url); err != nil {
		return err
	}
	if url == "" {
		var err error
		if url, err = environ.serviceURL(); err != nil {
			return err
		}
	}
	isLocal := flags.url == "" && !isAlive(ctx, url)
	if isLocal {
		local, stop, err := startLocalService(ctx, environ, stderr)
		if err != nil {
			return err
		}
		defer stop()
		url = local
	}
	session := newSession(url, flags, environ, stdout)
	defer session.Close()
	if isLocal {
		if err := session.WaitForServers(ctx); err != nil {
			return err
		}
	}
	return use(session)
}

// newSession returns a session with the answerd at url. It reads approvals and other input from this terminal.
func newSession(url string, flags askFlags, environ environment, stdout io.Writer) *terminal.Session {
	markdown := !flags.json && isTerminal(os.Stdout) && environ.wantsColors()
	if isTerminal(os.Stdout) && !markdown {
		stdout = terminal.PlainWriter(stdout) // removes escape sequences, so that an answer cannot control the terminal
	}
	return terminal.New(terminal.Options{
		URL: url, Token: tokenReader(flags.tokenFile), Agent: flags.agent, Thread: flags.thread,
		JSON: flags.json, Export: flags.export, ApproveAll: flags.yes,
		// Err is not stderr's log writer, which writes in the background: a prompt must be visible before the user answers.
		In: os.Stdin, Out: stdout, Err: os.Stderr,
		Interactive: term.IsTerminal(int(os.Stdin.Fd())),
		OutTerminal: markdown, ErrTerminal: isTerminal(os.Stderr) && environ.get("TERM") != "dumb",
		ErrColors: isTerminal(os.Stderr) && environ.wantsColors(),
	})
}

// wantsColors reports whether terminal output may have colours: NO_COLOR is unset (no-color.org), and TERM is not dumb.
func (e environment) wantsColors() bool { return e.get("NO_COLOR") == "" && e.get("TERM") != "dumb" }

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// tokenReader returns a function that reads the bearer token from the file at path, or nil if path is "". The session
// calls it for every request, so that it uses a renewed token.
func tokenReader(path string) func() (string, error) {
	if path == "" {
		return nil
	}
	return func() (string, error) {
		token, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read -token-file: %w", err)
		}
		return string(bytes.TrimSpace(token)), nil
	}
}

// localConfig returns the settings of environ for an answerd that serves this process alone: on a free port of the
// loopback interface, without TLS, authentication and METRICS_ADDR. Rules apply only to the runs of other callers, which
// it may take over from a durable log. Its log has only errors, unless LOG_LEVEL or DEBUG is set. The caller must close
// cfg.listener.
func localConfig(environ environment) (config, error) {
	cfg, err := loadConfig(environ)
	if err != nil {
		return config{}, err
	}
	// Listen now: the redirect URI of sign-ins contains the port, and serve builds it before it listens.
	if cfg.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return config{}, fmt.Errorf("listen on loopback: %w", err)
	}
	cfg.Addr = cfg.listener.Addr().String()
	if cfg.PublicURL == "" {
		cfg.localURL = "http://" + cfg.Addr
	}
	cfg.MetricsAddr, cfg.AuthIssuer, cfg.AllowedHosts = "", "", nil
	if cfg.EventsURL.IsZero() {
		cfg.AuthRulesFile = "" // all callers are anonymous
	}
	cfg.TLSCertFile, cfg.certificates.server = "", nil
	cfg.ShutdownDelay, cfg.DrainTimeout = 0, time.Second
	if environ.get("LOG_LEVEL") == "" && !cfg.Debug {
		cfg.LogLevel = "error"
	}
	return cfg, nil
}

// startLocalService starts an answerd with localConfig in this process and returns its URL when it accepts connections.
// The caller must call stop, which drains the service and waits until it has ended. The end of ctx does not stop it.
func startLocalService(ctx context.Context, environ environment, stderr io.Writer) (url string, stop func(), _ error) {
	cfg, err := localConfig(environ)
	if err != nil {
		return "", nil, err
	}
	// SIGINT ends ctx. The service must outlive it, because the session still has to cancel its run.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	listening, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- serve(ctx, cfg, stderr, func(addr string) { listening <- addr }) }()

	select {
	case addr := <-listening:
		return "http://" + addr, func() {
			cancel()
			<-ended
		}, nil
	case err := <-ended:
		cancel()
		_ = cfg.listener.Close() // serve has closed it only if it failed after cfg.listen
		return "", nil, err
	}
}

// evalFlags holds the flags of the command eval. The help text of commands describes them.
type evalFlags struct {
	url        string // "" asks an answerd in this process
	tokenFile  string
	against    string // environment file of a second configuration to compare with; "" compares nothing
	out, junit string // files to write the reports to; "" writes none
	parallel   int    // questions at a time
}

// evalCommand runs `answerd eval`, which asks the questions of a suite and checks the answers. With -against it asks
// them again under a second configuration and compares. It writes the report even if cases fail, which is an error.
func evalCommand(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	flags, path, err := parseEvalFlags(args)
	if err != nil {
		return &usageError{"usage: answerd eval SUITE.yaml [-url U] [-token-file F] [-out report.json] [-junit report.xml] [-against other.env] [-parallel 1…64]"}
	}
	if err := checkURLFlag(flags.url); err != nil {
		return err
	}
	suite, err := readSuite(path)
	if err != nil {
		return err
	}
	against, err := flags.environmentAgainst(ctx, environ)
	if err != nil {
		return err
	}
	reports, err := openReports(flags.out, flags.junit)
	if err != nil {
		return err
	}
	defer reports.close()

	report, err := flags.evaluate(ctx, suite, flags.url, environ, stdout, stderr)
	switch {
	case err != nil && ctx.Err() != nil:
		return terminal.ErrInterrupted
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}

	var compareErr error // reported after the report of the first configuration is written
	if flags.against != "" && !report.Interrupted {
		compareErr = flags.compare(ctx, &report, suite, against, stdout, stderr)
	}
	report.PrintSummary(stdout)
	if err := reports.write(&report); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return terminal.ErrInterrupted
	case compareErr != nil:
		return compareErr
	case !report.Passed:
		return fmt.Errorf("eval: %d of %d cases are below their pass rate", len(report.Cases)-report.PassedCases, len(report.Cases))
	}
	return nil
}

// compare evaluates suite with the settings of -against and adds the comparison to report. If ctx ends, it compares the
// cases that have ended by then and returns nil.
func (f *evalFlags) compare(ctx context.Context, report *eval.Report, suite eval.Suite, against environment, stdout, stderr io.Writer) error {
	fmt.Fprintf(stdout, "\n%s:\n", f.against)
	other, err := f.evaluate(ctx, suite, "", against, stdout, stderr)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("-against %s: %w", f.against, err)
	}
	other.Configuration = f.against
	report.CompareWith(other)
	return nil
}

// parseEvalFlags parses the arguments of eval, and returns the flags and the path of the suite.
func parseEvalFlags(args []string) (f evalFlags, path string, _ error) {
	flags := flag.NewFlagSet("eval", flag.ContinueOnError)
	flags.StringVar(&f.url, "url", "", "base URL of a running answerd")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the bearer token")
	flags.StringVar(&f.out, "out", "", "file for the report as JSON")
	flags.StringVar(&f.junit, "junit", "", "file for the report as JUnit XML")
	flags.StringVar(&f.against, "against", "", "file with the settings of a configuration to compare with")
	flags.IntVar(&f.parallel, "parallel", 4, "questions at a time")
	words, err := parseFlags(flags, args)
	if err != nil {
		return f, "", err
	}
	if len(words) != 1 || f.parallel < 1 || f.parallel > maxParallel {
		return f, "", errors.New("not one suite, or -parallel is out of range")
	}
	return f, words[0], nil
}

// readSuite reads and parses the suite at path. If the file cannot be read, the error is a *usageError. Otherwise it
// wraps the error of eval.Parse.
func readSuite(path string) (eval.Suite, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return eval.Suite{}, &usageError{"the suite cannot be read: " + fileReason(err)}
	}
	suite, err := eval.Parse(data, eval.FileOptions{Name: filepath.Base(path), Dir: filepath.Dir(path), ReadFile: os.ReadFile})
	if err != nil {
		return eval.Suite{}, fmt.Errorf("%s: %w", path, err)
	}
	return suite, nil
}

// environmentAgainst returns environ with the settings of the -against file applied to a copy. It checks the result, so
// that a mistake is reported before the first question is asked. Without -against it returns environ itself.
func (f *evalFlags) environmentAgainst(ctx context.Context, environ environment) (environment, error) {
	if f.against == "" {
		return environ, nil
	}
	text, err := os.ReadFile(f.against)
	if err != nil {
		return nil, &usageError{"-against cannot be read: " + fileReason(err)}
	}
	settings, err := mcpconfig.ReadEnv(string(text))
	if err != nil {
		return nil, &usageError{fmt.Sprintf("-against %s: %v", f.against, err)}
	}
	against := maps.Clone(environ)
	against.override(settings)
	if err := checkEvaluation(ctx, forEvaluation(against)); err != nil {
		return nil, fmt.Errorf("-against %s: %w", f.against, err)
	}
	return against, nil
}

// checkEvaluation returns the error that startLocalService would return because of a setting, or a file that one names.
func checkEvaluation(ctx context.Context, environ environment) error {
	cfg, err := loadConfig(environ)
	if err != nil {
		return err
	}
	cfg.AuthIssuer, cfg.AuthRulesFile = "", "" // startLocalService does not use them
	if err := checkOffline(ctx, cfg, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	_, _, err = mcpServers(cfg)
	return err
}

// forEvaluation returns a copy of environ with the event log in memory and without RUN_WEBHOOK_URL. The runs of an
// evaluation then do not mix with those of the service.
func forEvaluation(environ environment) environment {
	environ = maps.Clone(environ)
	// EVENTS_CREDENTIALS_FILE and TOKENS_KEY_FILE are refused without EVENTS_URL.
	for _, name := range []string{"EVENTS_URL", "EVENTS_URL_FILE", "EVENTS_CREDENTIALS_FILE", "TOKENS_KEY_FILE", "RUN_WEBHOOK_URL"} {
		environ[name] = ""
	}
	return environ
}

// evaluate runs suite against the answerd at url. If url is "", it starts one in this process and stops it before it
// returns. It prints each case's result to stdout, and the progress to stderr if that is a terminal. If ctx ends during
// the runs, the report has the runs that had ended by then.
func (f *evalFlags) evaluate(ctx context.Context, suite eval.Suite, url string, environ environment, stdout, stderr io.Writer) (eval.Report, error) {
	isLocal := url == ""
	configuration := url
	if isLocal {
		local, stop, err := startLocalService(ctx, forEvaluation(environ), stderr)
		if err != nil {
			return eval.Report{}, err
		}
		defer stop()
		session := terminal.New(terminal.Options{URL: local, Out: io.Discard, Err: io.Discard})
		defer session.Close()
		if err := session.WaitForServers(ctx); err != nil {
			return eval.Report{}, err
		}
		url, configuration = local, "the settings of this process"
	}

	showProgress := newProgressLine(environ)
	table := eval.NewTable(stdout, suite)
	opts := eval.Options{
		URL: strings.TrimRight(url, "/"), Parallel: f.parallel,
		Progress: func(done, total int) { showProgress(fmt.Sprintf("%d of %d runs", done, total)) },
		Done: func(c eval.CaseReport) {
			showProgress("")
			table.Add(c)
		},
	}
	if !isLocal { // the answerd in this process needs no token
		opts.Token = tokenReader(f.tokenFile)
	}
	report, err := eval.Run(ctx, suite, opts)
	showProgress("")
	report.Configuration = configuration
	return report, err
}

// newProgressLine returns a function that replaces the progress text on stderr; "" clears the line. The function does
// nothing if stderr is not a terminal, or if TERM is dumb.
func newProgressLine(environ environment) func(text string) {
	if !isTerminal(os.Stderr) || environ.get("TERM") == "dumb" {
		return func(string) {}
	}
	return func(text string) { fmt.Fprint(os.Stderr, "\r\x1b[K"+text) }
}

// reportFiles are the open files for the reports. A file is nil if its report was not requested. They are created
// before the first question is asked, so that a wrong path is reported at once.
type reportFiles struct{ json, junit *os.File }

// openReports creates the report files at the two paths; "" creates none. Every error is a *usageError.
func openReports(jsonPath, junitPath string) (r reportFiles, err error) {
	if r.json, err = createReport("-out", jsonPath); err != nil {
		return reportFiles{}, err
	}
	if r.junit, err = createReport("-junit", junitPath); err != nil {
		r.close()
		return reportFiles{}, err
	}
	return r, nil
}

// createReport creates the file at path, the value of the flag flagName. For the path "" it returns nil.
func createReport(flagName, path string) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, &usageError{flagName + " cannot be written: " + fileReason(err)}
	}
	return file, nil
}

// write writes report to the files, and closes them.
func (r reportFiles) write(report *eval.Report) error {
	var errs []error
	if r.json != nil {
		errs = append(errs, report.WriteJSON(r.json), r.json.Close())
	}
	if r.junit != nil {
		errs = append(errs, report.WriteJUnit(r.junit), r.junit.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// close closes the files, unless write has closed them.
func (r reportFiles) close() {
	for _, f := range []*os.File{r.json, r.junit} {
		if f != nil {
			_ = f.Close()
		}
	}
}
