package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"answerd/internal/agent/definition"
	"answerd/internal/agent/record"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/mcp"
	"answerd/internal/receipt"
	"answerd/internal/rerun"
	"answerd/internal/telemetry"
	"answerd/internal/terminal"
)

// replayWorkers is how many exports are replayed at the same time.
const replayWorkers = 8

// replayCommand runs `answerd replay`, which runs exports again and prints what differs from the recording.
func replayCommand(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	const usage = "usage: answerd replay [-model M | -tools] FILE|DIRECTORY ..."
	flags := flag.NewFlagSet("replay", flag.ContinueOnError)
	model := flags.String("model", "", "model that is asked instead of the recorded one")
	tools := flags.Bool("tools", false, "compare the tools of the MCP servers with the recorded ones")
	paths, err := parseFlags(flags, args)
	if err != nil {
		return &usageError{usage}
	}
	files, err := exportFiles(paths)
	if err != nil {
		return err
	}
	if len(files) == 0 || *model != "" && *tools { // -model compares nothing
		return &usageError{usage}
	}
	p := &replayer{out: stdout}
	// Otherwise exports are replayed without a configuration: no current settings exist to compare them with.
	needsConfig := *model != "" || *tools || environ.get("AGENTS_FILE") != "" || environ.get("SYSTEM_PROMPT_FILE") != ""
	if needsConfig {
		end, err := p.configure(ctx, environ, *model, *tools, stderr)
		if err != nil {
			return err
		}
		defer end()
	}
	return p.replayAll(ctx, files)
}

// exportFiles replaces each directory in paths by the *.json files in it. A directory without such files is an error.
// Every error is a *usageError.
func exportFiles(paths []string) (files []string, _ error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, &usageError{"the export cannot be read: " + err.Error()}
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		exports, err := filepath.Glob(filepath.Join(path, "*.json"))
		if err != nil || len(exports) == 0 {
			return nil, &usageError{path + " has no file *.json"}
		}
		files = append(files, exports...)
	}
	return files, nil
}

// replayer runs exports again. Several goroutines share it, so its fields must not change after configure.
type replayer struct {
	out     io.Writer
	options rerun.Options // for every export
	config  *config       // the current settings; nil if exports are not compared with them
	prompt  string        // text of SYSTEM_PROMPT_FILE; "" for the built-in prompt
	tools   []export.Tool // current tools of the MCP servers; nil if exports are not compared with them
}

