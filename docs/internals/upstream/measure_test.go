//go:build upstream && faults && unix

package upstream

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/oauth2"
)

// The tests of this file measure and never fail: what they log is what the table of
// docs/internals/mcp-transport.md says of the SDK's transports.
//
//	go test -tags upstream,faults -run Measure -v ./docs/internals/upstream

// describeCall makes one call of tool name and describes its outcome.
func describeCall(t *testing.T, cs *mcp.ClientSession, name string, d time.Duration) string {
	began := time.Now()
	res, err := cs.CallTool(timeoutContext(t, d), &mcp.CallToolParams{Name: name})
	took := time.Since(began).Round(10 * time.Millisecond)
	switch {
	case err == nil && res != nil && len(resultText(res)) > 40:
		return fmt.Sprintf("result of %d bytes after %v", len(resultText(res)), took)
	case err == nil:
		return fmt.Sprintf("result %q after %v", resultText(res), took)
	}
	s := err.Error()
	if len(s) > 160 {
		s = s[:160] + "…"
	}
	kind := ""
	if errors.Is(err, mcp.ErrSessionMissing) {
		kind = " [ErrSessionMissing]"
	}
	if errors.Is(err, mcp.ErrConnectionClosed) {
		kind += " [ErrConnectionClosed]"
	}
	return fmt.Sprintf("error after %v%s: %s", took, kind, s)
}

func TestMeasureF11(t *testing.T) {
	for _, kind := range []string{"application/json", "text/event-stream"} {
		s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", kind)
			body := `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + textResult("größe") + `}`
			if kind != "application/json" {
				body = "data: " + body + "\r\n\r\n"
			}
			for _, b := range []byte(body) {
				_, _ = w.Write([]byte{b})
				_ = http.NewResponseController(w).Flush()
			}
		})
		t.Logf("F11 %s, byte by byte: %s", kind, describeCall(t, openSession(t, s, legacy, nil), "t", 10*time.Second))
	}
	tr := newLineTransport(t, func(m message, out io.Writer) {
		if m.Method == "initialize" {
			writeLine(out, m, handshakeResult(m))
		} else if m.ID != nil {
			writeLine(out, m, textResult("größe"))
		}
	})
	tr.Reader = struct {
		io.Reader
		io.Closer
	}{iotest.OneByteReader(tr.Reader), tr.Reader}
	t.Logf("F11 IOTransport, byte by byte: %s", describeCall(t, dialSession(t, tr, legacy, nil), "t", 10*time.Second))
}

func TestMeasureF12(t *testing.T) {
	began := time.Now()
	_, err := mcp.NewClient(impl, nil).Connect(timeoutContext(t, 20*time.Second), &mcp.StreamableClientTransport{Endpoint: "http://127.0.0.1:1/"}, nil)
	t.Logf("F12 refused at Connect: %v after %v", err, time.Since(began).Round(time.Millisecond))
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m, textResult("ok")) })
	var down atomic.Bool
	d := &net.Dialer{}
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if down.Load() {
			addr = "127.0.0.1:1"
		}
		return d.DialContext(ctx, network, addr)
	}}}
	cs := dialSession(t, &mcp.StreamableClientTransport{Endpoint: s.URL, DisableStandaloneSSE: true, HTTPClient: hc}, legacy, nil)
	down.Store(true)
	for i := range 6 {
		if r := describeCall(t, cs, "t", 10*time.Second); i == 0 || i == 5 {
			t.Logf("F12 call %d while down: %s", i+1, r)
		}
	}
	down.Store(false)
	t.Logf("F12 when it is back: %s", describeCall(t, cs, "t", 10*time.Second))
}

func TestMeasureF13F14(t *testing.T) {
	for _, version := range []string{legacy, modern} {
		cancelled, ended := make(chan time.Time, 10), make(chan time.Time, 10)
		s := newServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
			switch {
			case m.Method == "notifications/cancelled":
				cancelled <- time.Now()
				w.WriteHeader(http.StatusAccepted)
			case m.Params.Name == "hangs":
				<-r.Context().Done()
				ended <- time.Now()
			case m.Params.Name == "progress":
				for send := startEventStream(w); r.Context().Err() == nil; <-time.After(20 * time.Millisecond) {
					send(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`)
				}
			}
		})
		cs := openSession(t, s, version, nil)
		began := time.Now()
		t.Logf("F13 %s, hanging tool, context of 0.5 s: %s", version, describeCall(t, cs, "hangs", 500*time.Millisecond))
		at := (<-ended).Sub(began)
		select {
		case c := <-cancelled:
			t.Logf("F13 %s: the request ended at the server after %v, notifications/cancelled after %v", version, at.Round(10*time.Millisecond), c.Sub(began).Round(10*time.Millisecond))
		case <-time.After(3 * time.Second):
			t.Logf("F13 %s: the request ended at the server after %v, no notifications/cancelled", version, at)
		}
		t.Logf("F14 %s, progress for ever, context of 1 s: %s", version, describeCall(t, cs, "progress", time.Second))
	}
}

