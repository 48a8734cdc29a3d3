package agent_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/webhook"
	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// newWatchedFixture returns a fixture whose hook service is asked about every event.
func newWatchedFixture(t *testing.T, script llmtest.Script, answer func(webhooktest.Question) string, set func(*agent.Options), configure ...func(*config.Server)) (*agenttest.Fixture, *webhooktest.Service) {
	t.Helper()
	s := webhooktest.New(t, answer)
	return agenttest.NewFixture(t, script, func(o *agent.Options) {
		if set != nil {
			set(o)
		}
		o.Hooks = newHooks(t, s.URL, webhook.Events()...)
	}, configure...), s
}

func newHooks(t *testing.T, url string, events ...webhook.Event) *webhook.Client {
	t.Helper()
	hooks, err := webhook.New(webhook.Options{URL: url, Secret: webhooktest.Secret, Events: events})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hooks.Close)
	return hooks
}

// hooksOf returns the names of the hooks that were asked, in order.
func hooksOf(s *webhooktest.Service) string {
	var out []string
	for _, q := range s.Questions() {
		out = append(out, q.Hook)
	}
	return strings.Join(out, " ")
}

func emptyReply(webhooktest.Question) string { return `{}` }

func TestRunHooksAreAskedInOrderWithWhatHappened(t *testing.T) {
	h, s := newWatchedFixture(t, llmtest.Turns(llmtest.SaysAndCalls("Let me see.", onePlusTwo), llmtest.Says("It is 3.")), emptyReply, nil)
	run, err := h.Start(t.Context(), auth.Identity{Subject: "ada"}, agent.Request{Question: "What is 1 + 2?"})
	if err != nil {
		t.Fatal(err)
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	if got, want := hooksOf(s), "pre_model_call model_result pre_tool_call tool_result pre_model_call model_result run_end"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}

	q := s.Questions()
	for _, i := range []int{0, 1, 4, 5, 6} {
		if q[i].RunID != run.ID || q[i].ThreadID != run.ThreadID || q[i].Subject != "ada" || q[i].Timestamp == 0 {
			t.Errorf("%s: got %+v, want run, thread and subject", q[i].Hook, q[i])
		}
	}

	if r := q[0].Request; q[0].Step != 1 || r.Model != "scripted" || len(r.Messages) != 2 || r.Messages[0].Role != "system" || r.Messages[1].Content != "What is 1 + 2?" || !slices.Contains(r.Tools, "add") {
		t.Errorf("first pre_model_call: got step %d, %+v, want step 1, the question and the tool add", q[0].Step, r)
	}
	if r := q[1].Result; q[1].Step != 1 || r.Text != "Let me see." || len(r.Calls) != 1 || r.Calls[0].Tool != "add" || string(r.Calls[0].Args) != onePlusTwo.Args || r.FinishReason != "tool_calls" || r.Usage == nil || r.Model == "" {
		t.Errorf("first model_result: got step %d, %+v, want step 1, its text and the call of add", q[1].Step, r)
	}
	if m := q[4].Request.Messages; q[4].Step != 2 || len(m) != 4 || m[2].Calls[0].CallID != q[2].CallID || m[3].Role != "tool" || m[3].Content != `{"sum":3}` || m[3].CallID != q[2].CallID {
		t.Errorf("second pre_model_call: got step %d, %+v, want step 2, the call and its result", q[4].Step, m)
	}
	if r := q[6].Result; q[6].Status != "completed" || q[6].Error != nil || r.Answer != "It is 3." || r.FinishReason != "stop" || !strings.Contains(string(r.Metadata), `"tool_names":["add"]`) {
		t.Errorf("run_end: got status %s, %+v, want completed and the answer with its metadata", q[6].Status, r)
	}
}

func TestRunHooksAreAskedOnlyIfEnabled(t *testing.T) {
	h, s := newHookedFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("3.")), emptyReply, nil)
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{}).ID))
	if got, want := hooksOf(s), "pre_tool_call tool_result"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What a hook adds is in the request of that step, and in no later one.
func TestPreModelCallExtendsOneRequest(t *testing.T) {
	h, _ := newWatchedFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("3.")), func(q webhooktest.Question) string {
		if q.Hook == "pre_model_call" && q.Step == 1 {
			return `{"instructions":"Speak Latin.","messages":[{"role":"user","content":"Know this too."}]}`
		}
		return `{}`
	}, nil)
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{Question: "1 + 2?"}).ID))
	requests := h.Model.Requests()
	first := requests[0].Messages
	if len(first) != 3 || !strings.HasSuffix(first[0].Content, "\n\nSpeak Latin.") || first[1].Content != "1 + 2?" || first[2].Role != "user" || first[2].Content != "Know this too." {
		t.Errorf("first request: got %+v, want the instructions in the first message and the added message last", first)
	}
	if second := string(requests[1].Body); strings.Contains(second, "Latin") || strings.Contains(second, "Know this") {
		t.Errorf("second request: got %s, want nothing of the hook", second)
	}
}

