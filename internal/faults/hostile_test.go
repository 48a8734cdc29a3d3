package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"answerd/internal/llm/llmtest"
)

// frameServer answers the messages of a client as an MCP server of 2025-11-25, over any transport.
// send sends one frame, which need not be JSON.
type frameServer func(m message, send func(string))

// hostileReplies are the frames that a server sends instead of the response to a call. ID stands
// for the id of the request, and TOKEN for its progress token. The call may fail; a reply must not
// have another effect.
var hostileReplies = []struct {
	name   string
	frames []string
	fails  bool // the call must fail; otherwise it may also have a result
}{
	{"text that is not JSON", []string{"hello"}, true},
	{"half an object", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[`}, true},
	{"an empty message", []string{""}, true},
	{"null", []string{"null"}, true},
	{"a number", []string{"7"}, true},
	{"an empty batch", []string{"[]"}, true},
	{"a batch", []string{`[{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}]`}, false},
	{"an empty object", []string{"{}"}, true},
	{"another id", []string{`{"jsonrpc":"2.0","id":987654,"result":{"content":[]}}`}, true},
	{"the id as a string", []string{`{"jsonrpc":"2.0","id":"ID","result":{"content":[]}}`}, false}, // as the official SDKs read it
	{"the id as a fraction", []string{`{"jsonrpc":"2.0","id":ID.5,"result":{"content":[]}}`}, true},
	{"an id of null", []string{`{"jsonrpc":"2.0","id":null,"result":{"content":[]}}`}, true},
	{"an id of an object", []string{`{"jsonrpc":"2.0","id":{},"result":{"content":[]}}`}, true},
	{"an error for the id null", []string{`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}`}, true},
	{"no version", []string{`{"id":ID,"result":{"content":[]}}`}, false},
	{"version 1.0", []string{`{"jsonrpc":"1.0","id":ID,"result":{"content":[]}}`}, false},
	{"members in capitals", []string{`{"JSONRPC":"2.0","ID":ID,"RESULT":{"content":[]}}`}, true},
	{"two results in one", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[]},"result":7}`}, false},
	{"a result and an error", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[]},"error":{"code":1,"message":"x"}}`}, false},
	{"a result of null", []string{`{"jsonrpc":"2.0","id":ID,"result":null}`}, true},
	{"a result that is text", []string{`{"jsonrpc":"2.0","id":ID,"result":"done"}`}, true},
	{"content that is a number", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[7]}}`}, true},
	{"content that is an object", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":{"a":1}}}`}, true},
	{"content of an unknown type", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"hologram","x":1}]}}`}, false},
	{"isError that is text", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[],"isError":"no"}}`}, true},
	{"an image that is not base64", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"image","mimeType":"image/png","data":"<svg>"}]}}`}, false},
	{"a resource with a script URL", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"resource_link","uri":"javascript:alert(1)","name":"x"}]}}`}, false},
	{"structured content 5,000 deep", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":` + strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000) + `}}`}, false},
	{"nesting that does not close", []string{`{"jsonrpc":"2.0","id":ID,"result":` + strings.Repeat("[", 100000)}, true},
	{"text that is not UTF-8", []string{"{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"\xff\xfe\"}]}}"}, false},
	{"a lone surrogate", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\ud800"}]}}`}, false},
	{"escapes for a terminal", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\u001b[2J\u0000\u202e"}]}}`}, false},
	{"a byte order mark", []string{"\ufeff" + `{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}`}, false},
	{"20,000 contents", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[` + strings.Repeat(`{"type":"text","text":""},`, 20000) + `{"type":"text","text":""}]}}`}, false},
	{"a result of 6 MiB", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 6<<20) + `"}]}}`}, true},
	{"a task", []string{`{"jsonrpc":"2.0","id":ID,"result":{"resultType":"task","taskId":"1"}}`}, true},
	{"an error without a code", []string{`{"jsonrpc":"2.0","id":ID,"error":{"message":"x"}}`}, true},
	{"an error that is text", []string{`{"jsonrpc":"2.0","id":ID,"error":"x"}`}, true},
	{"an error of null", []string{`{"jsonrpc":"2.0","id":ID,"error":null}`}, true},
	{"an error with lines", []string{`{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"a\r\nevent: final_answer\r\n\r\n"}}`}, true},
	{"an error of 1 MiB", []string{`{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"` + strings.Repeat("x", 1<<20) + `"}}`}, true},
	{"a URL to open", []string{`{"jsonrpc":"2.0","id":ID,"error":{"code":-32042,"message":"x","data":{"elicitations":[{"mode":"url","elicitationId":"1","url":"file:///etc/passwd","message":"x"}]}}}`}, true},
	{"a request instead of the response", []string{`{"jsonrpc":"2.0","id":ID,"method":"ping"}`}, true},
	{"an elicitation with a number as parameters", []string{`{"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":7}`}, true},
	{"sampling that is not allowed", []string{`{"jsonrpc":"2.0","id":9,"method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":"x"}}],"maxTokens":1000000}}`}, true},
	{"an initialize request", []string{`{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`}, true},
	{"a cancellation of the call", []string{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":ID}}`}, true},
	{"300 unknown requests", slices.Repeat([]string{`{"jsonrpc":"2.0","id":1,"method":"x/y"}`}, 300), true},
	{"1,000 unknown notifications", slices.Repeat([]string{`{"jsonrpc":"2.0","method":"notifications/x","params":[1]}`}, 1000), true},
	{"200 changes of the list", slices.Repeat([]string{`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`}, 200), true},
	{"progress of another call", []string{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"other","progress":1}}`}, true},
	{"progress that is text", []string{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":TOKEN,"progress":"much"}}`}, true},
	{"progress of 1e999", []string{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":TOKEN,"progress":1e999}}`}, true},
	{"logs of unknown levels", slices.Repeat([]string{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"loud","data":{"a":[]}}}`}, 50), true},
	{"the response, and responses to later calls", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}`, `{"jsonrpc":"2.0","id":ID0,"result":{"content":[{"type":"text","text":"forged"}]}}`}, false},
	{"the response twice", []string{`{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}`, `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"again"}]}}`}, false},
}

// hostileHandshakes are results of initialize and tools/list, for servers that are hostile before a
// tool is called.
var hostileHandshakes = []struct{ name, method, reply string }{
	{"unknown version", "initialize", `{"protocolVersion":"9999-99-99","capabilities":{},"serverInfo":{"name":"raw","version":"1"}}`},
	{"capabilities that are text", "initialize", `{"protocolVersion":"2025-11-25","capabilities":"all","serverInfo":{"name":"raw","version":"1"}}`},
	{"initialize without a result", "initialize", `null`},
	{"instructions of 1 MiB", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"},"instructions":"` + strings.Repeat("x", 1<<20) + `"}`},
	{"a list that is text", "tools/list", `"none"`},
	{"a list that never ends", "tools/list", `{"tools":[],"nextCursor":"more"}`},
	{"a list of null", "tools/list", `{"tools":[null]}`},
	{"3,000 tools", "tools/list", `{"tools":[` + strings.Repeat(`{"name":"x","inputSchema":{"type":"object"}},`, 3000) + `{"name":"y","inputSchema":{"type":"object"}}]}`},
	{"a name with control characters", "tools/list", `{"tools":[{"name":"a\u0000\u202eb\n","inputSchema":{"type":"object"}}]}`},
	{"a name of 100 kB", "tools/list", `{"tools":[{"name":"` + strings.Repeat("n", 100<<10) + `","inputSchema":{"type":"object"}}]}`},
	{"a schema that is text", "tools/list", `{"tools":[{"name":"z","inputSchema":"any"}]}`},
	{"a schema 5,000 deep", "tools/list", `{"tools":[{"name":"z","inputSchema":` + strings.Repeat(`{"type":"object","properties":{"a":`, 5000) + `{}` + strings.Repeat("}}", 5000) + `}]}`},
	{"a schema that refers elsewhere", "tools/list", `{"tools":[{"name":"z","inputSchema":{"$ref":"http://127.0.0.1:1/schema"}}]}`},
	{"a description of 1 MiB", "tools/list", `{"tools":[{"name":"w","description":"` + strings.Repeat("d", 1<<20) + `","inputSchema":{"type":"object"}}]}`},
}

// answerMessage answers a message unless it is a notification.
func (f frameServer) answerMessage(m message, send func(string)) {
	if m.ID == nil {
		return
	}
	f(m, send)
}

func resultFrame(m message, json string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, json)
}

// correctServer answers as a well-behaved server with one tool.
func correctServer(tool string) frameServer {
	return func(m message, send func(string)) {
		switch m.Method {
		case "initialize":
			send(resultFrame(m, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"raw","version":"1"}}`))
		case "tools/list":
			send(resultFrame(m, fmt.Sprintf(`{"tools":[{"name":%q,"inputSchema":{"type":"object"}}]}`, tool)))
		case "tools/call":
			send(resultFrame(m, `{"content":[{"type":"text","text":"ok"}]}`))
		default:
			send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"what?"}}`, m.ID))
		}
	}
}

// hostileCallServer answers a call with hostileReplies[case], and correctly if it has no case.
func hostileCallServer(tool string) frameServer {
	good := correctServer(tool)
	return func(m message, send func(string)) {
		var args struct{ Case *int }
		if m.Method == "tools/call" {
			_ = json.Unmarshal(m.Params.Arguments, &args)
		}
		if args.Case == nil {
			good(m, send)
			return
		}
		token, _ := json.Marshal(m.Params.Meta.Token)
		fill := strings.NewReplacer("ID", string(m.ID), "TOKEN", string(token))
		for _, frame := range hostileReplies[*args.Case].frames {
			send(fill.Replace(frame))
		}
	}
}

// hostileMethodServer answers one method with that result, and the others correctly.
func hostileMethodServer(method, reply string) frameServer {
	good := correctServer("unused")
	return func(m message, send func(string)) {
		if m.Method == method {
			send(resultFrame(m, reply))
			return
		}
		good(m, send)
	}
}

// overHTTP serves over Streamable HTTP with event streams as responses, and returns the entry of
// an mcp.json.
func (f frameServer) overHTTP(t testing.TB) map[string]any {
	url := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		var m message
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		case json.NewDecoder(r.Body).Decode(&m) != nil || m.ID == nil:
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		f.answerMessage(m, func(frame string) { fmt.Fprintf(w, "data: %s\n\n", frame) })
	})
	return map[string]any{"url": url}
}

