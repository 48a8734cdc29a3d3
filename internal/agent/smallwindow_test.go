package agent_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/prompt"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// smallEndpoint follows script within windows of so many tokens by model, at four bytes each. What is
// too long for one is refused as llama.cpp does.
func smallEndpoint(windows map[string]int, script llmtest.Script) llmtest.Script {
	return func(r llmtest.Request) llmtest.Answer {
		tokens, size := len(r.Body)/4, windows[r.Model]
		if tokens > size {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprintf(w, `{"error":{"code":400,"message":"request (%d tokens) exceeds the available context size (%d tokens), try increasing it",`+
					`"type":"exceed_context_size_error","n_prompt_tokens":%d,"n_ctx":%d}}`, tokens, size, tokens, size)
			}
		}
		return script(r)
	}
}

// answerAlways answers every request with the same text.
func answerAlways(text string) llmtest.Script {
	return func(llmtest.Request) llmtest.Answer { return llmtest.Says(text) }
}

// longHistory is a conversation of n messages of 400 bytes.
func longHistory(n int) (out []agent.Message) {
	for i := range n {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		out = append(out, agent.Message{Role: role, Content: strings.Repeat(fmt.Sprintf("word%d ", i%10), 80)})
	}
	return out
}

// The first run is refused once and learns from the error how long a prompt may be; later runs of the
// same model know it, and other models do not.
func TestWindowIsLearntFromTheEndpointsErrorAndRememberedForTheModel(t *testing.T) {
	h := agenttest.NewFixture(t, smallEndpoint(map[string]int{"small": 2048, "tiny": 1536}, answerAlways("Yes.")), func(o *agent.Options) { o.MaxHistory = 100 })
	asked := 0
	for _, c := range []struct {
		model    string
		requests int
	}{{"small", 2}, {"small", 1}, {"tiny", 2}, {"small", 1}, {"tiny", 1}} {
		events := h.Events(t, h.StartRun(t, agent.Request{Model: c.model, History: longHistory(40)}).ID)
		agenttest.TerminalEvent[event.FinalAnswer](t, events)
		requests := h.Model.Requests()
		if got := len(requests) - asked; got != c.requests {
			t.Errorf("%s: got %d requests, want %d", c.model, got, c.requests)
		}
		asked = len(requests)
		last := requests[asked-1]
		if n := len(last.Messages); n < 3 || last.Messages[n-1].Content != "What is it?" {
			t.Errorf("%s: got %d messages in the last request, want the system prompt, some of the history and the question", c.model, n)
		}
		if got := agenttest.EventsOf[event.Budget](events); len(got) != 1 || got[0].Limit != "context_tokens" {
			t.Errorf("%s: got budget events %+v, want one of context_tokens", c.model, got)
		}
	}
}

// Some endpoints do not say how large their window is. Then more of the history is left out with each try, until the
// endpoint accepts the rest.
func TestHistoryIsTrimmedBeforeARequestIsGivenUp(t *testing.T) {
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if len(r.Body) > 5000 {
			return llmtest.Fails(http.StatusBadRequest, "Your input exceeds the context window of this model. Please adjust your input and try again.")
		}
		return llmtest.Says("Yes.")
	}, func(o *agent.Options) { o.MaxHistory = 100 })
	events := h.Events(t, h.StartRun(t, agent.Request{History: longHistory(40)}).ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if got := len(h.Model.Requests()); got < 3 || got > 4 {
		t.Errorf("got %d requests for a conversation that is four times too long, want 3 or 4", got)
	}
}

// refuseBeyondWindow refuses prompts and answers that are longer than a window of so many tokens together,
// at four bytes each, and else says Yes. An answer without a limit counts with the default. The
// format of the refusal gets window, prompt and answer.
func refuseBeyondWindow(size, defaultAnswer int64, format string) llmtest.Script {
	return func(r llmtest.Request) llmtest.Answer {
		prompt, answer := int64(len(r.Body)/4), r.MaxTokens
		if answer == 0 {
			answer = defaultAnswer
		}
		if prompt+answer > size {
			return llmtest.Fails(http.StatusBadRequest, fmt.Sprintf(format, size, prompt, answer))
		}
		return llmtest.Says("Yes.")
	}
}