// configure sets p.config and p.prompt from the current settings. If tools is true, it also sets p.tools, and waits
// until it has tried to connect to all MCP servers. If model is not "", it sets p.options so that exports are run with
// that model. The caller must call end, which closes the connections to the model endpoints.
func (p *replayer) configure(ctx context.Context, environ environment, model string, tools bool, stderr io.Writer) (end func(), _ error) {
	cfg, err := loadConfig(environ)
	if err != nil {
		return nil, err
	}
	logger, err := telemetry.NewLogger(stderr, "error", cfg.Debug)
	if err != nil {
		return nil, fmt.Errorf("create the log: %w", err)
	}
	p.config = &cfg
	if cfg.SystemPromptFile != "" {
		text := func(data []byte) (string, error) { return string(data), nil }
		if p.prompt, err = parseFile("SYSTEM_PROMPT_FILE", cfg.SystemPromptFile, text); err != nil {
			return nil, err
		}
	}

	if tools {
		if p.tools, err = presentTools(ctx, cfg, logger); err != nil {
			return nil, err
		}
	}
	if model == "" {
		return func() {}, nil
	}
	tel, err := telemetry.New(ctx, telemetry.Config{ServiceName: cfg.OTelServiceName, Version: version, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("create the telemetry: %w", err)
	}
	models := openModels(ctx, cfg, tel, logger)
	p.options.Model, p.options.ModelID = models.router, model
	return models.close, nil
}

// presentTools returns the current tool definitions of the MCP servers; the slice is never nil. It waits until it has
// tried to connect to all servers. A server that is down is an error, because its tools would look as if they had been
// removed.
func presentTools(ctx context.Context, cfg config, logger *slog.Logger) ([]export.Tool, error) {
	servers, err := connectTools(cfg, mcp.Options{Logger: logger, StartWait: checkTimeout})
	if err != nil {
		return nil, err
	}
	defer servers.close()
	all := servers.client.ToolsFor(ctx, auth.Identity{}) // waits for the servers
	if down := servers.client.Unavailable(true); len(down) > 0 {
		return nil, fmt.Errorf("the tools cannot be compared: no connection to %s (answerd check says why)", strings.Join(down, ", "))
	}
	definitions := []export.Tool{}
	for _, t := range all {
		definitions = append(definitions, record.Definition(t))
	}
	return definitions, nil
}

// replayAll runs all files again and then prints their reports in the order of files. The error says how many runs
// differ, or which files could not be run again. In the second case it is a *usageError unless ctx has ended.
func (p *replayer) replayAll(ctx context.Context, files []string) error {
	var errs []error
	differing := 0
	for _, report := range p.replayConcurrently(ctx, files) {
		// Remove escape sequences: text from exports and models must not control the terminal.
		if _, err := io.WriteString(p.out, terminal.PlainText(report.text)); err != nil {
			return fmt.Errorf("print a report: %w", err)
		}
		if report.differs {
			differing++
		}
		errs = append(errs, report.err)
	}

	if err := errors.Join(errs...); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("replay: %w", context.Cause(ctx))
		}
		return &usageError{strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	if differing > 0 {
		return fmt.Errorf("%d of %d runs differ from their recording", differing, len(files))
	}
	return nil
}

// replayReport is the result of replaying one export.
type replayReport struct {
	text    string // for the terminal
	differs bool   // the run or the current settings differ from the recording
	err     error  // why the export could not be replayed; nil if it was
}

// replayConcurrently replays all files, replayWorkers at a time. It returns the reports in the order of files.
func (p *replayer) replayConcurrently(ctx context.Context, files []string) []replayReport {
	reports := make([]replayReport, len(files))
	next := make(chan int) // indexes of files
	var workers sync.WaitGroup
	for range min(replayWorkers, len(files)) {
		workers.Go(func() {
			for i := range next {
				reports[i] = p.replay(ctx, files[i])
			}
		})
	}
	for i := range files {
		next <- i
	}
	close(next)
	workers.Wait()
	return reports
}

// replay runs the export in file again. If p.options has another model, replay compares nothing, and the report has
// both answers.
func (p *replayer) replay(ctx context.Context, file string) replayReport {
	data, err := os.ReadFile(file)
	if err != nil {
		return replayReport{err: fmt.Errorf("read an export: %w", err)}
	}
	doc, err := export.Decode(data)
	if err != nil {
		return replayReport{err: fmt.Errorf("%s: %w", file, err)}
	}
	result, err := rerun.Run(ctx, doc, p.options)
	if err != nil {
		return replayReport{err: fmt.Errorf("%s: %w", file, err)}
	}
	if p.options.Model != nil {
		return replayReport{text: p.showBothAnswers(file, doc, result)}
	}
	lines := rerun.Compare(doc, p.presentState(doc))
	for _, d := range result.Differences {
		lines = append(lines, d.String())
	}
	if len(lines) == 0 {
		return replayReport{text: fmt.Sprintf("%s: %d events, no difference\n", file, len(result.Events))}
	}
	text := fmt.Sprintf("%s: %d events, %d differences\n  %s\n", file, len(result.Events), len(lines), strings.Join(lines, "\n  "))
	return replayReport{text: text, differs: true}
}

// presentState returns the state with which the run of doc would begin today. A nil part is not compared. Without
// current settings, or if the run's agent does not exist any more, only the tools are set.
func (p *replayer) presentState(doc *export.Document) rerun.Present {
	present := rerun.Present{Tools: p.tools}
	if p.config == nil {
		return present
	}
	agent := definition.Agent{ID: definition.DefaultID}
	if named := definition.Find(p.config.agents, doc.Run.Agent); named != nil {
		agent = *named
	} else if doc.Run.Agent != "" {
		return present
	}
	present.Prompt = &export.Template{
		Template: cmp.Or(agent.Prompt, p.prompt), Username: p.config.AgentUsername, Timezone: p.config.AgentTimezone,
	}
	agent.Prompt = ""                      // present.Prompt has the prompt, so the definition is compared without it
	present.Agent, _ = json.Marshal(agent) // a definition can always be encoded
	return present
}

// columnWidth is the width of one column in showBothAnswers, in characters.
const columnWidth = 58

// showBothAnswers returns a table with the recorded answer on the left and the new answer on the right.
func (p *replayer) showBothAnswers(file string, doc *export.Document, result *rerun.Result) string {
	recorded, err := doc.DecodeEvents()
	if err != nil || len(result.Events) == 0 {
		return file + ": no answer\n"
	}
	column := func(title string, events []event.Event) []string {
		return append([]string{title, strings.Repeat("-", columnWidth)}, wrap(finalText(events[len(events)-1]))...)
	}
	left := column("recorded: "+doc.Request.Model, recorded)
	right := column("now: "+p.options.ModelID, result.Events)
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", file, doc.Request.Question)
	for i := range max(len(left), len(right)) {
		l, r := "", ""
		if i < len(left) {
			l = left[i]
		}
		if i < len(right) {
			r = right[i]
		}
		padding := strings.Repeat(" ", max(0, columnWidth-utf8.RuneCountInString(l)))
		b.WriteString(strings.TrimRight(l+padding+" | "+r, " ") + "\n")
	}
	return b.String()
}

// finalText returns the text of a terminal event: the answer, the error or the reason for the cancellation. For other
// events it returns "".
func finalText(e event.Event) string {
	switch b := e.Body.(type) {
	case event.FinalAnswer:
		return b.Answer
	case event.RunError:
		return b.Code + ": " + b.Message
	case event.Cancelled:
		return "cancelled: " + b.Reason
	}
	return ""
}

// wrap breaks text into lines of at most columnWidth characters. It breaks a long line at the last space in the second
// half of the column, or at the end of the column if there is none.
func wrap(text string) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		rest := []rune(line)
		for len(rest) > columnWidth {
			end := columnWidth
			for end > columnWidth/2+1 && rest[end] != ' ' {
				end--
			}
			if rest[end] != ' ' { // the second half of the column has no space
				end = columnWidth
			}
			lines = append(lines, string(rest[:end]))
			rest = []rune(strings.TrimLeft(string(rest[end:]), " "))
		}
		lines = append(lines, string(rest))
	}
	return lines
}

