package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/mcp/oauth/oauthtest"
)

// writeTokenKeys returns a file for TOKENS_KEY_FILE.
func writeTokenKeys(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	writeFile(t, path, strings.Join(lines, "\n"))
	return path
}

func keyOf(b byte) string { return hex.EncodeToString([]byte(strings.Repeat(string(rune(b)), 32))) }

// newCRM starts an MCP server whose callers have to sign in and its authorization server, and writes an mcp.json that
// names it. Its tool says whose token came with the call.
func newCRM(t *testing.T) (as *oauthtest.Server, config string) {
	t.Helper()
	as = oauthtest.New(t)
	s := sdk.NewServer(&sdk.Implementation{Name: "crm", Version: "1"}, nil)
	s.AddTool(&sdk.Tool{Name: "who", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "You are " + r.Extra.Header.Get("X-Subject")}}}, nil
	})
	crm := as.Protect(t, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true}))
	config = filepath.Join(t.TempDir(), "mcp.json")
	writeFile(t, config, fmt.Sprintf(`{"mcpServers": {"crm": {"url": %q, "toolPrefix": "crm", "auth": {"type": "authorization_code"}}}}`, crm.URL+"/mcp"))
	return as, config
}

// signInPage returns the page that the last event of a suspended run asks its person to open.
func (j *runReader) signInPage(t *testing.T) string {
	t.Helper()
	var waits struct{ Interrupts []struct{ Mode, URL string } }
	if err := json.Unmarshal(j.lastFrame().Data, &waits); err != nil || len(waits.Interrupts) != 1 || waits.Interrupts[0].Mode != "url" {
		t.Fatalf("%s waits with %s, want one page to open", j.run, j.lastFrame().Data)
	}
	return waits.Interrupts[0].URL
}

// resultOf returns the payload of the one tool_result of a run.
func (j *runReader) resultOf(t *testing.T) string {
	t.Helper()
	for _, e := range j.frames {
		if e.Event == "tool_result" {
			return string(e.Data)
		}
	}
	t.Fatalf("%s ended with %s, want a tool_result before", j.run, j.lastFrame().Data)
	return ""
}

// TestSignInIsCompletedAfterAKilledReplica suspends a run for a sign-in and kills its replica. The browser
// comes back to another replica, or to the same one started again: the run continues there, and the sign-in
// serves all later calls. Nothing secret can be read in the log's files, in events and in log lines.
func TestSignInIsCompletedAfterAKilledReplica(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	for name, replicas := range map[string]int{"another replica": 2, "started again": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, ctx := t.TempDir(), longContext(t)
			url := "file:" + dir
			if replicas > 1 {
				url = startNATS(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir}).ClientURL()
			}
			as, config := newCRM(t)
			f := startReplicas(t, replicas, url, "MCP_CONFIG_PATH="+config, "PUBLIC_URL=http://127.0.0.1:7", "TOKENS_KEY_FILE="+writeTokenKeys(t, keyOf(1)), "LOG_LEVEL=debug")

			var readers []*runReader
			ask := func(replica int, name, tools, until string) *runReader {
				t.Helper()
				j := f.newRunReader(name, tools, 0)
				readers = append(readers, j)
				if err := j.readUntil(ctx, replica, until); err != nil {
					t.Fatal(err)
				}
				return j
			}

			// Start a sign-in, and kill the replica that started it.
			first := ask(0, "first", "crm_sign_in", "suspended")
			query := oauthtest.Browse(t, first.signInPage(t))
			f.killReplica(0)
			if replicas == 1 {
				f.startReplica(t, 0)
			}

			// The callback to another process completes the sign-in, once.
			last := replicas - 1
			callback := f.url(last) + "/oauth/callback?" + query.Encode()
			if status, page := getBody(t, f.client, callback); status != http.StatusOK || !strings.Contains(page, "continues by itself") {
				t.Fatalf("the callback is answered with %d %s, want 200", status, page)
			}
			if status, page := getBody(t, f.client, callback); status != http.StatusBadRequest || !strings.Contains(page, "not valid any more") {
				t.Errorf("a second callback is answered with %d %s, want 400", status, page)
			}

			// The run continues there, and the next one uses the token.
			if err := first.readUntil(ctx, last, ""); err != nil {
				t.Fatal(err)
			}
			if got := first.resultOf(t); !strings.Contains(got, "from the next question on: crm_who") || first.lastFrame().Event != "final_answer" {
				t.Errorf("the result is %s and the run ended with %s, want the tools and final_answer", got, first.lastFrame().Event)
			}
			if got := ask(last, "second", "crm_who", "").resultOf(t); !strings.Contains(got, "You are ann") {
				t.Errorf("the result is %s, want that of ann", got)
			}

			// The sign-in outlives the process, and its refresh token too.
			f.killReplica(last)
			f.startReplica(t, last)
			as.Revoke(false)
			if got := ask(last, "third", "crm_who", "").resultOf(t); !strings.Contains(got, "You are ann") {
				t.Errorf("the result after a restart is %s, want that of ann", got)
			}
			if codes, refreshes := len(as.Granted("authorization_code")), len(as.Granted("refresh_token")); codes != 1 || refreshes != 1 || as.Reused != 0 {
				t.Errorf("%d codes, %d refreshes, %d of a used token, want 1, 1 and 0", codes, refreshes, as.Reused)
			}

			// No secret of the sign-in can be read in the log.
			secrets := []string{"canary-", "registered-", query.Get("code")}
			for _, r := range as.Granted("authorization_code") {
				secrets = append(secrets, r.Form.Get("code_verifier"))
			}
			f.requireUnreadable(t, dir, readers, secrets)
		})
	}
}