// Endpoints refuse a prompt whose answer might not fit: vLLM with and without the size of the
// prompt, and OpenRouter, which adds an answer of its own to a request without a limit.
func TestLimitOfTheAnswerIsLoweredToWhatTheWindowLeaves(t *testing.T) {
	const size = 4096
	for name, c := range map[string]struct {
		format         string
		asked          int64
		first          int // requests of the first run, which learns the size
		second         int
		least, highest int64
	}{
		"sizes of both":             {"This model's maximum context length is %d tokens. However, your request has %d input tokens plus %d 'max_tokens'. Please reduce one or the other.", 50000, 2, 1, size / 2, size},
		"the window alone":          {"This model's maximum context length is %d tokens. However, you requested %[3]d output tokens and your prompt contains at least 1 input tokens.", 50000, 2, 1, size / 2, size},
		"an answer without a limit": {"This endpoint's maximum context length is %d tokens. However, you requested about 9999 tokens (%d of text input, %d in the output).", 0, 2, 2, size / 2, size},
	} {
		h := agenttest.NewFixture(t, refuseBeyondWindow(size, 32768, c.format), nil)
		asked := 0
		for run, want := range []int{c.first, c.second} {
			agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{MaxTokens: c.asked}).ID))
			got := h.Model.Requests()
			if len(got)-asked != want {
				t.Errorf("%s, run %d: got %d requests, want %d", name, run+1, len(got)-asked, want)
			}
			asked = len(got)
			if got[asked-1].MaxTokens < c.least || got[asked-1].MaxTokens > c.highest {
				t.Errorf("%s, run %d: got a limit of %d for the answer, want %d to %d", name, run+1, got[asked-1].MaxTokens, c.least, c.highest)
			}
		}
	}
}

// The estimate for text with many bytes per token is too high. Only the endpoint knows that such a
// question fits, so it is asked.
func TestQuestionThatMayFitIsAsked(t *testing.T) {
	question := strings.Repeat("international ", 900) // 12,600 bytes: 4,200 tokens by the estimate
	h := agenttest.NewFixture(t, refuseBeyondWindow(4096, 0, "maximum context length is %d tokens. However, your request has %d input tokens"), withContextTokens(4096))
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{Question: question}).ID))
	if got := len(h.Model.Requests()); got != 1 {
		t.Errorf("got %d requests, want 1", got)
	}
	h = agenttest.NewFixture(t, refuseBeyondWindow(2048, 0, "maximum context length is %d tokens. However, your request has %d input tokens"), nil)
	failed := agenttest.TerminalEvent[event.RunError](t, h.Events(t, h.StartRun(t, agent.Request{Question: question, MaxTokens: 5000}).ID))
	if got := len(h.Model.Requests()); failed.Code != "too_large" || got != 1 {
		t.Errorf("a question that does not fit: got %s after %d requests, want too_large after 1", failed.Code, got)
	}
}

// A fallback has a window of its own, which says nothing about the model that was asked for.
func TestWindowOfAFallbackIsItsOwn(t *testing.T) {
	var down atomic.Bool
	script := smallEndpoint(map[string]int{"small": 2048, "large": 100000}, answerAlways("Yes."))
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if r.Model == "large" && down.Load() {
			return llmtest.Fails(http.StatusServiceUnavailable, "down")
		}
		return script(r)
	}, func(o *agent.Options) {
		o.MaxHistory = 100
		o.Profiles = map[string]llm.Profile{"large": {ID: "large", Fallback: []string{"small"}}, "small": {ID: "small"}}
		o.Model = llm.NewRouter(map[llm.ToolCalling]llm.Model{llm.AutoCalling: o.Model}, "", o.Profiles)
	})
	for _, c := range []struct {
		down     bool
		model    string
		requests int
	}{
		{true, "large", 4}, // each of the two requests is refused by large, and the first by small
		{true, "small", 1},
		{false, "large", 1},
	} {
		down.Store(c.down)
		before := len(h.Model.Requests())
		agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{Model: c.model, History: longHistory(40)}).ID))
		requests := h.Model.Requests()[before:]
		if len(requests) != c.requests {
			t.Errorf("%s: got %d requests, want %d", c.model, len(requests), c.requests)
		}
		if n, all := len(requests[len(requests)-1].Messages), 42; (n == all) != !c.down {
			t.Errorf("%s: got %d messages in the last request, want all %d: %t", c.model, n, all, !c.down)
		}
	}
}

