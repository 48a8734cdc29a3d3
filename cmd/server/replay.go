package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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

// replayWorkers is how many exports are run again at the same time.
const replayWorkers = 8

// replayCommand runs `answerd replay`: it runs exports again and prints what differs.
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
	if len(files) == 0 || *model != "" && *tools { // another model's answer is not compared
		return &usageError{usage}
	}
	p := &replayer{out: stdout}
	// Without any of these, the exports are run again with what they recorded, and no configuration is needed.
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

// exportFiles returns the files that paths name, and those with the ending .json of directories.
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
		found, err := filepath.Glob(filepath.Join(path, "*.json"))
		if err != nil || len(found) == 0 {
			return nil, &usageError{path + " has no file *.json"}
		}
		files = append(files, found...)
	}
	return files, nil
}

// replayer runs exports again. Its fields do not change once configure has returned, because several
// workers use them.
type replayer struct {
	out     io.Writer
	options rerun.Options // of every export
	config  *config       // nil unless the present settings are compared
	tools   []export.Tool // nil unless they are compared
}

// configure reads the present settings, with which exports are compared, and connects to the model and the
// MCP servers if they are needed.
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

	var ends []func()
	end = func() {
		for _, f := range slices.Backward(ends) {
			f()
		}
	}

	if model != "" {
		tel, err := telemetry.New(ctx, telemetry.Config{ServiceName: cfg.OTelServiceName, Version: version, Logger: logger})
		if err != nil {
			return nil, fmt.Errorf("create the telemetry: %w", err)
		}
		models := openModels(ctx, cfg, tel, logger)
		ends = append(ends, models.close)
		p.options.Model, p.options.ModelID = models.router, model
	}
	if tools {
		servers, err := connectTools(cfg, mcp.Options{Logger: logger, StartWait: checkTimeout})
		if err != nil {
			end()
			return nil, err
		}
		ends = append(ends, servers.close)
		p.tools = []export.Tool{}
		all := servers.client.ToolsFor(ctx, auth.Identity{})         // waits until every server was tried
		if down := servers.client.Unavailable(true); len(down) > 0 { // their tools would look as if they were gone
			end()
			return nil, fmt.Errorf("the tools cannot be compared: no connection to %s (answerd check says why)", strings.Join(down, ", "))
		}
		for _, t := range all {
			p.tools = append(p.tools, record.Definition(t))
		}
	}
	return end, nil
}

// replayAll runs all files again, and prints a report for each, in order.
func (p *replayer) replayAll(ctx context.Context, files []string) error {
	reports, errs := make([]string, len(files)), make([]error, len(files))
	different := make([]bool, len(files))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(replayWorkers, len(files)) {
		wg.Go(func() {
			for i := range next {
				reports[i], different[i], errs[i] = p.replay(ctx, files[i])
			}
		})
	}

	for i := range files {
		next <- i
	}

	close(next)
	wg.Wait()

	count := 0
	for i, report := range reports {
		if _, err := io.WriteString(p.out, terminal.PlainText(report)); err != nil { // files come from others, and answers from models
			return fmt.Errorf("print a report: %w", err)
		}
		if different[i] {
			count++
		}
	}

	if err := errors.Join(errs...); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("replay: %w", context.Cause(ctx))
		}
		return &usageError{strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	if count > 0 {
		return fmt.Errorf("%d of %d runs differ from their recording", count, len(files))
	}
	return nil
}

// replay runs one file again.
func (p *replayer) replay(ctx context.Context, file string) (report string, different bool, _ error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", false, fmt.Errorf("read an export: %w", err)
	}
	doc, err := export.Decode(data)
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", file, err)
	}
	result, err := rerun.Run(ctx, doc, p.options)
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", file, err)
	}
	if p.options.Model != nil {
		return p.besideEachOther(file, doc, result), false, nil
	}
	lines := rerun.Compare(doc, p.presentState(doc))
	for _, d := range result.Differences {
		lines = append(lines, d.String())
	}
	if len(lines) == 0 {
		return fmt.Sprintf("%s: %d events, no difference\n", file, len(result.Events)), false, nil
	}
	return fmt.Sprintf("%s: %d events, %d differences\n  %s\n", file, len(result.Events), len(lines), strings.Join(lines, "\n  ")), true, nil
}

