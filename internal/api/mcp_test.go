package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/api"
	"answerd/internal/api/mcptool"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// protocolVersions are the versions of MCP that hosts speak.
var protocolVersions = []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// mcpHost is an MCP host: the SDK's client, and the notifications and elicitations that it got.
type mcpHost struct {
	*sdk.ClientSession
	mu           sync.Mutex // protects what follows
	progress     []*sdk.ProgressNotificationParams
	elicitations []*sdk.ElicitParams
}

// person answers the questions of a host; nil is a host that cannot ask a person.
type person func(*sdk.ElicitParams) *sdk.ElicitResult

func acceptWith(content map[string]any) person {
	return func(*sdk.ElicitParams) *sdk.ElicitResult {
		return &sdk.ElicitResult{Action: "accept", Content: content}
	}
}

func chooseAction(action string) person {
	return func(*sdk.ElicitParams) *sdk.ElicitResult { return &sdk.ElicitResult{Action: action} }
}

// connectHost connects an MCP host. It sends its requests through client.
func (s *service) connectHost(t *testing.T, version string, p person, client *http.Client) *mcpHost {
	t.Helper()
	h := &mcpHost{}
	o := &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{},
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.progress = append(h.progress, r.Params)
		},
	}
	if p != nil {
		o.Capabilities.Elicitation = &sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{}}
		o.ElicitationHandler = func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			h.mu.Lock()
			h.elicitations = append(h.elicitations, r.Params)
			h.mu.Unlock()
			return p(r.Params), nil
		}
	}
	session, err := sdk.NewClient(&sdk.Implementation{Name: "host", Version: "1"}, o).Connect(t.Context(),
		&sdk.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: client, MaxRetries: -1, DisableStandaloneSSE: true},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	h.ClientSession = session
	if got := session.InitializeResult().ProtocolVersion; got != version {
		t.Fatalf("the version is %s, want %s", got, version)
	}
	return h
}

var outputSchema = sync.OnceValue(func() *jsonschema.Resolved {
	var s *jsonschema.Schema
	if err := json.Unmarshal(mcptool.OutputSchema, &s); err != nil {
		panic(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		panic(err)
	}
	return resolved
})

// output is the structured content of a result.
type output struct {
	Output   json.RawMessage `json:"output"`
	Answer   string
	Metadata struct {
		ToolNames []string `json:"tool_names"`
	}
	RunID      string `json:"run_id"`
	ThreadID   string `json:"thread_id"`
	TraceID    string `json:"trace_id"`
	Status     string
	Interrupts []struct{ ID, Kind, Message string }
	Error      problem
}

// callAnswer calls the tool answer, and checks its result against the tool's output schema.
func (h *mcpHost) callAnswer(ctx context.Context, t *testing.T, arguments string, meta sdk.Meta) (*sdk.CallToolResult, output) {
	t.Helper()
	if meta == nil {
		meta = sdk.Meta{}
	}
	meta["progressToken"] = "p"
	res, err := h.CallTool(ctx, &sdk.CallToolParams{Name: "answer", Arguments: json.RawMessage(arguments), Meta: meta})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		t.Fatal(err)
	}
	if err := outputSchema().Validate(value); err != nil {
		t.Errorf("%s does not fit: %v", raw, err)
	}
	var out output
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	if res.IsError != (out.Error.Code != "") {
		t.Errorf("isError %v: %s, want true only with an error code", res.IsError, raw)
	}
	return res, out
}

func resultText(res *sdk.CallToolResult) string {
	var b strings.Builder
	for _, c := range res.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			b.WriteString(text.Text)
		}
	}
	return b.String()
}

