package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"answerd/internal/agent"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// house is an agent between a scripted model and a real MCP server.
type house struct {
	*agent.Agent
	model *llmtest.Endpoint
	tools *toolServer
}

// toolServer is a real MCP server whose tools tell the test what they do.
type toolServer struct {
	url      string
	entered  chan string   // a tool was entered
	left     chan struct{} // the tool "wait" saw its context end
	together chan struct{} // the tool "meet" leaves when it is closed
}

type sum struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
}

func newToolServer(t *testing.T) *toolServer {
	s := &toolServer{entered: make(chan string, 64), left: make(chan struct{}, 64), together: make(chan struct{})}
	server := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "add", Description: "adds two numbers"}, func(_ context.Context, _ *sdk.CallToolRequest, in sum) (*sdk.CallToolResult, map[string]float64, error) {
		return nil, map[string]float64{"sum": in.A + in.B}, nil
	})
	type text struct {
		Text string `json:"text"`
	}
	sdk.AddTool(server, &sdk.Tool{Name: "echo"}, func(_ context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: in.Text}}}, nil, nil
	})
	sdk.AddTool(server, &sdk.Tool{Name: "fail"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return nil, nil, fmt.Errorf("the tool is out of order")
	})
	sdk.AddTool(server, &sdk.Tool{Name: "wait"}, func(ctx context.Context, _ *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		s.entered <- "wait"
		<-ctx.Done()
		s.left <- struct{}{}
		return nil, nil, ctx.Err()
	})
	sdk.AddTool(server, &sdk.Tool{Name: "meet"}, func(ctx context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, any, error) {
		s.entered <- in.Text
		select {
		case <-s.together:
		case <-ctx.Done():
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: in.Text}}}, nil, nil
	})
	sdk.AddTool(server, &sdk.Tool{Name: "steps"}, func(ctx context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		for i := range 3 {
			err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1), Total: 3})
			if err != nil {
				return nil, nil, err
			}
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "done"}}}, nil, nil
	})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

// build starts the house; set may change the options.
func build(t *testing.T, script llmtest.Script, set func(*agent.Options)) *house {
	t.Helper()
	h := &house{model: llmtest.New(t, script), tools: newToolServer(t)}
	server, err := mcp.SingleServer(h.tools.url)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := mcp.New([]mcp.ServerConfig{server}, mcp.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tools.Close() })
	web := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(web.CloseIdleConnections)
	o := agent.Options{
		Model: llm.NewOpenAI(llm.OpenAIConfig{BaseURL: h.model.URL, Transport: web}),
		Tools: tools, Log: event.NewMemory(event.MemoryOptions{}),
		DefaultModel: "scripted", Grace: time.Hour,
	}
	if set != nil {
		set(&o)
	}
	if h.Agent, err = agent.New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		over, stop := context.WithCancel(context.Background())
		stop()
		h.Drain(over)
	})
	return h
}

// start begins a run of the anonymous caller.
func (h *house) start(t *testing.T, r agent.Request) event.Run {
	t.Helper()
	if r.Question == "" {
		r.Question = "What is it?"
	}
	run, err := h.Start(t.Context(), auth.Identity{}, r)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// events reads a run to its end.
func (h *house) events(t *testing.T, id string) []event.Event {
	t.Helper()
	return h.until(t, id, func(event.Event) bool { return false })
}

// until reads a run until an event pleases, or to its end.
func (h *house) until(t *testing.T, id string, pleases func(event.Event) bool) []event.Event {
	t.Helper()
	var all []event.Event
	for {
		page, err := h.Log.After(id, int64(len(all)))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			all = append(all, e)
			if pleases(e) {
				return all
			}
		}
		if page.Ended {
			return all
		}
		if page.More != nil {
			select {
			case <-page.More:
			case <-t.Context().Done():
				t.Fatalf("the run stays at %s", names(all))
			}
		}
	}
}

func names(events []event.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, string(e.Body.Type()))
	}
	return strings.Join(out, " ")
}

func last[B event.Body](t *testing.T, events []event.Event) B {
	t.Helper()
	b, ok := events[len(events)-1].Body.(B)
	if !ok {
		t.Fatalf("the run ended with %s: %s", events[len(events)-1].Body.Type(), events[len(events)-1].JSON)
	}
	return b
}

func find[B event.Body](events []event.Event) []B {
	var out []B
	for _, e := range events {
		if b, ok := e.Body.(B); ok {
			out = append(out, b)
		}
	}
	return out
}

func texts(raw []json.RawMessage) string {
	var out []string
	for _, r := range raw {
		out = append(out, string(r))
	}
	return strings.Join(out, " ")
}

// gate lets a script wait for the test, and the test for the script.
type gate struct {
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

// hold is an answer that says something and then nothing until the gate opens or
// the caller is gone.
func (g *gate) hold(gone chan<- struct{}) llmtest.Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		llmtest.Stream(w, "", map[string]any{"content": "Let me "})
		g.once.Do(func() { close(g.reached) })
		select {
		case <-g.open:
			fmt.Fprint(w, `data: {"choices":[{"delta":{"content":"see."},"finish_reason":"stop"}]}`+"\n\n")
		case <-r.Context().Done():
			if gone != nil {
				gone <- struct{}{}
			}
		}
	}
}
