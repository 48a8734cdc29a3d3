package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/llm/llmtest"
)

const (
	rulesFile     = "../../deploy/prometheus/rules.yaml"
	dashboardFile = "../../deploy/grafana/answerd.json"
	runbookFile   = "../../docs/operations.md"
)

// prometheusRules is a file of alerts, as far as it matters here.
type prometheusRules struct {
	Groups []struct {
		Rules []struct{ Alert, Expr string }
	}
}

func readAlerts(t *testing.T) (alerts []string, exprs []string) {
	t.Helper()
	var file prometheusRules
	data, err := os.ReadFile(rulesFile)
	if err == nil {
		err = yaml.Unmarshal(data, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			alerts, exprs = append(alerts, r.Alert), append(exprs, r.Expr)
		}
	}
	return alerts, exprs
}

func TestAlertsMatchTheRunbooksSections(t *testing.T) {
	alerts, _ := readAlerts(t)
	page, err := os.ReadFile(runbookFile)
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^### (Answerd\w+)$`).FindAllStringSubmatch(string(page), -1) {
		sections = append(sections, m[1])
	}
	if len(alerts) < 10 || !slices.Equal(alerts, sections) {
		t.Errorf("alerts   %s\nsections %s, want at least 10, alerts %s", alerts, sections, sections)
	}
}

// A metric that is renamed would leave an alert that never fires, and an empty panel.
func TestAlertsAndDashboardUseExistingMetrics(t *testing.T) {
	hooks := webhooktest.New(t, func(webhooktest.Question) string { return `{}` })
	collector := newRecordingServer(t, http.StatusOK, "")
	w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
		switch last := r.Messages[len(r.Messages)-1]; {
		case last.Content == "Fail.":
			return llmtest.Fails(http.StatusBadRequest, "no")
		case last.Role == "tool":
			return llmtest.Says("Done.")
		}
		return llmtest.Calls(llmtest.Call{Name: "calculate", Args: `{"expression":"1/0"}`})
	})
	p := spawnAnswerd(t, append(w.environ(), "HOOKS_URL="+hooks.URL, "HOOKS_SECRET="+webhooktest.Secret.Reveal(),
		"ENABLE_TRACING=true", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL))
	url := p.url(t)
	for _, question := range []string{"?", "Fail."} {
		resp := post(t, newClient(t), url+"/answer", `{"question":"`+question+`"}`)
		resp.Body.Close()
	}
	_, page := getBody(t, newClient(t), url+"/metrics")
	there := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^(?:# TYPE )?(\w+)`).FindAllStringSubmatch(page, -1) {
		there[m[1]] = true
	}
	_, exprs := readAlerts(t)
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	data, err := os.ReadFile(dashboardFile)
	if err == nil {
		err = json.Unmarshal(data, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	if len(exprs) < 30 {
		t.Fatalf("%d expressions: nothing was proved, want at least 30", len(exprs))
	}
	named := regexp.MustCompile(`\b(answerd|mcp_client|gen_ai_client|go|process)_\w+`)
	for _, expr := range exprs {
		for _, metric := range named.FindAllString(expr, -1) {
			if !there[metric] {
				t.Errorf("/metrics has no %s, want one", metric)
			}
		}
	}
}

// Settings in the manifests that answerd doesn't know would be ignored in silence.
func TestManifestsUseExistingSettings(t *testing.T) {
	data, err := os.ReadFile("../../deploy/kubernetes/configmap.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m struct{ Data map[string]string }
	if err := yaml.NewDecoder(strings.NewReader(string(data))).Decode(&m); err != nil || len(m.Data) < 5 {
		t.Fatalf("m %+v, %v, want at least 5 Data, no error", m, err)
	}
	example, err := os.ReadFile("../../.env.example")
	if err != nil {
		t.Fatal(err)
	}
	for name := range m.Data {
		if !regexp.MustCompile(`(?m)^#? ?` + name + `=`).Match(example) {
			t.Errorf("%s is not a setting, want it in the example", name)
		}
	}
}

// The manifests' settings start, with a Secret that has what they leave out.
func TestManifestsStart(t *testing.T) {
	data, err := os.ReadFile("../../deploy/kubernetes/configmap.yaml")
	if err != nil {
		t.Fatal(err)
	}
	settings := make(map[string]string)
	for documents := yaml.NewDecoder(strings.NewReader(string(data))); ; {
		var m struct{ Data map[string]string }
		if err := documents.Decode(&m); err != nil {
			break
		}
		maps.Copy(settings, m.Data)
	}
	file := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(file, []byte(settings["mcp.json"]), 0o600); err != nil {
		t.Fatal(err)
	}
	maps.Copy(settings, map[string]string{"MCP_CONFIG_PATH": file, "IAM_CLIENT_ID": "answerd", "IAM_CLIENT_SECRET": "s", "LLM_API_KEY": "k"})
	c, err := loadConfig(settings)
	if err == nil {
		_, _, err = mcpServers(c)
	}
	if err != nil {
		t.Errorf("the settings of the manifests: error %v, want none", err)
	}
}
