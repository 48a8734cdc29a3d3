package llm

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dialectTools are those of the golden vectors in facts/seed-systems.md, and two that
// take nothing or need nothing.
var dialectTools = []Tool{
	{Name: "calc", Description: "Calculates.", Schema: json.RawMessage(`{"type":"object","properties":{"a":{}},"required":["a"]}`)},
	{Name: "get_weather", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)},
	{Name: "search-web", Schema: json.RawMessage(`{"type":"object","properties":{"q":{"type":"string"}}}`)},
	{Name: "now"},
}

// extract gives text to an extractor in pieces of n bytes, or of any size where n is below
// 1, and returns what comes of it, text and arguments that follow one another joined.
func extract(t *testing.T, text string, n int) []Part {
	t.Helper()
	var c collector
	x := &extractor{emit: func(p Part) bool { c.parts = append(c.parts, p); return true }, tools: dialectTools}
	sizes := rand.New(rand.NewPCG(uint64(n), 0))
	for rest := text; rest != ""; {
		k := min(n, len(rest))
		if n < 1 {
			k = min(1+sizes.IntN(40), len(rest))
		}
		if err := x.feed(rest[:k]); err != nil {
			t.Fatal(err)
		}
		rest = rest[k:]
	}
	if err := x.close(Finish{Reason: "stop"}); err != nil {
		t.Fatal(err)
	}
	return joined(c.parts)
}

func joined(parts []Part) (out []Part) {
	for _, p := range parts {
		if len(out) > 0 {
			switch last := out[len(out)-1].(type) {
			case Text:
				if p, ok := p.(Text); ok {
					out[len(out)-1] = Text{last.Delta + p.Delta}
					continue
				}
			case ToolCallArgs:
				if p, ok := p.(ToolCallArgs); ok && p.Index == last.Index {
					out[len(out)-1] = ToolCallArgs{p.Index, last.Delta + p.Delta}
					continue
				}
			}
		}
		out = append(out, p)
	}
	return out
}

// brief is parts as "text|name args|…", complete calls last.
func brief(parts []Part) string {
	var out []string
	for _, p := range parts {
		switch p := p.(type) {
		case Text:
			out = append(out, p.Delta)
		case ToolCallStart:
			out = append(out, "^"+p.Name)
		case ToolCall:
			out = append(out, p.Name+" "+p.Arguments)
		}
	}
	return strings.Join(out, "|")
}

