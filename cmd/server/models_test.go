package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"answerd/internal/llm/llmtest"
)

// modelsFile writes a MODELS_FILE with this content and returns its path.
func modelsFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "models.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestModelsFileHasTheDefaultModel(t *testing.T) {
	file := modelsFile(t, `[{"id":"fast"},{"id":"local","tool_calling":"text"}]`)
	for _, c := range []struct{ set, want, bad string }{
		{"", "fast", ""}, {"local", "local", ""}, {"other", "", "DEFAULT_MODEL_ID"},
	} {
		// At OpenAI's own endpoint, too, where one must be set without a file.
		got, err := loadConfig(newTestEnvironment("MODELS_FILE", file, "DEFAULT_MODEL_ID", c.set))
		var bad *configError
		if errors.As(err, &bad) != (c.bad != "") || bad != nil && bad.name != c.bad || got.DefaultModelID != c.want {
			t.Errorf("%q: %q, %v, want model %q, bad setting %q", c.set, got.DefaultModelID, err, c.want, c.bad)
		}
	}
}

func TestModelsFileErrorNamesThePlace(t *testing.T) {
	for content, want := range map[string]string{
		`[{"id":"a","price":{"input_per_million":-1}}]`: "MODELS_FILE: /0/price/input_per_million: below 0",
		`[{"id":"a"},{"id":"a"}]`:                       "MODELS_FILE: /1/id: the same as /0/id",
	} {
		_, err := loadConfig(newTestEnvironment("MODELS_FILE", modelsFile(t, content)))
		if err == nil || err.Error() != want || reportError(err, io.Discard) != 2 {
			t.Errorf("%s: %v, want exit code 2 and %s", content, err, want)
		}
	}
	if _, err := loadConfig(newTestEnvironment("MODELS_FILE", "/no/such/file")); err == nil || err.Error() != "MODELS_FILE: cannot be read: no such file or directory" {
		t.Errorf(`error %v, want error "MODELS_FILE: cannot be read: no such file or directory"`, err)
	}
}

// The file from the environment to the endpoint: the model's own id and way of calling
// tools, and no model but those of the file.
func TestModelsFileIsServed(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	file := modelsFile(t, `[{"id":"scripted","upstream":"vendor/scripted-1"},{"id":"wordy","tool_calling":"text","max_output_tokens":99}]`)

	s := startAnswerd(t, w.environment("MODELS_FILE", file))
	c := newClient(t)
	for _, body := range []string{`{"question":"Q"}`, `{"question":"Q","model":"wordy"}`} {
		resp := post(t, c, s.url+"/answer", body)
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, want 200", body, resp.Status)
		}
	}

	for _, r := range w.model.Requests() {
		switch r.Model {
		case "vendor/scripted-1":
			if len(r.Tools) == 0 || r.MaxTokens != 0 {
				t.Errorf("%d tools, %d tokens, want Tools non-zero, MaxTokens 0", len(r.Tools), r.MaxTokens)
			}
		case "wordy":
			if len(r.Tools) > 0 || r.MaxTokens != 99 || !strings.Contains(r.Messages[0].Content, "PARAMETERS:") {
				t.Errorf("request %+v, want 0 Tools, MaxTokens 99, Messages[0].Content containing PARAMETERS:", r)
			}
		default:
			t.Errorf("model %s was asked, want one of the configured models", r.Model)
		}
	}

	asked := len(w.model.Requests())
	resp := post(t, c, s.url+"/answer", `{"question":"Q","model":"vendor/scripted-1"}`)

	var p struct {
		Code   string
		Errors []struct{ Pointer string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusBadRequest || p.Code != "invalid_request" || len(p.Errors) != 1 || p.Errors[0].Pointer != "/model" {
		t.Errorf("status %s %+v %v, want status 400, Code invalid_request, 1 Errors, Errors[0].Pointer /model, no error", resp.Status, p, err)
	}
	if len(w.model.Requests()) != asked {
		t.Errorf("a model was asked all the same: %d requests, want %d", len(w.model.Requests()), asked)
	}
}

func TestCheckPrintsTheModels(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	file := modelsFile(t, `[{"id":"a","context_tokens":8192},{"id":"scripted","upstream":"v/s","tool_calling":"text","images":true,"price":{"input_per_million":0.25,"output_per_million":2}}]`)
	out := &syncBuffer{}
	if err := run(t.Context(), []string{"check"}, w.environment("MODELS_FILE", file), out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`(?m)^a +a +auto +8192 +– +text +–$`, `(?m)^scripted +v/s +text +– +– +text, images +0.25 in, 2 out  \(default\)$`} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("got\n%s\nwant a line %s", out, line)
		}
	}
}

