package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const news = "docs:///news"

// paper is a server whose resource news can be subscribed to.
type paper struct {
	*sdk.Server
	subscribed chan string
	reads      atomic.Int64
	edition    atomic.Int64
}

func newPaper() *paper {
	p := &paper{subscribed: make(chan string, 1000)}
	p.Server = sdk.NewServer(&sdk.Implementation{Name: "paper", Version: "1"}, &sdk.ServerOptions{
		SubscribeHandler: func(_ context.Context, r *sdk.SubscribeRequest) error {
			p.subscribed <- r.Params.URI
			return nil
		},
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	p.AddResource(&sdk.Resource{URI: news, Name: "news"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		p.reads.Add(1)
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: news, Text: fmt.Sprint("edition ", p.edition.Load())}}}, nil
	})
	return p
}

// read is what a call of the read tool gives, and whether the server was asked.
func (p *paper) read(t *testing.T, c *Client, context map[string]string) (text string, asked bool) {
	t.Helper()
	before := p.reads.Load()
	res, err := c.Call(t.Context(), Call{Tool: "read_resource", Args: json.RawMessage(`{"uri":"` + news + `"}`), Context: context})
	return must(t, res, err).Text(), p.reads.Load() != before
}

// until reads until the server is asked, or is not. What the server says takes its time
// to arrive, and nothing else tells that it has; nor that all connections are cut.
func (p *paper) until(t *testing.T, c *Client, asked bool) string {
	t.Helper()
	for {
		before := p.reads.Load()
		res, err := c.Call(t.Context(), Call{Tool: "read_resource", Args: json.RawMessage(`{"uri":"` + news + `"}`)})
		if e, ok := errors.AsType[*CallError](err); ok && e.Kind == Unavailable {
			continue
		}
		if text := must(t, res, err).Text(); asked == (p.reads.Load() != before) {
			return text
		}
	}
}

// S4.7: resources that are offered are subscribed to. What was read of one is kept until
// the server says that it changed, and only while that would reach us: not when the
// stream breaks that it would come on. Then, and in a new session, the subscription
// comes back.
func TestWhatWasReadIsKeptUntilItChanges(t *testing.T) {
	for name, way := range map[string]struct{ protocol, flavour string }{
		"http 2025-11-25":      {"2025-11-25", "stateful sse"},
		"http 2025-11-25 json": {"2025-11-25", "stateful json"},
		"http 2026-07-28":      {"2026-07-28", "stateless sse"},
		"websocket 2025-11-25": {"2025-11-25", ""},
		"websocket 2026-07-28": {"2026-07-28", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPaper()
			cfg := config.Server{Name: "a", ProtocolVersion: way.protocol, Resources: []string{"docs:*"}}
			var cut func()
			if way.flavour != "" {
				w := serve(t, handler(p.Server, flavours[way.flavour]))
				cfg.URL, cut = w.URL, w.CloseClientConnections
			} else {
				ws := newWSSDK(t, p.Server)
				s := wsServer(t, ws)
				cfg.Type, cfg.URL, cut = s.Type, s.URL, ws.drop
			}
			c := open(t, Options{}, cfg)
			c.Tools(t.Context())
			for range 2 {
				if uri := <-p.subscribed; uri != news {
					t.Errorf("subscribed to %s", uri)
				}
				p.until(t, c, false)
				if _, asked := p.read(t, c, map[string]string{"customer": "1"}); !asked {
					t.Error("one customer was told what another one read")
				}
				n := p.edition.Add(1)
				if err := p.ResourceUpdated(t.Context(), &sdk.ResourceUpdatedNotificationParams{URI: news}); err != nil {
					t.Error(err)
				}
				if text := p.until(t, c, true); !strings.Contains(text, fmt.Sprint("edition ", n)) {
					t.Errorf("read %s, not edition %d", text, n)
				}
				p.until(t, c, false)
				cut()
				// Between being cut and being heard again nobody can know what is new.
				if way.flavour == "stateful sse" || way.flavour == "stateful json" {
					p.until(t, c, true)
					for ss := range p.Sessions() { // the subscriptions outlive a stream, but not a session
						_ = ss.Close()
					}
				}
			}
		})
	}
}

// S4.7, S3.8: what has a ttlMs is kept for that time, also without a subscription.
func TestWhatWasReadIsKeptForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaper()
		p.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
			return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
				res, err := next(ctx, method, r)
				if read, ok := res.(*sdk.ReadResourceResult); ok {
					read.TTLMs = 30_000
				}
				return res, err
			}
		})
		h := handler(p.Server, &sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true})
		c := open(t, Options{Transport: without(h)}, config.Server{Name: "a", URL: "http://localhost", Resources: []string{"docs:*"}})
		c.Tools(t.Context())
		for i, want := range []bool{true, false, false, true, false} {
			if _, asked := p.read(t, c, nil); asked != want {
				t.Errorf("read %d: asked %t", i, asked)
			}
			after(11 * time.Second)
		}
		_ = c.Close()
	})
}
