package api_test

import (
	"net/http"
	"strings"
	"testing"

	"answerd/internal/api"
	"answerd/internal/llm/llmtest"
)

// What the model of a host gets wrong it must be able to read; a JSON-RPC error it
// does not see.
func TestAToolCallThatCannotBeUsedIsAResultThatSaysWhy(t *testing.T) {
	s := serve(t, adds(), nil, nil)
	for arguments, pointer := range map[string]string{
		`{}`: "/question", `{"question":" "}`: "/question", `{"question":"?","max_turns":0}`: "/max_turns", `{"question":"?","nope":1}`: "/nope",
		`{"question":"?","background":true}`: "/background", `{"question":"?","servers":["x"]}`: "/servers/0", `{"question":"?","budget":{"cost":-1}}`: "/budget/cost",
		`{"question":"?","question":"!"}`: "/question", `{"question":"?","history":[{"role":"user"}]}`: "/history/0/content", `[]`: "", `null`: "", `"?"`: "",
	} {
		m := s.asks(t, callOf(arguments, ""))
		e := m.Result.StructuredContent.Error
		if !m.Result.IsError || e.Code != "invalid_request" || len(e.Errors) == 0 || e.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v", arguments, m)
		}
	}
	if n := len(s.Model.Requests()); n != 0 {
		t.Errorf("the model was asked %d times", n)
	}
}

func TestAFailingRunIsAResultThatSaysWhy(t *testing.T) {
	s := serve(t, llmtest.Turns(llmtest.Fails(http.StatusBadRequest, "secret upstream text")), nil, nil)
	m := s.asks(t, callOf(`{"question":"?"}`, ""))
	out := m.Result.StructuredContent
	if !m.Result.IsError || out.Error.Code != "model_error" || out.RunID == "" || out.Error.Instance != "/runs/"+out.RunID || strings.Contains(out.Error.Detail, "secret") {
		t.Errorf("%+v", m)
	}
}

// Whatever is no message of the protocol is refused before the SDK sees it, or by it, and
// starts nothing.
func TestWhatIsNoMessageIsRefused(t *testing.T) {
	s := serve(t, adds(), nil, nil)
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
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	if m := s.asks(t, callOf(`{"question":"?"}`, "")); m.Result.StructuredContent.Answer != "It is 3." {
		t.Errorf("after all that: %+v", m)
	}
	if n := len(s.Model.Requests()); n != 2 {
		t.Errorf("the model was asked %d times", n)
	}
}

// A run is its caller's here as everywhere: neither its state nor a session's id lets
// another go on with it.
func TestARunOfAHostIsItsCallers(t *testing.T) {
	iam := newMint(t)
	v := iam.verifier(t, nil)
	s := serve(t, echoes(), nil, func(o *api.Options) { o.Verifier = v }, approvesEcho)
	ada, eve := []string{"Authorization", iam.bearer("ada")}, []string{"Authorization", iam.bearer("eve")}
	first := s.asks(t, callOf(`{"question":"Do it."}`, ""), ada...)
	given := `,"requestState":"` + first.Result.RequestState + `","inputResponses":{`
	for id := range first.Result.InputRequests {
		given += `"` + id + `":{"action":"accept","content":{"approved":true}}}`
	}
	if m := s.asks(t, callOf(`{"question":"Do it."}`, given), eve...); m.Result.StructuredContent.Error.Code != "not_found" {
		t.Errorf("another goes on: %+v", m)
	}
	if m := s.asks(t, callOf(`{"question":"Do it."}`, given), ada...); m.Result.StructuredContent.Answer != "Well." {
		t.Errorf("the owner goes on: %+v", m)
	}
	session := s.starts(t, ada...)
	for _, header := range [][]string{append(session[:4:4], eve...), session[:4]} {
		resp := s.sends(bounded(t), t, "tools/list", `{}`, header...)
		if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("another's session: %s", resp.Status)
		}
	}
}
