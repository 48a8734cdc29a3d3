package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
)

// paying is a server whose tool wants the person behind its call to visit a page, and says
// what came of it.
func paying(t *testing.T) *httptest.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: "shop", Version: "1"}, nil)
	server.AddTool(&sdk.Tool{Name: "pay", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		given := r.Params.InputResponses["q"]
		if given == nil {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{
				Mode: "url", Message: "Pay for it.", URL: "https://pay.example/order/1", ElicitationID: "order-1",
			}}}, nil
		}
		said, err := json.Marshal(given)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(said)}}}, err
	})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(web.Close)
	return web
}

// What a server wants its person to visit is asked of the host that called, and his answer
// goes back to the server.
func TestAHostsPersonIsAskedToVisitAPage(t *testing.T) {
	script := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "pay", Args: `{}`}), llmtest.Says("Well."))
	for _, version := range versions[:2] {
		for action, p := range map[string]person{"accept": accepts(nil), "decline": chooses("decline"), "cancel": chooses("cancel")} {
			t.Run(version+" "+action, func(t *testing.T) {
				shop := paying(t)
				s := serve(t, script, nil, nil, func(c *mcp.ServerConfig) { c.URL = shop.URL })
				h := s.joins(t, version, p, nil)
				_, out := h.asks(bounded(t), t, `{"question":"Buy it."}`, nil)
				if out.Answer != "Well." || len(h.asked) != 1 {
					t.Fatalf("asked %d times: %+v", len(h.asked), out)
				}
				if q := h.asked[0]; q.Mode != "url" || q.URL != "https://pay.example/order/1" || !strings.Contains(q.Message, "Pay for it.") || q.RequestedSchema != nil {
					t.Errorf("asked %+v", q)
				}
				messages := s.Model.Requests()[1].Messages
				if told := string(messages[len(messages)-1].Content); !strings.Contains(told, `"action":"`+action+`"`) {
					t.Errorf("the tool was told %s", told)
				}
			})
		}
	}
}