// S1.1, S1.3, S1.4: the golden vectors of facts/seed-systems.md and the forms beyond them.
var dialectVectors = map[string]struct{ in, want string }{
	"S1.1 the form":                           {"TOOL: calc\nPARAMETERS: {\"a\": 1}", `^calc|calc {"a": 1}`},
	"S1.1 CRLF":                               {"TOOL: calc\r\nPARAMETERS: {\"a\": 1}\r\n", `^calc|calc {"a": 1}`},
	"S1.1 blank line between":                 {"TOOL: calc\n\n \nPARAMETERS: {\"a\": 1}", `^calc|calc {"a": 1}`},
	"S1.1 indented":                           {"  TOOL: calc\n    PARAMETERS:   {\"a\": 1}", `^calc|calc {"a": 1}`},
	"S1.1 JSON over lines":                    {"TOOL: calc\nPARAMETERS: {\n  \"a\": 1\n\n}\n", "^calc|calc {\n  \"a\": 1\n\n}"},
	"S1.1 JSON on the next line":              {"TOOL: calc\nPARAMETERS:\n{\"a\": 1}", `^calc|calc {"a": 1}`},
	"S1.1 nested":                             {`TOOL: calc` + "\n" + `PARAMETERS: {"a": {"b": {"c": 1}}}`, `^calc|calc {"a": {"b": {"c": 1}}}`},
	"S1.1 array of objects":                   {"TOOL: calc\nPARAMETERS: {\"a\": [{\"x\": 1}, {}]}", `^calc|calc {"a": [{"x": 1}, {}]}`},
	"S1.1 empty object inside":                {"TOOL: calc\nPARAMETERS: {\"a\":{},\"b\":2}", `^calc|calc {"a":{},"b":2}`},
	"S1.1 braces in strings":                  {`TOOL: calc` + "\n" + `PARAMETERS: {"a": "x}y{\"}\\"} ok`, `^calc|ok|calc {"a": "x}y{\"}\\"}`},
	"S1.1 the form in a string":               {`TOOL: calc` + "\n" + `PARAMETERS: {"a": "TOOL: x PARAMETERS: {}"}`, `^calc|calc {"a": "TOOL: x PARAMETERS: {}"}`},
	"S1.1 same line":                          {`TOOL: calc PARAMETERS: {"a": 1}`, `^calc|calc {"a": 1}`},
	"S1.1 lower case":                         {"tool: calc\nparameters: {\"a\": 1}", `^calc|calc {"a": 1}`},
	"S1.1 mixed case":                         {"Tool: calc\nParameters: {}", `^calc|calc {}`},
	"S1.1 dotted name":                        {"TOOL: ns.calc\nPARAMETERS: {}", `^ns.calc|ns.calc {}`},
	"S1.1 slash in name":                      {"TOOL: a/b\nPARAMETERS: {}", `^a/b|a/b {}`},
	"S1.1 hyphen in name":                     {"TOOL: search-web\nPARAMETERS: {}", `^search-web|search-web {}`},
	"S1.1 Unicode name":                       {"TOOL: météo_日本\nPARAMETERS: {}", `^météo_日本|météo_日本 {}`},
	"S1.1 unknown tool":                       {"TOOL: nosuch\nPARAMETERS: {\"a\": 1}", `^nosuch|nosuch {"a": 1}`},
	"S1.1 backticked name":                    {"TOOL: `calc`\nPARAMETERS: {}", `^calc|calc {}`},
	"S1.1 quoted name":                        {"TOOL: \"calc\"\nPARAMETERS: {}", `^calc|calc {}`},
	"S1.1 name with a full stop":              {"TOOL: calc.\nPARAMETERS: {}", `^calc|calc {}`},
	"S1.1 backticked parameters":              {"TOOL: calc\nPARAMETERS: `{\"a\": 1}`", `^calc|calc {"a": 1}`},
	"S1.1 fenced parameters":                  {"TOOL: calc\nPARAMETERS:\n```json\n{\"a\": 1}\n```\nThen.", `^calc|Then.|calc {"a": 1}`},
	"S1.1 fenced block":                       {"Look:\n```\nTOOL: calc\nPARAMETERS: {\"a\": 1}\n```\nThen.", "Look:\n|^calc|Then.|calc {\"a\": 1}"},
	"S1.1 fenced with a language":             {"```text\nTOOL: calc\nPARAMETERS: {}\n```", `^calc|calc {}`},
	"S1.1 fenced tool_code":                   {"```tool\n\nTOOL: calc\nPARAMETERS: {}\n```", `^calc|calc {}`},
	"S1.1 two calls in one fence":             {"```\nTOOL: calc\nPARAMETERS: {}\n\nTOOL: now\nPARAMETERS: {}\n```\nx", `^calc|^now|x|calc {}|now {}`},
	"S1.1 a fence for each":                   {"```\nTOOL: calc\nPARAMETERS: {}\n```\n\n```\nTOOL: now\nPARAMETERS: {}\n```", `^calc|^now|calc {}|now {}`},
	"S1.1 bold words":                         {"**TOOL:** calc\n**PARAMETERS:** {\"a\": 1}", `^calc|calc {"a": 1}`},
	"S1.1 bold lines":                         {"**TOOL: calc**\n**PARAMETERS: {\"a\": 1}**\nx", `^calc|x|calc {"a": 1}`},
	"S1.1 bold word, colon outside":           {"**TOOL**: `calc`\n**PARAMETERS**: {}", `^calc|calc {}`},
	"S1.1 code line":                          {"`TOOL: calc PARAMETERS: {}` x", `^calc|x|calc {}`},
	"S1.1 several, text around":               {"First.\n\nTOOL: calc\nPARAMETERS: {\"a\": 1}\n\nThen:\nTOOL: now\nPARAMETERS: {}\nDone.", "First.\n\n|^calc|Then:\n|^now|Done.|calc {\"a\": 1}|now {}"},
	"S1.1 the same twice":                     {"TOOL: now\nPARAMETERS: {}\nTOOL: now\nPARAMETERS: {}", `^now|^now|now {}|now {}`},
	"S1.1 close together":                     {"TOOL: now PARAMETERS: {}TOOL: now PARAMETERS: {}", `^now|^now|now {}|now {}`},
	"S1.1 in mid-sentence":                    {"I check (TOOL: now PARAMETERS: {}) and", "I check (|^now|) and|now {}"},
	"S1.1 bold text behind":                   {"TOOL: now\nPARAMETERS: {}\n**Note** x", "^now|**Note** x|now {}"},
	"S1.1 large numbers stay":                 {"TOOL: calc\nPARAMETERS: {\"a\": 12345678901234567890.10}", `^calc|calc {"a": 12345678901234567890.10}`},
	"S1.3 single quotes":                      {"TOOL: calc\nPARAMETERS: {'a': 1}\nx", `^calc|x|calc {'a': 1}`},
	"S1.3 trailing comma":                     {"TOOL: calc\nPARAMETERS: {\"a\": 1,}", `^calc|calc {"a": 1,}`},
	"S1.3 never closed":                       {"TOOL: calc\nPARAMETERS: {\"a\": 1", `^calc|calc {"a": 1`},
	"S1.3 never closed, next call":            {"TOOL: calc\nPARAMETERS: {\"a\": \"x\n\nTOOL: now\nPARAMETERS: {}", "^calc|^now|calc {\"a\": \"x\n|now {}"},
	"S1.3 never closed, fence":                {"```\nTOOL: calc\nPARAMETERS: {\"a\": 1\n```\nx", `^calc|x|calc {"a": 1`},
	"S1.3 an array":                           {"TOOL: calc\nPARAMETERS: [1,\n2] x", "^calc|x|calc [1,\n2]"},
	"S1.3 an array, unknown tool":             {"TOOL: nosuch\nPARAMETERS: [1]", "TOOL: nosuch\nPARAMETERS: [1]"},
	"S1.3 no object":                          {"TOOL: calc\nPARAMETERS: a=1, b=2\nx", "^calc|x|calc a=1, b=2"},
	"S1.3 nothing":                            {"TOOL: now\nPARAMETERS:", "^now|now PARAMETERS:"},
	"S1.3 nothing, then text":                 {"TOOL: now\nPARAMETERS:\nI wait.", "^now|I wait.|now PARAMETERS:"},
	"S1.1 prose in the same words":            {"Tool: calc\nParameters: a (a number)", "Tool: calc\nParameters: a (a number)"},
	"S1.3 text between the lines":             {"TOOL: calc\nwith these\nPARAMETERS: {}", "TOOL: calc\nwith these\nPARAMETERS: {}"},
	"S1.3 no parameters":                      {"TOOL: calc\n", "TOOL: calc\n|^calc|calc TOOL: calc"},
	"S1.3 no parameters, bold":                {"I look.\n**TOOL: now**", "I look.\n**TOOL: now**|^now|now TOOL: now"},
	"S1.3 no parameters, text behind":         {"TOOL: now\nis what I would write", "TOOL: now\nis what I would write"},
	"S1.3 no parameters, other case":          {"Tool: now", "Tool: now"},
	"S1.3 no parameters, unknown tool":        {"TOOL: nosuch", "TOOL: nosuch"},
	"S1.3 NaN":                                {"TOOL: calc\nPARAMETERS: {\"a\": NaN}", `^calc|calc {"a": NaN}`},
	"S1.1 a name twice":                       {"TOOL: calc\nPARAMETERS: {\"a\": 1, \"a\": 2}", `^calc|calc {"a": 1, "a": 2}`},
	"S1.1 only the word":                      {"The right tool: a hammer. TOOLS: x. multitool: y", "The right tool: a hammer. TOOLS: x. multitool: y"},
	"S1.1 within a word":                      {"MYTOOL: calc PARAMETERS: {}", "MYTOOL: calc PARAMETERS: {}"},
	"S1.1 results are not calls":              {"TOOL RESULT: calc\n{\"a\": 1}", "TOOL RESULT: calc\n{\"a\": 1}"},
	"S1.1 ordinary code":                      {"Use:\n```go\ntool := x\n```\n*done*", "Use:\n```go\ntool := x\n```\n*done*"},
	"S1.1 ordinary text":                      {"Hello **world**, `code` and t", "Hello **world**, `code` and t"},
	"S1.1 white space only":                   {" \n ", ""},
	"S1.1 white space first":                  {"\n  Hello", "\n  Hello"},
	"S1.1 empty":                              {"", ""},
	"S1.4 fallback":                           {"I will use the now tool.", "I will use the now tool.|^now|now {}"},
	"S1.4 fallback, marked":                   {"I'll USE THE `search-web` TOOL now.", "I'll USE THE `search-web` TOOL now.|^search-web|search-web {}"},
	"S1.4 fallback, in tool order":            {"I use the now tool, then use the search-web tool.", "I use the now tool, then use the search-web tool.|^search-web|^now|search-web {}|now {}"},
	"S1.4 fallback, negated":                  {"I will not use the now tool. I don't use the search-web tool. I never use the now tool", "I will not use the now tool. I don't use the search-web tool. I never use the now tool"},
	"S1.4 fallback, one negated":              {"Not that one: I won't use the now tool.\nI use the now tool.", "Not that one: I won't use the now tool.\nI use the now tool.|^now|now {}"},
	"S1.4 fallback, a question":               {"Shall I use the now tool?", "Shall I use the now tool?"},
	"S1.4 fallback, needs arguments, is told": {"I will use the calc tool.", "I will use the calc tool.|^calc|calc use the calc tool"},
	"S1.4 fallback, not with a call":          {"I use the now tool. TOOL: calc PARAMETERS: {}", "I use the now tool. |^calc|calc {}"},
	"S1.4 fallback, unknown tool":             {"I use the hammer tool.", "I use the hammer tool."},
	"S1.4 fallback, needs arguments, negated": {"I will not use the calc tool.", "I will not use the calc tool."},
	"S1.4 fallback, once for each":            {"I use the now tool. I use the now tool.", "I use the now tool. I use the now tool.|^now|now {}"},
	"S1.4 fallback, in JSON":                  {`{"a": "I use the calc tool"}`, `{"a": "I use the calc tool"}|^calc|calc use the calc tool`},
}

