package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/demo"
	"answerd/internal/llm/llmtest"
)

// recordingServer is an upstream that fails and says a secret while it does, and remembers all
// that it was sent. $id in what it says is the id of a JSON-RPC request.
type recordingServer struct {
	*httptest.Server
	mu  sync.Mutex // protects got
	got bytes.Buffer
}

func newRecordingServer(t *testing.T, status int, body string) *recordingServer {
	o := &recordingServer{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body) // as far as it comes
		o.mu.Lock()
		fmt.Fprintln(&o.got, r.URL, r.Header)
		o.got.Write(sent)
		o.mu.Unlock()
		var rpc struct{ ID json.RawMessage }
		_ = json.Unmarshal(sent, &rpc) // not all are
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, strings.ReplaceAll(body, "$id", string(rpc.ID)))
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *recordingServer) receivedText() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.got.String()
}

// issuedToken returns a token that the IAM of w issues to a caller.
func (w *testWorld) issuedToken(t *testing.T) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", w.iam.url+demo.TokenPath, strings.NewReader(url.Values{"grant_type": {"client_credentials"}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(demoClient, clientSecret)
	resp, err := newClient(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var reply struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&reply); err != nil || reply.Token == "" {
		t.Fatalf("status %q, %v, Token %q, want Token non-empty, no error", resp.Status, err, reply.Token)
	}
	return reply.Token
}

// Secrets of the operator, the caller's token and error texts of upstreams are put into every place
// that accepts one. The test then searches for them in the log at its lowest level, in traces,
// metrics, every response, and at every upstream that must not get them. Questions and arguments
// are for the caller to read, and in no log, trace or metric. Error texts of upstreams are in none
// of these either, since they may repeat what the upstream was sent. With TRACE_CONTENT, traces
// have questions and arguments, and nothing else of these.
func TestSecretsReachOnlyTheirReceiver(t *testing.T) {
	for _, content := range []string{"false", "true"} {
		t.Run("TRACE_CONTENT="+content, func(t *testing.T) { testSecretsReachOnlyTheirReceiver(t, content) })
	}
}

