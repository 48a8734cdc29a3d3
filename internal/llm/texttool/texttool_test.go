package texttool

import (
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

// The reminder must not quote words that the model never wrote.
func TestModelIsRemindedOfTheFormOnce(t *testing.T) {
	first := llm.Request{Model: "m", Messages: question, Tools: testTools}
	parts, _ := askOverHTTP(t, first, "I will use the calc tool.")
	if got, want := summarize(parts), "I will use the calc tool.|^calc|calc use the calc tool"; got != want {
		t.Fatalf("got parts %q, want %q", got, want)
	}
	next := first
	next.Messages = append(slices.Clone(first.Messages),
		llm.Message{Role: llm.Assistant, Text: "I will use the calc tool.", Calls: []llm.ToolCall{{ID: "1", Name: "calc", Arguments: "use the calc tool"}}},
		llm.Message{Role: llm.ToolRole, CallID: "1", Tool: "calc", Text: "The arguments cannot be used.", Failed: true})
	parts, request := askOverHTTP(t, next, "I will use the calc tool.")
	if got, want := summarize(parts), "I will use the calc tool."; got != want {
		t.Errorf("got parts %q the second time, want %q", got, want)
	}
	if got, want := request.Messages[2].Content, "I will use the calc tool."; got != want {
		t.Errorf("got the assistant's message %q, want %q", got, want)
	}
	if got, want := request.Messages[3].Content, "TOOL ERROR: calc\nThe arguments cannot be used.\n"+reminder; got != want {
		t.Errorf("got the result %q, want %q", got, want)
	}
	parts, _ = askOverHTTP(t, next, "I will use the now tool.")
	if got, want := summarize(parts), "I will use the now tool.|^now|now {}"; got != want {
		t.Errorf("got parts %q for a tool without arguments, want %q", got, want)
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