func TestCallsAreReadOutOfText(t *testing.T) {
	for name, c := range dialectVectors {
		t.Run(name, func(t *testing.T) {
			whole := extract(t, c.in, len(c.in)+1)
			if got := brief(whole); got != c.want {
				t.Errorf("%q\ngot  %q\nwant %q", c.in, got, c.want)
			}
			checkPromises(t, callsLast(whole))
			for n := 1; n < 12; n++ {
				if got := extract(t, c.in, n); show(got) != show(whole) {
					t.Errorf("in pieces of %d:\n%swhole:\n%s", n, show(got), show(whole))
				}
			}
		})
	}
}

// callsLast drops the text, which stands between calls in this dialect.
func callsLast(parts []Part) []Part {
	return slices.DeleteFunc(slices.Clone(parts), func(p Part) bool { _, ok := p.(Text); return ok })
}

// S1.1: text before a call still streams, and so do its arguments.
func TestTextIsHeldBackOnlyWhereACallMayBegin(t *testing.T) {
	var got []Part
	x := &extractor{emit: func(p Part) bool { got = append(got, p); return true }, tools: dialectTools}
	for _, step := range []struct{ in, out string }{
		{"Let me ", "Let me "}, {"look *", "look "}, {"now*. A ", "*now*. A "}, {"too", ""}, {"th. ", "tooth. "},
		{"TOOL: ca", ""}, {"lc\nPARAM", ""}, {"ETERS: {", "^calc"}, {`"a": 1`, ""}, {"}\n", ""}, {"So", "So"},
	} {
		got = nil
		if err := x.feed(step.in); err != nil {
			t.Fatal(err)
		}
		if out := brief(got); out != step.out {
			t.Errorf("after %q: %q, want %q", step.in, out, step.out)
		}
	}
}

