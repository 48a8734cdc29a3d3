package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth/authtest"
	"answerd/internal/llm/llmtest"
)

// exportDemo asks the demo a question and returns the file with the export of the run.
func exportDemo(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "run.json")
	cmd := newAskCommand(t.Context(), nil, "ask", "-url", startDemo(t), "-export", file, "What is 12.5 * 8?")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ask -export: got %v, %s, want exit code 0", err, out)
	}
	return file
}

// runReplay runs `answerd replay` with settings, and returns what it prints.
func runReplay(t *testing.T, settings []string, args ...string) (string, error) {
	t.Helper()
	var out, log bytes.Buffer
	err := run(t.Context(), append([]string{"replay"}, args...), newEnvironment(settings), &out, &log)
	return out.String(), err
}

func TestReplayRunsAnExportAgain(t *testing.T) {
	t.Parallel()
	file := exportDemo(t)
	if out, err := runReplay(t, nil, file); err != nil || !strings.Contains(out, "no difference") {
		t.Errorf("replay = %q, %v, want no difference", out, err)
	}
	if out, err := runReplay(t, nil, filepath.Dir(file)); err != nil || !strings.Contains(out, "no difference") {
		t.Errorf("replay of a directory = %q, %v, want no difference", out, err)
	}

	prompt := filepath.Join(t.TempDir(), "prompt.txt")
	writeFile(t, prompt, "You are a new assistant of {{.username}}.\n")
	out, err := runReplay(t, []string{"SYSTEM_PROMPT_FILE=" + prompt, "DEFAULT_MODEL_ID=m"}, file)
	if err == nil || reportError(err, &bytes.Buffer{}) != 1 || !strings.Contains(out, "system prompt + You are a new assistant of user.") || !strings.Contains(out, "system prompt - You are a helpful assistant") {
		t.Errorf("replay with another prompt = %q, %v, want the lines that differ and exit code 1", out, err)
	}

	_, err = runReplay(t, []string{"SYSTEM_PROMPT_FILE=" + prompt + ".missing", "DEFAULT_MODEL_ID=m"}, file)
	if reportError(err, &bytes.Buffer{}) != 2 || !strings.Contains(err.Error(), "SYSTEM_PROMPT_FILE") {
		t.Errorf("replay with a prompt that cannot be read = %v, want exit code 2 and the setting", err)
	}

	recorded, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "changed.json")
	writeFile(t, changed, strings.Replace(string(recorded), `"description":"`, `"description":"New: `, 1))
	out, err = runReplay(t, nil, changed)
	if err == nil || reportError(err, &bytes.Buffer{}) != 1 || !strings.Contains(out, "is not the recorded one") {
		t.Errorf("replay with a changed tool = %q, %v, want the tool and exit code 1", out, err)
	}
	writeFile(t, changed, strings.ReplaceAll(string(recorded), "You are a helpful", `You \u001b]0;x\u0007 are\u202e helpful`))
	if out, _ = runReplay(t, []string{"SYSTEM_PROMPT_FILE=" + prompt, "DEFAULT_MODEL_ID=m"}, changed); strings.ContainsAny(out, "\x1b\x07\u202e") || !strings.Contains(out, "]0;x are helpful") {
		t.Errorf("replay of a file with control characters = %q, want its text without them", out)
	}
	writeFile(t, changed, strings.Replace(string(recorded), "1250", "1260", 1)+" ")
	for name, text := range map[string]string{"no JSON": "{", "no version": "{}", "another version": `{"version":99}`, "no end": `{"version":1,"events":[{"type":"start","run_id":"r","seq":1,"ts":1}]}`} {
		writeFile(t, changed, text)
		if _, err := runReplay(t, nil, changed); reportError(err, &bytes.Buffer{}) != 2 {
			t.Errorf("replay of %s = %v, want exit code 2", name, err)
		}
	}
	if _, err := runReplay(t, nil); reportError(err, &bytes.Buffer{}) != 2 {
		t.Errorf("replay without a file = %v, want exit code 2", err)
	}
}

