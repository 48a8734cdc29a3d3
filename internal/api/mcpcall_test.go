package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
	"answerd/internal/sse"
)

// message is a JSON-RPC message, as a host reads it.
type message struct {
	ID     json.RawMessage
	Method string
	Params struct {
		RequestedSchema json.RawMessage

		Message string
		Mode    string
		Level   string
		Logger  string
	}
	Result struct {
		ResultType        string                                       `json:"resultType"`
		InputRequests     map[string]struct{ Params sdk.ElicitParams } `json:"inputRequests"`
		RequestState      string                                       `json:"requestState"`
		IsError           bool                                         `json:"isError"`
		Content           []struct{ Text string }
		StructuredContent output `json:"structuredContent"`
	}
	Error *struct {
		Code    int
		Message string
	}
}

// postMCP posts a message to /mcp in the newest protocol, or in the session of the headers.
func (s *service) postMCP(ctx context.Context, t *testing.T, method, params string, header ...string) *http.Response {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
	if strings.HasPrefix(method, "notifications/") {
		body = strings.Replace(body, `"id":1,`, "", 1)
	}
	header = append([]string{"Accept", "application/json, text/event-stream"}, header...)
	return s.doContext(ctx, t, "POST", "/mcp", body, header...)
}

// modernHeaders are the headers of a call in the newest protocol.
var modernHeaders = []string{"Mcp-Protocol-Version", protocolVersions[0], "Mcp-Method", "tools/call", "Mcp-Name", "answer"}

// callParams returns the parameters of tools/call of a host that can elicit; more has further members.
func callParams(arguments, more string) string {
	return `{"name":"answer","arguments":` + arguments + `,"_meta":{"io.modelcontextprotocol/protocolVersion":"` + protocolVersions[0] + `",
		"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}},"progressToken":1}` + more + `}`
}

// sessionCallParams are the parameters of a call in a session.
const sessionCallParams = `{"name":"answer","arguments":{"question":"?"},"_meta":{"progressToken":1}}`

// messageStream is the stream that answers a request.
type messageStream struct {
	*sse.Reader
	t *testing.T
}

func newMessageStream(t *testing.T, resp *http.Response) messageStream {
	t.Helper()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("status %d: %s, want 200", resp.StatusCode, b)
	}
	return messageStream{sse.NewReader(bufio.NewReader(resp.Body), 1<<20), t}
}

// readUntil reads until a message matches, or to the end, and returns the last message.
func (c messageStream) readUntil(matches func(message) bool) (last message) {
	c.t.Helper()
	for {
		f, err := c.Next()
		if errors.Is(err, io.EOF) {
			return last
		}
		if err != nil {
			c.t.Fatal(err)
		}
		last = message{}
		if err := json.Unmarshal(f.Data, &last); err != nil {
			c.t.Fatalf("%s: %v", f.Data, err)
		}
		if matches(last) {
			return last
		}
	}
}

// readResult reads to the end and returns the last message, which is the response.
func (c messageStream) readResult() message {
	c.t.Helper()
	return c.readUntil(func(message) bool { return false })
}

// readRunID returns the id of the run that the first progress notification names.
func (c messageStream) readRunID() string {
	c.t.Helper()
	m := c.readUntil(func(m message) bool { return strings.HasPrefix(m.Params.Message, "Run ") })
	return strings.Fields(m.Params.Message + " ?")[1]
}

// callModern sends a call in the newest protocol, and returns the response.
func (s *service) callModern(t *testing.T, params string, header ...string) message {
	t.Helper()
	return newMessageStream(t, s.postMCP(boundedContext(t), t, "tools/call", params, append(slices.Clone(modernHeaders), header...)...)).readResult()
}

