package agenttest

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers still send it.

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// ToolServer is a real MCP server, reached over HTTP, whose tools tell the test what they do: add, echo, fail, wait,
// meet, steps, ask, interview, sample and give. It also has the prompt greet.
type ToolServer struct {
	URL         string
	Entered     chan string   // gets an element when a tool is entered
	Canceled    chan struct{} // gets an element when the context of the tool "wait" ends
	ReleaseMeet chan struct{} // the tool "meet" returns once the test closes this

	over chan struct{} // closed at the end of the test

	mu         sync.Mutex                 // protects what follows
	results    map[string]json.RawMessage // results of the tool "give", by the name in its arguments
	callCounts map[string]int             // how many calls of each tool have arrived
	metas      []map[string]any           // the _meta of each call, in order
}

// Instructions is the text in which the server explains its own use.
const Instructions = "Add before you echo.\n## Rules\nSay \u202ethis."

// RequestState is the state that the tool "ask" requires back together with the answer.
const RequestState = "canary-request-state"

// statelessPath is the path where the server uses protocol 2026-07-28. Elsewhere it uses earlier versions.
const statelessPath = "/stateless"

// Stateless makes a fixture use protocol 2026-07-28 with its server.
func Stateless(s *config.Server) { s.URL += statelessPath }

type sum struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
}

// newToolServer starts a server with all tools, which is closed at the end of the test.
func newToolServer(t testing.TB) *ToolServer {
	s := &ToolServer{
		Entered: make(chan string, 64), Canceled: make(chan struct{}, 64), ReleaseMeet: make(chan struct{}), over: make(chan struct{}),
		results: make(map[string]json.RawMessage), callCounts: make(map[string]int),
	}
	server := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{Instructions: Instructions})
	addPlainTools(server)
	s.addWaitingTools(server)
	addStepsTool(server)
	addAskTool(server)
	addInterviewTool(server)
	addSampleTool(server)
	s.addGiveTool(server)
	addGreetPrompt(server)

	paths := http.NewServeMux()
	paths.Handle("/", sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	paths.Handle(statelessPath, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true}))
	web := httptest.NewServer(paths)
	t.Cleanup(func() {
		close(s.over)
		web.Close()
		// A session whose handshake was interrupted is not notified that it has ended.
		for session := range server.Sessions() {
			session.Close()
		}
	})
	s.URL = web.URL
	return s
}

type text struct {
	Text string `json:"text"`
}

// addPlainTools adds add, echo and fail, which return at once.
func addPlainTools(server *sdk.Server) {
	sdk.AddTool(server, &sdk.Tool{Name: "add", Description: "adds two numbers"}, func(_ context.Context, _ *sdk.CallToolRequest, in sum) (*sdk.CallToolResult, map[string]float64, error) {
		return nil, map[string]float64{"sum": in.A + in.B}, nil
	})
	sdk.AddTool(server, &sdk.Tool{Name: "echo"}, func(_ context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: in.Text}}}, nil, nil
	})
	sdk.AddTool(server, &sdk.Tool{Name: "fail"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return nil, nil, fmt.Errorf("the tool is out of order")
	})
}

// addWaitingTools adds wait, which waits until its call is cancelled, and meet, which waits for ReleaseMeet.
func (s *ToolServer) addWaitingTools(server *sdk.Server) {
	sdk.AddTool(server, &sdk.Tool{Name: "wait"}, func(ctx context.Context, _ *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		s.Entered <- "wait"
		select {
		case <-ctx.Done():
			s.Canceled <- struct{}{}
		case <-s.over: // otherwise a call that is never cancelled would block the test
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
}

// addStepsTool adds steps, which sends three progress notifications and three log messages.
func addStepsTool(server *sdk.Server) {
	sdk.AddTool(server, &sdk.Tool{Name: "steps"}, func(ctx context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		for i := range 3 {
			err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
				ProgressToken: r.Params.GetProgressToken(),
				Progress:      float64(i + 1),
				Total:         3,
			})
			if err != nil {
				return nil, nil, err
			}
			message := &sdk.LoggingMessageParams{Level: "warning", Logger: "steps", Data: map[string]int{"step": i + 1}}
			if err := r.Session.Log(ctx, message); err != nil {
				return nil, nil, err
			}
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "done"}}}, nil, nil
	})
}

