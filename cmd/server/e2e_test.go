package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"answerd/internal/api/native"
	"answerd/internal/llm/llmtest"
	"answerd/internal/sse"
)

const e2eQuestion = `{"question":"What is 12.5 * 8, and how far are 10 miles?","history":[{"role":"user","content":"Hi."},{"role":"assistant","content":"Hello."}],"thread_id":"thr_e2e"}`

// newTwoCallScript returns a model that calls two tools at once and then answers in three words.
func newTwoCallScript() llmtest.Script {
	return llmtest.Turns(
		llmtest.Calls(
			llmtest.Call{Name: "calculate", Args: `{"expression":"12.5 * 8"}`},
			llmtest.Call{Name: "convert", Args: `{"value":10,"from":"mi","to":"km"}`},
		),
		llmtest.Says("100 ", "and ", "16 km."),
	)
}

type wholeAnswer struct {
	Answer   string          `json:"answer"`
	Metadata json.RawMessage `json:"metadata"`
	RunID    string          `json:"run_id"`
	TraceID  string          `json:"trace_id"`
}

func postQuestion(t *testing.T, c *http.Client, url, body string, header ...string) wholeAnswer {
	t.Helper()
	resp := post(t, c, url+"/answer", body, header...)
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v, want status 200, no error", resp.Status, b, err)
	}
	var a wholeAnswer
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

func readStream(t *testing.T, resp *http.Response) []sse.Frame {
	t.Helper()
	var out []sse.Frame
	for r := sse.NewReader(resp.Body, 1<<20); ; {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Data = append([]byte(nil), f.Data...)
		out = append(out, f)
	}
}

// volatileParts matches what differs from run to run, and has its replacement.
var volatileParts = []struct{ pattern, with string }{
	{`run_[a-z0-9]{26}`, "run_X"},
	{`"ts":\d+`, `"ts":0`},
	{`"trace_id":"[0-9a-f]{32}"`, `"trace_id":"X"`},
	{`"duration_ms":\d+`, `"duration_ms":0`},
}

// The whole job, as it stands on the wire: S2.1, S2.2, S2.5, S2.8, S0.7, S1.9.
func TestAnswerdAnswersWithToolsOverEveryPart(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	s := startAnswerd(t, w.environment())
	c := newClient(t)
	frames := readStream(t, post(t, c, s.url+"/answer/stream", e2eQuestion))

	var wire strings.Builder
	sorted := make([]string, 0, 2)
	for _, f := range frames {
		line := string(sse.Frame{ID: f.ID, Event: f.Event, Data: f.Data}.AppendTo(nil))
		for _, v := range volatileParts {
			line = regexp.MustCompile(v.pattern).ReplaceAllString(line, v.with)
		}
		if f.Event == "tool_result" { // parallel calls end in any order
			if sorted = append(sorted, line); len(sorted) < 2 {
				continue
			}
			if strings.Contains(sorted[0], `"convert"`) {
				sorted[0], sorted[1] = sorted[1], sorted[0]
			}
			line = renumber(sorted[0], 10) + renumber(sorted[1], 11)
		}
		wire.WriteString(line)
	}
	requireGolden(t, "testdata/answer_stream.golden", wire.String())

	whole := postQuestion(t, c, s.url, e2eQuestion)
	var end wholeAnswer
	if err := json.Unmarshal(frames[len(frames)-1].Data, &end); err != nil {
		t.Fatal(err)
	}
	if end.Answer != whole.Answer || string(end.Metadata) != string(whole.Metadata) {
		t.Errorf("the stream says  %s %s\nthe answer says %s %s, want %s and %s", end.Answer, end.Metadata, whole.Answer, whole.Metadata, whole.Answer, string(whole.Metadata))
	}
	checkMessages(t, w.model.Requests())
	if got := strings.Count(w.lines.String(), `"msg":"tool executed"`); got != 4 || !strings.Contains(w.lines.String(), `"subject":"`+demoClient+`"`) {
		t.Errorf("the MCP server saw %d calls:\n%s, want got 4, lines containing %s", got, w.lines, `"subject":"`+demoClient+`"`)
	}
	for _, secret := range []string{"eyJ", "canary"} {
		if strings.Contains(s.log.String()+wire.String(), secret) {
			t.Errorf("log %s\nstream %s\nwant both without %q", s.log.String(), wire.String(), secret)
		}
	}
}

