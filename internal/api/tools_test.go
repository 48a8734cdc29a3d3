package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
)

// toolResult is what a caller reads of a call that worked.
type toolResult struct {
	CallID  string `json:"call_id"`
	Tool    string
	Server  string
	Args    json.RawMessage
	Payload json.RawMessage
	Content []json.RawMessage
}

func TestToolCallWithoutAModel(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	got := decodeResponse[toolResult](t, s.do(t, "POST", "/tools/add/call", `{"args": {"b":2, "a":1}, "context": {"k":"v"}}`), 200)
	if string(got.Payload) != `{"sum":3}` || got.Tool != "add" || got.Server != "default" || !strings.HasPrefix(got.CallID, "call_") {
		t.Errorf(`result %+v, want Payload {"sum":3}, Tool add, Server default, CallID starting with call_`, got)
	}
	if n := len(s.Model.Requests()); n != 0 {
		t.Errorf("the model was asked %d times, want 0", n)
	}
}

// The tool gets the arguments that the caller wrote, and the result names them.
func TestToolCallArgumentsAreNotRewritten(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	const args = `{"text":"<&>\u00e9 1.50"}`
	got := decodeResponse[toolResult](t, s.do(t, "POST", "/tools/echo/call", `{"args":`+args+`}`), 200)
	var payload string
	if err := json.Unmarshal(got.Payload, &payload); err != nil || payload != "<&>é 1.50" || string(got.Args) != args {
		t.Errorf(`args %s, payload %s, %v, payload %q, want payload "<&>é 1.50", Args %s, no error`, got.Args, got.Payload, err, payload, args)
	}
}

// Every failure is a problem with the kind that tool_error would have.
func TestToolCallFailureIsAProblemOfItsKind(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)

	type failure struct {
		problem
		Kind   string
		CallID string `json:"call_id"`
	}

	for _, c := range []struct {
		path, body string
		status     int
		code, kind string
	}{
		{"/tools/none/call", `{}`, 404, "not_found", "unknown_tool"},
		{"/tools/" + strings.Repeat("x", 4096) + "/call", `{}`, 404, "not_found", "unknown_tool"},
		{"/tools/%ff/call", `{}`, 404, "not_found", "unknown_tool"},
		{"/tools/fail/call", `{}`, 502, "tool_error", "execution"},
		{"/tools/add/call", `{"args":{"x":"` + strings.Repeat("x", 64<<10) + `"}}`, 422, "unprocessable", "invalid_arguments"},
	} {
		p := decodeResponse[failure](t, s.do(t, "POST", c.path, c.body), c.status)
		if p.Code != c.code || p.Kind != c.kind || p.CallID == "" || p.Detail == "" || len(p.Detail) > 2048 {
			t.Errorf("%.40s: %+v, want Code %q, Kind %q, CallID non-empty, Detail non-empty, len(Detail) at most 2048", c.path, p, c.code, c.kind)
		}
	}

	if p := decodeResponse[failure](t, s.do(t, "POST", "/tools/fail/call", `{}`), 502); p.Detail != "the tool is out of order" {
		t.Errorf(`detail %q, want "the tool is out of order"`, p.Detail)
	}
}

// S1.5: every argument that does not fit is named, by where it is in the body.
func TestToolCallNamesInvalidArguments(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	p := wantProblem(t, s.do(t, "POST", "/tools/add/call", `{"args":{"a":"x","bee":2}}`), 422, "unprocessable")
	got := make(map[string]string)
	for _, e := range p.Errors {
		got[e.Pointer] = e.Detail
	}
	if len(got) != 3 || got["/args/b"] != "missing required field: b" || got["/args/a"] != `expected number, got string "x"` || got["/args/bee"] == "" {
		t.Errorf(`make %+v, want 3, ["/args/b"] "missing required field: b", ["/args/a"] expected number, got string "x", ["/args/bee"] non-empty`, got)
	}
	// The very way of a run's calls: what is only written as text is repaired.
	repaired := decodeResponse[toolResult](t, s.do(t, "POST", "/tools/add/call", `{"args":{"a":"1","b":2}}`), 200)
	if string(repaired.Args) != `{"a":1,"b":2}` || string(repaired.Payload) != `{"sum":3}` {
		t.Errorf(`repaired %+v, want Args {"a":1,"b":2}, Payload {"sum":3}`, repaired)
	}
}

