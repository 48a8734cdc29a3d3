package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// realCall is a call of a real server's tool: what its result, or the problem of its
// failure, must contain, and what it must not.
type realCall struct {
	tool, args  string
	status      int // 0 is 200
	want, never string
}

func (c realCall) agrees(text string) bool {
	return strings.Contains(text, c.want) && (c.never == "" || !strings.Contains(text, c.never))
}

// realServer is one public server over one transport.
type realServer struct {
	name, transport string
	args            func(dir string) []string // of the command, over stdio
	env             func(dir string) map[string]string
	calls           []realCall
}

// everything is what the reference server is asked over each of its transports.
var everything = []realCall{
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
	{name: "everything", transport: "http", calls: everything},
	{name: "everything", transport: "sse", calls: everything},
	// The same address without a type: the server refuses Streamable HTTP there.
	{name: "everything", transport: "http at sse", calls: everything},
	{name: "everything", transport: "stdio", calls: append([]realCall{
		// A child has the variables that the official SDKs pass on and those under env, and no others.
		{tool: "get-env", args: `{}`, want: `given`, never: "ANSWERD_REAL_SERVERS"},
	}, everything...), env: func(string) map[string]string { return map[string]string{"MARK": "given"} }},
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

// realServersDir is where npm has put the servers, or the end of the test.
func realServersDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("ANSWERD_REAL_SERVERS")
	if dir == "" {
		t.Skip("ANSWERD_REAL_SERVERS names no folder of node modules; make real-servers does")
	}
	return dir
}

// config is the server as mcp.json has it; dir is a folder of its own.
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
	args := []string{script(modules, s.name)}
	if s.args != nil {
		args = append(args, s.args(dir)...)
	}
	c := map[string]any{"type": s.transport, "command": nodeCommand(t), "args": args}
	if s.env != nil {
		c["env"] = s.env(dir)
	}
	return c
}

