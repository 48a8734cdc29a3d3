package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"answerd/internal/llm/llmtest"
	"answerd/internal/terminal"
)

// startDemo starts the demo as a process and returns its base URL.
func startDemo(t *testing.T) string {
	t.Helper()
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0"}, "demo")
	return p.demoURL(t)
}

// newAskCommand returns `answerd ask` or `answerd chat` as a process that has not started.
func newAskCommand(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(env, "TEST_AS_ANSWERD=1")
	return cmd
}

func TestAskPrintsTheAnswerToStdoutAndCallsToStderr(t *testing.T) {
	t.Parallel()
	url := startDemo(t)
	cmd := newAskCommand(t.Context(), nil, "ask", "-url", url, demoQuestion)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("ask: got %v, %s, want exit code 0", err, &stderr)
	}
	if out := stdout.String(); !strings.Contains(out, "12.5 * 8 = 100\n") || strings.Contains(out, "calculate") || strings.Contains(out, "\x1b") {
		t.Errorf("got stdout %q, want the answer alone, without calls and colours", out)
	}
	if got := stderr.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, `✓ calculate {"expression":"12.5 * 8"}`) {
		t.Errorf("got stderr %q, want one line for each of two calls", got)
	}
}

func TestAskFlagsEndAtTheSeparator(t *testing.T) {
	for args, want := range map[string]string{
		"a -json b":         "json a b",
		"-json -- a -json":  "json a -json",
		"a -- -5 -- plus 3": "a -5 -- plus 3",
		"-- -url":           "-url",
	} {
		flags, words, err := parseAskFlags("ask", strings.Fields(args))
		got := strings.Join(words, " ")
		if flags.json {
			got = "json " + got
		}
		if err != nil || got != want || flags.url != "" {
			t.Errorf("ask %s: got %q, URL %q, %v, want %q and no URL", args, got, flags.url, err, want)
		}
	}
}

func TestAskPrintsTheAnswerDocument(t *testing.T) {
	t.Parallel()
	url := startDemo(t)
	cmd := newAskCommand(t.Context(), nil, "ask", "What is 12.5 * 8?", "-json", "-thread", "thr_ask", "-url="+url)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("ask -json: got %v, want exit code 0", err)
	}

	var doc struct {
		Answer, RunID, ThreadID, TraceID string
		Metadata                         struct{ Steps int }
	}
	underscores := regexp.MustCompile(`"(run|thread|trace)_id"`)
	if err := json.Unmarshal(underscores.ReplaceAll(out, []byte(`"${1}id"`)), &doc); err != nil {
		t.Fatalf("got %s, want one JSON document: %v", out, err)
	}
	if !strings.HasPrefix(doc.Answer, "12.5 * 8 = 100") || doc.ThreadID != "thr_ask" || !strings.HasPrefix(doc.RunID, "run_") || doc.TraceID == "" || doc.Metadata.Steps != 2 {
		t.Errorf("got %+v, want the answer, the thread thr_ask, a run, a trace and 2 steps", doc)
	}
}

func TestAskReadsTheQuestionFromStdin(t *testing.T) {
	cmd := newAskCommand(t.Context(), nil, "ask", "-url", startDemo(t))
	cmd.Stdin = strings.NewReader("What is 12.5 * 8?\n")
	if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "= 100") {
		t.Errorf("got %s, %v, want the answer", out, err)
	}
}

// Nothing listens at ADDR, so the command serves itself, with the settings of the environment.
func TestAskRunsInItsOwnProcessWithoutAServer(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())

	env := w.environ()
	for i, variable := range env {
		if strings.HasPrefix(variable, "ADDR=") {
			env[i] = "ADDR=127.0.0.1:1" // no server can listen there without privileges, and none does
		}
	}

	var stderr bytes.Buffer
	cmd := newAskCommand(t.Context(), env, "ask", "question")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		t.Errorf("got %q, %v, %s, want an answer and exit code 0", out, err, &stderr)
	}
	if strings.Count(stderr.String(), "✓") != 2 {
		t.Errorf("got stderr %s, want two calls", &stderr)
	}
}

