package api_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/definition"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// withAgents makes the agents a, b and c; c is only for callers that no rule of the test matches.
func withAgents(o *agent.Options) {
	o.Agents = []definition.Agent{
		{ID: "a", Prompt: "You are a."},
		{ID: "b", Prompt: "You are b.", Description: "Adds.", Tools: []string{"add"}, Agents: []string{"a"}, Examples: []string{"1 + 2?"}, OutputSchema: json.RawMessage(`{"type":"object"}`)},
		{ID: "c", Prompt: "You are c."},
	}
	o.Rules = auth.NewRules([]auth.Rule{{Agents: []string{"a", "b"}}})
}

// answerWithPrompt answers with its system prompt, as JSON.
func answerWithPrompt(r llmtest.Request) llmtest.Answer {
	return llmtest.Says(`{"prompt":"` + r.Messages[0].Content + `"}`)
}

func TestEveryFormatSelectsAnAgent(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, withAgents, nil)
	for _, f := range []struct{ name, path, body string }{
		{"native", "/answer", `{"question":"?","agent":"ID"}`},
		{"native stream", "/answer/stream", `{"question":"?","agent":"ID"}`},
		{"Chat Completions", "/v1/chat/completions", `{"model":"ID","messages":[{"role":"user","content":"?"}]}`},
		{"Chat Completions, native field", "/v1/chat/completions", `{"messages":[{"role":"user","content":"?"}],"answerd":{"agent":"ID"}}`},
		{"Responses", "/v1/responses", `{"model":"ID","input":"?"}`},
		{"AI SDK", "/api/chat", `{"id":"t","agent":"ID","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"?"}]}]}`},
		{"AG-UI", "/agui/ID", `{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"?"}]}`},
	} {
		t.Run(f.name, func(t *testing.T) {
			ask := func(id string) (int, string) {
				resp := s.do(t, "POST", strings.ReplaceAll(f.path, "ID", id), strings.ReplaceAll(f.body, "ID", id))
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, string(b)
			}

			if status, body := ask("b"); status != 200 || !strings.Contains(body, "You are b.") && !strings.Contains(body, "are b") {
				t.Errorf("b: got %d %s, want 200 and its prompt", status, body)
			}
			before := len(s.Model.Requests())
			if status, body := ask("c"); status != 404 {
				t.Errorf("c, which the rules hide: got %d %s, want 404", status, body)
			}
			if n := len(s.Model.Requests()); n != before {
				t.Errorf("c: got %d model requests, want none", n-before)
			}

			if !strings.HasPrefix(f.path, "/v1/") || strings.Contains(f.body, "answerd") { // there, another name is a model's
				if status, body := ask("unknown"); status != 404 {
					t.Errorf("an unknown agent: got %d %s, want 404", status, body)
				}
			}
		})
	}
}