// requireUnreadable fails where one of the secrets is in a file of the log, in an event, or in a log line.
func (f *replicas) requireUnreadable(t *testing.T, dir string, readers []*runReader, secrets []string) {
	t.Helper()
	places := make(map[string]string)
	files := 0
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) { // the log may remove a file now
			return nil
		}
		places[path] = string(data)
		if strings.Contains(string(data), "answerd.val.") {
			files++
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}

	if files == 0 {
		t.Error("no file of the log has a value, want the sign-ins in one")
	}

	for _, j := range readers {
		for _, e := range j.frames {
			places["an event of "+j.run] += string(e.Data)
		}
	}

	for n, p := range f.all {
		places[fmt.Sprintf("the log lines of process %d", n)] = p.log.String()
	}

	for place, text := range places {
		for _, s := range secrets {
			if s == "" || strings.Contains(text, s) {
				t.Errorf("%s has %q, want it nowhere", place, s)
			}
		}
	}
}

// TestSignInsInMemoryAreLoggedOnce checks what is logged where the log is durable and sign-ins are not, and
// that a run that waits for one is asked for another one after a restart.
func TestSignInsInMemoryAreLoggedOnce(t *testing.T) {
	t.Parallel()
	_, config := newCRM(t)
	ctx := longContext(t)
	f := startReplicas(t, 1, "file:"+t.TempDir(), "MCP_CONFIG_PATH="+config, "PUBLIC_URL=http://127.0.0.1:7")
	j := f.newRunReader("first", "crm_sign_in", 0)
	if err := j.readUntil(ctx, 0, "suspended"); err != nil {
		t.Fatal(err)
	}
	page := j.signInPage(t)
	file, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, config, strings.Replace(string(file), `"crm": {`, `"crm": {"timeout": "9s", `, 1))
	const said = "TOKENS_KEY_FILE is not set"
	if n := strings.Count(f.all[0].log.String(), said); n != 1 {
		t.Errorf("%d lines say that sign-ins are in memory, want 1", n)
	}

	for line := range f.all[0].lines {
		if strings.Contains(line, said) {
			t.Errorf("%s is logged after a reload, want it logged once", line)
		}
		if strings.Contains(line, "MCP configuration read again") {
			break
		}
	}

	f.killReplica(0)
	f.startReplica(t, 0)
	if err := j.readUntil(ctx, 0, "suspended"); err != nil {
		t.Fatal(err)
	}
	again := j.signInPage(t)
	if again == page {
		t.Errorf("the page after a restart is %s, want another one", again)
	}
	if status, body := getBody(t, f.client, f.url(0)+"/oauth/callback?"+oauthtest.Browse(t, again).Encode()); status != http.StatusOK {
		t.Fatalf("the callback is answered with %d %s, want 200", status, body)
	}
	if err := j.readUntil(ctx, 0, ""); err != nil {
		t.Fatal(err)
	}
	if got := j.resultOf(t); !strings.Contains(got, "from the next question on: crm_who") {
		t.Errorf("the result is %s, want the tools", got)
	}
}

