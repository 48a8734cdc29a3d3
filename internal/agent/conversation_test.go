package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

func userMessage(text string) agent.Message { return agent.Message{Role: "user", Content: text} }

func callMessage(calls ...string) agent.Message {
	m := agent.Message{Role: "assistant"}
	for _, id := range calls {
		m.Calls = append(m.Calls, agent.ClientCall{ID: id, Name: "mine", Arguments: `{"n":1}`})
	}
	return m
}

func toolMessage(id, text string) agent.Message {
	return agent.Message{Role: "tool", CallID: id, Content: text}
}

// formatConversation returns a conversation in one line, without the system prompt.
func formatConversation(messages []llmtest.Message) string {
	var out []string
	for _, m := range messages[1:] {
		line := m.Role + ":" + m.Content
		for _, c := range m.ToolCalls {
			line += "<" + c.ID + ">"
		}
		if m.ToolCallID != "" {
			line += "@" + m.ToolCallID
		}
		out = append(out, line)
	}
	return strings.Join(out, " | ")
}

// S2.5, and what calls of the client's add to it.
func TestHistoryWithCallsReachesTheModelWhole(t *testing.T) {
	const none = "[This call has no result.]"
	for _, c := range []struct {
		name     string
		history  []agent.Message
		question string
		want     string
	}{
		{"continues with results", []agent.Message{userMessage("q"), callMessage("a", "b"), toolMessage("b", "B"), toolMessage("a", "A")}, "",
			"user:q | assistant:<a><b> | tool:A@a | tool:B@b"},
		{"a question after results", []agent.Message{userMessage("q"), callMessage("a"), toolMessage("a", "A"), {Role: "assistant", Content: "so"}}, "and?",
			"user:q | assistant:<a> | tool:A@a | assistant:so | user:and?"},
		{"a result is missing", []agent.Message{userMessage("q"), callMessage("a", "b"), toolMessage("a", "A")}, "and?",
			"user:q | assistant:<a><b> | tool:A@a | tool:" + none + "@b | user:and?"},
		{"orphans", []agent.Message{toolMessage("x", "X"), userMessage("q"), callMessage("a"), toolMessage("y", "Y"), toolMessage("a", "A"), toolMessage("a", "again")}, "and?",
			"user:q | assistant:<a> | tool:A@a | user:and?"},
		{"an empty result", []agent.Message{userMessage("q"), callMessage("a"), toolMessage("a", " ")}, "", "user:q | assistant:<a> | tool:[The result is empty.]@a"},
		{"ids that come again", []agent.Message{userMessage("q"), callMessage("a"), toolMessage("a", "1"), callMessage("a"), toolMessage("a", "2")}, "",
			"user:q | assistant:<a> | tool:1@a | assistant:<a> | tool:2@a"},
		{"the question repeated", []agent.Message{userMessage("q")}, "q", "user:q"},
		{"odd roles", []agent.Message{{Role: "robot", Content: "x"}, {Role: "USER", Content: "q"}, {Role: "assistant"}}, "and?", "user:q | user:and?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer { return llmtest.Says("yes") }, nil)
			run, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: c.question, History: c.history})
			if err != nil {
				t.Fatal(err)
			}
			h.Events(t, run.ID)
			if got := formatConversation(h.Model.Requests()[0].Messages); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestResultOfOnlyAnImageIsNotCalledEmpty(t *testing.T) {
	h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer { return llmtest.Says("yes") }, func(o *agent.Options) {
		o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Images: true}}
	})
	image := toolMessage("a", "")
	image.Media = []agent.Media{{URL: "https://x.example/a.png"}}
	run, err := h.Start(t.Context(), auth.Identity{}, agent.Request{History: []agent.Message{userMessage("q"), callMessage("a"), image}})
	if err != nil {
		t.Fatal(err)
	}
	h.Events(t, run.ID)
	request := h.Model.Requests()[0]
	want := "user:q | assistant:<a> | tool:[The result has no text. Its images and files follow.]@a | user:"
	if got := formatConversation(request.Messages); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if body := string(request.Body); !strings.Contains(body, "https://x.example/a.png") {
		t.Errorf("got the request %s, want the image in it", body)
	}
}

