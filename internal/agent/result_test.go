package agent_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/texttool"
)

var update = flag.Bool("update", false, "write the golden files anew")

// pngOfSize returns size bytes, in base64, that begin as a PNG does.
func pngOfSize(size int) string {
	return base64.StdEncoding.EncodeToString(append([]byte("\x89PNG\r\n\x1a\n"), make([]byte, size-8)...))
}

// resultKinds are results as servers send them, in the order of the golden file.
var resultKinds = []struct{ name, result string }{
	{"text", `{"content":[{"type":"text","text":"a"},{"type":"text","text":"b <é>"}]}`},
	{"empty", `{"content":[]}`},
	{"empty text", `{"content":[{"type":"text","text":""}]}`},
	{"structured, said in the text too", `{"content":[{"type":"text","text":"{ \"n\": 9007199254740993 }"}],"structuredContent":{"n":9007199254740993}}`},
	{"structured, wrapped by the SDK", `{"content":[{"type":"text","text":"5"}],"structuredContent":{"result":5}}`},
	{"structured and a summary", `{"content":[{"type":"text","text":"Three."}],"structuredContent":{"n":3}}`},
	{"structured alone", `{"content":[],"structuredContent":{"n":3}}`},
	{"zero", `{"content":[{"type":"text","text":"0"}],"structuredContent":0}`},
	{"false", `{"content":[],"structuredContent":false}`},
	{"no list", `{"content":[],"structuredContent":[]}`},
	{"null", `{"content":[{"type":"text","text":"n"}],"structuredContent":null}`},
	{"image", `{"content":[{"type":"text","text":"Look:"},{"type":"image","mimeType":"image/png","data":"` + pngOfSize(12) + `"},{"type":"text","text":"There."}]}`},
	{"image of another type", `{"content":[{"type":"image","mimeType":"image/svg+xml","data":"PHN2Zy8+"}]}`},
	{"image that is none", `{"content":[{"type":"image","mimeType":"image/jpeg","data":"` + pngOfSize(12) + `"},{"type":"image","mimeType":"image/png","data":"%%%%"}]}`},
	{"audio", `{"content":[{"type":"audio","mimeType":"audio/mpeg","data":"SUQzBA=="},{"type":"audio","mimeType":"audio/x-wav","data":"UklGRgAAAABXQVZF"}]}`},
	{"embedded text", `{"content":[{"type":"resource","resource":{"uri":"file:///a.txt","mimeType":"text/plain","text":"inside"}}]}`},
	{"embedded image", `{"content":[{"type":"resource","resource":{"uri":"file:///a.png","mimeType":"image/png","blob":"` + pngOfSize(12) + `"}}]}`},
	{"embedded file", `{"content":[{"type":"resource","resource":{"uri":"file:///a.bin","mimeType":"application/zip","blob":"UEsDBA=="}}]}`},
	{"link", `{"content":[{"type":"resource_link","uri":"file:///a","name":"a","mimeType":"text/plain","size":7}]}`},
	{"a type of tomorrow", `{"content":[{"type":"video","data":"AAAA"}]}`},
	{"unreadable", `{"content":[{"type":7}]}`},
	{"broken UTF-8", "{\"content\":[{\"type\":\"text\",\"text\":\"a\xffb\"}]}"},
	{"failure", `{"isError":true,"content":[{"type":"text","text":"No such city."}]}`},
	{"failure with an image", `{"isError":true,"content":[{"type":"text","text":"Look:"},{"type":"image","mimeType":"image/png","data":"` + pngOfSize(12) + `"}]}`},
	{"large text", `{"content":[{"type":"text","text":"` + strings.Repeat("0123456789abcde\\n", 20000) + `"}]}`},
	{"large structured", `{"content":[{"type":"text","text":"See there."}],"structuredContent":{"s":"` + strings.Repeat("x", 300000) + `"}}`},
	{"large image", `{"content":[{"type":"text","text":"Look:"},{"type":"image","mimeType":"image/png","data":"` + pngOfSize(60000) + `"}]}`},
	{"large failure", `{"isError":true,"content":[{"type":"text","text":"` + strings.Repeat("é", 200000) + `"}]}`},
	{"many blocks", `{"content":[` + strings.Repeat(`{"type":"text","text":"`+strings.Repeat("y", 5000)+`"},`, 99) + `{"type":"text","text":"z"}]}`},
}

