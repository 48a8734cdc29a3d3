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
	"testing"
)

// modelsFile is a MODELS_FILE of this content.
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
		got, err := loadConfig(envOf("MODELS_FILE", file, "DEFAULT_MODEL_ID", c.set))
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
		_, err := loadConfig(envOf("MODELS_FILE", modelsFile(t, content)))
		if err == nil || err.Error() != want || exitCode(err, io.Discard) != 2 {
			t.Errorf("%s: %v, want exit code 2 and %s", content, err, want)
		}
	}
	if _, err := loadConfig(envOf("MODELS_FILE", "/no/such/file")); err == nil || err.Error() != "MODELS_FILE: cannot be read: no such file or directory" {
		t.Errorf(`error %v, want error "MODELS_FILE: cannot be read: no such file or directory"`, err)
	}
}

// The file from the environment to the endpoint: the model's own id and way of calling
// tools, and no model but those of the file.
func TestModelsFileIsServed(t *testing.T) {
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
		t.Errorf("status %s %+v %v, want status 400, p.Code invalid_request, 1 p.Errors, p.Errors[0].Pointer /model, no error", resp.Status, p, err)
	}
	if len(w.model.Requests()) != asked {
		t.Errorf("a model was asked all the same: %d requests, want %d", len(w.model.Requests()), asked)
	}
}

func TestCheckPrintsTheModels(t *testing.T) {
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