// replies are what one call gets in F15 to F17.
var replies = []struct {
	name string
	do   func(http.ResponseWriter, *http.Request, message)
}{
	{"F15 SSE ends without a result", func(w http.ResponseWriter, _ *http.Request, _ message) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": nothing\n\n")
	}},
	{"F15 JSON body cut", func(w http.ResponseWriter, _ *http.Request, _ message) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"jsonrpc"`)
	}},
	{"F15 connection cut before the reply", func(w http.ResponseWriter, _ *http.Request, _ message) {
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = c.Close()
		}
	}},
	{"F16 200 text/html", bodyReply("text/html", "<p>hello")},
	{"F16 no content type, empty", bodyReply("", "")},
	{"F16 garbage JSON", bodyReply("application/json", `{"jsonrpc":`)},
	{"F16 JSON list", bodyReply("application/json", `[]`)},
	{"F16 wrong id", bodyReply("application/json", `{"jsonrpc":"2.0","id":9999,"result":{"content":[]}}`)},
	{"F16 id as string", bodyReply("application/json", `{"jsonrpc":"2.0","id":"ID","result":{"content":[]}}`)},
	{"F16 result null", bodyReply("application/json", `{"jsonrpc":"2.0","id":ID,"result":null}`)},
	{"F16 a request instead", bodyReply("application/json", `{"jsonrpc":"2.0","id":ID,"method":"ping"}`)},
	{"F16 garbage event", bodyReply("text/event-stream", "data: {\"jsonrpc\n\n")},
	{"F16 SSE line without colon", bodyReply("text/event-stream", "nonsense\n\n")},
	{"F16 event with wrong id", bodyReply("text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"id\":9999,\"result\":{}}\n\n")},
	{"F16 duplicate response", bodyReply("text/event-stream", strings.Repeat("data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[]}}\n\n", 2))},
	{"F16 200 unsolicited requests, then a result", bodyReply("text/event-stream", strings.Repeat("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\n\n", 200)+"data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[]}}\n\n")},
	{"F16 202", statusReply(http.StatusAccepted, "")},
	{"F16 400 text", statusReply(http.StatusBadRequest, "no")},
	{"F16 400 JSON-RPC error", rpcErrorReply(http.StatusBadRequest, "ID", -32602)},
	{"F16 403 text", statusReply(http.StatusForbidden, "no")},
	{"F16 405 text", statusReply(http.StatusMethodNotAllowed, "no")},
	{"F16 413 text", statusReply(http.StatusRequestEntityTooLarge, "no")},
	{"F16 429", statusReply(http.StatusTooManyRequests, "later")},
	{"F16 500", statusReply(http.StatusInternalServerError, "oops")},
	{"F16 501", statusReply(http.StatusNotImplemented, "oops")},
	{"F16 503", statusReply(http.StatusServiceUnavailable, "later")},
	{"F16 another session id", func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Mcp-Session-Id", "another")
		replyJSON(w, m, textResult("ok"))
	}},
	{"F17 404 text", statusReply(http.StatusNotFound, "session not found")},
	{"F17 404 JSON-RPC, id null", rpcErrorReply(http.StatusNotFound, "null", -32001)},
	{"F17 400 JSON-RPC -32000, no id", badRequestReply(`{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`)},
	{"F18 401", statusReply(http.StatusUnauthorized, "no")},
	{"F21 result of depth 1,001", bodyReply("application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"a":`+strings.Repeat("[", 1001)+strings.Repeat("]", 1001)+`}}}`)},
	{"F21 resultType unknown", bodyReply("application/json", `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"poem"}}`)},
}

func bodyReply(contentType, body string) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", string(m.ID)))
	}
}

func badRequestReply(body string) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, _ message) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, body)
	}
}

func statusReply(code int, body string) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, _ message) {
		if body == "" {
			w.WriteHeader(code)
			return
		}
		http.Error(w, body, code)
	}
}

