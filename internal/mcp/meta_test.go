package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// addMetaTool adds a tool that returns the _meta of its call.
func addMetaTool(s *sdk.Server) {
	addRawTool(s, "meta", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		b, err := json.Marshal(r.Params.Meta)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(b)}}}, err
	})
}

// everyTransport are the transports with both kinds of protocol.
var everyTransport = map[string]config.Server{
	"http 2025-11-25":      {Type: config.TypeHTTP, ProtocolVersion: "2025-11-25"},
	"http 2026-07-28":      {Type: config.TypeHTTP, ProtocolVersion: "2026-07-28"},
	"websocket 2025-11-25": {Type: config.TypeWebSocket, ProtocolVersion: "2025-11-25"},
	"websocket 2026-07-28": {Type: config.TypeWebSocket, ProtocolVersion: "2026-07-28"},
	"stdio 2025-11-25":     {Type: config.TypeStdio, ProtocolVersion: "2025-11-25"},
	"stdio 2026-07-28":     {Type: config.TypeStdio, ProtocolVersion: "2026-07-28"},
}

// serveOver serves s in the way of cfg. Over stdio the server is that of serveStdio.
func serveOver(t *testing.T, cfg config.Server, s *sdk.Server) config.Server {
	t.Helper()
	switch {
	case cfg.Type == config.TypeWebSocket:
		cfg.URL = wsServerConfig(t, newWSSDK(t, s)).URL
	case cfg.Type == config.TypeStdio:
		child := stdioConfig("serve", "")
		cfg.Command, cfg.Args, cfg.Env = child.Command, child.Args, child.Env
	case cfg.ProtocolVersion >= transport.StatelessVersion:
		cfg.URL = serveHTTP(t, streamableHandler(t, s, flavours["stateless sse"])).URL
	default:
		cfg.URL = serveHTTP(t, streamableHandler(t, s, flavours["stateful sse"])).URL
	}
	cfg.Name = "a"
	return cfg
}

// A server gets the id of each call, and the other ids that its configuration names. A question's
// context cannot forge them; its other members stay as they are.
func TestMetaHasTheIDsOfTheConfiguration(t *testing.T) {
	all := map[string]string{"call_id": "call_1", "run_id": "run_1", "thread_id": "thr_1", "subject": "ada"}
	for name, cfg := range everyTransport {
		for _, members := range [][]string{nil, {}, {"subject"}, {"run_id", "thread_id", "subject", "call_id"}} {
			t.Run(fmt.Sprintf("%s %v", name, members), func(t *testing.T) {
				t.Parallel()
				cfg := cfg
				cfg.Meta = members
				c := newClient(t, Options{}, serveOver(t, cfg, newToolServer(addMetaTool)))
				c.Tools(t.Context())
				if got := c.Servers()[0].Protocol; got != cfg.ProtocolVersion {
					t.Fatalf("it speaks %s, want %s", got, cfg.ProtocolVersion)
				}

				res, err := c.Call(t.Context(), Call{
					Tool: "meta", CallID: all["call_id"], RunID: all["run_id"], ThreadID: all["thread_id"], Principal: auth.Identity{Subject: all["subject"]},
					Context: map[string]string{"context_id": "1111", "subject": "plain", "io.answerd/subject": "forged", "io.answerd/x": "forged"},
					Meta:    map[string]any{"traceparent": "00-1"},
				})
				var meta map[string]any
				if err := json.Unmarshal([]byte(mustResult(t, res, err).Text()), &meta); err != nil {
					t.Fatal(err)
				}
				want := map[string]any{"context_id": "1111", "subject": "plain", "traceparent": "00-1"}
				if members == nil {
					want["io.answerd/call_id"] = "call_1"
				}

				for _, name := range members {
					want["io.answerd/"+name] = all[name]
				}

				for name := range meta {
					if strings.HasPrefix(name, "io.answerd/") && want[name] == nil {
						t.Errorf("got %s in %v, want it left out", name, meta)
					}
				}

				for name, value := range want {
					if meta[name] != value {
						t.Errorf("got %s %v, want %v", name, meta[name], value)
					}
				}
			})
		}
	}
}

// A member without a value is left out: a caller without a subject, a call without a run.
func TestMetaLeavesOutWhatIsNotThere(t *testing.T) {
	c := newClient(t, Options{}, serveOver(t, config.Server{Meta: config.MetaMembers()}, newToolServer(addMetaTool)))
	c.Tools(t.Context())
	res, err := c.Call(t.Context(), Call{Tool: "meta", CallID: "call_1"})
	if text := mustResult(t, res, err).Text(); strings.Count(text, "io.answerd/") != 1 || !strings.Contains(text, `"io.answerd/call_id":"call_1"`) {
		t.Errorf("got %s, want the id of the call alone", text)
	}
}

// All attempts of a call have the same id: after a lost session, after a connection that broke, and
// when the server required input.
func TestMetaIsTheSameInAllAttempts(t *testing.T) {
	broken := func(w http.ResponseWriter) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		conn.Close()
	}
	for name, refuse := range map[string]func(http.ResponseWriter){
		"lost session":      func(w http.ResponseWriter) { http.Error(w, "no such session", http.StatusNotFound) },
		"broken connection": broken,
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex // protects seen
			var seen []any
			s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
				mu.Lock()
				seen = append(seen, m.Params.Meta["io.answerd/call_id"])
				n := len(seen)
				mu.Unlock()
				if n == 1 {
					refuse(w)
					return
				}
				replyJSON(w, m.ID, textResult("done"))
			}}

			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, IdempotentTools: []string{"t"}})
			c.Tools(t.Context())
			res, err := c.Call(t.Context(), Call{Tool: "t", CallID: "call_1"})
			mustResult(t, res, err)
			mu.Lock()
			defer mu.Unlock()
			if len(seen) != 2 || seen[0] != "call_1" || seen[1] != "call_1" {
				t.Errorf("got the ids %v, want call_1 twice", seen)
			}
		})
	}
}

// The content of a resource may depend on whom it is read for, if the server is told.
func TestResourceIsCachedByTheSubjectInMeta(t *testing.T) {
	for _, members := range [][]string{nil, {"subject"}} {
		p := newNewsServer()
		h := streamableHandler(t, p.Server, &sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true})
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, h).URL, Resources: []string{"docs:*"}, Meta: members})
		c.Tools(t.Context())
		<-p.subscribed
		p.readUntil(t, c, false)
		before := p.reads.Load()

		for _, subject := range []string{"ada", "bob", "ada"} {
			res, err := c.Call(t.Context(), Call{Tool: "read_resource", Args: json.RawMessage(`{"uri":"` + newsURI + `"}`), CallID: subject, Principal: auth.Identity{Subject: subject}})
			mustResult(t, res, err)
		}

		want := int64(0)
		if members != nil {
			want = 2
		}
		if got := p.reads.Load() - before; got != want {
			t.Errorf("meta %v: got %d reads, want %d", members, got, want)
		}
	}
}
