package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// newTestEnvironment returns an environment with these settings, names and values in turn.
func newTestEnvironment(settings ...string) environment {
	environ := make(environment)
	for i := 0; i < len(settings); i += 2 {
		environ[settings[i]] = settings[i+1]
	}
	return environ
}

func TestLoadConfigDefaultsWorkWithAModelEndpoint(t *testing.T) {
	c, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Addr != "127.0.0.1:8080" || c.DefaultModelID != "xai.grok-4" || c.Timeout != time.Minute || c.MaxHistory != 16 ||
		c.EventsMaxBytes != 256<<20 || c.Scope != "urn:opc:idm:__myscopes__" || c.AgentTimezone != "Europe/Rome" {
		t.Errorf("config %+v, want Addr 127.0.0.1:8080, DefaultModelID xai.grok-4, Timeout 1 min, MaxHistory 16, EventsMaxBytes 256<<20, Scope urn:opc:idm:__myscopes__, AgentTimezone Europe/Rome", c)
	}
}

func TestLoadConfigReadsOtherSpellings(t *testing.T) {
	c, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "TIMEOUT", "90", "DEBUG", "yes"))
	if err != nil || c.Timeout != 90*time.Second || !c.Debug {
		t.Errorf("config %+v, %v, want Timeout 90 s, Debug true, no error", c, err)
	}
	if c, err := loadConfig(newTestEnvironment("OPENAI_BASE_URL", "http://127.0.0.1:9/v1", "OPENAI_API_KEY", "sk")); err != nil || c.LLMBaseURL != "http://127.0.0.1:9/v1" || c.LLMAPIKey.Reveal() != "sk" {
		t.Errorf("config %+v, %v, want LLMBaseURL http://127.0.0.1:9/v1, LLMAPIKey.Reveal sk, no error", c, err)
	}
}

