package catalog

import (
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/schema"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// A server's annotations count only for ApproveDestructive, and never against ApproveTools.
func TestNeedsApprovalTrustsNoAnnotationAgainstTheOperator(t *testing.T) {
	yes, no := true, false
	silent, reads := (*Annotations)(nil), &Annotations{ReadOnly: true, Destructive: &yes}
	tame, wild := &Annotations{Destructive: &no}, &Annotations{Destructive: &yes}
	for _, c := range []struct {
		approval config.Approval
		globs    []string
		hints    *Annotations
		want     bool
	}{
		{"", nil, wild, false},
		{config.ApproveNever, nil, wild, false},
		{config.ApproveNever, []string{"add"}, reads, true},
		{config.ApproveNever, []string{"a*"}, tame, true},
		{config.ApproveNever, []string{"p_add"}, silent, true},
		{config.ApproveNever, []string{"sub"}, wild, false},
		// MCP: destructiveHint is true unless said otherwise, and means something only
		// where readOnlyHint is false.
		{config.ApproveDestructive, nil, silent, true},
		{config.ApproveDestructive, nil, &Annotations{}, true},
		{config.ApproveDestructive, nil, wild, true},
		{config.ApproveDestructive, nil, tame, false},
		{config.ApproveDestructive, nil, reads, false},
		{config.ApproveDestructive, []string{"add"}, reads, true},
		{config.ApproveAlways, nil, reads, true},
		{config.ApproveAlways, nil, tame, true},
	} {
		cfg := config.Server{Name: "a", ToolPrefix: "p", Approval: c.approval, ApproveTools: c.globs}
		if got := needsApproval(&cfg, Tool{Name: "p_add", Original: "add", Annotations: c.hints}); got != c.want {
			t.Errorf("needsApproval with %q, %v, %+v = %v, want %v", c.approval, c.globs, c.hints, got, c.want)
		}
	}
}

// AutoApprove lifts Approval, and not ApproveTools.
func TestNeedsApprovalHonorsAutoApprove(t *testing.T) {
	for _, c := range []struct {
		approval    config.Approval
		ask, lifted []string
		want        bool
	}{
		{config.ApproveAlways, nil, []string{"add"}, false},
		{config.ApproveAlways, nil, []string{"p_add"}, false},
		{config.ApproveDestructive, nil, []string{"*"}, false},
		{config.ApproveAlways, nil, []string{"sub"}, true},
		{config.ApproveAlways, []string{"a*"}, []string{"add"}, true},
	} {
		cfg := config.Server{Name: "a", ToolPrefix: "p", Approval: c.approval, ApproveTools: c.ask, AutoApprove: c.lifted}
		if got := needsApproval(&cfg, Tool{Name: "p_add", Original: "add"}); got != c.want {
			t.Errorf("needsApproval with %q, approve %v, autoApprove %v = %v, want %v", c.approval, c.ask, c.lifted, got, c.want)
		}
	}
}

func TestHeaderValuesOfArguments(t *testing.T) {
	params := []HeaderParam{{"A", []string{"a"}}, {"B", []string{"in", "b"}}}
	for args, want := range map[string]map[string]string{
		`{"a":"us-west1","in":{"b":true}}`: {"Mcp-Param-A": "us-west1", "Mcp-Param-B": "true"},
		`{"a":12,"in":{"b":-1.0}}`:         {"Mcp-Param-A": "12", "Mcp-Param-B": "-1"},
		`{"a":"","in":{"b":"a b"}}`:        {"Mcp-Param-A": "", "Mcp-Param-B": "a b"},
		`{"a":" x","in":{"b":"ü"}}`:        {"Mcp-Param-A": "=?base64?IHg=?=", "Mcp-Param-B": "=?base64?w7w=?="},
		`{"a":"x\r\ny"}`:                   {"Mcp-Param-A": "=?base64?eA0KeQ==?="},
		`{"a":"=?base64?eA==?="}`:          {"Mcp-Param-A": "=?base64?PT9iYXNlNjQ/ZUE9PT89?="},
		`{"a":null,"in":null}`:             {},
		`{"a":1.5,"in":{"b":1e300}}`:       {},
		`{"a":{},"in":[]}`:                 {},
		`{"in":7}`:                         {},
	} {
		if got := HeaderValues(params, json.RawMessage(args)); !maps.Equal(got, want) {
			t.Errorf("HeaderValues(%s) = %v, want %v", args, got, want)
		}
	}
}

// The digest depends on every part of a definition and on the endpoint, but not on the order of a
// list, on blanks, or on the URL's query.
func TestDigestDependsOnDefinitionAndEndpoint(t *testing.T) {
	base := Tool{Original: "t", Title: "T", Description: "d", InputSchema: json.RawMessage(`{"type":"object","a":1}`)}
	cfg := config.Server{Type: config.TypeHTTP, URL: "https://h/mcp?key=1"}
	digest := func(cfg config.Server, change func(*Tool)) string {
		x := base
		change(&x)
		return newDefinition(&cfg, x).digest()
	}

	want := digest(cfg, func(*Tool) {})
	for name, got := range map[string]string{
		"order":      digest(cfg, func(x *Tool) { x.InputSchema = json.RawMessage(`{ "a":1, "type":"object" }`) }),
		"our name":   digest(cfg, func(x *Tool) { x.Name = "other" }),
		"the query":  digest(config.Server{Type: config.TypeHTTP, URL: "https://h/mcp?key=2"}, func(*Tool) {}),
		"the prefix": digest(config.Server{Type: config.TypeHTTP, URL: "https://h/mcp", ToolPrefix: "p"}, func(*Tool) {}),
	} {
		if got != want {
			t.Errorf("digest with another %s = %s, want %s as before", name, got, want)
		}
	}

	yes := true
	seen := map[string]string{want: "nothing"}
	for name, got := range map[string]string{
		"name":          digest(cfg, func(x *Tool) { x.Original = "u" }),
		"title":         digest(cfg, func(x *Tool) { x.Title = "" }),
		"description":   digest(cfg, func(x *Tool) { x.Description = "d " }),
		"schema":        digest(cfg, func(x *Tool) { x.InputSchema = json.RawMessage(`{"type":"object","a":1.0}`) }),
		"twice":         digest(cfg, func(x *Tool) { x.InputSchema = json.RawMessage(`{"type":"object","a":2,"a":1}`) }),
		"other twice":   digest(cfg, func(x *Tool) { x.InputSchema = json.RawMessage(`{"type":"object","a":1,"a":2}`) }),
		"output":        digest(cfg, func(x *Tool) { x.OutputSchema = json.RawMessage(`{}`) }),
		"annotations":   digest(cfg, func(x *Tool) { x.Annotations = &Annotations{} }),
		"annotation":    digest(cfg, func(x *Tool) { x.Annotations = &Annotations{Destructive: &yes} }),
		"path":          digest(config.Server{Type: config.TypeHTTP, URL: "https://h/other"}, func(*Tool) {}),
		"scheme":        digest(config.Server{Type: config.TypeHTTP, URL: "http://h/mcp"}, func(*Tool) {}),
		"command":       digest(config.Server{Type: config.TypeStdio, Command: "x"}, func(*Tool) {}),
		"arguments":     digest(config.Server{Type: config.TypeStdio, Command: "x", Args: []string{"a", "b"}}, func(*Tool) {}),
		"one argument":  digest(config.Server{Type: config.TypeStdio, Command: "x", Args: []string{"a b"}}, func(*Tool) {}),
		"order in list": digest(cfg, func(x *Tool) { x.InputSchema = json.RawMessage(`{"type":"object","a":[1]}`) }),
	} {
		if other, ok := seen[got]; ok {
			t.Errorf("digest with another %s = that of another %s, want a different one", name, other)
		}
		seen[got] = name
	}
}

// For all schemas and arguments, the headers can be sent as they are.
func FuzzHeaderParams(f *testing.F) {
	for _, s := range [][2]string{
		{`{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}`, `{"a":"b"}`},
		{`{"properties":{"a":{"type":"object","properties":{"b":{"type":"integer","x-mcp-header":"B"}}}}}`, `{"a":{"b":1e3}}`},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"A\r\nB"}}}`, `{"a":"b"}`}, {`{"properties":{"a":{"type":"boolean","x-mcp-header":"A"}}}`, `{"a":true}`},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}`, `{"a":"\r\n X: y"}`}, {`{"x-mcp-header":1}`, `[]`},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, schema, args string) {
		params, err := HeaderParams(json.RawMessage(schema))
		if err != nil {
			return
		}
		for name, value := range HeaderValues(params, json.RawMessage(args)) {
			var b strings.Builder
			if err := (http.Header{name: {value}}).Write(&b); err != nil || b.String() != name+": "+value+"\r\n" {
				t.Errorf("header of %q with %q = %q, %v, want %q", schema, args, b.String(), err, name+": "+value)
			}
		}
	})
}

