package conformance

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// newSuiteServer returns a server that records which tools were called with what.
func newSuiteServer(t *testing.T, schemas map[string]string) (url string, called func() []string) {
	t.Helper()
	calls := make(chan string, 16)
	s := sdk.NewServer(&sdk.Implementation{Name: "suite", Version: "1"}, nil)
	for name, schema := range schemas {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(schema)}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			calls <- r.Params.Name + " " + string(r.Params.Arguments)
			return &sdk.CallToolResult{}, nil
		})
	}
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil))
	t.Cleanup(web.Close)
	return web.URL, func() []string {
		close(calls)
		var out []string
		for c := range calls {
			out = append(out, c)
		}
		slices.Sort(out)
		return out
	}
}

func TestToolsAreCalledAsTheSuiteAsksOrAsTheirSchemasSay(t *testing.T) {
	url, called := newSuiteServer(t, map[string]string{
		"asked": `{"type":"object","properties":{"n":{"type":"integer"}}}`,
		"other": `{"type":"object","properties":{"n":{"type":"integer"},"b":{"type":"boolean"},"s":{"type":"string"},"o":{"type":"object"}}}`,
	})
	env := map[string]string{
		"MCP_CONFORMANCE_PROTOCOL_VERSION": "2025-11-25",
		"MCP_CONFORMANCE_CONTEXT":          `{"toolCalls":[{"name":"asked","arguments":{"n":1}},{"name":"asked","arguments":{"n":2}},{"name":"missing"}]}`,
	}
	if err := runScenario(t.Context(), []string{"conformance", url}, func(name string) string { return env[name] }); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(called(), "; "), `asked {"n":1}; asked {"n":2}; other {"b":true,"n":5,"s":"us-west1"}`; got != want {
		t.Errorf("called %s, want %s", got, want)
	}
}

func TestServerThatCannotBeUsedIsAFailure(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	err := runScenario(t.Context(), []string{"conformance", web.URL}, func(string) string { return "" })
	if err == nil || !strings.Contains(err.Error(), "failed") {
		t.Errorf("error %v, want error containing failed", err)
	}
}