// TestToolNameStaysAfterARestartWithItsServerDown stops answerd and starts it again while the first of two
// servers with the same tool is down: the second server's tool does not take the name.
func TestToolNameStaysAfterARestartWithItsServerDown(t *testing.T) {
	t.Parallel()
	newServer := func() *httptest.Server {
		s := sdk.NewServer(&sdk.Implementation{Name: "s", Version: "1"}, nil)
		s.AddTool(&sdk.Tool{Name: "search", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
		web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true}))
		t.Cleanup(web.Close)
		return web
	}

	first, second := newServer(), newServer()
	config := filepath.Join(t.TempDir(), "mcp.json")
	writeFile(t, config, fmt.Sprintf(`{"mcpServers": {"first": {"url": %q}, "second": {"url": %q}}}`, first.URL, second.URL))

	f := startReplicas(t, 1, "file:"+t.TempDir(), "MCP_CONFIG_PATH="+config)
	toolNames := func() string {
		t.Helper()
		_, body := getBody(t, f.client, f.url(0)+"/tools")
		var list struct {
			Tools []struct{ Name, Server string }
		}
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, tool := range list.Tools {
			all = append(all, tool.Server+":"+tool.Name)
		}
		return strings.Join(all, " ")
	}

	if got, want := toolNames(), "first:search second:second_search"; got != want {
		t.Fatalf("tools %q, want %q", got, want)
	}
	f.stopReplica(t, 0)
	first.CloseClientConnections()
	first.Close()
	f.startReplica(t, 0)
	if got, want := toolNames(), "second:second_search"; got != want {
		t.Errorf("tools after a restart without the first server: %q, want %q", got, want)
	}
}

// TestTokensKeyFileIsChecked checks that a file that cannot be used ends the start with the name of the
// setting, and quotes nothing.
func TestTokensKeyFileIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		path, events, want string
	}{
		"missing":         {filepath.Join(t.TempDir(), "none"), "file:/x", "cannot be read"},
		"short":           {writeTokenKeys(t, "63616e617279"), "file:/x", "line 1"},
		"second":          {writeTokenKeys(t, keyOf(1), "canary"), "file:/x", "line 2"},
		"empty":           {writeTokenKeys(t, "# none"), "file:/x", "no key"},
		"without the log": {writeTokenKeys(t, keyOf(1)), "", "EVENTS_URL"},
		"good":            {writeTokenKeys(t, "# new", keyOf(2), keyOf(1)), "file:/x", ""},
	} {
		_, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "DEFAULT_MODEL_ID", "x", "EVENTS_URL", c.events, "TOKENS_KEY_FILE", c.path))
		bad, refused := errors.AsType[*configError](err)
		if refused != (c.want != "") || refused && (bad.name != "TOKENS_KEY_FILE" || !strings.Contains(bad.reason, c.want) || strings.Contains(bad.reason, "canary") || strings.Contains(bad.reason, "6361")) {
			t.Errorf("%s: %v, want TOKENS_KEY_FILE with %q", name, err, c.want)
		}
		if refused && reportError(err, new(strings.Builder)) != 2 {
			t.Errorf("%s: exit code %d, want 2", name, reportError(err, new(strings.Builder)))
		}
	}
}
