package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/llm/llmtest"
)

// newModelList starts an endpoint that lists a model at path for that key, and answers other
// requests with status.
func newModelList(t *testing.T, path, key string, status int) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != path:
			w.WriteHeader(status)
		case r.Header.Get("Authorization") != "Bearer "+key:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			fmt.Fprint(w, `{"object":"list","data":[{"id":"a/b"}]}`)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestCheckAsksTheModelEndpointForItsModels(t *testing.T) {
	good := newModelList(t, "/v1/models", "canary-key", 404)
	for _, c := range []struct {
		name     string
		settings []string
		code     int
		want     []string // on stdout
	}{
		{"a list with the model", []string{"LLM_BASE_URL", good + "/v1", "DEFAULT_MODEL_ID", "a/b"}, 0, []string{"reachable  1 models"}},
		{"a query is kept and not printed", []string{"LLM_BASE_URL", good + "/v1?api-version=canary", "DEFAULT_MODEL_ID", "a/b"}, 0, []string{"reachable  1 models"}},
		{"a list without the model", []string{"LLM_BASE_URL", good + "/v1", "DEFAULT_MODEL_ID", "gpt"}, 0, []string{"remark  it does not list gpt; it lists: a/b"}},
		{"no list", []string{"LLM_BASE_URL", newModelList(t, "/none", "", 404) + "/v1"}, 0, []string{"remark", "(HTTP 404)"}},
		{"a wrong key", []string{"LLM_BASE_URL", good + "/v1", "LLM_API_KEY", "canary-wrong"}, 1, []string{"failed  it refuses the key (HTTP 401)", "- LLM_API_KEY: set the key"}},
		{"no key", []string{"LLM_BASE_URL", good + "/v1", "LLM_API_KEY", ""}, 1, []string{"failed  it wants a key (HTTP 401)", "- LLM_API_KEY: set the key"}},
		{"no connection", []string{"LLM_BASE_URL", closedAddress(t)}, 1, []string{"failed  no connection:", "- LLM_BASE_URL: start the endpoint"}},
		{"no /v1", []string{"LLM_BASE_URL", good}, 1, []string{"did you mean " + good + "/v1?", "- LLM_BASE_URL: set it to " + good + "/v1"}},
		{"no /v1, a page there", []string{"LLM_BASE_URL", newModelList(t, "/v1/models", "canary-key", 200)}, 1, []string{"did you mean http://"}},
		{"a failure", []string{"LLM_BASE_URL", newModelList(t, "/none", "", 503) + "/v1"}, 1, []string{"failed  it answers HTTP 503", "- LLM_BASE_URL:"}},
		{"a redirect", []string{"LLM_BASE_URL", newModelList(t, "/none", "", 302) + "/v1"}, 1, []string{"failed  it redirects (HTTP 302)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := &syncBuffer{}
			err := run(t.Context(), []string{"check"}, newTestEnvironment(append([]string{"LLM_API_KEY", "canary-key"}, c.settings...)...), out, out)
			if code := reportError(err, io.Discard); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("got\n%s\nwant %q in it", out, want)
				}
			}
			if strings.Contains(out.String(), "canary") {
				t.Errorf("a secret is printed:\n%s, want String without canary", out)
			}
		})
	}
}

// Values get line breaks at their end without anybody typing them: from a .env file of Windows that a shell
// loads, and from a Kubernetes Secret that was made with echo. In a header such a value is refused.
func TestLineBreaksAtTheEndOfAVariableAreNotPartOfIt(t *testing.T) {
	endpoint := newModelList(t, "/v1/models", "canary-key", 404)
	for name, end := range map[string]string{"Windows": "\r", "echo": "\n", "both": "\r\n"} {
		var settings []string
		for _, s := range []string{"LLM_BASE_URL=" + endpoint + "/v1", "LLM_API_KEY=canary-key", "DEFAULT_MODEL_ID=a/b", "MAX_TURNS=7", "TIMEOUT=5s", "LOG_LEVEL=warn"} {
			settings = append(settings, s+end)
		}
		out := &syncBuffer{}
		err := run(t.Context(), []string{"check"}, newEnvironment(settings), out, out)
		for _, want := range []string{"agents          default, at most 7 turns\n", "reachable  1 models\n"} {
			if err != nil || !strings.Contains(out.String(), want) {
				t.Errorf("%s: got %v and\n%s\nwant no error and %q", name, err, out, want)
			}
		}
	}
}

