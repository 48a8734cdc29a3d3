package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"answerd/internal/llm/llmtest"
)

// realCall is a call of a real server's tool: what its result, or the problem of its
// failure, must contain, and what it must not.
type realCall struct {
	tool, args  string
	status      int // 0 is 200
	want, never string
}

func (c realCall) matches(text string) bool {
	return strings.Contains(text, c.want) && (c.never == "" || !strings.Contains(text, c.never))
}

// realServer is one public server over one transport.
type realServer struct {
	name, transport string
	args            func(dir string) []string // of the command, over stdio
	env             func(dir string) map[string]string
	calls           []realCall
}

// everythingCalls are the calls of the reference server over each of its transports.
var everythingCalls = []realCall{
	{tool: "echo", args: `{"message":"Grüße, \"Welt\""}`, want: `Echo: Grüße, \"Welt\"`},
	{tool: "get-sum", args: `{"a":40,"b":2}`, want: "42"},
	{tool: "get-sum", args: `{"a":"forty","b":2}`, status: 422, want: `expected number, got string \"forty\"`},
	{tool: "get-sum", args: `{"a":"40","b":2}`, want: "42"}, // what is only written as text is repaired
	{tool: "get-structured-content", args: `{"location":"New York"}`, want: `"payload":{"temperature":`},
	{tool: "get-tiny-image", args: `{}`, want: `"mimeType":"image/png"`},
	{tool: "get-annotated-message", args: `{"messageType":"error"}`, want: `"annotations":{`},
	{tool: "get-resource-links", args: `{"count":2}`, want: `"type":"resource_link"`},
	{tool: "get-resource-reference", args: `{"resourceType":"Text","resourceId":1}`, want: `"type":"resource"`},
	{tool: "trigger-long-running-operation", args: `{"duration":0.2,"steps":2}`, want: "completed"},
	{tool: "get-nothing", args: `{}`, status: 404, want: `"kind":"unknown_tool"`},
}

var realServers = []realServer{
	{name: "everything", transport: "http", calls: everythingCalls},
	{name: "everything", transport: "sse", calls: everythingCalls},
	// The same address without a type: the server refuses Streamable HTTP there.
	{name: "everything", transport: "http at sse", calls: everythingCalls},
	{name: "everything", transport: "stdio", calls: append([]realCall{
		// A child has the variables that the official SDKs pass on and those under env, and no others.
		{tool: "get-env", args: `{}`, want: `given`, never: "ANSWERD_REAL_SERVERS"},
	}, everythingCalls...), env: func(string) map[string]string { return map[string]string{"MARK": "given"} }},
	{name: "filesystem", transport: "stdio",
		args: func(dir string) []string { return []string{dir} },
		calls: []realCall{
			{tool: "write_file", args: `{"path":"DIR/a.txt","content":"first\nsecond"}`, want: "a.txt"},
			{tool: "read_text_file", args: `{"path":"DIR/a.txt","head":1}`, want: "first"},
			{tool: "list_directory", args: `{"path":"DIR"}`, want: "[FILE] a.txt"},
			{tool: "read_text_file", args: `{"path":"/etc/hostname"}`, status: 502, want: "Access denied"},
		}},
	{name: "memory", transport: "stdio",
		env: func(dir string) map[string]string {
			return map[string]string{"MEMORY_FILE_PATH": filepath.Join(dir, "memory.jsonl")}
		},
		calls: []realCall{
			{tool: "create_entities", args: `{"entities":[{"name":"Ada","entityType":"person","observations":["counts"]}]}`, want: `"entities":[`},
			{tool: "search_nodes", args: `{"query":"Ada"}`, want: `"counts"`},
		}},
	{name: "sequential-thinking", transport: "stdio", calls: []realCall{
		{tool: "sequentialthinking", args: `{"thought":"One step.","nextThoughtNeeded":false,"thoughtNumber":1,"totalThoughts":1}`, want: `"thoughtNumber":1`},
	}},
}

// realServersDir returns the folder where npm has installed the servers. It skips the test if npm has installed none.
func realServersDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("ANSWERD_REAL_SERVERS")
	if dir == "" {
		t.Skip("ANSWERD_REAL_SERVERS names no folder of node modules; make real-servers does")
	}
	return dir
}

// config returns the server's entry in mcp.json; dir is a folder of its own.
func (s realServer) config(t *testing.T, modules, dir string) map[string]any {
	t.Helper()
	switch s.transport {
	case "http":
		return map[string]any{"type": "http", "url": startEverything(t, modules, "", "streamableHttp").url}
	case "sse":
		return map[string]any{"type": "sse", "url": startEverything(t, modules, "", "sse").url}
	case "http at sse":
		return map[string]any{"url": startEverything(t, modules, "", "sse").url}
	}
	args := []string{serverScriptPath(modules, s.name)}
	if s.args != nil {
		args = append(args, s.args(dir)...)
	}
	c := map[string]any{"type": s.transport, "command": nodeCommand(t), "args": args}
	if s.env != nil {
		c["env"] = s.env(dir)
	}
	return c
}

// startWithServer starts answerd with that one server, whose tools have the prefix "real",
// and a model that makes these calls one after the other. It skips the test where the
// server's transport is not built in.
func startWithServer(t *testing.T, server map[string]any, calls []realCall) *service {
	t.Helper()
	server["toolPrefix"] = "real"
	text, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"real": server}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	turns := make([]llmtest.Answer, 0, len(calls)+1)
	for _, c := range calls {
		turns = append(turns, llmtest.Calls(llmtest.Call{Name: "real_" + c.tool, Args: c.args}))
	}
	model := llmtest.New(t, llmtest.Turns(append(turns, llmtest.Says("Done."))...))
	s := startAnswerd(t, newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "scripted", "MAX_TURNS", "32", "MCP_CONFIG_PATH", file, "PATH", os.Getenv("PATH"), "HOME", os.Getenv("HOME")))

	// A refresh returns when the server is connected, or has failed.
	resp := post(t, newClient(t), s.url+"/servers/real/refresh", "")
	var state struct{ State, Detail string }
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		t.Fatal(err)
	}
	switch {
	case strings.Contains(state.Detail, "is not supported by this build"):
		t.Skip(state.Detail)
	case state.State != "connected":
		t.Fatalf("%s: %+v, want connected\n%s", resp.Status, state, s.log)
	}
	return s
}