// startSession begins a session of an older protocol, and returns its headers.
func (s *service) startSession(t *testing.T, header ...string) []string {
	t.Helper()
	resp := s.postMCP(boundedContext(t), t, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"h","version":"1"}}`, header...)
	newMessageStream(t, resp).readResult()
	header = append([]string{"Mcp-Protocol-Version", "2025-11-25", "Mcp-Session-Id", resp.Header.Get("Mcp-Session-Id")}, header...)
	s.postMCP(boundedContext(t), t, "notifications/initialized", `{}`, header...)
	return header
}

// waitForSignal waits until a tool has sent on the channel.
func waitForSignal[T any](t *testing.T, there <-chan T) {
	t.Helper()
	select {
	case <-there:
	case <-boundedContext(t).Done():
		t.Fatal("waited in vain, want the tool to come there")
	}
}

var waitToolModel = llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait", Args: `{}`}))

var echoNeedsApproval = func(s *config.Server) { s.ApproveTools = []string{"echo"} }

func echoToolModel() llmtest.Script {
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}), llmtest.Says("Well."))
}

// A closed stream cancels its call, because nobody can receive the result. The newest protocol has
// no other cancellation; the older ones have notifications/cancelled.
func TestMCPCancelledCallCancelsItsRun(t *testing.T) {
	t.Parallel()
	for name, giveUp := range map[string]func(*testing.T, *service, context.CancelFunc, []string){
		"closed": func(_ *testing.T, _ *service, leave context.CancelFunc, _ []string) { leave() },
		"cancelled": func(t *testing.T, s *service, _ context.CancelFunc, header []string) {
			s.postMCP(boundedContext(t), t, "notifications/cancelled", `{"requestId":1}`, header...)
		},
		"session ended": func(t *testing.T, s *service, _ context.CancelFunc, header []string) {
			if resp := s.do(t, "DELETE", "/mcp", "", header...); resp.StatusCode != http.StatusNoContent {
				t.Errorf("status %s, want 204", resp.Status)
			}
		},
	} {
		for _, old := range []bool{true, false} {
			if !old && name != "closed" {
				continue
			}
			t.Run(fmt.Sprint(name, old), func(t *testing.T) {
				s := newService(t, waitToolModel, nil, nil)
				header, params := modernHeaders, callParams(`{"question":"?"}`, "")
				if old {
					header, params = s.startSession(t), sessionCallParams
				}
				ctx, leave := context.WithCancel(boundedContext(t))
				defer leave()
				run := newMessageStream(t, s.postMCP(ctx, t, "tools/call", params, header...)).readRunID()
				waitForSignal(t, s.Tools.Entered)
				giveUp(t, s, leave, header)
				agenttest.TerminalEvent[event.Cancelled](t, s.Events(t, run))
				waitForSignal(t, s.Tools.Canceled)
			})
		}
	}
}

// A host that cannot ask its person is told where the person can answer, and the run
// waits for that.
func TestMCPRunWaitsForAPersonWhomTheClientCannotAsk(t *testing.T) {
	t.Parallel()
	for _, version := range protocolVersions[:2] {
		s := newService(t, echoToolModel(), func(o *agent.Options) { o.DisconnectGrace = 1 }, nil, echoNeedsApproval)
		h := s.connectHost(t, version, nil, nil)
		res, out := h.callAnswer(boundedContext(t), t, `{"question":"Do it."}`, nil)
		if out.Status != "suspended" || len(out.Interrupts) != 1 || !strings.Contains(resultText(res), "POST /runs/"+out.RunID+"/input") {
			t.Fatalf("%s: %+v, want Status suspended, 1 Interrupts, text containing %s", version, out, "POST /runs/"+out.RunID+"/input")
		}
		decodeResponse[output](t, s.do(t, "POST", "/runs/"+out.RunID+"/input", `{"id":"`+out.Interrupts[0].ID+`","approved":true}`), http.StatusOK)
		agenttest.TerminalEvent[event.FinalAnswer](t, s.Events(t, out.RunID))
	}
}

// A client that repeats a call because its result was lost continues the same run, and no input is
// used twice (SEP-2322: the server can rely on the state only).
func TestMCPContinuedCallCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := newService(t, echoToolModel(), nil, nil, echoNeedsApproval)
	first := s.callModern(t, callParams(`{"question":"Do it."}`, ""))
	if first.Result.ResultType != "input_required" || len(first.Result.InputRequests) != 1 {
		t.Fatalf("result %+v, want Result.ResultType input_required, 1 Result.InputRequests", first)
	}
	id := ""
	for id = range first.Result.InputRequests {
	}
	state := `,"requestState":"` + first.Result.RequestState + `"`

	// Without an answer it is asked again.
	again := s.callModern(t, callParams(`{"question":"Do it."}`, state))
	if _, same := again.Result.InputRequests[id]; !same || again.Result.RequestState != first.Result.RequestState {
		t.Errorf("asked again: %+v, want same true, Result.RequestState %q", again, first.Result.RequestState)
	}

	given := state + `,"inputResponses":{"` + id + `":{"action":"accept","content":{"approved":true}},"other":{"action":"accept"}}`
	for range 2 {
		m := s.callModern(t, callParams(`{"question":"Do it."}`, given))
		if m.Result.StructuredContent.Answer != "Well." || !strings.HasPrefix(first.Result.RequestState, m.Result.StructuredContent.RunID+":") {
			t.Errorf("answer %+v, Result.RequestState %q, want Result.StructuredContent.Answer Well., Result.RequestState starting with %q", m, first.Result.RequestState, m.Result.StructuredContent.RunID+":")
		}
	}

	for _, bad := range []string{"nonsense", "run_x:3", strings.Split(first.Result.RequestState, ":")[0] + ":1", strings.Split(first.Result.RequestState, ":")[0] + ":999"} {
		if m := s.callModern(t, callParams(`{"question":"Do it."}`, `,"requestState":"`+bad+`"`)); !m.Result.IsError || m.Result.StructuredContent.Error.Code == "internal" {
			t.Errorf("%s: %+v, want IsError true, StructuredContent.Error.Code other than internal", bad, m.Result)
		}
	}
}

func TestMCPAsksAgainAfterInvalidContent(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask", Args: `{}`}), llmtest.Says("Well.")), nil, nil)
	m := s.callModern(t, callParams(`{"question":"Book."}`, ""))
	for _, content := range []string{`{"people":"many"}`, `{"people":3}`} {
		for id := range m.Result.InputRequests {
			m = s.callModern(t, callParams(`{"question":"Book."}`, `,"requestState":"`+m.Result.RequestState+`","inputResponses":{"`+id+`":{"action":"accept","content":`+content+`}}`))
		}
		for _, q := range m.Result.InputRequests {
			if !strings.Contains(q.Params.Message, "For how many?") || !strings.Contains(q.Params.Message, "/people") {
				t.Errorf(`asked again: %+v, want Params.Message containing "For how many?", Params.Message containing /people`, q)
			}
		}
	}
	if m.Result.StructuredContent.Answer != "Well." {
		t.Errorf("result %+v, want Result.StructuredContent.Answer Well.", m)
	}
}

// In a session, the SDK must not end the elicitation because the content does not match the form.
func TestMCPAsksAgainInTheSameCall(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask", Args: `{}`}), llmtest.Says("Well.")), nil, nil)
	header := s.startSession(t)
	c := newMessageStream(t, s.postMCP(boundedContext(t), t, "tools/call", sessionCallParams, header...))
	asked := ""
	for _, content := range []string{`{"people":"many"}`, `{"people":3}`} {
		q := c.readUntil(func(m message) bool { return m.Method == "elicitation/create" })
		asked += q.Params.Message + string(q.Params.RequestedSchema)
		answer := `{"jsonrpc":"2.0","id":` + string(q.ID) + `,"result":{"action":"accept","content":` + content + `}}`
		s.do(t, "POST", "/mcp", answer, append([]string{"Accept", "application/json, text/event-stream"}, header...)...)
	}
	if last := c.readResult(); last.Result.StructuredContent.Answer != "Well." || !strings.Contains(asked, "/people") || strings.Count(asked, `"people":{`) != 2 {
		t.Errorf(`asked %s, result %+v, want a second form that names /people, and Answer "Well."`, asked, last)
	}
}

// A call that goes on is as much its caller's as the first one was.
func TestMCPContinuedCallIsCancelledWithItsStream(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}), llmtest.Calls(llmtest.Call{Name: "wait", Args: `{}`})), nil, nil, echoNeedsApproval)
	m := s.callModern(t, callParams(`{"question":"Do it."}`, ""))
	ctx, leave := context.WithCancel(boundedContext(t))
	defer leave()
	for id := range m.Result.InputRequests {
		s.postMCP(ctx, t, "tools/call", callParams(`{"question":"Do it."}`, `,"requestState":"`+m.Result.RequestState+`","inputResponses":{"`+id+`":{"action":"accept","content":{"approved":true}}}`), modernHeaders...)
	}
	waitForSignal(t, s.Tools.Entered)
	leave()
	run, _, _ := strings.Cut(m.Result.RequestState, ":")
	agenttest.TerminalEvent[event.Cancelled](t, s.Events(t, run))
}

// The host is not asked any more about an interrupt that was answered in the console meanwhile.
func TestMCPWithdrawsAnElicitationThatIsAnsweredElsewhere(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}), func(w http.ResponseWriter, r *http.Request) {
		select { // or the result is there before the SDK has told the host
		case <-open:
		case <-r.Context().Done():
		}
		llmtest.Says("Well.")(w, r)
	}), nil, nil, echoNeedsApproval)

	header := s.startSession(t)
	c := newMessageStream(t, s.postMCP(boundedContext(t), t, "tools/call", sessionCallParams, header...))
	run := c.readRunID()
	c.readUntil(func(m message) bool { return m.Method == "elicitation/create" })

	var interrupt string
	s.EventsUntil(t, run, func(e event.Event) bool {
		if b, ok := e.Body.(event.Suspended); ok {
			interrupt = b.Interrupts[0].ID
		}
		return interrupt != ""
	})

	decodeResponse[output](t, s.do(t, "POST", "/runs/"+run+"/input", `{"id":"`+interrupt+`","approved":true}`), http.StatusOK)
	c.readUntil(func(m message) bool { return m.Method == "notifications/cancelled" })
	close(open)
	if last := c.readResult(); last.Result.StructuredContent.Answer != "Well." {
		t.Errorf("result %+v, want Result.StructuredContent.Answer Well.", last)
	}
}

// Two agents that have each other for tools end: the hop count of _meta goes up with every
// agent, and is refused beyond three.
func TestMCPRefusesTooManyHops(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for hops, want := range map[string]string{"0": "", "3": "", "4": "unprocessable", "1e300": "unprocessable", "-1": "invalid_request", "1.5": "invalid_request", `"4"`: "invalid_request", "null": "invalid_request"} {
		params := strings.Replace(callParams(`{"question":"?"}`, ""), `"progressToken"`, `"io.answerd/hops":`+hops+`,"progressToken"`, 1)
		if got := s.callModern(t, params).Result.StructuredContent.Error.Code; got != want {
			t.Errorf("%s hops: %q, want %q", hops, got, want)
		}
	}
}

func TestMCPCallContinuesItsTrace(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	params := strings.Replace(callParams(`{"question":"?"}`, ""), `"progressToken"`, `"traceparent":"00-`+trace+`-00f067aa0ba902b7-01","progressToken"`, 1)
	if got := s.callModern(t, params).Result.StructuredContent.TraceID; got != trace {
		t.Errorf("trace %s, want %s", got, trace)
	}
}

func TestMCPIdempotencyKeyIdentifiesACall(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	first := s.callModern(t, callParams(`{"question":"a"}`, ""), "Idempotency-Key", "k").Result.StructuredContent
	if again := s.callModern(t, callParams(`{"question":"a"}`, ""), "Idempotency-Key", "k").Result.StructuredContent; first.RunID == "" || again.RunID != first.RunID {
		t.Errorf("runs %s and %s, want RunID non-empty, RunID %s", first.RunID, again.RunID, first.RunID)
	}
	if other := s.callModern(t, callParams(`{"question":"b"}`, ""), "Idempotency-Key", "k").Result.StructuredContent; other.Error.Code != "unprocessable" {
		t.Errorf("another question: %+v, want Error.Code unprocessable", other)
	}
}

// The tools of two agents are two bodies, even if the arguments are the same.
func TestMCPIdempotencyKeyIsOfOneTool(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, withAgents, nil)
	call := func(tool string) output {
		params := strings.Replace(callParams(`{"question":"?"}`, ""), `"name":"answer"`, `"name":"`+tool+`"`, 1)
		return s.callModern(t, params, "Idempotency-Key", "k", "Mcp-Name", tool).Result.StructuredContent
	}
	first := call("a")
	if again := call("a"); first.RunID == "" || again.RunID != first.RunID {
		t.Errorf("the same tool again: got run %q, want %q", again.RunID, first.RunID)
	}
	if other := call("answer"); other.Error.Code != "unprocessable" {
		t.Errorf("another tool: got %+v, want the code unprocessable", other)
	}
}

func TestMCPForwardsLogMessages(t *testing.T) {
	t.Parallel()
	script := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "steps", Args: `{}`}), llmtest.Says("Well."))
	for level, want := range map[string]bool{"": false, "info": true, "error": false} {
		s := newService(t, script, nil, nil)
		params := callParams(`{"question":"?"}`, "")
		if level != "" {
			params = strings.Replace(params, `"progressToken"`, `"io.modelcontextprotocol/logLevel":"`+level+`","progressToken"`, 1)
		}
		logged := false
		newMessageStream(t, s.postMCP(boundedContext(t), t, "tools/call", params, modernHeaders...)).readUntil(func(m message) bool {
			logged = logged || m.Method == "notifications/message" && m.Params.Level == "warning" && m.Params.Logger == "default/steps"
			return false
		})
		if logged != want {
			t.Errorf("level %q: logged is %v, want %v", level, logged, want)
		}
	}
}
