package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent/prompt"
	mcpconfig "answerd/internal/mcp/config"
)

var (
	// settingsBlock matches a code block (2), which may be in a list, with its language (1).
	settingsBlock = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$")
	// assignment matches NAME=value in a block of a shell or of an environment file.
	assignment = regexp.MustCompile(`(?m)(?:^|\s|export )([A-Z][A-Z0-9]*_[A-Z0-9_]+)=\S`)
)

// foreignVariables are variables in documents that other programs read.
var foreignVariables = []string{
	"OPENAI_API_BASE_URLS", "OPENAI_API_KEYS", "ENABLE_OLLAMA_API", "TASK_MODEL_EXTERNAL", "DRAIN_RUNS", "CGO_ENABLED",
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
	environ := envOf("LLM_BASE_URL", "http://127.0.0.1:9/v1")
	for _, m := range settingsBlock.FindAllStringSubmatch(string(page), -1) {
		if m[1] == "json" {
			environ["MODELS_FILE"] = file(t, t.TempDir(), "models.json", m[2])
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