func TestAskReportsWhatIsWrong(t *testing.T) {
	url := startDemo(t)
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no question":    {[]string{"ask", "-url", url}, 2, "usage: answerd ask"},
		"unknown flag":   {[]string{"chat", "-json"}, 2, "usage: answerd chat"},
		"no server":      {[]string{"ask", "-url", "http://127.0.0.1:1", "hi"}, 1, "ask answerd at http://127.0.0.1:1"},
		"no scheme":      {[]string{"ask", "-url", "127.0.0.1:8080", "hi"}, 2, "-url must be an http or https URL"},
		"eval no scheme": {[]string{"eval", "-url", "localhost:8080", "suite.yaml"}, 2, "-url must be an http or https URL"},
		"help after --":  {[]string{"ask", "-url", "http://127.0.0.1:1", "--", "what", "does", "-h", "do?"}, 1, "ask answerd at http://127.0.0.1:1"},
		"no token file":  {[]string{"ask", "-url", url, "-token-file", "/nonexistent", "hi"}, 1, "read -token-file"},
		"question wrong": {[]string{"ask", "-url", url, "-thread", strings.Repeat("x", 300), "hi"}, 1, "/thread_id"},
	} {
		cmd := newAskCommand(t.Context(), []string{"ADDR=127.0.0.1:1"}, c.args...)
		out, _ := cmd.CombinedOutput() // the exit code is checked
		if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: got exit code %d, %s, want %d and %q", name, got, out, c.code, c.want)
		}
	}
}

// A long question is refused and not cut: a server with a large MAX_BODY_BYTES would answer the rest.
// The rules are about callers who send a token, and a process of its own asks for none.
func TestAskInItsOwnProcessNeedsNoRule(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	rules := writeCodeFile(t, t.TempDir(), "rules.json", `{"rules": [{"subjects": ["ann"]}]}`)
	var stdout bytes.Buffer
	err := run(t.Context(), []string{"ask", "question"}, w.environment(w.withInboundAuth("ADDR", "127.0.0.1:1", "AUTH_RULES_FILE", rules)...), &stdout, io.Discard)
	if err != nil || stdout.Len() == 0 {
		t.Errorf("got %q, %v, want an answer", &stdout, err)
	}
}

// A process of its own with a durable log takes over the runs that the service has left there. Their callers have tokens,
// so the rules must apply to them.
func TestAskInItsOwnProcessAppliesTheRulesToRunsOfOthers(t *testing.T) {
	t.Parallel()
	asked, result := make(chan struct{}), make(chan string, 1)
	w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
		if last := r.Messages[len(r.Messages)-1]; last.Role == "tool" {
			result <- last.Content
			return llmtest.Says("Done.")
		}
		select {
		case <-asked: // the second process asks
			return llmtest.Calls(llmtest.Call{Name: "calculate", Args: `{"expression":"1+1"}`})
		default:
			close(asked)
			return newWaitingScript(nil)(r)
		}
	})
	rules := writeCodeFile(t, t.TempDir(), "rules.json", `{"rules": [{"tools": ["convert"]}]}`)
	settings := w.environment(w.withInboundAuth("EVENTS_URL", "file:"+t.TempDir(), "AUTH_RULES_FILE", rules, "DRAIN_TIMEOUT", "0s")...)
	s := startAnswerd(t, settings)
	resp := post(t, newClient(t), s.url+"/answer", `{"question":"?","background":true}`, "Authorization", w.callerToken(t))
	if resp.StatusCode != http.StatusAccepted {
		t.Fatalf("got %s, want 202", resp.Status)
	}
	<-asked
	s.stop()
	if err := <-s.done; err != nil {
		t.Fatal(err)
	}

	settings["ADDR"] = "127.0.0.1:1"
	_, stop, err := startLocalService(t.Context(), settings, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if got := <-result; !strings.Contains(got, "may not use this tool") {
		t.Errorf("got the result %s of a call that the rules forbid, want a refusal", got)
	}
}

