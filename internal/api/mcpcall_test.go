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
	Method string
	Params struct {
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
		StructuredContent output                                       `json:"structuredContent"`
	}
	Error *struct {
		Code    int
		Message string
	}
}

// sends posts a message to /mcp in the newest protocol, or in the session of the headers.
func (s *service) sends(ctx context.Context, t *testing.T, method, params string, header ...string) *http.Response {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
	if strings.HasPrefix(method, "notifications/") {
		body = strings.Replace(body, `"id":1,`, "", 1)
	}
	header = append([]string{"Accept", "application/json, text/event-stream"}, header...)
	return s.doContext(ctx, t, "POST", "/mcp", body, header...)
}

// modern are the headers of a call in the newest protocol.
var modern = []string{"Mcp-Protocol-Version", versions[0], "Mcp-Method", "tools/call", "Mcp-Name", "answer"}

// callOf are the parameters of a call of a host that can elicit, with more of them.
func callOf(arguments, more string) string {
	return `{"name":"answer","arguments":` + arguments + `,"_meta":{"io.modelcontextprotocol/protocolVersion":"` + versions[0] + `",
		"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}},"progressToken":1}` + more + `}`
}

// oldCall are the parameters of a call in a session.
const oldCall = `{"name":"answer","arguments":{"question":"?"},"_meta":{"progressToken":1}}`

// conversation is the stream that answers a request.
type conversation struct {
	*sse.Reader
	t *testing.T
}

func heard(t *testing.T, resp *http.Response) conversation {
	t.Helper()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("status %d: %s, want 200", resp.StatusCode, b)
	}
	return conversation{sse.NewReader(bufio.NewReader(resp.Body), 1<<20), t}
}

// until reads until a message pleases, or to the end, and returns the last.
func (c conversation) until(pleases func(message) bool) (last message) {
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
		if pleases(last) {
			return last
		}
	}
}

// getResult is the last message.
func (c conversation) result() message {
	c.t.Helper()
	return c.until(func(message) bool { return false })
}

// begun is the id of the run that the first progress names.
func (c conversation) begun() string {
	c.t.Helper()
	m := c.until(func(m message) bool { return strings.HasPrefix(m.Params.Message, "Run ") })
	return strings.Fields(m.Params.Message + " ?")[1]
}

// asks sends a call in the newest protocol, and returns what it comes to.
func (s *service) asks(t *testing.T, params string, header ...string) message {
	t.Helper()
	return heard(t, s.sends(bounded(t), t, "tools/call", params, append(slices.Clone(modern), header...)...)).result()
}

