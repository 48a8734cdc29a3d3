package agent_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/texttool"
)

// wordChunks returns n different words in chunks of so many, as an endpoint may send them that ignores
// the limit of a request.
func wordChunks(n, each int) (chunks []string) {
	for i := 0; i < n; i += each {
		var b strings.Builder
		for j := i; j < i+each; j++ {
			fmt.Fprintf(&b, " %c%c%c", 'a'+j%26, 'a'+j/26%26, 'a'+j/676%26)
		}
		chunks = append(chunks, b.String())
	}
	return chunks
}

// answerInChunks returns an answer with deltas of the member, one for each chunk.
func answerInChunks(member string, chunks []string) llmtest.Answer {
	if member == "written call" {
		member, chunks = "content", append([]string{"TOOL: echo\nPARAMETERS: {\"text\": \""}, chunks...)
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		var deltas []any
		for _, c := range chunks {
			if member == "arguments" {
				deltas = append(deltas, map[string]any{"tool_calls": []any{map[string]any{"index": 0, "function": map[string]any{"arguments": c}}}})
				continue
			}
			deltas = append(deltas, map[string]any{member: c})
		}
		if member == "arguments" {
			start := map[string]any{"tool_calls": []any{map[string]any{"index": 0, "id": "c", "type": "function", "function": map[string]any{"name": "echo", "arguments": `{"text":"`}}}}
			deltas = append([]any{start}, deltas...)
		}
		llmtest.Stream(w, "stop", deltas...)
	}
}

// writtenWords counts the words that readers of the run have got from the first step.
func writtenWords(events []event.Event) int {
	var b strings.Builder
	for _, e := range events {
		switch d := e.Body.(type) {
		case event.TextDelta:
			b.WriteString(d.Delta)
		case event.ReasoningDelta:
			b.WriteString(d.Delta)
		case event.ToolCallArgs:
			b.WriteString(d.Delta)
		case event.StepEnd:
			return len(strings.Fields(b.String()))
		}
	}
	return len(strings.Fields(b.String()))
}

// Criterion: a stream that exceeds its limit is cut within 64 tokens, however the endpoint divides
// it, and whatever it is. A word is at least a token.
func TestOutputBeyondItsLimitIsCutHoweverItIsDivided(t *testing.T) {
	t.Parallel()
	const limit = 100
	for _, member := range []string{"content", "reasoning_content", "arguments", "written call"} {
		for _, each := range []int{1, 10, 50, 3000} {
			for name, set := range map[string]func(*agent.Options){"native": func(*agent.Options) {}, "text": inTextMode, "auto": func(o *agent.Options) { o.Model = texttool.NewAuto(o.Model) }} {
				if member == "arguments" && name == "text" || member == "written call" && name == "native" {
					continue // native calls, or written ones, are not calls there
				}
				h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
					if len(r.Messages) > 2 {
						return llmtest.Says("Done.")
					}
					return answerInChunks(member, wordChunks(3000, each))
				}, func(o *agent.Options) {
					o.MaxOutputTokens = limit
					set(o)
				})
				events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
				if n := writtenWords(events); n < limit || n > limit+64 {
					t.Errorf("%s, %s, %d words in a piece: got %d words, want %d to %d", member, name, each, n, limit, limit+64)
				}
				if end := agenttest.EventsOf[event.StepEnd](events); len(end) == 0 || end[0].FinishReason != "length" {
					t.Errorf("%s, %s, %d words in a piece: got the end of the step %+v, want length", member, name, each, end)
				}
			}
		}
	}
}

// The calls of a cut answer are completed in their order, so that a run and its repetition have the same events.
func TestCallsOfACutAnswerAreCompletedInTheirOrder(t *testing.T) {
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if len(r.Messages) > 2 {
			return llmtest.Says("Done.")
		}
		return func(w http.ResponseWriter, _ *http.Request) {
			var deltas []any
			for i := range 8 {
				function := map[string]any{"name": "echo", "arguments": `{"text":"x"}`}
				deltas = append(deltas, map[string]any{"tool_calls": []any{map[string]any{"index": i, "id": fmt.Sprint(i), "function": function}}})
			}
			llmtest.Stream(w, "stop", append(deltas, map[string]any{"content": strings.Repeat(" word", 1000)})...)
		}
	}, func(o *agent.Options) { o.MaxOutputTokens = 100 })
	var ids []string
	for _, c := range agenttest.EventsOf[event.ToolCall](h.Events(t, h.StartRun(t, agent.Request{}).ID)) {
		ids = append(ids, c.CallID)
	}
	if got, want := strings.Join(ids, " "), "0 1 2 3 4 5 6 7"; got != want {
		t.Errorf("got the calls %s, want %s", got, want)
	}
}