// Tools that take too much of the window are searched: at once if the window is known, and in the
// same run if the first request of it is refused.
func TestToolsAreSearchedIfTheyTakeMoreThanAThirdOfTheWindow(t *testing.T) {
	tools := newClientWithTools(t, 30) // some 2,900 tokens by the estimate
	script := func(r llmtest.Request) llmtest.Answer { return llmtest.Says("offered: " + offeredTools(r)) }
	for name, c := range map[string]struct {
		size int
		want []string // what is offered in the last request of each run
	}{
		"learnt": {2000, []string{"search_tools", "search_tools"}},
		"large":  {100000, []string{"task_0", "task_0"}},
	} {
		h := agenttest.NewFixture(t, smallEndpoint(map[string]int{"scripted": c.size}, script), func(o *agent.Options) {
			o.Tools, o.ToolSearch = tools, agent.ToolSearch{MinTools: 64}
		})
		for i, want := range c.want {
			events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
			answer := agenttest.TerminalEvent[event.FinalAnswer](t, events)
			got := strings.Fields(strings.TrimPrefix(answer.Answer, "offered: "))
			hasMore := want == "search_tools" && len(got) != 1
			if len(got) == 0 || hasMore || !strings.Contains(strings.Join(got, " "), want) {
				t.Errorf("%s, run %d: got the tools %q, want %s", name, i+1, got, want)
			}
		}
		refused := 0
		if c.size < 10000 {
			refused = 1
		}
		if got := len(h.Model.Requests()); got != len(c.want)+refused {
			t.Errorf("%s: got %d requests, want %d", name, got, len(c.want)+refused)
		}
	}

	h := agenttest.NewFixture(t, script, func(o *agent.Options) {
		withContextTokens(8000)(o)
		o.Tools, o.ToolSearch = tools, agent.ToolSearch{MinTools: 64}
	})

	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{}).ID))
	if got := offeredTools(h.Model.Requests()[0]); got != "search_tools" {
		t.Errorf("declared window: got the tools %s, want search_tools", got)
	}
}

// The window may become too small in the middle of a run. The system prompt lists what is offered
// then, and the tools that were called stay.
func TestToolsAreSearchedFromTheMiddleOfARun(t *testing.T) {
	tools := newClientWithTools(t, 30)
	prompt, err := prompt.New(prompt.Options{Template: "Tools:\n{{.tools}}"})
	if err != nil {
		t.Fatal(err)
	}

	script := smallEndpoint(map[string]int{"scripted": 3000}, llmtest.Turns(
		llmtest.Calls(llmtest.Call{ID: "a", Name: "task_3", Args: `{}`}),
		llmtest.Calls(searchCall("file an invoice")),
		llmtest.Says("Done."),
	))

	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if len(r.Messages) == 2 {
			return llmtest.Calls(llmtest.Call{ID: "a", Name: "task_3", Args: `{}`})
		}
		return script(r)
	}, func(o *agent.Options) {
		o.Tools, o.ToolSearch, o.Prompt = tools, agent.ToolSearch{MinTools: 64}, prompt
	})

	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	if got := agenttest.TerminalEvent[event.FinalAnswer](t, events); got.Answer != "Done." || strings.Join(got.Metadata.ToolNames, " ") != "task_3 search_tools" {
		t.Errorf("got %q after %v, want Done. after task_3 and search_tools", got.Answer, got.Metadata.ToolNames)
	}
	requests := h.Model.Requests()
	if len(requests) != 4 {
		t.Fatalf("got %d requests, want 4 of which the second is refused", len(requests))
	}
	if got := offeredTools(requests[2]); got != "search_tools task_3" {
		t.Errorf("after the refusal: got the tools %s, want search_tools task_3", got)
	}
	if got := requests[2].Messages[0].Content; strings.Contains(got, "task_9") || !strings.Contains(got, "- search_tools: ") {
		t.Errorf("got the system prompt %s, want only search_tools in it", got)
	}
	if got := offeredTools(requests[3]); !strings.HasPrefix(got, "search_tools task_3 file_invoice") {
		t.Errorf("after the search: got the tools %s, want search_tools task_3 file_invoice first", got)
	}
}

