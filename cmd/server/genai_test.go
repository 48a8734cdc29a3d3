package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"answerd/internal/demo"
	"answerd/internal/llm/llmtest"
	"answerd/internal/telemetry/otlptest"
)

// traceRun asks a question of an authenticated caller with two tool calls, and returns the spans that
// the collector gets. The model has a price.
func traceRun(t *testing.T, more ...string) []otlptest.Span {
	t.Helper()
	w, otlp := newTestWorld(t, newTwoCallScript()), newTraceReceiver(t)
	models := writeCodeFile(t, t.TempDir(), "models.json", `[{"id":"scripted","price":{"input_per_million":1000,"output_per_million":2000}}]`)
	s := startAnswerd(t, w.environment(append([]string{
		"ENABLE_TRACING", "true", "OTEL_EXPORTER_OTLP_ENDPOINT", otlp.url, "MODELS_FILE", models,
		"AUTH_ISSUER", w.iam.url, "AUTH_AUDIENCE", demo.Audience, "AUTH_JWKS_URL", w.iam.url + demo.JWKSPath,
	}, more...)...))
	postQuestion(t, newClient(t), s.url, `{"question": "canary-question", "thread_id": "thr_traced"}`, "Authorization", "Bearer "+w.issuedToken(t))
	s.stop()
	if err := <-s.done; err != nil { // the last spans are sent at the end
		t.Fatal(err)
	}
	otlp.mu.Lock()
	defer otlp.mu.Unlock()
	return slices.Clone(otlp.spans)
}

// spansOf returns the spans of an operation.
func spansOf(spans []otlptest.Span, operation string) (out []otlptest.Span) {
	for _, s := range spans {
		if s.Attributes["gen_ai.operation.name"] == operation {
			out = append(out, s)
		}
	}
	return out
}

// conventions is testdata/genai-spans.json: the attributes that the OpenTelemetry conventions for
// generative AI define, with their requirement levels.
type conventions struct {
	Source, Version, Licence string
	Spans                    map[string]struct {
		Type, Kind, Name string
		Attributes       map[string]string
	}
}

// beyondConventions are attributes of the namespace that the conventions do not define for a span: those that
// backends read, and those of the run, which all spans below it carry.
var beyondConventions = []string{"gen_ai.usage.cost", "gen_ai.conversation.id", "gen_ai.agent.name"}

// spanNames are the predecessor's names of the spans of an operation. The conventions only recommend names.
var spanNames = map[string]string{"invoke_agent": "tool_calling_loop", "chat": "llm_invoke", "execute_tool": "tool_call"}

func TestSpansFollowTheGenAIConventions(t *testing.T) {
	data, err := os.ReadFile("testdata/genai-spans.json")
	if err != nil {
		t.Fatal(err)
	}
	var c conventions
	if err := json.Unmarshal(data, &c); err != nil || c.Source == "" || c.Version == "" || c.Licence == "" {
		t.Fatalf("got %v, %+v, want the table with its source, version and licence", err, c)
	}

	for _, content := range []string{"false", "true"} {
		spans := traceRun(t, "TRACE_CONTENT", content)
		for operation, count := range map[string]int{"chat": 2, "invoke_agent": 1, "execute_tool": 2} {
			found, want := spansOf(spans, operation), c.Spans[operation]
			if len(found) != count {
				t.Fatalf("got %d spans of %s, want %d", len(found), operation, count)
			}
			for _, s := range found {
				for key := range s.Attributes {
					level, known := want.Attributes[key]
					if strings.HasPrefix(key, "gen_ai.") && !known && !slices.Contains(beyondConventions, key) {
						t.Errorf("%s has %s, want an attribute of the conventions", s.Name, key)
					}
					if level == "opt_in" && content == "false" {
						t.Errorf("%s has %s without TRACE_CONTENT, want it only with that", s.Name, key)
					}
				}
				for key, level := range want.Attributes {
					if level == "required" && s.Attributes[key] == "" {
						t.Errorf("%s has no %s, want what is required", s.Name, key)
					}
				}
				if name := spanNames[operation]; s.Name != name {
					t.Errorf("got a span %q of %s, want %q", s.Name, operation, name)
				}
				for _, key := range []string{"gen_ai.conversation.id", "gen_ai.agent.name", "answerd.run_id"} {
					if s.Attributes[key] == "" {
						t.Errorf("%s has no %s, want that of the run", s.Name, key)
					}
				}
			}
		}
	}
}