func TestLoadConfigNamesABadSettingOnOneLine(t *testing.T) {
	here := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1"}
	for _, c := range []struct {
		name     string
		settings []string
	}{
		{"DEFAULT_MODEL_ID", []string{"OPENAI_API_KEY", "sk-canary"}},
		{"LLM_BASE_URL", []string{"LLM_BASE_URL", "ftp://x"}},
		{"ADDR", append(here, "ADDR", "8080")},
		{"ADDR", append(here, "ADDR", "0.0.0.0:8080")},
		{"ADDR", append(here, "ADDR", ":8080")},
		{"ADDR", append(here, "ADDR", "127.0.0.1:99999")},
		{"METRICS_ADDR", append(here, "METRICS_ADDR", "127.0.0.1:99999")},
		{"LLM_BASE_URL", []string{"LLM_BASE_URL", "https://llm.example/v1/chat/completions"}},
		{"MODELS_FILE", append(here, "MODELS_FILE", modelsFile(t, `[{"id":"a","base_url":"https://llm.example/v1/chat/completions/"}]`))},
		{"TIMEOUT", append(here, "TIMEOUT", "soon")},
		{"TIMEOUT", append(here, "TIMEOUT", "-1s")},
		{"MAX_TURNS", append(here, "MAX_TURNS", "many")},
		{"MAX_TURNS", append(here, "MAX_TURNS", "0")},
		{"SHUTDOWN_DELAY", append(here, "SHUTDOWN_DELAY", "-1s")},
		{"MAX_BODY_BYTES", append(here, "MAX_BODY_BYTES", "1 potato")},
		{"DEBUG", append(here, "DEBUG", "perhaps")},
		{"LLM_TOOL_CALLING", append(here, "LLM_TOOL_CALLING", "magic")},
		{"CORS_ORIGINS", append(here, "CORS_ORIGINS", "https://a.example,*")},
		{"IAM_BASE_URL", append(here, "ENABLE_JWT_TOKEN", "true")},
		{"IAM_CLIENT_SECRET", append(here, "ENABLE_JWT_TOKEN", "true", "IAM_BASE_URL", "https://iam.example", "IAM_CLIENT_ID", "a")},
		{"IAM_CLIENT_SECRET_FILE", append(here, "IAM_CLIENT_SECRET_FILE", "/no/such/file")},
		{"AUTH_AUDIENCE", append(here, "AUTH_ISSUER", "https://iam.example")},
		{"METRICS_ADDR", append(here, "ADDR", "127.0.0.1:8080", "METRICS_ADDR", "127.0.0.1:8080")},
		{"AUTH_ISSUER", append(here, "AUTH_AUDIENCE", "answerd")},
		{"OCI_APM_DATA_KEY", append(here, "ENABLE_TRACING", "true", "OCI_APM_TRACES_URL", "https://apm.example")},
		{"OTEL_EXPORTER_OTLP_HEADERS", append(here, "ENABLE_TRACING", "true", "OTEL_EXPORTER_OTLP_ENDPOINT", "https://otlp.example", "OTEL_EXPORTER_OTLP_HEADERS", "authorization: Bearer canary")},
		{"OTEL_EXPORTER_OTLP_HEADERS", append(here, "OTEL_METRICS_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT", "https://otlp.example", "OTEL_EXPORTER_OTLP_HEADERS", "a=b,x-api-key=canary%zz")},
		{"OTEL_EXPORTER_OTLP_LOGS_HEADERS", append(here, "OTEL_LOGS_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT", "https://otlp.example", "OTEL_EXPORTER_OTLP_LOGS_HEADERS", "x key=canary")},
		{"OTEL_BSP_MAX_QUEUE_SIZE", append(here, "OTEL_BSP_MAX_QUEUE_SIZE", "0")},
		{"TRACE_URL", append(here, "TRACE_URL", "https://traces.example/")},
		{"TRACE_URL", append(here, "TRACE_URL", "javascript:alert('{trace_id}')")},
		{"HOOKS_SECRET", append(here, "HOOKS_URL", "https://hooks.example")},
		{"HOOKS_URL", append(here, "HOOKS_SECRET", "s", "HOOKS_URL", "http://hooks.example/?key=canary")},
		{"HOOKS_URL", append(here, "HOOKS_SECRET", "s", "HOOKS_URL", "https://user:canary@hooks.example")},
		{"HOOKS_URL", append(here, "HOOKS_EVENTS", "run_end")},
		{"HOOKS_EVENTS", append(here, "HOOKS_SECRET", "s", "HOOKS_URL", "https://hooks.example", "HOOKS_EVENTS", "run_end, run_start")},
		{"BUDGET_TOOL_CALLS", append(here, "BUDGET_TOOL_CALLS", "-1")},
		{"BUDGET_TOTAL_TOKENS", append(here, "BUDGET_TOTAL_TOKENS", "1.5")},
		{"BUDGET_SECONDS", append(here, "BUDGET_SECONDS", "NaN")},
		{"BUDGET_COST", append(here, "BUDGET_COST", "much")},
		{"BUDGET_COST", append(here, "BUDGET_COST", "1")},
		{"BUDGET_PER_CALLER", append(here, "BUDGET_PER_CALLER", "cost=5/24h")},
		{"BUDGET_PER_CALLER", append(here, "BUDGET_PER_CALLER", "total_tokens=5")},
		{"BUDGET_PER_CALLER", append(here, "BUDGET_PER_CALLER", "runs=5/24h")},
		{"BUDGET_PER_CALLER", append(here, "BUDGET_PER_CALLER", "total_tokens=5/1s")},
		{"LIMIT_BY", append(here, "LIMIT_BY", "claim:tenant")},
		{"LIMIT_BY", append(here, "LIMIT_BY", "tenant")},
		{"LIMIT_BY", append(here, "LIMIT_BY", "claim:")},
		{"COST_CLAIM", append(here, "COST_CLAIM", "tenant")},
		{"BUDGET_RESULT_BYTES", append(here, "BUDGET_RESULT_BYTES", "-1")},
		{"EVENTS_URL", append(here, "EVENTS_URL", "redis://u:canary@host")},
	} {
		t.Run(fmt.Sprint(c.name, c.settings[2%len(c.settings):]), func(t *testing.T) {
			_, err := loadConfig(newTestEnvironment(c.settings...))
			var bad *configError
			if !errors.As(err, &bad) || bad.name != c.name || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "canary") {
				t.Fatalf(`error %v, want a configError, name %q, error without "\n", error without canary`, err, c.name)
			}
			var line strings.Builder
			if code := reportError(err, &line); code != 2 || !strings.HasPrefix(line.String(), "answerd: "+c.name+": ") {
				t.Errorf("exit code %d, %q, want code 2, line starting with %q", code, line.String(), "answerd: "+c.name+": ")
			}
		})
	}
}