// A process of its own that cannot start is reported as serve reports it: on one line.
func TestAskReportsAFailedStartOnOneLine(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	err := run(t.Context(), []string{"ask", "hi"}, w.environment("ADDR", "127.0.0.1:1", "MCP_CONFIG_PATH", "/nonexistent"), io.Discard, io.Discard)
	var line bytes.Buffer
	want := "answerd: MCP_CONFIG_PATH: cannot be read: no such file or directory (see docs/mcp-servers.md)\n"
	if code := reportError(err, &line); code != 2 || line.String() != want {
		t.Errorf("got exit code %d, %q, want 2, %q", code, &line, want)
	}
}

func TestAskRefusesAQuestionThatIsTooLong(t *testing.T) {
	t.Parallel()
	cmd := newAskCommand(t.Context(), nil, "ask", "-url", "http://127.0.0.1:1")
	cmd.Stdin = strings.NewReader(strings.Repeat("x", maxQuestion+1))
	out, _ := cmd.CombinedOutput() // the exit code is checked
	if got := cmd.ProcessState.ExitCode(); got != 2 || !strings.Contains(string(out), "longer than") {
		t.Errorf("got exit code %d, %s, want 2 and that it is too long", got, out)
	}
}

// Platforms set PORT instead of ADDR.
func TestAskFindsTheServiceAtPort(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String())
	free.Close()
	spawnAnswerd(t, []string{"PORT=" + port}, "demo").waitForLine(t, "curl -N")
	cmd := newAskCommand(t.Context(), []string{"PORT=" + port}, "ask", demoQuestion)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "= 100") {
		t.Errorf("got %v, %s, %s, want the answer of the demo", err, out, &stderr)
	}
}