func testSecretsReachOnlyTheirReceiver(t *testing.T, content string) {
	failing := newRecordingServer(t, http.StatusInternalServerError, "canary-mcp-body")
	erring := newRecordingServer(t, http.StatusOK, `{"jsonrpc":"2.0","id":$id,"error":{"code":-32603,"message":"canary-rpc-error"}}`)
	gone := newRecordingServer(t, http.StatusNotFound, `{"jsonrpc":"2.0","error":{"code":-32001,"message":"canary-gone-body"}}`)
	iam := newRecordingServer(t, http.StatusBadRequest, `{"error":"canary-iam-code","error_description":"canary-iam-body"}`)
	ends := newRecordingServer(t, http.StatusOK, "canary-receiver-body")
	hooks := webhooktest.New(t, func(q webhooktest.Question) string {
		if q.Hook == "tool_result" {
			return `{"canary-hook-body":1}` // not a reply: it is logged and treated as {}
		}
		return `{}`
	})
	w, otlp := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
		for _, m := range r.Messages {
			if m.Content == "Fail." {
				// The error's message is logged; the rest of the body is not, and no key within the message.
				return func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusBadRequest)
					_, _ = io.WriteString(w, `{"error":{"message":"wrong key canary-api-key","details":"canary-model-body"}}`)
				}
			}
			if m.Role == "tool" {
				return llmtest.Says("Done.")
			}
		}
		return llmtest.Calls(llmtest.Call{Name: "search_docs", Args: `{"query":"canary-args"}`}, llmtest.Call{Name: "calculate", Args: `{"canary-args":"canary-args"}`})
	}), newRecordingServer(t, http.StatusBadRequest, "canary-collector-body")
	token := w.issuedToken(t)
	path := filepath.Join(t.TempDir(), "mcp.json")
	writeFile(t, path, `{"mcpServers":{
		"demo":{"type":"http","url":"`+w.tools.url+demo.MCPPath+`","auth":{"type":"jwt"},"query":{"key":"canary-demo-query"},"headers":{"X-Api-Key":"canary-demo-header"}},
		"failing":{"type":"http","url":"`+failing.URL+`","bearerToken":"canary-mcp-bearer","query":{"key":"canary-mcp-query"},"headers":{"X-Api-Key":"${CANARY}"}},
		"erring":{"type":"http","url":"`+erring.URL+`"},
		"gone":{"type":"http","url":"`+gone.URL+`"},
		"iam":{"type":"http","url":"`+failing.URL+`/iam","auth":{"type":"client_credentials","tokenUrl":"`+iam.URL+`","clientId":"answerd","clientSecret":"canary-iam-secret"}},
		"child":{"type":"stdio","command":"/no/such/program","args":["canary-child-arg"],"env":{"TOKEN":"canary-child-env"}}}}`)
	s := startAnswerd(t, w.environment("MCP_URL", "", "MCP_CONFIG_PATH", path, "CANARY", "canary-mcp-header", "DEBUG", "true", "RECORD_MODEL_REQUESTS", "true",
		"AUTH_ISSUER", w.iam.url, "AUTH_AUDIENCE", demo.Audience, "AUTH_JWKS_URL", w.iam.url+demo.JWKSPath, "CONSOLE_OIDC_CLIENT_ID", "console",
		"TRACE_CONTENT", content, "TRACE_USERS", "true", "ENABLE_TRACING", "true", "OCI_APM_TRACES_URL", otlp.URL, "OCI_APM_DATA_KEY", "canary-data-key",
		"HOOKS_URL", hooks.URL, "HOOKS_SECRET", webhooktest.Secret.Reveal(), "RUN_WEBHOOK_URL", ends.URL+"/?key=canary-ends-key"))

	var read bytes.Buffer // everything that a caller was sent
	callService := func(method, path, body string, header ...string) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+token)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := newClient(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		fmt.Fprintln(&read, method, path, resp.Status, resp.Header)
		if _, err := io.Copy(&read, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	question := `{"question":"canary-question","context":{"id":"canary-context"},"metadata":{"k":"canary-metadata"}}`
	callService("POST", "/answer", question, "Idempotency-Key", "canary-key")
	callService("POST", "/answer/stream", question, "Cookie", "session=canary-cookie")
	callService("POST", "/answer", `{"question":"Fail."}`)
	callService("POST", "/tools/search_docs/call", `{"args":{"query":"canary-args"},"context":{"id":"canary-context"}}`)
	callService("POST", "/tools/search_docs/call", `{"args":{"canary-args":1}}`)
	callService("GET", "/tools?token=canary-url", "")
	callService("GET", "/answer/stream?question=canary-question&access_token=canary-url", "")
	for _, server := range []string{"failing", "erring", "gone", "iam", "child"} {
		callService("POST", "/servers/"+server+"/refresh", "")
	}
	callService("GET", "/servers/failing/prompts", "")
	callService("GET", "/?code=canary-code&state=canary-state&iss=canary-url", "") // as a sign-in of the console ends
	exported := 0
	for _, run := range regexp.MustCompile(`"run_id":"(run_\w+)"`).FindAllStringSubmatch(read.String(), -1)[:2] {
		before := read.Len()
		callService("GET", "/runs/"+run[1]+"/export", "")
		if text := read.String()[before:]; strings.Contains(text, "canary-question") && strings.Contains(text, `"model_requests"`) {
			exported++
		}
	}
	if exported != 2 {
		t.Errorf("exports with a question and model requests = %d, want 2", exported)
	}
	for _, path := range []string{"/servers", "/readyz", "/metrics", "/openapi.yaml"} {
		callService("GET", path, "")
	}
	callService("GET", "/tools", "", "Authorization", "Bearer "+token+"canary-token")
	callService("GET", "/tools", "", "Authorization", "Bearer canary token")
	s.stop()
	if err := <-s.done; err != nil {
		t.Fatal(err)
	}

	signature := token[strings.LastIndexByte(token, '.')+1:]
	secrets := []string{signature, clientSecret, "canary-api-key", "canary-demo-query", "canary-demo-header", "canary-mcp-bearer", "canary-mcp-query", "canary-mcp-header",
		"canary-child-arg", "canary-child-env", "canary-data-key", "canary-iam-secret", webhooktest.Secret.Reveal(), "canary-token", "canary-ends-key"}
	bodies := []string{"canary-mcp-body", "canary-rpc-error", "canary-gone-body", "canary-iam-code", "canary-iam-body", "canary-hook-body", "canary-model-body", "canary-collector-body", "canary-receiver-body"}
	callers := []string{"canary-args", "canary-question", "canary-context", "canary-metadata", "canary-key", "canary-cookie", "canary-url", "canary token", "canary-code", "canary-state"}
	page := read.String()
	metrics := page[strings.Index(page, "GET /metrics"):strings.Index(page, "GET /openapi.yaml")]
	traces := strings.ReplaceAll(otlp.receivedText(), "dataKey canary-data-key", "") // the key is for the collector
	for sink, text := range map[string]string{"log": s.log.String(), "metrics": metrics, "traces": traces} {
		if len(text) < 1000 {
			t.Errorf("only %d bytes of %s: nothing was proved, want at least 1000", len(text), sink)
		}
		for _, canary := range slices.Concat(secrets, callers, bodies) {
			if isContent := canary == "canary-args" || canary == "canary-question"; isContent && sink == "traces" && content == "true" {
				if !strings.Contains(text, canary) {
					t.Errorf("%s is not in the traces, want it there with TRACE_CONTENT", canary)
				}
				continue
			}
			if at := strings.Index(text, canary); at >= 0 {
				t.Errorf("%s is in the %s, want it nowhere: …%.300s…", canary, sink, text[max(0, at-150):])
			}
		}
	}
	for _, canary := range slices.Concat(secrets, bodies) {
		if at := strings.Index(page, canary); at >= 0 {
			t.Errorf("%s is in a response, want it nowhere: …%.300s…", canary, page[max(0, at-150):])
		}
	}
	if !strings.Contains(page, "canary-args") || !strings.Contains(page, "tool_error") || !strings.Contains(page, `"code":"model_error"`) {
		t.Errorf(`stream %s, want canary-args, a tool_error and "code":"model_error" in it`, page)
	}
	checkNoCanaries(t, "the failing MCP server", failing.receivedText(), "canary-mcp-", slices.Concat(secrets, callers))
	checkNoCanaries(t, "the MCP server that errs", erring.receivedText(), "", secrets)
	checkNoCanaries(t, "the IAM", strings.ReplaceAll(iam.receivedText(), "canary-iam-secret", ""), "canary-iam-", slices.Concat(secrets, callers))
	checkNoCanaries(t, "the receiver of the ends of runs", ends.receivedText(), "canary-ends-", secrets)
	for _, r := range w.model.Requests() {
		if got := fmt.Sprint(r.Header); strings.Contains(strings.ReplaceAll(got, "canary-api-key", ""), "canary") || strings.Contains(got, signature) {
			t.Errorf("the model got %s, want no canary but its API key", got)
		}
	}
}

// checkNoCanaries checks that an upstream was not sent the secrets of others; its own secrets
// begin with own.
func checkNoCanaries(t *testing.T, whom, heard, own string, canaries []string) {
	t.Helper()
	if heard == "" {
		t.Errorf("%s was never asked, want a request", whom)
	}
	for _, canary := range canaries {
		if (own == "" || !strings.HasPrefix(canary, own)) && strings.Contains(heard, canary) {
			t.Errorf("%s was sent %s, want it without %s", whom, heard, canary)
		}
	}
}
