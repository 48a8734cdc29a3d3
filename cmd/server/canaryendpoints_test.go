package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"answerd/internal/demo"
)

// URLs, queries and headers of model endpoints and MCP servers may contain a key. Each is sent to
// its own endpoint only, and is in no log, trace, metric, event, response or report of answerd
// check, even if the endpoint returns the secret in its reply.
func TestSecretsOfEndpointsAreNotShown(t *testing.T) {
	// Each answers in another way, and repeats the request as it came and decoded.
	repeat := func(r *http.Request) string {
		decoded, _ := url.QueryUnescape(r.URL.RawQuery)
		user, password, _ := r.BasicAuth()
		return fmt.Sprint(r.URL, " ", decoded, " ", r.Header, " ", user, " ", password)
	}
	answers := map[string]http.HandlerFunc{
		"refuses": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":{"message":%q}}`, repeat(r))
		},
		"page": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, "<p>%s</p>", repeat(r))
		},
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
		},
		"errs": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"error\":{\"message\":%q}}\n\n", repeat(r))
		},
		"cuts": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"echoes": func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			fmt.Fprintf(conn, "%s\r\n\r\n", repeat(r))
			_ = conn.Close()
		},
	}
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, answer := range answers {
			if strings.HasPrefix(r.URL.Path, "/"+name) {
				answer(w, r)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, repeat(r))
	}))
	endpoint.Config.ErrorLog = nil
	t.Cleanup(endpoint.Close)

	// Configure a model and three MCP servers for each of these endpoints, with a secret in every setting.
	authority := strings.TrimPrefix(endpoint.URL, "http://")
	var models, servers []string
	add := func(name, host string) {
		const more = `"query":{"key":"canary-query &/1","z":"canary-äöüß"},"headers":{"X-Key":"canary-header"}`
		models = append(models, fmt.Sprintf(`{"id":%q,"base_url":"http://u:canary-password@%s/%s/v1?k=canary-url","api_key":"canary-key",%s}`, name, host, name, more))
		servers = append(servers, fmt.Sprintf(`%q:{"type":"http","url":"http://%s/%s?k=canary-url","auth":{"type":"none"},%s}`, name, host, name, more),
			fmt.Sprintf(`"%s-sse":{"type":"sse","url":"http://%s/%s?k=canary-url","auth":{"type":"none"},%s}`, name, host, name, more),
			fmt.Sprintf(`"%s-ws":{"type":"websocket","url":"ws://%s/%s?k=canary-url","auth":{"type":"none"},%s}`, name, host, name, more))
	}
	for name := range answers {
		add(name, authority)
	}
	add("absent", authority)
	add("down", closedAddress(t))
	path := filepath.Join(t.TempDir(), "mcp.json")
	writeFile(t, path, `{"mcpServers":{`+strings.Join(servers, ",")+`}}`)

	otlp := newRecordingServer(t, http.StatusOK, "{}")
	w := newTestWorld(t, newTwoCallScript())
	settings := w.environment("MCP_URL", w.tools.url+demo.MCPPath+"?k=canary-url", "MCP_CONFIG_PATH", path, "MODELS_FILE", modelsFile(t, "["+strings.Join(models, ",")+"]"),
		"DEFAULT_MODEL_ID", "refuses", "LLM_SHOW_ERRORS", "true", "LLM_MAX_RETRIES", "1", "DEBUG", "true", "ENABLE_TRACING", "true", "OTEL_EXPORTER_OTLP_ENDPOINT", otlp.URL,
		"LLM_BASE_URL", endpoint.URL+"/refuses/v1?k=canary-url")
	s, c := startAnswerd(t, settings), newClient(t)

	// Use all of them, and collect what answerd says anywhere.
	var shown strings.Builder
	collectResponse := func(resp *http.Response) {
		fmt.Fprintln(&shown, resp.Status, resp.Header)
		if _, err := io.Copy(&shown, resp.Body); err != nil {
			t.Error(err)
		}
	}
	for name := range answers {
		collectResponse(post(t, c, s.url+"/answer", fmt.Sprintf(`{"question":"Q","model":%q}`, name)))
		collectResponse(post(t, c, s.url+"/answer/stream", fmt.Sprintf(`{"question":"Q","model":%q}`, name)))
		collectResponse(post(t, c, s.url+"/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"Q"}]}`, name)))
		collectResponse(post(t, c, s.url+"/servers/"+name+"/refresh", ""))
		collectResponse(post(t, c, s.url+"/servers/"+name+"-sse/refresh", ""))
	}
	for _, model := range []string{"absent", "down"} {
		collectResponse(post(t, c, s.url+"/answer", fmt.Sprintf(`{"question":"Q","model":%q}`, model)))
	}
	for _, path := range []string{"/servers", "/readyz", "/tools", "/metrics", "/v1/models"} {
		collectResponse(get(t, c, s.url+path))
	}

	s.stop()
	if err := <-s.done; err != nil {
		t.Fatal(err)
	}
	var report strings.Builder
	if err := run(t.Context(), []string{"check", "-ask"}, settings, &report, &report); err == nil {
		t.Error("got no error of check, want one")
	}

	// No secret is in it.
	for sink, text := range map[string]string{"log": s.log.String(), "response": shown.String(), "traces": otlp.receivedText(), "report": report.String()} {
		if len(text) < 1000 {
			t.Errorf("got %d bytes of the %s, want at least 1000", len(text), sink)
		}
		// Random bytes of the traces may be a single ä.
		for _, canary := range []string{"canary", "%C3%A4", "äöüß"} {
			if at := strings.Index(text, canary); at >= 0 {
				t.Errorf("%s is in the %s, want it nowhere: …%.400s…", canary, sink, text[max(0, at-200):])
			}
		}
	}
	if !strings.Contains(shown.String(), "It said:") {
		t.Error("no response has what an endpoint said, want one")
	}
}
