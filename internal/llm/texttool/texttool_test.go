package texttool

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/openai"
)

// question is a conversation of one question.
var question = []llm.Message{{Role: llm.User, Text: "Hi"}}

// askOverHTTP asks an endpoint that answers with the deltas, and returns the parts of the
// answer and the request that the endpoint received.
func askOverHTTP(t *testing.T, r llm.Request, deltas ...string) ([]llm.Part, llmtest.Request) {
	t.Helper()
	endpoint, m := newTextModel(t, llmtest.Says(deltas...))
	parts, err := llmtest.Collect(t.Context(), m, r)
	if err != nil {
		t.Fatal(err)
	}
	return parts, endpoint.Requests()[0]
}

// newTextModel returns a model with tool calls as text over an endpoint that answers every
// request with answer.
func newTextModel(t *testing.T, answer llmtest.Answer) (*llmtest.Endpoint, *Model) {
	t.Helper()
	endpoint := llmtest.New(t, llmtest.Turns(answer))
	m := openai.New(openai.Config{BaseURL: endpoint.URL})
	t.Cleanup(m.Close)
	return endpoint, New(m)
}

func TestModelGivesTheSamePartsAsNativeCalls(t *testing.T) {
	parts, request := askOverHTTP(t, llm.Request{Model: "m", Messages: question, Tools: testTools, ToolChoice: llm.Auto},
		"Let me look.\n", "TOOL: get_wea", "ther\nPARAMETERS: {\"city\":", " \"Rome\"}", "\n")
	want := llmtest.Lines(`text "Let me look.\n"`, `start 0 * get_weather`, `args 0 {"city":`, `args 0  "Rome"}`,
		`call 0 * get_weather {"city": "Rome"}`, `usage 10 5 15`, `finish stop scripted`)
	if got := llmtest.FormatParts(parts); got != want {
		t.Errorf("got parts\n%swant\n%s", got, want)
	}
	if len(request.Tools) > 0 || request.ToolChoice != nil {
		t.Errorf("got tools %v and tool_choice %s in the request, want none", request.Tools, request.ToolChoice)
	}
}

// The first turn and every later one show the tools and the form of a call.
func TestPromptHasToolsAndFormInEveryTurn(t *testing.T) {
	later := []llm.Message{
		{Role: llm.System, Text: "You are S."}, {Role: llm.User, Text: "Q"},
		{Role: llm.Assistant, Text: "Looking.\n", Calls: []llm.ToolCall{{ID: "1", Name: "get_weather", Arguments: `{"city":"Rome"}`}, {Index: 1, ID: "2", Name: "now"}}},
		{Role: llm.ToolRole, CallID: "1", Tool: "get_weather", Text: "sunny"},
		{Role: llm.ToolRole, CallID: "2", Tool: "now", Text: "no clock", Failed: true},
	}

	for name, messages := range map[string][]llm.Message{"first": later[:2], "later": later, "without a system prompt": later[1:2]} {
		_, request := askOverHTTP(t, llm.Request{Model: "m", Messages: messages, Tools: testTools}, "ok")
		system := request.Messages[0]
		if system.Role != string(llm.System) {
			t.Fatalf("%s: got role %q first, want %q", name, system.Role, llm.System)
		}
		wants := []string{"TOOL: tool_name\nPARAMETERS: {", "- calc: Calculates.", string(testTools[0].Schema), "- now"}
		if messages[0].Role == llm.System {
			wants = append(wants, "You are S.\n")
		}

		for _, want := range wants {
			if !strings.Contains(system.Content, want) {
				t.Errorf("%s: got the prompt %q, want %q in it", name, system.Content, want)
			}
		}
	}

	_, request := askOverHTTP(t, llm.Request{Model: "m", Messages: later, Tools: testTools}, "ok")
	var got []string
	for _, m := range request.Messages[1:] {
		got = append(got, m.Role+" "+m.Content)
	}

	want := []string{"user Q",
		"assistant Looking.\n\nTOOL: get_weather\nPARAMETERS: {\"city\":\"Rome\"}\n\nTOOL: now\nPARAMETERS: {}",
		"user TOOL RESULT: get_weather\nsunny\n\nTOOL ERROR: now\nno clock"}
	if !slices.Equal(got, want) {
		t.Errorf("got messages %q, want %q", got, want)
	}
	if got := later[0].Text; got != "You are S." {
		t.Errorf("got %q as the caller's own message, want it unchanged", got)
	}
}

func TestPromptSaysThatACallIsRequired(t *testing.T) {
	_, request := askOverHTTP(t, llm.Request{Model: "m", Messages: question, Tools: testTools, ToolChoice: llm.Required}, "ok")
	if got, want := request.Messages[0].Content, "must call at least one tool"; !strings.Contains(got, want) {
		t.Errorf("got the prompt %q, want %q in it", got, want)
	}
}

