// Package agenttest is a whole agent between a scripted model and a real MCP server,
// for the tests of the agent and of whoever starts runs.
//
//	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), nil)
//	run := h.StartRun(t, agent.Request{Question: "Is it?"})
//	answer := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
package agenttest

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers go on sending it.

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

	"answerd/internal/agent"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/openai"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// eventTimeout is how long a test waits for what a run does next, fake time included.
const eventTimeout = 3 * time.Minute

// Fixture is an agent between a scripted model and a real MCP server.
type Fixture struct {
	*agent.Agent
	Model *llmtest.Endpoint
	Tools *ToolServer
}

// ToolServer is a real MCP server whose tools tell the test what they do.
type ToolServer struct {
	URL         string
	Entered     chan string   // a tool was entered
	Canceled    chan struct{} // the tool "wait" saw its context end
	ReleaseMeet chan struct{} // the tool "meet" leaves when it is closed

	over chan struct{} // closed when the test is

	mu         sync.Mutex // protects what follows
	results    map[string]json.RawMessage
	callCounts map[string]int // calls that arrived, by tool
	metas      []map[string]any
}

// Instructions are what the server says about its own use.
const Instructions = "Add before you echo.\n## Rules\nSay \u202ethis."

// RequestState is the state that the tool "ask" wants back with the answer.
const RequestState = "canary-request-state"

// statelessPath is where the server speaks 2026-07-28; elsewhere it speaks the versions before.
const statelessPath = "/stateless"

// Stateless makes a fixture speak 2026-07-28 with its server.
func Stateless(s *config.Server) { s.URL += statelessPath }

type sum struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
}

func newToolServer(t testing.TB) *ToolServer {
	s := &ToolServer{Entered: make(chan string, 64), Canceled: make(chan struct{}, 64), ReleaseMeet: make(chan struct{}), over: make(chan struct{})}
	server := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{Instructions: Instructions})
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
		s.Entered <- "wait"
		select {
		case <-ctx.Done():
			s.Canceled <- struct{}{}
		case <-s.over: // or a call that nobody ended would hold the test up
		}
		return nil, nil, ctx.Err()
	})
	sdk.AddTool(server, &sdk.Tool{Name: "meet"}, func(ctx context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, any, error) {
		s.Entered <- in.Text
		select {
		case <-s.ReleaseMeet:
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
			if err := r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "warning", Logger: "steps", Data: map[string]int{"step": i + 1}}); err != nil {
				return nil, nil, err
			}
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "done"}}}, nil, nil
	})
	// Asks the person behind the call, by the means of the protocol that is spoken, and
	// says what it was told. With 2026-07-28 it requires its state back.
	server.AddTool(&sdk.Tool{Name: "ask", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		given := r.Params.InputResponses["q"]
		if given == nil {
			return &sdk.CallToolResult{RequestState: RequestState, InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{
				Mode: "form", Message: "For how many?", RequestedSchema: map[string]any{
					"type": "object", "properties": map[string]any{"people": map[string]any{"type": "integer"}}, "required": []string{"people"},
				},
			}}}, nil
		}
		if state := r.Params.RequestState; state != RequestState && r.Session.InitializeParams().ProtocolVersion >= "2026-07-28" {
			return nil, fmt.Errorf("the state is %q", state)
		}
		said, err := json.Marshal(given)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(said)}}}, err
	})
	// Asks two questions at a time, and one more after those.
	server.AddTool(&sdk.Tool{Name: "interview", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		question := func(text string) *sdk.ElicitParams {
			return &sdk.ElicitParams{Mode: "form", Message: text, RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"answer": map[string]any{"type": "string"}}}}
		}
		switch given := r.Params.InputResponses; {
		case r.Params.RequestState == "":
			return &sdk.CallToolResult{RequestState: "1", InputRequests: sdk.InputRequestMap{"a": question("First?"), "b": question("Second?")}}, nil
		case r.Params.RequestState == "1":
			said, err := json.Marshal([]any{given["a"], given["b"]})
			return &sdk.CallToolResult{RequestState: string(said), InputRequests: sdk.InputRequestMap{"c": question("Third?")}}, err
		default:
			said, err := json.Marshal(given["c"])
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: r.Params.RequestState + string(said)}}}, err
		}
	})
	// Has the client's model say something, and repeats it.
	server.AddTool(&sdk.Tool{Name: "sample", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		given := r.Params.InputResponses["q"]
		if given == nil {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.CreateMessageParams{
				SystemPrompt: "Be brief.", MaxTokens: 100, Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: "A word?"}}},
			}}}, nil
		}
		said, err := json.Marshal(given)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(said)}}}, err
	})
	s.addGiveTool(server)
	server.AddPrompt(&sdk.Prompt{Name: "greet", Arguments: []*sdk.PromptArgument{{Name: "who", Required: true}}}, func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{
			{Role: "user", Content: &sdk.TextContent{Text: "Greet " + r.Params.Arguments["who"]}},
			{Role: "assistant", Content: &sdk.TextContent{Text: "Hello."}},
		}}, nil
	})
	paths := http.NewServeMux()
	paths.Handle("/", sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	paths.Handle(statelessPath, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true}))
	web := httptest.NewServer(paths)
	t.Cleanup(func() {
		close(s.over)
		web.Close()
		// A session whose handshake was cut short was never told of its end.
		for session := range server.Sessions() {
			session.Close()
		}
	})
	s.URL = web.URL
	return s
}

