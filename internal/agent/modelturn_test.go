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
)

// echoTurns returns turns that each call echo with a text of n bytes, and then the answer.
func echoTurns(turns, n int) []llmtest.Answer {
	var out []llmtest.Answer
	for i := range turns {
		args := fmt.Sprintf(`{"text":%q}`, strings.Repeat(fmt.Sprint(i), n))
		out = append(out, llmtest.Calls(llmtest.Call{ID: fmt.Sprint("c", i), Name: "echo", Args: args}))
	}
	return append(out, llmtest.Says("Done."))
}

// withContextTokens returns an option that gives the model a window of so many tokens.
func withContextTokens(tokens int64) func(*agent.Options) {
	return func(o *agent.Options) {
		o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", ContextTokens: tokens}}
	}
}

// toolMessages returns the tool messages of a request.
func toolMessages(r llmtest.Request) (out []string) {
	for _, m := range r.Messages {
		if m.Role == "tool" {
			out = append(out, m.Content)
		}
	}
	return out
}

// Issue 4, item 8: earlier results make room for later ones, and the log keeps them.
func TestEarlierResultsAreReplacedToFitTheWindow(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(echoTurns(4, 3000)...), withContextTokens(16000))
	// What the provider counts is far less than what was estimated: see llmtest. It is
	// taken with caution, so that all four fit.
	run := h.StartRun(t, agent.Request{})
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	if got := toolMessages(h.Model.Requests()[4]); len(got[0]) != 3000 {
		t.Errorf("a result of %d bytes left a window with room, want 3000", len(got[0]))
	}

	h = agenttest.NewFixture(t, llmtest.Turns(echoTurns(4, 12000)...), withContextTokens(9000))
	run = h.StartRun(t, agent.Request{History: []agent.Message{{Role: "user", Content: "Hi."}, {Role: "assistant", Content: "Hello."}}})
	events := h.Events(t, run.ID)
	meta := agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata
	for i, r := range meta.ToolResults {
		if len(r) != 12002 {
			t.Errorf("the metadata have %d bytes of result %d, want 12002", len(r), i)
		}
	}
	last := h.Model.Requests()[4]
	got := toolMessages(last)
	want := fmt.Sprintf("[The result of echo (call c0) was left out to make room. It is kept at /runs/%s/results/c0.]", run.ID)
	if len(got) != 4 || got[0] != want || len(got[3]) != 12000 {
		t.Errorf("the last request has the results %.120q, want 4, [0] %q, len([3]) 12000", got, want)
	}
	if last.Messages[1].Content != "Hi." || last.Messages[3].Content != "What is it?" {
		t.Errorf(`history left before results: %.200v, want Content Hi., Content "What is it?"`, last.Messages)
	}
	budgets := agenttest.EventsOf[event.Budget](events)
	if len(budgets) != 1 || budgets[0].Limit != "context_tokens" || budgets[0].Used <= budgets[0].Max {
		t.Errorf("budget events %+v, want 1 with Limit context_tokens and Used above Max", budgets)
	}
}

// A prompt that can never fit the window costs no model call.
func TestQuestionThatCannotFitIsRefusedBeforeTheModelIsAsked(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), withContextTokens(2000))
	events := h.Events(t, h.StartRun(t, agent.Request{Question: strings.Repeat("why ", 3000)}).ID)
	failed := agenttest.TerminalEvent[event.RunError](t, events)
	if failed.Code != "too_large" || failed.Retryable || !strings.Contains(failed.Message, "context window") || len(h.Model.Requests()) != 0 {
		t.Errorf(`%+v after %d requests, want Code too_large, Retryable false, Message containing "context window", requests 0`, failed, len(h.Model.Requests()))
	}
	if got := agenttest.TypesOf(events); got != "start budget run_error" {
		t.Errorf(`events %q, want "start budget run_error"`, got)
	}
}

// refuseLongerThan returns an endpoint that takes no more than max bytes of messages.
func refuseLongerThan(max int, script llmtest.Script) llmtest.Script {
	return func(r llmtest.Request) llmtest.Answer {
		n := 0
		for _, m := range r.Messages {
			n += len(m.Content)
		}
		if n > max {
			return llmtest.Fails(http.StatusBadRequest, "This model's maximum context length is 10 tokens.")
		}
		return script(r)
	}
}

// A provider's refusal is answered with a shorter conversation, once a step, and what is
// learnt from it keeps later steps from running into it again.
func TestConversationThatIsRefusedAsTooLongIsShortenedOnce(t *testing.T) {
	h := agenttest.NewFixture(t, refuseLongerThan(30000, llmtest.Turns(echoTurns(9, 9000)...)), nil)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if n := len(h.Model.Requests()); n != 10+1 {
		t.Errorf("%d requests for 10 steps, of which one is refused, want 10+1", n)
	}
	if steps := len(agenttest.EventsOf[event.StepStart](events)); steps != 10 {
		t.Errorf("%d steps, want 10", steps)
	}

	told := 0
	for _, b := range agenttest.EventsOf[event.Budget](events) {
		if b.Limit == "context_tokens" {
			told++
		}
	}
	if told != 1 {
		t.Errorf("readers are told %d times, want 1", told)
	}
}

func TestConversationThatStaysTooLongEndsTheRun(t *testing.T) {
	for name, c := range map[string]struct {
		r        agent.Request
		requests int
	}{
		"nothing can go": {agent.Request{}, 1},
		"not enough can": {agent.Request{History: []agent.Message{{Role: "user", Content: strings.Repeat("x", 500)}}}, 2},
	} {
		h := agenttest.NewFixture(t, refuseLongerThan(0, nil), nil)
		failed := agenttest.TerminalEvent[event.RunError](t, h.Events(t, h.StartRun(t, c.r).ID))
		if failed.Code != "too_large" || !strings.HasPrefix(failed.Message, "The conversation is too long for the model's context window.") {
			t.Errorf(`%s: %+v, want Code too_large, Message "The conversation is too long for the model's context window."`, name, failed)
		}
		if n := len(h.Model.Requests()); n != c.requests {
			t.Errorf("%s: %d requests, want %d", name, n, c.requests)
		}
	}
}

// A model call is not repeated after its first delta, because readers already have that text.
func TestAnswerThatHasBegunIsNotTriedAgain(t *testing.T) {
	h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer {
		return func(w http.ResponseWriter, _ *http.Request) {
			llmtest.Stream(w, "", map[string]any{"content": "Well, "})
			fmt.Fprint(w, `data: {"error":{"message":"prompt is too long","code":400}}`+"\n\n")
		}
	}, nil)
	failed := agenttest.TerminalEvent[event.RunError](t, h.Events(t, h.StartRun(t, agent.Request{History: []agent.Message{{Role: "user", Content: "Hi."}}}).ID))
	if failed.Code != "too_large" || failed.PartialAnswer != "Well, " || len(h.Model.Requests()) != 1 {
		t.Errorf(`%+v after %d requests, want Code too_large, PartialAnswer "Well, ", requests 1`, failed, len(h.Model.Requests()))
	}
}
