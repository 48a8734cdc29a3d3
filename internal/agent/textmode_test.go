package agent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/texttool"
)

// answersInTextMode answers a text-mode run's n-th request with the n-th answer: there are no
// calls in its messages to count, but one message of the model's for each turn.
func answersInTextMode(answers ...string) llmtest.Script {
	return func(r llmtest.Request) llmtest.Answer {
		turn := 0
		for _, m := range r.Messages {
			if m.Role == "assistant" {
				turn++
			}
		}
		return llmtest.Says(answers[min(turn, len(answers)-1)])
	}
}

func inTextMode(o *agent.Options) { o.Model = texttool.New(o.Model) }

// S1.1, S1.2, S1.3, S1.4, S1.6, S1.7: a run of a model that writes its calls, from every
// kind of bad one to a good one. Nothing is guessed, each is told, and every prompt has
// the form and the tools.
func TestTextModelGetsErrorsUntilItsCallIsValid(t *testing.T) {
	h := agenttest.NewFixture(t, answersInTextMode(
		"I will use the add tool.",
		"TOOL: add\nPARAMETERS: {'a': 1, 'b': 2}",
		"TOOL: add\nPARAMETERS: {\"a\": NaN, \"b\": 2}",
		"TOOL: nosuch\nPARAMETERS: {}",
		"TOOL: fail\nPARAMETERS: {}",
		"Now both.\n\n**TOOL:** `add`\n**PARAMETERS:**\n```json\n{\"a\": 1, \"b\": 2}\n```\n\ntool: echo parameters: {\"text\": \"x}y\"}",
		"It is 3.",
	), inTextMode)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if end.Answer != "It is 3." || strings.Join(end.Metadata.ToolNames, " ") != "add add add nosuch fail add echo" {
		t.Errorf(`end %+v, want Answer "It is 3.", Metadata.ToolNames "add add add nosuch fail add echo"`, end)
	}

	var kinds []string
	for _, e := range agenttest.EventsOf[event.ToolError](events) {
		kinds = append(kinds, e.Kind)
	}

	if got, want := strings.Join(kinds, " "), "invalid_arguments invalid_arguments invalid_arguments unknown_tool execution"; got != want {
		t.Errorf("kinds %s, want %s", got, want)
	}

	requests := h.Model.Requests()
	for i, r := range requests {
		if s := r.Messages[0].Content; !strings.Contains(s, "TOOL: tool_name\nPARAMETERS: {") || !strings.Contains(s, "- add: adds two numbers") || len(r.Tools) > 0 {
			t.Errorf(`request %d: %s, %d Tools, want s containing "TOOL: tool_name\nPARAMETERS: {", s containing "- add: adds two numbers", Tools 0`, i, s, len(r.Tools))
		}
		last := r.Messages[len(r.Messages)-1].Content
		if hasFormat := strings.Contains(last, "Write a call like this"); hasFormat != (i >= 1 && i <= 3) {
			t.Errorf("request %d ends with %s, want the format of a call in requests 1 to 3 only", i, last)
		}
		if i >= 1 && i <= 5 && !strings.HasPrefix(last, "TOOL ERROR: ") {
			t.Errorf("request %d ends with %s, want a tool error", i, last)
		}
	}

	if got, want := requests[6].Messages[len(requests[6].Messages)-1].Content, "TOOL RESULT: add\n{\"sum\":3}\n\nTOOL RESULT: echo\nx}y"; got != want {
		t.Errorf("the results come back as %q, want %q", got, want)
	}
}

// S1.4: an answer that mentions a tool over and over is an answer.
func TestAnswerThatMentionsAToolEndsTheRun(t *testing.T) {
	h := agenttest.NewFixture(t, answersInTextMode("You can use the add tool."), inTextMode)
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if end.FinishReason != "stop" || end.Metadata.Steps != 3 {
		t.Errorf("got finish reason %s after %d steps, want stop after 3: two reminders, then it is an answer", end.FinishReason, end.Metadata.Steps)
	}
}

// Issue 4, item 8, in the other dialect.
func TestPlaceholdersAreWrittenInTheDialect(t *testing.T) {
	text := strings.Repeat("x", 12000)
	call := fmt.Sprintf("TOOL: echo\nPARAMETERS: {\"text\": %q}", text)
	h := agenttest.NewFixture(t, answersInTextMode(call, call, "Done."), func(o *agent.Options) {
		inTextMode(o)
		withContextTokens(3500)(o)
	})
	run := h.StartRun(t, agent.Request{})
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	last := h.Model.Requests()[2]
	got := last.Messages[len(last.Messages)-3].Content
	if !strings.HasPrefix(got, "TOOL RESULT: echo\n[The result of echo (call ") || !strings.Contains(got, "/runs/"+run.ID+"/results/") {
		t.Errorf(`got %.200s, want it to start with "TOOL RESULT: echo\n[The result of echo (call " and to contain %q`, got, "/runs/"+run.ID+"/results/")
	}
}

// Templates of models without tool calling, such as Gemma's, refuse a conversation whose roles do not alternate. What the
// agent says itself comes after results, which are messages of the user there.
func TestRolesAlternateInTextMode(t *testing.T) {
	call, schema := "TOOL: echo\nPARAMETERS: {\"text\": \"x\"}", json.RawMessage(sumSchema)
	for name, c := range map[string]struct {
		answers []string
		request agent.Request
	}{
		"the summary of a limit":              {[]string{call, "Done."}, agent.Request{MaxTurns: 1}},
		"a summary that violates its schema":  {[]string{call, "Done.", `{"sum":3}`}, agent.Request{MaxTurns: 1, OutputSchema: schema}},
		"a question after one without answer": {[]string{"Done."}, agent.Request{History: []agent.Message{{Role: "user", Content: "Is it?"}}}},
	} {
		h := agenttest.NewFixture(t, answersInTextMode(c.answers...), inTextMode)
		agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, c.request).ID))
		for n, r := range h.Model.Requests() {
			for i, m := range r.Messages[1:] {
				if want := []string{"user", "assistant"}[i%2]; m.Role != want {
					t.Errorf("%s: message %d of request %d is of the %s, want %s", name, i+1, n, m.Role, want)
				}
			}
		}
	}
}

// Many templates of models without tool calling require that roles alternate, so an answer that says nothing must not leave
// two messages of the user behind.
func TestRolesOfATextModelAlternateAfterAnEmptyAnswer(t *testing.T) {
	h := agenttest.NewFixture(t, func(r llmtest.Request) llmtest.Answer {
		if strings.Contains(r.Messages[len(r.Messages)-1].Content, "does not conform") {
			return llmtest.Says(`{"sum":3}`)
		}
		return llmtest.Says("")
	}, inTextMode)
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, h.StartRun(t, agent.Request{Question: "A sum?", OutputSchema: json.RawMessage(sumSchema)}).ID))
	messages := h.Model.Requests()[1].Messages
	if len(messages) != 2 || messages[1].Role != "user" || !strings.HasPrefix(messages[1].Content, "A sum?\n\n") {
		t.Errorf("the model was asked once more with %+v, want the system prompt and one message that begins with the question", messages)
	}
}
