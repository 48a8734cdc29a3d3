//go:build upstream

// Package upstream has a test for each defect of github.com/modelcontextprotocol/go-sdk
// v1.8.0 that answerd works around. Each test fails while the defect is there. One that
// cannot be set up is skipped, with the reason. See README.md.
package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	legacy = "2025-11-25" // the last protocol version with initialize
	modern = "2026-07-28"
)

var impl = &mcp.Implementation{Name: "upstream", Version: "1"}

// message is a JSON-RPC message from the client.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name            string          `json:"name"`
		RequestID       json.RawMessage `json:"requestId"`
		ProtocolVersion string          `json:"protocolVersion"`
		RequestState    string          `json:"requestState"`
		Meta            map[string]any  `json:"_meta"`
	} `json:"params"`
}

// skipOnError skips the test if a preparation failed: only the defect itself is a failure.
func skipOnError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Skipf("setup: %v", err)
	}
}

// newServer returns an HTTP server that does the handshakes of both protocol versions, and gives
// every other POST to handle. It has no standalone stream.
func newServer(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, m message)) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		var m message
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			http.Error(w, "no JSON", http.StatusBadRequest)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection ends r's context
		switch m.Method {
		case "initialize", "server/discover":
			if m.Method == "initialize" {
				w.Header().Set("Mcp-Session-Id", "session-1")
			}
			replyJSON(w, m, handshakeResult(m))
		case "notifications/initialized":
			w.WriteHeader(http.StatusAccepted)
		default:
			handle(w, r, m)
		}
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// handshakeResult returns the result of initialize and server/discover.
func handshakeResult(m message) string {
	const capabilities = `"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}}`
	if m.Method == "server/discover" {
		return `{"resultType":"complete","supportedVersions":["` + modern + `"],` + capabilities + `}`
	}
	return `{"protocolVersion":"` + legacy + `","serverInfo":{"name":"s","version":"1"},` + capabilities + `}`
}

// replyJSON answers m with a JSON body.
func replyJSON(w http.ResponseWriter, m message, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// startEventStream begins an event stream and returns a function that sends one event.
func startEventStream(w http.ResponseWriter) func(data string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_ = http.NewResponseController(w).Flush()
	return func(data string) {
		fmt.Fprintf(w, "data: %s\n\n", data)
		_ = http.NewResponseController(w).Flush()
	}
}

// textResult returns a tool result.
func textResult(s string) string { return fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, s) }

// resultText returns the first text of a tool result.
func resultText(r *mcp.CallToolResult) string {
	if r == nil || len(r.Content) == 0 {
		return ""
	}
	t, _ := r.Content[0].(*mcp.TextContent)
	if t == nil {
		return ""
	}
	return t.Text
}

// openSession returns a session with s, without the standalone stream.
func openSession(t *testing.T, s *httptest.Server, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	return dialSession(t, &mcp.StreamableClientTransport{Endpoint: s.URL, DisableStandaloneSSE: true}, version, o)
}

// dialSession returns a session over a transport.
func dialSession(t *testing.T, transport mcp.Transport, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	cs, err := mcp.NewClient(impl, o).Connect(timeoutContext(t, 10*time.Second), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	skipOnError(t, err)
	t.Cleanup(func() { go cs.Close() }) // which may wait for what a defect left open
	return cs
}

// timeoutContext returns a context that ends after d.
func timeoutContext(t *testing.T, d time.Duration) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), d)
	t.Cleanup(stop)
	return ctx
}

// newLineTransport returns a transport to a server that reads one message per line, and writes
// to out.
func newLineTransport(t *testing.T, serve func(m message, out io.Writer)) *mcp.IOTransport {
	t.Helper()
	theirs, ours, err := os.Pipe()
	skipOnError(t, err)
	in, out, err := os.Pipe()
	skipOnError(t, err)
	t.Cleanup(func() {
		for _, f := range []*os.File{theirs, ours, in, out} {
			_ = f.Close()
		}
	})
	go func() {
		for s := bufio.NewScanner(theirs); s.Scan(); {
			var m message
			if json.Unmarshal(s.Bytes(), &m) == nil {
				serve(m, out)
			}
		}
	}()
	return &mcp.IOTransport{Reader: in, Writer: ours}
}

// writeLine writes the answer to m on a line.
func writeLine(out io.Writer, m message, result string) {
	fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
}
