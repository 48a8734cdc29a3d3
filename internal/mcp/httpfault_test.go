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

// startEventStream begins an event stream and returns a function that writes to it.
func startEventStream(w http.ResponseWriter) func(string) {
	w.Header().Set("Content-Type", "text/event-stream")
	return func(s string) {
		_, _ = io.WriteString(w, s)
		w.(http.Flusher).Flush()
	}
}

func httpErrorReply(status int, body string) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, _ message) { http.Error(w, body, status) }
}

func bodyReply(contentType, body string) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", string(m.ID)))
	}
}

const eventStream, jsonType = "text/event-stream", "application/json"

// badReplies are what one call may get, and what becomes of it.
var badReplies = map[string]struct {
	answer func(http.ResponseWriter, *http.Request, message)
	kind   ErrorKind
}{
	"HTML":                {bodyReply("text/html", "<p>hello"), Protocol},
	"no content type":     {bodyReply("", ""), Protocol},
	"garbage JSON":        {bodyReply(jsonType, `{"jsonrpc":`), Protocol},
	"a list":              {bodyReply(jsonType, `[]`), Protocol},
	"empty":               {bodyReply(jsonType, ``), Protocol},
	"wrong id":            {bodyReply(jsonType, `{"jsonrpc":"2.0","id":9999,"result":{"content":[]}}`), Protocol},
	"id as text":          {bodyReply(jsonType, `{"jsonrpc":"2.0","id":"0ID","result":{"content":[]}}`), Protocol},
	"no result":           {bodyReply(jsonType, `{"jsonrpc":"2.0","id":ID,"result":null}`), Protocol},
	"result of no shape":  {bodyReply(jsonType, `{"jsonrpc":"2.0","id":ID,"result":{"content":[7]}}`), Protocol},
	"a task":              {bodyReply(jsonType, `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"task","taskId":"1"}}`), Protocol},
	"a request":           {bodyReply(jsonType, `{"jsonrpc":"2.0","id":ID,"method":"ping"}`), Protocol},
	"accepted":            {httpErrorReply(http.StatusAccepted, ""), Protocol},
	"400":                 {httpErrorReply(http.StatusBadRequest, "no"), Protocol},
	"401":                 {httpErrorReply(http.StatusUnauthorized, "no"), Unavailable},
	"403":                 {httpErrorReply(http.StatusForbidden, "no"), Unavailable},
	"405":                 {httpErrorReply(http.StatusMethodNotAllowed, "no"), Unavailable},
	"413":                 {httpErrorReply(http.StatusRequestEntityTooLarge, "no"), TooLarge},
	"429":                 {httpErrorReply(http.StatusTooManyRequests, "later"), Unavailable},
	"500":                 {httpErrorReply(http.StatusInternalServerError, "oops"), UnknownOutcome},
	"502":                 {httpErrorReply(http.StatusBadGateway, "oops"), UnknownOutcome},
	"503":                 {httpErrorReply(http.StatusServiceUnavailable, "later"), Unavailable},
	"garbage event":       {bodyReply(eventStream, "data: {\"jsonrpc\n\n"), Protocol},
	"line without colon":  {bodyReply(eventStream, "nonsense\n\n"), UnknownOutcome},
	"event with wrong id": {bodyReply(eventStream, "data: {\"jsonrpc\":\"2.0\",\"id\":9999,\"result\":{}}\n\n"), Protocol},
	"end of stream":       {bodyReply(eventStream, ": nothing\n\n"), UnknownOutcome}, // F15
	"unknown requests":    {bodyReply(eventStream, strings.Repeat("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\n\n", 200)), Protocol},
	"unsolicited":         {bodyReply(eventStream, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n"), UnknownOutcome},
	"other session id": {func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set(sessionHeader, "another")
		replyJSON(w, m.ID, `{"content":[],"isError":1}`)
	}, Protocol},
	"RPC error":     {bodyReply(jsonType, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"broken\nhere"}}`), Execution},
	"RPC 400":       {badParamsReply, InvalidArguments},
	"RPC 401":       {rpcErrorReply(http.StatusUnauthorized, -32001), Unavailable},
	"RPC 500":       {rpcErrorReply(http.StatusInternalServerError, -32603), Execution},
	"RPC 503":       {rpcErrorReply(http.StatusServiceUnavailable, -32603), Unavailable},
	"RPC 429":       {rpcErrorReply(http.StatusTooManyRequests, -32000), Unavailable},
	"unknown tool":  {bodyReply(jsonType, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"unknown tool \"t\""}}`), UnknownTool},
	"unknown parse": {bodyReply(jsonType, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}`), Protocol},
	"cut": {func(w http.ResponseWriter, _ *http.Request, _ message) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}, UnknownOutcome},
}

// rpcErrorReply answers with an HTTP status and a JSON-RPC error.
func rpcErrorReply(status, code int) func(http.ResponseWriter, *http.Request, message) {
	return func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", jsonType)
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"missing city"}}`, m.ID, code)
	}
}

