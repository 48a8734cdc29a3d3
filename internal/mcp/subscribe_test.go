package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// A change of the tools is noticed without a call in flight, on the standalone stream or on
// that of subscriptions/listen. A change that is announced while the stream is broken is found
// when the stream is back.
func TestSubscriptionReportsChangesOfTools(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			lists, streams := make(chan struct{}, 100), make(chan string, 100)
			s := newToolServer(nil)
			s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
				return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
					res, err := next(ctx, method, r)
					if method == "tools/list" {
						lists <- struct{}{}
					}
					return res, err
				}
			})

			flavour := map[string]string{"2025-11-25": "stateful sse", "2026-07-28": "stateless sse"}[protocol]
			h := streamableHandler(t, s, flavours[flavour])
			w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet || strings.Contains(peekBody(r), methodListen) {
					w = &flushNotifier{ResponseWriter: w, onFlush: func() { streams <- r.Method }}
				}
				h.ServeHTTP(w, r)
			}))

			c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL, ProtocolVersion: protocol})
			c.Tools(t.Context())
			<-lists
			<-streams
			s.AddTool(&sdk.Tool{Name: "news", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
			<-lists
			w.CloseClientConnections()
			<-streams // opened again, and what was missed is asked for
			<-lists
		})
	}
}

// The tools change after they were listed and before the server knows that we want to be told.
func TestChangeBeforeTheFirstSubscriptionIsNotLost(t *testing.T) {
	t.Parallel()
	for protocol, flavour := range map[string]string{"2025-11-25": "stateful sse", "2026-07-28": "stateless sse"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s, changed, lists := newToolServer(nil), make(chan struct{}), make(chan bool, 100)
			s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
				return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
					res, err := next(ctx, method, r)
					if list, ok := res.(*sdk.ListToolsResult); ok {
						lists <- slices.ContainsFunc(list.Tools, func(t *sdk.Tool) bool { return t.Name == "news" })
					}
					return res, err
				}
			})

			h := streamableHandler(t, s, flavours[flavour])
			w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet || strings.Contains(peekBody(r), methodListen) {
					receive(t, changed)
				}
				h.ServeHTTP(w, r)
			}))

			c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL, ProtocolVersion: protocol})
			c.Tools(t.Context())
			if <-lists {
				t.Fatal("the first list has the tool news, want it added later")
			}
			s.AddTool(&sdk.Tool{Name: "news", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
			close(changed)

			select {
			case has := <-lists:
				if !has {
					t.Error("the next list does not have the tool news, want it")
				}
			case <-time.After(10 * time.Second):
				t.Error("the tools were not listed again within 10 s, want it after the subscription has begun")
			}
		})
	}
}

// A server that does not have the method is asked once.
func TestListenLoopEndsIfTheMethodIsNotFound(t *testing.T) {
	asked := make(chan string, 100)
	h := streamableHandler(t, newToolServer(nil), flavours["stateless json"])
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := peekBody(r)
		if !strings.Contains(body, methodListen) {
			h.ServeHTTP(w, r)
			return
		}
		var m message
		_ = json.Unmarshal([]byte(body), &m)
		asked <- m.Method
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32601,"message":"what?"}}`))
	})).URL})

	c.Tools(t.Context())
	<-asked
	p := c.serverByName("a").pool
	_ = c.Close() // waits for the subscriptions
	if len(asked) != 0 || p.CurrentSession() != nil {
		t.Errorf("got %d further requests and the session %v, want none", len(asked), p.CurrentSession())
	}
}

// listening returns a server of 2026-07-28, without a network for tests in fake time, whose second
// subscriptions/listen gets refusal. It ends the others as soon as they were acknowledged. done is called with the
// number of each subscription, which starts at 1, and of each initialize, which is 0.
func listening(refusal func(m message) *http.Response, done func(n int)) func(http.RoundTripper) http.RoundTripper {
	n := 0
	return func(http.RoundTripper) http.RoundTripper {
		return roundTripFunc(func(r *http.Request) (*http.Response, error) {
			var m message
			_ = json.Unmarshal([]byte(peekBody(r)), &m)
			kind, answer := "application/json", resultFor(m, `{"resultType":"complete","tools":[]}`)
			switch m.Method {
			case methodDiscover:
				answer = resultFor(m, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"raw","version":"1"}}`)
				if n > 1 {
					return emptyReply(r, http.StatusBadRequest), nil
				}
			case methodInitialize:
				answer = resultFor(m, initializeResult)
				done(0)
			case methodListen:
				n++
				done(n)
				if n == 2 {
					return refusal(m), nil
				}
				kind = eventStream
				answer = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{\"notifications\":{}}}\n\n"
			}
			return newReply(r, http.StatusOK, kind, answer), nil
		})
	}
}