// An extension that does not fit the window is trimmed for, or ends the run.
func TestPreModelCallExtensionIsBoundByTheWindow(t *testing.T) {
	h, _ := newWatchedFixture(t, llmtest.Turns(llmtest.Says("Hello.")), replyOnlyTo("pre_model_call", `{"instructions":"`+strings.Repeat("word ", 20000)+`"}`),
		func(o *agent.Options) {
			o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", ContextTokens: 4000}}
		})
	end := agenttest.TerminalEvent[event.RunError](t, h.Events(t, h.StartRun(t, agent.Request{}).ID))
	if end.Code != "too_large" || len(h.Model.Requests()) != 0 {
		t.Errorf("got %+v and %d requests, want too_large and none", end, len(h.Model.Requests()))
	}
}

func TestRunHooksCanEndTheRun(t *testing.T) {
	for hook, requests := range map[string]int{"pre_model_call": 0, "model_result": 1, "interrupt": 1} {
		t.Run(hook, func(t *testing.T) {
			h, s := newWatchedFixture(t, llmtest.Turns(llmtest.SaysAndCalls("secret plan", onePlusTwo), llmtest.Says("Done.")),
				replyOnlyTo(hook, `{"abort":true,"reason":"not today"}`), nil, approveTools("add"))
			events := h.Events(t, h.StartRun(t, agent.Request{Interactive: true}).ID)
			end := agenttest.TerminalEvent[event.RunError](t, events)
			if end.Code != "tool_aborted" || end.Message != "A hook ended the run: not today" || end.Retryable || len(h.Model.Requests()) != requests {
				t.Errorf("got %+v after %d requests, want tool_aborted after %d", end, len(h.Model.Requests()), requests)
			}
			if hook == "model_result" && end.PartialAnswer != "" {
				t.Errorf("got partial answer %q, want none", end.PartialAnswer)
			}
			if len(h.Tools.CallCounts()) != 0 {
				t.Errorf("got calls %v, want none", h.Tools.CallCounts())
			}
			q := s.Questions()
			if last := q[len(q)-1]; last.Hook != "run_end" || last.Status != "failed" || last.Error.Code != "tool_aborted" {
				t.Errorf("last question: got %+v, want run_end, failed, tool_aborted", last)
			}
		})
	}
}

// A service that is down or replies badly changes nothing about a run.
func TestRunHooksWithoutAUsableReplyChangeNothing(t *testing.T) {
	for name, reply := range map[string]string{"down": "", "prose": "no", "of another hook": `{"args":{}}`} {
		h, s := newWatchedFixture(t, llmtest.Turns(llmtest.Says("Hello.")), func(webhooktest.Question) string { return reply }, nil)
		end := agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{}).ID))
		if got, want := hooksOf(s), "pre_model_call model_result run_end"; end.Answer != "Hello." || got != want {
			t.Errorf("%s: got answer %q and hooks %s, want Hello. and %s", name, end.Answer, got, want)
		}
	}
}

func TestRunEndTellsHowEveryRunEnds(t *testing.T) {
	gate, gone := newGate(), make(chan struct{}, 1)
	h, s := newWatchedFixture(t, llmtest.Turns(gate.blockAnswer(gone)), emptyReply, nil)
	run := h.StartRun(t, agent.Request{})
	h.EventsUntil(t, run.ID, func(e event.Event) bool { return e.Body.Type() == "text_delta" })
	if err := h.Cancel(t.Context(), run.ID); err != nil {
		t.Fatal(err)
	}
	end := agenttest.TerminalEvent[event.Cancelled](t, h.Events(t, run.ID))
	<-gone
	q := s.Questions()
	if last := q[len(q)-1]; last.Hook != "run_end" || last.Status != "cancelled" || last.Error.Code != "cancelled" || last.Error.Message != "requested" || last.Error.PartialAnswer != end.PartialAnswer || last.Result != nil {
		t.Errorf("cancelled: got %+v, error %+v, want run_end, cancelled, requested", last, last.Error)
	}
	h, s = newWatchedFixture(t, llmtest.Turns(llmtest.Fails(http.StatusBadRequest, "no")), emptyReply, nil)
	failed := agenttest.TerminalEvent[event.RunError](t, h.Events(t, h.StartRun(t, agent.Request{}).ID))
	q = s.Questions()
	if last := q[len(q)-1]; last.Hook != "run_end" || last.Status != "failed" || last.Error.Code != failed.Code || last.Error.Message != failed.Message {
		t.Errorf("failed: got %+v, error %+v, want %+v", last, last.Error, failed)
	}
}