// A header that never ends is not held back without end.
func TestNoMoreThanAHeaderIsHeldBack(t *testing.T) {
	for _, text := range []struct{ first, again string }{
		{"", "TOOL: nosuch\nPARAMETERS: "}, {"", "TOOL: "}, {"", "```"}, {"", "*"}, {"", "TOOL: a\n"}, {"TOOL: ", "x"},
		{"TOOL: calc\nPARAMETERS: a=1", " b=2"}, // the rest of the line is this call's arguments
	} {
		came := 0
		x := &extractor{emit: func(p Part) bool { came++; return true }, tools: dialectTools}
		for piece := text.first; came < 3; piece = text.again {
			if err := x.feed(piece); err != nil {
				t.Fatal(err)
			}
			if len(x.held) > maxHeader+len(piece) {
				t.Fatalf("%q: %d bytes held back", text, len(x.held))
			}
		}
	}
}

func TestTheDialectIsBounded(t *testing.T) {
	x := &extractor{emit: func(Part) bool { return true }, tools: dialectTools}
	wantError(t, x.feed(strings.Repeat("TOOL: now PARAMETERS: {}\n", maxCalls+1)), ModelError)
	x = &extractor{emit: func(Part) bool { return true }, tools: dialectTools}
	wantError(t, x.feed("TOOL: now PARAMETERS: {"+strings.Repeat("x", maxArguments)), ModelError)
}

