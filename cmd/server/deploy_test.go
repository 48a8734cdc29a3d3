package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/demo"
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
	t.Parallel()
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
		"RUN_WEBHOOK_URL="+collector.URL, "ENABLE_TRACING=true", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL))

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

	requireMetricsAreDocumented(t, page)
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

// requireMetricsAreDocumented compares the metrics of answerd on the page with the table in docs/observability.md:
// names, types and labels. A row may have labels that the page has not, and … for further ones.
func requireMetricsAreDocumented(t *testing.T, page string) {
	t.Helper()
	table, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string][]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| ([^|]+) \\|").FindAllStringSubmatch(string(table), -1) {
		rows[m[1]] = m[2:]
	}
	labels := make(map[string]map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^(\w+)\{(.*)\} `).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(m[1], "")
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(m[2], -1) {
			if labels[name] == nil {
				labels[name] = make(map[string]bool)
			}
			labels[name][l[1]] = l[1] != "le"
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE ((?:answerd|mcp|gen_ai)_\w+) (\w+)$`).FindAllStringSubmatch(page, -1) {
		row := rows[m[1]]
		if row == nil || row[0] != m[2] {
			t.Errorf("docs/observability.md has %q for %s, want a row with the type %s", row, m[1], m[2])
			continue
		}
		for label, shown := range labels[m[1]] {
			if shown && !strings.Contains(row[1], "`"+label+"`") && !strings.Contains(row[1], "…") && !strings.HasPrefix(row[1], "the same") {
				t.Errorf("docs/observability.md has the labels %s for %s, want %s among them", row[1], m[1], label)
			}
		}
	}
}

// readManifestSettings returns the variables that deploy/kubernetes/answerd.yaml gives to the
// container, and the contents of mcp.json.
func readManifestSettings(t *testing.T) (settings map[string]string, mcp string) {
	t.Helper()
	data, err := os.ReadFile("../../deploy/kubernetes/answerd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	settings = make(map[string]string)
	for documents := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var m struct {
			Kind       string
			Metadata   struct{ Name string }
			Data       map[string]string
			StringData map[string]string `yaml:"stringData"`
		}
		if err := documents.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if m.Kind == "ConfigMap" && m.Metadata.Name == "answerd-mcp" {
			mcp = m.Data["mcp.json"]
			continue
		}
		maps.Copy(settings, m.Data)
		maps.Copy(settings, m.StringData)
	}
	if len(settings) < 10 || mcp == "" {
		t.Fatalf("got settings %v and mcp.json %q, want at least 10 and a file", settings, mcp)
	}
	return settings, mcp
}

// Settings in the manifests that answerd does not know would be ignored silently.
func TestManifestsUseExistingSettings(t *testing.T) {
	example, err := os.ReadFile("../../.env.example")
	if err != nil {
		t.Fatal(err)
	}
	settings, _ := readManifestSettings(t)
	for name := range settings {
		if !regexp.MustCompile(`(?m)^#` + name + `=`).Match(example) {
			t.Errorf("%s is not a setting, want it in the example", name)
		}
	}
}

// The policy names the addresses outside of the cluster by family. A cluster with IPv6 alone would reach no model.
func TestNetworkPolicyAllowsPublicIPv4AndIPv6(t *testing.T) {
	data, err := os.ReadFile("../../deploy/kubernetes/answerd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, block := range regexp.MustCompile(`(?m)^ +cidr: "?(.+?)"?\n +except: \[(.*)\]$`).FindAllStringSubmatch(string(data), -1) {
		for _, cidr := range strings.Split(strings.ReplaceAll(block[1]+", "+block[2], `"`, ""), ", ") {
			prefix, err := netip.ParsePrefix(cidr)
			if err != nil {
				t.Error(err)
			}
			got = append(got, prefix.String())
		}
	}
	if want := strings.Fields("0.0.0.0/0 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 169.254.0.0/16 100.64.0.0/10 ::/0 fc00::/7 fe80::/10"); !slices.Equal(got, want) {
		t.Errorf("got the blocks, each with its exceptions, %s, want %s", got, want)
	}
}