// addAskTool adds ask, which elicits input in the way of the session's protocol, and returns the answer. With
// 2026-07-28 it requires its request state back.
func addAskTool(server *sdk.Server) {
	addTool(server, "ask", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
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
}

// addInterviewTool adds interview, which asks two questions at once, and then one more.
func addInterviewTool(server *sdk.Server) {
	addTool(server, "interview", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		question := func(text string) *sdk.ElicitParams {
			return &sdk.ElicitParams{
				Mode:            "form",
				Message:         text,
				RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"answer": map[string]any{"type": "string"}}},
			}
		}
		given := r.Params.InputResponses
		switch {
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
}

// addTool adds a tool that accepts any arguments.
func addTool(server *sdk.Server, name string, handler sdk.ToolHandler) {
	server.AddTool(&sdk.Tool{Name: name, InputSchema: map[string]any{"type": "object"}}, handler)
}

// addSampleTool adds sample, which asks the client's model and returns the model's answer.
func addSampleTool(server *sdk.Server) {
	addTool(server, "sample", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		given := r.Params.InputResponses["q"]
		if given == nil {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.CreateMessageParams{
				SystemPrompt: "Be brief.",
				MaxTokens:    100,
				Messages:     []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: "A word?"}}},
			}}}, nil
		}
		said, err := json.Marshal(given)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(said)}}}, err
	})
}

// addGreetPrompt adds the prompt greet.
func addGreetPrompt(server *sdk.Server) {
	server.AddPrompt(&sdk.Prompt{Name: "greet", Arguments: []*sdk.PromptArgument{{Name: "who", Required: true}}}, func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{
			{Role: "user", Content: &sdk.TextContent{Text: "Greet " + r.Params.Arguments["who"]}},
			{Role: "assistant", Content: &sdk.TextContent{Text: "Hello."}},
		}}, nil
	})
}

// SetResult sets the result of the tool "give" for the arguments that SetResult returns. The server sends it byte for
// byte, even if no library would write it like that.
func (s *ToolServer) SetResult(name, result string) (args string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results[name] = json.RawMessage(result)
	quoted, _ := json.Marshal(map[string]string{"name": name})
	return string(quoted)
}

// recordCall records a call that has arrived.
func (s *ToolServer) recordCall(p *sdk.CallToolParamsRaw) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callCounts[p.Name]++
	s.metas = append(s.metas, maps.Clone(p.Meta))
}

// Metas returns the _meta of each call, in the order in which the calls arrived.
func (s *ToolServer) Metas() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.metas)
}

// CallCounts returns how many calls of each tool have arrived.
func (s *ToolServer) CallCounts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.callCounts)
}

// rawResult is a result that is sent unchanged.
type rawResult struct {
	*sdk.CallToolResult
	raw json.RawMessage
}

func (g *rawResult) MarshalJSON() ([]byte, error) { return g.raw, nil }

// addGiveTool adds give, which returns the result that the test has stored under the name in the arguments. It also
// makes the server record all calls.
func (s *ToolServer) addGiveTool(server *sdk.Server) {
	addTool(server, "give", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{}, nil
	})
	server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			call, ok := r.(*sdk.CallToolRequest)
			if ok {
				s.recordCall(call.Params)
			}
			res, err := next(ctx, method, r)
			if err != nil || !ok || call.Params.Name != "give" {
				return res, err
			}
			var args struct{ Name string }
			if err := json.Unmarshal(call.Params.Arguments, &args); err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			return &rawResult{&sdk.CallToolResult{}, s.results[args.Name]}, nil
		}
	})
}