func TestInterruptHookHasTheQuestion(t *testing.T) {
	h, s := newWatchedFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done.")), emptyReply, nil, approveTools("add"))
	run := h.StartRun(t, agent.Request{Interactive: true}).ID
	i := waitUntilSuspended(t, h, run, 1)[0]
	answerInterrupt(t, h, run, agent.Input{ID: i.ID, Approved: new(true)})
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run))
	h.Drain(t.Context()) // the question to the hook is independent of the answer

	for _, q := range s.Questions() {
		if q.Hook != "interrupt" {
			continue
		}
		if q.RunID != run || q.Interrupt.ID != i.ID || q.Interrupt.Kind != "approval" || q.Interrupt.Tool != "add" || string(q.Interrupt.Args) != onePlusTwo.Args || q.Interrupt.CallID != i.CallID {
			t.Errorf("got %+v, %+v; want %+v", q, q.Interrupt, i)
		}
		return
	}
	t.Errorf("got %s, want interrupt among them", hooksOf(s))
}

// collectMembers adds the paths of a JSON value's members to a set: a.b, or a[].b within an array. It stops at
// members whose content belongs to others.
func collectMembers(set map[string]bool, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			member := strings.TrimPrefix(path+"."+name, ".")
			set[member] = true
			if !slices.Contains([]string{"args", "content", "structured", "schema", "metadata"}, name) {
				collectMembers(set, member, value)
			}
		}
	case []any:
		for _, value := range v {
			collectMembers(set, path+"[]", value)
		}
	}
}

// docs/hooks.md has an example of each body, with members that the bodies have, and names each
// member that a body can have.
func TestHookBodiesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}

	// Execute runs in which every hook is called.
	h, s := newWatchedFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo, llmtest.Call{Name: "fail"}, llmtest.Call{Name: "echo", Args: "["}, llmtest.Call{Name: "ask"}), llmtest.Says("Done.")), emptyReply,
		func(o *agent.Options) {
			o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Images: true, MaxOutputTokens: 500}}
		}, approveTools("add"))
	picture := agent.Media{MIME: "image/png", Data: base64.StdEncoding.EncodeToString([]byte("\x89PNG\r\n\x1a\n of a test"))}
	run := h.StartRun(t, agent.Request{Question: "?", Interactive: true, Media: []agent.Media{picture}}).ID
	for _, i := range waitUntilSuspended(t, h, run, 1) {
		in := agent.Input{ID: i.ID, Approved: new(true)}
		if i.Kind == event.KindElicitation {
			in = agent.Input{ID: i.ID, Action: "decline"}
		}
		answerInterrupt(t, h, run, in)
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run))
	refused, again := newWatchedFixture(t, llmtest.Turns(llmtest.Fails(http.StatusBadRequest, "no")), emptyReply, nil)
	agenttest.TerminalEvent[event.RunError](t, refused.Events(t, refused.StartRun(t, agent.Request{}).ID))
	h.Drain(t.Context())

	// Collect the members of the bodies.
	sent := make(map[string]map[string]bool) // the members of the bodies, by hook
	for _, q := range append(s.Questions(), again.Questions()...) {
		var body any
		if err := json.Unmarshal(q.Body, &body); err != nil {
			t.Fatal(err)
		}
		if sent[q.Hook] == nil {
			sent[q.Hook] = make(map[string]bool)
		}
		collectMembers(sent[q.Hook], "", body)
	}

	// The examples of the page have no other members.
	examples := make(map[string]bool)
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(page, -1) {
		var body map[string]any
		if err := json.Unmarshal(block[1], &body); err != nil {
			t.Fatalf("%v in\n%s", err, block[1])
		}
		hook, _ := body["hook"].(string)
		examples[hook] = true
		set := make(map[string]bool)
		collectMembers(set, "", body)
		for member := range set {
			if !sent[hook][member] {
				t.Errorf("the example of %s has %s, want a member that is sent", hook, member)
			}
		}
	}

	// The page names each member.
	for _, hook := range webhook.Events() {
		if !examples[string(hook)] {
			t.Errorf("got no example of %s, want one", hook)
		}
		for member := range sent[string(hook)] {
			names := strings.Split(member, ".")
			if name := names[len(names)-1]; !regexp.MustCompile("[`.\"]" + name + "[`\"]").Match(page) {
				t.Errorf("%s has %s, want %s in docs/hooks.md", hook, member, name)
			}
		}
	}
}