// newReply returns a reply that no server sent.
func newReply(r *http.Request, status int, contentType, body string) *http.Response {
	resp := emptyReply(r, status)
	resp.Header.Set("Content-Type", contentType)
	resp.Body = io.NopCloser(strings.NewReader(body))
	return resp
}

// A server that has accepted a subscription is asked again after another of its replicas, which does not have
// the method yet, has refused one. If that has only an earlier version of the protocol, the version is negotiated
// again, without a call.
func TestListenLoopContinuesAfterARefusal(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string // after the id
		want   int
		wait   time.Duration
	}{
		"no such method":  {http.StatusNotFound, `"error":{"code":-32601,"message":"what?"}}`, 3, 0},
		"earlier version": {http.StatusBadRequest, `"error":{"code":-32022,"message":"what?"}}`, 0, 0},
		"busy":            {http.StatusTooManyRequests, `"error":{"code":-32000,"message":"what?"}}`, 3, 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := make(chan int, 100)
				client := newClient(t, Options{Transport: listening(func(m message) *http.Response {
					resp := newReply(nil, c.status, "application/json", `{"jsonrpc":"2.0","id":`+string(m.ID)+`,`+c.body)
					resp.Header.Set("Retry-After", "50")
					return resp
				}, func(n int) { got <- n })}, config.Server{Name: "a", URL: "http://localhost"})
				client.Tools(t.Context())
				for _, want := range []int{1, 2, c.want} {
					began := time.Now()
					select {
					case n := <-got:
						if n != want {
							t.Errorf("got the request %d, want %d", n, want)
						}
						if waited := time.Since(began); n == 3 && waited < c.wait {
							t.Errorf("got the third request after %v, want it after %v", waited, c.wait)
						}
					case <-time.After(time.Hour):
						t.Fatalf("got no request within an hour, want %d", want)
					}
				}
				_ = client.Close()
			})
		})
	}
}

// On a connection that all requests share, a server ends a subscription with notifications/cancelled
// (2026-07-28 basic/patterns/cancellation), and need not answer it. It is asked again.
func TestSubscriptionThatTheServerCancelsIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listens := make(chan struct{}, 100)
		newPipedClient(t, Options{}, config.Server{}, func(conn net.Conn) {
			say := func(s string) { _, _ = io.WriteString(conn, s+"\n") }
			for in := bufio.NewScanner(conn); in.Scan(); {
				var m message
				_ = json.Unmarshal(in.Bytes(), &m)
				switch m.Method {
				case methodDiscover:
					say(resultFor(m, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"raw","version":"1"}}`))
				case "tools/list":
					say(resultFor(m, `{"resultType":"complete","tools":[]}`))
				case methodListen:
					listens <- struct{}{}
					say(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{}}}`)
					say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + string(m.ID) + `}}`)
				}
			}
		})
		<-listens
		select {
		case <-listens:
		case <-time.After(time.Hour):
			t.Error("got no further subscription within an hour, want one")
		}
	})
}