// S0.8: the agent can itself be called as an MCP tool.
func TestMCPToolWorksInEveryProtocolVersion(t *testing.T) {
	t.Parallel()
	for _, version := range protocolVersions {
		t.Run(version, func(t *testing.T) {
			s := newService(t, addingModel(), nil, nil)
			h := s.connectHost(t, version, nil, nil)
			tools, err := h.ListTools(boundedContext(t), nil)
			if err != nil || len(tools.Tools) != 1 || tools.Tools[0].Name != "answer" || tools.Tools[0].OutputSchema == nil {
				t.Fatalf("tools %+v, %v, want 1 Tools with Name answer and OutputSchema non-nil, no error", tools, err)
			}
			res, out := h.callAnswer(boundedContext(t), t, `{"question":"What is 1 + 2?","thread_id":"t1"}`, nil)
			if resultText(res) != "It is 3." || out.Answer != "It is 3." || out.ThreadID != "t1" || fmt.Sprint(out.Metadata.ToolNames) != "[add]" {
				t.Errorf(`result %+v, want text "It is 3.", Answer "It is 3.", ThreadID t1, Metadata.ToolNames [add]`, out)
			}
			run := decodeResponse[output](t, s.do(t, "GET", "/runs/"+out.RunID, ""), http.StatusOK)
			if run.Status != "completed" || run.TraceID != out.TraceID {
				t.Errorf("run %+v, want Status completed, TraceID %q", run, out.TraceID)
			}
			h.Close() // and every notification was handled
			h.mu.Lock()
			defer h.mu.Unlock()

			last, all := 0.0, ""
			for _, p := range h.progress {
				if p.Progress <= last || p.ProgressToken != "p" {
					t.Errorf("progress %v after %v, ProgressToken %v, want Progress more than %v, ProgressToken p", p.Progress, last, p.ProgressToken, last)
				}
				last, all = p.Progress, all+p.Message+"\n"
			}

			for _, part := range []string{"Run " + out.RunID + " starts.", "Step 1", "add is called.", "add has answered", "Step 2"} {
				if !strings.Contains(all, part) {
					t.Errorf("nothing says %q:\n%s, want it to contain %q", part, all, part)
				}
			}
		})
	}
}

// A person agrees, refuses, fills in and dismisses before the host as before the console.
func TestMCPElicitsInput(t *testing.T) {
	t.Parallel()
	echo := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}), llmtest.Says("Well."))
	form := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask", Args: `{}`}), llmtest.Says("Well."))
	for name, c := range map[string]struct {
		script llmtest.Script
		person person
		want   string // in the run's events
	}{
		"approved":           {echo, acceptWith(map[string]any{"approved": true}), `"approved":true`},
		"refused":            {echo, acceptWith(map[string]any{"approved": false, "reason": "no way"}), `"approved":false,"reason":"no way"`},
		"approval declined":  {echo, chooseAction("decline"), `"approved":false`},
		"approval dismissed": {echo, chooseAction("cancel"), `"approved":false,"reason":"The question was dismissed."`},
		"form filled in":     {form, acceptWith(map[string]any{"people": 3}), `\"people\":3`},
		"form declined":      {form, chooseAction("decline"), `"action":"decline"`},
		"an unknown action":  {form, chooseAction("later"), `"action":"cancel"`},
		"form dismissed":     {form, chooseAction("cancel"), `"action":"cancel"`},
	} {
		for _, version := range []string{protocolVersions[0], protocolVersions[1]} {
			t.Run(name+"/"+version, func(t *testing.T) {
				s := newService(t, c.script, nil, nil, echoNeedsApproval)
				h := s.connectHost(t, version, c.person, nil)
				_, out := h.callAnswer(boundedContext(t), t, `{"question":"Do it."}`, nil)
				if out.Answer != "Well." || len(h.elicitations) != 1 {
					t.Errorf("asked %d times: %+v, want Answer Well., asked 1", len(h.elicitations), out)
				}
				var all strings.Builder
				for _, e := range s.Events(t, out.RunID) {
					all.Write(e.AppendJSON(nil))
				}
				if !strings.Contains(all.String(), c.want) {
					t.Errorf("no %s in %s", c.want, all.String())
				}
			})
		}
	}
}

// A mistake of the host's model is a result that the model can read; a host does not show it a
// JSON-RPC error.
func TestMCPInvalidCallIsAResultThatSaysWhy(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for arguments, pointer := range map[string]string{
		`{}`: "/question", `{"question":" "}`: "/question", `{"question":"?","max_turns":0}`: "/max_turns", `{"question":"?","nope":1}`: "/nope",
		`{"question":"?","background":true}`: "/background", `{"question":"?","servers":["x"]}`: "/servers/0", `{"question":"?","budget":{"cost":-1}}`: "/budget/cost",
		`{"question":"?","question":"!"}`: "/question", `{"question":"?","history":[{"role":"user"}]}`: "/history/0/content", `[]`: "", `null`: "", `"?"`: "",
	} {
		m := s.callModern(t, callParams(arguments, ""))
		e := m.Result.StructuredContent.Error
		if !m.Result.IsError || e.Code != "invalid_request" || len(e.Errors) == 0 || e.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, Code %q, %d Errors, want Result.IsError true, Code invalid_request, Errors non-zero, Errors[0].Pointer %s", arguments, m, e.Code, len(e.Errors), pointer)
		}
	}
	if n := len(s.Model.Requests()); n != 0 {
		t.Errorf("the model was asked %d times, want 0", n)
	}
}

