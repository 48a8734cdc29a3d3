package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// waitForTool polls GET /tools until a tool of that name is offered, for at most two seconds after since.
func waitForTool(t *testing.T, c *http.Client, url, name string, since time.Time) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, body := getBody(t, c, url+"/tools")
		if strings.Contains(body, `"name":"`+name+`"`) {
			return
		}
		if time.Since(since) > 2*time.Second {
			t.Fatalf("GET /tools two seconds after the change: got %.2000s, want the tool %s", body, name)
		}
		<-tick.C
	}
}

// A server announces between two calls that its tools have changed, in each generation of the protocol
// and without any setting, and GET /tools has the new tool within two seconds.
func TestListChangedIsReflectedInTools(t *testing.T) {
	t.Parallel()
	for protocol, options := range map[string]*sdk.StreamableHTTPOptions{"2025-11-25": nil, "2026-07-28": {Stateless: true}} {
		t.Run(protocol, func(t *testing.T) {
			server := sdk.NewServer(&sdk.Implementation{Name: "growing", Version: "1"}, nil)
			emptyResult := func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{}, nil
			}
			server.AddTool(&sdk.Tool{Name: "first", InputSchema: json.RawMessage(`{"type":"object"}`)}, emptyResult)
			web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, options))
			t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
			model := llmtest.New(t, llmtest.Turns(llmtest.Says("Done.")))
			s := startAnswerd(t, newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "scripted", "MCP_URL", web.URL))
			c := newClient(t)
			waitForTool(t, c, s.url, "first", time.Now())
			server.AddTool(&sdk.Tool{Name: "second", InputSchema: json.RawMessage(`{"type":"object"}`)}, emptyResult)
			waitForTool(t, c, s.url, "second", time.Now())
			server.AddTool(&sdk.Tool{Name: "third", InputSchema: json.RawMessage(`{"type":"object"}`)}, emptyResult)
			waitForTool(t, c, s.url, "third", time.Now())
		})
	}
}
