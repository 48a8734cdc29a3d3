package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"answerd/internal/eval"
	"answerd/internal/llm/llmtest"
)

// evaluate runs `answerd eval` in this process and returns what it printed, its report and its exit code.
func evaluate(t *testing.T, environ environment, suite string, args ...string) (stdout string, report eval.Report, code int) {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "report.json")
	var printed, stderr bytes.Buffer
	err := run(t.Context(), append([]string{"eval", writeCodeFile(t, dir, "suite.yaml", suite), "-out", out}, args...), environ, &printed, &stderr)
	code = reportError(err, &stderr)
	if data, _ := os.ReadFile(out); len(data) > 0 { // a bad suite has no report
		if err := json.Unmarshal(data, &report); err != nil {
			t.Fatal(err)
		}
	}
	return printed.String() + stderr.String(), report, code
}

// TestEvalDemoSuitePasses runs the command of docs/tasks/evaluation-in-ci.md against the demo, with its suite.
func TestEvalDemoSuitePasses(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/tasks/evaluation-in-ci.md")
	if err != nil {
		t.Fatal(err)
	}

	blocks := map[string]string{} // the first of each language
	for _, m := range settingsBlock.FindAllStringSubmatch(string(page), -1) {
		blocks[m[1]] = cmp.Or(blocks[m[1]], m[2])
	}

	if suite, err := eval.Parse([]byte(blocks["yaml"]), eval.FileOptions{}); err != nil || len(suite.Cases) != 2 {
		t.Errorf("got %v, %d cases, want the suite of the page with two cases", err, len(suite.Cases))
	}
	command := strings.NewReplacer("http://127.0.0.1:8080", startDemo(t), "docs/tasks/", "../../docs/tasks/").Replace(blocks["sh"])
	words := strings.Fields(command)
	if len(words) != 5 || words[0] != "answerd" {
		t.Fatalf("got the command %q, want answerd eval with a suite and -url", command)
	}
	junit := filepath.Join(t.TempDir(), "report.xml")
	cmd := newAskCommand(t.Context(), nil, append(words[1:], "-junit="+junit)...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "5 of 5 cases passed") || !strings.Contains(string(out), "declined: the call of delete_note") {
		t.Errorf("got %v\n%s\nwant exit code 0, 5 cases that passed, and a declined call", err, out)
	}
	data, err := os.ReadFile(junit)
	var report struct {
		Tests int `xml:"tests,attr"`
	}
	if err := errors.Join(err, xml.Unmarshal(data, &report)); err != nil || report.Tests != 5 {
		t.Errorf("got %v, %d tests in\n%s\nwant a report of 5 tests", err, report.Tests, data)
	}
}

// answersByQuestion returns a script whose answer depends on the last message of the user: that of the first
// key, in alphabetical order, which is in the message.
func answersByQuestion(answers map[string]llmtest.Answer) llmtest.Script {
	return func(r llmtest.Request) llmtest.Answer {
		for i := len(r.Messages) - 1; i >= 0; i-- {
			if m := r.Messages[i]; m.Role == "user" {
				for _, part := range slices.Sorted(maps.Keys(answers)) {
					if strings.Contains(m.Content, part) {
						return answers[part]
					}
				}
			}
		}
		return llmtest.Says("I do not know.")
	}
}

