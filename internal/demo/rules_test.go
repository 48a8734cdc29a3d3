package demo

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRulesChooseCalls(t *testing.T) {
	for question, want := range map[string][]string{
		"What time is it in Tokyo, and what is 12.5 * 8?": {`current_time {"time_zone":"Asia/Tokyo"}`, `calculate {"expression":"12.5 * 8"}`},
		"What is 2+2 and what time is it in Rome?":        {`calculate {"expression":"2+2"}`, `current_time {"time_zone":"Europe/Rome"}`},
		// Time.
		"What time is it?":                               {`current_time {}`},
		"what time is it in new york?":                   {`current_time {"time_zone":"America/New_York"}`},
		"What day is it today in Sydney?":                {`current_time {"time_zone":"Australia/Sydney"}`},
		"What time is it in Asia/Kolkata?":               {`current_time {"time_zone":"Asia/Kolkata"}`},
		"What time is it in Tokyo please":                {`current_time {"time_zone":"Asia/Tokyo"}`},
		"What time is it in Atlantis?":                   {`current_time {"time_zone":"Atlantis"}`},
		"And in Osaka?":                                  {`current_time {"time_zone":"Asia/Tokyo"}`},
		"What is the time limit?":                        {`search_docs {"query":"What is the time limit"}`},
		"I met 3 people in Rome on 2026-11-21 at 10:30.": {},
		"Time flies":                                     {},
		// Arithmetic.
		"What is 12.5 * 8?":             {`calculate {"expression":"12.5 * 8"}`},
		"What is 2 + 3?":                {`calculate {"expression":"2 + 3"}`},
		"calculate (1200 + 2) / -3.":    {`calculate {"expression":"(1200 + 2) / -3"}`},
		"2+2":                           {`calculate {"expression":"2+2"}`},
		"What is 1/0?":                  {`calculate {"expression":"1/0"}`},
		"What is 1+1, and what is 2+2?": {`calculate {"expression":"1+1"}`, `calculate {"expression":"2+2"}`},
		"We are 3-4 people":             {},
		"What is 12?":                   {},
		// Conversions.
		"12 miles in km":                {`convert {"from":"miles","to":"km","value":12}`},
		"How much is $100.50 in euros?": {},
		"how much is 100 EUR in USD?":   {`convert {"from":"EUR","to":"USD","value":100}`},
		"what is -40 °C in °F":          {`convert {"from":"°C","to":"°F","value":-40}`},
		"convert 5 parsecs to km":       {},
		// Documentation.
		"How do I resume a stream?":                       {`search_docs {"query":"How do I resume a stream"}`},
		"What is answerd?":                                {`search_docs {"query":"What is answerd"}`},
		"search the docs for hooks":                       {`search_docs {"query":"search the docs for hooks"}`},
		"What is the capital of France?":                  {},
		"What time is it in Oslo, and what does MCP mean": {`current_time {"time_zone":"Europe/Oslo"}`, `search_docs {"query":"what does MCP mean"}`},
		// Progress.
		"Write a slow report about tea":                        {`slow_report {"topic":"tea"}`},
		"Write a slow report about tea in 10 steps of 2000 ms": {`slow_report {"step_ms":2000,"steps":10,"topic":"tea"}`},
		"Write a report on green tea, please":                  {`slow_report {"topic":"green tea"}`},
		"Please report the accident":                           {},
		// Failures.
		"Call the flaky service":   {`flaky_service {}`},
		"please fail":              {`flaky_service {}`},
		"They never fail to amaze": {},
		// Notes.
		"Show my notes":                    {`list_notes {}`},
		"Delete note 2.":                   {`delete_note {"id":2}`},
		"List the notes and delete note 3": {`list_notes {}`, `delete_note {"id":3}`},
		"delete note 2 and delete note 4":  {`delete_note {"id":2}`, `delete_note {"id":4}`},
		"Delete the note":                  {},
		"I would rather keep note 2":       {},
		// Questions to the user.
		"Book a table":             {`book_table {}`},
		"Connect my calendar":      {`connect_calendar {}`},
		"I read a book at a table": {`book_table {}`}, // rules do not understand
		"The table is booked":      {},
		"Where is my calendar":     {},
		// Any tool by its name.
		`use crm_lookup with {"id": 7, "deep": {"a": [1]}}`: {`crm_lookup {"id":7,"deep":{"a":[1]}}`},
		`use crm_lookup with {"id": 7`:                      {},
		`use crm_lookup with []`:                            {},
		`use nothing with {}`:                               {},
		// Nothing of these.
		"": {}, "hello": {}, "Tell me a joke": {}, "Thank you!": {},
	} {
		if got := callNames(composeReply(newChatRequest(t, append([]string{"crm_lookup"}, demoTools...), question))); !reflect.DeepEqual(got, want) {
			t.Errorf("%q calls\n%q, want\n%q", question, got, want)
		}
	}
}

