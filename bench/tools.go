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

// tools is an MCP server. Its path says how: /old/10 speaks 2025-11-25 with a session and
// event streams, /new/10 speaks 2026-07-28 with neither, and 10 is how many tools it has.
// It also takes spans at /v1/traces, and throws them away.
type tools struct {
	calls, lists, others, spans atomic.Int64
	results                     sync.Map // of int to string: texts of results by size, quoted
}

func toolName(i int) string { return fmt.Sprintf("look_up_%04d", i) }

// toolSchema is about as long as those of real servers.
const toolSchema = `{"type":"object","properties":{"size":{"type":"integer","description":"How much of it to return, in bytes","minimum":0},` +
	`"delay":{"type":"integer","description":"How long to think about it, in milliseconds","minimum":0},` +
	`"language":{"type":"string","enum":["de","en","it"],"description":"Of the result"}},"required":["size"]}`

func toolDescription(i int) string {
	return fmt.Sprintf("Looks up the records of department %d and returns what is known about one of them, in prose.", i)
}

// toolList is the result of tools/list.
func toolList(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":%s}`, toolName(i), toolDescription(i), toolSchema)
	}
	return `"tools":[` + strings.Join(all, ",") + `]`
}

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
		w.WriteHeader(http.StatusMethodNotAllowed) // no stream beside the answers
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

func (t *tools) answer(w http.ResponseWriter, old bool, n int, id json.RawMessage, method string, size, delay int) {
	done := `"resultType":"complete",`
	if old {
		done = ""
	}
	switch method {
	case "tools/call":
		t.calls.Add(1)
		time.Sleep(time.Duration(delay/4) * time.Millisecond)
		writeResult(w, old, id, done+`"content":[{"type":"text","text":`+t.result(size)+`}]`)
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

// result is the text of a result of that size, quoted.
func (t *tools) result(size int) string {
	text, ok := t.results.Load(size)
	if !ok {
		text, _ = t.results.LoadOrStore(size, quoteJSON(resultText(size)))
	}
	return text.(string)
}

// writeResult answers with the members of a result: as an event, or as plain JSON.
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

func serveTools([]string) error { return listenAndServe(&tools{}) }