// Most limits take 0 or nothing for "none", so a negative number is a mistake in each of them. A new setting needs a
// rule that refuses it (settingRules).
func TestLoadConfigRefusesNegativeNumbers(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[config]()) {
		name, kind := field.Tag.Get("env"), field.Type.Kind()
		if kind == reflect.Pointer {
			kind = field.Type.Elem().Kind()
		}
		if name == "" || kind < reflect.Int || kind > reflect.Float64 {
			continue
		}
		_, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "AUTH_ISSUER", "https://iam.example", "AUTH_AUDIENCE", "answerd", name, "-1"))
		if bad, ok := errors.AsType[*configError](err); !ok || bad.name != name {
			t.Errorf("%s=-1: error %v, want a configError, name %s", name, err, name)
		}
	}
}

// The standard variables say what is exported where, how many spans may wait for it, and whether anything is exported.
func TestTelemetryUsesTheStandardVariables(t *testing.T) {
	tracing := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "ENABLE_TRACING", "true", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9/",
		"OTEL_METRICS_EXPORTER", "otlp", "OTEL_LOGS_EXPORTER", "otlp"}
	for _, c := range []struct {
		settings []string
		want     string
	}{
		{nil, "true 2048 http://127.0.0.1:9/v1/traces http://127.0.0.1:9/v1/metrics http://127.0.0.1:9/v1/logs"},
		{[]string{"OTEL_BSP_MAX_QUEUE_SIZE", "8192", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:8/x"}, "true 8192 http://127.0.0.1:8/x http://127.0.0.1:9/v1/metrics http://127.0.0.1:9/v1/logs"},
		{[]string{"OTEL_SDK_DISABLED", "true"}, "false 2048   "},
	} {
		cfg, err := loadConfig(newTestEnvironment(append(tracing[:len(tracing):len(tracing)], c.settings...)...))
		if err != nil {
			t.Fatal(err)
		}
		tc := telemetryConfig(cfg, nil)
		got := fmt.Sprint(tc.Tracing, " ", tc.QueueSize, " ", tc.Endpoint, " ", tc.MetricsEndpoint, " ", tc.LogsEndpoint)
		if got != c.want {
			t.Errorf("%v: got %q, want %q", c.settings, got, c.want)
		}
	}
}

// The OpenTelemetry SDK would use its default in place of these, and write a line that is not JSON.
func TestLoadConfigNamesNumbersThatTheOpenTelemetrySDKIgnores(t *testing.T) {
	here := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"}
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_TIMEOUT": "10s", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1e4", "OTEL_METRIC_EXPORT_INTERVAL": "60s",
		"OTEL_BSP_SCHEDULE_DELAY": "5s", "OTEL_BLRP_EXPORT_TIMEOUT": "30s", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many",
	} {
		c, err := loadConfig(newTestEnvironment(append(here, "OTEL_LOGS_EXPORTER", "otlp", name, value)...))
		if err != nil || len(c.warnings) != 1 || c.warnings[0].name != name {
			t.Errorf("%s=%s: got %v and the warnings %v, want one about it", name, value, err, c.warnings)
		}
		if c, err := loadConfig(newTestEnvironment(append(here, name, value)...)); err != nil || len(c.warnings) > 0 {
			t.Errorf("%s=%s, which nothing reads: got %v and %v, want no warning", name, value, err, c.warnings)
		}
	}
}

// The OpenTelemetry SDK would export without these certificates.
func TestLoadConfigRefusesCertificatesForOTLPThatCannotBeRead(t *testing.T) {
	here := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"}
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nonexistent", "OTEL_EXPORTER_OTLP_LOGS_CLIENT_KEY": "/nonexistent",
	} {
		_, err := loadConfig(newTestEnvironment(append(here, "OTEL_LOGS_EXPORTER", "otlp", name, value)...))
		if bad, ok := errors.AsType[*configError](err); !ok || bad.name != name {
			t.Errorf("%s=%s: got %v, want an error about it", name, value, err)
		}
		if _, err := loadConfig(newTestEnvironment(append(here, name, value)...)); err != nil {
			t.Errorf("%s=%s, which nothing reads: got %v, want no error", name, value, err)
		}
	}
	good := append(here, "OTEL_LOGS_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_TIMEOUT", "10000", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "-1", "OTEL_EXPORTER_OTLP_CERTIFICATE", "config_test.go")
	if _, err := loadConfig(newTestEnvironment(good...)); err != nil {
		t.Errorf("a file: got %v, want no error", err)
	}
}