// Each server's tools, called directly and by a model, say the same.
func TestRealServers(t *testing.T) {
	modules := realServersDir(t)
	for _, server := range realServers {
		t.Run(server.name+" over "+server.transport, func(t *testing.T) {
			dir := t.TempDir()
			calls := make([]realCall, len(server.calls))
			for i, c := range server.calls {
				c.args = strings.ReplaceAll(c.args, "DIR", dir)
				calls[i] = c
			}

			s := startWithServer(t, server.config(t, modules, dir), calls)
			c := newClient(t)
			for _, call := range calls {
				status, body := callTool(t, c, s.url, "real_"+call.tool, call.args)
				if want := max(call.status, http.StatusOK); status != want || !call.matches(body) {
					t.Errorf("got %s %s: %d, want %d with %s\n%.2000s", call.tool, call.args, status, want, call.want, body)
				}
			}
			checkInARun(t, c, s, calls)
		})
	}
}

// checkInARun lets the model make the calls, and looks for their results in the stream.
func checkInARun(t *testing.T, c *http.Client, s *service, calls []realCall) {
	t.Helper()
	var ends []string
	progress := 0
	for _, f := range readStream(t, post(t, c, s.url+"/answer/stream", `{"question":"?"}`)) {
		switch f.Event {
		case "tool_result", "tool_error":
			ends = append(ends, f.Event+" "+string(f.Data))
		case "tool_progress":
			progress++
		}
	}
	if len(ends) != len(calls) {
		t.Fatalf("%d of %d calls ended, want %d", len(ends), len(calls), len(calls))
	}
	for i, call := range calls {
		event := "tool_result "
		if call.status != 0 {
			event = "tool_error "
		}
		if !strings.HasPrefix(ends[i], event) || !call.matches(ends[i]) {
			t.Errorf("got %s %s: want %s with %s\n%.2000s", call.tool, call.args, event, call.want, ends[i])
		}
		if call.tool == "trigger-long-running-operation" && progress == 0 {
			t.Errorf("%s: no progress, want at least 1", call.tool)
		}
	}
}

// S3.2: the reference server forgets its sessions when it is started again, and says
// so in its own words: 400, "No valid session ID".
func TestRealServerRestartLosesNoCall(t *testing.T) {
	modules := realServersDir(t)
	first := startEverything(t, modules, "", "streamableHttp")
	s := startWithServer(t, map[string]any{"type": "http", "url": first.url}, nil)
	c := newClient(t)
	for start := range 3 {
		if start > 0 {
			first.stop()
			first = startEverything(t, modules, first.port, "streamableHttp")
		}
		for range 3 {
			status, body := callTool(t, c, s.url, "real_echo", fmt.Sprintf(`{"message":"start %d"}`, start))
			if status != http.StatusOK || !strings.Contains(body, fmt.Sprintf("Echo: start %d", start)) {
				t.Errorf("start %d: %d %s, want status 200, body containing %s", start, status, body, fmt.Sprintf("Echo: start %d", start))
			}
		}
	}

	if ids := regexp.MustCompile(`(?i)mcp-session-id|No valid session`).FindString(s.log.String()); ids != "" {
		t.Errorf("the log says %q, want empty", ids)
	}
}

// everythingServer is the reference server over HTTP, as a process.
type everythingServer struct {
	url, port string
	stop      func()
}

// nodeCommand returns the path of Node, or skips the test.
func nodeCommand(t *testing.T) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node is missing")
	}
	return node
}

func serverScriptPath(modules, server string) string {
	return filepath.Join(modules, "@modelcontextprotocol", "server-"+server, "dist", "index.js")
}

// startEverything starts the server on that port, on a free one for "", and returns
// when it listens. transport is that of its command line: streamableHttp or sse.
func startEverything(t *testing.T, modules, port, transport string) everythingServer {
	t.Helper()
	if port == "" {
		port = freePort(t)
	}
	read, write := io.Pipe()
	cmd := exec.Command(nodeCommand(t), serverScriptPath(modules, "everything"), transport)
	cmd.Env = []string{"PORT=" + port}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening, gone := make(chan struct{}), make(chan struct{})

	go func() {
		_ = cmd.Wait()
		write.Close() // the end of what is read below
	}()

	go func() {
		defer close(gone)
		told := false
		for lines := bufio.NewScanner(read); lines.Scan(); {
			if !told && (strings.Contains(lines.Text(), "listening") || strings.Contains(lines.Text(), "running on")) {
				close(listening)
				told = true
			}
		}
	}()

	stop := func() {
		_ = cmd.Process.Kill() // it has nothing to clean up
		<-gone
	}
	t.Cleanup(stop)

	select {
	case <-listening:
	case <-gone:
		t.Fatal("the server ended, want it to listen")
	}

	path := map[string]string{"streamableHttp": "/mcp", "sse": "/sse"}[transport]
	return everythingServer{"http://127.0.0.1:" + port + path, port, stop}
}

// freePort returns a port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20000 + rand.N(10000)) // below those that the system gives to other tests
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		l.Close()
		return port
	}
	t.Fatal("found no free port in 100 attempts")
	return ""
}