func TestSpansHaveContentAndUsersOnlyIfEnabled(t *testing.T) {
	joinSpans := func(spans []otlptest.Span) string {
		var b strings.Builder
		for _, s := range spans {
			for key, value := range s.Attributes {
				b.WriteString(key + "=" + value + "\n")
			}
		}
		return b.String()
	}

	texts := []string{"canary-question", "12.5 * 8", "16 km."}
	off := joinSpans(traceRun(t))
	for _, text := range append(texts, "user.id", "enduser.id") {
		if strings.Contains(off, text) {
			t.Errorf("got %q in the spans, want it only if it is enabled:\n%s", text, off)
		}
	}

	on := joinSpans(traceRun(t, "TRACE_CONTENT", "true", "TRACE_USERS", "true"))
	for _, text := range append(texts, "enduser.id="+demoClient, "user.id="+demoClient) {
		if !strings.Contains(on, text) {
			t.Errorf("got no %q in the spans, want it:\n%s", text, on)
		}
	}

	for _, secret := range []string{clientSecret, "canary-api-key", "Bearer", "eyJ"} {
		if strings.Contains(on, secret) {
			t.Errorf("got %q in the spans with content, want no secret:\n%s", secret, on)
		}
	}
}

// shownRun is what a backend shows of a run.
type shownRun struct {
	Agent, Session, User string
	Question, Answer     string
	Tools                []string
	InputTokens          string
	Cost                 string
}

// checkShown compares what a backend shows with the run.
func checkShown(t *testing.T, got shownRun) {
	t.Helper()
	if got.Agent != "default" || got.Session != "thr_traced" || got.User != demoClient {
		t.Errorf("got agent %q, session %q and user %q, want default, thr_traced and %s", got.Agent, got.Session, got.User, demoClient)
	}
	if !strings.Contains(got.Question, "canary-question") || !strings.Contains(got.Answer, "100 and 16 km.") {
		t.Errorf("got messages %q and %q, want the question and the answer", got.Question, got.Answer)
	}
	slices.Sort(got.Tools)
	if !slices.Equal(got.Tools, []string{"calculate", "convert"}) {
		t.Errorf("got tools %q, want calculate and convert", got.Tools)
	}
	if got.InputTokens == "" || got.Cost == "" {
		t.Errorf("got %q tokens and cost %q, want both", got.InputTokens, got.Cost)
	}
}

// firstOf returns the first attribute that is there.
func firstOf(s otlptest.Span, keys ...string) string {
	for _, key := range keys {
		if s.Attributes[key] != "" {
			return s.Attributes[key]
		}
	}
	return ""
}

// traceContentSettings are the settings of docs/tasks/langfuse.md and docs/tasks/phoenix.md.
var traceContentSettings = []string{"TRACE_USERS", "true", "TRACE_CONTENT", "true"}

// The mapping is that of langfuse.com/integrations/native/opentelemetry: the kind of an observation from
// gen_ai.operation.name, its session and user on each of them.
func TestLangfuseShowsARun(t *testing.T) {
	checkTaskPage(t, "langfuse.md")
	var got shownRun
	for _, s := range traceRun(t, traceContentSettings...) {
		switch s.Attributes["gen_ai.operation.name"] {
		case "invoke_agent": // an observation of type agent
			got.Agent = s.Attributes["gen_ai.agent.name"]
			got.Session = firstOf(s, "langfuse.session.id", "session.id", "gen_ai.conversation.id")
			got.User = firstOf(s, "langfuse.user.id", "user.id")
			got.Question = firstOf(s, "langfuse.observation.input", "gen_ai.input.messages")
			got.Answer = firstOf(s, "langfuse.observation.output", "gen_ai.output.messages")
			if s.Attributes["gen_ai.usage.input_tokens"]+s.Attributes["gen_ai.usage.cost"] != "" {
				t.Error("the run's span has tokens or a cost, which Langfuse would add to those of the model calls; want neither")
			}
		case "execute_tool": // an observation of type tool
			got.Tools = append(got.Tools, s.Attributes["gen_ai.tool.name"])
			if firstOf(s, "gen_ai.tool.call.arguments") == "" || firstOf(s, "gen_ai.tool.call.result") == "" {
				t.Errorf("%s has no input or output, want both", s.Name)
			}
		case "chat": // an observation of type generation
			got.InputTokens = s.Attributes["gen_ai.usage.input_tokens"]
			got.Cost = firstOf(s, "gen_ai.usage.cost")
			if firstOf(s, "session.id") != "thr_traced" || firstOf(s, "user.id") != demoClient {
				t.Errorf("%s has no session or user, want both, by which Langfuse groups cost", s.Name)
			}
		}
	}
	checkShown(t, got)
}

