package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/mcp/config"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// library has resources, a template of some, and counts what is read.
func library(t *testing.T, flavour string, reads chan<- string) *web {
	return serve(t, handler(tools(func(s *sdk.Server) {
		read := func(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			reads <- r.Params.URI
			if strings.HasSuffix(r.Params.URI, "missing") {
				return nil, sdk.ResourceNotFoundError(r.Params.URI)
			}
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, MIMEType: "text/plain", Text: "about " + r.Params.URI}}}, nil
		}
		for i := range 3 {
			s.AddResource(&sdk.Resource{URI: fmt.Sprintf("docs:///guide/%d", i), Name: fmt.Sprint("guide ", i), Description: "a guide"}, read)
		}
		s.AddResource(&sdk.Resource{URI: "secret:///keys", Name: "keys"}, read)
		s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: "docs:///page/{name}", Name: "page"}, read)
	}), flavours[flavour]))
}

// S3.2, S4.7: a session that is lost between the list of tools and that of resources is made
// anew, and the tool that reads them stays.
func TestASessionThatIsLostAmongListsCostsNoTool(t *testing.T) {
	server := tools(func(s *sdk.Server) {
		s.AddResource(&sdk.Resource{URI: "docs:///a", Name: "a"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) { return nil, nil })
	})
	h := handler(server, flavours["stateful sse"])
	var lose atomic.Bool
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.Contains(peek(r), `"resources/list"`) && lose.CompareAndSwap(true, false) {
			for session := range server.Sessions() {
				_ = session.Close()
			}
		}
		h.ServeHTTP(w, r)
	})).URL
	c := open(t, Options{}, config.Server{Name: "a", URL: url, ProtocolVersion: "2025-11-25", Resources: []string{"docs:*"}})
	before := len(c.Tools(t.Context()))
	lose.Store(true)
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if list := c.Tools(t.Context()); lose.Load() || len(list) != before || list[before-1].Original != readTool {
		t.Errorf("%d tools, and %d before", len(list), before)
	}
}

// S4.7: what matches a pattern is offered through one tool and can be read; nothing
// else can.
func TestMatchingResourcesAreReadThroughOneTool(t *testing.T) {
	for _, flavour := range []string{"stateful sse", "stateless json"} {
		t.Run(flavour, func(t *testing.T) {
			reads := make(chan string, 100)
			c := open(t, Options{}, config.Server{
				Name: "a", URL: library(t, flavour, reads).URL, ToolPrefix: "lib", Resources: []string{"docs:///*"}, AllowTools: []string{"echo"},
			})
			list := c.Tools(t.Context())
			if len(list) != 2 || list[1].Name != "lib_read_resource" {
				t.Fatalf("tools %+v", list)
			}
			says := list[1].Description + string(list[1].InputSchema)
			for _, want := range []string{"docs:///guide/2 (guide 2: a guide)", "docs:///page/{name}"} {
				if !strings.Contains(says, want) {
					t.Errorf("%q is missing in %s", want, says)
				}
			}
			if strings.Contains(says, "secret") || strings.Contains(says, "enum") {
				t.Errorf("offered: %s", says)
			}
			read := func(uri string) (*Result, error) {
				args, _ := json.Marshal(map[string]string{"uri": uri})
				return c.Call(t.Context(), Call{Tool: "lib_read_resource", Args: args, Progress: func(Progress) {}})
			}
			for _, uri := range []string{"docs:///guide/1", "docs:///page/x"} {
				res, err := read(uri)
				if text := must(t, res, err).Text(); !strings.Contains(text, "about "+uri) || !strings.HasPrefix(text, "[resource "+uri) {
					t.Errorf("%s: %s", uri, text)
				}
				if got := <-reads; got != uri {
					t.Errorf("read %s", got)
				}
			}
			for _, uri := range []string{"secret:///keys", "docs:///page/../../keys", "docs:///page/%2e%2e/keys", "docs:///a\n", "", strings.Repeat("docs:///", 200)} {
				if _, err := read(uri); kind(t, err).Kind != InvalidArguments {
					t.Errorf("%q: %v", uri, err)
				}
			}
			if _, err := read("docs:///page/missing"); err == nil {
				t.Error("what is missing was read")
			}
			<-reads
			if len(reads) != 0 {
				t.Errorf("read %s as well", <-reads)
			}
		})
	}
}

// Fixed resources are an enum, as models follow it best; without a match there is no
// tool, and a server's own tool of the name stays its own.
func TestTheReadToolIsThereWhereItIsOfUse(t *testing.T) {
	reads := make(chan string, 10)
	fixed := open(t, Options{}, config.Server{Name: "a", URL: library(t, "stateful json", reads).URL, Resources: []string{"docs:///guide/*"}})
	if list := fixed.Tools(t.Context()); len(list) != 2 || !strings.Contains(string(list[1].InputSchema), `"enum":["docs:///guide/0","docs:///guide/1","docs:///guide/2"]`) {
		t.Errorf("%+v", list)
	}
	for _, patterns := range [][]string{nil, {"other:*"}} {
		none := open(t, Options{}, config.Server{Name: "a", URL: library(t, "stateful json", reads).URL, Resources: patterns})
		if list := none.Tools(t.Context()); len(list) != 1 {
			t.Errorf("%v: %+v", patterns, list)
		}
	}
	own := open(t, Options{}, config.Server{Name: "a", Resources: []string{"x:*"}, URL: serve(t, handler(tools(func(s *sdk.Server) {
		rawTool(s, readTool, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "own"}}}, nil
		})
		s.AddResource(&sdk.Resource{URI: "x:1", Name: "x"}, nil)
	}), nil)).URL})
	res, err := own.Call(t.Context(), Call{Tool: readTool})
	if got := must(t, res, err).Text(); got != "own" || len(own.Tools(t.Context())) != 3 {
		t.Errorf("%s, %d tools", got, len(own.Tools(t.Context())))
	}
}

// F21, for resources: lists without end, garbage in them, and a server that has none
// cost no tool of its own.
func TestBadListsOfResourcesHideNoTools(t *testing.T) {
	for name, result := range map[string]string{
		"an endless cursor": `"result":{"resources":[{"uri":"x:1","name":"1"}],"nextCursor":"again"}`,
		"garbage":           `"result":{"resources":7}`,
		"odd elements":      `"result":{"resources":[1,null,{"uri":"x:1"},{"uri":"y:` + strings.Repeat("1", 2000) + `"}]}`,
		"an error":          `"error":{"code":-32603,"message":"no"}`,
		"no such method":    `"error":{"code":-32601,"message":"no"}`,
	} {
		s := &script{before: func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost {
				return false
			}
			var m message
			if json.Unmarshal([]byte(peek(r)), &m) != nil || !strings.HasPrefix(m.Method, "resources/") {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, result)
			return true
		}}
		c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL, Resources: []string{"*"}})
		if list := c.Tools(t.Context()); len(list) == 0 || list[len(list)-1].Original != "t" {
			t.Errorf("%s: %+v", name, list)
		}
	}
}