// S0.4, S1.6, S2.7, S2.8: what the model, the events and the metadata have of each kind
// of result stands in testdata/results.golden.
func TestResultsOfEveryKindReachTheirReaders(t *testing.T) {
	t.Parallel()
	takes := map[string]llm.Profile{"scripted": {ID: "scripted", Images: true, Audio: true}}
	fixtures := []struct {
		name    string
		fixture *agenttest.Fixture
	}{
		{"native", agenttest.NewFixture(t, giveModel, func(o *agent.Options) { o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted"}} })},
		{"native, takes images and audio", agenttest.NewFixture(t, giveModel, func(o *agent.Options) { o.Profiles = takes })},
		{"text dialect", agenttest.NewFixture(t, giveModel, func(o *agent.Options) { o.Model, o.Profiles = texttool.New(o.Model), takes })},
	}

	var out bytes.Buffer
	for _, k := range resultKinds {
		fmt.Fprintf(&out, "== %s\nresult\n\t%s\n", k.name, abbreviate(k.result))
		for i, h := range fixtures {
			h.fixture.Tools.SetResult("it", k.result)
			before := len(h.fixture.Model.Requests())
			run := h.fixture.StartRun(t, agent.Request{})
			events := h.fixture.Events(t, run.ID)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			hide := strings.NewReplacer(run.ID, "RUN")
			fmt.Fprintf(&out, "model: %s\n%s", h.name, generatedID.ReplaceAllString(hide.Replace(conversationAfterCall(h.fixture.Model.Requests()[before:])), "CALL"))
			if i > 0 {
				continue
			}

			for _, e := range events {
				switch e.Body.(type) {
				case event.ToolResult, event.ToolError:
					line := e.AppendJSON(nil)
					fmt.Fprintf(&out, "event\n\t%s\n", hide.Replace(changingNumber.ReplaceAllString(abbreviate(string(line)), `"$1":0`)))
					if len(line) > 320<<10 {
						t.Errorf("%s: the event has %d bytes, want at most 320<<10", k.name, len(line))
					}
				}
			}

			fmt.Fprintf(&out, "metadata\n\t%s\n", hide.Replace(abbreviate(string(end.Metadata.ToolResults[0]))))
			checkWholeResult(t, h.fixture, run.ID, k.name, k.result)
		}
	}
	checkGolden(t, "testdata/results.golden", out.Bytes())
}

// giveModel calls the tool give once and answers, with calls as members or as text.
func giveModel(r llmtest.Request) llmtest.Answer {
	switch last := r.Messages[len(r.Messages)-1]; {
	case last.Role == "tool" || last.Parts != nil || strings.HasPrefix(last.Content, "TOOL "):
		return llmtest.Says("Done.")
	case len(r.Tools) == 0:
		return llmtest.Says("TOOL: give\nPARAMETERS: {\"name\":\"it\"}")
	}
	return llmtest.Calls(llmtest.Call{Name: "give", Args: `{"name":"it"}`})
}

// conversationAfterCall returns what the last request says after the call.
func conversationAfterCall(requests []llmtest.Request) string {
	messages := requests[len(requests)-1].Messages
	var out strings.Builder
	for i, m := range messages {
		if m.Role != "assistant" {
			continue
		}
		for _, m := range messages[i+1:] {
			text := m.Content
			if m.Parts != nil {
				text = string(m.Parts)
			}
			fmt.Fprintf(&out, "\t%s: %s\n", m.Role, strings.ReplaceAll(abbreviate(text), "\n", "\n\t| "))
		}
	}
	return out.String()
}

var (
	generatedID    = regexp.MustCompile(`call_[A-Z0-9]{26}`) // ids of calls as text
	changingNumber = regexp.MustCompile(`"(ts|duration_ms|seq)":\d+`)
	manyBlocks     = regexp.MustCompile(`(\{"type":"text","text":"yyyyyyyy[^"]*"\},){3,}`)
)

// abbreviate replaces long runs of similar bytes by their length.
func abbreviate(s string) string {
	s = strings.ToValidUTF8(s, `\xff`)
	const monotonous = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=\\\né"
	var out strings.Builder
	for len(s) > 0 {
		run := len(s) - len(strings.TrimLeft(s, monotonous))
		if run >= 200 {
			fmt.Fprintf(&out, "%s…%d bytes…%s", s[:8], run, s[run-8:run])
		} else {
			run = max(run, 1)
			out.WriteString(s[:run])
		}
		s = s[run:]
	}
	return manyBlocks.ReplaceAllStringFunc(out.String(), func(m string) string { return fmt.Sprintf("«%d blocks»", strings.Count(m, `"type"`)) })
}

// checkWholeResult checks that the whole result can be read, wherever it is stored.
func checkWholeResult(t *testing.T, h *agenttest.Fixture, run, kind, result string) {
	var want struct {
		Content           []json.RawMessage
		StructuredContent json.RawMessage
		IsError           bool
	}
	if err := json.Unmarshal([]byte(strings.ToValidUTF8(result, "\uFFFD")), &want); err != nil {
		t.Fatal(err)
	}
	if string(want.StructuredContent) == "null" {
		want.StructuredContent = nil
	}
	got, err := h.Result(t.Context(), run, "call_1")
	if err != nil || got.IsError != want.IsError || fmt.Sprintf("%s", got.Content) != fmt.Sprintf("%s", want.Content) || string(got.Structured) != string(want.StructuredContent) {
		t.Errorf("%s: %s, %v, want %s", kind, abbreviate(fmt.Sprintf("%t %s %s", got.IsError, got.Content, got.Structured)), err, abbreviate(fmt.Sprintf("%t %s %s", want.IsError, want.Content, want.StructuredContent)))
	}
	if len(got.Payload) == 0 || got.CallID != "call_1" || got.Tool != "give" || got.Server != "default" {
		t.Errorf("%s: %+v, want at least 1 Payload, CallID call_1, Tool give, Server default", kind, got)
	}
}

func checkGolden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
		for i := range min(len(g), len(w)) {
			if g[i] != w[i] {
				t.Fatalf("%s:%d: got\n%s\nwant\n%s\nrenew it with -update", path, i+1, g[i], w[i])
			}
		}
		t.Fatalf("%s: %d lines, want %d; renew it with -update", path, len(g), len(w))
	}
}

// The pictures of a turn come after all results of the turn, in call order, and no more
// of them than are allowed; endpoints refuse a request with anything between results.
func TestPicturesFollowAllResultsOfTheirTurn(t *testing.T) {
	var calls []llmtest.Call
	for i := range 3 {
		calls = append(calls, llmtest.Call{ID: fmt.Sprintf("c%d", i), Name: "give", Args: `{"name":"four"}`})
	}

	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(calls...), llmtest.Calls(llmtest.Call{ID: "c3", Name: "give", Args: `{"name":"four"}`}), llmtest.Says("Seen.")),
		func(o *agent.Options) { o.Profiles = map[string]llm.Profile{"scripted": {Images: true}} })
	block := `{"type":"image","mimeType":"image/png","data":"` + pngOfSize(12) + `"}`
	h.Tools.SetResult("four", `{"content":[`+strings.Repeat(block+",", 3)+block+`]}`)
	h.Events(t, h.StartRun(t, agent.Request{}).ID)

	requests := h.Model.Requests()
	var roles []string
	for _, m := range requests[len(requests)-1].Messages {
		roles = append(roles, m.Role)
	}

	if got, want := strings.Join(roles, " "), "system user assistant tool tool tool user assistant tool user"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	messages := requests[len(requests)-1].Messages
	if n := bytes.Count(messages[6].Parts, []byte(`"image_url":`)); n != 8 {
		t.Errorf("%d pictures in the first turn, want 8", n)
	}
	if want := "[image image/png, 12 bytes] (not shown: only 8 can be shown in one turn)"; !strings.HasPrefix(messages[5].Content, want) {
		t.Errorf("the third result is %s, want it to start with %s", messages[5].Content, want)
	}
	if p := string(messages[6].Parts); !strings.Contains(p, `"Image 1 of the result of give (call c0):"`) || strings.Index(p, "call c0") > strings.Index(p, "call c1") {
		t.Errorf("labels %s, want that of c0 before that of c1", p)
	}
	if n := bytes.Count(messages[9].Parts, []byte(`"image_url":`)); n != 4 {
		t.Errorf("%d pictures in the second turn, want 4", n)
	}
}