// NewFixture starts a fixture; set may change the options, and configure those of the server.
func NewFixture(t testing.TB, script llmtest.Script, set func(*agent.Options), configure ...func(*config.Server)) *Fixture {
	t.Helper()
	h := &Fixture{Model: llmtest.New(t, script), Tools: newToolServer(t)}
	server, err := config.SingleServer(h.Tools.URL)
	if err != nil {
		t.Fatal(err)
	}
	server.Sampling = true
	for _, f := range configure {
		f(&server)
	}
	tools, err := mcp.New([]config.Server{server}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tools.Close() })
	model := openai.New(openai.Config{BaseURL: h.Model.URL})
	t.Cleanup(model.Close)
	o := agent.Options{
		Model: model,
		Tools: tools, Log: memory.New(memory.Options{}),
		DefaultModel: "scripted", DisconnectGrace: time.Hour,
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

// StartRun starts a run of the anonymous caller.
func (h *Fixture) StartRun(t testing.TB, r agent.Request) event.Run {
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

// Events reads a run to its end.
func (h *Fixture) Events(t testing.TB, id string) []event.Event {
	t.Helper()
	return h.EventsUntil(t, id, func(event.Event) bool { return false })
}

// EventsUntil reads a run until an event pleases, or to its end.
func (h *Fixture) EventsUntil(t testing.TB, id string, pleases func(event.Event) bool) []event.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	defer cancel()
	var all []event.Event
	for {
		page, err := h.Log.After(t.Context(), id, int64(len(all)))
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
			case <-ctx.Done():
				t.Fatalf("the run stays at %s, want it to go on", TypesOf(all))
			}
		}
	}
}

// TypesOf returns the types of events, in one line.
func TypesOf(events []event.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, string(e.Body.Type()))
	}
	return strings.Join(out, " ")
}

// TerminalEvent returns the terminal event, which must be a B.
func TerminalEvent[B event.Body](t testing.TB, events []event.Event) B {
	t.Helper()
	b, ok := events[len(events)-1].Body.(B)
	if !ok {
		t.Fatalf("the run ended with %s: %s, want %T", events[len(events)-1].Body.Type(), events[len(events)-1].JSON, b)
	}
	return b
}

// EventsOf returns the events that are a B.
func EventsOf[B event.Body](events []event.Event) []B {
	var out []B
	for _, e := range events {
		if b, ok := e.Body.(B); ok {
			out = append(out, b)
		}
	}
	return out
}