// renumber gives a frame its number in the order of the golden file.
func renumber(frame string, seq int) string {
	frame = regexp.MustCompile(`id: run_X:\d+`).ReplaceAllString(frame, fmt.Sprintf("id: run_X:%d", seq))
	return regexp.MustCompile(`"seq":\d+`).ReplaceAllString(frame, fmt.Sprintf(`"seq":%d`, seq))
}

func checkMessages(t *testing.T, requests []llmtest.Request) {
	t.Helper()
	var roles []string
	second := requests[1]
	for _, m := range second.Messages {
		roles = append(roles, m.Role)
	}
	if got, want := strings.Join(roles, " "), "system user assistant user assistant tool tool"; got != want {
		t.Errorf("the model's second request has %s, want %s", got, want)
	}
	if m := second.Messages; !strings.Contains(m[0].Content, "Today") && !strings.Contains(m[0].Content, "today") || m[5].ToolCallID != "call_1" || !strings.Contains(m[5].Content, "100") {
		t.Errorf("messages %+v, want the date first and the result 100 of call_1 last", second.Messages)
	}
	if second.Header.Get("Authorization") != "Bearer canary-api-key" || second.Model != "scripted" || len(second.Tools) < 7 {
		t.Errorf(`model %s with %d tools, Authorization %q, want Authorization "Bearer canary-api-key", Model scripted, Tools at least 7`, second.Model, len(second.Tools), second.Header.Get("Authorization"))
	}
}

// S3.1, S2.2: however many ask at once.
func TestHundredQuestionsShareOneTokenAndOneSession(t *testing.T) {
	w := newTestWorld(t, newTwoCallScript())
	s := startAnswerd(t, w.environment())
	c := newClient(t)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if a := postQuestion(t, c, s.url, e2eQuestion); a.Answer != "100 and 16 km." {
				t.Errorf(`answer %q, want "100 and 16 km."`, a.Answer)
			}
		})
	}

	wg.Wait()
	if n := w.tokens.Load(); n != 1 {
		t.Errorf("%d tokens were fetched, want 1", n)
	}
	if n := strings.Count(w.lines.String(), `"msg":"session opened"`); n != 1 {
		t.Errorf("%d sessions were made, want 1", n)
	}
	if n := strings.Count(w.lines.String(), `"msg":"tool executed"`); n != 200 {
		t.Errorf("%d tool calls, want 200", n)
	}
}

// S4.2, F12: a server that is down is reported, and keeps nothing from working.
func TestServerThatIsDownDoesNotStopTheService(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, llmtest.Turns(llmtest.Says("Without tools.")))
	s := startAnswerd(t, w.environment("MCP_URL", closedAddress(t)))
	c := newClient(t)
	if a := postQuestion(t, c, s.url, `{"question":"?"}`); a.Answer != "Without tools." {
		t.Errorf(`answer %q, want "Without tools."`, a.Answer)
	}
	status, body := getBody(t, c, s.url+"/readyz")
	if status != http.StatusOK || !strings.Contains(body, `"state":"failed"`) || !strings.Contains(body, `"reason":"`) {
		t.Errorf(`status %d %s, want status 200, body containing "state":"failed", body containing "reason":"`, status, body)
	}
}

// closedAddress returns a URL at which no server listens until the end of the test: its port is that of the client's
// end of a connection.
func closedAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return "http://" + client.LocalAddr().String() + "/mcp"
}

func TestServeFailsOnAPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := newTestWorld(t, newTwoCallScript())
	err = run(t.Context(), nil, w.environment("ADDR", l.Addr().String()), io.Discard, io.Discard)
	if !errors.Is(err, syscall.EADDRINUSE) || reportError(err, io.Discard) != 1 {
		t.Errorf("error %v, want EADDRINUSE and exit code 1", err)
	}
}

func TestCheckPrintsATableAndFailsWithAServer(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	out := &syncBuffer{}
	if err := run(t.Context(), []string{"check"}, w.environment(), out, io.Discard); err != nil {
		t.Errorf("error %v\n%s, want no error", err, out)
	}
	if !regexp.MustCompile(`(?m)^default +http +connected +20\d\d-\d\d-\d\d +\d+`).MatchString(out.String()) || len(w.model.Requests()) != 0 {
		t.Errorf("the table:\n%s\nwant default connected by http, without a model request", out)
	}
	err := run(t.Context(), []string{"check"}, w.environment("MCP_URL", closedAddress(t)), out, io.Discard)
	if err == nil || reportError(err, io.Discard) != 1 {
		t.Errorf("error %v, want exit code 1", err)
	}
	err = run(t.Context(), []string{"check"}, w.environment("IAM_CLIENT_SECRET", "canary-wrong"), out, io.Discard)
	if err == nil || strings.Contains(out.String(), "canary") {
		t.Errorf("error %v\n%s, want an error, String without canary", err, out)
	}
}