var badParamsReply = rpcErrorReply(http.StatusBadRequest, -32602)

// F15, F16: a bad reply fails the call that it answers; a call that is under way
// and the next one don't notice, and the session lives.
func TestBadResponseFailsOnlyItsCall(t *testing.T) {
	t.Parallel()
	for name, bad := range badReplies {
		t.Run(name, func(t *testing.T) {
			waiting, release := make(chan struct{}), make(chan struct{})
			s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
				switch m.Params.Meta["do"] {
				case "wait":
					send := startEventStream(w)
					send(": hello\n\n")
					close(waiting)
					receive(t, release)
					send("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + textResult("waited") + "}\n\n")
				case "bad":
					bad.answer(w, r, m)
				default:
					replyJSON(w, m.ID, textResult("ok"))
				}
			}}

			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
			callTool := func(what string) (*content.Result, error) {
				return c.Call(context.Background(), Call{Tool: "t", Meta: map[string]any{"do": what}})
			}

			waited := make(chan error, 1)
			go func() {
				res, err := callTool("wait")
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

			_, err := callTool("bad")
			e := mustFail(t, err)
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
			res, err := callTool("")
			mustResult(t, res, err)
			if n := s.initializes.Load(); n != 1 {
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
	c := newClient(t, Options{}, config.Server{Name: "a", URL: "http://" + addr})
	if list := c.Tools(t.Context()); len(list) != 0 {
		t.Fatalf("list %+v, want 0", list)
	}
	if st := c.Servers()[0]; st.State != Failed || st.Reason != "connection refused" {
		t.Errorf(`server status %+v, want State Failed, Reason "connection refused"`, st)
	}
	_, err = c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != UnknownTool {
		t.Errorf("call error %v, want Kind UnknownTool", e)
	}

	listed := make(chan struct{}, 10)
	s := &scriptedServer{
		list: func(w http.ResponseWriter, _ *http.Request, m message) {
			replyJSON(w, m.ID, `{"tools":[{"name":"t"}]}`)
			listed <- struct{}{}
		},
		call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) },
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
	mustResult(t, res, err)
}

// F12: a server that goes away keeps its tools listed, its calls fail as not sent,
// and it is back without being asked.
func TestServerThatStopsIsReported(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	back := make(chan struct{}, 10)
	s := &scriptedServer{
		before: func(w http.ResponseWriter, _ *http.Request) bool {
			if down.Load() {
				http.Error(w, "gone", http.StatusNotFound)
			}
			return down.Load()
		},
		list: func(w http.ResponseWriter, _ *http.Request, m message) {
			replyJSON(w, m.ID, `{"tools":[{"name":"t"}]}`)
			back <- struct{}{}
		},
		call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) },
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())
	<-back
	down.Store(true)
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != Unavailable {
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
	mustResult(t, res, err)
}

// F13, S4.4: a server that hangs costs the call its time-out, and learns of it.
func TestHangingCallTimesOut(t *testing.T) {
	begun, left := make(chan struct{}), make(chan struct{})
	s := &scriptedServer{call: func(_ http.ResponseWriter, r *http.Request, _ message) {
		close(begun)
		<-r.Context().Done()
		close(left)
	}}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, Timeout: 50 * time.Millisecond})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != Timeout {
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
		s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
			if asked.Add(1) == 1 {
				badReplies["cut"].answer(w, r, m)
				return
			}
			replyJSON(w, m.ID, textResult("ok"))
		}}

		cfg := config.Server{Name: "a", URL: serveHTTP(t, s).URL}
		if allowed {
			cfg.IdempotentTools = []string{"get_*", "t"}
		}
		c := newClient(t, Options{}, cfg)
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if allowed && (err != nil || asked.Load() != 2) {
			t.Errorf("%v after %d requests, want 2 and no error", err, asked.Load())
		}
		if !allowed && (mustFail(t, err).Kind != UnknownOutcome || asked.Load() != 1) {
			t.Errorf("%v after %d requests, want UnknownOutcome after 1", err, asked.Load())
		}
	}
}

// A call that may have run is not reported as unavailable because the server was busy when it was sent again.
func TestUnknownOutcomeStaysIfTheRepetitionIsRefused(t *testing.T) {
	var asked atomic.Int64
	s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
		if asked.Add(1) == 1 {
			badReplies["cut"].answer(w, r, m)
			return
		}
		w.WriteHeader(http.StatusTooManyRequests)
	}}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, IdempotentTools: []string{"t"}})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != UnknownOutcome || asked.Load() != 2 {
		t.Errorf("%v after %d requests, want UnknownOutcome after 2", err, asked.Load())
	}
}

// F19: a redirect is an error, and no other host sees the token.
func TestRedirectIsNotFollowed(t *testing.T) {
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		var seen atomic.Int64
		other := serveHTTP(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.Add(1) }))
		s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, other.URL, status)
		}}
		c := newClient(t, Options{Service: newTokenSource()}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, Auth: config.AuthJWT})
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != Protocol || seen.Load() != 0 {
			t.Errorf("%d: %v; the other host saw %d requests, want Kind Protocol, seen 0", status, e, seen.Load())
		}
	}
}