// Ctrl-C ends the command with 130, and the run with it.
func TestAskCancelsItsRunWhenInterrupted(t *testing.T) {
	url := startDemo(t)
	p := spawnCommand(t, exec.Command(os.Args[0], "ask", "-url", url, "Write a slow report about tea in 10 steps of 2000 ms"), nil)

	client := newClient(t)
	latestRun := func() (id, status string) {
		resp, err := client.Get(url + "/runs?limit=1")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var list struct {
			Runs []struct {
				RunID  string `json:"run_id"`
				Status string `json:"status"`
			} `json:"runs"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list.Runs) == 0 {
			return "", ""
		}
		return list.Runs[0].RunID, list.Runs[0].Status
	}

	for _, status := latestRun(); status != "running"; _, status = latestRun() {
		if t.Context().Err() != nil {
			t.Fatal("got no running run, want one")
		}
	}

	p.signal(t, syscall.SIGINT)
	_ = p.wait() // the exit code is checked
	if code := p.cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("got exit code %d, %s, want 130", code, p.log)
	}

	id, status := latestRun()
	for ; status == "running" && t.Context().Err() == nil; id, status = latestRun() {
		// The command has asked for it. The run's terminal event follows within moments.
	}
	if status != "cancelled" {
		t.Errorf("got run %s with status %s, want cancelled", id, status)
	}
}

// askSession asks one question in a session whose person types the given lines.
func askSession(t *testing.T, url, question string, lines ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	s := terminal.New(terminal.Options{
		URL: url, In: strings.NewReader(strings.Join(lines, "\n")), Out: &out, Err: &errs, Interactive: true,
	})
	defer s.Close()
	err = s.Ask(t.Context(), question)
	return out.String(), errs.String(), err
}

func TestAskAsksThePersonAboutCallsAndForms(t *testing.T) {
	t.Parallel()
	url := startDemo(t)
	for name, c := range map[string]struct {
		question string
		lines    []string
		want     string
	}{
		"approved":          {"delete note 1", []string{"maybe", "y"}, "Note 1,"},
		"refused":           {"delete note 2", []string{"n", "still needed"}, "still needed"},
		"other arguments":   {"delete note 2", []string{"e", "no object", "e", `{"id": 3}`}, "Note 3,"},
		"end of input":      {"delete note 2", nil, "the input ended"},
		"form":              {"Book a table", []string{"y", "", "Ada", "many", "4", "terrace", "", "not an address", "", "y", "Ada", "4", "terrace", "", "", "yes"}, "A table for 4 is booked in the name of Ada."},
		"form declined":     {"Book a table", []string{"n"}, "decline"},
		"address to open":   {"Connect my calendar", []string{"n"}, "did not want to"},
		"form without user": {"Book a table", nil, "decline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, err := askSession(t, url, c.question, c.lines...)
			if err != nil || !strings.Contains(out, c.want) {
				t.Errorf("got answer %q, %v, and\n%s\nwant %q", out, err, errs, c.want)
			}
		})
	}
}

// A proxy cuts the first stream after a few events.
func TestAskResumesAStreamThatWasCut(t *testing.T) {
	t.Parallel()
	target, err := neturl.Parse(startDemo(t))
	if err != nil {
		t.Fatal(err)
	}
	var requests atomic.Int32
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }

	proxy.ModifyResponse = func(resp *http.Response) error {
		if requests.Add(1) == 1 {
			resp.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(resp.Body, 1500), &failingReader{}), resp.Body}
			resp.Header.Del("Content-Length")
		}
		return nil
	}
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	server := httptest.NewServer(proxy)
	defer server.Close()
	out, errs, err := askSession(t, server.URL, demoQuestion)
	if err != nil || strings.Count(out, "12.5 * 8 = 100") != 1 || strings.Count(errs, "✓") != 2 {
		t.Errorf("got %q, %v, and %s, want the answer once and both calls once", out, err, errs)
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("got %d requests, want 2", n)
	}
}

// failingReader fails like a connection that was lost.
type failingReader struct{}

func (*failingReader) Read([]byte) (int, error) { return 0, errors.New("cut by the test") }

// A conversation is a thread of the server, which another command can continue.
func TestChatContinuesTheConversation(t *testing.T) {
	t.Parallel()
	url := startDemo(t)
	cmd := newAskCommand(t.Context(), nil, "chat", "-url", url, "-thread", "thr_chat")
	cmd.Stdin = strings.NewReader("What is 12.5 * 8?\n\nAnd times two?\n/quit\nWhat is 1 + 1?\n")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "= 100") || !strings.Contains(string(out), "= 200") || strings.Contains(string(out), "1 + 1") {
		t.Errorf("got %s, %v, want the answers of the questions before /quit", out, err)
	}
	out, err = newAskCommand(t.Context(), nil, "ask", "-url", url, "-thread", "thr_chat", "What did I ask before?").Output()
	if err != nil || !strings.Contains(string(out), "- What is 12.5 * 8?") {
		t.Errorf("got %s, %v, want the first question of the conversation", out, err)
	}
}

func TestTokenFileIsReadForEachRequest(t *testing.T) {
	path := writeCodeFile(t, t.TempDir(), "token", "first\n")
	read := tokenReader(path)
	if got, err := read(); got != "first" || err != nil {
		t.Errorf("got %q, %v, want first", got, err)
	}
	if err := os.WriteFile(path, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := read(); got != "second" || err != nil {
		t.Errorf("got %q, %v, want second", got, err)
	}
	if tokenReader("") != nil {
		t.Error("got a token without a file, want none")
	}
}

func TestColorsAreSwitchedOffByTheEnvironment(t *testing.T) {
	for _, c := range []struct {
		environ environment
		want    bool
	}{{newTestEnvironment(), true}, {newTestEnvironment("NO_COLOR", "1"), false}, {newTestEnvironment("NO_COLOR", ""), true}, {newTestEnvironment("TERM", "dumb"), false}, {newTestEnvironment("TERM", "xterm-256color"), true}} {
		if got := c.environ.wantsColors(); got != c.want {
			t.Errorf("%v: got %t, want %t", c.environ, got, c.want)
		}
	}
}