// HOOKS_SECRET also signs webhooks that do not need HOOKS_URL.
func TestLoadConfigAcceptsHooksSecretAlone(t *testing.T) {
	c, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "HOOKS_SECRET", "canary"))
	if err != nil || c.HooksSecret.Reveal() != "canary" {
		t.Errorf("loadConfig() = %v, want the secret and no error", err)
	}
}

func TestLoadConfigReadsSecretsFromFilesAndNeverPrintsThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("sk-canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "LLM_API_KEY_FILE", path))
	if err != nil || c.LLMAPIKey.Reveal() != "sk-canary" {
		t.Fatalf("error %v, want reveal sk-canary, no error", err)
	}
	c.lookup = nil
	if strings.Contains(fmt.Sprintf("%v %+v %#v", c, c, c), "canary") {
		t.Errorf("the secret prints as %v %+v %#v, want it without canary", c, c, c)
	}
}

// An empty file is one that was not written yet, or by mistake. Another key, such as OPENAI_API_KEY, must not take its
// place, nor may hooks be signed with an empty secret.
func TestLoadConfigRefusesAnEmptySecretFile(t *testing.T) {
	for _, name := range []string{"LLM_API_KEY_FILE", "HOOKS_SECRET_FILE"} {
		for _, text := range []string{"", " \r\n"} {
			path := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "OPENAI_API_KEY", "sk-canary", name, path))
			if got, want := fmt.Sprint(err), name+": is empty"; got != want {
				t.Errorf("%q: got error %q, want %q", text, got, want)
			}
		}
	}
}

// net/http would send no request, which looked as if the endpoint could not be reached.
func TestLoadConfigRefusesHeadersThatCannotBeSent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("sk-canary\nsk-old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		settings []string
		want     string
	}{
		{[]string{"LLM_API_KEY_FILE", path}, "LLM_API_KEY: or OPENAI_API_KEY has a line break"},
		{[]string{"OPENAI_API_KEY", "sk-\x00canary"}, "LLM_API_KEY: or OPENAI_API_KEY has a line break"},
		{[]string{"MODELS_FILE", modelsFile(t, `[{"id":"m","api_key":"${KEY}"}]`), "KEY", "sk-\rcanary"}, "MODELS_FILE: /0/api_key: has a line break"},
		{[]string{"MODELS_FILE", modelsFile(t, `[{"id":"m","headers":{"Api-Key":"${KEY}"}}]`), "KEY", "sk-canary\nx"}, `MODELS_FILE: /0/headers: "Api-Key" has a line break`},
		{[]string{"MODELS_FILE", modelsFile(t, `[{"id":"m","headers":{"Api Key":"x"}}]`)}, `MODELS_FILE: /0/headers: "Api Key" is not a header name`},
	} {
		_, err := loadConfig(newTestEnvironment(append(c.settings, "LLM_BASE_URL", "http://127.0.0.1:9/v1")...))
		if got := fmt.Sprint(err); !strings.HasPrefix(got, c.want) || strings.Contains(got, "canary") {
			t.Errorf("%q: got error %q, want one that begins with %q", c.settings, got, c.want)
		}
	}
}

func TestLoadConfigWarnsAboutUnknownVariables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(file, []byte(`{"mcpServers": {"crm": {"url": "https://crm.example", "bearerToken": "${MCP_CRM_TOKEN}",
		"headers": {"A": "${env:LLM_OF_CURSOR}", "B": "$AUTH_OF_GEMINI", "C": "${input:secret-of-code}"}}}}`), 0o600); err != nil {
		t.Fatal(err)
	}

	c, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "MCP_CONFIG_PATH", file,
		"LLM_APIKEY", "canary", "MAX_TURN", "3", "TIMEOUT_", "9", "OTEL_SERVICENAME", "x", // misspelt
		"EVENT_URL", "file:/data", "LOGLEVEL", "debug", // also before the first underscore
		"PORTS", "9", "DATABASE_URL", "canary", "APP_SCOPE", "x", // unlike all settings, or too short to tell
		"LLM_OF_CURSOR", "canary", "AUTH_OF_GEMINI", "canary", "SECRET_OF_CODE", "canary", // in the forms of other hosts
		"MCP_CRM_TOKEN", "canary", "OTEL_EXPORTER_OTLP_HEADERS", "a=b", "OCI_CLI_PROFILE", "x", // of others
		"MCP_SERVICE_HOST", "10.0.0.1", "MCP_PORT_80_TCP_ADDR", "10.0.0.1", "MCP_PORT", "tcp://10.0.0.1:80", // by Kubernetes
		"OPENAI_API_KEY", "canary", "HOME", "/root", "LLM_API_KEY_FILE", ""))
	if err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, w := range c.warnings {
		got = append(got, w.name+" → "+w.reason[strings.LastIndex(w.reason, " ")+1:])
	}

	want := "EVENT_URL → EVENTS_URL, LLM_APIKEY → LLM_API_KEY, LOGLEVEL → LOG_LEVEL, MAX_TURN → MAX_TURNS, OTEL_SERVICENAME → OTEL_SERVICE_NAME, TIMEOUT_ → TIMEOUT"
	if strings.Join(got, ", ") != want {
		t.Errorf("warnings %s\nwant     %s", strings.Join(got, ", "), want)
	}
}