// startWithServer is an answerd with that one server, whose tools are prefixed with "real",
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
	s := startAnswerd(t, envOf("ADDR", "127.0.0.1:0", "LLM_BASE_URL", model.URL, "DEFAULT_MODEL_ID", "scripted", "MAX_TURNS", "32", "MCP_CONFIG_PATH", file, "PATH", os.Getenv("PATH"), "HOME", os.Getenv("HOME")))

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
				if want := max(call.status, http.StatusOK); status != want || !call.agrees(body) {
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
		if !strings.HasPrefix(ends[i], event) || !call.agrees(ends[i]) {
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
	for life := range 3 {
		if life > 0 {
			first.stop()
			first = startEverything(t, modules, first.port, "streamableHttp")
		}
		for range 3 {
			status, body := callTool(t, c, s.url, "real_echo", fmt.Sprintf(`{"message":"life %d"}`, life))
			if status != http.StatusOK || !strings.Contains(body, fmt.Sprintf("Echo: life %d", life)) {
				t.Errorf("life %d: %d %s, want status 200, body containing %s", life, status, body, fmt.Sprintf("Echo: life %d", life))
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

// nodeCommand is where Node is, or the end of the test.
func nodeCommand(t *testing.T) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node is missing")
	}
	return node
}

func script(modules, server string) string {
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
	cmd := exec.Command(nodeCommand(t), script(modules, "everything"), transport)
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

// freePort is one that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// fastMCPCalls are the calls of testdata/realservers/python/fastmcp_server.py.
var fastMCPCalls = []realCall{
	{tool: "add", args: `{"a":40,"b":2}`, want: "42"},
	{tool: "add", args: `{"a":"40","b":2}`, want: "42"},
	{tool: "add", args: `{"a":1.5,"b":2}`, status: http.StatusUnprocessableEntity, want: "/a"},
	{tool: "weather", args: `{"city":"Paris"}`, want: `"payload":{"city":"Paris"`},
	{tool: "fail", args: `{"reason":"no such customer"}`, status: http.StatusBadGateway, want: "no such customer"},
	{tool: "count", args: `{"to":3}`, want: "counted to 3"},
	{tool: "absent", args: `{}`, status: http.StatusNotFound, want: `"kind":"unknown_tool"`},
}

// sdkCalls are the calls of testdata/realservers/python/sdk_server.py.
var sdkCalls = []realCall{
	{tool: "reverse", args: `{"text":"abc ü"}`, want: " cba"},
	{tool: "reverse", args: `{}`, status: http.StatusUnprocessableEntity, want: "text"},
	{tool: "area", args: `{"width":2.5,"height":4}`, want: `"payload":{"area":10`},
	{tool: "absent", args: `{}`, status: http.StatusNotFound, want: `"kind":"unknown_tool"`},
}

// pythonServers are the servers in Python: the requirements that they run with, their script and their calls.
var pythonServers = []struct {
	requirements, script string
	calls                []realCall
}{
	{"fastmcp4", "fastmcp_server.py", fastMCPCalls},
	{"fastmcp2", "fastmcp_server.py", fastMCPCalls},
	{"sdk", "sdk_server.py", sdkCalls},
}

// pythonCommand returns the interpreter of a virtual environment and the path of a script, or skips the test.
func pythonCommand(t *testing.T, requirements, script string) (interpreter, path string) {
	t.Helper()
	dir := os.Getenv("ANSWERD_REAL_PYTHON")
	if dir == "" {
		t.Skip("ANSWERD_REAL_PYTHON names no folder of Python servers; make real-servers does")
	}
	interpreter = filepath.Join(dir, ".venv-"+requirements, "bin", "python")
	if _, err := os.Stat(interpreter); err != nil {
		t.Skipf("pip could not install %s.txt", requirements)
	}
	return interpreter, filepath.Join(dir, script)
}

// startPythonServer starts a script on a free port and returns its URL when it accepts connections.
func startPythonServer(t *testing.T, interpreter, script, transport string, options ...string) (url string) {
	t.Helper()
	port := freePort(t)
	cmd := exec.Command(interpreter, append([]string{script, transport, port}, options...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening, ended := make(chan struct{}), make(chan struct{})
	var output strings.Builder // written by the goroutine until ended is closed
	go func() {
		defer close(ended)
		found := false
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if output.Len() < 1<<16 {
				output.WriteString(lines.Text() + "\n")
			}
			if !found && strings.Contains(lines.Text(), "Uvicorn running on") {
				close(listening)
				found = true
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	select {
	case <-listening:
	case <-ended:
		t.Fatalf("%s ended, want it to listen:\n%s", script, &output)
	}
	if transport == "sse" {
		return "http://127.0.0.1:" + port + "/sse"
	}
	return "http://127.0.0.1:" + port + "/mcp"
}

func TestRealServersInPython(t *testing.T) {
	for _, server := range pythonServers {
		for _, mode := range []string{"stdio", "sse", "http", "http stateless", "http json", "http stateless json"} {
			if mode == "sse" && server.requirements == "sdk" {
				continue // sdk_server.py does not serve it
			}
			t.Run(server.requirements+" over "+mode, func(t *testing.T) {
				interpreter, script := pythonCommand(t, server.requirements, server.script)
				transport, options, _ := strings.Cut(mode, " ")
				var config map[string]any
				var connections *atomic.Int64
				if transport == "stdio" {
					config = map[string]any{"type": "stdio", "command": interpreter, "args": []string{script, "stdio"}}
				} else {
					var url string
					url, connections = countConnections(t, startPythonServer(t, interpreter, script, transport, strings.Fields(options)...))
					config = map[string]any{"type": transport, "url": url}
				}
				s := startWithServer(t, config, server.calls)
				c := newClient(t)
				for _, call := range server.calls {
					status, body := callTool(t, c, s.url, "real_"+call.tool, call.args)
					if want := max(call.status, http.StatusOK); status != want || !call.agrees(body) {
						t.Errorf("POST /tools/real_%s/call with %s: got %d %.2000s, want %d with %s", call.tool, call.args, status, body, want, call.want)
					}
				}
				checkInARun(t, c, s, server.calls)
				if connections != nil {
					checkConnectionReuse(t, c, s.url, server.calls[0], connections)
				}
				// FastMCP 2 announces nothing without a session, and FastMCP 4 nothing in a JSON reply.
				silent := map[string]string{"fastmcp2": "stateless", "fastmcp4": "json"}[server.requirements]
				if server.script == "fastmcp_server.py" && !strings.Contains(mode, silent) {
					checkGrow(t, c, s.url)
				}
			})
		}
	}
}

// countConnections returns the URL of a relay to the server at url, and the number of TCP
// connections that the relay has accepted.
func countConnections(t *testing.T, url string) (relayed string, accepted *atomic.Int64) {
	t.Helper()
	address, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			server, err := net.Dial("tcp", address)
			if err != nil {
				client.Close()
				continue
			}
			stop := context.AfterFunc(t.Context(), func() { client.Close(); server.Close() })
			relay := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				to.Close()
				from.Close()
				stop()
			}
			relays.Go(func() { relay(server, client) })
			relays.Go(func() { relay(client, server) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		relays.Wait()
	})
	return "http://" + listener.Addr().String() + "/" + path, accepted
}

// checkConnectionReuse makes the call 40 times and checks that no connection is opened for it.
func checkConnectionReuse(t *testing.T, c *http.Client, url string, call realCall, accepted *atomic.Int64) {
	t.Helper()
	before := accepted.Load()
	for range 40 {
		if status, body := callTool(t, c, url, "real_"+call.tool, call.args); status != http.StatusOK || !call.agrees(body) {
			t.Fatalf("POST /tools/real_%s/call: got %d %.2000s, want 200 with %s", call.tool, status, body, call.want)
		}
	}
	opened := accepted.Load() - before
	t.Logf("%d connections before 40 calls, %d opened by them", before, opened)
	if opened != 0 {
		t.Errorf("connections opened by 40 calls: got %d, want 0", opened)
	}
}

// checkGrow has the server add a tool, and calls that tool.
func checkGrow(t *testing.T, c *http.Client, url string) {
	t.Helper()
	called := time.Now()
	if status, body := callTool(t, c, url, "real_grow", `{}`); status != http.StatusOK || !strings.Contains(body, "grown") {
		t.Errorf("POST /tools/real_grow/call: got %d %.2000s, want 200 with grown", status, body)
	}
	waitForTool(t, c, url, "real_late_tool", called)
	if status, body := callTool(t, c, url, "real_late_tool", `{}`); status != http.StatusOK || !strings.Contains(body, "late") {
		t.Errorf("POST /tools/real_late_tool/call: got %d %.2000s, want 200 with late", status, body)
	}
}

// TestRealServerAsksTheUser has FastMCP's ctx.elicit answered by the caller of a run. FastMCP 4 has no
// elicitation with 2026-07-28, so answerd uses 2025-11-25 for it.
func TestRealServerAsksTheUser(t *testing.T) {
	for _, server := range []struct{ requirements, transport string }{{"fastmcp4", "http"}, {"fastmcp4", "stdio"}, {"fastmcp4", "sse"}, {"fastmcp2", "http"}} {
		t.Run(server.requirements+" over "+server.transport, func(t *testing.T) {
			interpreter, script := pythonCommand(t, server.requirements, "fastmcp_server.py")
			config := map[string]any{"type": "stdio", "command": interpreter, "args": []string{script, "stdio"}}
			if server.transport != "stdio" {
				config = map[string]any{"type": server.transport, "url": startPythonServer(t, interpreter, script, server.transport)}
			}
			s := startWithServer(t, config, []realCall{{tool: "greet", args: `{}`}})
			c := newClient(t)
			var interrupt struct {
				ID  string `json:"interrupt_id"`
				Run string `json:"run_id"`
			}
			for _, f := range readStream(t, post(t, c, s.url+"/answer/stream", `{"question":"?"}`)) {
				if f.Event == "elicitation" {
					if err := json.Unmarshal(f.Data, &interrupt); err != nil {
						t.Fatal(err)
					}
				}
			}
			if interrupt.ID == "" {
				t.Fatalf("got no elicitation\n%s, ID %q, want non-empty", s.log, interrupt.ID)
			}
			answer := fmt.Sprintf(`{"id":%q,"action":"accept","content":{"value":"Ada"}}`, interrupt.ID)
			result := ""
			for _, f := range readStream(t, post(t, c, s.url+"/runs/"+interrupt.Run+"/input", answer, "Accept", "text/event-stream")) {
				if f.Event == "tool_result" || f.Event == "tool_error" {
					result = f.Event + " " + string(f.Data)
				}
			}
			if !strings.HasPrefix(result, "tool_result") || !strings.Contains(result, "Hello, Ada!") {
				t.Errorf("got %s, want a tool_result with Hello, Ada!", result)
			}
		})
	}
}