func TestCheckPrintsTheConfigurationAndNextSteps(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	out := &syncBuffer{}
	err := run(t.Context(), []string{"check"}, w.environment(w.withInboundAuth("MCP_URL", closedAddress(t), "LLM_APIKEY", "canary")...), out, out)
	if code := reportError(err, io.Discard); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}

	report, log, _ := strings.Cut(out.String(), `{"time"`)
	for _, want := range []string{
		"endpoint        " + w.model.URL + ", with a key", "model           scripted, tool calling auto", "agents          default, at most 10 turns",
		"servers         MCP_URL http://127.0.0.1:", "authentication  bearer JWT of " + w.iam.url, "address         127.0.0.1:0", "log             level info; events in memory",
		"warning: LLM_APIKEY: is not a setting", "next steps:\n- server default: start it, or correct the host and the port of its url\n",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("got\n%s\nwant %q before the log", out, want)
		}
	}

	if log == "" || strings.Contains(log, "SERVER") {
		t.Errorf("got\n%s\nwant the log after the report", out)
	}
}

// Without the issuer's signing keys every request of every caller is refused.
func TestCheckFetchesTheSigningKeysOfTheIssuer(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	for _, c := range []struct {
		name     string
		settings []string
		code     int
		want     []string // on stdout
	}{
		{"keys", nil, 0, []string{"signing keys of " + w.iam.url + ": fetched\n"}},
		{"no connection", []string{"AUTH_JWKS_URL", closedAddress(t)}, 1, []string{"failed: ", "connection refused", "\n- AUTH_JWKS_URL: correct it"}},
		{"not a key set", []string{"AUTH_JWKS_URL", w.iam.url + "/none"}, 1, []string{"failed: ", "status 404", "\n- AUTH_JWKS_URL: correct it"}},
		{"no metadata", []string{"AUTH_JWKS_URL", "", "AUTH_ISSUER", strings.Replace(closedAddress(t), "http:", "https:", 1)}, 1, []string{"failed: ", "\n- AUTH_ISSUER: correct it"}},
	} {
		out := &syncBuffer{}
		err := run(t.Context(), []string{"check"}, w.environment(w.withInboundAuth(c.settings...)...), out, io.Discard)
		if code := reportError(err, io.Discard); code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.name, code, c.code)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: got\n%s\nwant %q in it", c.name, out, want)
			}
		}
	}
}

// A hook service may act on every request that it gets, so check sends it none.
func TestCheckConnectsToTheHookServiceAndSendsNothing(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	count := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	plain, untrusted := httptest.NewServer(count), httptest.NewUnstartedServer(count)
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0) // it would log the handshake that fails
	untrusted.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(untrusted.Close)
	w := newTestWorld(t, newTwoCallScript())
	for _, c := range []struct {
		name, url string
		code      int
		want      []string // on stdout
	}{
		{"a service", plain.URL + "/hook?key=canary", 0, []string{"hooks at " + plain.URL + "/hook: connected\n"}},
		{"no connection", closedAddress(t), 1, []string{": failed: ", "connection refused", "\n- HOOKS_URL: start the service"}},
		{"a certificate that is not trusted", untrusted.URL, 1, []string{": failed: ", "certificate", "\n- HOOKS_URL: "}},
	} {
		out := &syncBuffer{}
		err := run(t.Context(), []string{"check"}, w.environment("HOOKS_URL", c.url, "HOOKS_SECRET", "secret"), out, io.Discard)
		if code := reportError(err, io.Discard); code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.name, code, c.code)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: got\n%s\nwant %q in it", c.name, out, want)
			}
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("the service got %d requests, want 0", n)
	}
}

func TestCheckAskAsksOneQuestionWithOneTool(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
		if r.Messages[len(r.Messages)-1].Role == "tool" {
			return llmtest.Says("It \x1b[2Jworks.") // the escape sequence would clear the terminal
		}
		return llmtest.Calls(llmtest.Call{Name: r.Tools[0].Function.Name, Args: `{}`})
	})

	out := &syncBuffer{}
	if err := run(t.Context(), []string{"check", "-ask"}, w.environment(), out, io.Discard); err != nil {
		t.Fatalf("got %v, want no error:\n%s", err, out)
	}
	for _, want := range []string{"asking scripted: Call the tool ", "\ncalled ", "\nanswer: It [2Jworks.\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", out, want)
		}
	}

	if n := len(w.model.Requests()[0].Tools); n != 1 {
		t.Errorf("got %d tools in the request, want 1", n)
	}
}