// starts begins a session of an older protocol, and returns its headers.
func (s *service) starts(t *testing.T, header ...string) []string {
	t.Helper()
	resp := s.sends(bounded(t), t, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"h","version":"1"}}`, header...)
	heard(t, resp).result()
	header = append([]string{"Mcp-Protocol-Version", "2025-11-25", "Mcp-Session-Id", resp.Header.Get("Mcp-Session-Id")}, header...)
	s.sends(bounded(t), t, "notifications/initialized", `{}`, header...)
	return header
}

// came waits for a tool to be where the channel says.
func came[T any](t *testing.T, there <-chan T) {
	t.Helper()
	select {
	case <-there:
	case <-bounded(t).Done():
		t.Fatal("waited in vain, want the tool to come there")
	}
}

var waits = llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait", Args: `{}`}))

var approvesEcho = func(s *config.Server) { s.ApproveTools = []string{"echo"} }

func echoes() llmtest.Script {
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}), llmtest.Says("Well."))
}

// A closed stream cancels its call, because nobody can receive the result. The newest protocol has
// no other cancellation; the older ones have notifications/cancelled.
func TestMCPCancelledCallCancelsItsRun(t *testing.T) {
	t.Parallel()
	for name, giveUp := range map[string]func(*testing.T, *service, context.CancelFunc, []string){
		"closed": func(_ *testing.T, _ *service, leave context.CancelFunc, _ []string) { leave() },
		"cancelled": func(t *testing.T, s *service, _ context.CancelFunc, header []string) {
			s.sends(bounded(t), t, "notifications/cancelled", `{"requestId":1}`, header...)
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
				s := serve(t, waits, nil, nil)
				header, params := modern, callOf(`{"question":"?"}`, "")
				if old {
					header, params = s.starts(t), oldCall
				}
				ctx, leave := context.WithCancel(bounded(t))
				defer leave()
				run := heard(t, s.sends(ctx, t, "tools/call", params, header...)).begun()
				came(t, s.Tools.Entered)
				giveUp(t, s, leave, header)
				agenttest.TerminalEvent[event.Cancelled](t, s.Events(t, run))
				came(t, s.Tools.Canceled)
			})
		}
	}
}

// A host that cannot ask its person is told where the person can answer, and the run
// waits for that.
func TestMCPRunWaitsForAPersonWhomTheClientCannotAsk(t *testing.T) {
	t.Parallel()
	for _, version := range versions[:2] {
		s := serve(t, echoes(), func(o *agent.Options) { o.DisconnectGrace = 1 }, nil, approvesEcho)
		h := s.joins(t, version, nil, nil)
		res, out := h.asks(bounded(t), t, `{"question":"Do it."}`, nil)
		if out.Status != "suspended" || len(out.Interrupts) != 1 || !strings.Contains(textOf(res), "POST /runs/"+out.RunID+"/input") {
			t.Fatalf("%s: %+v, want out.Status suspended, 1 out.Interrupts, textOf(res) containing %s", version, out, "POST /runs/"+out.RunID+"/input")
		}
		decode[output](t, s.do(t, "POST", "/runs/"+out.RunID+"/input", `{"id":"`+out.Interrupts[0].ID+`","approved":true}`), http.StatusOK)
		agenttest.TerminalEvent[event.FinalAnswer](t, s.Events(t, out.RunID))
	}
}

// A client that repeats a call because its result was lost continues the same run, and no input is
// used twice (SEP-2322: the server can rely on the state only).
func TestMCPContinuedCallCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := serve(t, echoes(), nil, nil, approvesEcho)
	first := s.asks(t, callOf(`{"question":"Do it."}`, ""))
	if first.Result.ResultType != "input_required" || len(first.Result.InputRequests) != 1 {
		t.Fatalf("result %+v, want Result.ResultType input_required, 1 Result.InputRequests", first)
	}
	id := ""
	for id = range first.Result.InputRequests {
	}
	state := `,"requestState":"` + first.Result.RequestState + `"`
	// Without an answer it is asked again.
	again := s.asks(t, callOf(`{"question":"Do it."}`, state))
	if _, same := again.Result.InputRequests[id]; !same || again.Result.RequestState != first.Result.RequestState {
		t.Errorf("asked again: %+v, want same true, again.Result.RequestState %q", again, first.Result.RequestState)
	}
	given := state + `,"inputResponses":{"` + id + `":{"action":"accept","content":{"approved":true}},"other":{"action":"accept"}}`
	for range 2 {
		m := s.asks(t, callOf(`{"question":"Do it."}`, given))
		if m.Result.StructuredContent.Answer != "Well." || !strings.HasPrefix(first.Result.RequestState, m.Result.StructuredContent.RunID+":") {
			t.Errorf("answer %+v, Result.RequestState %q, want m.Result.StructuredContent.Answer Well., Result.RequestState starting with %q", m, first.Result.RequestState, m.Result.StructuredContent.RunID+":")
		}
	}
	for _, bad := range []string{"nonsense", "run_x:3", strings.Split(first.Result.RequestState, ":")[0] + ":1", strings.Split(first.Result.RequestState, ":")[0] + ":999"} {
		if m := s.asks(t, callOf(`{"question":"Do it."}`, `,"requestState":"`+bad+`"`)); !m.Result.IsError || m.Result.StructuredContent.Error.Code == "internal" {
			t.Errorf("%s: %+v, want IsError true, StructuredContent.Error.Code other than internal", bad, m.Result)
		}
	}
}

func TestMCPAsksAgainAfterInvalidContent(t *testing.T) {
	t.Parallel()
	s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask", Args: `{}`}), llmtest.Says("Well.")), nil, nil)
	m := s.asks(t, callOf(`{"question":"Book."}`, ""))
	for _, content := range []string{`{"people":"many"}`, `{"people":3}`} {
		for id := range m.Result.InputRequests {
			m = s.asks(t, callOf(`{"question":"Book."}`, `,"requestState":"`+m.Result.RequestState+`","inputResponses":{"`+id+`":{"action":"accept","content":`+content+`}}`))
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

// A call that goes on is as much its caller's as the first one was.
func TestMCPContinuedCallIsCancelledWithItsStream(t *testing.T) {
	t.Parallel()
	s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}), llmtest.Calls(llmtest.Call{Name: "wait", Args: `{}`})), nil, nil, approvesEcho)
	m := s.asks(t, callOf(`{"question":"Do it."}`, ""))
	ctx, leave := context.WithCancel(bounded(t))
	defer leave()
	for id := range m.Result.InputRequests {
		s.sends(ctx, t, "tools/call", callOf(`{"question":"Do it."}`, `,"requestState":"`+m.Result.RequestState+`","inputResponses":{"`+id+`":{"action":"accept","content":{"approved":true}}}`), modern...)
	}
	came(t, s.Tools.Entered)
	leave()
	run, _, _ := strings.Cut(m.Result.RequestState, ":")
	agenttest.TerminalEvent[event.Cancelled](t, s.Events(t, run))
}

// The host is not asked any more about an interrupt that was answered in the console meanwhile.
func TestMCPWithdrawsAnElicitationThatIsAnsweredElsewhere(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"now"}`}), func(w http.ResponseWriter, r *http.Request) {
		select { // or the result is there before the SDK has told the host
		case <-open:
		case <-r.Context().Done():
		}
		llmtest.Says("Well.")(w, r)
	}), nil, nil, approvesEcho)
	header := s.starts(t)
	c := heard(t, s.sends(bounded(t), t, "tools/call", oldCall, header...))
	run := c.begun()
	c.until(func(m message) bool { return m.Method == "elicitation/create" })
	var interrupt string
	s.EventsUntil(t, run, func(e event.Event) bool {
		if b, ok := e.Body.(event.Suspended); ok {
			interrupt = b.Interrupts[0].ID
		}
		return interrupt != ""
	})
	decode[output](t, s.do(t, "POST", "/runs/"+run+"/input", `{"id":"`+interrupt+`","approved":true}`), http.StatusOK)
	c.until(func(m message) bool { return m.Method == "notifications/cancelled" })
	close(open)
	if last := c.result(); last.Result.StructuredContent.Answer != "Well." {
		t.Errorf("result %+v, want Result.StructuredContent.Answer Well.", last)
	}
}