// S0.5: blocks of a hook are a result like a server's: for the model, its images included, for
// events and for programs.
func TestHookCanGiveContentBlocks(t *testing.T) {
	png := base64.StdEncoding.EncodeToString([]byte("\x89PNG\r\n\x1a\n of a test"))
	wav := base64.StdEncoding.EncodeToString([]byte("RIFF\x00\x00\x00\x00WAVE"))
	blocks := `[{"type":"text","text":"A chart <b>"},{"type":"image","data":"` + png + `","mimeType":"image/png"},{"type":"audio","data":"` + wav +
		`","mimeType":"audio/wav"},{"type":"resource_link","uri":"https://docs.example/a","name":"a"}]`
	for _, hook := range []string{"pre_tool_call", "tool_result", "tool_error"} {
		t.Run(hook, func(t *testing.T) {
			call := onePlusTwo
			if hook == "tool_error" {
				call = llmtest.Call{Name: "fail"}
			}

			h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(call), llmtest.Says("Done.")), replyOnlyTo(hook, `{"content":`+blocks+`,"structured":{"points":[1,2]}}`),
				func(o *agent.Options) {
					o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Images: true}}
				})

			events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			results := agenttest.EventsOf[event.ToolResult](events)
			if len(results) != 1 || len(results[0].Content) != 4 || string(results[0].Structured) != `{"points":[1,2]}` || string(end.Metadata.ToolResults[0]) != `{"points":[1,2]}` {
				t.Fatalf("got results %+v, metadata %s, want one result of four blocks and the structured content", results, joinRaw(end.Metadata.ToolResults))
			}
			var text struct{ Text string }
			if err := json.Unmarshal(results[0].Content[0], &text); err != nil || text.Text != "A chart <b>" {
				t.Errorf("got %s, want the text", results[0].Content[0])
			}

			sent := string(h.Model.Requests()[1].Body)
			for want, is := range map[string]bool{png: true, wav: false, "https://docs.example/a": true, "[audio audio/wav": true} {
				if strings.Contains(sent, want) != is {
					t.Errorf("the model's request contains %.30q: %t, want %t", want, !is, is)
				}
			}
		})
	}
}

// Structured content of a hook is compared with the tool's output schema, as a server's is.
func TestStructuredContentOfAHookIsCheckedAgainstTheSchema(t *testing.T) {
	for structured, violations := range map[string]int{`{"sum":7}`: 0, `{"sum":"seven"}`: 1} {
		h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done.")), replyOnlyTo("tool_result", `{"content":"seven","structured":`+structured+`}`), nil)
		events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
		if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 1 || len(r[0].SchemaViolations) != violations || string(r[0].Structured) != structured {
			t.Errorf("%s: got %+v, want %d violations", structured, r, violations)
		}
	}
}

// A reply with invalid content blocks counts as no reply: before the call, the call is refused;
// after it, the call keeps its own result.
func TestContentBlocksThatAreWrongAreNoReply(t *testing.T) {
	deep := `{"content":[{"type":"text","text":"a","_meta":` + strings.Repeat(`{"a":`, 600) + `1` + strings.Repeat(`}`, 600) + `}]}`
	for _, reply := range []string{`{"content":[{"type":"image","data":"?","mimeType":"image/png"}]}`, deep} {
		for hook, want := range map[string]string{"pre_tool_call": "tool_error", "tool_result": "tool_result"} {
			h, _ := newHookedFixture(t, llmtest.Turns(llmtest.Calls(onePlusTwo), llmtest.Says("Done.")), replyOnlyTo(hook, reply), nil)
			events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
			agenttest.TerminalEvent[event.FinalAnswer](t, events)
			got := "tool_error"
			for _, r := range agenttest.EventsOf[event.ToolResult](events) {
				got = "tool_result"
				if string(r.Payload) != `{"sum":3}` {
					t.Errorf("%s %.60s: got %s, want the tool's own result", hook, reply, r.Payload)
				}
			}
			if got != want {
				t.Errorf("%s %.60s: got %s, want %s", hook, reply, got, want)
			}
		}
	}
}
