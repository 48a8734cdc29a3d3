package mcp

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
)

// stream begins an event stream and returns a function that sends one event.
func events(w http.ResponseWriter) func(string) {
	w.Header().Set("Content-Type", "text/event-stream")
	return func(s string) {
		_, _ = io.WriteString(w, s)
		w.(http.Flusher).Flush()
	}
}

func plain(status int, body string) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, _ message) { http.Error(w, body, status) }
}

func body(contentType, body string) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", string(m.ID)))
	}
}

const eventStream, js = "text/event-stream", "application/json"

// badReplies are what one call may get, and what becomes of it.
var badReplies = map[string]struct {
	answer func(http.ResponseWriter, *http.Request, message)
	kind   ErrorKind
}{
	"HTML":                {body("text/html", "<p>hello"), Protocol},
	"no content type":     {body("", ""), Protocol},
	"garbage JSON":        {body(js, `{"jsonrpc":`), Protocol},
	"a list":              {body(js, `[]`), Protocol},
	"empty":               {body(js, ``), Protocol},
	"wrong id":            {body(js, `{"jsonrpc":"2.0","id":9999,"result":{"content":[]}}`), Protocol},
	"id as text":          {body(js, `{"jsonrpc":"2.0","id":"0ID","result":{"content":[]}}`), Protocol},
	"no result":           {body(js, `{"jsonrpc":"2.0","id":ID,"result":null}`), Protocol},
	"result of no shape":  {body(js, `{"jsonrpc":"2.0","id":ID,"result":{"content":[7]}}`), Protocol},
	"a task":              {body(js, `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"task","taskId":"1"}}`), Protocol},
	"a request":           {body(js, `{"jsonrpc":"2.0","id":ID,"method":"ping"}`), Protocol},
	"accepted":            {plain(http.StatusAccepted, ""), Protocol},
	"400":                 {plain(http.StatusBadRequest, "no"), Protocol},
	"401":                 {plain(http.StatusUnauthorized, "no"), Unavailable},
	"403":                 {plain(http.StatusForbidden, "no"), Unavailable},
	"405":                 {plain(http.StatusMethodNotAllowed, "no"), Unavailable},
	"413":                 {plain(http.StatusRequestEntityTooLarge, "no"), TooLarge},
	"429":                 {plain(http.StatusTooManyRequests, "later"), Unavailable},
	"500":                 {plain(http.StatusInternalServerError, "oops"), UnknownOutcome},
	"502":                 {plain(http.StatusBadGateway, "oops"), UnknownOutcome},
	"503":                 {plain(http.StatusServiceUnavailable, "later"), Unavailable},
	"garbage event":       {body(eventStream, "data: {\"jsonrpc\n\n"), Protocol},
	"line without colon":  {body(eventStream, "nonsense\n\n"), UnknownOutcome},
	"event with wrong id": {body(eventStream, "data: {\"jsonrpc\":\"2.0\",\"id\":9999,\"result\":{}}\n\n"), Protocol},
	"end of stream":       {body(eventStream, ": nothing\n\n"), UnknownOutcome}, // F15
	"unknown requests":    {body(eventStream, strings.Repeat("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\n\n", 200)), Protocol},
	"unsolicited":         {body(eventStream, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n"), UnknownOutcome},
	"other session id": {func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set(sessionHeader, "another")
		reply(w, m.ID, `{"content":[],"isError":1}`)
	}, Protocol},
	"RPC error":     {body(js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"broken\nhere"}}`), Execution},
	"RPC 400":       {rpc400, InvalidArguments},
	"RPC 401":       {rpcStatus(http.StatusUnauthorized, -32001), Unavailable},
	"RPC 500":       {rpcStatus(http.StatusInternalServerError, -32603), Execution},
	"RPC 503":       {rpcStatus(http.StatusServiceUnavailable, -32603), Unavailable},
	"RPC 429":       {rpcStatus(http.StatusTooManyRequests, -32000), Unavailable},
	"unknown tool":  {body(js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"unknown tool \"t\""}}`), UnknownTool},
	"unknown parse": {body(js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}`), Protocol},
	"cut": {func(w http.ResponseWriter, _ *http.Request, _ message) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}, UnknownOutcome},
}

// rpcStatus answers with an HTTP status and a JSON-RPC error.
func rpcStatus(status, code int) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", js)
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"missing city"}}`, m.ID, code)
	}
}