func rpcErrorReply(code int, id string, rpcCode int) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"no"}}`, strings.ReplaceAll(id, "ID", string(m.ID)), rpcCode)
	}
}

// Each bad reply, while another call waits, which is answered after it.
func TestMeasureF15F16F17(t *testing.T) {
	for _, bad := range replies {
		waiting, release := make(chan struct{}), make(chan struct{})
		s := newServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
			switch m.Params.Name {
			case "waits":
				send := startEventStream(w)
				close(waiting)
				select {
				case <-release:
					send(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + textResult("waited") + `}`)
				case <-r.Context().Done():
				}
			case "bad":
				bad.do(w, r, m)
			case "next":
				replyJSON(w, m, textResult("ok"))
			default:
				w.WriteHeader(http.StatusAccepted)
			}
		})
		cs := openSession(t, s, legacy, nil)
		waited := make(chan string, 1)
		go func() { waited <- describeCall(t, cs, "waits", 5*time.Second) }()
		<-waiting
		got := describeCall(t, cs, "bad", time.Second)
		<-time.After(50 * time.Millisecond)
		close(release)
		t.Logf("%s:\n\tit:     %s\n\tbeside: %s\n\tnext:   %s", bad.name, got, <-waited, describeCall(t, cs, "next", time.Second))
	}
}

// tokenHandler is an OAuthHandler that counts.
type tokenHandler struct{ fetched atomic.Int64 }

func (h *tokenHandler) TokenSource(context.Context) (oauth2.TokenSource, error) { return h, nil }
func (h *tokenHandler) Authorize(_ context.Context, _ *http.Request, r *http.Response) error {
	_ = r.Body.Close()
	h.fetched.Add(1)
	return nil
}
func (h *tokenHandler) Token() (*oauth2.Token, error) {
	return &oauth2.Token{AccessToken: fmt.Sprint("token-", h.fetched.Load())}, nil
}

func TestMeasureF18(t *testing.T) {
	for _, want := range []string{"Bearer token-1", "never"} {
		h := &tokenHandler{}
		var refuse atomic.Bool
		s := newServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
			if refuse.Load() && r.Header.Get("Authorization") != want {
				http.Error(w, "no", http.StatusUnauthorized)
				return
			}
			replyJSON(w, m, textResult("ok"))
		})
		cs := dialSession(t, &mcp.StreamableClientTransport{Endpoint: s.URL, DisableStandaloneSSE: true, OAuthHandler: h}, legacy, nil)
		refuse.Store(true)
		got := describeCall(t, cs, "t", 5*time.Second)
		refuse.Store(false)
		t.Logf("F18 401 until %q: %s; %d fetches; next: %s", want, got, h.fetched.Load(), describeCall(t, cs, "t", 5*time.Second))
	}
}

func TestMeasureF19(t *testing.T) {
	for _, code := range []int{302, 307, 308} {
		var seen []string
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			seen = append(seen, fmt.Sprintf("%s, Authorization %q, Mcp-Session-Id %q, %d bytes of body", r.Method, r.Header.Get("Authorization"), r.Header.Get("Mcp-Session-Id"), len(body)))
			http.Error(w, "no", http.StatusTeapot)
		}))
		// Another host: localhost instead of 127.0.0.1.
		to := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
		s := newServer(t, func(w http.ResponseWriter, r *http.Request, _ message) { http.Redirect(w, r, to, code) })
		cs := dialSession(t, &mcp.StreamableClientTransport{Endpoint: s.URL, DisableStandaloneSSE: true, OAuthHandler: &tokenHandler{}}, legacy, nil)
		t.Logf("F19 %d to another host: %s; it saw %q", code, describeCall(t, cs, "t", 5*time.Second), seen)
		other.Close()
	}
}

// peakHeap runs f and returns the highest heap seen above the one before, in MiB.
func peakHeap(f func()) uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, top := m.HeapAlloc, m.HeapAlloc
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			runtime.ReadMemStats(&m)
			top = max(top, m.HeapAlloc)
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	f()
	close(done)
	<-over
	return (top - before) >> 20
}

func TestMeasureF20(t *testing.T) {
	const size = 256 << 20
	fill := bytes.Repeat([]byte("x"), 1<<20)
	var written atomic.Int64
	flood := func(w io.Writer) {
		for written.Store(0); written.Load() < size; written.Add(int64(len(fill))) {
			if _, err := w.Write(fill); err != nil {
				return
			}
		}
	}
	for name, do := range map[string]func(http.ResponseWriter, *http.Request, message){
		"JSON of 256 MiB": func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"`, m.ID)
			flood(w)
			_, _ = io.WriteString(w, `"}]}}`)
		},
		"error body of 256 MiB": func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.WriteHeader(http.StatusBadRequest)
			flood(w)
		},
		"gzip bomb, 256 MiB of 256 KiB": func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprintf(z, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"`, m.ID)
			flood(z)
			_, _ = io.WriteString(z, `"}]}}`)
			_ = z.Close()
		},
		"one event of 256 MiB, MaxEventSize 0": func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, `data: {"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"`, m.ID)
			flood(w)
			_, _ = io.WriteString(w, "\"}]}}\n\n")
		},
		"endless comment lines, context of 3 s": func(w http.ResponseWriter, r *http.Request, _ message) {
			w.Header().Set("Content-Type", "text/event-stream")
			line := []byte(strings.Repeat(": keep-alive\n", 1000))
			for written.Store(0); r.Context().Err() == nil; written.Add(int64(len(line))) {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		},
	} {
		s := newServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
			if m.Params.Name != "t" {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			do(w, r, m)
		})
		cs := openSession(t, s, legacy, nil)
		d := time.Minute
		if strings.HasPrefix(name, "endless") {
			d = 3 * time.Second
		}
		var got string
		mib := peakHeap(func() { got = describeCall(t, cs, "t", d) })
		t.Logf("F20 %s: %s; %d MiB read, heap +%d MiB", name, got, written.Load()>>20, mib)
	}
}