func TestVersionPrintsTheProtocolVersions(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		out := &syncBuffer{}
		err := run(t.Context(), []string{arg}, newTestEnvironment(), out, io.Discard)
		for _, want := range []string{"answerd " + version, "commit ", runtime.Version(), "2026-07-28", "2025-11-25"} {
			if err != nil || !strings.Contains(out.String(), want) {
				t.Errorf("answerd %s = %v, %s, want %q", arg, err, out, want)
			}
		}
	}
}

func TestHelpPrintsTheCommands(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"-h"}, {"--help"}, {"check", "-h"}, {"demo", "--help"}} {
		out := &syncBuffer{}
		if err := run(t.Context(), args, newTestEnvironment(), out, io.Discard); err != nil {
			t.Errorf("%v: %v, want no error", args, err)
		}
		for _, want := range []string{"answerd serve ", "answerd demo ", "answerd check ", "answerd version ", "answerd health ", "LLM_BASE_URL", ".env.example"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v prints\n%s\nwant %q", args, out, want)
			}
		}
	}
}

func TestRunNamesTheCommandsForAnUnknownOne(t *testing.T) {
	out := &syncBuffer{}
	code := reportError(run(t.Context(), []string{"sevre"}, newTestEnvironment(), io.Discard, io.Discard), out)
	if want := "answerd: \"sevre\" is not a command; the commands are serve, demo, ask, chat, eval, check,"; code != 2 || !strings.HasPrefix(out.String(), want) || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("exit code %d, %q, want 2 and one line that begins with %q", code, out, want)
	}
}

func TestRunRefusesUnknownCommandsAndArguments(t *testing.T) {
	for _, args := range [][]string{{"sevre"}, {"serve", "now"}, {"demo", "-only", "db"}, {"demo", "-only", "mcp"}, {"demo", "-x"}} {
		err := run(t.Context(), args, newTestEnvironment(), io.Discard, io.Discard)
		if reportError(err, io.Discard) != 2 {
			t.Errorf("%v: %v, want exit code 2", args, err)
		}
	}
}

// The demo as a newcomer meets it, from its printed line to the answer.
func TestDemoAnswersItsOwnQuestion(t *testing.T) {
	t.Parallel()
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0"}, "demo")
	url := p.demoURL(t)
	frames := readStream(t, post(t, newClient(t), url+"/answer/stream", `{"question":"`+demoQuestion+`"}`))

	var end struct {
		Answer   string
		Metadata struct {
			ToolNames []string `json:"tool_names"`
		}
	}
	if err := json.Unmarshal(frames[len(frames)-1].Data, &end); err != nil {
		t.Fatal(err)
	}
	if len(end.Metadata.ToolNames) != 2 || !strings.Contains(end.Answer, "100") || !strings.Contains(end.Answer, "stand-in") {
		t.Errorf("end %+v, want 2 Metadata.ToolNames, Answer containing 100, Answer containing stand-in", end)
	}
	p.signal(t, syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Errorf("error %v\n%s, want no error", err, p.log)
	}
}

// The test is not parallel to other tests, whose demos would use the port of the MCP server.
func TestDemoKeepsAnApprovalOverARestart(t *testing.T) {
	skipUnlessDurable(t)
	environ, c := []string{"ADDR=127.0.0.1:0", "EVENTS_URL=file:" + t.TempDir()}, newClient(t)

	first := spawnAnswerd(t, environ, "demo")
	firstServer := first.waitForLine(t, "MCP server")
	resp := post(t, c, first.demoURL(t)+"/answer", `{"question":"Delete note 1"}`)
	var waits native.Status
	if err := json.NewDecoder(resp.Body).Decode(&waits); err != nil || len(waits.Interrupts) != 1 {
		t.Fatalf("got %s, %+v, %v, want one interrupt", resp.Status, waits, err)
	}
	first.signal(t, os.Kill)
	_ = first.wait() // killed

	second := spawnAnswerd(t, environ, "demo")
	if got := second.waitForLine(t, "MCP server"); got != firstServer {
		t.Fatalf("after the restart: %s, want %s; another process seems to use the port", got, firstServer)
	}
	run := second.demoURL(t) + "/runs/" + waits.RunID
	post(t, c, run+"/input", fmt.Sprintf(`{"id":%q,"approved":true}`, waits.Interrupts[0].ID))
	frames := readStream(t, get(t, c, run+"/events"))
	if got, want := string(frames[len(frames)-1].Data), "is deleted."; !strings.Contains(got, want) {
		t.Errorf("ended with %s, want %s", got, want)
	}
}

