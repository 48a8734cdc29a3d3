package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// largeListCount is how many tools newLargeListServer has. Their definitions have more bytes together than a
// message may have otherwise.
const largeListCount = 600

// newLargeListServer returns a server that lists its tools on one page.
func newLargeListServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "many", Version: "1"}, &sdk.ServerOptions{PageSize: 2 * largeListCount})
	for i := range largeListCount {
		s.AddTool(&sdk.Tool{Name: fmt.Sprintf("t%d", i), Description: strings.Repeat("x", 10_000), InputSchema: map[string]any{"type": "object"}},
			func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "ok"}}}, nil
			})
	}
	return s
}

// A page of a list of tools may be larger than a message may be otherwise, whatever carries it.
func TestListPageAboveFourMegabytesIsUsed(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]func() config.Server{
		"http": func() config.Server {
			return config.Server{Name: "a", URL: serveHTTP(t, streamableHandler(t, newLargeListServer(), nil)).URL}
		},
		"http, JSON": func() config.Server {
			return config.Server{Name: "a", URL: serveHTTP(t, streamableHandler(t, newLargeListServer(), &sdk.StreamableHTTPOptions{JSONResponse: true})).URL}
		},
		"websocket": func() config.Server { return wsServerConfig(t, newWSSDK(t, newLargeListServer())) },
		"stdio":     func() config.Server { return stdioConfig("many", "") },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, Options{}, cfg())
			if err := c.Refresh(t.Context(), "a"); err != nil {
				t.Fatalf("Refresh: %v", err)
			}
			if got := len(c.Tools(t.Context())); got != largeListCount {
				t.Errorf("Tools() has %d tools, want %d", got, largeListCount)
			}
			if st := c.Servers()[0]; st.State != Connected || st.OmittedTools != 0 || st.Reason != "" {
				t.Errorf("status = %+v, want connected with nothing omitted", st)
			}
			res, err := c.Call(t.Context(), Call{Tool: "t599"})
			mustResult(t, res, err)
		})
	}
}

// After a list, an answer to a call may not have more bytes than before it.
func TestListPageRaisesNoOtherLimit(t *testing.T) {
	s := newLargeListServer()
	s.AddTool(&sdk.Tool{Name: "large", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: strings.Repeat("x", transport.MaxMessage+1)}}}, nil
	})
	c := newClient(t, Options{}, wsServerConfig(t, newWSSDK(t, s)))
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatalf("Refresh: %v", err)
	}
	_, err := c.Call(t.Context(), Call{Tool: "large"})
	if e := mustFail(t, err); e.Kind != TooLarge {
		t.Errorf("call error %v, want Kind TooLarge", e)
	}
}

// Tools that are left out are reported.
func TestOmittedToolsAreReported(t *testing.T) {
	toolJSON := func(i int) string {
		return fmt.Sprintf(`{"name":"t%d","description":%q,"inputSchema":{"type":"object"}}`, i, strings.Repeat("x", 900))
	}
	var requests atomic.Int64
	newPagedServer := func(n int) *scriptedServer {
		return &scriptedServer{list: func(w http.ResponseWriter, _ *http.Request, m message) {
			page := int(requests.Add(1))
			next := ""
			if page < n {
				next = fmt.Sprintf(`,"nextCursor":"%d"`, page)
			}
			replyJSON(w, m.ID, fmt.Sprintf(`{"tools":[%s,%s]%s}`, toolJSON(2*page), toolJSON(2*page+1), next))
		}}
	}
	for name, test := range map[string]struct {
		server         *scriptedServer
		tools, omitted int
		reason         string
	}{
		"all":        {newPagedServer(2), 4, 0, ""},
		"not valid":  {scriptWithTools(`{"name":"a"}`, `{"name":"a"}`, `{"name":"b","inputSchema":7}`), 1, 2, "tools left out, because they are not valid or the list is too large: 2"},
		"too large":  {newPagedServer(3), 4, 2, "tools left out, because they are not valid or the list is too large: 2"},
		"more pages": {newPagedServer(9), 4, 2, "the list of tools is too large; left out: 2 or more"},
		"no end": {&scriptedServer{list: func(w http.ResponseWriter, _ *http.Request, m message) {
			replyJSON(w, m.ID, fmt.Sprintf(`{"tools":[],"nextCursor":"%d"}`, requests.Add(1)))
		}}, 0, 1, "the list of tools is too large; left out: 1 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			requests.Store(0)
			c := newClient(t, Options{MaxToolBytes: 4 << 10}, config.Server{Name: "a", URL: serveHTTP(t, test.server).URL})
			c.Tools(t.Context())
			if st := c.Servers()[0]; st.State != Connected || st.Tools != test.tools || st.OmittedTools != test.omitted || st.Reason != test.reason {
				t.Errorf("status = %+v, want %d tools, %d omitted, reason %q", st, test.tools, test.omitted, test.reason)
			}
		})
	}
}