// A caller must not learn which agents are hidden from them, so an agent's id in the field for the model is answered like
// the id of an unknown model.
func TestHiddenAgentIsRefusedLikeAnUnknownModel(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, func(o *agent.Options) {
		withAgents(o)
		o.Profiles = map[string]llm.Profile{o.DefaultModel: {ID: o.DefaultModel}}
	}, nil)
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"ID","messages":[{"role":"user","content":"?"}]}`,
		"/v1/responses":        `{"model":"ID","input":"?"}`,
	} {
		hidden := decodeResponse[openAIError](t, s.do(t, "POST", path, strings.ReplaceAll(body, "ID", "c")), 404)
		unknown := decodeResponse[openAIError](t, s.do(t, "POST", path, strings.ReplaceAll(body, "ID", "x")), 404)
		if got, want := hidden.Error, unknown.Error; got.Message != want.Message || got.Code != want.Code || got.Type != want.Type {
			t.Errorf("%s: got %+v, want the answer for an unknown model, %+v", path, got, want)
		}
	}
}

// A request that names two agents must not be answered by one of them without a word.
func TestTwoAgentsInOneRequestAreRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, withAgents, nil)
	const b = `"answerd":{"agent":"b"}`
	for _, c := range []struct{ path, body, where string }{
		{"/v1/chat/completions", `{"model":"a","messages":[{"role":"user","content":"?"}],` + b + `}`, `"param":"answerd.agent"`},
		{"/v1/responses", `{"model":"a","input":"?",` + b + `}`, `"param":"answerd.agent"`},
		{"/api/chat", `{"id":"t","agent":"a","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"?"}]}],` + b + `}`, `"pointer":"/answerd/agent"`},
		{"/agui/a", `{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"?"}],"forwardedProps":{` + b + `}}`, `"pointer":"/forwardedProps/answerd/agent"`},
	} {
		for other, status := range map[string]int{"b": 400, "a": 200} {
			resp := s.do(t, "POST", c.path, strings.Replace(c.body, b, `"answerd":{"agent":"`+other+`"}`, 1))
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != status || status == 400 && !strings.Contains(string(body), c.where) {
				t.Errorf("%s, a and %s: got %d %s, %v, want %d, with %s if 400", c.path, other, resp.StatusCode, body, err, status, c.where)
			}
		}
	}

	c := newMessageStream(t, s.postMCP(boundedContext(t), t, "tools/call", strings.Replace(callParams(`{"question":"?","agent":"b"}`, ""), `"answer"`, `"a"`, 1),
		"Mcp-Protocol-Version", protocolVersions[0], "Mcp-Method", "tools/call", "Mcp-Name", "a"))
	if m := c.readResult(); !m.Result.IsError || !strings.Contains(fmt.Sprint(m.Result), "/agent") {
		t.Errorf("MCP: got %+v, want an error about /agent", m.Result)
	}
}

func TestAgentsAreListed(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, withAgents, nil)
	resp := s.do(t, "GET", "/agents", "")
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{
		`{"id":"a","description":"","model":"scripted","default":true,"tools":["add",`,
		`{"id":"b","description":"Adds.","model":"scripted","default":false,"tools":["add","ask_a"],"output_schema":{"type":"object"},"examples":["1 + 2?"]}`,
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("GET /agents: got %s, want %s in it", got, want)
		}
	}

	if strings.Contains(string(got), `"id":"c"`) {
		t.Errorf("GET /agents: got %s, want no c, which the caller may not use", got)
	}
	if resp := s.do(t, "GET", "/agents/b", ""); resp.StatusCode != 200 {
		t.Errorf("GET /agents/b: got %d, want 200", resp.StatusCode)
	}
	wantProblem(t, s.do(t, "GET", "/agents/c", ""), 404, "not_found")

	models := decodeResponse[struct{ Data []struct{ ID string } }](t, s.do(t, "GET", "/v1/models", ""), 200)
	var ids []string
	for _, m := range models.Data {
		ids = append(ids, m.ID)
	}

	if got := strings.ReplaceAll(strings.Join(ids, " "), ":no-tools", "+"); got != "scripted scripted+ a a+ b b+" {
		t.Errorf("GET /v1/models: got %s, want the model and both agents, with and without tools (+)", got)
	}
}

// AGENTS_FILE may be read again while GET /agents is answered. Its tools are a list all the same.
func TestToolsOfARemovedAgentAreAnEmptyList(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, withAgents, nil)
	if got, err := json.Marshal(s.Agent.AgentTools(t.Context(), auth.Identity{}, "removed")); err != nil || string(got) != "[]" {
		t.Errorf("tools of an agent that was removed: got %s, %v, want []", got, err)
	}
}

// Its caller has named no agent, so the problem must not be about the id of one.
func TestThreadOfARemovedAgentNeedsAnotherAgent(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, withAgents, nil)
	readBody(t, s.do(t, "POST", "/answer", `{"question":"?","thread_id":"t","agent":"b"}`))
	if err := s.Agent.ReplaceAgents([]definition.Agent{{ID: "a", Prompt: "You are a."}}); err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string]string{
		"/answer":              `{"question":"?","thread_id":"t"}`,
		"/v1/chat/completions": `{"model":"scripted","messages":[{"role":"user","content":"?"}],"answerd":{"thread_id":"t"}}`,
	} {
		resp := s.do(t, "POST", path, body)
		if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 404 || !strings.Contains(string(got), "answered last in this thread") {
			t.Errorf("%s: got %d %s, %v, want 404 that names the cause", path, resp.StatusCode, got, err)
		}
	}
	if got := readBody(t, s.do(t, "POST", "/answer", `{"question":"?","thread_id":"t","agent":"a"}`)); !strings.Contains(got, "You are a.") {
		t.Errorf("with another agent: got %s, want its answer", got)
	}
}