func TestEvalExitsWithOneBelowThePassRate(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, answersByQuestion(map[string]llmtest.Answer{"capital": llmtest.Says("Paris."), "broken": llmtest.Fails(400, "no")}))

	// The event log of the service is not used: it would fail here.
	log := writeCodeFile(t, t.TempDir(), "events", "nats://127.0.0.1:1")
	out, report, code := evaluate(t, w.environment("EVENTS_URL_FILE", log, "EVENTS_CREDENTIALS_FILE", "/nonexistent", "TOKENS_KEY_FILE", "/nonexistent"), `
cases:
  - {name: right, question: The capital of France, runs: 2, expect: {contains: Paris}}
  - {name: wrong, question: The capital of France, runs: 2, pass: 0.5, expect: {contains: Lyon}}
  - {name: broken, question: broken, expect: {contains: Paris}}
`)
	if code != 1 || report.Passed || report.PassedCases != 1 || len(report.Cases) != 3 {
		t.Fatalf("got exit code %d, %+v, want 1 and one of three cases that passed:\n%s", code, report, out)
	}
	if wrong := report.Cases[1]; wrong.PassedRuns != 0 || wrong.Results[0].Failures[0].Expect != "contains" || wrong.Results[0].RunID == "" {
		t.Errorf("got %+v, want two runs whose answer does not contain Lyon", wrong)
	}
	if broken := report.Cases[2]; broken.Results[0].Failures[0].Expect != "run" || broken.Results[0].RunID == "" || !strings.Contains(out, "(model_error)") {
		t.Errorf("got %+v, want a run with an id that failed with model_error:\n%s", broken, out)
	}
}

// A report may go to a pipe, as with -out /dev/stdout, which cannot be synced.
func TestEvalWritesItsReportToAPipe(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	environ := newTestWorld(t, newTwoCallScript()).environment("ADDR", "127.0.0.1:1")
	out, _, code := evaluate(t, environ, "cases: [{name: a, question: Q, expect: {contains: km}}]", "-out", fmt.Sprintf("/dev/fd/%d", w.Fd()))
	w.Close() // ends the report for the reader
	if code != 0 {
		t.Errorf("got exit code %d and %s, want 0", code, out)
	}
	var report eval.Report
	if err := json.NewDecoder(r).Decode(&report); err != nil || !report.Passed {
		t.Errorf("got %v and the report %+v from the pipe, want one that has passed", err, report)
	}
}

// A run that takes longer than max_seconds is cancelled, so its suite does not wait for it.
func TestEvalCancelsARunAtItsLimit(t *testing.T) {
	t.Parallel()
	cancelled := make(chan struct{})
	w := newTestWorld(t, func(llmtest.Request) llmtest.Answer {
		return func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			close(cancelled)
		}
	})
	_, report, code := evaluate(t, w.environment("LLM_MAX_RETRIES", "0"), `
cases: [{name: slow, question: Hi, expect: {contains: a, max_seconds: 0.2}}]
`)
	if code != 1 || len(report.Cases) != 1 || report.Cases[0].Results[0].Failures[0].Expect != "max_seconds" {
		t.Fatalf("got exit code %d, %+v, want 1 and a run that was too long", code, report)
	}
	<-cancelled
}

func TestEvalRefusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, llmtest.Turns(llmtest.Says("never asked")))
	good := "cases: [{name: one, question: Hi, expect: {contains: a}}]"
	for name, c := range map[string]struct {
		suite string
		args  []string
		code  int
		want  string
	}{
		"unknown member": {"cases:\n  - name: one\n    question: Hi\n    expected: {}\n    expect: {contains: a}\n", nil, 2, "case one, line 4: expected"},
		"unknown agent":  {"cases: [{name: one, question: Hi, agent: nobody, expect: {contains: a}}]", nil, 2, "case one, line 1: "},
		"no server":      {good, []string{"-url", "http://127.0.0.1:1"}, 1, "ask answerd at http://127.0.0.1:1"},
		"no other file":  {good, []string{"-against", "/nonexistent.env"}, 2, "-against cannot be read"},
		"bad other file": {good, []string{"-against", writeCodeFile(t, t.TempDir(), "other.env", "# settings\nMAX_TURNS 5\n")}, 2, "line 2 of that file"},
		"bad settings":   {good, []string{"-against", writeCodeFile(t, t.TempDir(), "other.env", "MAX_TURNS=none\n")}, 2, "MAX_TURNS"},
		"no directory":   {good, []string{"-junit", "/nonexistent/report.xml"}, 2, "-junit cannot be written"},
		"parallel":       {good, []string{"-parallel", "0"}, 2, "usage: answerd eval"},
		"two suites":     {good, []string{"more.yaml"}, 2, "usage: answerd eval"},
	} {
		if out, _, code := evaluate(t, w.environment(), c.suite, c.args...); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%s: got exit code %d, %s, want %d and %q", name, code, out, c.code, c.want)
		}
	}
}

