package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// scriptWithTools returns a server whose list of tools is that JSON.
func scriptWithTools(tools ...string) *scriptedServer {
	return &scriptedServer{list: func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m.ID, `{"tools":[`+strings.Join(tools, ",")+`]}`)
	}}
}

// namesOf returns the names of tools, with spaces between them.
func namesOf(tools []catalog.Tool) string {
	var out []string
	for _, t := range tools {
		out = append(out, t.Name)
	}
	return strings.Join(out, " ")
}

// A tool that is not valid is left out and hides no other.
func TestListLeavesOutBadToolsOnly(t *testing.T) {
	deep := strings.Repeat(`{"properties":{"a":`, 500) + `{}` + strings.Repeat(`}}`, 500)
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, scriptWithTools(
		`{"name":"good","inputSchema":{"type":"object"}}`,
		`null`,
		`7`,
		`{"name":7}`,
		`{"name":""}`,
		`{"name":"`+strings.Repeat("x", 300)+`"}`,
		`{"name":"a\u0000b"}`,
		`{"name":"array","inputSchema":{"type":"array"}}`,
		`{"name":"union","inputSchema":{"type":["object","null"]}}`,
		`{"name":"notobject","inputSchema":"x"}`,
		`{"name":"deep","inputSchema":`+deep+`}`,
		`{"name":"big","inputSchema":{"type":"object","description":"`+strings.Repeat("x", 100<<10)+`"}}`,
		`{"name":"good","description":"again"}`,
		`{"name":"task","execution":{"taskSupport":"required"}}`,
		`{"name":"badoutput","outputSchema":`+deep+`}`,
		`{"name":"last","description":"`+strings.Repeat("é", 20<<10)+`"}`,
	)).URL})
	list := c.Tools(t.Context())
	if got := namesOf(list); got != "badoutput good last" {
		t.Errorf("got the tools %s, want badoutput good last; servers %+v", got, c.Servers())
	}
	if d := list[2].Description; len(d) > catalog.MaxDescription || !strings.HasSuffix(d, "é") {
		t.Errorf("got a description of %d bytes that ends in %q, want at most %d and a whole character", len(d), d[len(d)-2:], catalog.MaxDescription)
	}
	if list[0].OutputSchema != nil {
		t.Errorf("got the output schema %s, want none: it is not valid", list[0].OutputSchema)
	}
}

// The log names a tool that is left out because a member of it has the wrong type.
func TestToolWithAMemberOfTheWrongTypeIsNamedInTheLog(t *testing.T) {
	var log syncBuffer
	c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, config.Server{Name: "a", URL: serveHTTP(t, scriptWithTools(
		`{"annotations":{"readOnlyHint":"true"},"inputSchema":{"type":"object"},"name":"odd"}`,
	)).URL})
	c.Tools(t.Context())
	if s := log.String(); !strings.Contains(s, `msg="MCP tool left out"`) || !strings.Contains(s, "tool=odd") || !strings.Contains(s, "readOnlyHint") {
		t.Errorf("got the log %s, want it to name the tool odd and its member readOnlyHint", s)
	}
}

// Schemas keep their order of keys, and get the type "object" if they have none.
func TestListKeepsSchemasAsReceived(t *testing.T) {
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, scriptWithTools(
		`{"name":"a","inputSchema": {"type" : "object", "properties":{"z":{"enum":[1,9007199254740993]},"a":{"$ref":"http://localhost:1/x"}},"required":["z"]}}`,
		`{"name":"b","inputSchema":{"properties":{}}}`,
		`{"name":"c","inputSchema":{}}`,
		`{"name":"d"}`,
		`{"name":"e","title":"E","annotations":{"title":"no","readOnlyHint":true,"destructiveHint":false},"outputSchema":{"type":"array"}}`,
	)).URL})

	list := c.Tools(t.Context())
	for i, want := range []string{
		`{"type":"object","properties":{"z":{"enum":[1,9007199254740993]},"a":{"$ref":"http://localhost:1/x"}},"required":["z"]}`,
		`{"type":"object","properties":{}}`, `{"type":"object"}`, `{"type":"object"}`, `{"type":"object"}`,
	} {
		if got := string(list[i].InputSchema); got != want {
			t.Errorf("%s: got %s, want %s", list[i].Name, got, want)
		}
	}

	e := list[4]
	if e.Title != "E" || !e.Annotations.ReadOnly || *e.Annotations.Destructive || e.Annotations.OpenWorld != nil || string(e.OutputSchema) != `{"type":"array"}` {
		t.Errorf("got %+v, want the title, annotations and output schema as received", e)
	}
}