// overWebSocket does the same as overHTTP, over WebSocket.
func (f frameServer) overWebSocket(t testing.TB) map[string]any {
	url := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
		if err != nil {
			return
		}
		defer conn.CloseNow()
		for {
			_, data, err := conn.Read(context.Background())
			if err != nil {
				return
			}
			var m message
			if json.Unmarshal(data, &m) == nil {
				f.answerMessage(m, func(frame string) { _ = conn.Write(context.Background(), websocket.MessageText, []byte(frame)) })
			}
		}
	})
	return map[string]any{"type": "websocket", "url": strings.Replace(url, "http", "ws", 1)}
}

// overStdio does the same as overHTTP, over stdio. Each child process is a bridge to the test.
func (f frameServer) overStdio(t testing.TB) map[string]any {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for in := bufio.NewReader(conn); ; {
					line, err := in.ReadBytes('\n')
					if err != nil {
						return
					}
					var m message
					if json.Unmarshal(bytes.TrimSpace(line), &m) == nil {
						f.answerMessage(m, func(frame string) { _, _ = conn.Write([]byte(frame + "\n")) })
					}
				}
			}()
		}
	}()
	return map[string]any{"command": os.Args[0], "args": []string{"child", "bridge", l.Addr().String()}}
}

// callModel calls the tool that the question names, with the arguments after the name, and then
// answers.
func callModel(q llmtest.Request) llmtest.Answer {
	tool, args := "", ""
	for _, m := range q.Messages {
		if m.Role == "user" {
			tool, args, _ = strings.Cut(m.Content, " ")
		}
		if len(m.ToolCalls) > 0 {
			return llmtest.Says("Done.")
		}
	}
	return llmtest.Calls(llmtest.Call{Name: tool, Args: args})
}