// verifyCommand runs `answerd verify`, which checks an export against the receipt of its run. Without -receipt it reads
// the receipt from the export's path with .jws instead of .json.
func verifyCommand(ctx context.Context, args []string, _ environment, stdout, _ io.Writer) error {
	flags := flag.NewFlagSet("verify", flag.ContinueOnError)
	receiptFile := flags.String("receipt", "", "file with the receipt")
	jwks := flags.String("jwks", "", "URL or file of the public keys")
	files, err := parseFlags(flags, args)
	if err != nil || len(files) != 1 || *jwks == "" {
		return &usageError{"usage: answerd verify -jwks URL|FILE [-receipt FILE] FILE"}
	}

	exportFile := files[0]
	if *receiptFile == "" {
		*receiptFile = strings.TrimSuffix(exportFile, ".json") + ".jws"
	}
	exported, err := os.ReadFile(exportFile)
	if err != nil {
		return &usageError{"the export cannot be read: " + err.Error()}
	}
	signed, err := os.ReadFile(*receiptFile)
	if err != nil {
		return &usageError{"the receipt cannot be read: " + err.Error()}
	}
	keySet, err := readKeys(ctx, http.DefaultTransport, *jwks)
	if err != nil {
		return &usageError{"the keys cannot be read: " + err.Error()}
	}
	keys, err := receipt.ParseJWKS(keySet)
	if err != nil {
		return &usageError{"the keys cannot be read: " + err.Error()}
	}
	statement, err := receipt.Verify(string(signed), exported, keys)
	if err != nil {
		return fmt.Errorf("verify %s: %w", exportFile, err)
	}
	_, err = fmt.Fprintf(stdout, "%s is the run %s as it was signed: %d events, %d tool calls, %d approvals\n",
		exportFile, statement.Run, statement.Events, len(statement.Calls), len(statement.Approvals))
	return err
}

const (
	maxKeys     = 1 << 20          // bytes that are read of a JWK Set at a URL
	keysTimeout = 10 * time.Second // for the request for a JWK Set
)

// readKeys returns the JWK Set at source, which is an http or https URL or a file path.
func readKeys(ctx context.Context, transport http.RoundTripper, source string) ([]byte, error) {
	if !strings.HasPrefix(source, "https://") && !strings.HasPrefix(source, "http://") {
		return os.ReadFile(source)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, source, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport, Timeout: keysTimeout}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered with %s", source, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxKeys))
}