func TestToolCallRefusesInvalidBodies(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for _, body := range []string{`[]`, `{"args":[]}`, `{"args":null}`, `{"arguments":{}}`, `{"args":{},"args":{}}`, `{"args":{"a":1,"a":2}}`, `{} {}`, `{"context":{"a":1}}`} {
		p := wantProblem(t, s.do(t, "POST", "/tools/meet/call", body), 400, "invalid_request")
		if len(p.Errors) == 0 {
			t.Errorf("%s: no errors, %d Errors, want non-zero", body, len(p.Errors))
		}
	}

	wantProblem(t, s.do(t, "POST", "/tools/meet/call", `{}`, "Origin", "https://example.com"), 403, "forbidden")
	wantProblem(t, s.do(t, "POST", "/tools/meet/call", `{}`, "Content-Type", "text/plain"), 415, "unsupported_media")
	wantProblem(t, s.do(t, "POST", "/tools/meet/call", `{}`, "Accept", "text/html"), 406, "not_acceptable")
	wantProblem(t, s.do(t, "GET", "/tools/meet/call", ""), 405, "method_not_allowed")

	select {
	case <-s.Tools.Entered:
		t.Error("the tool was called, want it refused")
	default:
	}
}

// newToolCallRequest returns a request for one call without arguments.
func newToolCallRequest(ctx context.Context, t *testing.T, s *service, tool string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/tools/"+tool+"/call", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return req
}

// A caller that leaves ends its call, and the tool sees it.
func TestToolCallEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-s.Tools.Entered
		leave()
	}()
	if resp, err := s.Client().Do(newToolCallRequest(ctx, t, s, "wait")); err == nil {
		resp.Body.Close()
		t.Errorf("status %s, want an error", resp.Status)
	}
	<-s.Tools.Canceled
}

// A call under way holds a place of MaxRuns, keeps a drain waiting, and is ended by it.
func TestToolCallCountsAsARun(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), func(o *agent.Options) { o.MaxRuns = 1 }, nil)
	first := make(chan *http.Response, 1)
	held := newToolCallRequest(t.Context(), t, s, "wait")
	go func() {
		resp, err := s.Client().Do(held)
		if err != nil {
			t.Error(err)
		}
		first <- resp
	}()

	<-s.Tools.Entered
	s.fillQueue(t)
	wantProblem(t, s.do(t, "POST", "/tools/add/call", `{}`), 503, "overloaded")
	wantProblem(t, s.do(t, "POST", "/answer", question), 503, "overloaded")
	over, stop := context.WithCancel(t.Context())
	stop()
	s.Drain(over)
	<-s.Tools.Canceled
	resp := <-first
	defer resp.Body.Close()
	wantProblem(t, resp, 503, "server_shutdown")
	wantProblem(t, s.do(t, "POST", "/tools/add/call", `{}`), 503, "draining")
}

func TestToolsAndServersAreListed(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	tools := decodeResponse[struct {
		Tools []struct {
			Name, Server string
			InputSchema  map[string]any `json:"input_schema"`
		}
	}](t, s.do(t, "GET", "/tools", ""), 200).Tools
	if len(tools) != 10 || tools[0].Name != "add" || tools[0].Server != "default" || tools[0].InputSchema["type"] != "object" {
		t.Errorf(`tools %+v, want 10, [0].Name add, [0].Server default, [0].InputSchema["type"] object`, tools)
	}

	type server struct {
		Name, State string
		Tools       int
	}
	list := decodeResponse[struct{ Servers []server }](t, s.do(t, "GET", "/servers", ""), 200).Servers
	if len(list) != 1 || list[0] != (server{"default", "connected", 10}) {
		t.Errorf("servers %+v, want default, connected, with 10 tools", list)
	}

	// S2.12
	if again := decodeResponse[server](t, s.do(t, "POST", "/servers/default/refresh", ""), 200); again != list[0] {
		t.Errorf("refreshed %+v, want %+v", again, list[0])
	}
	wantProblem(t, s.do(t, "POST", "/servers/none/refresh", ""), 404, "not_found")
}