// Two agents that have each other for tools end: the hop count of _meta goes up with every
// agent, and is refused beyond three.
func TestMCPRefusesTooManyHops(t *testing.T) {
	t.Parallel()
	s := serve(t, adds(), nil, nil)
	for hops, want := range map[string]string{"0": "", "3": "", "4": "unprocessable", "1e300": "unprocessable", "-1": "invalid_request", "1.5": "invalid_request", `"4"`: "invalid_request", "null": "invalid_request"} {
		params := strings.Replace(callOf(`{"question":"?"}`, ""), `"progressToken"`, `"io.answerd/hops":`+hops+`,"progressToken"`, 1)
		if got := s.asks(t, params).Result.StructuredContent.Error.Code; got != want {
			t.Errorf("%s hops: %q, want %q", hops, got, want)
		}
	}
}

func TestMCPCallContinuesItsTrace(t *testing.T) {
	t.Parallel()
	s := serve(t, adds(), nil, nil)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	params := strings.Replace(callOf(`{"question":"?"}`, ""), `"progressToken"`, `"traceparent":"00-`+trace+`-00f067aa0ba902b7-01","progressToken"`, 1)
	if got := s.asks(t, params).Result.StructuredContent.TraceID; got != trace {
		t.Errorf("trace %s, want %s", got, trace)
	}
}

func TestMCPIdempotencyKeyIdentifiesACall(t *testing.T) {
	t.Parallel()
	s := serve(t, adds(), nil, nil)
	first := s.asks(t, callOf(`{"question":"a"}`, ""), "Idempotency-Key", "k").Result.StructuredContent
	if again := s.asks(t, callOf(`{"question":"a"}`, ""), "Idempotency-Key", "k").Result.StructuredContent; first.RunID == "" || again.RunID != first.RunID {
		t.Errorf("runs %s and %s, want RunID non-empty, RunID %s", first.RunID, again.RunID, first.RunID)
	}
	if other := s.asks(t, callOf(`{"question":"b"}`, ""), "Idempotency-Key", "k").Result.StructuredContent; other.Error.Code != "unprocessable" {
		t.Errorf("another question: %+v, want Error.Code unprocessable", other)
	}
}

// The tools of two agents are two bodies, even if the arguments are the same.
func TestMCPIdempotencyKeyIsOfOneTool(t *testing.T) {
	t.Parallel()
	s := serve(t, saysItsPrompt, withAgents, nil)
	call := func(tool string) output {
		params := strings.Replace(callOf(`{"question":"?"}`, ""), `"name":"answer"`, `"name":"`+tool+`"`, 1)
		return s.asks(t, params, "Idempotency-Key", "k", "Mcp-Name", tool).Result.StructuredContent
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
		s := serve(t, script, nil, nil)
		params := callOf(`{"question":"?"}`, "")
		if level != "" {
			params = strings.Replace(params, `"progressToken"`, `"io.modelcontextprotocol/logLevel":"`+level+`","progressToken"`, 1)
		}
		logged := false
		heard(t, s.sends(bounded(t), t, "tools/call", params, modern...)).until(func(m message) bool {
			logged = logged || m.Method == "notifications/message" && m.Params.Level == "warning" && m.Params.Logger == "default/steps"
			return false
		})
		if logged != want {
			t.Errorf("level %q: logged is %v, want %v", level, logged, want)
		}
	}
}