// Compiling a schema is expensive, and some servers are listed every minute.
func TestSetToolsCompilesAnUnchangedSchemaOnce(t *testing.T) {
	c := newTestCatalog()
	list := func(names ...string) (tools []Tool) {
		for _, n := range names {
			tools = append(tools, Tool{Server: "a", Original: n, InputSchema: json.RawMessage(`{"type":"object","required":["city"]}`)})
		}
		return tools
	}
	cfg := &config.Server{Name: "a"}
	c.SetTools(0, cfg, list("forecast"))
	before, _ := c.Resolve("forecast")
	c.SetTools(0, cfg, list("forecast2", "forecast"))
	after, _ := c.Resolve("forecast")
	if before.inputSchema == nil || before.inputSchema != after.inputSchema {
		t.Errorf("compiled schema after the second list = %p, want %p of the first", after.inputSchema, before.inputSchema)
	}
}

func TestSetServersDropsTheListsOfRemovedServers(t *testing.T) {
	c := newTestCatalog()
	for id, name := range []string{"a", "b"} {
		c.SetTools(id, &config.Server{Name: name}, []Tool{{Server: name, Original: "t"}})
	}
	c.SetServers([]int{1}, nil, nil)
	if got := len(c.entries); got != 1 {
		t.Errorf("lists of tools after a server was removed = %d, want 1", got)
	}
}

func TestToolThatDoesNotDecodeSaysWhichMemberIsWrong(t *testing.T) {
	for raw, want := range map[string]string{
		`"t"`:                           "it is a JSON string, not an object",
		`{"name":"t","annotations":[]}`: "its member annotations cannot be a JSON array",
		`{"name":"t","annotations":{"readOnlyHint":"yes"}}`: "its member annotations.readOnlyHint cannot be a JSON string",
	} {
		if _, err := Decode(json.RawMessage(raw)); err == nil || err.Error() != want {
			t.Errorf("Decode(%s): got the error %v, want %s", raw, err, want)
		}
	}
	_, err := schema.Compile(json.RawMessage(`{"properties":[]}`))
	if want := `"properties" in it cannot be an array`; err == nil || err.Error() != want {
		t.Errorf("got the error %v, want %s", err, want)
	}
}
