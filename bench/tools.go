package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// tools is an MCP server. Its path selects what it is: /old/10 uses protocol 2025-11-25 with a
// session and event streams, /new/10 uses 2026-07-28 with neither, and 10 is the number of tools.
// It also accepts spans at /v1/traces and discards them.
type tools struct {
	calls, lists, others, spans atomic.Int64
	results                     sync.Map // texts of results as JSON strings, by size
}

// toolName returns the name of the i-th tool.
func toolName(i int) string { return fmt.Sprintf("look_up_%04d", i) }

// toolSchema is about as long as the schemas of real servers.
const toolSchema = `{"type":"object","properties":{"size":{"type":"integer","description":"How much of it to return, in bytes","minimum":0},` +
	`"delay":{"type":"integer","description":"How long to think about it, in milliseconds","minimum":0},` +
	`"language":{"type":"string","enum":["de","en","it"],"description":"Of the result"}},"required":["size"]}`

// toolDescription returns the description of the i-th tool.
func toolDescription(i int) string {
	return fmt.Sprintf("Looks up the records of department %d and returns what is known about one of them, in prose.", i)
}

// toolList returns the result of tools/list with n tools.
func toolList(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":%s}`, toolName(i), toolDescription(i), toolSchema)
	}
	return `"tools":[` + strings.Join(all, ",") + `]`
}

// ServeHTTP serves MCP requests, /stats and /v1/traces.
func (t *tools) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/stats":
		fmt.Fprintf(w, `{"calls":%d,"lists":%d,"others":%d,"spans":%d}`, t.calls.Load(), t.lists.Load(), t.others.Load(), t.spans.Load())
		return
	case "/v1/traces":
		t.spans.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		return
	}
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	n, err := strconv.Atoi(rest)
	if err != nil || r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed) // there is no standalone stream
		return
	}
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Arguments struct{ Size, Delay int }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t.answer(w, strings.HasPrefix(r.URL.Path, "/old/"), n, m.ID, m.Method, m.Params.Arguments.Size, m.Params.Arguments.Delay)
}

// answer serves one MCP request and counts it. A call waits for a quarter of the script's delay.
func (t *tools) answer(w http.ResponseWriter, old bool, n int, id json.RawMessage, method string, size, delay int) {
	done := `"resultType":"complete",`
	if old {
		done = ""
	}
	switch method {
	case "tools/call":
		t.calls.Add(1)
		time.Sleep(time.Duration(delay/4) * time.Millisecond)
		writeResult(w, old, id, done+`"content":[{"type":"text","text":`+t.quotedResult(size)+`}]`)
	case "tools/list":
		t.lists.Add(1)
		writeResult(w, false, id, done+toolList(n))
	case "server/discover":
		if old {
			http.Error(w, "what?", http.StatusBadRequest)
			return
		}
		writeResult(w, false, id, done+`"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}`)
	case "initialize":
		w.Header().Set("Mcp-Session-Id", "session-1")
		writeResult(w, false, id, `"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}`)
	default:
		t.others.Add(1)
		w.WriteHeader(http.StatusAccepted)
	}
}

// quotedResult returns resultText(size) as a JSON string.
func (t *tools) quotedResult(size int) string {
	text, ok := t.results.Load(size)
	if !ok {
		text, _ = t.results.LoadOrStore(size, quoteJSON(resultText(size)))
	}
	return text.(string)
}

// writeResult answers the request id with a result that has these members: as an SSE event if event is true, and
// otherwise as plain JSON.
func writeResult(w http.ResponseWriter, event bool, id json.RawMessage, members string) {
	body := `{"jsonrpc":"2.0","id":` + string(id) + `,"result":{` + members + "}}"
	if event {
		w.Header().Set("Content-Type", "text/event-stream")
		body = "event: message\ndata: " + body + "\n\n"
	} else {
		w.Header().Set("Content-Type", "application/json")
	}
	_, _ = io.WriteString(w, body)
}

// serveTools runs the role tools.
func serveTools([]string) error { return listenAndServe(&tools{}) }
