package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// lossy is a result of which the SDK's own types would keep less, or nothing.
const lossy = `{"content":[{"type":"hologram","depth":9007199254740993},{"type":"text","text":"a"}],"structuredContent":{"n":9007199254740993,"f":1.50}}`

// What a call returns is the result of the SDK's own call, byte for byte.
func TestRawResultIsWhatTheSDKReturns(t *testing.T) {
	way := fake(func(*http.Request, message) (string, error) { return lossy, nil })
	client := sdkClient(config.Server{}, Options{Logger: quietLog()})
	returned := map[string]string{}
	client.AddSendingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, req)
			if raw, ok := res.(*rawResult); ok {
				returned[method] = string(raw.raw)
			}
			return res, err
		}
	})
	hands := newExchange(t.Context(), t.Context(), time.Now().Add(time.Minute))
	defer hands.finish()
	s := &session{ready: make(chan struct{}), pool: newPool(poolOptions{onNotification: func(string) {}})}
	hands.session, hands.handshake, hands.patience = s, true, time.Minute
	var err error
	if s.cs, err = client.Connect(hands.ctx, newStreamable(&site{way: way, url: "http://server.test", log: quietLog()}), nil); err != nil {
		t.Fatal(err)
	}
	close(s.ready)
	x := newExchange(t.Context(), t.Context(), time.Now().Add(time.Minute))
	defer x.finish()
	x.session = s
	if raw, f := ask(x, methodCall, &sdk.CallToolParams{Name: "t"}); f != nil || string(raw) != lossy {
		t.Errorf("got %s, %v, want %s", raw, f, lossy)
	}
	if raw, f := ask(x, "tools/list", &sdk.ListToolsParams{}); f != nil || string(raw) != `{"tools":[{"name":"t"}]}` {
		t.Errorf("got %s, %v", raw, f)
	}
	if got := returned[rawPrefix+methodCall]; got != lossy {
		t.Errorf("the SDK returned %s, want %s", got, lossy)
	}
	if err := s.cs.Close(); err != nil {
		t.Error(err)
	}
}

// clientsAnswered are clients of a server that answers each call with member, over HTTP as JSON
// and as an event, and over a pipe.
func clientsAnswered(t *testing.T, member string) map[string]*Client {
	overHTTP := func(contentType, frame string) *Client {
		s := &script{call: func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", contentType)
			fmt.Fprintf(w, frame, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, member))
		}}
		return open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
	}
	return map[string]*Client{
		"JSON": overHTTP(js, "%s"), "an event": overHTTP(eventStream, "data: %s\n\n"),
		"a pipe": piped(t, Options{}, config.Server{}, func(conn net.Conn) {
			lines(func(m message, say func(string)) { say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, member)) })(conn)
		}),
	}
}

func TestCallKeepsWhatTheSDKsTypesLose(t *testing.T) {
	for name, c := range clientsAnswered(t, `"result":`+lossy) {
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		if must(t, res, err); string(res.Structured) != `{"n":9007199254740993,"f":1.50}` ||
			len(res.Content) != 2 || string(res.Content[0]) != `{"type":"hologram","depth":9007199254740993}` {
			t.Errorf("%s: got %s and %s", name, res.Content, res.Structured)
		}
	}
}

// The SDK has errors of its own, which it tells by these codes: a rejected message, a session
// that is closed at either end, and others. From a server they are its answer to that call.
func TestServerErrorHasItsOwnCode(t *testing.T) {
	for _, code := range []int64{-32005, -32004, -32003, -32001, -32000, -32603, 7} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			for name, c := range clientsAnswered(t, fmt.Sprintf(`"error":{"code":%d,"message":"too hot","data":{"n":1}}`, code)) {
				c.Tools(t.Context()) // waits for the session
				before := c.named("a").pool.currentSession()
				for range 2 {
					_, err := c.Call(t.Context(), Call{Tool: "t"})
					e := kind(t, err)
					rpc, ok := errors.AsType[*jsonrpc.Error](err)
					if !ok || rpc.Code != code || string(rpc.Data) != `{"n":1}` {
						t.Errorf("%s: got the error %+v in %v", name, rpc, err)
					}
					if e.Kind != Execution || e.Message != "MCP server a: it answered: too hot" {
						t.Errorf("%s: got %s, %q", name, e.Kind, e.Message)
					}
				}
				if before == nil || c.named("a").pool.currentSession() != before {
					t.Errorf("%s: the session did not survive", name)
				}
			}
		})
	}
}