var rpc400 = rpcStatus(http.StatusBadRequest, -32602)

// F15, F16: a bad reply fails the call that it answers; a call that is under way
// and the next one don't notice, and the session lives.
func TestBadResponseFailsOnlyItsCall(t *testing.T) {
	t.Parallel()
	for name, bad := range badReplies {
		t.Run(name, func(t *testing.T) {
			waiting, release := make(chan struct{}), make(chan struct{})
			s := &script{call: func(w http.ResponseWriter, r *http.Request, m message) {
				switch m.Params.Meta["do"] {
				case "wait":
					send := events(w)
					send(": hello\n\n")
					close(waiting)
					<-release
					send("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + text("waited") + "}\n\n")
				case "bad":
					bad.answer(w, r, m)
				default:
					reply(w, m.ID, text("ok"))
				}
			}}
			c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
			do := func(what string) (*content.Result, error) {
				return c.Call(context.Background(), Call{Tool: "t", Meta: map[string]any{"do": what}})
			}
			waited := make(chan error, 1)
			go func() {
				res, err := do("wait")
				if err == nil && res.Text() != "waited" {
					err = fmt.Errorf("text %q", res.Text())
				}
				waited <- err
			}()
			select {
			case <-waiting:
			case err := <-waited:
				t.Fatalf("the call beside it: %v before it was to end, want none", err)
			}
			_, err := do("bad")
			e := kind(t, err)
			if e.Kind != bad.kind {
				t.Errorf("kind %s, want %s: %v", e.Kind, bad.kind, err)
			}
			if strings.Contains(e.Message, "session-") || strings.Contains(e.Message, "oops") || strings.Contains(e.Message, "\n") {
				t.Errorf(`message %q, want Message without session-, Message without oops, Message without "\n"`, e.Message)
			}
			close(release)
			if err := <-waited; err != nil {
				t.Errorf("the call beside it: %v", err)
			}
			res, err := do("")
			must(t, res, err)
			if n := s.shakes.Load(); n != 1 {
				t.Errorf("%d handshakes, want 1", n)
			}
		})
	}
}

// F12: a server that refuses connections at the start and accepts them later is connected without a
// request.
func TestServerStartedLaterIsConnected(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	c := open(t, Options{}, config.Server{Name: "a", URL: "http://" + addr})
	if list := c.Tools(t.Context()); len(list) != 0 {
		t.Fatalf("list %+v, want 0", list)
	}
	if st := c.Servers()[0]; st.State != Failed || st.Reason != "connection refused" {
		t.Errorf(`server status %+v, want State Failed, Reason "connection refused"`, st)
	}
	_, err = c.Call(t.Context(), Call{Tool: "t"})
	if e := kind(t, err); e.Kind != UnknownTool {
		t.Errorf("call error %v, want Kind UnknownTool", e)
	}

	listed := make(chan struct{}, 10)
	s := &script{
		list: func(w http.ResponseWriter, _ *http.Request, m message) {
			reply(w, m.ID, `{"tools":[{"name":"t"}]}`)
			listed <- struct{}{}
		},
		call: func(w http.ResponseWriter, _ *http.Request, m message) { reply(w, m.ID, text("ok")) },
	}
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Skip("the port is taken: ", err)
	}
	web := &httptest.Server{Listener: l, Config: &http.Server{Handler: s}}
	web.Start()
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	<-listed // by itself
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	must(t, res, err)
}