func TestServeWarnsAboutAMissingKeyAndUnknownVariables(t *testing.T) {
	t.Parallel()
	traced := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "ENABLE_TRACING", "true", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"}
	traced = traced[:len(traced):len(traced)]
	for _, c := range []struct {
		settings []string
		want     string // "" for no warning
	}{
		{[]string{"DEFAULT_MODEL_ID", "gpt-5"}, `"setting":"LLM_API_KEY","reason":"is not set`},
		{[]string{"DEFAULT_MODEL_ID", "gpt-5", "OPENAI_API_KEY", "canary"}, ""},
		{[]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1"}, ""},
		{[]string{"MODELS_FILE", modelsFile(t, `[{"id":"own","base_url":"http://127.0.0.1:9/v1"},{"id":"key","api_key":"canary"}]`)}, ""},
		{[]string{"MODELS_FILE", modelsFile(t, `[{"id":"own","base_url":"http://127.0.0.1:9/v1"},{"id":"gpt-5"}]`)}, `"setting":"LLM_API_KEY","reason":"is not set`},
		{[]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "OTEL_LOGS_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}, `"setting":"OTEL_EXPORTER_OTLP_PROTOCOL","reason":"has no effect: `},
		{[]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}, ""},
		{append(traced, "OTEL_TRACES_SAMPLER", "ParentBased_TraceIDRatio", "OTEL_TRACES_SAMPLER_ARG", "0.1"), ""},
		{append(traced, "OTEL_TRACES_SAMPLER", "ratio"), `"setting":"OTEL_TRACES_SAMPLER","reason":"has no effect, as if it were unset: `},
		{append(traced, "OTEL_TRACES_SAMPLER", "traceidratio", "OTEL_TRACES_SAMPLER_ARG", "10"), `"setting":"OTEL_TRACES_SAMPLER_ARG","reason":"has no effect, as if it were unset: `},
		{append(traced, "OTEL_TRACES_SAMPLER", "always_on", "OTEL_TRACES_SAMPLER_ARG", "10%"), ""},
		{append(traced, "OTEL_TRACES_EXPORTER", "otlp"), ""},
		{append(traced, "OTEL_TRACES_EXPORTER", "none"), `"setting":"OTEL_TRACES_EXPORTER","reason":"has no effect: ENABLE_TRACING says whether traces are exported, by OTLP`},
		{[]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "OTEL_TRACES_EXPORTER", "otlp"}, `"setting":"OTEL_TRACES_EXPORTER","reason":"has no effect: `},
		{[]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "OTEL_TRACES_EXPORTER", "none"}, ""},
		{append(traced, "OTEL_TRACES_EXPORTER", "none", "OTEL_SDK_DISABLED", "true"), ""},
		{[]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1 "}, `"setting":"LLM_BASE_URL","reason":"begins or ends with a space`},
		{[]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "LLM_API_KEY", `"canary"`}, `"setting":"LLM_API_KEY","reason":"is in quotes`},
		{[]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "DEFAULT_MODEL_ID", "'m'"}, `"setting":"DEFAULT_MODEL_ID","reason":"is in quotes`},
		{[]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "LLM_APIKEY", "canary"}, `"setting":"LLM_APIKEY","reason":"is not a setting and has no effect; the nearest setting is LLM_API_KEY"`},
	} {
		s := startAnswerd(t, newTestEnvironment(append(c.settings, "ADDR", "127.0.0.1:0")...))
		got := s.log.String()
		if warned := strings.Contains(got, "setting needs attention"); warned != (c.want != "") || !strings.Contains(got, c.want) || strings.Contains(got, "canary") {
			t.Errorf("%v: log %s, want the warning %q", c.settings, got, c.want)
		}
	}
}