func TestEachAgentIsAnMCPTool(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			s := newService(t, answerWithPrompt, withAgents, nil)
			host := s.connectHost(t, version, nil, nil)
			list, err := host.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}

			var names []string
			for _, tool := range list.Tools {
				names = append(names, tool.Name)
				if schema, _ := json.Marshal(tool.OutputSchema); tool.Name == "b" && string(schema) != `{"type":"object"}` {
					t.Errorf("b: got output schema %s, want that of the agent", schema)
				}
			}

			if got := strings.Join(names, " "); got != "answer a b" {
				t.Errorf("tools: got %s, want answer a b", got)
			}

			for tool, want := range map[string]string{"answer": "You are a.", "a": "You are a.", "b": "You are b."} {
				res, err := host.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(`{"question":"?"}`)})
				if err != nil {
					t.Fatal(err)
				}
				structured, _ := json.Marshal(res.StructuredContent)
				if res.IsError || !strings.Contains(string(structured), want) || tool == "b" && string(structured) != `{"prompt":"You are b."}` {
					t.Errorf("%s: got %s, want %q, and of b the output alone", tool, structured, want)
				}
			}

			if res, err := host.CallTool(t.Context(), &sdk.CallToolParams{Name: "c", Arguments: json.RawMessage(`{"question":"?"}`)}); err == nil {
				t.Errorf("c, which the rules hide: got %+v, want an error", res)
			}
		})
	}
}

// A person decides about the call that the asked agent wants to make. The call of the agent that asks, which has
// another tool and other arguments, cannot stand for it, nor for two of them.
func TestPagesShowWhichCallsOfAnAskedAgentNeedApproval(t *testing.T) {
	t.Parallel()
	s := newService(t, func(r llmtest.Request) llmtest.Answer {
		switch asked, last := r.Messages[0].Content == "You are a.", r.Messages[len(r.Messages)-1]; {
		case last.Role != "user":
			return llmtest.Says("{}")
		case asked:
			return llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}, llmtest.Call{Name: "add", Args: `{"a":3,"b":4}`})
		}
		return llmtest.Calls(llmtest.Call{Name: "ask_a", Args: `{"question":"?"}`})
	}, func(o *agent.Options) {
		withAgents(o)
		o.Agents[1].Tools = nil
	}, nil, addNeedsApproval)

	var shown, message string
	inputs := make(map[string]string) // of the calls, by id
	var parts []string
	for _, f := range readFrames(t, s.do(t, "POST", "/api/chat", strings.Replace(chatBody("c", "?"), "{", `{"agent":"b",`, 1)), "") {
		var c struct {
			Type, MessageID, ToolCallID, ToolName, ApprovalID string

			Input json.RawMessage
		}
		_ = json.Unmarshal(f.Data, &c) // [DONE] is no chunk
		switch c.Type {
		case "start":
			message = c.MessageID
		case "tool-input-available":
			inputs[c.ToolCallID] = c.ToolName + string(c.Input)
		case "tool-approval-request":
			shown += inputs[c.ToolCallID] + " "
			parts = append(parts, fmt.Sprintf(`{"type":"dynamic-tool","toolName":"add","toolCallId":%q,"state":"approval-responded","approval":{"id":%q,"approved":true}}`, c.ToolCallID, c.ApprovalID))
			delete(inputs, c.ToolCallID) // a part has room for one approval
		}
	}
	if one, two := `add{"a":1,"b":2} `, `add{"a":3,"b":4} `; shown != one+two && shown != two+one {
		t.Fatalf("a page asks about %q, want %q and %q", shown, one, two)
	}
	answer := `{"id":"c","agent":"b","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"?"}]},` +
		`{"id":"` + message + `","role":"assistant","parts":[` + strings.Join(parts, ",") + `]}]}`
	rest := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", answer), ""))
	if types := chunkTypes(rest); !strings.Contains(types, "text-delta") || strings.Count(types, "tool-output-available") != 3 {
		t.Errorf("after the answers: %s, want the outputs of three calls and a text", types)
	}

	frames := readFrames(t, s.do(t, "POST", "/agui/b", `{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"?"}]}`), "")
	if end := string(frames[len(frames)-1].Data); !strings.Contains(end, `{\"a\":1,\"b\":2}`) || !strings.Contains(end, `{\"a\":3,\"b\":4}`) {
		t.Errorf("AG-UI: got the end %s, want interrupts whose messages have the arguments", end)
	}
}