// TestManifestsAllowEveryNameOfTheService requires the names by which the cluster's DNS resolves a Service.
func TestManifestsAllowEveryNameOfTheService(t *testing.T) {
	settings, _ := readManifestSettings(t)
	got := strings.Split(settings["ALLOWED_HOSTS"], ",")
	for _, want := range []string{"answerd", "answerd.answerd", "answerd.answerd.svc", "answerd.answerd.svc.cluster.local"} {
		if !slices.Contains(got, want) {
			t.Errorf("got ALLOWED_HOSTS %q, want %s among them", got, want)
		}
	}
}

// TestManifestsStartAndAnswer runs the binary with the environment of the manifests, placeholder
// secrets included. Only addresses of other services are replaced, by services of the test.
func TestManifestsStartAndAnswer(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	settings, mcp := readManifestSettings(t)
	for name, example := range map[string]string{
		"LLM_BASE_URL": w.model.URL, "AUTH_ISSUER": w.iam.url, "AUTH_JWKS_URL": w.iam.url + demo.JWKSPath, "EVENTS_URL": spawnNATS(t).url,
		"ADDR": "127.0.0.1:0", "METRICS_ADDR": "127.0.0.1:0", "MCP_CONFIG_PATH": writeCodeFile(t, t.TempDir(), "mcp.json", mcp), "AUTH_AUDIENCE": demo.Audience,
	} {
		if settings[name] == "" {
			t.Errorf("the manifests do not set %s, want them to", name)
		}
		settings[name] = example
	}

	settings["ALLOWED_HOSTS"] += ",127.0.0.1" // how the test asks
	var env []string
	for name, value := range settings {
		env = append(env, name+"="+value)
	}

	begun := time.Now()
	url := spawnAnswerd(t, env).url(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()

	for {
		status, body := getBody(t, newClient(t), url+"/readyz")
		if status == http.StatusOK {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("after a minute: got %d, %s, want 200 of /readyz", status, body)
		}
		<-tick.C
	}

	t.Logf("chart to ready: %d ms", time.Since(begun).Milliseconds())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/answer", strings.NewReader(`{"question":"question","tool_choice":"none"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", w.callerToken(t))
	req.Header.Set("Content-Type", "application/json")
	resp, err := newClient(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"answer"`) {
		t.Errorf("got %s, %s, %v, want an answer", resp.Status, body, err)
	}
	t.Logf("chart to first answer: %d ms", time.Since(begun).Milliseconds())
}

// The images with Node and Python are used like the one that they copy from: a new volume at /data can be written, a
// platform may set PORT, which ADDR would hide, and the health check is the same.
func TestImagesForChildProcessesBehaveLikeTheImage(t *testing.T) {
	image, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	wanted := regexp.MustCompile(`(?m)^(ENV|EXPOSE|HEALTHCHECK|ENTRYPOINT) .*$`).FindAllString(string(image), -1)
	for _, name := range []string{"node", "python"} {
		file, err := os.ReadFile("../../deploy/docker/" + name + ".Dockerfile")
		if err != nil {
			t.Fatal(err)
		}
		user := regexp.MustCompile(`(?m)^USER (\w+)$`).FindStringSubmatch(string(file))[1]
		for _, want := range append(wanted, "COPY --from=answerd --chown="+user+":"+user+" /data /data") {
			if !strings.Contains(string(file), want+"\n") {
				t.Errorf("%s: got\n%s\nwant %s", name, file, want)
			}
		}
		if len(wanted) != 4 || strings.Contains(string(file), "ADDR=") {
			t.Errorf("%s: got\n%s\nwant no ADDR, and %d lines of the image to compare, want 4", name, file, len(wanted))
		}
	}
}