func TestReplayAsksAnotherModel(t *testing.T) {
	t.Parallel()
	file := exportDemo(t)

	model := llmtest.New(t, llmtest.Turns(
		llmtest.Calls(llmtest.Call{Name: "calculate", Args: `{"expression":"12.5 * 8"}`}, llmtest.Call{Name: "calculate", Args: `{"expression":"1 + 1"}`}),
		llmtest.Says("A hundred."),
	))
	out, err := runReplay(t, []string{"LLM_BASE_URL=" + model.URL, "DEFAULT_MODEL_ID=m"}, "-model", "other", file)
	if err != nil || !strings.Contains(out, "now: other") || !strings.Contains(out, "| A hundred.") || !strings.Contains(out, "12.5 * 8 = 100") {
		t.Errorf("replay -model = %q, %v, want both answers", out, err)
	}

	var results []string
	for _, r := range model.Requests() {
		for _, m := range r.Messages {
			if m.Role == "tool" {
				results = append(results, m.Content)
			}
		}
	}
	if len(results) != 2 || !strings.Contains(results[0], "100") || !strings.Contains(results[1], "The recording has no result of this call.") {
		t.Errorf("results = %q, want the recorded one and a failure", results)
	}
}

func TestReplayComparesToolsOfServers(t *testing.T) {
	t.Parallel()
	server := sdk.NewServer(&sdk.Implementation{Name: "counter", Version: "1"}, nil)
	addTool := func(description string) {
		server.AddTool(&sdk.Tool{Name: "count", Description: description, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "3"}}}, nil
		})
	}
	addTool("Counts.")
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	model := llmtest.New(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "count", Args: `{}`}), llmtest.Says("Three.")))
	s := startAnswerd(t, newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "m", "MCP_URL", web.URL))
	file := filepath.Join(t.TempDir(), "run.json")
	if out, err := newAskCommand(t.Context(), nil, "ask", "-url", s.url, "-export", file, "How many?").CombinedOutput(); err != nil {
		t.Fatalf("ask -export: got %v, %s, want exit code 0", err, out)
	}

	settings := []string{"LLM_BASE_URL=" + model.URL, "DEFAULT_MODEL_ID=m", "MCP_URL=" + web.URL}
	if out, err := runReplay(t, settings, "-tools", file); err != nil || !strings.Contains(out, "no difference") {
		t.Errorf("replay -tools = %q, %v, want no difference", out, err)
	}
	addTool("Counts slowly.")
	out, err := runReplay(t, settings, "-tools", file)
	if want := `the tool count /description: was "Counts.", is "Counts slowly."`; reportError(err, &bytes.Buffer{}) != 1 || !strings.Contains(out, want) {
		t.Errorf("replay -tools with another description = %q, %v, want %s and exit code 1", out, err, want)
	}
	server.RemoveTools("count")
	out, err = runReplay(t, settings, "-tools", file)
	if want := "the tool count of default is gone"; reportError(err, &bytes.Buffer{}) != 1 || !strings.Contains(out, want) {
		t.Errorf("replay -tools without the tool = %q, %v, want %s and exit code 1", out, err, want)
	}
	if _, err := runReplay(t, settings, "-tools", "-model", "m", file); reportError(err, &bytes.Buffer{}) != 2 {
		t.Errorf("replay -tools -model = %v, want exit code 2", err)
	}
	settings[2] = "MCP_URL=" + closedAddress(t)
	out, err = runReplay(t, settings, "-tools", file)
	if err == nil || !strings.Contains(err.Error(), "no connection to default") || strings.Contains(out, "is gone") {
		t.Errorf("replay -tools without a connection = %q, %v, want an error that names the server", out, err)
	}
}

// TestDebuggingPage runs the commands of docs/tasks/debugging-a-run.md.
func TestDebuggingPage(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	page, err := os.ReadFile("../../docs/tasks/debugging-a-run.md")
	if err != nil {
		t.Fatal(err)
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	key := filepath.Join(dir, "receipt.pem")
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0", "RECEIPT_KEY_FILE=" + key}, "demo")
	url := p.demoURL(t)

	blocks := regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```$").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 3 {
		t.Fatalf("blocks = %d, want 3", len(blocks))
	}
	script := "set -e\nanswerd() { TEST_AS_ANSWERD=1 \"$ANSWERD\" \"$@\"; }\n"
	for _, b := range blocks {
		script += b[1]
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "ANSWERD="+os.Args[0], "ADDR="+strings.TrimPrefix(url, "http://"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "no difference") || !strings.Contains(string(out), "as it was signed: ") {
		t.Errorf("the page's commands: %v\n%s\nwant no difference and a verified receipt", err, out)
	}
}

// A job of CI must end although the service that has the keys does not answer.
func TestVerifyDoesNotWaitForeverForKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := authtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		begin := time.Now()
		if _, err := readKeys(t.Context(), silent, "https://answerd.example/.well-known/jwks.json"); err == nil || time.Since(begin) != keysTimeout {
			t.Errorf("readKeys = %v after %s, want an error after %s", err, time.Since(begin), keysTimeout)
		}
	})
}
