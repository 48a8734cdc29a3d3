package faults

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// message is a JSON-RPC message as a scripted server reads it.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Cursor    string          `json:"cursor"`
		Meta      struct {
			Token any `json:"progressToken"`
		} `json:"_meta"`
	} `json:"params"`
}

// replyFunc answers one message of the client.
type replyFunc func(w http.ResponseWriter, r *http.Request, m message)

// peer is an MCP server over HTTP, of 2025-11-25, that misbehaves as it is told.
type peer struct {
	url    string
	call   atomic.Pointer[replyFunc]                         // tools/call; the default says "ok"
	list   replyFunc                                         // tools/list; nil: the tool "t"
	before func(w http.ResponseWriter, r *http.Request) bool // true: answered

	calls      atomic.Int64
	handshakes atomic.Int64
	cancelled  chan message // notifications/cancelled
}

func newPeer(t testing.TB, call replyFunc) *peer {
	t.Helper()
	return (&peer{}).serve(t, call)
}

// serve begins to listen. list and before are set until then: the race detector doesn't see
// that another process's request comes after what made it.
func (p *peer) serve(t testing.TB, call replyFunc) *peer {
	t.Helper()
	p.cancelled = make(chan message, 64)
	p.setCall(call)
	server := httptest.NewServer(p)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	p.url = server.URL
	return p
}

// setCall sets the reply to tools/call.
func (p *peer) setCall(call replyFunc) {
	if call == nil {
		call = resultReply(`{"content":[{"type":"text","text":"ok"}]}`)
	}
	p.call.Store(&call)
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.before != nil && p.before(w, r) {
		return
	}
	var m message
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	switch m.Method {
	case "server/discover":
		http.Error(w, "what?", http.StatusBadRequest)
	case "initialize":
		w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", p.handshakes.Add(1)))
		resultReply(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`)(w, r, m)
	case "tools/list":
		if p.list != nil {
			p.list(w, r, m)
			return
		}
		resultReply(`{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)(w, r, m)
	case "tools/call":
		p.calls.Add(1)
		(*p.call.Load())(w, r, m)
	default:
		if m.Method == "notifications/cancelled" {
			select {
			case p.cancelled <- m:
			default:
			}
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

// resultReply answers with a result.
func resultReply(json string) replyFunc {
	return func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, json)
	}
}

// rawReply answers with a body, in which ID stands for the id of the request.
func rawReply(status int, contentType, body string) replyFunc {
	return func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", string(m.ID)))
	}
}

// hangingCall does not answer until the client disconnects, and then sends to left.
func hangingCall(entered, left chan<- struct{}) replyFunc {
	return func(w http.ResponseWriter, r *http.Request, m message) {
		if entered != nil {
			entered <- struct{}{}
		}
		<-r.Context().Done()
		if left != nil {
			left <- struct{}{}
		}
	}
}

// callingModel returns a model that calls the tool "t" once and then answers.
func callingModel(args ...string) llmtest.Script {
	calls := []llmtest.Call{}
	for _, a := range append(args, "{}")[:max(len(args), 1)] {
		calls = append(calls, llmtest.Call{Name: "t", Args: a})
	}
	return llmtest.Turns(llmtest.Calls(calls...), llmtest.Says("Done."))
}

// closedPort is an address on which nobody listens. Where loopback has more than one,
// it is one of its own: a port that is free for a while would be given to somebody else.
func closedPort(t testing.TB) string {
	t.Helper()
	host := "127.0.0.1"
	if runtime.GOOS == "linux" {
		pid := os.Getpid()
		host = fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, 1+pid%250, 1+closedPorts.Add(1)%250)
	}
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

var closedPorts atomic.Int64

// serveHTTP serves h until the test ends.
func serveHTTP(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

// mcpConfig writes an mcp.json and returns the setting that names it.
func mcpConfig(t testing.TB, text string) (setting, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "mcp.json")
	writeFile(t, path, text)
	return "MCP_CONFIG_PATH=" + path, path
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// timeOf returns how long f takes.
func timeOf(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// makeGzipBomb makes a gzip body that decompresses to 16 MiB.
func makeGzipBomb() {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	zeros := make([]byte, 1<<20)
	for range 16 {
		_, _ = z.Write(zeros) // into memory
	}
	_ = z.Close()
	gzipBomb = out.Bytes()
}
