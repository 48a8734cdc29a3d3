package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/oauth/oauthtest"
	"answerd/internal/sse"
)

// newSignInServer starts an MCP server whose callers have to sign in, its authorization server,
// and an mcp.json that names it.
func newSignInServer(t *testing.T) (as *oauthtest.Server, config string) {
	t.Helper()
	as = oauthtest.New(t)
	server := sdk.NewServer(&sdk.Implementation{Name: "crm", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "whoami"}, func(_ context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: r.Extra.Header.Get("X-Subject")}}}, nil, nil
	})
	crm := as.Protect(t, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(func() {
		for session := range server.Sessions() {
			_ = session.Close()
		}
	})
	config = filepath.Join(t.TempDir(), "mcp.json")
	file := fmt.Sprintf(`{"mcpServers": {"crm": {"url": %q, "toolPrefix": "crm", "auth": {"type": "authorization_code"}}}}`, crm.URL+"/mcp")
	if err := os.WriteFile(config, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	return as, config
}

// signIn reads a stream to its question, goes where that says, and brings answerd what
// the browser came back with. It returns the frames and that query.
func signIn(t *testing.T, c *http.Client, url string) (frames []sse.Frame, query string) {
	t.Helper()
	resp := post(t, c, url+"/answer/stream", `{"question":"Who am I at the CRM?"}`)
	for r := sse.NewReader(resp.Body, 1<<20); ; {
		f, err := r.Next()
		if last := len(frames) - 1; errors.Is(err, io.EOF) && frames[last].Event == "suspended" {
			run, _, _ := strings.Cut(frames[last].ID, ":")
			r = sse.NewReader(get(t, c, url+"/runs/"+run+"/events", "Last-Event-ID", frames[last].ID).Body, 1<<20)
			continue
		}
		if errors.Is(err, io.EOF) {
			return frames, query
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Data = append([]byte(nil), f.Data...)
		frames = append(frames, f)
		if f.Event != "elicitation" {
			continue
		}
		var asked struct{ Mode, URL string }
		if err := json.Unmarshal(f.Data, &asked); err != nil || asked.Mode != "url" {
			t.Fatalf("data %s, %v, Mode %q, want url and no error", f.Data, err, asked.Mode)
		}
		query = oauthtest.Browse(t, asked.URL).Encode()
		if status, page := getBody(t, c, url+"/oauth/callback?"+query); status != http.StatusOK || !strings.Contains(page, "You may close this window") {
			t.Fatalf(`status %d %s, want status 200, page containing "You may close this window"`, status, page)
		}
	}
}

// A process that ask starts for itself has a port of its own, and browsers come back to that one.
func TestSignInAtAProcessOfAsk(t *testing.T) {
	t.Parallel()
	as, config := newSignInServer(t)

	model := llmtest.New(t, func(r llmtest.Request) llmtest.Answer {
		if r.Messages[len(r.Messages)-1].Role == "tool" {
			return llmtest.Says("Done.")
		}
		return llmtest.Calls(llmtest.Call{Name: r.Tools[0].Function.Name})
	})

	url, stop, err := startLocalService(t.Context(), newTestEnvironment("ADDR", "127.0.0.1:1", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "scripted", "MCP_CONFIG_PATH", config), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	signIn(t, newClient(t), url)
	as.Lock()
	defer as.Unlock()
	if got, want := as.Visits[0].Get("redirect_uri"), url+"/oauth/callback"; got != want {
		t.Errorf("got the redirect URI %s, want %s", got, want)
	}
}

// S4.9: OAuth. A person is asked in the stream of their question and signs in with their
// browser; then the run continues by itself, and the next question has the server's tools.
func TestSignInDuringARun(t *testing.T) {
	t.Parallel()
	as, config := newSignInServer(t)

	model := llmtest.New(t, func(r llmtest.Request) llmtest.Answer { // it calls the one tool that it is offered
		for _, m := range r.Messages {
			if m.Role == "tool" {
				return llmtest.Says("You are " + m.Content)
			}
		}
		return llmtest.Calls(llmtest.Call{Name: r.Tools[0].Function.Name})
	})

	s := startAnswerd(t, newTestEnvironment("ADDR", "127.0.0.1:0", "PUBLIC_URL", "http://127.0.0.1:7", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "scripted", "MCP_CONFIG_PATH", config, "LOG_LEVEL", "debug"))
	c := newClient(t)

	frames, query := signIn(t, c, s.url)
	var names []string
	var wire strings.Builder
	for _, f := range frames {
		names = append(names, f.Event)
		wire.Write(f.Data)
	}

	if got := strings.Join(names, " "); !strings.Contains(got, "elicitation suspended elicitation_resolved tool_result") || !strings.HasSuffix(got, "final_answer") {
		t.Errorf(`events %s, want it to contain "elicitation suspended elicitation_resolved tool_result" and to end in final_answer`, got)
	}
	if !strings.Contains(wire.String(), `"action":"accept"`) || !strings.Contains(wire.String(), "from the next question on: crm_whoami") {
		t.Errorf(`the run says %s, want wire containing "action":"accept", wire containing "from the next question on: crm_whoami"`, wire.String())
	}
	if a := postQuestion(t, c, s.url, `{"question":"Who am I at the CRM?"}`); a.Answer != "You are ann" || !strings.Contains(string(a.Metadata), `"tool_results":["ann"]`) {
		t.Errorf(`whole answer %+v %s, want Answer "You are ann", Metadata containing "tool_results":["ann"]`, a, a.Metadata)
	}

	// A browser's history, or somebody who looked over a shoulder.
	if status, page := getBody(t, c, s.url+"/oauth/callback?"+query); status != http.StatusBadRequest || !strings.Contains(page, "not valid any more") {
		t.Errorf(`replayed: %d %s, want status 400, page containing "not valid any more"`, status, page)
	}
	if n := len(as.Granted("authorization_code")); n != 1 {
		t.Errorf("%d codes were redeemed, want 1", n)
	}

	for _, secret := range []string{"canary", "code-", "state=", "registered-"} {
		if strings.Contains(s.log.String(), secret) || secret != "state=" && strings.Contains(wire.String(), secret) {
			t.Errorf("%q is in the log or the stream, want it in neither", secret)
		}
	}
}

// If the person cannot be asked, the error says where they can be.
func TestSignInURLIsInTheErrorOfACallWithoutAStream(t *testing.T) {
	t.Parallel()
	_, config := newSignInServer(t)
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("No.")))
	s := startAnswerd(t, newTestEnvironment("ADDR", "127.0.0.1:0", "PUBLIC_URL", "http://127.0.0.1:7", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "scripted", "MCP_CONFIG_PATH", config))
	status, body := callTool(t, newClient(t), s.url, "crm_sign_in", `{}`)
	if !strings.Contains(body, `"denied"`) || !strings.Contains(body, "POST /answer/stream") || status/100 == 2 {
		t.Errorf("status %d %s, want a refusal with the hint to POST /answer/stream", status, body)
	}
}

// answerd check says as much as it can without a person.
func TestCheckPrintsWhereCallersSignIn(t *testing.T) {
	as, config := newSignInServer(t)
	var out, errs strings.Builder
	err := checkCommand(t.Context(), nil, newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "MCP_CONFIG_PATH", config), &out, &errs)
	if want := "callers sign in to crm at " + strings.TrimPrefix(as.URL, "http://"); err == nil || !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "- server crm: sign in once") {
		t.Errorf("error %v\n%s%s, want an error, out containing %s, out containing \"- server crm: sign in once\"", err, out.String(), errs.String(), want)
	}
}

