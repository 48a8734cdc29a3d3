package agent_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

// newAskFixture returns a fixture whose model calls the tool that asks, and then answers.
func newAskFixture(t *testing.T, set func(*agent.Options)) *agenttest.Fixture {
	return agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask"}), llmtest.Says("Booked.")), set)
}

// startUntilQuestion starts a run and reads it to its question.
func startUntilQuestion(t *testing.T, h *agenttest.Fixture) (run string, question event.Elicitation) {
	t.Helper()
	id := h.StartRun(t, agent.Request{Interactive: true}).ID
	events := h.EventsUntil(t, id, func(e event.Event) bool { return e.Body.Type() == "elicitation" })
	return id, events[len(events)-1].Body.(event.Elicitation)
}

func rawJSON(text string) json.RawMessage { return json.RawMessage(text) }

// S0.6: the question is an event of its call, the answer goes to the server, and the
// run continues.
func TestRunWaitsForAPersonAndContinuesWithTheAnswer(t *testing.T) {
	h := newAskFixture(t, nil)
	run, q := startUntilQuestion(t, h)
	if q.Mode != "form" || q.Message != "For how many?" || !strings.Contains(string(q.Schema), "people") || q.Tool != "ask" ||
		time.Until(time.UnixMilli(q.ExpiresAt)) < time.Minute {
		t.Errorf(`asked %+v, want Mode form, Message "For how many?", Schema containing people, Tool ask, time.Until(time.UnixMilli(ExpiresAt)) at least 1 min`, q)
	}
	if err := h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: q.InterruptID, Action: "accept", Content: rawJSON(`{"people":4}`)}); err != nil {
		t.Fatal(err)
	}
	events := h.Events(t, run)
	resolved := agenttest.EventsOf[event.ElicitationResolved](events)
	if len(resolved) != 1 || resolved[0].Action != "accept" || resolved[0].InterruptID != q.InterruptID || resolved[0].CallID != q.CallID {
		t.Errorf("resolved %+v, want 1 with Action accept and InterruptID %q and CallID %q", resolved, q.InterruptID, q.CallID)
	}
	if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 1 || !strings.Contains(string(r[0].Payload), `{\"people\":4}`) {
		t.Errorf(`results %+v, want 1 with Payload containing {\"people\":4}`, r)
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
}

func TestFirstAnswerWins(t *testing.T) {
	h := newAskFixture(t, nil)
	run, q := startUntilQuestion(t, h)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() {
			errs[i] = h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: q.InterruptID, Action: "decline"})
		})
	}

	wg.Wait()
	taken := 0
	for _, err := range errs {
		switch {
		case err == nil:
			taken++
		case !errors.Is(err, agent.ErrAnswered):
			t.Error(err)
		}
	}

	events := h.Events(t, run)
	if taken != 1 || len(agenttest.EventsOf[event.ElicitationResolved](events)) != 1 {
		t.Errorf("%d answers were taken: %s, want taken 1, 1 elicitation resolved events", taken, agenttest.TypesOf(events))
	}

	// And when the run has ended.
	if err := h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: q.InterruptID, Action: "accept"}); !errors.Is(err, agent.ErrAnswered) {
		t.Errorf("error %v, want ErrAnswered", err)
	}
	if err := h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: "int_none", Action: "accept"}); !errors.Is(err, agent.ErrUnknownInterrupt) {
		t.Errorf("error %v, want ErrUnknownInterrupt", err)
	}
}

func TestAnswerThatDoesNotFitLeavesTheQuestionOpen(t *testing.T) {
	h := newAskFixture(t, nil)
	run, q := startUntilQuestion(t, h)
	for _, in := range []agent.Input{
		{Action: "accept"}, {Action: "accept", Content: rawJSON(`{}`)}, {Action: "accept", Content: rawJSON(`{"people":"four"}`)},
	} {
		in.ID = q.InterruptID
		err := h.Answer(t.Context(), auth.Identity{}, run, in)
		if misfit, ok := errors.AsType[*agent.ContentError](err); !ok || !strings.HasPrefix(misfit.Fields[0].Pointer, "/content") {
			t.Errorf("%s: %v, want a ContentError, Fields[0].Pointer starting with /content", in.Content, err)
		}
	}

	err := h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: q.InterruptID, Action: "decline", Content: rawJSON(`{"people":1}`)})
	if _, ok := errors.AsType[*agent.InvalidError](err); !ok {
		t.Errorf("error %v, want an InvalidError", err)
	}
	if err := h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: q.InterruptID, Action: "cancel"}); err != nil {
		t.Error(err)
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run))
}

func TestAcceptedFormNeedsNoContentIfNoFieldIsRequired(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "interview"}), llmtest.Says("Thanks.")), nil, agenttest.Stateless)
	run := h.StartRun(t, agent.Request{Interactive: true}).ID
	events := h.EventsUntil(t, run, func(e event.Event) bool {
		if q, ok := e.Body.(event.Elicitation); ok {
			if err := h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: q.InterruptID, Action: "accept"}); err != nil {
				t.Fatalf("answer without content: error %v, want none", err)
			}
		}
		return e.Terminal()
	})
	if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 1 || strings.Count(string(r[0].Payload), "accept") != 3 {
		t.Errorf("results %+v, want 1 with 3 accepted answers", r)
	}
}

func TestQuestionThatNobodyAnswersExpires(t *testing.T) {
	h := newAskFixture(t, func(o *agent.Options) { o.InputTimeout = time.Millisecond })
	run, q := startUntilQuestion(t, h)
	h.EventsUntil(t, run, func(e event.Event) bool { return e.Body.Type() == "elicitation_resolved" })
	for range 2 { // while the run continues, perhaps, and after it
		err := h.Answer(t.Context(), auth.Identity{}, run, agent.Input{ID: q.InterruptID, Action: "accept", Content: rawJSON(`{"people":1}`)})
		if !errors.Is(err, agent.ErrExpired) {
			t.Errorf("error %v, want ErrExpired", err)
		}
		events := h.Events(t, run)
		if r := agenttest.EventsOf[event.ElicitationResolved](events); len(r) != 1 || r[0].Action != "cancel" {
			t.Errorf("resolved %+v, want 1 with Action cancel", r)
		}
		agenttest.TerminalEvent[event.FinalAnswer](t, events)
	}
}

// A caller who waits for the whole answer could never answer.
func TestElicitationWithoutAReaderIsDeclinedAtOnce(t *testing.T) {
	h := newAskFixture(t, nil)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	if r := agenttest.EventsOf[event.ElicitationResolved](events); len(r) != 1 || r[0].Action != "decline" {
		t.Errorf("resolved %+v in %s, want 1 with Action decline", r, agenttest.TypesOf(events))
	}
	agenttest.TerminalEvent[event.FinalAnswer](t, events)
}

// Whatever was opened is closed before the terminal event.
func TestCancelledRunCancelsItsQuestion(t *testing.T) {
	h := newAskFixture(t, nil)
	run, _ := startUntilQuestion(t, h)
	cancelRun(t, h, run)
	events := h.Events(t, run)
	if r := agenttest.EventsOf[event.ElicitationResolved](events); len(r) != 1 || r[0].Action != "cancel" {
		t.Errorf("resolved %+v in %s, want 1 with Action cancel", r, agenttest.TypesOf(events))
	}
	agenttest.TerminalEvent[event.Cancelled](t, events)
}