// Without profiles the id of the model decides whether it gets the images of results. If an
// endpoint refuses them, the model gets text in this run and the next.
func TestPicturesAreSentUnlessTheModelIsKnownToTakeNone(t *testing.T) {
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if r.Model == "mine" && bytes.Contains(r.Body, []byte(`"image_url":`)) {
			return llmtest.Fails(http.StatusInternalServerError, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj")
		}
		return giveModel(r)
	}, nil)
	h.Tools.SetResult("it", `{"content":[{"type":"image","mimeType":"image/png","data":"`+pngOfSize(12)+`"}]}`)
	for _, c := range []struct {
		model    string
		requests int
		last     string // what the last request has
	}{
		{"gpt-4o", 2, `"image_url":`},
		{"llama3.1:8b", 2, "[image image/png, 12 bytes]\""},
		{"mine", 3, "[An image (image/png, 12 bytes) was here, which this model cannot take.]"},
		{"mine", 2, "[An image (image/png, 12 bytes) was here, which this model cannot take.]"},
		{"another", 2, `"image_url":`},
	} {
		before := len(h.Model.Requests())
		agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{Model: c.model}).ID))
		requests := h.Model.Requests()[before:]
		if last := string(requests[len(requests)-1].Body); len(requests) != c.requests || !strings.Contains(last, c.last) {
			t.Errorf("%s: got %d requests, the last one %s, want %d and %s in it", c.model, len(requests), last, c.requests, c.last)
		}
	}
}