// Criterion: the same 200 bytes twenty times are cut, with the finish reason length.
func TestOutputLoopEndsWithLength(t *testing.T) {
	for name, block := range map[string]string{
		"a sentence":  "I will now look at the weather in Rome, and then I will look at it once more. Then I will write down what I have seen there, and I will think about it, and I will begin from the beginning of it all. Ok"[:200],
		"short words": strings.Repeat("This is a loop of words. ", 8),
	} {
		for _, member := range []string{"content", "reasoning_content"} {
			h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer {
				var chunks []string
				for range 500 {
					chunks = append(chunks, block)
				}
				return answerInChunks(member, chunks)
			}, nil)

			events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
			end := agenttest.TerminalEvent[event.FinalAnswer](t, events)

			size := 0
			for _, e := range events {
				switch d := e.Body.(type) {
				case event.TextDelta:
					size += len(d.Delta)
				case event.ReasoningDelta:
					size += len(d.Delta)
				}
			}
			if end.FinishReason != "length" || size > 5000 {
				t.Errorf("%s as %s: got %s after %d bytes, want length after at most 5000", name, member, end.FinishReason, size)
			}
		}
	}
}

// The endpoint has not reported the tokens of an answer that is cut, and charges for its prompt too.
func TestUsageOfACutAnswerHasItsPrompt(t *testing.T) {
	h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer { return answerInChunks("content", wordChunks(3000, 10)) }, func(o *agent.Options) { o.MaxOutputTokens = 100 })
	events := h.Events(t, h.StartRun(t, agent.Request{Question: strings.Repeat("What is the weather in Rome? ", 100)}).ID)
	used := agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata.Usage
	// The question has about 800 tokens.
	if used.InputTokens < 400 || used.OutputTokens < 100 || used.TotalTokens != used.InputTokens+used.OutputTokens {
		t.Errorf("got the usage %+v, want the tokens of the prompt and of the answer", used)
	}
}

// Criterion: the smallest of the run's remaining budget, the operator's limit and the model's is
// sent with each request.
func TestSmallestOutputLimitIsSent(t *testing.T) {
	for name, c := range map[string]struct {
		request  agent.Request
		operator int64
		profile  llm.Profile
		want     int64
	}{
		"the request":           {agent.Request{MaxTokens: 10}, 20, llm.Profile{MaxOutputTokens: 30}, 10},
		"the operator":          {agent.Request{MaxTokens: 100}, 20, llm.Profile{MaxOutputTokens: 30}, 20},
		"the profile":           {agent.Request{Budget: agent.Budget{OutputTokens: 100}}, 200, llm.Profile{MaxOutputTokens: 30}, 30},
		"the budget":            {agent.Request{Budget: agent.Budget{OutputTokens: 15}}, 200, llm.Profile{MaxOutputTokens: 30}, 15},
		"the budget of both":    {agent.Request{Budget: agent.Budget{TotalTokens: 14}}, 200, llm.Profile{MaxOutputTokens: 30}, 14},
		"the budget in money":   {agent.Request{Budget: agent.Budget{Cost: 0.0012}}, 200, llm.Profile{MaxOutputTokens: 30, Price: &llm.Price{Output: 100}}, 12},
		"none":                  {agent.Request{}, 0, llm.Profile{}, 0},
		"the operator alone":    {agent.Request{}, 20, llm.Profile{}, 20},
		"the profile's is less": {agent.Request{MaxTokens: 50}, 0, llm.Profile{MaxOutputTokens: 30}, 30},
	} {
		h := agenttest.NewFixture(t, answerAlways("Yes."), func(o *agent.Options) {
			c.profile.ID = "scripted"
			o.MaxOutputTokens, o.Profiles = c.operator, map[string]llm.Profile{"scripted": c.profile}
		})
		h.Events(t, h.StartRun(t, c.request).ID)
		if got := h.Model.Requests()[0].MaxTokens; got != c.want {
			t.Errorf("%s: got a limit of %d, want %d", name, got, c.want)
		}
	}
}

// Criterion: budgets of tokens and money hold within a step, though the endpoint ignores the limit.
func TestBudgetsApplyWithinAStep(t *testing.T) {
	for name, c := range map[string]struct {
		budget agent.Budget
		price  *llm.Price
	}{
		"output tokens": {agent.Budget{OutputTokens: 100}, nil},
		"total tokens":  {agent.Budget{TotalTokens: 100}, nil},
		"money":         {agent.Budget{Cost: 0.01}, &llm.Price{Output: 100}}, // 100 tokens
	} {
		for _, each := range []int{1, 10, 3000} {
			h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer { return answerInChunks("content", wordChunks(3000, each)) }, func(o *agent.Options) {
				o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Price: c.price}}
			})
			events := h.Events(t, h.StartRun(t, agent.Request{Budget: c.budget}).ID)
			if n := writtenWords(events); n < 100 || n > 164 {
				t.Errorf("%s, %d words in a piece: got %d words in the step, want 100 to 164", name, each, n)
			}
		}
	}
}