// The text lists one field on each line, so a name must not look like another line, nor control a terminal.
func TestMCPNamesInTheTextOfAnErrorHaveNoControlCharacters(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	m := s.callModern(t, callParams(`{"question":"?","a\n- b\u001b[31m\u2028c":1}`, ""))
	const want = "The request has invalid fields. (invalid_request)\n- /a - b [31m c unknown field"
	if len(m.Result.Content) != 1 || m.Result.Content[0].Text != want {
		t.Errorf("content %q, want %q", m.Result.Content, want)
	}
}

func TestMCPFailedRunIsAResultThatSaysWhy(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Fails(http.StatusBadRequest, "secret upstream text")), nil, nil)
	m := s.callModern(t, callParams(`{"question":"?"}`, ""))
	out := m.Result.StructuredContent
	if !m.Result.IsError || out.Error.Code != "model_error" || out.RunID == "" || out.Error.Instance != "/runs/"+out.RunID || strings.Contains(out.Error.Detail, "secret") {
		t.Errorf("message %+v, Error.Code %q, RunID %q, Error.Instance %q, Error.Detail %q, want Result.IsError true, Error.Code model_error, RunID non-empty, Error.Instance %q, Error.Detail without secret", m, out.Error.Code, out.RunID, out.Error.Instance, out.Error.Detail, "/runs/"+out.RunID)
	}
}

// A body that is not a message of the protocol is refused, by us or by the SDK, and starts nothing.
func TestMCPRefusesInvalidMessages(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	const accept = "application/json, text/event-stream"
	many := "[" + strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/initialized"},`, 32) + `{"jsonrpc":"2.0","method":"notifications/initialized"}]`
	for name, c := range map[string]struct {
		method, body string
		header       []string
		status       int
	}{
		"not JSON":          {"POST", `{"jsonrpc"`, nil, 400},
		"not JSON-RPC":      {"POST", `{"question":"?"}`, nil, 400},
		"deep":              {"POST", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), nil, 400},
		"many messages":     {"POST", many, nil, 400},
		"a form":            {"POST", `{}`, []string{"Content-Type", "text/plain"}, 415},
		"too large":         {"POST", `"` + strings.Repeat("x", 2<<20) + `"`, nil, 413},
		"a stranger's page": {"POST", `{}`, []string{"Origin", "https://evil.example"}, 403},
		"another host":      {"POST", `{}`, []string{"Host", "evil.example"}, 421},
		"no session":        {"POST", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, []string{"Mcp-Session-Id", "x"}, 404},
		"an old version":    {"POST", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, []string{"Mcp-Protocol-Version", "2020-01-01"}, 400},
		"a stream":          {"GET", "", nil, 405},
		"no session to end": {"DELETE", "", nil, 400},
	} {
		resp := s.do(t, c.method, "/mcp", c.body, append([]string{"Accept", accept}, c.header...)...)
		if resp.StatusCode != c.status {
			t.Errorf("%s: %s, want %d", name, resp.Status, c.status)
		}
	}

	if m := s.callModern(t, callParams(`{"question":"?"}`, "")); m.Result.StructuredContent.Answer != "It is 3." {
		t.Errorf(`after all that: %+v, want Result.StructuredContent.Answer "It is 3."`, m)
	}
	if n := len(s.Model.Requests()); n != 2 {
		t.Errorf("the model was asked %d times, want 2", n)
	}
}

