package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
)

// serveResources returns a server with resources and a template of resources. It sends the URI of
// each read to reads.
func serveResources(t *testing.T, flavour string, reads chan<- string) *httpServer {
	return serveHTTP(t, streamableHandler(t, newToolServer(func(s *sdk.Server) {
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

// A session that is lost between tools/list and resources/list is made again, and the tool
// that reads resources stays.
func TestReadToolSurvivesALostSession(t *testing.T) {
	server := newToolServer(func(s *sdk.Server) {
		s.AddResource(&sdk.Resource{URI: "docs:///a", Name: "a"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) { return nil, nil })
	})

	h := streamableHandler(t, server, flavours["stateful sse"])
	var lose atomic.Bool
	url := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.Contains(peekBody(r), `"resources/list"`) && lose.CompareAndSwap(true, false) {
			for session := range server.Sessions() {
				_ = session.Close()
			}
		}
		h.ServeHTTP(w, r)
	})).URL

	c := newClient(t, Options{}, config.Server{Name: "a", URL: url, ProtocolVersion: "2025-11-25", Resources: []string{"docs:*"}})
	before := len(c.Tools(t.Context()))
	lose.Store(true)
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if list := c.Tools(t.Context()); lose.Load() || len(list) != before || list[before-1].Original != readTool {
		t.Errorf("got %d tools, want %d with %s", len(list), before, readTool)
	}
}

// Some servers answer an unknown method with 404 (mcp-toolbox#3588), which otherwise means that the session is lost.
func TestUnknownMethodWith404LeavesTheSession(t *testing.T) {
	s := &scriptedServer{before: func(w http.ResponseWriter, r *http.Request) bool {
		var m message
		_ = json.Unmarshal([]byte(peekBody(r)), &m)
		isUnknown := strings.HasPrefix(m.Method, "resources/")
		if isUnknown {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}`, m.ID)
		}
		return isUnknown
	}}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, Resources: []string{"docs:*"}})
	tools := c.Tools(t.Context())
	if state := c.Servers()[0]; len(tools) != 1 || state.State != Connected || s.initializes.Load() != 1 {
		t.Errorf("got %d tools, state %s %s after %d handshakes, want 1 and %s after 1", len(tools), state.State, state.Reason, s.initializes.Load(), Connected)
	}
}

// Resources that match a pattern are offered through one tool and can be read; others cannot.
func TestReadToolReadsMatchingResources(t *testing.T) {
	for _, flavour := range []string{"stateful sse", "stateless json"} {
		t.Run(flavour, func(t *testing.T) {
			reads := make(chan string, 100)
			c := newClient(t, Options{}, config.Server{
				Name: "a", URL: serveResources(t, flavour, reads).URL, ToolPrefix: "lib", Resources: []string{"docs:///*"}, AllowTools: []string{"echo"},
			})
			list := c.Tools(t.Context())
			if len(list) != 2 || list[1].Name != "lib_read_resource" {
				t.Fatalf("got the tools %+v, want echo and lib_read_resource", list)
			}

			offered := list[1].Description + string(list[1].InputSchema)
			for _, want := range []string{"docs:///guide/2 (guide 2: a guide)", "docs:///page/{name}"} {
				if !strings.Contains(offered, want) {
					t.Errorf("got the tool %s, want %q in it", offered, want)
				}
			}

			if strings.Contains(offered, "secret") || strings.Contains(offered, "enum") {
				t.Errorf("got the tool %s, want neither the secret nor an enum", offered)
			}

			read := func(uri string) (*content.Result, error) {
				args, _ := json.Marshal(map[string]string{"uri": uri})
				return c.Call(t.Context(), Call{Tool: "lib_read_resource", Args: args, Progress: func(Progress) {}})
			}

			for _, uri := range []string{"docs:///guide/1", "docs:///page/x"} {
				res, err := read(uri)
				if text := mustResult(t, res, err).Text(); !strings.Contains(text, "about "+uri) || !strings.HasPrefix(text, "[resource "+uri) {
					t.Errorf("%s: got %s, want its text as a resource", uri, text)
				}
				if got := <-reads; got != uri {
					t.Errorf("got a read of %s, want %s", got, uri)
				}
			}

			for _, uri := range []string{"secret:///keys", "docs:///page/../../keys", "docs:///page/%2e%2e/keys", "docs:///a\n", "", strings.Repeat("docs:///", 200)} {
				if _, err := read(uri); mustFail(t, err).Kind != InvalidArguments {
					t.Errorf("%q: got %v, want %s", uri, err, InvalidArguments)
				}
			}

			if _, err := read("docs:///page/missing"); err == nil {
				t.Error("got no error for a resource that is missing, want an error")
			}
			<-reads
			if len(reads) != 0 {
				t.Errorf("got a read of %s, want no other", <-reads)
			}
		})
	}
}

// Resources without templates are an enum, which models follow best. Without a match there is
// no tool, and a tool of the server with the same name stays callable.
func TestReadToolIsOfferedIfResourcesMatch(t *testing.T) {
	reads := make(chan string, 10)
	fixed := newClient(t, Options{}, config.Server{Name: "a", URL: serveResources(t, "stateful json", reads).URL, Resources: []string{"docs:///guide/*"}})
	if list := fixed.Tools(t.Context()); len(list) != 2 || !strings.Contains(string(list[1].InputSchema), `"enum":["docs:///guide/0","docs:///guide/1","docs:///guide/2"]`) {
		t.Errorf("got the tools %+v, want two, with an enum of the guides", list)
	}

	for _, patterns := range [][]string{nil, {"other:*"}} {
		none := newClient(t, Options{}, config.Server{Name: "a", URL: serveResources(t, "stateful json", reads).URL, Resources: patterns})
		if list := none.Tools(t.Context()); len(list) != 1 {
			t.Errorf("%v: got the tools %+v, want one", patterns, list)
		}
	}

	own := newClient(t, Options{}, config.Server{Name: "a", Resources: []string{"x:*"}, URL: serveHTTP(t, streamableHandler(t, newToolServer(func(s *sdk.Server) {
		addRawTool(s, readTool, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "own"}}}, nil
		})
		s.AddResource(&sdk.Resource{URI: "x:1", Name: "x"}, nil)
	}), nil)).URL})

	res, err := own.Call(t.Context(), Call{Tool: readTool})
	if got := mustResult(t, res, err).Text(); got != "own" || len(own.Tools(t.Context())) != 3 {
		t.Errorf("got %s and %d tools, want own and 3", got, len(own.Tools(t.Context())))
	}
}

// Lists of resources without end, garbage in them, and a server without the method hide none
// of its tools.
func TestResourceListFailureHidesNoTools(t *testing.T) {
	for name, result := range map[string]string{
		"an endless cursor": `"result":{"resources":[{"uri":"x:1","name":"1"}],"nextCursor":"again"}`,
		"garbage":           `"result":{"resources":7}`,
		"odd elements":      `"result":{"resources":[1,null,{"uri":"x:1"},{"uri":"y:` + strings.Repeat("1", 2000) + `"}]}`,
		"an error":          `"error":{"code":-32603,"message":"no"}`,
		"no such method":    `"error":{"code":-32601,"message":"no"}`,
	} {
		s := &scriptedServer{before: func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost {
				return false
			}
			var m message
			if json.Unmarshal([]byte(peekBody(r)), &m) != nil || !strings.HasPrefix(m.Method, "resources/") {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, result)
			return true
		}}
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, Resources: []string{"*"}})
		if list := c.Tools(t.Context()); len(list) == 0 || list[len(list)-1].Original != "t" {
			t.Errorf("%s: got the tools %+v, want t among them", name, list)
		}
	}
}