// askDialect runs a whole answer of the model under the dialect over HTTP and returns
// the messages that the endpoint saw.
func askDialect(t *testing.T, r Request, said ...string) (parts []Part, messages []Message, body map[string]json.RawMessage) {
	t.Helper()
	chunks := make([]string, 0, len(said)+3)
	for _, s := range said {
		chunks = append(chunks, says(s))
	}
	s, m := play(t, OpenAIConfig{}, sends(events(append(chunks, stop, usage, "[DONE]")...)))
	parts, err := ask(t.Context(), NewText(m), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(s.received()[0].body, &body); err != nil {
		t.Fatal(err)
	}
	var wire []struct {
		Role    Role
		Content string
	}
	if err := json.Unmarshal(body["messages"], &wire); err != nil {
		t.Fatal(err)
	}
	for _, w := range wire {
		messages = append(messages, Message{Role: w.Role, Text: w.Content})
	}
	return parts, messages, body
}

func TestTheDialectGivesTheSamePartsAsNativeCalls(t *testing.T) {
	parts, _, body := askDialect(t, Request{Model: "m", Messages: question.Messages, Tools: dialectTools, ToolChoice: Auto},
		"Let me look.\n", "TOOL: get_wea", "ther\nPARAMETERS: {\"city\":", " \"Rome\"}", "\n")
	want := lines(`text "Let me look.\n"`, `start 0 * get_weather`, `args 0 {"city":`, `args 0  "Rome"}`,
		`call 0 * get_weather {"city": "Rome"}`, `usage 3 2 5`, `finish stop m-1`)
	if got := show(parts); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if body["tools"] != nil || body["tool_choice"] != nil {
		t.Errorf("tools were offered natively: %s", body["tools"])
	}
}

// S1.2: in the first turn and in every later one.
func TestToolsAndFormAreInEveryPrompt(t *testing.T) {
	later := []Message{
		{Role: System, Text: "You are S."}, {Role: User, Text: "Q"},
		{Role: Assistant, Text: "Looking.\n", Calls: []ToolCall{{ID: "1", Name: "get_weather", Arguments: `{"city":"Rome"}`}, {Index: 1, ID: "2", Name: "now"}}},
		{Role: ToolRole, CallID: "1", Tool: "get_weather", Text: "sunny"},
		{Role: ToolRole, CallID: "2", Tool: "now", Text: "no clock", Failed: true},
	}
	for name, messages := range map[string][]Message{"first": later[:2], "later": later, "without a system prompt": later[1:2]} {
		_, got, _ := askDialect(t, Request{Model: "m", Messages: messages, Tools: dialectTools}, "ok")
		system := got[0]
		if system.Role != System {
			t.Fatalf("%s: %+v", name, got)
		}
		wants := []string{"TOOL: tool_name\nPARAMETERS: {", "- calc: Calculates.", string(dialectTools[0].Schema), "- now"}
		if messages[0].Role == System {
			wants = append(wants, "You are S.\n")
		}
		for _, want := range wants {
			if !strings.Contains(system.Text, want) {
				t.Errorf("%s: no %q in %s", name, want, system.Text)
			}
		}
	}
	_, got, _ := askDialect(t, Request{Model: "m", Messages: later, Tools: dialectTools}, "ok")
	want := []Message{{Role: User, Text: "Q"},
		{Role: Assistant, Text: "Looking.\n\nTOOL: get_weather\nPARAMETERS: {\"city\":\"Rome\"}\n\nTOOL: now\nPARAMETERS: {}"},
		{Role: User, Text: "TOOL RESULT: get_weather\nsunny\n\nTOOL ERROR: now\nno clock"}}
	if !slices.EqualFunc(got[1:], want, func(a, b Message) bool { return a.Role == b.Role && a.Text == b.Text }) {
		t.Errorf("got %+v", got[1:])
	}
	if later[0].Text != "You are S." {
		t.Error("the caller's messages were changed")
	}
}

func TestRequiredIsSaid(t *testing.T) {
	_, got, _ := askDialect(t, Request{Model: "m", Messages: question.Messages, Tools: dialectTools, ToolChoice: Required}, "ok")
	if !strings.Contains(got[0].Text, "must call at least one tool") {
		t.Error(got[0].Text)
	}
}

// S2.9: the last turn without tools, and a question asked without any.
func TestWithoutToolsAllIsText(t *testing.T) {
	history := []Message{{Role: User, Text: "Q"}, {Role: Assistant, Calls: []ToolCall{{Name: "now"}}}, {Role: ToolRole, Tool: "now", Text: "12"}}
	for name, r := range map[string]Request{
		"tool_choice none": {Model: "m", Messages: history, Tools: dialectTools, ToolChoice: None},
		"no tools":         {Model: "m", Messages: history},
	} {
		parts, got, _ := askDialect(t, r, "TOOL: now\n", "PARAMETERS: {}")
		if want := "TOOL: now\n|PARAMETERS: {}"; brief(parts) != want {
			t.Errorf("%s: %q", name, brief(parts))
		}
		if len(got) != 3 || got[2].Text != "TOOL RESULT: now\n12" || strings.Contains(got[0].Text, "PARAMETERS") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestErrorsOfTheModelPassThroughTheDialect(t *testing.T) {
	_, m := play(t, OpenAIConfig{}, sends(events(says("TOOL: now PARAMETERS: {}"))))
	parts, err := ask(t.Context(), NewText(m), Request{Messages: question.Messages, Tools: dialectTools})
	wantError(t, err, UpstreamTruncated)
	for _, p := range parts {
		if _, ok := p.(ToolCall); ok {
			t.Error("a truncated answer made a call")
		}
	}
}

func TestLeavingTheDialectsLoopClosesTheConnection(t *testing.T) {
	for name, said := range map[string]string{"at text": "Hello there", "at a call": "TOOL: now PARAMETERS: {"} {
		_, m := play(t, OpenAIConfig{}, holds(events(says(said), says("more"))))
		for _, err := range NewText(m).Stream(t.Context(), Request{Messages: question.Messages, Tools: dialectTools}) {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			break
		}
	}
}

// S1.4, S1.3: the model is told what a call looks like, once, and not by words that it
// never wrote.
func TestWhatACallLooksLikeIsToldOnce(t *testing.T) {
	first := Request{Model: "m", Messages: question.Messages, Tools: dialectTools}
	parts, _, _ := askDialect(t, first, "I will use the calc tool.")
	if want := "I will use the calc tool.|^calc|calc use the calc tool"; brief(parts) != want {
		t.Fatalf("got %q", brief(parts))
	}
	next := first
	next.Messages = append(slices.Clone(first.Messages),
		Message{Role: Assistant, Text: "I will use the calc tool.", Calls: []ToolCall{{ID: "1", Name: "calc", Arguments: "use the calc tool"}}},
		Message{Role: ToolRole, CallID: "1", Tool: "calc", Text: "The arguments cannot be used.", Failed: true})
	parts, got, _ := askDialect(t, next, "I will use the calc tool.")
	if want := "I will use the calc tool."; brief(parts) != want {
		t.Errorf("told again: %q", brief(parts))
	}
	if got[2].Text != "I will use the calc tool." || got[3].Text != "TOOL ERROR: calc\nThe arguments cannot be used.\n"+reminder {
		t.Errorf("the model reads %q, %q", got[2].Text, got[3].Text)
	}
	// What needs no arguments is still understood.
	if parts, _, _ = askDialect(t, next, "I will use the now tool."); brief(parts) != "I will use the now tool.|^now|now {}" {
		t.Errorf("got %q", brief(parts))
	}
}

// S1.3
func TestOnlyAMalformedCallIsAnsweredWithTheForm(t *testing.T) {
	for args, told := range map[string]bool{`{'a': 1}`: true, `{"a": 1,}`: true, `[1]`: true, `a=1`: true, `{"a": 1}`: false, ``: false, ` {} `: false} {
		_, got, _ := askDialect(t, Request{Model: "m", Tools: dialectTools, Messages: []Message{{Role: User, Text: "Q"},
			{Role: Assistant, Calls: []ToolCall{{ID: "1", Name: "calc", Arguments: args}, {ID: "2", Name: "now"}}},
			{Role: ToolRole, CallID: "1", Tool: "calc", Text: "No.", Failed: true}, {Role: ToolRole, CallID: "2", Tool: "now", Text: "No.", Failed: true},
		}}, "ok")
		if n := strings.Count(got[3].Text, reminder); (n == 1) != told || n > 1 {
			t.Errorf("%q: %q", args, got[3].Text)
		}
	}
}

// invented returns the first call for which text has no words. It goes by a pattern of
// its own, over the whole text at once.
func invented(text string, parts []Part) (ToolCall, bool) {
	rest := latin(text)
	for _, p := range parts {
		c, ok := p.(ToolCall)
		if !ok || strings.Contains(plainSpeech(text), usePhrase(c.Name)) || unfinished(c) && strings.Contains(text, firstLine(c.Name)) {
			continue
		}
		args := "[ \t]*" + regexp.QuoteMeta(latin(c.Arguments))
		switch {
		case c.Arguments == "PARAMETERS:": // there was nothing behind the word
			args = ""
		case c.Arguments[0] == '{' || c.Arguments[0] == '[': // behind marks, or a fence with a language
			args = "[\\s*`]*[a-z0-9]*\\s*" + regexp.QuoteMeta(latin(c.Arguments))
		}
		found := regexp.MustCompile("(?is)TOOL[ \t*`]*:[\\s*`\"']*" + regexp.QuoteMeta(latin(c.Name)) + "[./]*[\\s*`\"',]*PARAMETERS[ \t*`]*:" + args).FindStringIndex(rest)
		if found == nil {
			return c, true
		}
		rest = rest[found[1]:]
	}
	return ToolCall{}, false
}

// latin is a text with a character for each byte, which patterns ask for.
func latin(text string) string {
	var b strings.Builder
	for i := range len(text) {
		b.WriteRune(rune(text[i]))
	}
	return b.String()
}

// FuzzExtractor: any text gives the same parts in whatever pieces it comes, nothing of
// it is lost but what belongs to a call, no call is made of words that are not there, and
// the parts keep the package's promises.
func FuzzExtractor(f *testing.F) {
	for _, c := range dialectVectors {
		f.Add(c.in, 1)
		f.Add(c.in+"\n"+c.in, 3)
		f.Add(c.in+" "+c.in, -7)
	}
	f.Fuzz(func(t *testing.T, text string, n int) {
		if strings.Count(strings.ToUpper(text), "TOOL") > maxCalls {
			return
		}
		whole := extract(t, text, len(text)+1)
		checkPromises(t, callsLast(whole))
		if got := extract(t, text, n); show(got) != show(whole) {
			t.Errorf("%q in pieces of %d:\n%swhole:\n%s", text, n, show(got), show(whole))
		}
		if c, yes := invented(text, whole); yes {
			t.Errorf("%q has no call of %q with %q", text, c.Name, c.Arguments)
		}
		said := ""
		for _, p := range whole {
			if p, ok := p.(Text); ok {
				said += p.Delta
			}
		}
		if !within(said, text) {
			t.Errorf("%q: the text %q is not out of it", text, said)
		}
		if !strings.ContainsAny(text, ":") && strings.Trim(text, whiteSpace) != "" {
			if got, ok := whole[0].(Text); !ok || got.Delta != text {
				t.Errorf("%q came out as %q", text, got.Delta)
			}
		}
	})
}

// within reports whether part is what remains of whole when some of it is left out.
func within(part, whole string) bool {
	for i := 0; part != "" && i < len(whole); i++ {
		if whole[i] == part[0] {
			part = part[1:]
		}
	}
	return part == ""
}

func BenchmarkExtractor(b *testing.B) {
	prose := strings.Repeat("The total of the two lists is 42, **more** than the `limit` that they took. ", 14)[:1024]
	for name, text := range map[string]string{
		"prose": prose, "calls": prose[:512] + "\n\nTOOL: get_weather\nPARAMETERS: " + `{"city": "Rome", "note": "` + prose[:400] + `"}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				x := &extractor{emit: func(Part) bool { return true }, tools: dialectTools}
				for rest := text; rest != ""; {
					n := min(5, len(rest))
					_ = x.feed(rest[:n])
					rest = rest[n:]
				}
				_ = x.close()
			}
		})
	}
}
