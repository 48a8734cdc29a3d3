package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"answerd/internal/llm/llmtest"
)

// symptom produces what the user sees: a message of the start, of the log, or of a response.
type symptom func(t *testing.T) string

// startFails returns the message with which answerd ends at start, with these settings. A setting whose name
// ends with =FILE is a file with this content.
func startFails(settings ...string) symptom {
	return func(t *testing.T) string {
		environ := newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", "http://127.0.0.1:9/v1")
		for i := 0; i < len(settings); i += 2 {
			name, value := settings[i], settings[i+1]
			if base, ok := strings.CutSuffix(name, "=FILE"); ok {
				name, value = base, writeCodeFile(t, t.TempDir(), filepath.Base(strings.ToLower(base))+".json", value)
			}
			if value == "" {
				delete(environ, name)
			} else {
				environ[name] = value
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		c, err := loadConfig(environ)
		if err == nil {
			err = serve(ctx, c, io.Discard, func(string) { stop() })
		}
		if err == nil {
			return ""
		}
		return err.Error()
	}
}

// startWarns returns the log of a start with these settings.
func startWarns(settings ...string) symptom {
	return func(t *testing.T) string {
		c, err := loadConfig(newTestEnvironment(append([]string{"ADDR", "127.0.0.1:0", "LLM_BASE_URL", "http://127.0.0.1:9/v1"}, settings...)...))
		if err != nil {
			t.Fatal(err)
		}
		var warnings strings.Builder
		for _, w := range c.warnings {
			warnings.WriteString(w.Error() + "\n")
		}
		return warnings.String()
	}
}

// responds returns the body of a response of a service with these settings.
func responds(script llmtest.Script, settings []string, method, path, body string, header ...string) symptom {
	return func(t *testing.T) string {
		w := newTestWorld(t, script)
		s := startAnswerd(t, w.environment(settings...))
		req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			if header[i] == "Host" {
				req.Host = header[i+1]
			}
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := newClient(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + s.log.String()
	}
}

// modelFails returns what a caller of /answer and the log see of a failure of the model's endpoint.
func modelFails(status int, body string, settings ...string) symptom {
	return responds(func(llmtest.Request) llmtest.Answer { return llmtest.Fails(status, body) },
		append([]string{"LLM_MAX_RETRIES", "0"}, settings...), http.MethodPost, "/answer", `{"question":"?"}`)
}

// checkPrints returns the output of answerd check.
func checkPrints(settings ...string) symptom {
	return func(t *testing.T) string {
		var out bytes.Buffer
		err := run(t.Context(), []string{"check"}, newTestEnvironment(append([]string{"ADDR", "127.0.0.1:0"}, settings...)...), &out, &out)
		if err != nil {
			out.WriteString(err.Error())
		}
		return out.String()
	}
}

// checkFindsServer returns the output of answerd check with one MCP server, whose entry in mcp.json is given.
func checkFindsServer(entry string) symptom {
	return func(t *testing.T) string {
		path := writeCodeFile(t, t.TempDir(), "mcp.json", `{"mcpServers": {"a": `+entry+`}}`)
		return checkPrints("LLM_BASE_URL", "http://127.0.0.1:9/v1", "DEFAULT_MODEL_ID", "m", "MCP_CONFIG_PATH", path)(t)
	}
}

func mcpFile(text string) symptom { return startFails("MCP_CONFIG_PATH=FILE", text) }

// occupiedPort returns the message for an ADDR that another process has.
func occupiedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return startFails("ADDR", l.Addr().String())(t)
}

// answerYes answers every question with "yes".
func answerYes(llmtest.Request) llmtest.Answer { return llmtest.Says("yes") }

// symptoms has a producer for each entry of docs/troubleshooting.md, by the text of its heading.
var symptoms = map[string]symptom{
	"DEFAULT_MODEL_ID: must be set":                                     startFails("LLM_BASE_URL", "", "LLM_API_KEY", "k"),
	"LLM_API_KEY: is not set":                                           startWarns("LLM_BASE_URL", "https://api.openai.com/v1", "DEFAULT_MODEL_ID", "m"),
	"LLM_BASE_URL: must be an http or https URL":                        startFails("LLM_BASE_URL", "llm.example.com"),
	"is not a setting and has no effect":                                startWarns("LLM_APIKEY", "k"),
	"is in quotes, which are part of the value":                         startWarns("LLM_API_KEY", `"k"`),
	"has a line break or another control character":                     startFails("LLM_API_KEY", "first\nsecond"),
	"ADDR: is not loopback and no inbound authentication is set":        startFails("ADDR", ":8080"),
	"ADDR: must be host:port":                                           startFails("ADDR", "8080"),
	"address already in use":                                            occupiedPort,
	"AUTH_JWKS_URL: must be set, since AUTH_ISSUER is not an https URL": startFails("AUTH_ISSUER", "iam", "AUTH_AUDIENCE", "a"),
	"TIMEOUT: not a duration":                                           startFails("TIMEOUT", "soon"),
	"EVENTS_URL: must be file:DIR":                                      startFails("EVENTS_URL", "redis://localhost"),
	"cannot be used as a directory":                                     startFails("EVENTS_URL", "file:/dev/null/events"),
	"OTEL_METRICS_EXPORTER:":                                            startFails("OTEL_METRICS_EXPORTER", "otlp"),
	"OTEL_LOGS_EXPORTER:":                                               startFails("OTEL_LOGS_EXPORTER", "otlp"),
	"ENABLE_TRACING:":                                                   startFails("ENABLE_TRACING", "true"),
	"SYSTEM_PROMPT_FILE:":                                               startFails("SYSTEM_PROMPT_FILE=FILE", "Hello {{.user}}"),
	"MODELS_FILE:":                                                      startFails("MODELS_FILE=FILE", `[{"id": "a", "price": {"input_per_million": -1}}]`),
	"DEFAULT_MODEL_ID: is not one of the models of MODELS_FILE":         startFails("MODELS_FILE=FILE", `[{"id": "a"}]`, "DEFAULT_MODEL_ID", "b"),
	"_FILE: cannot be read":                                             startFails("LLM_API_KEY_FILE", "/nonexistent/key"),
	"HOOKS_SECRET:":                                                     startFails("HOOKS_URL", "https://hooks.example.com"),
	"CORS_ORIGINS:":                                                     startFails("CORS_ORIGINS", "app.example.com"),
	"PUBLIC_URL:":                                                       startFails("PUBLIC_URL", "answerd.example.com"),
	"needs the environment variable":                                    mcpFile(`{"mcpServers": {"a": {"url": "https://a.example.com/mcp", "bearerToken": "${NOPE}"}}}`),
	"MCP_CONFIG_PATH: cannot be read":                                   startFails("MCP_CONFIG_PATH", "/nonexistent/mcp.json"),
	"MCP_CONFIG_PATH: mcp.json: line":                                   mcpFile(`{"mcpServers": {"a": {"type": "http" "url": "https://a.example.com/mcp"}}}`),
	"auth: type jwt needs ENABLE_JWT_TOKEN=true":                        mcpFile(`{"mcpServers": {"a": {"url": "https://a.example.com/mcp", "auth": {"type": "jwt"}}}}`),

	"connection refused":       checkPrints("LLM_BASE_URL", "http://127.0.0.1:9/v1", "DEFAULT_MODEL_ID", "m"),
	"its command is not found": checkFindsServer(`{"command": "no-such-program"}`),
	"exit status 127":          checkFindsServer(`{"command": "sh", "args": ["-c", "exec no-such-program"]}`),
	"it refused our credentials": func(t *testing.T) string {
		refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
		defer refusing.Close()
		return checkFindsServer(`{"url": "` + refusing.URL + `/mcp"}`)(t)
	},
	"The model endpoint rejected the credentials": modelFails(http.StatusUnauthorized, `{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}`),
	"The model endpoint does not know the model":  modelFails(http.StatusNotFound, `{"error":{"message":"The model does not exist","code":"model_not_found"}}`),
	"The model endpoint refused the request":      modelFails(http.StatusBadRequest, `{"error":{"message":"Unknown parameter","code":"unknown_parameter"}}`),
	"quota":                                       modelFails(http.StatusTooManyRequests, `{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}`),
	"model_rate_limited":                          modelFails(http.StatusTooManyRequests, `{"error":{"message":"Rate limit reached","code":"rate_limit_exceeded"}}`),
	"model_error":                                 modelFails(http.StatusInternalServerError, `{"error":{"message":"boom"}}`),

	"A valid bearer token is required":                         responds(answerYes, []string{"AUTH_ISSUER", "https://iam.example.com", "AUTH_AUDIENCE", "a", "AUTH_JWKS_URL", "https://iam.example.com/jwks"}, http.MethodPost, "/answer", `{"question":"?"}`),
	"Tokens cannot be verified at the moment":                  responds(answerYes, []string{"AUTH_ISSUER", "https://iam.example.com", "AUTH_AUDIENCE", "a", "AUTH_JWKS_URL", "http://127.0.0.1:9/jwks"}, http.MethodGet, "/tools", "", "Authorization", "Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.e30.AA"),
	"This origin may not call the service":                     responds(answerYes, nil, http.MethodPost, "/answer", `{"question":"?"}`, "Origin", "https://app.example.com"),
	"This service does not serve this host name":               responds(answerYes, nil, http.MethodGet, "/tools", "", "Host", "answerd.example.com"),
	"The request has invalid fields":                           responds(answerYes, nil, http.MethodPost, "/answer", `{"question":"?","foo":1}`),
	"The body must be application/json":                        responds(answerYes, nil, http.MethodPost, "/answer", `question=?`, "Content-Type", "application/x-www-form-urlencoded"),
	"The run was lost when the process that executed it ended": responds(answerYes, nil, http.MethodGet, "/runs/run_aaaaaaaaaaaaaaaaaaaaaaaaaa", ""),
	"is not the id of an event":                                responds(answerYes, nil, http.MethodPost, "/answer/stream", `{"question":"?"}`, "Last-Event-ID", "12"),
	"tools_unavailable":                                        responds(answerYes, []string{"MCP_URL", "http://127.0.0.1:9/mcp"}, http.MethodPost, "/answer", `{"question":"?","tool_choice":"required"}`),
	"The body is larger than":                                  responds(answerYes, []string{"MAX_BODY_BYTES", "1KiB"}, http.MethodPost, "/answer", `{"question":"`+strings.Repeat("x", 2000)+`"}`),
}

var symptomHeading = regexp.MustCompile("(?m)^### `([^`\n]+)`")

// TestTroubleshootingSymptomsAreReal produces every symptom that docs/troubleshooting.md has as a heading, and looks for
// the text of the heading in what the user would see.
func TestTroubleshootingSymptomsAreReal(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}

	documented := map[string]bool{}
	for _, m := range symptomHeading.FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
		if symptoms[m[1]] == nil {
			t.Errorf("no test produces %q, want one", m[1])
		}
	}

	for text, produce := range symptoms {
		t.Run(text, func(t *testing.T) {
			got := produce(t)
			if !strings.Contains(got, text) {
				t.Errorf("got %s, want %q in it", got, text)
			}
			if !documented[text] {
				t.Errorf("%q has no heading in docs/troubleshooting.md, want one", text)
			}
		})
	}

	if len(documented) < 40 {
		t.Errorf("got %d symptoms, want at least 40", len(documented))
	}
}