// A browser cannot open http://[::]:8080, and zsh takes the brackets for a pattern.
func TestDemoAtAllAddressesPrintsOneThatCanBeOpened(t *testing.T) {
	t.Parallel()
	p := spawnAnswerd(t, []string{"ADDR=:0", "AUTH_INSECURE_ALLOW_ANONYMOUS=true"}, "demo")
	if line := p.waitForLine(t, "curl -N"); !strings.Contains(line, "http://localhost:") {
		t.Errorf("got %s, want http://localhost", line)
	}
}

// The first model in MODELS_FILE is the default, also if it is not the stand-in.
func TestDemoAsksTheModelsOfTheFile(t *testing.T) {
	t.Parallel()
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("A model of the file answers.")))
	path := modelsFile(t, fmt.Sprintf(`[{"id": "own", "base_url": %q}]`, model.URL))
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0", "MODELS_FILE=" + path}, "demo")
	url := p.demoURL(t)
	frames := readStream(t, post(t, newClient(t), url+"/answer/stream", `{"question":"Hello?"}`))
	if got, want := string(frames[len(frames)-1].Data), `"answer":"A model of the file answers."`; !strings.Contains(got, want) {
		t.Errorf("ended with %s, want %s", got, want)
	}
}

// Many people have OPENAI_API_KEY in their environment, and want the demo that needs no key.
func TestDemoWithAKeySaysHowToGetTheStandIn(t *testing.T) {
	err := run(t.Context(), []string{"demo"}, newTestEnvironment("OPENAI_API_KEY", "canary"), io.Discard, io.Discard)
	if reportError(err, io.Discard) != 2 || !strings.Contains(err.Error(), "without OPENAI_API_KEY the demo uses its stand-in") {
		t.Errorf("got %v, want an error that names OPENAI_API_KEY, exit code 2", err)
	}
}

// SIGTERM lets an open stream end in its own time.
func TestSignalStartsTheDrain(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	w := newTestWorld(t, newWaitingScript(release))
	p := spawnAnswerd(t, w.environ())
	resp := post(t, newClient(t), p.url(t)+"/answer/stream", `{"question":"?"}`)
	p.signal(t, syscall.SIGTERM)
	p.waitForLine(t, `"draining"`)
	close(release)
	frames := readStream(t, resp)
	if got := frames[len(frames)-1].Event; got != "final_answer" {
		t.Errorf("the stream ended with %s, want final_answer", got)
	}
	if err := p.wait(); err != nil {
		t.Errorf("error %v\n%s, want no error", err, p.log)
	}
}

// The second signal stops at once, and still every run says how it ended.
func TestSignalDuringTheDrainEndsItAtOnce(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newWaitingScript(nil))
	p := spawnAnswerd(t, w.environ())
	resp := post(t, newClient(t), p.url(t)+"/answer/stream", `{"question":"?"}`)
	p.signal(t, syscall.SIGTERM)
	p.waitForLine(t, `"draining"`)
	p.signal(t, syscall.SIGTERM)
	frames := readStream(t, resp)
	if last := frames[len(frames)-1]; last.Event != "run_error" || !strings.Contains(string(last.Data), "server_shutdown") {
		t.Errorf("the stream ended with %s %s, want Event run_error, Data containing server_shutdown", last.Event, last.Data)
	}
	if err := p.wait(); err != nil {
		t.Errorf("error %v\n%s, want no error", err, p.log)
	}
}

// newWaitingScript returns a model that says one word, and the next one when release is closed.
func newWaitingScript(release <-chan struct{}) llmtest.Script {
	return llmtest.Turns(func(w http.ResponseWriter, r *http.Request) {
		llmtest.Stream(w, "", map[string]any{"content": "Well"})
		select {
		case <-release:
			fmt.Fprint(w, `data: {"choices":[{"delta":{"content":"."},"finish_reason":"stop"}]}`+"\n\n")
		case <-r.Context().Done():
		}
	})
}

// environ returns the settings of the test world for a process of its own.
func (w *testWorld) environ() []string {
	var out []string
	environ := w.environment()
	for _, name := range []string{"ADDR", "LLM_BASE_URL", "DEFAULT_MODEL_ID", "MCP_URL", "ENABLE_JWT_TOKEN", "IAM_BASE_URL", "IAM_CLIENT_ID", "IAM_CLIENT_SECRET"} {
		out = append(out, name+"="+environ[name])
	}
	return out
}