// A list without end is cut.
func TestListOfToolsIsBounded(t *testing.T) {
	t.Parallel()
	toolJSON := func(i int) string { return fmt.Sprintf(`{"name":"t%05d"}`, i) }
	many := make([]string, 10000)
	for i := range many {
		many[i] = toolJSON(i)
	}

	for name, test := range map[string]struct {
		page  func(n int64) string
		tools int
		pages int64
	}{
		"new cursors":    {func(n int64) string { return fmt.Sprintf(`{"tools":[%s],"nextCursor":"c%d"}`, toolJSON(int(n)), n) }, 256, 256},
		"a number":       {func(n int64) string { return fmt.Sprintf(`{"tools":[%s],"nextCursor":%d}`, toolJSON(int(n)), n) }, 1, 1},
		"the same":       {func(n int64) string { return fmt.Sprintf(`{"tools":[%s],"nextCursor":"c"}`, toolJSON(int(n))) }, 2, 2},
		"back and forth": {func(n int64) string { return fmt.Sprintf(`{"tools":[%s],"nextCursor":"c%d"}`, toolJSON(int(n)), n%2) }, 3, 3},
		"10,000 tools":   {func(int64) string { return `{"tools":[` + strings.Join(many, ",") + `]}` }, 10000, 1},
	} {
		var n atomic.Int64
		s := &scriptedServer{list: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, test.page(n.Add(1))) }}
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		if got := len(c.Tools(t.Context())); got != test.tools || n.Load() != test.pages {
			t.Errorf("%s: got %d tools after %d pages, want %d after %d", name, got, n.Load(), test.tools, test.pages)
		}
	}
}

// A list whose cursor comes again or is not a string may lack tools: the status and one line of the log say so.
func TestListWithAnUnusableCursorIsReported(t *testing.T) {
	for cursor, want := range map[string]struct {
		tools  int
		reason string
	}{
		`"c"`: {2, "repeats a cursor"},
		`2`:   {1, "has a cursor that is not a string"},
	} {
		var log syncBuffer
		var pages atomic.Int64
		s := &scriptedServer{list: func(w http.ResponseWriter, _ *http.Request, m message) {
			replyJSON(w, m.ID, fmt.Sprintf(`{"tools":[{"name":"t%d"}],"nextCursor":%s}`, pages.Add(1), cursor))
		}}
		c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		c.Tools(t.Context())
		reason := "the list of tools " + want.reason + "; left out: 1 or more"
		if st := c.Servers()[0]; st.Tools != want.tools || st.OmittedTools != 1 || st.Reason != reason {
			t.Errorf("cursor %s: got the status %+v, want %d tools, 1 omitted, reason %q", cursor, st, want.tools, reason)
		}
		if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, want.reason) {
			t.Errorf("cursor %s: got the log %s, want one warning that the list %s", cursor, text, want.reason)
		}
	}
}