// MODELS_FILE is read again on SIGHUP and when it changes. A bad one is refused with its place.
func TestModelsFileIsReloaded(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	other := llmtest.New(t, newTwoCallScript())
	path := modelsFile(t, `[{"id":"first"}]`)
	p := spawnAnswerd(t, append(w.environ(), "MODELS_FILE="+path, "DEFAULT_MODEL_ID=", "OTHER_KEY=canary-other"))
	url, c := p.url(t), newClient(t)
	// modelIDs returns the models of GET /v1/models.
	modelIDs := func() string {
		_, body := getBody(t, c, url+"/v1/models")
		var list struct{ Data []struct{ ID string } }
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range list.Data {
			if !strings.Contains(m.ID, ":") { // a variant, such as first:no-tools
				ids = append(ids, m.ID)
			}
		}
		return strings.Join(ids, " ")
	}
	if got := modelIDs(); got != "first" {
		t.Errorf("got the models %s, want first", got)
	}

	writeFile(t, path, `[{"id":"first"},{"id":"second","upstream":"vendor/second","base_url":"`+other.URL+`","api_key":"${OTHER_KEY}"}]`)
	p.signal(t, syscall.SIGHUP)
	if line := p.waitForLine(t, "MODELS_FILE read again"); !strings.Contains(line, `"models":2`) {
		t.Errorf("got %s, want 2 models", line)
	}
	for _, model := range []string{"first", "second"} {
		if a := postQuestion(t, c, url, `{"question":"Q","model":"`+model+`"}`); a.Answer != "100 and 16 km." {
			t.Errorf("%s: got %q, want the answer of the script", model, a.Answer)
		}
	}
	if got := other.Requests(); len(got) != 2 || got[0].Model != "vendor/second" || got[0].Header.Get("Authorization") != "Bearer canary-other" {
		t.Errorf("got %d requests at the endpoint of second, want 2 for vendor/second with its key", len(got))
	}

	writeFile(t, path, `[{"id":"first","price":{"input_per_million":-1}}]`)
	p.signal(t, syscall.SIGHUP)
	if line := p.waitForLine(t, "MODELS_FILE refused"); !strings.Contains(line, "MODELS_FILE: /0/price/input_per_million: below 0") {
		t.Errorf("got %s, want the place of the mistake", line)
	}
	if got := modelIDs(); got != "first second" {
		t.Errorf("after a bad file: got the models %s, want first second", got)
	}

	writeFile(t, path, `[{"id":"third"}]`) // without a signal
	p.waitForLine(t, "MODELS_FILE read again")
	if a := postQuestion(t, c, url, `{"question":"Q"}`); !strings.Contains(string(a.Metadata), `"model":"third"`) {
		t.Errorf("got %s, want third as the default model", a.Metadata)
	}
	resp := post(t, c, url+"/answer", `{"question":"Q","model":"first"}`)
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "/model") {
		t.Errorf("a model that was removed: got %s %s, want 400 for /model", resp.Status, body)
	}
}

// A file without the model of DEFAULT_MODEL_ID or of an agent, with an agent's id, or without the price that BUDGET_COST
// needs, is refused at a reload as at the start.
func TestModelsFileReloadIsChecked(t *testing.T) {
	const priced = `{"id":"a","price":{"input_per_million":1,"output_per_million":1}}`
	path := modelsFile(t, "["+priced+`,{"id":"small"}]`)
	agents := filepath.Join(t.TempDir(), "agents.yaml")
	writeFile(t, agents, "agents:\n- {id: helper, prompt: Help., model: small}")
	c, err := loadConfig(newTestEnvironment("MODELS_FILE", path, "DEFAULT_MODEL_ID", "a", "BUDGET_COST", "1", "AGENTS_FILE", agents))
	if err != nil {
		t.Fatal(err)
	}

	for content, want := range map[string]string{
		`[{"id":"b"}]`:     "DEFAULT_MODEL_ID: is not one of the models of MODELS_FILE",
		`[{"id":"a"}]`:     "BUDGET_COST: needs the price of the default model, in MODELS_FILE",
		"[" + priced + `]`: "AGENTS_FILE: agent helper, line 2: model small is not one of the models",
		"[" + priced + `,{"id":"small"},{"id":"helper"}]`:                                                                         "AGENTS_FILE: agent 1, line 2: id helper is also the id of a model",
		`[{"id":"a","price":{"input_per_million":1,"output_per_million":1},"base_url":"https://a","tls":{"ca_file":"none.pem"}}]`: "MODELS_FILE: /0/tls/ca_file: " + filepath.Join(filepath.Dir(path), "none.pem") + ": cannot be read: no such file or directory",
	} {
		writeFile(t, path, content)
		if _, err := c.reloadModels(); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", content, err, want)
		}
	}

	if len(c.models) != 2 || c.models[0].ID != "a" || c.models[0].Price == nil {
		t.Errorf("got the models %+v after refused files, want those of the start", c.models)
	}
}

// The log says why another model was asked, and which.
func TestFallbackIsLogged(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	file := modelsFile(t, `[{"id":"down","base_url":"http://`+strings.TrimPrefix(strings.TrimSuffix(closedAddress(t), "/mcp"), "http://")+`/v1","fallback":["scripted"]},{"id":"scripted"}]`)
	s := startAnswerd(t, w.environment("MODELS_FILE", file, "DEFAULT_MODEL_ID", "down", "LLM_MAX_RETRIES", "0"))
	postQuestion(t, newClient(t), s.url, `{"question":"Q"}`)
	var lines []string
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, `"msg":"a model is unavailable, so its fallback is asked"`) {
			lines = append(lines, line)
		}
	}
	// The second turn asks the model first that has answered.
	if len(lines) != 1 || !strings.Contains(lines[0], `"level":"INFO"`) || !strings.Contains(lines[0], `"model":"down","fallback":"scripted","reason":"model_error: ask the model: `) || !strings.Contains(lines[0], "connection refused") {
		t.Errorf("got the lines %q, want one at INFO with down, scripted and the reason", lines)
	}
}

// chat and eval in this process serve one caller without a token, so they ignore the settings about tokens.
func TestModelsFileIsReloadedWithoutAuthentication(t *testing.T) {
	c, err := loadConfig(newTestEnvironment("MODELS_FILE", modelsFile(t, `[{"id":"a"}]`), "LLM_BASE_URL", "http://127.0.0.1:9/v1",
		"AUTH_ISSUER", "https://iam.example", "AUTH_AUDIENCE", "answerd", "COST_CLAIM", "team", "LIMIT_BY", "claim:team"))
	if err != nil {
		t.Fatal(err)
	}
	c.AuthIssuer, c.AuthRulesFile = "", "" // as startLocalService does
	if _, err := c.reloadModels(); err != nil {
		t.Errorf("got %v, want no error", err)
	}
}