// PUBLIC_URL is where browsers come back to; without it and on no loopback address a
// server that needs it is a start-up error that says so.
func TestPublicURL(t *testing.T) {
	for settings, want := range map[[4]string]string{
		{"ADDR", "127.0.0.1:8080"}: "http://127.0.0.1:8080/oauth/callback",
		{"ADDR", "[::1]:8080"}:     "http://[::1]:8080/oauth/callback",
		{"ADDR", "127.0.0.1:0"}:    "",
		{"ADDR", "10.0.0.1:8080"}:  "",
		{"ADDR", "10.0.0.1:8080", "PUBLIC_URL", "https://ask.example.com/"}:      "https://ask.example.com/oauth/callback",
		{"ADDR", "127.0.0.1:8080", "PUBLIC_URL", "https://ask.example.com"}:      "https://ask.example.com/oauth/callback",
		{"ADDR", "127.0.0.1:8080", "PUBLIC_URL", "https://ask.example.com/sub/"}: "https://ask.example.com/sub/oauth/callback",
		{"ADDR", "127.0.0.1:8080", "PUBLIC_URL", "https://ask.example.com/a//b"}: "PUBLIC_URL",
		{"ADDR", "127.0.0.1:8080", "PUBLIC_URL", "https://ask.example.com/../b"}: "PUBLIC_URL",
		{"ADDR", "127.0.0.1:8080", "PUBLIC_URL", "https://ask.example.com/%22"}:  "PUBLIC_URL",
		{"ADDR", "127.0.0.1:8080", "PUBLIC_URL", "https://ask.example.com/ä"}:    "PUBLIC_URL",
		{"ADDR", "127.0.0.1:8080", "PUBLIC_URL", "https://ask.example.com/?a"}:   "PUBLIC_URL",
		{"ADDR", "127.0.0.1:8080", "PUBLIC_URL", "http://ask.example.com"}:       "PUBLIC_URL",
		{"ADDR", "127.0.0.1:8080", "PUBLIC_URL", "ask.example.com"}:              "PUBLIC_URL",
	} {
		c, err := loadConfig(newTestEnvironment(append([]string{"LLM_BASE_URL", "http://127.0.0.1:9/v1", "AUTH_INSECURE_ALLOW_ANONYMOUS", "true"}, settings[:]...)...))
		bad, refused := errors.AsType[*configError](err)
		switch {
		case refused && bad.name != want, !refused && (err != nil || c.redirectURL() != want):
			t.Errorf("%s: %q, %v, want %s", settings, c.redirectURL(), err, want)
		case !refused && settings[3] != "" && !strings.Contains(fmt.Sprint(c.AllowedHosts), "ask.example.com"):
			t.Errorf("%s: hosts %s, want ask.example.com among them", settings, c.AllowedHosts)
		}
	}

	_, config := newSignInServer(t)
	var errs strings.Builder
	err := run(t.Context(), nil, newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", "http://127.0.0.1:9/v1", "DEFAULT_MODEL_ID", "x", "MCP_CONFIG_PATH", config), io.Discard, &errs)
	if bad, ok := errors.AsType[*configError](err); !ok || !strings.Contains(bad.Error(), "PUBLIC_URL is not set either") {
		t.Errorf(`error %v, want a configError, error containing "PUBLIC_URL is not set either"`, err)
	}
}