// An exchange counts once for MAX_HISTORY, and what the run is about does not count,
// however many rounds it took.
func TestExchangesAreCountedAndKeptWhole(t *testing.T) {
	h := agenttest.NewFixture(t, func(llmtest.Request) llmtest.Answer { return llmtest.Says("yes") }, func(o *agent.Options) { o.MaxHistory = 2 })
	history := []agent.Message{userMessage("old"), userMessage("q1"), callMessage("a", "b"), toolMessage("a", "A"), toolMessage("b", "B"), userMessage("q2")}
	want := "assistant:<a><b> | tool:A@a | tool:B@b | user:q2 | user:q3"
	for i := range 2 {
		h.Events(t, h.StartRun(t, agent.Request{Question: "q3", History: history}).ID)
		if got := formatConversation(h.Model.Requests()[i].Messages); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		history = append([]agent.Message{userMessage("older")}, history...)
	}

	history = append(history, userMessage("q3"))
	for i := range 5 {
		id := fmt.Sprint("r", i)
		history = append(history, callMessage(id), toolMessage(id, "R"))
		want += " | assistant:<" + id + "> | tool:R@" + id
	}

	run, err := h.Start(t.Context(), auth.Identity{}, agent.Request{History: history})
	if err != nil {
		t.Fatal(err)
	}
	h.Events(t, run.ID)
	if got := formatConversation(h.Model.Requests()[2].Messages); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestHistoryWithNothingToAnswerIsRefused(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("yes")), nil)
	for _, c := range []struct {
		at      string
		history []agent.Message
	}{
		{"/question", nil},
		{"/question", []agent.Message{userMessage("q")}},
		{"/question", []agent.Message{userMessage("q"), callMessage("a")}},
		{"/history", []agent.Message{toolMessage("a", "A")}},
		{"/history", []agent.Message{userMessage("q"), callMessage("a"), toolMessage("b", "B")}},
		{"/history", []agent.Message{userMessage("q"), callMessage("a"), toolMessage("a", "A"), userMessage("so"), toolMessage("a", "A")}},
		{"/history", []agent.Message{userMessage("q"), callMessage("a"), toolMessage("", "A")}},
	} {
		_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: " ", History: c.history})
		if refused, ok := errors.AsType[*agent.InvalidError](err); !ok || refused.Pointer != c.at {
			t.Errorf("%+v: %v, want an InvalidError, Pointer %q", c.history, err, c.at)
		}
	}
}

// A run's own calls get ids that the history has not.
func TestCallsOfTheHistoryAndOfTheRunAreDistinguished(t *testing.T) {
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if n := len(r.Messages); r.Messages[n-1].Role == "tool" && n > 4 {
			return llmtest.Says("done")
		}
		return llmtest.Calls(llmtest.Call{ID: "a", Name: "add", Args: `{"a":1,"b":2}`})
	}, nil)
	run, err := h.Start(t.Context(), auth.Identity{}, agent.Request{History: []agent.Message{userMessage("q"), callMessage("a"), toolMessage("a", "A")}})
	if err != nil {
		t.Fatal(err)
	}
	h.Events(t, run.ID)
	if got, want := formatConversation(h.Model.Requests()[1].Messages), `user:q | assistant:<a> | tool:A@a | assistant:<a_2> | tool:{"sum":3}@a_2`; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

func TestPicturesOfTheQuestionReachModelsThatTakeThem(t *testing.T) {
	const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
	picture, err := agent.NewMedia("", "data:image/png;base64,"+png)
	if err != nil {
		t.Fatal(err)
	}
	far, err := agent.NewMedia("", "https://pictures.example/a.png")
	if err != nil {
		t.Fatal(err)
	}

	for _, images := range []bool{true, false} {
		h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("yes")), func(o *agent.Options) {
			o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Images: images}}
		})
		h.Events(t, h.StartRun(t, agent.Request{Question: "What is this?", Media: []agent.Media{picture, far}}).ID)
		m := h.Model.Requests()[0].Messages[1]
		if images {
			parts := string(m.Parts)
			if !strings.Contains(parts, `"What is this?"`) || !strings.Contains(parts, png) || !strings.Contains(parts, "pictures.example") {
				t.Errorf(`parts %s, want parts containing "What is this?", parts containing %s, parts containing pictures.example`, parts, png)
			}
			continue
		}
		if want := "What is this?\n[An image (image/png, 70 bytes) was here, which this model cannot take.]\n[An image was here, which this model cannot take.]"; m.Content != want {
			t.Errorf("content %q, want %q", m.Content, want)
		}
	}
}

// overtakenLog is a log in which, before the first event of a run is stored, another process gives up waiting for that
// event, and begins a run of its own in the thread.
type overtakenLog struct{ event.Log }

func (l overtakenLog) Append(ctx context.Context, run string, body event.Body) (int64, error) {
	owner := event.Owner{}
	if err := l.Delete(ctx, run); err != nil {
		return 0, err
	}
	if err := l.EndTurn(ctx, owner, "t", run, nil); err != nil {
		return 0, err
	}
	if _, err := l.BeginTurn(ctx, owner, "t", "run_other", "", "Other"); err != nil {
		return 0, err
	}
	return l.Log.Append(ctx, run, body)
}

// A run that another process overtook while it began must not delete the thread, which now has the other run.
func TestThreadOfARunThatWasOvertakenStays(t *testing.T) {
	h := agenttest.NewFixture(t, answerAlways("Yes."), func(o *agent.Options) { o.Log = overtakenLog{newMemoryLog()} })
	if _, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "?", ThreadID: "t"}); !errors.Is(err, event.ErrGone) {
		t.Fatalf("Start = %v, want %v", err, event.ErrGone)
	}
	thread, err := h.Log.Thread(t.Context(), event.Owner{}, "t")
	if err != nil || thread.Active != "run_other" {
		t.Errorf("the active run of the thread is %q, %v, want run_other", thread.Active, err)
	}
}