// presentState returns what the run would begin with now, as far as the settings say.
func (p *replayer) presentState(doc *export.Document) rerun.Present {
	now := rerun.Present{Tools: p.tools}
	if p.config == nil {
		return now
	}
	c := p.config
	text := ""
	if c.SystemPromptFile != "" {
		if own, err := os.ReadFile(c.SystemPromptFile); err == nil { // loadConfig has read it
			text = string(own)
		}
	}
	agent := definition.Agent{ID: definition.DefaultID}
	if i := slices.IndexFunc(c.agents, func(d definition.Agent) bool { return d.ID == doc.Run.Agent }); i >= 0 {
		agent = c.agents[i]
	} else if doc.Run.Agent != "" {
		return now
	}
	if agent.Prompt != "" {
		text = agent.Prompt
	}
	agent.Prompt = ""
	now.Prompt = &export.Template{Template: text, Username: c.AgentUsername, Timezone: c.AgentTimezone}
	now.Agent, _ = json.Marshal(agent) // it was decoded from a file
	return now
}

// columnWidth is how many characters a column of besideEachOther has.
const columnWidth = 58

// besideEachOther returns the recorded answer and the new one in two columns.
func (p *replayer) besideEachOther(file string, doc *export.Document, result *rerun.Result) string {
	recorded, err := doc.DecodeEvents()
	if err != nil || len(result.Events) == 0 {
		return file + ": no answer\n"
	}
	left := append([]string{"recorded: " + doc.Request.Model, strings.Repeat("-", columnWidth)}, wrap(answerOf(recorded[len(recorded)-1]))...)
	right := append([]string{"now: " + p.options.ModelID, strings.Repeat("-", columnWidth)}, wrap(answerOf(result.Events[len(result.Events)-1]))...)
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
		b.WriteString(strings.TrimRight(l+strings.Repeat(" ", max(0, columnWidth-utf8.RuneCountInString(l)))+" | "+r, " ") + "\n")
	}
	return b.String()
}

// answerOf returns the text with which a run ended.
func answerOf(e event.Event) string {
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

// wrap divides a text into lines of at most columnWidth characters.
func wrap(text string) (lines []string) {
	for _, line := range strings.Split(text, "\n") {
		for runes := []rune(line); ; {
			if len(runes) <= columnWidth {
				lines = append(lines, string(runes))
				break
			}
			at := columnWidth
			for i := columnWidth; i > columnWidth/2; i-- {
				if runes[i] == ' ' {
					at = i
					break
				}
			}
			lines, runes = append(lines, string(runes[:at])), []rune(strings.TrimLeft(string(runes[at:]), " "))
		}
	}
	return lines
}

// verifyCommand runs `answerd verify`: it checks an export against the receipt of its run. Without -receipt, the receipt
// is beside the export, in a file with the ending .jws.
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

	set, err := readKeys(ctx, http.DefaultTransport, *jwks)
	if err != nil {
		return &usageError{"the keys cannot be read: " + err.Error()}
	}

	keys, err := receipt.ParseJWKS(set)
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

// Bounds of a JWK Set and its request.
const (
	maxKeys     = 1 << 20 // bytes
	keysTimeout = 10 * time.Second
)

// readKeys reads a JWK Set from a URL or a file.
func readKeys(ctx context.Context, transport http.RoundTripper, from string) ([]byte, error) {
	if !strings.HasPrefix(from, "https://") && !strings.HasPrefix(from, "http://") {
		return os.ReadFile(from)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport, Timeout: keysTimeout}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered with %s", from, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxKeys))
}
