package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// However often its session is lost, a server of before 2026-07-28 gets server/discover in
// the first handshake only. So a reconnect costs initialize, its notification and the list.
func TestNegotiatorAsksDiscoverOnce(t *testing.T) {
	var posts, discovers atomic.Int64
	s := &scriptedServer{}
	s.call = func(w http.ResponseWriter, r *http.Request, m message) {
		if r.Header.Get(sessionHeader) != "session-4" {
			http.Error(w, "who?", http.StatusNotFound)
			return
		}
		replyJSON(w, m.ID, textResult("ok"))
	}

	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && r.Header.Get(sessionHeader) == "" {
			posts.Add(1)
			if strings.Contains(peekBody(r), methodDiscover) {
				discovers.Add(1)
			}
		}
		return false
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())

	for range 3 { // each call may find one session lost, and sends itself again once
		_, _ = c.Call(t.Context(), Call{Tool: "t"})
	}

	if posts.Load() != 5 || discovers.Load() != 1 || s.initializes.Load() != 4 {
		t.Errorf("got %d POSTs without a session, %d of them %s, and %d initialize, want 5, 1, 4", posts.Load(), discovers.Load(), methodDiscover, s.initializes.Load())
	}
}

// A version that the server refuses is forgotten within the same handshake, so the next call
// works. A pinned version is not.
func TestNegotiatorForgetsAVersionThatIsRefused(t *testing.T) {
	for _, pinned := range []string{"", "2025-11-25"} {
		var renewed atomic.Bool
		old := newToolServer(nil)

		before, after := streamableHandler(t, old, flavours["stateful sse"]), streamableHandler(t, newToolServer(nil), flavours["stateless sse"])
		c := newClient(t, Options{}, config.Server{Name: "a", ProtocolVersion: pinned, URL: serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !renewed.Load():
				before.ServeHTTP(w, r)
			case r.Header.Get(sessionHeader) != "":
				http.Error(w, "who?", http.StatusNotFound)
			case r.Method == http.MethodPost && strings.Contains(peekBody(r), `"initialize"`):
				http.Error(w, "what?", http.StatusBadRequest)
			default:
				after.ServeHTTP(w, r)
			}
		})).URL})

		c.Tools(t.Context())
		renewed.Store(true)

		for ss := range old.Sessions() {
			_ = ss.Close() // nobody else does
		}

		_, err := c.Call(t.Context(), Call{Tool: "echo"})
		if got := c.serverByName("a").pool.CurrentSession(); (err == nil) != (pinned == "") || err == nil && got.Protocol() != transport.StatelessVersion {
			t.Errorf("pinned %q: got the error %v, want success only without a pinned version, at %s", pinned, err, transport.StatelessVersion)
		}
	}
}

// A server without sessions is replaced by one of another version, such as in a rollback, or by one with sessions:
// its refusal has the version negotiated again, and the call is sent once more.
func TestNegotiatorAsksAgainWhenTheServersVersionChanges(t *testing.T) {
	// refusing is a server of 2025-11-25 without sessions. It answers requests of 2026-07-28 with 400 and body, in which
	// ID stands for the request's id.
	refusing := func(body string) http.Handler {
		old := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
		old.before = func(w http.ResponseWriter, r *http.Request) bool {
			var m message
			_ = json.Unmarshal([]byte(peekBody(r)), &m)
			isRefused := r.Header.Get("Mcp-Protocol-Version") == transport.StatelessVersion && m.Method != methodDiscover
			if isRefused {
				http.Error(w, strings.ReplaceAll(body, "ID", string(m.ID)), http.StatusBadRequest)
			}
			return isRefused
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { old.ServeHTTP(noSessionID{w}, r) })
	}
	withoutID := refusing(`{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Unsupported protocol version: 2026-07-28"},"id":null}`)
	rust := refusing("Bad Request: Unsupported MCP-Protocol-Version: 2026-07-28")
	csharp := refusing(`{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: The MCP-Protocol-Version header value '2026-07-28' is not supported."},"id":""}`)
	named := refusing(`{"jsonrpc":"2.0","error":{"code":-32600,"message":"unsupported MCP-Protocol-Version"},"id":ID}`)
	sessions := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
	withID := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body := peekBody(r); r.Header.Get(sessionHeader) == "" && !strings.Contains(body, methodDiscover) && !strings.Contains(body, methodInitialize) {
			http.Error(w, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}`, http.StatusBadRequest)
			return
		}
		sessions.ServeHTTP(w, r)
	})
	stateless := streamableHandler(t, newToolServer(func(s *sdk.Server) {
		addRawTool(s, "t", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
	}), flavours["stateless sse"])
	modern := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if version := r.Header.Get("Mcp-Protocol-Version"); version == transport.StatelessVersion {
			stateless.ServeHTTP(w, r)
			return
		}
		var m message
		_ = json.Unmarshal([]byte(peekBody(r)), &m)
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"unsupported version","data":{"supported":["2026-07-28"]}}}`, m.ID)
	})
	stateful := streamableHandler(t, newToolServer(func(s *sdk.Server) {
		addRawTool(s, "t", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
	}), flavours["stateful sse"])
	for name, c := range map[string]struct {
		before, after http.Handler
		want          string
	}{
		"newer": {withoutID, modern, transport.StatelessVersion}, "older": {modern, withoutID, "2025-11-25"},
		"older, rmcp": {modern, rust, "2025-11-25"}, "older, C#": {modern, csharp, "2025-11-25"}, "older, with the id": {modern, named, "2025-11-25"},
		"older, go-sdk": {stateless, stateful, "2025-11-25"}, "with sessions": {withoutID, withID, "2025-11-25"},
	} {
		t.Run(name, func(t *testing.T) {
			var replaced atomic.Bool
			client := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if replaced.Load() {
					c.after.ServeHTTP(w, r)
				} else {
					c.before.ServeHTTP(w, r)
				}
			})).URL})
			client.Tools(t.Context())
			replaced.Store(true)
			_, err := client.Call(t.Context(), Call{Tool: "t"})
			if s := client.serverByName("a").pool.CurrentSession(); err != nil || s.Protocol() != c.want {
				t.Errorf("got the error %v and the version %s, want success with %s", err, s.Protocol(), c.want)
			}
		})
	}
}