func TestEvalJudgesAnswersByARubric(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, answersByQuestion(map[string]llmtest.Answer{
		`"answer":"Good day."`: llmtest.Says(`{"reason": "It greets.", "pass": true}`),
		`"answer":"Go away."`:  llmtest.Says(`{"reason": "It is rude.", "pass": false}`),
		"Be nice":              llmtest.Says("Good day."), "Be rude": llmtest.Says("Go away."),
	}))

	out, report, code := evaluate(t, w.environment(), `
judge: {model: judge-model}
cases:
  - {name: nice, question: Be nice, expect: {judge: The answer is polite.}}
  - {name: rude, question: Be rude, expect: {judge: The answer is polite.}}
  - {name: not judged, question: Be rude, expect: {contains: Hello, judge: The answer is polite.}}
`, "-parallel", "1")
	if code != 1 || len(report.Cases) != 3 || !strings.Contains(out, "judge: It is rude.") {
		t.Fatalf("got exit code %d, %s, want 1, three cases and the reason", code, out)
	}
	if v := report.Cases[0].Results[0].Judge; v == nil || !v.Pass || v.Reason != "It greets." || v.RunID == "" {
		t.Errorf("got the verdict %+v, want the judge's", v)
	}
	if v := report.Cases[2].Results[0].Judge; v != nil {
		t.Errorf("got the verdict %+v, want none, because the answer does not contain Hello", v)
	}

	judged := 0
	for _, r := range w.model.Requests() {
		if r.Model == "judge-model" {
			judged++
			if len(r.Tools) > 0 || !strings.Contains(r.Messages[0].Content, "You judge the answer") {
				t.Errorf("got %d tools and the prompt %q, want none and the instructions of a judge", len(r.Tools), r.Messages[0].Content)
			}
		}
	}
	if judged != 2 {
		t.Errorf("the judge's model was asked %d times, want 2", judged)
	}
}

func TestEvalComparesTwoConfigurations(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
		if good := strings.Contains(r.Messages[len(r.Messages)-1].Content, "first"); good == (r.Model == "scripted") {
			return llmtest.Says("yes")
		}
		return llmtest.Says("no")
	})

	other := writeCodeFile(t, t.TempDir(), "other.env", "# another model\nexport DEFAULT_MODEL_ID='other'\nLLM_API_KEY=key\n")
	// The key of the file replaces the one that is read from another file.
	environ := w.environment("LLM_API_KEY", "", "LLM_API_KEY_FILE", writeCodeFile(t, t.TempDir(), "key", "canary-api-key"))
	out, report, code := evaluate(t, environ, `
runs: 10
cases:
  - {name: better, question: first, expect: {contains: "yes"}}
  - {name: worse, question: second, runs: 1, expect: {contains: "yes"}}
`, "-against", other, "-parallel", "10")
	if code != 1 || report.Against == nil || len(report.Comparison) != 2 {
		t.Fatalf("got exit code %d, %+v, want 1 and a comparison:\n%s", code, report, out)
	}

	for _, r := range w.model.Requests() {
		if got, want := r.Header.Get("Authorization"), map[string]string{"scripted": "Bearer canary-api-key", "other": "Bearer key"}[r.Model]; got != want {
			t.Errorf("%s was asked with %q, want %q", r.Model, got, want)
		}
	}

	if c := report.Comparison[0]; c.Change != "improved" || !c.Significant || c.Difference != 1 || c.Interval[0] <= 0 {
		t.Errorf("got %+v, want the case improved, and not by chance", c)
	}
	if c := report.Comparison[1]; c.Change != "regressed" || c.Significant || c.Difference != -1 {
		t.Errorf("got %+v, want the case regressed, which may be chance after one run", c)
	}
	if !strings.Contains(out, "regressed worse: 1.00 → 0.00") || report.Against.Configuration != other {
		t.Errorf("got configuration %q and\n%s\nwant %s and the regression", report.Against.Configuration, out, other)
	}
}