// TestDeletedRunDeletesItsChildren deletes a run whose agent has asked another one.
func TestDeletedRunDeletesItsChildren(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{"/runs/": `{"question":"?","agent":"b"}`, "/v1/responses/": `{"model":"b","input":"?"}`} {
		s := newService(t, func(r llmtest.Request) llmtest.Answer {
			if r.Messages[0].Content == "You are b." && r.Messages[len(r.Messages)-1].Role == "user" {
				return llmtest.Calls(llmtest.Call{Name: "ask_a", Args: `{"question":"?"}`})
			}
			return llmtest.Says("{}")
		}, func(o *agent.Options) {
			withAgents(o)
			o.Agents[1].Tools = nil
		}, nil)

		route := map[string]string{"/runs/": "/answer", "/v1/responses/": "/v1/responses"}[path]
		answer := decodeResponse[map[string]any](t, s.do(t, "POST", route, body), 200)
		id, _ := cmp.Or(answer["run_id"], answer["id"]).(string)
		page, err := s.Log.Runs(t.Context(), event.Filter{Children: true})
		if err != nil || len(page.Runs) != 2 {
			t.Fatalf("runs: got %v, %v, want a run and its child", page.Runs, err)
		}
		if resp := s.do(t, "DELETE", path+id, ""); resp.StatusCode >= 300 {
			t.Fatalf("DELETE %s%s: got %s, want it deleted", path, id, resp.Status)
		}
		if page, err = s.Log.Runs(t.Context(), event.Filter{Children: true}); err != nil || len(page.Runs) > 0 {
			t.Errorf("runs after DELETE %s%s: got %v, %v, want none", path, id, page.Runs, err)
		}
	}
}

// The path of AG-UI's capabilities is not that of an agent.
func TestPathOfCapabilitiesSelectsNoAgent(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, withAgents, nil)
	for _, method := range []string{"POST", "OPTIONS", "DELETE"} {
		resp := s.do(t, method, "/agui/capabilities", `{}`)
		if got := resp.Header.Get("Allow"); resp.StatusCode != 405 || got != "GET, HEAD" {
			t.Errorf("%s /agui/capabilities: got %s with Allow %q, want 405 with GET, HEAD", method, resp.Status, got)
		}
	}
	if resp := s.do(t, "GET", "/agui/a", ""); resp.StatusCode != 405 || resp.Header.Get("Allow") != "POST" {
		t.Errorf("GET /agui/a: got %s with Allow %q, want 405 with POST", resp.Status, resp.Header.Get("Allow"))
	}
}

// Hosts check the structured result against the output schema of the tool, and refuse any other.
func TestToolWithAnOutputSchemaTakesNoOther(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, withAgents, nil)
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		host := s.connectHost(t, version, nil, nil)
		list, err := host.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			before := len(s.Model.Requests())
			res, err := host.CallTool(t.Context(), &sdk.CallToolParams{Name: tool.Name, Arguments: json.RawMessage(`{"question":"?","output_schema":{}}`)})
			if err != nil {
				t.Fatal(err)
			}
			schema, _ := json.Marshal(tool.InputSchema)
			takes, answered := strings.Contains(string(schema), "output_schema"), len(s.Model.Requests()) > before
			if own := tool.Name == "b"; takes == own || answered == own || res.IsError != own {
				got, _ := json.Marshal(res)
				t.Errorf("%s, %s: output_schema is an argument: %t; got %s; want it taken: %t", version, tool.Name, takes, got, !own)
			}
		}
	}
}