// F12: a server that goes away keeps its tools listed, its calls fail as not sent,
// and it is back without being asked.
func TestServerThatStopsIsReported(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	back := make(chan struct{}, 10)
	s := &script{
		before: func(w http.ResponseWriter, _ *http.Request) bool {
			if down.Load() {
				http.Error(w, "gone", http.StatusNotFound)
			}
			return down.Load()
		},
		list: func(w http.ResponseWriter, _ *http.Request, m message) {
			reply(w, m.ID, `{"tools":[{"name":"t"}]}`)
			back <- struct{}{}
		},
		call: func(w http.ResponseWriter, _ *http.Request, m message) { reply(w, m.ID, text("ok")) },
	}
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
	c.Tools(t.Context())
	<-back
	down.Store(true)
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := kind(t, err); e.Kind != Unavailable {
		t.Errorf("call error %v, want Kind Unavailable", e)
	}
	if st := c.Servers()[0]; st.State != Degraded || st.Reason == "" {
		t.Errorf("server status %+v, want State Degraded, Reason non-empty", st)
	}
	if list := c.Tools(t.Context()); len(list) != 1 {
		t.Errorf("tools %v, want 1", list)
	}
	down.Store(false)
	<-back // with backoff
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	must(t, res, err)
}

// F13, S4.4: a server that hangs costs the call its time-out, and learns of it.
func TestHangingCallTimesOut(t *testing.T) {
	begun, left := make(chan struct{}), make(chan struct{})
	s := &script{call: func(_ http.ResponseWriter, r *http.Request, _ message) {
		close(begun)
		<-r.Context().Done()
		close(left)
	}}
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL, Timeout: 50 * time.Millisecond})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := kind(t, err); e.Kind != Timeout {
		t.Errorf("call error %v, want Kind Timeout", e)
	}
	select {
	case <-begun:
		<-left
	default: // it timed out on the way
	}
}

// S3.3: a call that may have run is sent again only if the configuration says so.
func TestUnknownOutcomeIsRepeatedOnlyIfAllowed(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		var asked atomic.Int64
		s := &script{call: func(w http.ResponseWriter, r *http.Request, m message) {
			if asked.Add(1) == 1 {
				badReplies["cut"].answer(w, r, m)
				return
			}
			reply(w, m.ID, text("ok"))
		}}
		cfg := config.Server{Name: "a", URL: serve(t, s).URL}
		if allowed {
			cfg.IdempotentTools = []string{"get_*", "t"}
		}
		c := open(t, Options{}, cfg)
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if allowed && (err != nil || asked.Load() != 2) {
			t.Errorf("%v after %d requests, want 2 and no error", err, asked.Load())
		}
		if !allowed && (kind(t, err).Kind != UnknownOutcome || asked.Load() != 1) {
			t.Errorf("%v after %d requests, want UnknownOutcome after 1", err, asked.Load())
		}
	}
}

// F19: a redirect is an error, and no other host sees the token.
func TestRedirectIsNotFollowed(t *testing.T) {
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		var seen atomic.Int64
		other := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.Add(1) }))
		s := &script{call: func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, other.URL, status)
		}}
		c := open(t, Options{Service: newTokens()}, config.Server{Name: "a", URL: serve(t, s).URL, Auth: config.AuthJWT})
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if e := kind(t, err); e.Kind != Protocol || seen.Load() != 0 {
			t.Errorf("%d: %v; the other host saw %d requests, want e.Kind Protocol, seen 0", status, e, seen.Load())
		}
	}
}

// flood writes until the reader has had enough.
func flood(w io.Writer, chunk string, total int) {
	for range total / len(chunk) {
		if _, err := io.WriteString(w, chunk); err != nil {
			return
		}
	}
}