// A picture that the run's budget has no room for is not shown.
func TestPicturesCountAsResultBytes(t *testing.T) {
	h := agenttest.NewFixture(t, giveModel, func(o *agent.Options) { o.Profiles = map[string]llm.Profile{"scripted": {Images: true}} })
	block := `{"type":"image","mimeType":"image/png","data":"` + pngOfSize(300) + `"}`
	h.Tools.SetResult("it", `{"content":[`+block+`,`+block+`]}`)
	h.Events(t, h.StartRun(t, agent.Request{Budget: agent.Budget{ResultBytes: 700}}).ID)
	told := conversationAfterCall(h.Model.Requests())
	if strings.Count(told, `"image_url":`) != 1 || !strings.Contains(told, "(not shown: the run's budget of result bytes is used up)") {
		t.Errorf(`told %q, want 1 times "image_url":, told containing "(not shown: the run's budget of result bytes is used up)"`, told)
	}
}

func giveCalls(n int) (calls []llmtest.Call) {
	for i := range n {
		calls = append(calls, llmtest.Call{ID: fmt.Sprintf("c%d", i), Name: "give", Args: `{"name":"big"}`})
	}
	return calls
}

// S2.8: the arrays stay aligned, and the metadata bounded, whatever the calls bring.
func TestMetadataOfManyLargeResultsIsBounded(t *testing.T) {
	t.Parallel()
	calls := append(giveCalls(20), llmtest.Call{ID: "bad", Name: "fail", Args: `{}`})
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(calls...), llmtest.Says("Read.")), nil)
	h.Tools.SetResult("big", `{"content":[{"type":"text","text":"`+strings.Repeat("x", 100_000)+`"}]}`)
	run := h.StartRun(t, agent.Request{})
	end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	m := end.Metadata
	if len(m.ToolNames) != 21 || len(m.ToolParams) != 21 || len(m.ToolResults) != 21 {
		t.Fatalf("%d names, %d params, %d results, want 21, 21 and 21", len(m.ToolNames), len(m.ToolParams), len(m.ToolResults))
	}

	total := 0
	for i, r := range m.ToolResults {
		total += len(r)
		if !json.Valid(r) {
			t.Errorf("result %d is %s, want JSON", i, abbreviate(string(r)))
		}
	}
	if total > 1<<20+21*(1<<10+200) || len(m.ToolResults[0]) != 100_002 {
		t.Errorf("%d bytes in all, %d of the first, want at most %d and 100002", total, len(m.ToolResults[0]), 1<<20+21*(1<<10+200))
	}
	if last := string(m.ToolResults[19]); !strings.Contains(last, "[cut here: ") || !strings.Contains(last, "/runs/"+run.ID+"/results/c19]") {
		t.Errorf(`the last result is %s, want last containing "[cut here: ", last containing %s`, abbreviate(last), "/runs/"+run.ID+"/results/c19]")
	}
	if got, want := string(m.ToolResults[20]), `{"error":"the tool is out of order"}`; got != want {
		t.Errorf("the failure is %s, want %s", got, want)
	}
}