// This concerns the last turn, which is asked without tools, and questions without any.
func TestModelReadsNoCallsWithoutTools(t *testing.T) {
	history := []llm.Message{{Role: llm.User, Text: "Q"}, {Role: llm.Assistant, Calls: []llm.ToolCall{{Name: "now"}}}, {Role: llm.ToolRole, Tool: "now", Text: "12"}}
	for name, r := range map[string]llm.Request{
		"tool_choice none": {Model: "m", Messages: history, Tools: testTools, ToolChoice: llm.None},
		"no tools":         {Model: "m", Messages: history},
	} {
		parts, request := askOverHTTP(t, r, "TOOL: now\n", "PARAMETERS: {}")
		if got, want := summarize(parts), "TOOL: now\n|PARAMETERS: {}"; got != want {
			t.Errorf("%s: got parts %q, want %q", name, got, want)
		}
		messages := request.Messages
		if len(messages) != 3 || messages[2].Content != "TOOL RESULT: now\n12" || strings.Contains(messages[0].Content, "PARAMETERS") {
			t.Errorf("%s: got messages %+v, want three without the form of a call", name, messages)
		}
	}
}

func TestModelPassesErrorsOn(t *testing.T) {
	_, m := newTextModel(t, func(w http.ResponseWriter, _ *http.Request) {
		llmtest.Stream(w, "", map[string]any{"content": "TOOL: now PARAMETERS: {}"})
	})
	parts, err := llmtest.Collect(t.Context(), m, llm.Request{Messages: question, Tools: testTools})
	llmtest.RequireError(t, err, llm.UpstreamTruncated)
	for _, p := range parts {
		if c, ok := p.(llm.ToolCall); ok {
			t.Errorf("got the call %+v of a truncated answer, want none", c)
		}
	}
}

// The leak check of TestMain sees a connection that stays open.
func TestModelClosesTheConnectionWhenItsConsumerStops(t *testing.T) {
	for name, text := range map[string]string{"at text": "Hello there", "at a call": "TOOL: now PARAMETERS: {"} {
		_, m := newTextModel(t, func(w http.ResponseWriter, r *http.Request) {
			llmtest.Stream(w, "", map[string]any{"content": text}, map[string]any{"content": "more"})
			<-r.Context().Done()
		})
		for _, err := range m.Stream(t.Context(), llm.Request{Messages: question, Tools: testTools}) {
			if err != nil {
				t.Errorf("%s: got error %v, want a part", name, err)
			}
			break
		}
	}
}

// A near miss is reported twice with its line, then it is an answer. The reminder must not quote
// words that the model never wrote.
func TestModelIsRemindedOfTheFormTwice(t *testing.T) {
	const answer = "Let me see.\nTOOL: calc\nARGUMENTS: {\"a\": 1}"
	r := llm.Request{Model: "m", Messages: question, Tools: testTools}
	for range maxReminders {
		parts, _ := askOverHTTP(t, r, answer)
		calls := callsOf(parts)
		if len(calls) != 1 || calls[0].Name != "calc" || isObject(calls[0].Arguments) {
			t.Fatalf("got parts %q, want a malformed call of calc", summarize(parts))
		}
		r.Messages = append(slices.Clone(r.Messages),
			llm.Message{Role: llm.Assistant, Text: answer, Calls: calls},
			llm.Message{Role: llm.ToolRole, CallID: calls[0].ID, Tool: "calc", Text: "The arguments cannot be used.", Failed: true})
	}

	parts, request := askOverHTTP(t, r, answer)
	if got := summarize(parts); got != answer {
		t.Errorf("got parts %q the third time, want %q", got, answer)
	}
	if got := request.Messages[2].Content; got != answer {
		t.Errorf("got the assistant's message %q, want %q", got, answer)
	}
	want := "TOOL ERROR: calc\nLine 2 of your answer is not a call: the next line is \"ARGUMENTS: {\\\"a\\\": 1}\" where \"PARAMETERS: {…}\" must stand.\n" + reminder
	if got := request.Messages[3].Content; got != want {
		t.Errorf("got the result %q, want %q", got, want)
	}
	parts, _ = askOverHTTP(t, r, "I will use the now tool.")
	if got, want := summarize(parts), "I will use the now tool.|^now|now {}"; got != want {
		t.Errorf("got parts %q for a tool without arguments, want %q", got, want)
	}
}

// callsOf returns the complete calls among parts.
func callsOf(parts []llm.Part) (calls []llm.ToolCall) {
	for _, p := range parts {
		if c, ok := p.(llm.ToolCall); ok {
			calls = append(calls, c)
		}
	}
	return calls
}

