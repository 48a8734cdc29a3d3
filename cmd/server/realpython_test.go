package main

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
		t.Fatalf("%s ended before it listened:\n%s", script, &output)
	}
	if transport == "sse" {
		return "http://127.0.0.1:" + port + "/sse"
	}
	return "http://127.0.0.1:" + port + "/mcp"
}

func TestRealServersInPython(t *testing.T) {
	for _, server := range pythonServers {
		for _, mode := range []string{"stdio", "http", "http stateless", "http json", "http stateless json"} {
			t.Run(server.requirements+" over "+mode, func(t *testing.T) {
				interpreter, script := pythonCommand(t, server.requirements, server.script)
				transport, options, _ := strings.Cut(mode, " ")
				var config map[string]any
				if transport == "stdio" {
					config = map[string]any{"type": "stdio", "command": interpreter, "args": []string{script, "stdio"}}
				} else {
					config = map[string]any{"type": "http", "url": startPythonServer(t, interpreter, script, transport, strings.Fields(options)...)}
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
			})
		}
	}
}
