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
)

// Tools must be left out whose x-mcp-header is not allowed (2026-07-28 server/tools).
func TestToolsWithBadHeadersAreLeftOut(t *testing.T) {
	var list []string
	tool := func(name, properties string) {
		list = append(list, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object","properties":{%s}}}`, name, properties))
	}
	tool("good", `"a":{"type":"string","x-mcp-header":"Region"},"b":{"type":"object","properties":{"c":{"type":"boolean","x-mcp-header":"X-2"}}},"d":true`)
	tool("mentioned", `"x-mcp-header":{"type":"string"}`) // a property of that name is none
	tool("quoted", `"a":{"type":"object","default":{"x-mcp-header":"A"},"enum":[{"x-mcp-header":"A"}],"examples":[{"x-mcp-header":"A"}],"oneOf":[{"properties":{"x-mcp-header":true}}]}`)

	for i, bad := range []string{
		`{"type":"string","x-mcp-header":""}`,
		`{"type":"string","x-mcp-header":7}`,
		`{"type":"string","x-mcp-header":null}`,
		`{"type":"string","x-mcp-header":"A B"}`,
		`{"type":"string","x-mcp-header":"A:B"}`,
		`{"type":"string","x-mcp-header":"A\r\nAuthorization"}`,
		`{"type":"string","x-mcp-header":"Größe"}`,
		`{"type":"object","x-mcp-header":"A"}`,
		`{"type":"number","x-mcp-header":"A"}`,
		`{"type":["string","null"],"x-mcp-header":"A"}`,
		`{"x-mcp-header":"A"}`,
		`{"type":"object","properties":{"in":{"type":"array","x-mcp-header":"A"}}}`,
		`{"type":"object","properties":{"in":{"type":"string","x-mcp-header":"one"},"as":{"type":"string","x-mcp-header":"One"}}}`,
		// Not reachable from the root by properties alone (2026-07-28 basic/transports/streamable-http, "Schema Extension").
		`{"type":"array","items":{"type":"string","x-mcp-header":"A"}}`,
		`{"type":"array","prefixItems":[{"type":"string","x-mcp-header":"A"}]}`,
		`{"type":"object","additionalProperties":{"type":"string","x-mcp-header":"A"}}`,
		`{"oneOf":[{"type":"object","properties":{"in":{"type":"string","x-mcp-header":"A"}}},{"type":"null"}]}`,
		`{"type":"string"}},"$defs":{"d":{"type":"string","x-mcp-header":"A"}`,
		`{"type":"string"}},"if":{"properties":{"p":{"type":"string","x-mcp-header":"A"}}`,
		`{"type":"string"}},"x-mcp-header":"A","other":{"of":{}`,
	} {
		tool(fmt.Sprintf("bad%d", i), `"p":`+bad)
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, scriptWithTools(list...)).URL})
	if got := namesOf(c.Tools(t.Context())); got != "good mentioned quoted" {
		t.Errorf(`tools %s, want "good mentioned quoted"`, got)
	}
}

// The SDK sends no headers for this schema, whose note has two types. They are part of
// 2026-07-28, and are not sent to an older server.
func TestHeadersGoWithTheCall(t *testing.T) {
	const schema = `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"note":{"type":["string","null"]}}}`
	for _, c := range []struct{ flavour, want string }{{"stateless json", "us-west1"}, {"stateful json", ""}} {
		s := newToolServer(func(s *sdk.Server) {
			s.AddTool(&sdk.Tool{Name: "where", InputSchema: json.RawMessage(schema)}, emptyToolResult)
		})

		next := streamableHandler(t, s, flavours[c.flavour])
		got := make(chan string, 1)
		w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(peekBody(r), `"tools/call"`) {
				got <- r.Header.Get("Mcp-Param-Region")
			}
			next.ServeHTTP(w, r)
		}))

		client := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
		_, err := client.Call(t.Context(), Call{Tool: "where", Args: json.RawMessage(`{"region":"us-west1"}`)})
		if header := <-got; err != nil || header != c.want {
			t.Errorf("%s: the header is %q, %v, want %q and no error", c.flavour, header, err, c.want)
		}
	}
}

// A server that refuses the headers of a call has other annotations than we know: its tools are listed again, and
// the call is sent once more with the new headers.
func TestHeaderMismatchHasTheToolsListedAgain(t *testing.T) {
	var lists, calls atomic.Int64
	s := &scriptedServer{stateless: true}
	s.list = func(w http.ResponseWriter, _ *http.Request, m message) {
		region := `{"type":"string","x-mcp-header":"Region"}`
		if lists.Add(1) == 1 {
			region = `{"type":"string"}`
		}
		replyJSON(w, m.ID, `{"resultType":"complete","tools":[{"name":"where","inputSchema":{"type":"object","properties":{"region":`+region+`}}}]}`)
	}
	s.call = func(w http.ResponseWriter, r *http.Request, m message) {
		calls.Add(1)
		if r.Header.Get("Mcp-Param-Region") != "eu" {
			rpcErrorReply(http.StatusBadRequest, -32020)(w, r, m)
			return
		}
		replyJSON(w, m.ID, `{"resultType":"complete","content":[]}`)
	}
	client := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	client.Tools(t.Context())
	if _, err := client.Call(t.Context(), Call{Tool: "where", Args: json.RawMessage(`{"region":"eu"}`)}); err != nil || calls.Load() != 2 {
		t.Errorf("got %v after %d calls, want success after 2", err, calls.Load())
	}
	// A list that does not help is asked for once.
	_, err := client.Call(t.Context(), Call{Tool: "where", Args: json.RawMessage(`{"region":"us"}`)})
	if e := mustFail(t, err); e.Kind != Execution || calls.Load() != 4 || lists.Load() != 3 {
		t.Errorf("got %v after %d calls and %d lists, want Kind Execution after 4 and 3", e, calls.Load(), lists.Load())
	}
}

// The SDK sends a tool's name as it is, and the Python SDK's servers refuse all but ASCII
// (2026-07-28 basic/transports, value encoding).
func TestNameInAHeaderIsEncodedWhereItMustBe(t *testing.T) {
	want := map[string]string{
		"plain": "plain", "größe": "=?base64?Z3LDtsOfZQ==?=", " a": "=?base64?IGE=?=", "=?base64?eA==?=": "=?base64?PT9iYXNlNjQ/ZUE9PT89?=",
	}

	s := newToolServer(func(s *sdk.Server) {
		for name := range want {
			addRawTool(s, name, emptyToolResult)
		}
	})

	next := streamableHandler(t, s, flavours["stateless json"])
	got := make(chan string, 1)
	w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Method") == "tools/call" {
			got <- r.Header.Get(nameHeader)
			var m message
			_ = json.Unmarshal([]byte(peekBody(r)), &m)
			r.Header.Set(nameHeader, m.Params.Name) // the SDK's server of v1.8.0 does not decode it
		}
		next.ServeHTTP(w, r)
	}))

	client := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
	for _, tool := range client.Tools(t.Context()) {
		if tool.Original == "echo" {
			continue
		}
		_, err := client.Call(t.Context(), Call{Tool: tool.Name})
		if err != nil {
			t.Errorf("%q: %v", tool.Original, err)
			continue
		}
		if header := <-got; header != want[tool.Original] {
			t.Errorf("%q: the header is %q, want %q", tool.Original, header, want[tool.Original])
		}
	}
}

func emptyToolResult(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	return &sdk.CallToolResult{}, nil
}
