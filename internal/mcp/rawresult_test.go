package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"answerd/internal/mcp/config"
)

// unknownContentResult is a result of which the SDK's own types would keep less, or nothing.
const unknownContentResult = `{"content":[{"type":"hologram","depth":9007199254740993},{"type":"text","text":"a"}],"structuredContent":{"n":9007199254740993,"f":1.50}}`

// newClientsAnsweredWith returns clients of a server that answers each call with member, over HTTP as JSON
// and as an event, and over a pipe.
func newClientsAnsweredWith(t *testing.T, member string) map[string]*Client {
	overHTTP := func(contentType, frame string) *Client {
		s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", contentType)
			fmt.Fprintf(w, frame, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, member))
		}}
		return newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	}
	return map[string]*Client{
		"JSON": overHTTP(jsonType, "%s"), "an event": overHTTP(eventStream, "data: %s\n\n"),
		"a pipe": newPipedClient(t, Options{}, config.Server{}, func(conn net.Conn) {
			scriptedPeer(func(m message, say func(string)) { say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, member)) })(conn)
		}),
	}
}

func TestCallKeepsWhatTheSDKsTypesLose(t *testing.T) {
	for name, c := range newClientsAnsweredWith(t, `"result":`+unknownContentResult) {
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		if mustResult(t, res, err); string(res.Structured) != `{"n":9007199254740993,"f":1.50}` ||
			len(res.Content) != 2 || string(res.Content[0]) != `{"type":"hologram","depth":9007199254740993}` {
			t.Errorf(`%s: got %s and %s, want Structured {"n":9007199254740993,"f":1.50}, 2, [0] {"type":"hologram","depth":9007199254740993}`, name, res.Content, res.Structured)
		}
	}
}

// The SDK has errors of its own, which it tells by these codes: a rejected message, a session
// that is closed at either end, and others. From a server they are its answer to that call.
func TestServerErrorHasItsOwnCode(t *testing.T) {
	for _, code := range []int64{-32005, -32004, -32003, -32001, -32000, -32603, 7} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			for name, c := range newClientsAnsweredWith(t, fmt.Sprintf(`"error":{"code":%d,"message":"too hot","data":{"n":1}}`, code)) {
				c.Tools(t.Context()) // waits for the session
				before := c.serverByName("a").pool.CurrentSession()
				for range 2 {
					_, err := c.Call(t.Context(), Call{Tool: "t"})
					e := mustFail(t, err)
					rpc, ok := errors.AsType[*jsonrpc.Error](err)
					if !ok || rpc.Code != code || string(rpc.Data) != `{"n":1}` {
						t.Errorf(`%s: got the error %+v in %v, want an Error, Code %d, Data {"n":1}`, name, rpc, err, code)
					}
					if e.Kind != Execution || e.Message != "MCP server a: it answered: too hot" {
						t.Errorf(`%s: got %s, %q, want Execution and "MCP server a: it answered: too hot"`, name, e.Kind, e.Message)
					}
				}
				if before == nil || c.serverByName("a").pool.CurrentSession() != before {
					t.Errorf("%s: the session was replaced, want %p still", name, before)
				}
			}
		})
	}
}

// The SDK sends notifications/cancelled after each request that the transport has ended. The
// server gets it only where it may still be at work on one whose stream cannot be resumed.
func TestFailedRequestIsNotCancelledAtTheServer(t *testing.T) {
	reply := func(status int, contentType, body string) func(r *http.Request) (*http.Response, error) {
		return func(r *http.Request) (*http.Response, error) { return newReply(r, status, contentType, body), nil }
	}
	for name, test := range map[string]struct {
		call func(*http.Request) (*http.Response, error)
		told int64
	}{
		"nobody there":  {func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }, 0},
		"400":           {reply(400, jsonType, ""), 0},
		"500":           {reply(500, jsonType, ""), 0},
		"HTML":          {reply(200, "text/html", "hello"), 0},
		"end of stream": {reply(200, eventStream, ": hello\n\n"), 0},
		"garbage event": {reply(200, eventStream, "data: {\n\n"), 1},
		"answered":      {func(r *http.Request) (*http.Response, error) { return nil, nil }, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var told atomic.Int64
			wire := roundTripFunc(func(r *http.Request) (*http.Response, error) {
				var m message
				if r.Body != nil && json.Unmarshal([]byte(peekBody(r)), &m) == nil {
					switch m.Method {
					case cancelled:
						told.Add(1)
					case methodCall:
						if name != "nobody there" {
							httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
							<-time.After(3 * time.Second) // fake time, in which the server has read it
						}
						if resp, err := test.call(r); resp != nil || err != nil {
							return resp, err
						}
					}
				}
				return okServer.RoundTrip(r)
			})

			c := newClient(t, Options{Transport: func(http.RoundTripper) http.RoundTripper { return wire }},
				config.Server{Name: "a", URL: "http://localhost", ProtocolVersion: "2025-11-25"})
			c.Tools(t.Context())
			_, err := c.Call(t.Context(), Call{Tool: "t"})
			synctest.Wait()
			if got := told.Load(); got != test.told || (err == nil) != (name == "answered") {
				t.Errorf("%s: got %d cancellations, want %d: %v", name, got, test.told, err)
			}
			_ = c.Close()
		})
	}
}
