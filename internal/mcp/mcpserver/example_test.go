package mcpserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/mcpserver"
)

func ExampleNew() {
	ctx := context.Background()
	h := mcpserver.New(mcpserver.Options{
		Tool: mcpserver.Tool{Name: "greet", InputSchema: json.RawMessage(`{"type":"object"}`)},
		CallTool: func(_ context.Context, c *mcpserver.Call) mcpserver.Result {
			return mcpserver.Result{Text: "Hello, " + string(c.Arguments)}
		},
	})
	server := httptest.NewServer(h)
	defer server.Close()
	defer h.Close(ctx)

	client := sdk.NewClient(&sdk.Implementation{Name: "example", Version: "1"}, nil)
	session, err := client.Connect(ctx, &sdk.StreamableClientTransport{Endpoint: server.URL, DisableStandaloneSSE: true}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close()
	res, err := session.CallTool(ctx, &sdk.CallToolParams{Name: "greet", Arguments: map[string]any{"name": "Ada"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Content[0].(*sdk.TextContent).Text)
	// Output: Hello, {"name":"Ada"}
}