// A run is its caller's here as everywhere: neither its state nor a session's id lets
// another go on with it.
func TestMCPRunBelongsToItsCaller(t *testing.T) {
	t.Parallel()
	iam := newMint(t)
	v := iam.newVerifier(t, nil)
	s := newService(t, echoToolModel(), nil, func(o *api.Options) { o.Verifier = v }, echoNeedsApproval)
	ada, eve := []string{"Authorization", iam.bearerToken("ada")}, []string{"Authorization", iam.bearerToken("eve")}

	first := s.callModern(t, callParams(`{"question":"Do it."}`, ""), ada...)
	given := `,"requestState":"` + first.Result.RequestState + `","inputResponses":{`
	for id := range first.Result.InputRequests {
		given += `"` + id + `":{"action":"accept","content":{"approved":true}}}`
	}

	if m := s.callModern(t, callParams(`{"question":"Do it."}`, given), eve...); m.Result.StructuredContent.Error.Code != "not_found" {
		t.Errorf("another goes on: %+v, want Result.StructuredContent.Error.Code not_found", m)
	}
	if m := s.callModern(t, callParams(`{"question":"Do it."}`, given), ada...); m.Result.StructuredContent.Answer != "Well." {
		t.Errorf("the owner goes on: %+v, want Result.StructuredContent.Answer Well.", m)
	}

	session := s.startSession(t, ada...)
	for _, header := range [][]string{append(session[:4:4], eve...), session[:4]} {
		resp := s.postMCP(boundedContext(t), t, "tools/list", `{}`, header...)
		if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("another's session: %s, want 404 or 401", resp.Status)
		}
	}

	// Nor does the answer reveal that the session exists.
	unknown := append([]string{"Mcp-Session-Id", "none", "Mcp-Protocol-Version", "2025-11-25"}, eve...)
	foreign := wantProblem(t, s.postMCP(boundedContext(t), t, "tools/list", `{}`, append(session[:4:4], eve...)...), 404, "not_found")
	if none := wantProblem(t, s.postMCP(boundedContext(t), t, "tools/list", `{}`, unknown...), 404, "not_found"); !reflect.DeepEqual(foreign, none) {
		t.Errorf("another's session: %+v, want %+v as of an unknown one", foreign, none)
	}
	wantProblem(t, s.do(t, "DELETE", "/mcp", "", append(session[:4:4], eve...)...), 404, "not_found")
	if resp := s.postMCP(boundedContext(t), t, "tools/list", `{}`, append(session[:4:4], ada...)...); resp.StatusCode != http.StatusOK {
		t.Errorf("the owner's session: %s, want 200", resp.Status)
	}
}

// newPaymentServer returns a server whose tool wants the person behind its call to visit a page, and says
// what came of it.
func newPaymentServer(t *testing.T) *httptest.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: "shop", Version: "1"}, nil)
	server.AddTool(&sdk.Tool{Name: "pay", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		given := r.Params.InputResponses["q"]
		if given == nil {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{
				Mode: "url", Message: "Pay for it.", URL: "https://pay.example/order/1", ElicitationID: "order-1",
			}}}, nil
		}
		said, err := json.Marshal(given)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(said)}}}, err
	})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(web.Close)
	return web
}

// A URL that a server asks the user to visit is elicited from the MCP host that called, and the
// user's answer is sent to the server.
func TestMCPElicitsAVisitToAURL(t *testing.T) {
	t.Parallel()
	script := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "pay", Args: `{}`}), llmtest.Says("Well."))
	for _, version := range protocolVersions[:2] {
		for action, p := range map[string]person{"accept": acceptWith(nil), "decline": chooseAction("decline"), "cancel": chooseAction("cancel")} {
			t.Run(version+" "+action, func(t *testing.T) {
				shop := newPaymentServer(t)
				s := newService(t, script, nil, nil, func(c *config.Server) { c.URL = shop.URL })
				h := s.connectHost(t, version, p, nil)
				_, out := h.callAnswer(boundedContext(t), t, `{"question":"Buy it."}`, nil)
				if out.Answer != "Well." || len(h.elicitations) != 1 {
					t.Fatalf("asked %d times: %+v, want Answer Well., asked 1", len(h.elicitations), out)
				}
				if q := h.elicitations[0]; q.Mode != "url" || q.URL != "https://pay.example/order/1" || !strings.Contains(q.Message, "Pay for it.") || q.RequestedSchema != nil {
					t.Errorf(`asked %+v, want Mode url, URL https://pay.example/order/1, Message containing "Pay for it.", RequestedSchema nil`, q)
				}
				messages := s.Model.Requests()[1].Messages
				if told := string(messages[len(messages)-1].Content); !strings.Contains(told, `"action":"`+action+`"`) {
					t.Errorf("the tool was told %s, want it to contain %s", told, `"action":"`+action+`"`)
				}
			})
		}
	}
}