// A server that was busy when it was asked server/discover may have the newest version all the same: the next handshake
// asks it again. In between it is used with an earlier one.
func TestNegotiatorAsksDiscoverAgainAfterItWasBusy(t *testing.T) {
	stateless := streamableHandler(t, newToolServer(func(s *sdk.Server) {
		addRawTool(s, "t", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
	}), flavours["stateless sse"])
	stateful := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
	for _, status := range []int{http.StatusTooManyRequests, http.StatusBadGateway} {
		var busy, forgets atomic.Bool
		busy.Store(true)
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch isNewest := r.Header.Get("Mcp-Protocol-Version") == transport.StatelessVersion; {
			case isNewest && busy.CompareAndSwap(true, false):
				w.WriteHeader(status)
			case isNewest:
				stateless.ServeHTTP(w, r)
			case strings.Contains(peekBody(r), methodCall) && forgets.CompareAndSwap(true, false):
				w.WriteHeader(http.StatusNotFound)
			default:
				stateful.ServeHTTP(w, r)
			}
		})).URL})
		for _, want := range []string{"2025-11-25", transport.StatelessVersion} {
			res, err := c.Call(t.Context(), Call{Tool: "t"})
			mustResult(t, res, err)
			if got := c.serverByName("a").pool.CurrentSession().Protocol(); got != want {
				t.Errorf("%d: got the version %s, want %s", status, got, want)
			}
			forgets.Store(true)
		}
	}
}

// noSessionID leaves out the session id of a reply.
type noSessionID struct{ http.ResponseWriter }

func (w noSessionID) Write(data []byte) (int, error) {
	w.Header().Del(sessionHeader)
	return w.ResponseWriter.Write(data)
}

// A server of before 2026-07-28 may refuse server/discover and then end, since no other request may come before
// initialize: the next connection begins with that.
func TestNegotiatorAsksAServerThatEndsAfterDiscover(t *testing.T) {
	for _, reads := range []bool{false, true} { // whether the server still reads initialize
		c := newPipedClient(t, Options{}, config.Server{}, func(conn net.Conn) {
			in := bufio.NewReader(conn)
			first, err := in.ReadBytes('\n')
			var m message
			if err != nil || json.Unmarshal(first, &m) != nil {
				return
			}
			if m.Method == methodDiscover {
				fmt.Fprintf(conn, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32600,"message":"initialize first"}}`+"\n", m.ID)
				if reads {
					_, _ = in.ReadBytes('\n')
				}
				return
			}
			scriptedPeer(nil)(again{conn, io.MultiReader(bytes.NewReader(first), in)})
		})
		if st := c.Servers()[0]; st.State != Connected || st.Protocol != "2025-11-25" {
			t.Errorf("reads initialize %t: got the status %+v, want it connected with 2025-11-25", reads, st)
		}
	}
}

// again is a connection whose beginning is read once more.
type again struct {
	net.Conn
	in io.Reader
}

func (a again) Read(p []byte) (int, error) { return a.in.Read(p) }

// The state of a server says what is wrong with its answer to initialize.
func TestUnusableHandshakeSaysWhy(t *testing.T) {
	for result, want := range map[string]string{
		`{"protocolVersion":"2024-10-07","capabilities":{}}`:             `it has the protocol version "2024-10-07", which answerd does not support`,
		`{"protocolVersion":"2025-11-25","capabilities":{"tools":true}}`: `its answer is not MCP: "capabilities.tools" in it has the wrong type`,
	} {
		s := &scriptedServer{before: answersMethod(methodInitialize, result)}
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		c.Tools(t.Context())
		if got := c.Servers()[0].Reason; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