// A list of resources that may lack some is reported like one of tools.
func TestListOfResourcesThatIsCutIsReported(t *testing.T) {
	var log syncBuffer
	s := &scriptedServer{before: answersMethod("resources/", `{"resources":[{"uri":"docs:///a","name":"a"}],"nextCursor":"c"}`)}
	c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, config.Server{
		Name: "a", URL: serveHTTP(t, s).URL, Resources: []string{"docs:*"},
	})
	c.Tools(t.Context())
	const reason = "the list of resources repeats a cursor; further resources are left out"
	if st := c.Servers()[0]; st.Tools != 2 || st.Reason != reason {
		t.Errorf("got the status %+v, want 2 tools, reason %q", st, reason)
	}
	read, _ := c.Tool("read_resource")
	if schema := string(read.InputSchema); strings.Count(schema, "docs:///a") != 1 {
		t.Errorf("got the schema %s, want the resource that two pages have once", schema)
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "repeats a cursor") {
		t.Errorf("got the log %s, want one warning that the list repeats a cursor", text)
	}
}

// A list that is too large, or does not decode, is the failure of that server only.
func TestListFailureIsItsServersAlone(t *testing.T) {
	t.Parallel()
	big := scriptWithTools(`{"name":"big","inputSchema":{"description":"` + strings.Repeat("x", 10<<20) + `"}}`)
	none := &scriptedServer{list: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, `{"tools":7}`) }}

	without := &scriptedServer{list: func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", jsonType)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
	}}

	c := newClient(t, Options{MaxToolBytes: transport.MaxMessage},
		config.Server{Name: "big", URL: serveHTTP(t, big).URL},
		config.Server{Name: "none", URL: serveHTTP(t, none).URL},
		config.Server{Name: "without", URL: serveHTTP(t, without).URL},
		config.Server{Name: "good", URL: serveHTTP(t, scriptWithTools(`{"name":"t"}`)).URL})
	if got := namesOf(c.Tools(t.Context())); got != "t" {
		t.Errorf("got the tools %s, want t", got)
	}

	var states []State
	for _, s := range c.Servers() {
		states = append(states, s.State)
	}
	if fmt.Sprint(states) != "[failed failed connected connected]" {
		t.Errorf("got the states %v, want failed failed connected connected: %+v", states, c.Servers())
	}
}

// Refresh asks the server, whatever its ttlMs, and returns after the new list is there.
func TestRefreshListsAgain(t *testing.T) {
	for name, o := range flavours {
		t.Run(name, func(t *testing.T) {
			s := newToolServer(nil)
			s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
				return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
					res, err := next(ctx, method, r)
					if list, ok := res.(*sdk.ListToolsResult); ok {
						list.TTLMs = 3600_000
					}
					return res, err
				}
			})

			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, streamableHandler(t, s, o)).URL})
			if got := namesOf(c.Tools(t.Context())); got != "echo" {
				t.Fatalf("got the tools %s, want echo", got)
			}
			s.AddTool(&sdk.Tool{Name: "news", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
			if err := c.Refresh(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if got := namesOf(c.Tools(t.Context())); got != "echo news" {
				t.Errorf("got the tools %s, want echo news", got)
			}
		})
	}
}

// A server that no longer has a tool that it listed, and announces nothing, is asked for its list again
// when it says so, in an error or in a result.
func TestListIsRenewedWhenAListedToolIsUnknown(t *testing.T) {
	for name, answer := range map[string]string{
		"-32602":     `"error":{"code":-32602,"message":"Unknown tool: t"}`,
		"FastMCP":    `"result":{"isError":true,"content":[{"type":"text","text":"Unknown tool: 't'"}]}`,
		"TypeScript": `"result":{"isError":true,"content":[{"type":"text","text":"MCP error -32602: Tool t not found"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newChangingServer(`{"name":"t","inputSchema":{"type":"object"}}`)
				s.call = func(w http.ResponseWriter, _ *http.Request, m message) {
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, answer)
				}

				c := newClient(t, Options{Transport: inProcessTransport(s)}, config.Server{Name: "a", URL: "http://localhost"})
				c.Tools(t.Context())
				s.setTools(`{"name":"u","inputSchema":{"type":"object"}}`)
				_, _ = c.Call(t.Context(), Call{Tool: "t"})
				passTime(renewalGap)
				synctest.Wait()
				if got := namesOf(c.Tools(t.Context())); got != "u" {
					t.Errorf("got the tools %s, want u", got)
				}
				_ = c.Close()
			})
		})
	}
}