// The results of a tool search take at most a third of the window, too.
func TestFoundToolsFitAThirdOfTheWindow(t *testing.T) {
	tools := newClientWithTools(t, 100) // some 100 tokens each
	h := agenttest.NewFixture(t, llmtest.Turns(
		llmtest.Calls(searchCall("file invoice accounting thing")),
		llmtest.Calls(searchCall("thing number 17")),
		llmtest.Says("Done."),
	), func(o *agent.Options) {
		withContextTokens(2400)(o)
		o.Tools, o.ToolSearch = tools, agent.ToolSearch{MinTools: 64}
	})

	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)

	for i, r := range h.Model.Requests()[1:] {
		if got := len(r.Tools); got < 4 || got > 8 {
			t.Errorf("request %d: got %d tools, want 4 to 8: %s", i+2, got, offeredTools(r))
		}
	}

	for i, best := range []string{"file_invoice", "task_17"} {
		if got := offeredTools(h.Model.Requests()[i+1]); !strings.Contains(got, best) {
			t.Errorf("after search %d: got the tools %s, want %s among them", i+1, got, best)
		}
	}
}

// A process that takes a run over does not know the window. If the model has searched, it goes on
// with the search, and what it found is offered.
func TestToolSearchOfASmallWindowContinuesAfterATakeover(t *testing.T) {
	t.Parallel()
	origin := &recordingLog{Log: memory.New(memory.Options{})}

	tools := newClientWithTools(t, 30)
	newProcess := func(log event.Log) *agenttest.Fixture {
		script := smallEndpoint(map[string]int{"scripted": 2000}, llmtest.Turns(
			llmtest.Calls(searchCall("file an invoice")),
			llmtest.Calls(llmtest.Call{ID: "c", Name: "file_invoice", Args: `{}`}),
			llmtest.Says("Filed."),
		))
		return agenttest.NewFixture(t, script, func(o *agent.Options) {
			o.Log, o.Durable, o.Tools, o.ToolSearch = log, true, tools, agent.ToolSearch{MinTools: 64}
		})
	}

	first := newProcess(origin)
	run := first.StartRun(t, agent.Request{Background: true})
	agenttest.TerminalEvent[event.FinalAnswer](t, first.Events(t, run.ID))

	operations := origin.recordedOperations()
	for n := range operations {
		h := newProcess(origin.diedAfter(t, run, n))
		events := h.Events(t, run.ID)
		if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.Answer != "Filed." {
			t.Errorf("after %d of %d operations: got %q, want Filed.", n, len(operations), end.Answer)
		}
		for _, failed := range agenttest.EventsOf[event.ToolError](events) {
			if failed.Kind != "unknown_outcome" && failed.Kind != "cancelled" { // of a call that was sent, or of a step that runs again
				t.Errorf("after %d of %d operations: got %+v, want no failed call", n, len(operations), failed)
			}
		}
		if requests := h.Model.Requests(); len(requests) > 0 && !strings.HasPrefix(offeredTools(requests[len(requests)-1]), "search_tools file_invoice") {
			t.Errorf("after %d of %d operations: got the tools %s, want search_tools and file_invoice first", n, len(operations), offeredTools(requests[len(requests)-1]))
		}
	}
}
