package mcp

import (
	"context"
	"encoding/json"
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
	"answerd/internal/mcp/transport/transporttest"
)

// serveStandaloneStream returns a server of before 2026-07-28 that asks only on its standalone stream:
// its tool "ask" says what it was answered, "slow" waits for its end. gets receives
// each GET once it is open, slow each call of that tool.
func serveStandaloneStream(t testing.TB, gets, slow chan<- string) *httpServer {
	t.Helper()
	s := newToolServer(func(s *sdk.Server) {
		addRawTool(s, "ask", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			// The context says which call it is; without it the SDK sends on the standing stream.
			res, err := r.Session.Elicit(t.Context(), &sdk.ElicitParams{
				Message: "How many?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer","default":3}}}`),
			})
			if err != nil {
				return nil, err
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(res.Action, " ", res.Content["n"])}}}, nil
		})
		addRawTool(s, "slow", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			slow <- "begun"
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	h := streamableHandler(t, s, nil)
	return serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w = &flushNotifier{ResponseWriter: w, onFlush: func() { gets <- r.Header.Get(sessionHeader) }}
		}
		h.ServeHTTP(w, r)
	}))
}

// flushNotifier calls onFlush when a reply has begun.
type flushNotifier struct {
	http.ResponseWriter
	onFlush func()
	once    sync.Once
}

func (o *flushNotifier) Flush() {
	o.ResponseWriter.(http.Flusher).Flush()
	o.once.Do(o.onFlush)
}

// acceptDefaults accepts every form and leaves its fields to their defaults (SEP-1034).
func acceptDefaults(context.Context, Elicitation) (ElicitationResult, error) {
	return ElicitationResult{Action: Accept, Content: json.RawMessage(`{}`)}, nil
}

// S0.6: a server that asks beside all calls is answered by the only one there is, with
// the defaults of its form; where two are under way, neither is shown the question.
func TestElicitationOnTheStandaloneStreamGoesToTheOnlyCall(t *testing.T) {
	t.Parallel()
	gets, slow := make(chan string, 8), make(chan string, 8)
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveStandaloneStream(t, gets, slow).URL, StandaloneStream: new(true)})
	c.Tools(t.Context())
	<-gets
	res, err := c.Call(t.Context(), Call{Tool: "ask", Elicit: acceptDefaults})
	if got := mustResult(t, res, err).Text(); got != "accept 3" {
		t.Errorf(`alone: %s, want "accept 3"`, got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = c.Call(ctx, Call{Tool: "slow", Elicit: acceptDefaults})
	}()

	<-slow
	res, err = c.Call(t.Context(), Call{Tool: "ask", Elicit: acceptDefaults})
	if got := mustResult(t, res, err).Text(); got != "decline <nil>" {
		t.Errorf(`one of two: %s, want "decline <nil>"`, got)
	}
	cancel()
	<-over

	// The server may continue the call that was given up. On a new session it cannot
	// ask about it.
	res, err = c.Call(t.Context(), Call{Tool: "ask", Elicit: acceptDefaults})
	if got := mustResult(t, res, err).Text(); got != "accept 3" {
		t.Errorf(`after one was given up: %s, want "accept 3"`, got)
	}
}

// A server that asks on the standalone stream may also withdraw its question there.
func TestElicitationOnTheStandaloneStreamIsWithdrawn(t *testing.T) {
	t.Parallel()
	asked, withdrawn := make(chan struct{}), make(chan struct{})
	s := newToolServer(func(s *sdk.Server) {
		addRawTool(s, "ask", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			question, withdraw := context.WithCancel(t.Context()) // without the call, so it is sent on the standalone stream
			go func() {
				<-asked
				withdraw()
			}()
			_, _ = r.Session.Elicit(question, &sdk.ElicitParams{Message: "How many?", RequestedSchema: json.RawMessage(`{"type":"object"}`)})
			select {
			case <-withdrawn:
			case <-ctx.Done():
			}
			return &sdk.CallToolResult{}, ctx.Err()
		})
	})
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, streamableHandler(t, s, nil)).URL, StandaloneStream: new(true)})
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	_, err := c.Call(ctx, Call{Tool: "ask", Elicit: func(ctx context.Context, _ Elicitation) (ElicitationResult, error) {
		close(asked)
		<-ctx.Done()
		close(withdrawn)
		return ElicitationResult{Action: Cancel}, nil
	}})
	if err != nil {
		t.Errorf("got %v, want the question to be withdrawn and a result", err)
	}
}

// A session in which messages can no longer be attributed is replaced. The calls in it continue, and may still ask the
// user.
func TestCallInAReplacedSessionMayStillAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{})
		s := newToolServer(func(s *sdk.Server) {
			addRawTool(s, "hang", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				close(begun)
				<-ctx.Done()
				return nil, ctx.Err()
			})
			addRawTool(s, "ask", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				var actions []string
				for range 2 {
					answer, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "Sure?", RequestedSchema: json.RawMessage(`{"type":"object"}`)})
					if err != nil {
						return nil, err
					}
					actions = append(actions, answer.Action)
				}
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: strings.Join(actions, " ")}}}, nil
			})
		})
		network := transporttest.NewNetwork()
		server := &http.Server{Handler: streamableHandler(t, s, nil)}
		go func() { _ = server.Serve(network) }()
		t.Cleanup(func() { _ = server.Close() })
		newTransport := func(http.RoundTripper) http.RoundTripper { return &http.Transport{DialContext: network.Dial} }
		c := newClient(t, Options{Transport: newTransport}, config.Server{Name: "a", URL: "http://localhost", StandaloneStream: new(true)})

		replace := sync.OnceFunc(func() {
			cancelBegunCall(t, c, "hang", begun)
			res, err := c.Call(t.Context(), Call{Tool: "echo"}) // in a new session
			mustResult(t, res, err)
			<-time.After(time.Hour) // fake time
		})
		res, err := c.Call(t.Context(), Call{Tool: "ask", Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
			replace()
			return ElicitationResult{Action: Accept, Content: json.RawMessage(`{}`)}, nil
		}})
		if got := mustResult(t, res, err).Text(); got != "accept accept" {
			t.Errorf(`got %q, want "accept accept"`, got)
		}
		_ = c.Close()
	})
}

// A standalone stream that breaks is opened again in the same session. If the server no longer knows the session,
// the client opens a new one without waiting for a call.
func TestStandaloneStreamReconnects(t *testing.T) {
	t.Parallel()
	gets := make(chan string, 8)
	w := serveStandaloneStream(t, gets, nil)
	c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL, StandaloneStream: new(true)})
	c.Tools(t.Context())
	first := <-gets
	w.CloseClientConnections()
	if again := <-gets; again != first {
		t.Errorf("session %q, then %q, want %q", first, again, first)
	}
	res, err := c.Call(t.Context(), Call{Tool: "ask", Elicit: acceptDefaults})
	if got := mustResult(t, res, err).Text(); got != "accept 3" {
		t.Errorf(`must %q, want "accept 3"`, got)
	}
}

// S3.2, S4.5: 404 to the GET of a session that had a stream says that it is gone.
func TestStandaloneStreamReplacesALostSession(t *testing.T) {
	t.Parallel()
	shakes := make(chan string, 8)

	gets := map[string]int{}
	var mu sync.Mutex // protects gets
	s := &scriptedServer{}
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		id := r.Header.Get(sessionHeader)
		if r.Method == http.MethodPost && id == "" {
			shakes <- id
		}
		if r.Method != http.MethodGet {
			return false
		}
		mu.Lock()
		gets[id]++
		n := gets[id]
		mu.Unlock()
		switch {
		case id == "session-1" && n > 1:
			http.Error(w, "who?", http.StatusNotFound)
		case id == "session-1":
			w.Header().Set("Content-Type", eventStream)
			fmt.Fprint(w, "retry: 1\n\n") // and the stream ends
		default:
			w.Header().Set("Content-Type", eventStream)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
		return true
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, StandaloneStream: new(true)})
	c.Tools(t.Context())

	for range 3 { // server/discover, which it isn't asked again, and initialize twice
		<-shakes
	}
}

// A server that has no standalone stream, or does not answer the GET, still serves calls.
func TestCallsWorkWithoutStandaloneStream(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"405":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMethodNotAllowed) },
		"404":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"500":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"hang": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"junk": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", eventStream)
			fmt.Fprint(w, "data: {]\n\n")
		},
		"long": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", eventStream)
			for r.Context().Err() == nil {
				if _, err := fmt.Fprint(w, strings.Repeat(":", 1<<20)); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var shakes atomic.Int64
			s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
			s.before = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet {
					return false
				}
				shakes.Add(1)
				answer(w, r)
				return true
			}

			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, StandaloneStream: new(true)})
			for range 3 {
				res, err := c.Call(t.Context(), Call{Tool: "t"})
				mustResult(t, res, err)
			}

			if shakes.Load() == 0 || s.initializes.Load() != 1 {
				t.Errorf("%d GETs, %d handshakes, want at least 1 and 1", shakes.Load(), s.initializes.Load())
			}
		})
	}
}