// writeUntilClosed writes total bytes, or until the reader closes.
func writeUntilClosed(w io.Writer, chunk string, total int) {
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
	writeUntilClosed(z, strings.Repeat(" ", 64<<10), 1<<20)
	_ = z.Close()

	for name, f := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request, message)
		kind   ErrorKind
	}{
		"JSON": {func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", jsonType)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"`, m.ID)
			writeUntilClosed(w, chunk, huge)
		}, TooLarge},
		"gzip bomb": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", jsonType)
			w.Header().Set("Content-Encoding", "gzip")
			for range 600 { // members of one stream (RFC 1952 section 2.2)
				_, _ = w.Write(bomb.Bytes())
			}
		}, TooLarge},
		"one event": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", eventStream)
			_, _ = io.WriteString(w, "data: ")
			writeUntilClosed(w, chunk, huge)
		}, TooLarge},
		"comments": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", eventStream)
			writeUntilClosed(w, ": "+chunk+"\n", huge)
		}, TooLarge},
		"empty events": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.Header().Set("Content-Type", eventStream)
			writeUntilClosed(w, strings.Repeat(": "+chunk[:200]+"\n\n", 100), huge)
		}, TooLarge},
		"error body": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			w.WriteHeader(http.StatusBadRequest)
			writeUntilClosed(w, chunk, huge)
		}, Protocol},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
				if m.Params.Meta["do"] == "bad" {
					f.answer(w, r, m)
					return
				}
				replyJSON(w, m.ID, textResult("ok"))
			}}
			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
			c.Tools(t.Context())

			// The call fails, with little memory.
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := c.Call(t.Context(), Call{Tool: "t", Meta: map[string]any{"do": "bad"}})
			runtime.ReadMemStats(&after)
			if e := mustFail(t, err); e.Kind != f.kind {
				t.Errorf("call error %v, want Kind %q", e, f.kind)
			}
			// Everything allocated meanwhile, the server's part and garbage included.
			if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 48 {
				t.Errorf("%d MiB allocated, want at most 48", mib)
			}

			// The session is still usable.
			res, err := c.Call(t.Context(), Call{Tool: "t"})
			mustResult(t, res, err)
			if s.initializes.Load() != 1 {
				t.Errorf("the session did not survive: shakes %d, want 1", s.initializes.Load())
			}
		})
	}
}

// F14: progress puts the end off that silence is, and not the one of the whole call.
func TestEndlessProgressTimesOut(t *testing.T) {
	for _, standalone := range []bool{false, true} {
		t.Run(fmt.Sprintf("standalone stream %t", standalone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newTransport := func(http.RoundTripper) http.RoundTripper {
					return &endlessProgressServer{standalone: standalone}
				}
				c := newClient(t, Options{Transport: newTransport}, config.Server{
					Name: "a", URL: "http://localhost", Timeout: 2 * time.Second, MaxTime: time.Minute, StandaloneStream: &standalone,
				})
				c.Tools(t.Context())
				synctest.Wait() // until the standalone stream is open
				begin, got := time.Now(), 0
				_, err := c.Call(t.Context(), Call{Tool: "t", Progress: func(Progress) { got++ }})
				if e := mustFail(t, err); e.Kind != Timeout || time.Since(begin) != 60*time.Second || got < 58 {
					t.Errorf("%v after %s and %d notifications, want Kind Timeout, took 60 s, got at least 58", e, time.Since(begin), got)
				}
				_ = c.Close()
			})
		})
	}
}

// endlessProgressServer is a server whose tool reports progress each second and never ends. It reports on the call's
// stream or, with standalone, on the standalone stream.
type endlessProgressServer struct {
	standalone bool
	stream     io.Writer // the standalone stream
}

func (s *endlessProgressServer) RoundTrip(r *http.Request) (*http.Response, error) {
	out, in := io.Pipe()
	context.AfterFunc(r.Context(), func() { _ = out.CloseWithError(r.Context().Err()) })
	resp := emptyReply(r, http.StatusOK)
	resp.Header.Set("Content-Type", eventStream)
	resp.Body = out
	if r.Method == http.MethodGet && s.standalone {
		s.stream = in
		return resp, nil
	}
	var m message
	if r.Method != http.MethodPost || json.Unmarshal([]byte(peekBody(r)), &m) != nil || m.Method != "tools/call" {
		return okServer.RoundTrip(r)
	}
	reports := io.Writer(in)
	if s.standalone {
		reports = s.stream
	}
	go func() {
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(reports, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%q,\"progress\":%d}}\n\n",
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
	return resp, nil
}

// A server that holds its stream open after the answer holds up nothing.
func TestResponseBeforeTheEndOfTheStreamIsUsed(t *testing.T) {
	s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
		startEventStream(w)("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + textResult("ok") + "}\n\n")
		<-r.Context().Done()
	}}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
}