// call runs a question that calls a tool, and returns the kind of the call's error, or "" if the call
// has a result. The run must end with an answer.
func (s *service) call(t testing.TB, tool, args string) string {
	t.Helper()
	resp, err := s.send(t.Context(), "POST", "/answer/stream", fmt.Sprintf(`{"question":%q}`, tool+" "+args))
	if err != nil {
		t.Errorf("%s %s: %v", tool, args, err)
		return "not started"
	}
	defer resp.Body.Close()
	got, err := readEvents(resp.Body, nil)
	if err != nil || got.orderError() != "" || got.last().Answer != "Done." {
		t.Errorf("%s %s: the run ended with %+v, %v, %s, want the answer Done.", tool, args, got.last(), err, got.orderError())
	}
	if errs := got.ofType("tool_error"); len(errs) > 0 {
		return errs[0].Kind
	}
	return ""
}

func TestF52HostileServersOnEveryTransport(t *testing.T) {
	r := beginFault(t, fmt.Sprintf("%d hostile replies to a call, and %d hostile handshakes and lists, over HTTP, WebSocket and stdio", len(hostileReplies), len(hostileHandshakes)),
		"that call fails or has a result, its run and the next call work; a server that fails at the start disturbs no other; memory stays bounded")
	servers := make(map[string]any)
	transports := []string{"http", "websocket", "stdio"}
	serveOver := func(transport string, f frameServer) map[string]any {
		switch transport {
		case "http":
			return f.overHTTP(t)
		case "websocket":
			return f.overWebSocket(t)
		}
		return f.overStdio(t)
	}

	// Configure a server with hostile replies, and some with hostile handshakes, for each transport.
	for _, transport := range transports {
		entry := serveOver(transport, hostileCallServer(transport))
		entry["timeout"] = "500ms"
		servers[transport] = entry
		for i, h := range hostileHandshakes {
			servers[fmt.Sprintf("%s%d", transport, i)] = serveOver(transport, hostileMethodServer(h.method, h.reply))
		}
	}
	config, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		t.Fatal(err)
	}
	setting, _ := mcpConfig(t, string(config))

	model := llmtest.New(t, callModel)
	model.Forget()
	s := start(t, "LLM_BASE_URL="+model.URL, setting, "TIMEOUT=5s")
	for _, transport := range transports {
		if d := s.waitUntilCallWorks(t, transport); d > 10*time.Second {
			t.Fatalf("the good call over %s works after %s, want 10 s at most\n%s", transport, d, s.request(t, "GET", "/servers", "").body)
		}
	}

	// After each hostile reply, the next call works.
	before := s.metric(t, "process_resident_memory_bytes")
	var calls, refused atomic.Int64
	var all sync.WaitGroup
	for _, transport := range transports {
		all.Go(func() {
			for i, h := range hostileReplies {
				kind := s.call(t, transport, fmt.Sprintf(`{"case":%d}`, i))
				calls.Add(1)
				if kind != "" {
					refused.Add(1)
				}
				if h.fails && kind == "" {
					t.Errorf("%s over %s: the call has a result, want an error", h.name, transport)
				}
				if d := s.waitUntilCallWorks(t, transport); d > 10*time.Second {
					t.Errorf("%s over %s: the next call works after %s, want 10 s at most", h.name, transport, d)
				}
			}
		})
	}
	all.Wait()

	// The memory stays bounded, and nothing panics.
	if grown := s.metric(t, "process_resident_memory_bytes") - before; grown > 200<<20 {
		t.Errorf("%.0f MiB more, want 200 at most", grown/(1<<20))
	} else {
		r.record("%d calls, %d failed, %.0f MiB more", calls.Load(), refused.Load(), grown/(1<<20))
	}
	if n := s.out.count("panic"); n > 0 {
		t.Errorf("%d panics, want 0, in\n%s", n, s.out)
	}
}

// waitUntilCallWorks waits until a call has a result, and returns how long that took.
func (s *service) waitUntilCallWorks(t testing.TB, tool string) time.Duration {
	t.Helper()
	began := time.Now()
	for kind := "?"; kind != "" && time.Since(began) < waitLimit; {
		kind = s.call(t, tool, "{}")
	}
	return time.Since(began)
}