func TestNearMissIsExplained(t *testing.T) {
	for answer, want := range map[string]string{
		"TOOL: calc()": "Line 1 of your answer is not a call: only the tool's name may follow \"TOOL:\", and its arguments belong on the next line.",
		"Well.\n\n> TOOL: calc\n> PARAMETERS: {}": "Line 3 of your answer is not a call: it must begin with \"TOOL:\".",
		"TOOL: calc":                "Line 1 of your answer is not a call: the line \"PARAMETERS: {…}\" is missing after it.",
		"calc":                      "Line 1 of your answer is not a call: a tool's name alone does not call it.",
		"I will use the calc tool.": "You wrote that you use the tool calc, but that does not call it.",
	} {
		parts, _ := askOverHTTP(t, llm.Request{Model: "m", Messages: question, Tools: testTools}, answer)
		calls := callsOf(parts)
		if len(calls) != 1 {
			t.Errorf("%q: got %q, want one call", answer, summarize(parts))
			continue
		}
		if got := explainNearMiss(calls[0], answer); got != want {
			t.Errorf("%q: got %q, want %q", answer, got, want)
		}
	}
}

func TestPromptStopsTheModelBeforeItInventsResults(t *testing.T) {
	r := llm.Request{Model: "m", Messages: question, Tools: testTools, Sampling: llm.Sampling{Stop: []string{"END"}}}
	_, request := askOverHTTP(t, r, "ok")
	if got, want := fmt.Sprint(request.Stop), fmt.Sprint([]string{"END", "\nTOOL RESULT:", "\nTOOL ERROR:"}); got != want {
		t.Errorf("got stop %s, want %s", got, want)
	}
}

func TestReminderFollowsOnlyMalformedCalls(t *testing.T) {
	for args, malformed := range map[string]bool{`{'a': 1}`: true, `{"a": 1,}`: true, `[1]`: true, `a=1`: true, `{"a": 1}`: false, ``: false, ` {} `: false} {
		_, request := askOverHTTP(t, llm.Request{Model: "m", Tools: testTools, Messages: []llm.Message{{Role: llm.User, Text: "Q"},
			{Role: llm.Assistant, Calls: []llm.ToolCall{{ID: "1", Name: "calc", Arguments: args}, {ID: "2", Name: "now"}}},
			{Role: llm.ToolRole, CallID: "1", Tool: "calc", Text: "No.", Failed: true}, {Role: llm.ToolRole, CallID: "2", Tool: "now", Text: "No.", Failed: true},
		}}, "ok")
		want := 0
		if malformed {
			want = 1
		}
		if got := strings.Count(request.Messages[3].Content, reminder); got != want {
			t.Errorf("arguments %q: got %d reminders in %q, want %d", args, got, request.Messages[3].Content, want)
		}
	}
}

func TestAutoReadsTextCallsOfKnownToolsOnly(t *testing.T) {
	for name, c := range map[string]struct {
		answer llmtest.Answer
		want   string
	}{
		"another notation":   {llmtest.Says("<tool_call>\n{\"name\": \"calc\", \"arguments\": {\"a\": 1}}\n</tool_call>"), `^calc|calc {"a": 1}`},
		"the prompt's form":  {llmtest.Says("TOOL: calc\nPARAMETERS: {\"a\": 1}"), `^calc|calc {"a": 1}`},
		"unknown tool":       {llmtest.Says("TOOL: nosuch\nPARAMETERS: {}"), "TOOL: nosuch\nPARAMETERS: {}"},
		"mention":            {llmtest.Says("I will use the now tool."), "I will use the now tool."},
		"near miss":          {llmtest.Says("TOOL: calc()"), "TOOL: calc()"},
		"native call":        {llmtest.Calls(llmtest.Call{Name: "calc", Args: `{"a":1}`}), `^calc|calc {"a":1}`},
		"answer in JSON":     {llmtest.Says(`{"name": "Ada"}`), `{"name": "Ada"}`},
		"ordinary answer":    {llmtest.Says("It is **3**."), "It is **3**."},
		"Action in a report": {llmtest.Says("Action: call the client\nAction Input: none"), "Action: call the client\nAction Input: none"},
	} {
		model := llmtest.New(t, llmtest.Turns(c.answer))
		endpoint := openai.New(openai.Config{BaseURL: model.URL})
		t.Cleanup(endpoint.Close)
		parts, err := llmtest.Collect(t.Context(), NewAuto(endpoint), llm.Request{Model: "m", Messages: question, Tools: testTools})
		if err != nil {
			t.Fatal(err)
		}
		if got := summarize(joinDeltas(parts)); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if n := len(model.Requests()[0].Tools); n != len(testTools) {
			t.Errorf("%s: got %d tools in the request, want %d", name, n, len(testTools))
		}
	}
}
