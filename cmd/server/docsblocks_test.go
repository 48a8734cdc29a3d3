package main

import (
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent/prompt"
	"answerd/internal/auth/authtest"
	"answerd/internal/event/eventtest"
	"answerd/internal/llm/llmtest"
	mcpconfig "answerd/internal/mcp/config"
)

var (
	// settingsBlock matches a code block (2), which may be in a list, with its language (1).
	settingsBlock = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$")
	// assignment matches NAME=value in a block of a shell or of an environment file.
	assignment = regexp.MustCompile(`(?m)(?:^|\s|export )([A-Z][A-Z0-9]*_[A-Z0-9_]+)=\S`)
)

// foreignVariables are variables in documents that other programs read, or libraries of answerd.
var foreignVariables = []string{
	"OPENAI_API_BASE_URLS", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES", "OPENAI_API_KEYS", "ENABLE_OLLAMA_API", "TASK_MODEL_EXTERNAL", "DRAIN_RUNS", "CGO_ENABLED",
}

// TestSettingsInDocumentsAreReal reads the code blocks of all documents for users: an mcp.json is parsed
// without warnings, and a variable that is assigned is a setting.
func TestSettingsInDocumentsAreReal(t *testing.T) {
	files, variables := 0, 0
	names := settingNames()
	for _, dir := range []string{"../../README.md", "../../docs"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".md" || strings.Contains(path, "internals") {
				return err
			}
			page, err := os.ReadFile(path)
			for _, m := range settingsBlock.FindAllStringSubmatch(string(page), -1) {
				if language, code := m[1], m[2]; strings.Contains(code, `"mcpServers"`) && (language == "json" || language == "jsonc") {
					files++
					_, warnings, err := mcpconfig.Parse([]byte(code), func(string) string { return "value" })
					if err != nil || len(warnings) > 0 {
						t.Errorf("%s: got %v, %v, want an mcp.json without a warning:\n%s", path, err, warnings, code)
					}
				} else if language == "" || language == "ini" || language == "sh" {
					for _, a := range assignment.FindAllStringSubmatch(code, -1) {
						variables++
						if !slices.Contains(names, a[1]) && !slices.Contains(foreignVariables, a[1]) {
							t.Errorf("%s: got the variable %s, want a setting", path, a[1])
						}
					}
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 3 || variables < 15 {
		t.Errorf("got %d files and %d variables, want at least 3 and 15", files, variables)
	}
}

// TestPromptOfItsPageIsATemplate uses the system prompt of docs/tasks/system-prompt.md.
func TestPromptOfItsPageIsATemplate(t *testing.T) {
	page, err := os.ReadFile("../../docs/tasks/system-prompt.md")
	if err != nil {
		t.Fatal(err)
	}
	block := settingsBlock.FindStringSubmatch(string(page))
	if block == nil || !strings.Contains(block[2], "{{.username}}") {
		t.Fatalf("got block %q, want a template", block)
	}
	if _, err := prompt.New(prompt.Options{Template: block[2]}); err != nil {
		t.Errorf("got %v, want a template without an error", err)
	}
}

// TestModelsOfTheCostPageHaveAPrice starts with the models and the limits of docs/tasks/limit-cost.md.
func TestModelsOfTheCostPageHaveAPrice(t *testing.T) {
	page, err := os.ReadFile("../../docs/tasks/limit-cost.md")
	if err != nil {
		t.Fatal(err)
	}

	environ := newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1")
	for _, m := range settingsBlock.FindAllStringSubmatch(string(page), -1) {
		if m[1] == "json" {
			environ["MODELS_FILE"] = writeCodeFile(t, t.TempDir(), "models.json", m[2])
			continue
		}
		for _, word := range strings.Fields(m[2]) {
			name, value, _ := strings.Cut(word, "=")
			environ[name] = value
		}
	}

	c, err := loadConfig(environ)
	if err != nil || c.BudgetCost != 0.05 || c.BudgetToolCalls != 20 || c.BudgetSeconds != 120 || c.MaxOutputTokens != 2000 {
		t.Errorf("got %v, budget %+v, %d tokens, want the limits of the page", err, c.budget(), c.MaxOutputTokens)
	}
}

// TestTeamsOfTheCostPageHaveABudget starts with the models and the settings of
// docs/tasks/cost-per-team.md, spends a team's budget, and reads the metric of the page.
func TestTeamsOfTheCostPageHaveABudget(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/tasks/cost-per-team.md")
	if err != nil {
		t.Fatal(err)
	}
	iam := authtest.NewIAM(t)
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Yes.")))

	environ := newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", model.URL, "AUTH_ISSUER", iam.URL, "AUTH_AUDIENCE", "answerd", "AUTH_JWKS_URL", iam.URL+"/jwks")
	for _, m := range settingsBlock.FindAllStringSubmatch(string(page), -1) {
		switch m[1] {
		case "json":
			environ["MODELS_FILE"] = writeCodeFile(t, t.TempDir(), "models.json", m[2])
		case "":
			for _, word := range strings.Fields(m[2]) {
				name, value, _ := strings.Cut(word, "=")
				environ[name] = value
			}
		}
	}

	environ["BUDGET_PER_CALLER"] = strings.Replace(environ["BUDGET_PER_CALLER"], "=2000000/", "=1/", 1)
	s, c := startAnswerd(t, environ), newClient(t)

	bearer := func(subject, team string) string {
		claims := authtest.JSON{"sub": subject, "aud": "answerd", "team": team}
		return "Bearer " + authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), iam.ClaimsJSON(claims))
	}

	for _, q := range []struct {
		subject, team string
		want          int
	}{{"ann", "blue", 200}, {"ann", "blue", 429}, {"bob", "blue", 429}, {"bob", "red", 200}} {
		resp := post(t, c, s.url+"/answer", `{"question":"?"}`, "Authorization", bearer(q.subject, q.team))
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != q.want {
			t.Errorf("%s of %s: got %d %s, %v, want %d", q.subject, q.team, resp.StatusCode, body, err, q.want)
		}
	}

	_, metrics := getBody(t, c, s.url+"/metrics", "Authorization", bearer("ann", "blue"))
	for _, team := range []string{"blue", "red"} {
		if want := `answerd_cost_total{agent="default",claim="` + team + `",model="fast"} 1.25e-05`; !strings.Contains(metrics, want) {
			t.Errorf("got\n%s\nwant %s", metrics, want)
		}
	}

	if want := `answerd_runs_refused_total{reason="caller_budget"} 2`; !strings.Contains(metrics, want) {
		t.Errorf("/metrics has no %s", want)
	}
}

// TestReceiverOfTheWebhooksPageGetsTheRun runs the receiver of docs/tasks/webhooks.md with the settings of the
// page, and asks a question with a callback.
func TestReceiverOfTheWebhooksPageGetsTheRun(t *testing.T) {
	page, err := os.ReadFile("../../docs/tasks/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	address := "127.0.0.1:" + port
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Yes.")))

	environ := newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "scripted")
	var receiver string
	for _, m := range settingsBlock.FindAllStringSubmatch(string(page), -1) {
		code := strings.NewReplacer("127.0.0.1:8600", address, "8600", port).Replace(m[2])
		switch m[1] {
		case "python":
			receiver = strings.ReplaceAll(code, "\n   ", "\n")[3:]
		case "":
			for _, word := range strings.Fields(code) {
				name, value, _ := strings.Cut(word, "=")
				environ[name] = value
			}
		}
	}

	p := spawnCommand(t, runPython(t, receiver), os.Environ())
	eventtest.Await(t, "the receiver to listen", func() bool { // or the delivery would be repeated much later
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})

	s, c := startAnswerd(t, environ), newClient(t)
	post(t, c, s.url+"/answer", `{"question":"?","callback":"http://`+address+`/tickets/4711"}`)
	seen := p.waitForLine(t, " completed Yes.") + p.waitForLine(t, " completed Yes.")
	if !strings.Contains(seen, "/runs") || !strings.Contains(seen, "/tickets/4711") {
		t.Errorf("the receiver printed %q, want both paths", seen)
	}
}
