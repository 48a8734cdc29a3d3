package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
)

// helpAtEnd matches the page at the end of an error that ends the process.
var helpAtEnd = regexp.MustCompile(`^answerd: .* \(see (\S+|answerd help)\)\n$`)

// TestStartUpErrorsNameAPage goes over every setting, and over the errors that name none: the line on
// stderr ends with a page that exists.
func TestStartUpErrorsNameAPage(t *testing.T) {
	failures := []error{
		errors.New("check failed"),
		fmt.Errorf("listen on ADDR: %w", &net.OpError{Op: "listen", Err: os.ErrPermission}),
		errors.New("EVENTS_URL: nats: no servers available for connection"),
		&configError{"environment", "cannot be parsed"},
		&usageError{"x is not a command"},
	}
	for _, name := range settingNames() {
		failures = append(failures, &configError{name, "cannot be used"})
	}
	for _, err := range failures {
		var line strings.Builder
		reportError(err, &line)
		m := helpAtEnd.FindStringSubmatch(line.String())
		if m == nil {
			t.Errorf("got %q, want a page at its end", line.String())
			continue
		}
		if m[1] != "answerd help" && !hasHeading(t, m[1]) {
			t.Errorf("got %q, want a page and a heading that exist", line.String())
		}
	}
}

// TestStartUpErrorsNameThePageOfTheirSetting checks the choice of the page for a few settings.
func TestStartUpErrorsNameThePageOfTheirSetting(t *testing.T) {
	for name, want := range map[string]string{
		"LLM_BASE_URL": "docs/providers.md", "MODELS_FILE": "docs/providers.md#several-models", "MCP_CONFIG_PATH": "docs/mcp-servers.md",
		"AUTH_RULES_FILE": "docs/rules.md", "AUTH_ISSUER": "docs/auth.md", "TIMEOUT": "docs/configuration.md",
		"AGENTS_FILE": "docs/tasks/several-agents.md", "ENABLE_JWT_TOKEN": "docs/mcp-auth.md#jwt", "RUN_WEBHOOK_URL": "docs/tasks/webhooks.md",
		"BUDGET_PER_CALLER": "docs/tasks/cost-per-team.md", "EVENTS_MAX_BYTES": "docs/operations.md#space-for-the-event-log",
		"CONSOLE_OIDC_CLIENT_ID": "docs/console.md#sign-in", "RECEIPT_KEY_FILE": "docs/tasks/debugging-a-run.md#receipts",
	} {
		if got := helpPage(&configError{name, "cannot be used"}); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// hasHeading reports whether a page exists and has the heading of its anchor, if it has one.
func hasHeading(t *testing.T, page string) bool {
	t.Helper()
	path, anchor, _ := strings.Cut(page, "#")
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		if strings.HasPrefix(line, "#") && strings.ReplaceAll(title, " ", "-") == anchor {
			return true
		}
	}
	return anchor == ""
}

// TestConfigurationIsLoggedOnOneLine starts the service with secrets in many settings, and reads the
// line that summarises the configuration.
func TestConfigurationIsLoggedOnOneLine(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, answerYes)
	s := startAnswerd(t, w.environment(
		"LLM_API_KEY", "canary-key", "DEFAULT_MODEL_ID", "m", "RATE_LIMIT", "60/m",
		"AUTH_ISSUER", "https://user:canary@iam.example.com", "AUTH_AUDIENCE", "answerd", "AUTH_JWKS_URL", "https://iam.example.com/jwks",
		"MCP_URL", w.environment()["MCP_URL"], "EVENTS_URL", "file:"+t.TempDir(),
	))

	var found []string
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, `"msg":"configuration"`) {
			found = append(found, line)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d lines, want 1", len(found))
	}

	var line struct {
		Endpoint       string `json:"model_endpoint"`
		Model          string `json:"default_model"`
		Agents         []string
		Servers        []string
		Authentication string
		EventLog       string `json:"event_log"`
		Limits         struct {
			Runs, Streams, Connections int
			Rate                       string
		}
		Console string
	}
	if err := json.Unmarshal([]byte(found[0]), &line); err != nil {
		t.Fatal(err)
	}

	if line.Model != "m" || len(line.Agents) != 1 || line.Limits.Runs != 512 || line.Limits.Rate != "60 per 1m0s" || line.Limits.Connections == 0 ||
		line.Authentication != "bearer JWT of https://iam.example.com for answerd" || !strings.HasPrefix(line.EventLog, "on this disk") ||
		line.Console != s.url+"/" || !strings.HasPrefix(line.Endpoint, "http://127.0.0.1:") {
		t.Errorf("got %+v, want the settings and the console's address %s/", line, s.url)
	}

	if strings.Contains(s.log.String(), "canary") {
		t.Errorf("got %s, want no secret", s.log.String())
	}
}

func TestConfigurationWithoutServersLogsAnEmptyList(t *testing.T) {
	t.Parallel()
	s := startAnswerd(t, newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "ADDR", "127.0.0.1:0"))
	if got := s.log.String(); !strings.Contains(got, `"servers":[]`) {
		t.Errorf("got %s, want an empty list of servers", got)
	}
}
