package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"answerd/internal/llm/llmtest"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// startInstructingServer serves a server with these instructions, whose tool returns the _meta of its call.
func startInstructingServer(t *testing.T, instructions string) string {
	t.Helper()
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{Instructions: instructions})
	s.AddTool(&sdk.Tool{Name: "meta", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{StructuredContent: map[string]any(r.Params.Meta), Content: []sdk.Content{}}, nil
	})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
	t.Cleanup(web.Close)
	return web.URL
}

// mcp.json decides, per server, whether its instructions are in the prompt and which ids it gets; the
// callers of a service with authentication have a subject.
func TestServersGetTheirIDsAndGiveTheirInstructions(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "crm_meta"}, llmtest.Call{Name: "wiki_meta"}), llmtest.Says("Done.")))
	file := filepath.Join(t.TempDir(), "mcp.json")
	text := fmt.Sprintf(`{"mcpServers":{
		"crm":{"url":%q,"toolPrefix":"crm","instructions":true,"meta":["call_id","run_id","thread_id","subject"]},
		"wiki":{"url":%q,"toolPrefix":"wiki"}}}`, startInstructingServer(t, "Ask the CRM first."), startInstructingServer(t, "Ask the wiki first."))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startAnswerd(t, w.environment(w.withInboundAuth("MCP_URL", "", "MCP_CONFIG_PATH", file)...))
	a := postQuestion(t, newClient(t), s.url, `{"question":"?","thread_id":"thr_1","context":{"context_id":"1111"}}`, "Authorization", w.callerToken(t))
	var metadata struct {
		Results []map[string]any `json:"tool_results"`
	}
	if err := json.Unmarshal(a.Metadata, &metadata); err != nil || len(metadata.Results) != 2 {
		t.Fatalf("got %s, %v, want two results", a.Metadata, err)
	}
	crm, wiki := metadata.Results[0], metadata.Results[1]
	if crm["io.answerd/run_id"] != a.RunID || crm["io.answerd/thread_id"] != "thr_1" || !strings.HasSuffix(fmt.Sprint(crm["io.answerd/subject"]), demoClient) || crm["io.answerd/call_id"] != "call_1" || crm["context_id"] != "1111" {
		t.Errorf("crm: got %v, want run %s, thread thr_1, subject %s, call_1 and the context", crm, a.RunID, demoClient)
	}
	if wiki["io.answerd/call_id"] != "call_2" || wiki["io.answerd/run_id"] != nil || wiki["io.answerd/subject"] != nil || wiki["context_id"] != "1111" {
		t.Errorf("wiki: got %v, want call_2 and the context alone", wiki)
	}
	if prompt := w.model.Requests()[0].Messages[0].Content; !strings.Contains(prompt, "## MCP server crm\n") || !strings.Contains(prompt, "> Ask the CRM first.") || strings.Contains(prompt, "Ask the wiki") {
		t.Errorf("got prompt %s, want the instructions of crm alone", prompt)
	}
	postQuestion(t, newClient(t), s.url, `{"question":"?","servers":["wiki"]}`, "Authorization", w.callerToken(t))
	requests := w.model.Requests()
	if prompt := requests[len(requests)-1].Messages[0].Content; strings.Contains(prompt, "Ask the CRM") {
		t.Errorf("got prompt %s, want no instructions of a server that the question leaves out", prompt)
	}
}