func TestRulesCallOnlyOfferedTools(t *testing.T) {
	for _, r := range rules {
		if got := callNames(composeReply(newChatRequest(t, []string{"other"}, r.example))); len(got) > 0 {
			t.Errorf("%q calls %q, which was not offered, want no call", r.example, got)
		}
		if got := callNames(composeReply(newChatRequest(t, []string{"demo_" + r.tool}, r.example))); r.tool != "" && len(got) != 1 {
			t.Errorf("%q calls %q, want demo_%s", r.example, got, r.tool)
		}
	}
}

// For every other question the stand-in says what it can do, and what it is.
func TestModelListsWhatItCanDo(t *testing.T) {
	got := composeReply(newChatRequest(t, demoTools, "Tell me a joke")).text
	for _, r := range rules {
		if !strings.Contains(got, "- "+r.example) {
			t.Errorf("got %q, want the example %q in it", got, r.example)
		}
	}
	if !strings.HasSuffix(got, standInNote) {
		t.Errorf("got %q, want the note at its end", got)
	}
	if got := composeReply(newChatRequest(t, []string{"calculate"}, "hello")).text; !strings.Contains(got, "12.5 * 8") || strings.Contains(got, "Tokyo") {
		t.Errorf("with one tool: got %q, want its example and no other", got)
	}
	if got := composeReply(newChatRequest(t, nil, "hello")).text; !strings.Contains(got, "no tools") {
		t.Errorf(`without tools: got %q, want it to contain "no tools"`, got)
	}
}

// withResults returns messages that go on with a reply's calls and their results.
func withResults(question string, r *reply, results ...string) []any {
	messages := []any{map[string]any{"role": "user", "content": question}}
	var calls []any
	for _, c := range r.calls {
		calls = append(calls, map[string]any{"id": c.id, "type": "function", "function": map[string]any{"name": c.tool, "arguments": c.arguments}})
	}
	messages = append(messages, map[string]any{"role": "assistant", "content": nil, "tool_calls": calls})
	for i, result := range results {
		messages = append(messages, map[string]any{"role": "tool", "tool_call_id": r.calls[i].id, "content": result})
	}
	return messages
}

func TestModelAnswersWithTheResults(t *testing.T) {
	question := "What time is it?"
	for result, want := range map[string]string{
		"It is ten.": "It is ten.",
		"It is ten.\nStructured content: {\"time\":\"10:00\"}": "It is ten.",
		`{"error":"no such thing"}`:                            "The tool current_time failed: no such thing\n\nI did not try the failed call again.",
		`{"error":null,"id":1}`:                                `{"error":null,"id":1}`,
		strings.Repeat("é", 2000):                              strings.Repeat("é", 600),
	} {
		first := composeReply(newChatRequest(t, demoTools, question))
		got := composeReply(decodeRequest(t, map[string]any{"messages": withResults(question, first, result), "tools": wireTools(demoTools)}))
		if len(got.calls) > 0 || got.text != want+"\n\n"+standInNote {
			t.Errorf("%.80q: got %q, want %q", result, got.text, want)
		}
	}
}