func TestAllowedHostsFollowTheAddress(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:8080":  "[localhost 127.0.0.1 ::1 127.0.0.1]",
		"localhost:8080":  "[localhost 127.0.0.1 ::1 localhost]",
		"0.0.0.0:8080":    "[]",
		"10.1.2.3:8080":   "[10.1.2.3]",
		"Agent.corp:8080": "[agent.corp]",
	} {
		c, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "ADDR", addr, "AUTH_INSECURE_ALLOW_ANONYMOUS", "true"))
		if err != nil || fmt.Sprint(c.AllowedHosts) != want {
			t.Errorf("%s: %v, %v, want %s and no error", addr, c.AllowedHosts, err, want)
		}
	}
}

func TestNormalizeHostsMatchesRequests(t *testing.T) {
	settings := []string{"LLM_BASE_URL", "http://127.0.0.1:9/v1"}
	c, err := loadConfig(newTestEnvironment(append(settings,
		"ALLOWED_HOSTS", "App.Example, [::1],agent.corp.", "CORS_ORIGINS", "https://App.Example:443, http://localhost:3000")...))
	if got := fmt.Sprint(c.AllowedHosts, c.CORSOrigins); err != nil || got != "[app.example ::1 agent.corp] [https://app.example http://localhost:3000]" {
		t.Errorf("got %s, %v, want %s and no error", got, err, "[app.example ::1 agent.corp] [https://app.example http://localhost:3000]")
	}
	for _, bad := range [][2]string{
		{"ALLOWED_HOSTS", "app.example:443"}, {"ALLOWED_HOSTS", "https://app.example"}, {"ALLOWED_HOSTS", "*"}, {"ALLOWED_HOSTS", "*.example"}, {"ALLOWED_HOSTS", "a,,b"},
		{"CORS_ORIGINS", "*"}, {"CORS_ORIGINS", "null"}, {"CORS_ORIGINS", "https://app.example/"}, {"CORS_ORIGINS", "app.example"}, {"CORS_ORIGINS", "https://u@app.example"},
	} {
		_, err := loadConfig(newTestEnvironment(append(settings, bad[0], bad[1])...))
		if e, ok := errors.AsType[*configError](err); !ok || e.name != bad[0] {
			t.Errorf("%s: %v, want a configError, name bad[0]", bad, err)
		}
	}
}

// Settings that are written with a unit.
func FuzzSettingsWithUnits(f *testing.F) {
	for _, s := range []string{"1MiB", "10/s", "1000/h", "0", "-1", "1KiB ", "9223372036854775807B", "8589934592GiB", "/s", "1/s/s", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var size byteSize
		if err := size.UnmarshalText([]byte(text)); err == nil && size < 0 {
			t.Errorf("%q is %d bytes, want at least 0", text, size)
		}
		var rate rateLimit
		if err := rate.UnmarshalText([]byte(text)); err == nil && (rate.N < 1 || rate.N > maxRate || rate.Per <= 0) {
			t.Errorf("%q is %v, want N at least 1, N at most %d, Per more than 0", text, rate, maxRate)
		}
	})
}

// TestFilesMayBeginWithAByteOrderMark reads files as editors on Windows save them (RFC 8259 section 8.1).
func TestFilesMayBeginWithAByteOrderMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.json")
	writeFile(t, path, "\ufeff"+`{"rules": [{"subjects": ["ann"]}]}`)
	rules, err := readRules(config{AuthRulesFile: path})
	if err != nil || len(rules) != 1 {
		t.Errorf("readRules = %v, %v, want one rule", rules, err)
	}

	path = filepath.Join(t.TempDir(), "key")
	writeFile(t, path, "\ufeffsk-1\r\n")
	c, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "LLM_API_KEY_FILE", path))
	if err != nil || c.LLMAPIKey.Reveal() != "sk-1" {
		t.Errorf("LLM_API_KEY_FILE: got the key %q and the error %v, want sk-1", c.LLMAPIKey.Reveal(), err)
	}
	file := &secretFile{path: path, what: "a test", logger: slog.New(slog.DiscardHandler)}
	if got := file.read(); got != "sk-1" {
		t.Errorf("a secret that is read again: got %q, want sk-1", got)
	}
}