func TestMeasureF21(t *testing.T) {
	var fetched atomic.Int64
	refs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched.Add(1) }))
	defer refs.Close()
	var pages atomic.Int64
	list := func(name string, page func(m message) string) {
		s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
			pages.Add(1)
			replyJSON(w, m, page(m))
		})
		cs := openSession(t, s, modern, nil)
		pages.Store(0)
		n, began := 0, time.Now()
		var err error
		for _, e := range cs.Tools(timeoutContext(t, 5*time.Second), nil) {
			if err = e; err != nil {
				break
			}
			n++
		}
		text := fmt.Sprint(err)
		t.Logf("F21 %s: %d tools of %d pages in %v, %.120s", name, n, pages.Load(), time.Since(began).Round(time.Millisecond), text)
	}
	tool := func(name, schema string) string { return fmt.Sprintf(`{"name":%q,"inputSchema":%s}`, name, schema) }
	const object = `{"type":"object"}`
	list("endless cursor, context of 5 s", func(message) string {
		return fmt.Sprintf(`{"tools":[%s],"nextCursor":"%d"}`, tool("t", object), pages.Load())
	})
	list("the same cursor again and again, context of 5 s", func(message) string {
		return fmt.Sprintf(`{"tools":[%s],"nextCursor":"a"}`, tool("t", object))
	})
	list("10,000 tools", func(message) string {
		return `{"tools":[` + strings.TrimSuffix(strings.Repeat(tool("t", object)+",", 10_000), ",") + `]}`
	})
	list("schema of 10 MiB", func(message) string {
		return `{"tools":[` + tool("t", `{"type":"object","description":"`+strings.Repeat("x", 10<<20)+`"}`) + `,` + tool("u", object) + `]}`
	})
	list("schema of depth 1,000", func(message) string {
		return `{"tools":[` + tool("t", strings.Repeat(`{"not":`, 1000)+`{}`+strings.Repeat("}", 1000)) + `,` + tool("u", object) + `]}`
	})
	list("$ref http", func(message) string {
		return `{"tools":[` + tool("t", `{"type":"object","$ref":"`+refs.URL+`"}`) + `]}`
	})
	t.Logf("F21 $ref http: %d fetches", fetched.Load())
	list("invalid x-mcp-header", func(message) string {
		return `{"tools":[` + tool("t", `{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"a b"}}}`) + `,` + tool("u", object) + `]}`
	})
	list("bad tool", func(message) string { return `{"tools":[{"name":7},` + tool("u", object) + `]}` })
	list("null tool, no name, same name twice", func(message) string {
		return `{"tools":[null,{},` + tool("u", object) + `,` + tool("u", object) + `]}`
	})
	list("resultType task", func(message) string { return `{"resultType":"task","taskId":"1"}` })
}