// F20: answers without end cost a bounded amount of memory and fail that one call.
func TestEndlessResponsesAreCut(t *testing.T) {
	const huge = 600 << 20
	chunk := strings.Repeat("x", 64<<10)
	var bomb bytes.Buffer // 1 MiB of nothing
	z := gzip.NewWriter(&bomb)
	flood(z, strings.Repeat(" ", 64<<10), 1<<20)
	_ = z.Close()
	for name, f := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request, message)
		kind   ErrorKind
	}{
		"JSON": {func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", js)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"`, m.ID)
			flood(w, chunk, huge)
		}, TooLarge},
		"gzip bomb": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", js)
			w.Header().Set("Content-Encoding", "gzip")
			for range 600 { // members of one stream (RFC 1952 section 2.2)
				_, _ = w.Write(bomb.Bytes())
			}
		}, TooLarge},
		"one event": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", eventStream)
			_, _ = io.WriteString(w, "data: ")
			flood(w, chunk, huge)
		}, TooLarge},
		"comments": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", eventStream)
			flood(w, ": "+chunk+"\n", huge)
		}, TooLarge},
		"empty events": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", eventStream)
			flood(w, strings.Repeat(": "+chunk[:200]+"\n\n", 100), huge)
		}, TooLarge},
		"error body": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.WriteHeader(http.StatusBadRequest)
			flood(w, chunk, huge)
		}, Protocol},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{call: func(w http.ResponseWriter, r *http.Request, m message) {
				if m.Params.Meta["do"] == "bad" {
					f.answer(w, r, m)
					return
				}
				reply(w, m.ID, text("ok"))
			}}
			c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
			c.Tools(t.Context())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := c.Call(t.Context(), Call{Tool: "t", Meta: map[string]any{"do": "bad"}})
			runtime.ReadMemStats(&after)
			if e := kind(t, err); e.Kind != f.kind {
				t.Errorf("call error %v, want Kind %q", e, f.kind)
			}
			// Everything allocated meanwhile, the server's part and garbage included.
			if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 48 {
				t.Errorf("%d MiB allocated, want at most 48", mib)
			}
			res, err := c.Call(t.Context(), Call{Tool: "t"})
			must(t, res, err)
			if s.shakes.Load() != 1 {
				t.Errorf("the session did not survive: shakes %d, want 1", s.shakes.Load())
			}
		})
	}
}

// F14: progress puts the end off that silence is, and not the one of the whole call.
func TestEndlessProgressTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wire := func(http.RoundTripper) http.RoundTripper {
			return ticking{fake(func(*http.Request, message) (string, error) { return text("ok"), nil })}
		}
		c := open(t, Options{Transport: wire}, config.Server{Name: "a", URL: "http://localhost", Timeout: 2 * time.Second, MaxTime: time.Minute})
		c.Tools(t.Context())
		begin, got := time.Now(), 0
		_, err := c.Call(t.Context(), Call{Tool: "t", Progress: func(Progress) { got++ }})
		if e := kind(t, err); e.Kind != Timeout || time.Since(begin) != 60*time.Second || got < 58 {
			t.Errorf("%v after %s and %d notifications, want e.Kind Timeout, time.Since(begin) 60 s, got at least 58", e, time.Since(begin), got)
		}
		_ = c.Close()
	})
}

// ticking is a server whose tool reports progress each second and never ends.
type ticking struct{ fake }

func (s ticking) RoundTrip(r *http.Request) (*http.Response, error) {
	var m message
	if r.Method != http.MethodPost || json.Unmarshal([]byte(peek(r)), &m) != nil || m.Method != "tools/call" {
		return s.fake.RoundTrip(r)
	}
	out, in := io.Pipe()
	context.AfterFunc(r.Context(), func() { _ = out.CloseWithError(r.Context().Err()) })
	go func() {
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(in, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%q,\"progress\":%d}}\n\n",
				m.Params.Meta["progressToken"], i); err != nil {
				return
			}
			select {
			case <-time.After(time.Second): // fake time
			case <-r.Context().Done():
				return
			}
		}
	}()
	resp := emptyReply(r, http.StatusOK)
	resp.Header.Set("Content-Type", eventStream)
	resp.Body = out
	return resp, nil
}

// A server that holds its stream open after the answer holds up nothing.
func TestResponseBeforeTheEndOfTheStreamIsUsed(t *testing.T) {
	s := &script{call: func(w http.ResponseWriter, r *http.Request, m message) {
		events(w)("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + text("ok") + "}\n\n")
		<-r.Context().Done()
	}}
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	must(t, res, err)
}