// The SDK sends notifications/cancelled after each request that the transport has ended. The
// server gets it only where it may still be at work on one whose stream cannot be resumed.
func TestFailedRequestIsNotCancelledAtTheServer(t *testing.T) {
	reply := func(status int, contentType, body string) func(r *http.Request) (*http.Response, error) {
		return func(r *http.Request) (*http.Response, error) {
			resp := emptyReply(r, status)
			resp.Header.Set("Content-Type", contentType)
			resp.Body = http.NoBody
			if body != "" {
				resp.Body = readCloser{strings.NewReader(body)}
			}
			return resp, nil
		}
	}
	for name, test := range map[string]struct {
		call func(*http.Request) (*http.Response, error)
		told int64
	}{
		"nobody there":  {func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }, 0},
		"400":           {reply(400, js, ""), 0},
		"500":           {reply(500, js, ""), 0},
		"HTML":          {reply(200, "text/html", "hello"), 0},
		"end of stream": {reply(200, eventStream, ": hello\n\n"), 0},
		"garbage event": {reply(200, eventStream, "data: {\n\n"), 1},
		"answered":      {func(r *http.Request) (*http.Response, error) { return nil, nil }, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var told atomic.Int64
			next := fake(func(*http.Request, message) (string, error) { return text("ok"), nil })
			wire := roundTrip(func(r *http.Request) (*http.Response, error) {
				var m message
				if r.Body != nil && json.Unmarshal([]byte(peek(r)), &m) == nil {
					switch m.Method {
					case cancelled:
						told.Add(1)
					case methodCall:
						exchangeOf(r.Context()).sent.Store(name != "nobody there")
						exchangeOf(r.Context()).sentAt.Store(time.Now().Add(-readTime).UnixNano())
						if resp, err := test.call(r); resp != nil || err != nil {
							return resp, err
						}
					}
				}
				return next.RoundTrip(r)
			})
			c := open(t, Options{Transport: func(http.RoundTripper) http.RoundTripper { return wire }},
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

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

func TestBoundDepthReplacesOnlyWhatIsTooDeep(t *testing.T) {
	nested := func(levels int, inner string) json.RawMessage {
		return json.RawMessage(strings.Repeat(`{"a":[`, levels/2) + inner + strings.Repeat(`]}`, levels/2))
	}
	wide := json.RawMessage(`[` + strings.Repeat(`{"a":1.0},`, 2000) + `9007199254740993]`)
	for name, test := range map[string]struct{ in, want json.RawMessage }{
		"as deep as may be": {nested(maxNesting, `"x"`), nested(maxNesting, `"x"`)},
		"deeper":            {nested(maxNesting, `1.0, {"b":[{}]}, 2`), nested(maxNesting, `1.0,"[nested too deep]",2`)},
		"wide":              {wide, wide},
		"nothing":           {nil, nil},
	} {
		if got := boundDepth(test.in); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %d bytes, want %d", name, len(got), len(test.want))
		}
	}
}

func TestDecodeMessageTellsWhoseAnswerCannotBeRead(t *testing.T) {
	for in, want := range map[string]any{
		`{"jsonrpc":"2.0","id":7,"error":[]}`:                 int64(7),
		`{"jsonrpc":"1.0","id":"a","result":{}}`:              "a",
		`{"id":7,"result":{}}`:                                nil,
		`{"jsonrpc":"2.0","id":{},"result":{}}`:               nil,
		`{"jsonrpc":"2.0","id":7,"method":7}`:                 nil,
		`{"jsonrpc":"2.0","id":7,"result":{}} {}`:             nil,
		`{"jsonrpc":"2.0","id":7,"result":{`:                  nil,
		`[{"jsonrpc":"2.0","id":7,"result":{}}]`:              nil,
		`{"jsonrpc":"2.0","id":7,"result":{"a":1}, "x": nul}`: nil,
	} {
		msg, err := decodeMessage([]byte(in))
		var got any
		if answer, ok := msg.(*jsonrpc.Response); ok {
			got = answer.ID.Raw()
		}
		if err == nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", in, got, err, want)
		}
	}
}

// FuzzMembers compares what is found in an object with what encoding/json finds.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{
		`{}`, ` { } `, `{"a":1}`, `{ "a" : [ 1 , {"b":"]}\\"} ] , "b":"\"" }`, `{"a":"\u00e9\ud83d\ude00\ud83d\u0041\/\b"}`, `{"":"","t\u0065xt":1,"a":2,"a":3}`, "{\"\x80\":\"\x80\"}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want map[string]json.RawMessage
		wantErr := json.Unmarshal([]byte(s), &want)
		got := map[string]json.RawMessage{}
		err := wire.Members([]byte(s), func(name string, value json.RawMessage) { got[name] = value })
		if (err == nil) != (wantErr == nil && want != nil) {
			t.Fatalf("%q: got %v, want %v", s, err, wantErr)
		}
		for name, value := range want {
			if string(got[name]) != string(value) {
				t.Errorf("%q: got %s for %q, want %s", s, got[name], name, value)
			}
			var text string
			said, ok := wire.Text(got[name])
			if isText := json.Unmarshal(value, &text) == nil; isText != ok || said != text {
				t.Errorf("%q: got %q, %t, want %q", s, said, ok, text)
			}
		}
	})
}