func TestModelCallsOneAtATimeIfAsked(t *testing.T) {
	question := "What is 1+1, and what is 2+2?"
	body := map[string]any{"messages": []any{map[string]any{"role": "user", "content": question}}, "tools": wireTools(demoTools), "parallel_tool_calls": false}
	first := composeReply(decodeRequest(t, body))
	body["messages"] = withResults(question, first, "2")
	second := composeReply(decodeRequest(t, body))
	if got, want := append(callNames(first), callNames(second)...), []string{`calculate {"expression":"1+1"}`, `calculate {"expression":"2+2"}`}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestModelToolChoice(t *testing.T) {
	for _, c := range []struct {
		choice, question string
		want             []string
	}{
		{`"none"`, "What time is it?", []string{}},
		{`"auto"`, "hello", []string{}},
		{`null`, "2+2", []string{`calculate {"expression":"2+2"}`}},
		{`"required"`, "What time is it in Rome?", []string{`current_time {"time_zone":"Europe/Rome"}`}},
		{`"required"`, "hello", []string{`book_table {}`}},
		{`{"type":"function","function":{"name":"list_notes"}}`, "hello", []string{`list_notes {}`}},
		{`{"type":"function","function":{"name":"current_time"}}`, "what is 2+2 and what time is it in Oslo?", []string{`current_time {"time_zone":"Europe/Oslo"}`}},
	} {
		r := newChatRequest(t, demoTools, c.question)
		r.ToolChoice = json.RawMessage(c.choice)
		if got := callNames(composeReply(r)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, %q: got %q, want %q", c.choice, c.question, got, c.want)
		}
	}
}

// Whole runs can be compared because of this: no clock and no chance in the calls, and a
// system prompt with the time of day changes nothing.
func TestModelNamesCallsByTheConversation(t *testing.T) {
	ask := func(texts ...string) *reply { return composeReply(newChatRequest(t, demoTools, texts...)) }
	question := "What time is it in Tokyo and what is 2+2?"
	a, b := ask(question), composeReply(decodeRequest(t, map[string]any{"tools": wireTools(demoTools), "messages": []any{
		map[string]any{"role": "system", "content": "It is 10:15:00."}, map[string]any{"role": "user", "content": question}}}))
	if !reflect.DeepEqual(a.calls, b.calls) || a.calls[0].id == a.calls[1].id {
		t.Errorf("got %v and %v, want the same calls with ids of their own", a.calls, b.calls)
	}
	if once, again := ask("2+2"), ask("2+2", "4", "2+2"); once.calls[0].id == again.calls[0].id {
		t.Errorf("two calls of one conversation have the id %s, want other than %s", once.calls[0].id, again.calls[0].id)
	}
}

// textPrompt is the prompt as internal/llm writes it for LLM_TOOL_CALLING=text.
const textPrompt = "You answer.\n\n# Tools\n\nTOOL: tool_name\nPARAMETERS: {\"name\": \"value\"}\n\nTools:\n" +
	"\n- calculate: Computes.\n  - not a tool: it is indented\n  JSON Schema of its parameters: {\"type\":\"object\"}\n" +
	"\n- current_time\n  JSON Schema of its parameters: {\"type\":\"object\"}\n"

func TestModelWritesCallsAsText(t *testing.T) {
	messages := []any{map[string]any{"role": "system", "content": textPrompt}, map[string]any{"role": "user", "content": "What time is it in Rome and what is 2+2?"}}
	first := composeReply(decodeRequest(t, map[string]any{"messages": messages}))
	want := "TOOL: current_time\nPARAMETERS: {\"time_zone\":\"Europe/Rome\"}\n\nTOOL: calculate\nPARAMETERS: {\"expression\":\"2+2\"}\n\n"
	if first.text != want || len(first.calls) > 0 || first.finish != "stop" {
		t.Fatalf("got %q, %q, want %q", first.text, first.finish, want)
	}
	messages = append(messages, map[string]any{"role": "assistant", "content": first.text},
		map[string]any{"role": "user", "content": "TOOL RESULT: current_time\nIt is ten.\n\nTOOL ERROR: calculate\n{\"error\":\"it is closed\"}"})
	last := composeReply(decodeRequest(t, map[string]any{"messages": messages}))
	if want := "It is ten.\n\nThe tool calculate failed: it is closed\n\n"; !strings.HasPrefix(last.text, want) {
		t.Errorf("got %q, want %q first", last.text, want)
	}
}

// A request is hostile until it is decoded, and what is decoded must be answered: in valid
// JSON and valid UTF-8, without a panic.
func FuzzModel(f *testing.F) {
	tools := encodeJSON(wireTools(demoTools))
	for _, s := range []string{
		`{"messages":[{"role":"user","content":"What time is it in Tokyo and what is 12.5*8?"}],"tools":` + tools + `}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"100 EUR in USD"}]}],"tools":` + tools + `,"tool_choice":"required"}`,
		`{"messages":[{"role":"user","content":"fail"},{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"{\"error\":null}"}]}`,
		`{"messages":[{"role":"system","content":"PARAMETERS:\n- a: b"},{"role":"user","content":"TOOL RESULT: a\nx"}]}`,
		`{"messages":[{"role":"user","content":"\ud800 \u0000 delete note 000001 use a with {}"}],"parallel_tool_calls":false,"tool_choice":{}}`, `{"messages":null}`, `[]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := new(chatRequest)
		if json.Unmarshal(body, r) != nil {
			return
		}
		out := composeReply(r)
		for _, c := range out.calls {
			if !json.Valid([]byte(c.arguments)) || c.id == "" {
				t.Fatalf("call %+v, want an ID and JSON as arguments", c)
			}
		}
		for _, d := range out.splitDeltas() {
			if b := encodeJSON(d); !utf8.ValidString(b) {
				t.Fatalf("delta %q, want UTF-8", b)
			}
		}
		if (out.text == "") == (len(out.calls) == 0) {
			t.Fatalf("text %q and %d calls, want one or the other", out.text, len(out.calls))
		}
	})
}

func TestFollowUpQuestionsDependOnWhatWasSaid(t *testing.T) {
	for question, want := range map[string]string{
		"And times two?": "What is 100 * 2?", "and times 3": "What is 100 * 3?", "divided by -4?": "What is 100 / -4?", "Now plus 2.5.": "What is 100 + 2.5?", "* 2": "What is 100 * 2?", "minus ten!": "What is 100 - 10?",
		"What is 2 * 3?": "What is 2 * 3?", "And in Osaka?": "And in Osaka?", "many times two people": "many times two people",
	} {
		if got := resolveFollowUp(question, "100"); got != want {
			t.Errorf("%q: got %q, want %q", question, got, want)
		}
	}
	if got := resolveFollowUp("And times two?", ""); got != "And times two?" {
		t.Errorf("without a value: got %q, want the question", got)
	}
	if got, want := recapText("What did I ask before?", []string{"What is 2 * 3?", "Why?\nBecause."}), "Before this you asked:\n- What is 2 * 3?\n- Why?"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := recapText("What is it?", nil); got != "" {
		t.Errorf("another question: got %q, want nothing", got)
	}
}