// Nobody approves the calls of a check, and the model chooses the arguments.
func TestCheckAskCallsNoToolThatMayChangeSomething(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
		if len(r.Tools) > 0 && r.Messages[len(r.Messages)-1].Role != "tool" {
			return llmtest.Calls(llmtest.Call{Name: r.Tools[0].Function.Name, Args: `{}`})
		}
		return llmtest.Says("ready")
	})

	server := sdk.NewServer(&sdk.Implementation{Name: "files"}, nil)
	var calls atomic.Int32
	for name, annotations := range map[string]*sdk.ToolAnnotations{
		"create": nil, "delete": {DestructiveHint: new(true)}, "touch": {DestructiveHint: new(false), IdempotentHint: true},
	} {
		server.AddTool(&sdk.Tool{Name: name, Annotations: annotations, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			calls.Add(1)
			return &sdk.CallToolResult{}, nil
		})
	}

	tools := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(tools.Close)
	out := &syncBuffer{}
	if err := run(t.Context(), []string{"check", "-ask"}, w.environment("MCP_URL", tools.URL), out, io.Discard); err != nil {
		t.Errorf("got %v, want no error:\n%s", err, out)
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("got %d calls of tools that may change something, want 0:\n%s", n, out)
	}

	for _, want := range []string{"\nthe model gets no tool: ", "\nanswer: ready\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", out, want)
		}
	}
}

// Ctrl-C says nothing about the endpoints that did not answer.
func TestCheckThatIsInterruptedEndsWith130(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() }))
	defer endpoint.Close()
	err := run(ctx, []string{"check"}, newTestEnvironment("LLM_BASE_URL", endpoint.URL), io.Discard, io.Discard)
	if code := reportError(err, io.Discard); code != 130 {
		t.Errorf("got exit code %d, %v, want 130", code, err)
	}
}

func TestCheckAskFailsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, llmtest.Turns(llmtest.Fails(http.StatusUnauthorized, "wrong key")))
	out := &syncBuffer{}
	err := run(t.Context(), []string{"check", "-ask"}, w.environment(), out, io.Discard)
	if err == nil || !strings.Contains(out.String(), "no answer: ") || !strings.Contains(out.String(), "- question: ") {
		t.Errorf("got error %v and\n%s\nwant a failure with its next step", err, out)
	}
}

func TestCheckAsksEveryEndpointOfTheModelsFile(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	second := llmtest.New(t, newTwoCallScript())
	file := modelsFile(t, fmt.Sprintf(`[{"id":"scripted"},{"id":"other","base_url":%q,"api_key":"key-of-other","headers":{"X-Team":"a"}}]`, second.URL))
	out := &syncBuffer{}
	_ = run(t.Context(), []string{"check"}, w.environment("MODELS_FILE", file), out, io.Discard)
	if n := strings.Count(out.String(), second.URL); n == 0 {
		t.Errorf("got\n%s\nwant a line for %s", out, second.URL)
	}
}

// A model without a base_url is asked at LLM_BASE_URL, with the key and the headers that it has of its own.
func TestCheckAsksWithWhatAModelHasOfItsOwn(t *testing.T) {
	good := newModelList(t, "/v1/models", "canary-own", 404)
	for _, c := range []struct {
		name, models string
		code         int
		want         string // on stdout
	}{
		{"a key", `[{"id":"a/b","api_key":"canary-own"}]`, 0, "reachable  1 models"},
		{"a header", `[{"id":"a/b","headers":{"authorization":"Bearer canary-own"}}]`, 0, "reachable  1 models"},
		{"a wrong key", `[{"id":"a/b","api_key":"canary-wrong"}]`, 1, "- MODELS_FILE, api_key of a/b: set the key"},
		{"one of two", `[{"id":"a/b","api_key":"canary-own"},{"id":"other"}]`, 1, "- LLM_API_KEY: set the key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := &syncBuffer{}
			err := run(t.Context(), []string{"check"}, newTestEnvironment("LLM_BASE_URL", good+"/v1", "MODELS_FILE", modelsFile(t, c.models)), out, io.Discard)
			if code := reportError(err, io.Discard); code != c.code || !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "canary") {
				t.Errorf("got exit code %d and\n%s\nwant %d, %q and no secret", code, out, c.code, c.want)
			}
		})
	}
}

// What keeps serve from starting is an error of check, with the same text.
func TestCheckRefusesWhatServeRefuses(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	for _, settings := range [][]string{
		{"RECEIPT_KEY_FILE", "/nonexistent"},
		{"ENABLE_TRACING", "true"},
		{"OTEL_METRICS_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "collector:4318"},
	} {
		serving := run(t.Context(), []string{"serve"}, w.environment(settings...), io.Discard, io.Discard)
		checking := run(t.Context(), []string{"check"}, w.environment(settings...), io.Discard, io.Discard)
		if serving == nil || checking == nil || serving.Error() != checking.Error() || reportError(checking, io.Discard) != 2 {
			t.Errorf("%q: check gives %v, serve %v, want the same error, exit code 2", settings, checking, serving)
		}
	}
}