// A log that cannot keep a result costs the run nothing, and no event points to it.
func TestResultThatCannotBeStoredIsReported(t *testing.T) {
	h := agenttest.NewFixture(t, giveModel, func(o *agent.Options) { o.Log = fullLog{o.Log} })
	h.Tools.SetResult("it", `{"content":[{"type":"text","text":"`+strings.Repeat("x", 400_000)+`"}]}`)
	run := h.StartRun(t, agent.Request{})
	events := h.Events(t, run.ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
	res := agenttest.EventsOf[event.ToolResult](events)[0]
	if res.Truncated == nil || res.Truncated.URL != "" || res.Truncated.Bytes < 400_000 || !strings.Contains(string(res.Payload), "bytes are shown]") {
		t.Errorf(`truncated %+v, payload %s, want Truncated non-nil, URL empty, Bytes at least 400_000, Payload containing "bytes are shown]"`, res.Truncated, abbreviate(string(res.Payload)))
	}
	if _, err := h.Result(t.Context(), run.ID, "call_1"); !errors.Is(err, event.ErrGone) {
		t.Errorf("result: %v, want ErrGone", err)
	}
}

// A failure that the hook has not seen is shown to nobody.
func TestFailureThatAHookSawInPartIsNotKeptWhole(t *testing.T) {
	h, _ := newHookedFixture(t, giveModel, replyOnlyTo("none", ""), nil)
	h.Tools.SetResult("it", `{"isError":true,"content":[{"type":"text","text":"`+strings.Repeat("x", 300_000)+`secret"}]}`)
	run := h.StartRun(t, agent.Request{})
	events := h.Events(t, run.ID)
	failed := agenttest.EventsOf[event.ToolError](events)[0]
	if failed.Truncated == nil || failed.Truncated.URL != "" || strings.Contains(failed.Payload, "secret") {
		t.Errorf("truncated %+v of %s, want Truncated non-nil, URL empty, Payload without secret", failed.Truncated, abbreviate(failed.Payload))
	}
	if _, err := h.Result(t.Context(), run.ID, "call_1"); !errors.Is(err, event.ErrGone) {
		t.Errorf("result: %v, want ErrGone", err)
	}
}

// fullLog is a real log whose store of results fails.
type fullLog struct{ event.Log }

func (fullLog) SaveResult(context.Context, string, string, []byte) error { return event.ErrTooLarge }
