package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// newsURI is the URI of a resource that changes.
const newsURI = "docs:///news"

// newsServer is a server with a resource that can be subscribed to and has editions.
type newsServer struct {
	*sdk.Server
	subscribed chan string
	reads      atomic.Int64
	edition    atomic.Int64
}

// newNewsServer returns a server whose resource is in edition 0.
func newNewsServer() *newsServer {
	p := &newsServer{subscribed: make(chan string, 1000)}
	p.Server = sdk.NewServer(&sdk.Implementation{Name: "paper", Version: "1"}, &sdk.ServerOptions{
		SubscribeHandler: func(_ context.Context, r *sdk.SubscribeRequest) error {
			p.subscribed <- r.Params.URI
			return nil
		},
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	p.AddResource(&sdk.Resource{URI: newsURI, Name: "news"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		p.reads.Add(1)
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: newsURI, Text: fmt.Sprint("edition ", p.edition.Load())}}}, nil
	})
	return p
}

// readNews returns the result of the read tool, and whether the server was asked for it.
func (p *newsServer) readNews(t *testing.T, c *Client, context map[string]string) (text string, asked bool) {
	t.Helper()
	before := p.reads.Load()
	res, err := c.Call(t.Context(), Call{Tool: "read_resource", Args: json.RawMessage(`{"uri":"` + newsURI + `"}`), Context: context})
	return mustResult(t, res, err).Text(), p.reads.Load() != before
}

// readUntil reads until the server is asked (or, if asked is false, is not), because nothing else
// shows that a notification has arrived, or that all connections are cut.
func (p *newsServer) readUntil(t *testing.T, c *Client, asked bool) string {
	t.Helper()
	for {
		before := p.reads.Load()
		res, err := c.Call(t.Context(), Call{Tool: "read_resource", Args: json.RawMessage(`{"uri":"` + newsURI + `"}`)})
		if e, ok := errors.AsType[*CallError](err); ok && e.Kind == Unavailable {
			continue
		}
		if text := mustResult(t, res, err).Text(); asked == (p.reads.Load() != before) {
			return text
		}
	}
}

// Resources that are offered are subscribed to. A result is cached until the server notifies
// us of a change, and only while a notification would reach us: not after its stream broke.
// When the stream is back, and in a new session, so is the subscription.
func TestResourceIsCachedUntilItChanges(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]struct{ protocol, flavour string }{
		"http 2025-11-25":      {"2025-11-25", "stateful sse"},
		"http 2025-11-25 json": {"2025-11-25", "stateful json"},
		"http 2026-07-28":      {"2026-07-28", "stateless sse"},
		"websocket 2025-11-25": {"2025-11-25", ""},
		"websocket 2026-07-28": {"2026-07-28", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newNewsServer()
			cfg := config.Server{Name: "a", ProtocolVersion: way.protocol, Resources: []string{"docs:*"}}
			var cut func()
			if way.flavour != "" {
				w := serveHTTP(t, streamableHandler(t, p.Server, flavours[way.flavour]))
				cfg.URL, cut = w.URL, w.CloseClientConnections
			} else {
				ws := newWSSDK(t, p.Server)
				s := wsServerConfig(t, ws)
				cfg.Type, cfg.URL, cut = s.Type, s.URL, ws.drop
			}

			c := newClient(t, Options{}, cfg)
			c.Tools(t.Context())

			for range 2 {
				if uri := <-p.subscribed; uri != newsURI {
					t.Errorf("got a subscription to %s, want %s", uri, newsURI)
				}
				p.readUntil(t, c, false)
				if _, asked := p.readNews(t, c, map[string]string{"customer": "1"}); !asked {
					t.Error("got a cached result that another customer had read, want a read")
				}
				n := p.edition.Add(1)
				if err := p.ResourceUpdated(t.Context(), &sdk.ResourceUpdatedNotificationParams{URI: newsURI}); err != nil {
					t.Errorf("got %v from ResourceUpdated", err)
				}
				if text := p.readUntil(t, c, true); !strings.Contains(text, fmt.Sprint("edition ", n)) {
					t.Errorf("got %s, want edition %d", text, n)
				}
				p.readUntil(t, c, false)
				cut()

				// Between the cut and the next subscription a change would be missed.
				if way.flavour == "stateful sse" || way.flavour == "stateful json" {
					p.readUntil(t, c, true)
					for ss := range p.Sessions() { // the subscriptions outlive a stream, but not a session
						_ = ss.Close()
					}
				}
			}
		})
	}
}