// The mapping is Phoenix's conversion of the GenAI conventions to OpenInference (arize-phoenix 15.10):
// attributes of OpenInference count if they are there, otherwise those of the conventions.
func TestPhoenixShowsARun(t *testing.T) {
	checkTaskPage(t, "phoenix.md")
	var got shownRun
	for _, s := range traceRun(t, traceContentSettings...) {
		switch s.Attributes["gen_ai.operation.name"] {
		case "invoke_agent": // a span of kind AGENT
			got.Agent = s.Attributes["agent.name"]
			got.Session = firstOf(s, "session.id", "gen_ai.conversation.id")
			got.User = firstOf(s, "user.id")
			got.Question, got.Answer = messageText(t, s, "gen_ai.input.messages"), messageText(t, s, "gen_ai.output.messages")
		case "execute_tool": // a span of kind TOOL
			got.Tools = append(got.Tools, s.Attributes["gen_ai.tool.name"])
		case "chat": // a span of kind LLM
			got.InputTokens, got.Cost = s.Attributes["gen_ai.usage.input_tokens"], s.Attributes["llm.cost.total"]
			messageText(t, s, "gen_ai.input.messages")
			messageText(t, s, "gen_ai.output.messages")
		}
	}
	checkShown(t, got)
}

// messageText decodes messages as strictly as Phoenix does, and returns the texts in them.
func messageText(t *testing.T, s otlptest.Span, key string) string {
	t.Helper()
	var messages []struct {
		Role  string
		Parts []struct {
			Type, Content, ID, Name string
			Response                *string
		}
	}
	if err := json.Unmarshal([]byte(s.Attributes[key]), &messages); err != nil || len(messages) == 0 {
		t.Errorf("%s: %s is %q, %v, want messages", s.Name, key, s.Attributes[key], err)
	}
	var b strings.Builder
	for _, m := range messages {
		if m.Role == "" {
			t.Errorf("%s: a message of %s has no role, want one", s.Name, key)
		}
		for _, p := range m.Parts {
			if ok := p.Type == "text" && p.Content != "" || p.Type == "tool_call" && p.Name != "" || p.Type == "tool_call_response" && p.Response != nil; !ok {
				t.Errorf("%s: got the part %+v in %s, want a text, a call or a result", s.Name, p, key)
			}
			b.WriteString(p.Content)
		}
	}
	return b.String()
}

// checkTaskPage checks that a page has the settings that the test uses.
func checkTaskPage(t *testing.T, name string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("../../docs/tasks", name))
	if err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"ENABLE_TRACING=true", "TRACE_USERS=true", "TRACE_CONTENT=true", "OTEL_EXPORTER_OTLP_"} {
		if !strings.Contains(string(page), setting) {
			t.Errorf("%s has no %s, want the settings that show a run", name, setting)
		}
	}
}

// Metrics and the log go to the same collector as traces, each to its own path. The line of a run has the
// trace and the run.
func TestMetricsAndLogAreExported(t *testing.T) {
	var mu sync.Mutex // protects the two variables below
	var metrics []string
	var records []otlptest.Record
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		switch r.URL.Path {
		case "/v1/metrics":
			names, wrong := otlptest.DecodeMetrics(body)
			metrics, err = append(metrics, names...), errors.Join(err, wrong)
		case "/v1/logs":
			lines, wrong := otlptest.DecodeLogs(body)
			records, err = append(records, lines...), errors.Join(err, wrong)
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(collector.Close)
	w := newTestWorld(t, newTwoCallScript())
	s := startAnswerd(t, w.environment("OTEL_METRICS_EXPORTER", "prometheus,otlp", "OTEL_LOGS_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL))
	answer := postQuestion(t, newClient(t), s.url, e2eQuestion)
	if _, page := getBody(t, newClient(t), s.url+"/metrics"); !strings.Contains(page, "answerd_runs_total") {
		t.Errorf("got the page %s, want the metrics there too", page)
	}
	s.stop()
	if err := <-s.done; err != nil { // the last lines are sent at the end
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(metrics, "answerd.runs") || !slices.Contains(metrics, "gen_ai.client.token.usage") {
		t.Errorf("got metrics %q, want answerd.runs and gen_ai.client.token.usage among them", metrics)
	}
	i := slices.IndexFunc(records, func(r otlptest.Record) bool { return r.Body == "run ended" })
	if i < 0 || records[i].TraceID != answer.TraceID || records[i].Attributes["run_id"] != answer.RunID {
		t.Errorf("got records %+v, want run ended with the trace %s and the run %s", records, answer.TraceID, answer.RunID)
	}

	for _, r := range records {
		if text := fmt.Sprint(r); strings.Contains(text, clientSecret) || strings.Contains(text, "canary-api-key") {
			t.Errorf("got the record %s, want it without a secret", text)
		}
	}
}

// A run that fails has the code of its error in its span.
func TestSpanOfAFailedRunHasItsCode(t *testing.T) {
	w, otlp := newTestWorld(t, llmtest.Turns(llmtest.Fails(400, "canary"))), newTraceReceiver(t)
	s := startAnswerd(t, w.environment("ENABLE_TRACING", "true", "OTEL_EXPORTER_OTLP_ENDPOINT", otlp.url))
	post(t, newClient(t), s.url+"/answer", `{"question":"Why?"}`)
	s.stop()
	<-s.done
	if got := otlp.attributes("tool_calling_loop")["error.type"]; got != "model_error" {
		t.Errorf("error.type = %q, want model_error", got)
	}
}
