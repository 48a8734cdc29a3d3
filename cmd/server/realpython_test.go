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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

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
					if want := max(call.status, http.StatusOK); status != want || !call.matches(body) {
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
	opened := int64(0)
	// A call over SSE may begin before the connection of the POST before it is idle again; net/http then dials.
	for range 3 {
		before := accepted.Load()
		for range 40 {
			if status, body := callTool(t, c, url, "real_"+call.tool, call.args); status != http.StatusOK || !call.matches(body) {
				t.Fatalf("POST /tools/real_%s/call: got %d %.2000s, want 200 with %s", call.tool, status, body, call.want)
			}
		}
		opened = accepted.Load() - before
		t.Logf("%d connections before 40 calls, %d opened by them", before, opened)
		if opened == 0 {
			return
		}
	}
	t.Errorf("connections opened by 40 calls: got %d in the last of three rounds, want 0", opened)
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