// A result with a ttlMs is cached for that time, even without a subscription.
func TestResourceIsCachedForItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newNewsServer()
		p.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
			return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
				res, err := next(ctx, method, r)
				if read, ok := res.(*sdk.ReadResourceResult); ok {
					read.TTLMs = 30_000
				}
				return res, err
			}
		})

		h := streamableHandler(t, p.Server, &sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true})
		c := newClient(t, Options{Transport: inProcessTransport(h)}, config.Server{Name: "a", URL: "http://localhost", Resources: []string{"docs:*"}})
		c.Tools(t.Context())

		for i, want := range []bool{true, false, false, true, false} {
			if _, asked := p.readNews(t, c, nil); asked != want {
				t.Errorf("read %d: got a read at the server %t, want %t", i, asked, want)
			}
			passTime(11 * time.Second)
		}
		_ = c.Close()
	})
}

// A read that began before the server confirmed the subscription may be out of date without a
// notification. It is not cached, or its reader would get it forever.
func TestReadThatASubscriptionOvertookIsNotCached(t *testing.T) {
	t.Parallel()
	p := newNewsServer()
	p.AddResource(&sdk.Resource{URI: newsURI + "/old", Name: "old"}, nil)

	subscribing, confirm := make(chan bool, 2), make(chan bool)
	reading, answer := make(chan bool), make(chan bool)
	var once sync.Once
	p.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, r)
			switch method {
			case "resources/subscribe":
				subscribing <- true
				receive(t, confirm)
			case "resources/read":
				once.Do(func() {
					close(reading)
					receive(t, answer)
				})
			}
			return res, err
		}
	})

	c := newClient(t, Options{}, func() config.Server {
		s := wsServerConfig(t, newWSSDK(t, p.Server))
		return config.Server{Name: "a", Type: s.Type, URL: s.URL, ProtocolVersion: "2025-11-25", Resources: []string{"docs:*"}}
	}())

	c.Tools(t.Context())
	<-subscribing
	var read sync.WaitGroup
	read.Go(func() { p.readNews(t, c, nil) })
	<-reading
	p.edition.Add(1) // before the subscription, so nobody is notified
	confirm <- true
	<-subscribing // to the second resource: the client has the confirmation of the first
	close(answer)
	read.Wait()
	close(confirm)
	if text, _ := p.readNews(t, c, nil); !strings.Contains(text, "edition 1") {
		t.Errorf("got %s, want edition 1", text)
	}
}

// A result from before the subscription is cached for its ttlMs and not for longer: of a change in
// between there was no notification.
func TestSubscriptionDoesNotExtendAnEarlierTTL(t *testing.T) {
	t.Parallel()
	p := newNewsServer()
	confirm, acknowledged := make(chan struct{}), make(chan struct{}, 100)

	p.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, r)
			if read, ok := res.(*sdk.ReadResourceResult); ok && p.edition.Load() == 0 {
				read.TTLMs = 1000
			}
			return res, err
		}
	})

	h := streamableHandler(t, p.Server, flavours["stateless sse"])
	w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(peekBody(r), methodListen) {
			receive(t, confirm)
			w = &flushNotifier{ResponseWriter: w, onFlush: func() { acknowledged <- struct{}{} }}
		}
		h.ServeHTTP(w, r)
	}))

	c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL, ProtocolVersion: "2026-07-28", Resources: []string{"docs:*"}})
	c.Tools(t.Context())
	p.readNews(t, c, nil)
	p.edition.Add(1) // before the subscription, so nobody is notified
	close(confirm)
	<-acknowledged

	for end := time.Now().Add(5 * time.Second); ; {
		text, _ := p.readNews(t, c, nil)
		if strings.Contains(text, "edition 1") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("got %s after 5 s, want edition 1 after the ttlMs of 1 s", text)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// What a server answers after it has asked the person behind a call is for that person: the next
// reader is asked too.
func TestResourceThatDependsOnAnAnswerIsNotCached(t *testing.T) {
	t.Parallel()
	p := newNewsServer()
	p.AddResource(&sdk.Resource{URI: newsURI, Name: "news"}, func(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		if r.Params.InputResponses["q"] == nil {
			return &sdk.ReadResourceResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{Mode: "form", Message: "Who reads?",
				RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)}}}, nil
		}
		text, err := json.Marshal(r.Params.InputResponses["q"])
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: newsURI, Text: string(text)}}}, err
	})

	p.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, r)
			if read, ok := res.(*sdk.ReadResourceResult); ok {
				read.TTLMs = 60_000
			}
			return res, err
		}
	})

	w := serveHTTP(t, streamableHandler(t, p.Server, flavours["stateless json"]))
	c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL, ProtocolVersion: "2026-07-28", Resources: []string{"docs:*"}})
	c.Tools(t.Context())

	for _, name := range []string{"Ada", "Grace", "Alan"} {
		res, err := c.Call(t.Context(), Call{Tool: "read_resource", Args: json.RawMessage(`{"uri":"` + newsURI + `"}`),
			Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
				return ElicitationResult{Action: Accept, Content: json.RawMessage(`{"name":"` + name + `"}`)}, nil
			}})
		if text := mustResult(t, res, err).Text(); !strings.Contains(text, name) {
			t.Errorf("got %s, want the answer of %s", text, name)
		}
	}
}