// The settings of the other configuration are checked before a question is asked, which may cost. If it fails later, the
// report has what was asked until then.
func TestEvalKeepsItsReportIfTheOtherConfigurationFails(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, llmtest.Turns(llmtest.Says("yes")))
	dir := t.TempDir()
	agents := func(id string) string { // AGENTS_FILE with one agent
		return "AGENTS_FILE=" + writeCodeFile(t, dir, id+".yaml", "agents: [{id: "+id+", description: Answers.}]")
	}
	environ := w.environment(strings.Split(agents("here"), "=")...)
	suite := `cases: [{name: one, question: Hi, agent: here, expect: {contains: "yes"}}]`
	for _, c := range []struct{ settings, want string }{
		{"MAX_TURNS=0", "MAX_TURNS: must be at least 1"},
		{"MCP_CONFIG_PATH=/nonexistent", "MCP_CONFIG_PATH: cannot be read"},
		{"MCP_CONFIG_PATH=" + writeCodeFile(t, dir, "mcp.json", `{"mcpServers": {"a": {}}}`), "MCP_CONFIG_PATH: mcp.json"},
		{"SYSTEM_PROMPT_FILE=/nonexistent", "SYSTEM_PROMPT_FILE: cannot be read"},
	} {
		out, _, code := evaluate(t, environ, suite, "-against", writeCodeFile(t, dir, "other.env", c.settings+"\n"))
		if asked := len(w.model.Requests()); code != 2 || asked != 0 || !strings.Contains(out, "other.env: "+c.want) {
			t.Fatalf("%s: got exit code %d after %d requests, want 2 after none:\n%s", c.settings, code, asked, out)
		}
	}

	out, report, code := evaluate(t, environ, suite, "-against", writeCodeFile(t, dir, "other.env", agents("there")+"\n"))
	if code != 2 || !report.Passed || report.Runs != 1 || report.Against != nil || !strings.Contains(out, "1 of 1 cases passed") {
		t.Errorf("another agent: got exit code %d, %+v, want 2 and the report of one run:\n%s", code, report, out)
	}
}

// Ctrl-C ends the command with 130. It prints and writes what is done, and cancels the other run.
func TestEvalPrintsWhatIsDoneWhenInterrupted(t *testing.T) {
	t.Parallel()
	url := startDemo(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "report.json")

	suite := writeCodeFile(t, dir, "suite.yaml", `
cases:
  - {name: quick, question: What is 12.5 * 8, expect: {contains: "100"}}
  - {name: slow, question: Write a slow report about tea in 10 steps of 2000 ms, expect: {contains: tea}}
`)
	p := spawnCommand(t, exec.Command(os.Args[0], "eval", suite, "-url", url, "-out", out, "-parallel", "1"), nil)
	p.waitForLine(t, "quick")
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.waitForLine(t, "interrupted: 1 of 1 cases passed")
	if err := p.wait(); p.cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("got %v, want exit code 130", err)
	}
	data, err := os.ReadFile(out)
	var report eval.Report
	if err := errors.Join(err, json.Unmarshal(data, &report)); err != nil || !report.Interrupted || report.Passed || len(report.Cases) != 1 {
		t.Errorf("got %+v, %v, want a report of one case that is interrupted", report, err)
	}
}

// The exit code of a run that is interrupted before its first answer is the same.
func TestEvalIsInterruptedBeforeItsFirstAnswer(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, llmtest.Turns(llmtest.Says("never asked")))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	suite := writeCodeFile(t, t.TempDir(), "suite.yaml", "cases: [{name: one, question: Hi, expect: {contains: a}}]")
	var out bytes.Buffer
	if err := run(ctx, []string{"eval", suite}, w.environment(), &out, &out); reportError(err, &out) != 130 {
		t.Errorf("got %v, want exit code 130:\n%s", err, &out)
	}
}
