package texttool

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// testTools are tools with required, optional and no arguments.
var testTools = []llm.Tool{
	{Name: "calc", Description: "Calculates.", Schema: json.RawMessage(`{"type":"object","properties":{"a":{}},"required":["a"]}`)},
	{Name: "get_weather", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)},
	{Name: "search-web", Schema: json.RawMessage(`{"type":"object","properties":{"q":{"type":"string"}}}`)},
	{Name: "now"},
	{Name: "split", Schema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"}},"required":["text"]}`)},
}

// extractParts gives text to an extractor in pieces of n bytes, or of random sizes if n is
// below 1, and returns its parts with joined deltas.
func extractParts(t *testing.T, text string, n int) []llm.Part {
	t.Helper()
	var parts []llm.Part
	x := newExtractor(func(p llm.Part) { parts = append(parts, p) })
	sizes := rand.New(rand.NewPCG(uint64(n), 0))
	for rest := text; rest != ""; {
		k := min(n, len(rest))
		if n < 1 {
			k = min(1+sizes.IntN(40), len(rest))
		}
		if err := x.readText(rest[:k]); err != nil {
			t.Fatal(err)
		}
		rest = rest[k:]
	}
	if err := x.finishAnswer(llm.Finish{Reason: "stop"}); err != nil {
		t.Fatal(err)
	}
	return joinDeltas(parts)
}

// newExtractor returns an extractor for testTools that passes every part to record.
func newExtractor(record func(llm.Part)) *extractor {
	return &extractor{tools: testTools, emit: func(p llm.Part) bool { record(p); return true }}
}

// joinDeltas joins texts and arguments that follow one another.
func joinDeltas(parts []llm.Part) (out []llm.Part) {
	for _, p := range parts {
		if len(out) > 0 {
			switch last := out[len(out)-1].(type) {
			case llm.Text:
				if p, ok := p.(llm.Text); ok {
					out[len(out)-1] = llm.Text{Delta: last.Delta + p.Delta}
					continue
				}
			case llm.ToolCallArgs:
				if p, ok := p.(llm.ToolCallArgs); ok && p.Index == last.Index {
					out[len(out)-1] = llm.ToolCallArgs{Index: p.Index, Delta: last.Delta + p.Delta}
					continue
				}
			}
		}
		out = append(out, p)
	}
	return out
}

// summarize returns parts as "text|name args|…", complete calls last.
func summarize(parts []llm.Part) string {
	var out []string
	for _, p := range parts {
		switch p := p.(type) {
		case llm.Text:
			out = append(out, p.Delta)
		case llm.ToolCallStart:
			out = append(out, "^"+p.Name)
		case llm.ToolCall:
			out = append(out, p.Name+" "+p.Arguments)
		}
	}
	return strings.Join(out, "|")
}

// callVectors are texts with what is read out of them: calls in the form of the prompt and
// its variants, malformed calls, and mentions of tools.
var callVectors = map[string]struct{ in, want string }{
	"the form":                               {"TOOL: calc\nPARAMETERS: {\"a\": 1}", `^calc|calc {"a": 1}`},
	"CRLF":                                   {"TOOL: calc\r\nPARAMETERS: {\"a\": 1}\r\n", `^calc|calc {"a": 1}`},
	"blank line between":                     {"TOOL: calc\n\n \nPARAMETERS: {\"a\": 1}", `^calc|calc {"a": 1}`},
	"indented":                               {"  TOOL: calc\n    PARAMETERS:   {\"a\": 1}", `^calc|calc {"a": 1}`},
	"JSON over lines":                        {"TOOL: calc\nPARAMETERS: {\n  \"a\": 1\n\n}\n", "^calc|calc {\n  \"a\": 1\n\n}"},
	"JSON on the next line":                  {"TOOL: calc\nPARAMETERS:\n{\"a\": 1}", `^calc|calc {"a": 1}`},
	"nested":                                 {`TOOL: calc` + "\n" + `PARAMETERS: {"a": {"b": {"c": 1}}}`, `^calc|calc {"a": {"b": {"c": 1}}}`},
	"array of objects":                       {"TOOL: calc\nPARAMETERS: {\"a\": [{\"x\": 1}, {}]}", `^calc|calc {"a": [{"x": 1}, {}]}`},
	"empty object inside":                    {"TOOL: calc\nPARAMETERS: {\"a\":{},\"b\":2}", `^calc|calc {"a":{},"b":2}`},
	"braces in strings":                      {`TOOL: calc` + "\n" + `PARAMETERS: {"a": "x}y{\"}\\"} ok`, `^calc|ok|calc {"a": "x}y{\"}\\"}`},
	"the form in a string":                   {`TOOL: calc` + "\n" + `PARAMETERS: {"a": "TOOL: x PARAMETERS: {}"}`, `^calc|calc {"a": "TOOL: x PARAMETERS: {}"}`},
	"same line":                              {`TOOL: calc PARAMETERS: {"a": 1}`, `^calc|calc {"a": 1}`},
	"lower case":                             {"tool: calc\nparameters: {\"a\": 1}", `^calc|calc {"a": 1}`},
	"mixed case":                             {"Tool: calc\nParameters: {}", `^calc|calc {}`},
	"dotted name":                            {"TOOL: ns.calc\nPARAMETERS: {}", `^ns.calc|ns.calc {}`},
	"slash in name":                          {"TOOL: a/b\nPARAMETERS: {}", `^a/b|a/b {}`},
	"hyphen in name":                         {"TOOL: search-web\nPARAMETERS: {}", `^search-web|search-web {}`},
	"Unicode name":                           {"TOOL: météo_日本\nPARAMETERS: {}", `^météo_日本|météo_日本 {}`},
	"unknown tool":                           {"TOOL: nosuch\nPARAMETERS: {\"a\": 1}", `^nosuch|nosuch {"a": 1}`},
	"backticked name":                        {"TOOL: `calc`\nPARAMETERS: {}", `^calc|calc {}`},
	"quoted name":                            {"TOOL: \"calc\"\nPARAMETERS: {}", `^calc|calc {}`},
	"name with a full stop":                  {"TOOL: calc.\nPARAMETERS: {}", `^calc|calc {}`},
	"backticked parameters":                  {"TOOL: calc\nPARAMETERS: `{\"a\": 1}`", `^calc|calc {"a": 1}`},
	"fenced parameters":                      {"TOOL: calc\nPARAMETERS:\n```json\n{\"a\": 1}\n```\nThen.", `^calc|Then.|calc {"a": 1}`},
	"fenced block":                           {"Look:\n```\nTOOL: calc\nPARAMETERS: {\"a\": 1}\n```\nThen.", "Look:\n|^calc|Then.|calc {\"a\": 1}"},
	"fenced with a language":                 {"```text\nTOOL: calc\nPARAMETERS: {}\n```", `^calc|calc {}`},
	"fenced tool_code":                       {"```tool\n\nTOOL: calc\nPARAMETERS: {}\n```", `^calc|calc {}`},
	"two calls in one fence":                 {"```\nTOOL: calc\nPARAMETERS: {}\n\nTOOL: now\nPARAMETERS: {}\n```\nx", `^calc|^now|x|calc {}|now {}`},
	"a fence for each":                       {"```\nTOOL: calc\nPARAMETERS: {}\n```\n\n```\nTOOL: now\nPARAMETERS: {}\n```", `^calc|^now|calc {}|now {}`},
	"bold words":                             {"**TOOL:** calc\n**PARAMETERS:** {\"a\": 1}", `^calc|calc {"a": 1}`},
	"bold lines":                             {"**TOOL: calc**\n**PARAMETERS: {\"a\": 1}**\nx", `^calc|x|calc {"a": 1}`},
	"bold word, colon outside":               {"**TOOL**: `calc`\n**PARAMETERS**: {}", `^calc|calc {}`},
	"code line":                              {"`TOOL: calc PARAMETERS: {}` x", `^calc|x|calc {}`},
	"several, text around":                   {"First.\n\nTOOL: calc\nPARAMETERS: {\"a\": 1}\n\nThen:\nTOOL: now\nPARAMETERS: {}\nDone.", "First.\n\n|^calc|Then:\n|^now|Done.|calc {\"a\": 1}|now {}"},
	"the same twice":                         {"TOOL: now\nPARAMETERS: {}\nTOOL: now\nPARAMETERS: {}", `^now|^now|now {}|now {}`},
	"close together":                         {"TOOL: now PARAMETERS: {}TOOL: now PARAMETERS: {}", `^now|^now|now {}|now {}`},
	"in mid-sentence":                        {"I check (TOOL: now PARAMETERS: {}) and", "I check (|^now|) and|now {}"},
	"bold text behind":                       {"TOOL: now\nPARAMETERS: {}\n**Note** x", "^now|**Note** x|now {}"},
	"large numbers stay":                     {"TOOL: calc\nPARAMETERS: {\"a\": 12345678901234567890.10}", `^calc|calc {"a": 12345678901234567890.10}`},
	"malformed: single quotes":               {"TOOL: calc\nPARAMETERS: {'a': 1}\nx", `^calc|x|calc {'a': 1}`},
	"malformed: trailing comma":              {"TOOL: calc\nPARAMETERS: {\"a\": 1,}", `^calc|calc {"a": 1,}`},
	"malformed: never closed":                {"TOOL: calc\nPARAMETERS: {\"a\": 1", `^calc|calc {"a": 1`},
	"malformed: never closed, next call":     {"TOOL: calc\nPARAMETERS: {\"a\": \"x\n\nTOOL: now\nPARAMETERS: {}", "^calc|^now|calc {\"a\": \"x\n|now {}"},
	"malformed: never closed, fence":         {"```\nTOOL: calc\nPARAMETERS: {\"a\": 1\n```\nx", `^calc|x|calc {"a": 1`},
	"malformed: an array":                    {"TOOL: calc\nPARAMETERS: [1,\n2] x", "^calc|x|calc [1,\n2]"},
	"malformed: an array, unknown tool":      {"TOOL: nosuch\nPARAMETERS: [1]", "TOOL: nosuch\nPARAMETERS: [1]|^nosuch|nosuch TOOL: nosuch\nPARAMETERS: [1]"},
	"malformed: no object":                   {"TOOL: calc\nPARAMETERS: a=1, b=2\nx", "^calc|x|calc a=1, b=2"},
	"no parameters behind the word":          {"TOOL: now\nPARAMETERS:", "^now|now {}"},
	"parameters: none":                       {"TOOL: now\nPARAMETERS: none", "^now|now {}"},
	"malformed: nothing":                     {"TOOL: calc\nPARAMETERS:", "^calc|calc PARAMETERS:"},
	"malformed: nothing, then text":          {"TOOL: now\nPARAMETERS:\nI wait.", "^now|I wait.|now {}"},
	"prose in the same words":                {"Tool: calc\nParameters: a (a number)", "Tool: calc\nParameters: a (a number)"},
	"malformed: text between the lines":      {"TOOL: calc\nwith these\nPARAMETERS: {}", "TOOL: calc\nwith these\nPARAMETERS: {}|^calc|calc TOOL: calc\nwith these\nPARAMETERS: {}"},
	"malformed: no parameters":               {"TOOL: calc\n", "TOOL: calc\n|^calc|calc TOOL: calc"},
	"malformed: no parameters, bold":         {"I look.\n**TOOL: now**", "I look.\n**TOOL: now**|^now|now {}"},
	"malformed: no parameters, text behind":  {"TOOL: now\nis what I would write", "TOOL: now\nis what I would write|^now|now TOOL: now\nis what I would write"},
	"malformed: no parameters, other case":   {"Tool: now", "Tool: now"},
	"malformed: no parameters, unknown tool": {"TOOL: nosuch", "TOOL: nosuch|^nosuch|nosuch TOOL: nosuch"},
	"malformed: NaN":                         {"TOOL: calc\nPARAMETERS: {\"a\": NaN}", `^calc|calc {"a": NaN}`},
	"a name twice":                           {"TOOL: calc\nPARAMETERS: {\"a\": 1, \"a\": 2}", `^calc|calc {"a": 1, "a": 2}`},
	"only the word":                          {"The right tool: a hammer. TOOLS: x. multitool: y", "The right tool: a hammer. TOOLS: x. multitool: y"},
	"within a word":                          {"MYTOOL: calc PARAMETERS: {}", "MYTOOL: calc PARAMETERS: {}"},
	"results are not calls":                  {"TOOL RESULT: calc\n{\"a\": 1}", "TOOL RESULT: calc\n{\"a\": 1}"},
	"ordinary code":                          {"Use:\n```go\ntool := x\n```\n*done*", "Use:\n```go\ntool := x\n```\n*done*"},
	"ordinary text":                          {"Hello **world**, `code` and t", "Hello **world**, `code` and t"},
	"white space only":                       {" \n ", ""},
	"white space first":                      {"\n  Hello", "\n  Hello"},
	"empty":                                  {"", ""},
	"mention":                                {"I will use the now tool.", "I will use the now tool.|^now|now {}"},
	"mention, marked":                        {"I'll USE THE `search-web` TOOL now.", "I'll USE THE `search-web` TOOL now.|^search-web|search-web {}"},
	"mention, in tool order":                 {"I use the now tool, then use the search-web tool.", "I use the now tool, then use the search-web tool.|^search-web|^now|search-web {}|now {}"},
	"mention, negated":                       {"I will not use the now tool. I don't use the search-web tool. I never use the now tool", "I will not use the now tool. I don't use the search-web tool. I never use the now tool"},
	"mention, one negated":                   {"Not that one: I won't use the now tool.\nI use the now tool.", "Not that one: I won't use the now tool.\nI use the now tool.|^now|now {}"},
	"mention, a question":                    {"Shall I use the now tool?", "Shall I use the now tool?"},
	"mention, needs arguments, is told":      {"I will use the calc tool.", "I will use the calc tool.|^calc|calc use the calc tool"},
	"mention, not with a call":               {"I use the now tool. TOOL: calc PARAMETERS: {}", "I use the now tool. |^calc|calc {}"},
	"mention, unknown tool":                  {"I use the hammer tool.", "I use the hammer tool."},
	"mention, needs arguments, negated":      {"I will not use the calc tool.", "I will not use the calc tool."},
	"mention, once for each":                 {"I use the now tool. I use the now tool.", "I use the now tool. I use the now tool.|^now|now {}"},
	"near miss: another word":                {"TOOL: calc\nARGUMENTS: {\"a\": 1}", "TOOL: calc\nARGUMENTS: {\"a\": 1}|^calc|calc TOOL: calc\nARGUMENTS: {\"a\": 1}"},
	"near miss: parentheses":                 {"TOOL: calc()", "TOOL: calc()|^calc|calc TOOL: calc()"},
	"near miss: quoted":                      {"> TOOL: calc\n> PARAMETERS: {}", "> TOOL: calc\n> PARAMETERS: {}|^calc|calc > TOOL: calc\n> PARAMETERS: {}"},
	"near miss: bare name":                   {"get_weather", "get_weather|^get_weather|get_weather get_weather"},
	"near miss: bare call":                   {"`get_weather(\"Rome\")`", "`get_weather(\"Rome\")`|^get_weather|get_weather get_weather(\"Rome\")"},
	"near miss: invented tool":               {"TOOL: formula\n2.5 * 8", "TOOL: formula\n2.5 * 8|^formula|formula TOOL: formula\n2.5 * 8"},
	"invented result is dropped":             {"TOOL: now\nPARAMETERS: {}\nTOOL RESULT: now\n12:00\n\nIt is noon.", "^now|now {}"},
	"Hermes":                                 {"I look.\n<tool_call>\n{\"name\": \"calc\", \"arguments\": {\"a\": 1}}\n</tool_call>", "I look.\n|^calc|calc {\"a\": 1}"},
	"Hermes, two":                            {"<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"calc\", \"arguments\": {\"a\": 1}}</tool_call>", "^now|^calc|now {}|calc {\"a\": 1}"},
	"Hermes, not closed":                     {"<tool_call>\n{\"name\": \"now\", \"arguments\": {}}", "^now|now {}"},
	"Hermes, its marks in a string":          {"<tool_call>\n{\"name\": \"split\", \"arguments\": {\"text\": \"</tool_call> and <tool_call>\"}}\n</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>", "^split|^now|split {\"text\": \"</tool_call> and <tool_call>\"}|now {}"},
	"Hermes, unknown tool":                   {"<tool_call>{\"name\": \"nosuch\", \"arguments\": {}}</tool_call>", "<tool_call>{\"name\": \"nosuch\", \"arguments\": {}}</tool_call>"},
	"Qwen3-Coder":                            {"<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>", "^get_weather|get_weather {\"city\":\"Rome\"}"},
	"Qwen3-Coder, parameter not closed":      {"<function=split>\n<parameter=text>\na\n<parameter=n>\n2\n</parameter>\n</function>", "^split|split {\"n\":2,\"text\":\"a\"}"},
	"Qwen3-Coder, last one not closed":       {"<function=split>\n<parameter=text>\na\n</parameter>\n<parameter=n>\n2\n</function>", "^split|split {\"n\":2,\"text\":\"a\"}"},
	"Qwen3-Coder, the form in a value":       {"<function=split>\n<parameter=text>\n<parameter=x> is\n</parameter>\n</function>", "^split|split {\"text\":\"\\u003cparameter=x\\u003e is\"}"},
	"Qwen3-Coder, ends in a value":           {"<tool_call>\n<function=split>\n<parameter=text>\n/home/a", "<tool_call>\n<function=split>\n<parameter=text>\n/home/a"},
	"Qwen3-Coder, ends in a mark":            {"<function=split>\n<parameter=text>\na\n</parameter>\n<parame", "<function=split>\n<parameter=text>\na\n</parameter>\n<parame"},
	"Llama, function":                        {"<function=get_weather>{\"city\": \"Rome\"}</function>", "^get_weather|get_weather {\"city\": \"Rome\"}"},
	"Llama, python tag":                      {"<|python_tag|>{\"name\": \"calc\", \"parameters\": {\"a\": 1}}", "^calc|calc {\"a\": 1}"},
	"Llama, python tag and call":             {"<|python_tag|>get_weather.call(city=\"Rome\")", "^get_weather|get_weather {\"city\":\"Rome\"}"},
	"Mistral, list":                          {"[TOOL_CALLS] [{\"name\": \"calc\", \"arguments\": {\"a\": 1}}]</s>", "^calc|calc {\"a\": 1}"},
	"Mistral, ARGS":                          {"[TOOL_CALLS]calc[ARGS]{\"a\": 1}[TOOL_CALLS]now[ARGS]{}", "^calc|^now|calc {\"a\": 1}|now {}"},
	"Mistral, its mark in a string":          {"[TOOL_CALLS]split[ARGS]{\"text\": \"a [TOOL_CALLS] b\"}[TOOL_CALLS]now[ARGS]{}", "^split|^now|split {\"text\": \"a [TOOL_CALLS] b\"}|now {}"},
	"ReAct":                                  {"Thought: I need it.\nAction: get_weather\nAction Input: {\"city\": \"Rome\"}\nObservation: sunny\nFinal Answer: sunny", "Thought: I need it.\n|^get_weather|get_weather {\"city\": \"Rome\"}"},
	"JSON alone":                             {"{\"name\": \"calc\", \"arguments\": {\"a\": 1}}", "^calc|calc {\"a\": 1}"},
	"JSON alone, parameters":                 {" {\"name\": \"calc\", \"parameters\": {\"a\": 1}}\n", "^calc|calc {\"a\": 1}"},
	"JSON fenced":                            {"```json\n{\"name\": \"calc\", \"arguments\": {\"a\": 1}}\n```", "^calc|calc {\"a\": 1}"},
	"JSON list":                              {"[{\"name\": \"calc\", \"arguments\": {\"a\": 1}}, {\"name\": \"now\"}]", "^calc|^now|calc {\"a\": 1}|now {}"},
	"JSON with quoted arguments":             {"{\"type\": \"function\", \"function\": {\"name\": \"calc\", \"arguments\": \"{\\\"a\\\": 1}\"}}", "^calc|calc {\"a\": 1}"},
	"GLM":                                    {"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>", "^get_weather|get_weather {\"city\":\"Rome\"}"},
	"GLM, value not closed":                  {"<tool_call>split<arg_key>text</arg_key><arg_value>a\n<arg_key>n</arg_key><arg_value>2</arg_value></tool_call>", "^split|split {\"n\":2,\"text\":\"a\"}"},
	"GLM, ends in a value":                   {"<tool_call>split<arg_key>text</arg_key><arg_value>a</arg_value><arg_key>n</arg_key><arg_value>2", "<tool_call>split<arg_key>text</arg_key><arg_value>a</arg_value><arg_key>n</arg_key><arg_value>2"},
	"GLM, text that looks like a number":     {"<tool_call>get_weather<arg_key>city</arg_key><arg_value>12</arg_value></tool_call>", "^get_weather|get_weather {\"city\":\"12\"}"},
	"GLM-4, name and JSON":                   {"get_weather\n{\"city\": \"Rome\"}", "^get_weather|get_weather {\"city\": \"Rome\"}"},
	"name and JSON, then prose":              {"get_weather\n{\"city\": \"Rome\"} is what I would call.", "get_weather\n{\"city\": \"Rome\"} is what I would call."},
	"DeepSeek V3.1":                          {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>calc<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "^calc|^now|calc {\"a\": 1}|now {}"},
	"DeepSeek R1":                            {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>calc\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "^calc|calc {\"a\": 1}"},
	"Kimi":                                   {"Wait.<|tool_calls_section_begin|><|tool_call_begin|>functions.calc:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>", "Wait.|^calc|calc {\"a\": 1}"},
	"gpt-oss":                                {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.calc <|constrain|>json<|message|>{\"a\": 1}<|call|>", "^calc|calc {\"a\": 1}"},
	"Granite":                                {"<|tool_call|>[{\"name\": \"calc\", \"arguments\": {\"a\": 1}}]", "^calc|calc {\"a\": 1}"},
	"invoke, parameter not closed":           {"<invoke name=\"split\">\n<parameter name=\"text\">a\n<parameter name=\"n\">2</parameter>\n</invoke>", "^split|split {\"n\":2,\"text\":\"a\"}"},
	"invoke, last one not closed":            {"<invoke name=\"split\"><parameter name=\"text\">a</parameter><parameter name=\"n\">2</invoke>", "^split|split {\"n\":2,\"text\":\"a\"}"},
	"invoke, ends in a value":                {"<invoke name=\"split\"><parameter name=\"text\">a</parameter><parameter name=\"n\">2", "<invoke name=\"split\"><parameter name=\"text\">a</parameter><parameter name=\"n\">2"},
	"invoke without parameters":              {"<function_calls>\n<invoke name=\"now\">\n</invoke>\n</function_calls>", "^now|now {}"},
	"invoke, unknown tool":                   {"<invoke name=\"nosuch\">\n</invoke>", "<invoke name=\"nosuch\">\n</invoke>"},
	"a notation in inline code":              {"Write `<tool_call>{\"name\": \"now\"}</tool_call>` for that.", "Write `<tool_call>{\"name\": \"now\"}</tool_call>` for that."},
	"ReAct, text for the only parameter":     {"Action: get_weather\nAction Input: Rome\nObservation: sunny", "^get_weather|get_weather {\"city\":\"Rome\"}"},
	"ReAct, JSON in a fence":                 {"Action:\n```json\n{\"action\": \"calc\", \"action_input\": {\"a\": 1}}\n```", "^calc|calc {\"a\": 1}"},
	"ReAct, final answer":                    {"Action:\n```\n{\"action\": \"Final Answer\", \"action_input\": \"3\"}\n```", "Action:\n```\n{\"action\": \"Final Answer\", \"action_input\": \"3\"}\n```"},
	"JSON, OpenAI's older form":              {"{\"function_call\": {\"name\": \"calc\", \"arguments\": \"{\\\"a\\\": 1}\"}}", "^calc|calc {\"a\": 1}"},
	"JSON, wrapped":                          {"{\"tool_call\": {\"name\": \"calc\", \"arguments\": {\"a\": 1}}}", "^calc|calc {\"a\": 1}"},
	"JSON, LangChain's form":                 {"{\"tool\": \"calc\", \"tool_input\": {\"a\": 1}}", "^calc|calc {\"a\": 1}"},
	"JSON, wrapped, and more":                {"{\"tool_call\": {\"name\": \"calc\"}, \"price\": 3}", "{\"tool_call\": {\"name\": \"calc\"}, \"price\": 3}"},
	"JSON without its last bracket":          {"{\"name\": \"calc\", \"arguments\": {\"a\": 1}", "^calc|calc {\"a\": 1}"},
	"JSON that ends in its arguments":        {"{\"name\": \"calc\", \"arguments\": {\"a\": 1", "{\"name\": \"calc\", \"arguments\": {\"a\": 1"},
	"a Python dictionary":                    {"{'name': 'calc', 'arguments': {'a': True}}", "^calc|calc {\"a\":true}"},
	"a token that ends the message":          {"{\"name\": \"now\", \"arguments\": {}}<|im_end|>", "^now|now {}"},
	"JSON that is an answer":                 {"{\"name\": \"Ada\", \"age\": 36}", "{\"name\": \"Ada\", \"age\": 36}"},
	"JSON that explains":                     {"You would send {\"name\": \"calc\", \"arguments\": {}}.", "You would send {\"name\": \"calc\", \"arguments\": {}}."},
	"Python":                                 {"[get_weather(city='Rome'), calc(a=[1, {'b': None}])]", "^get_weather|^calc|get_weather {\"city\":\"Rome\"}|calc {\"a\":[1,{\"b\":null}]}"},
	"Python, escapes":                        {`[calc(a='\d\u00e9\x41\r\'\"\\n')]`, `^calc|calc {"a":"\\déA\r'\"\\n"}`},
	"Python, positional":                     {"[get_weather('Rome')]", "[get_weather('Rome')]"},
	"Gemma":                                  {"I look.\n```tool_code\nget_weather(city=\"Rome\")\n```\nDone.", "I look.\n|^get_weather|\nDone.|get_weather {\"city\":\"Rome\"}"},
	"Gemini":                                 {"```tool_code\nprint(default_api.get_weather(city='Rome'))\nprint(now())\n```", "^get_weather|^now|get_weather {\"city\":\"Rome\"}|now {}"},
	"Gemma, two blocks":                      {"```tool_code\nnow()\n```\n```tool_code\ncalc(a=1)\n```", "^now|^calc|now {}|calc {\"a\":1}"},
	"Gemma, invented output":                 {"```tool_code\nnow()\n```\n```tool_output\n12:00\n```\nIt is noon.", "^now|now {}"},
	"Gemma, code that is not a call":         {"```tool_code\nx = now()\n```", "```tool_code\nx = now()\n```"},
	"Gemma, unknown tool":                    {"```tool_code\nnosuch()\n```", "```tool_code\nnosuch()\n```"},
	"Gemma, within a line":                   {"Write ```tool_code\nnow()\n``` for that.", "Write ```tool_code\nnow()\n``` for that."},
	"a list that is an answer":               {"[1, 2, 3]", "[1, 2, 3]"},
	"a link first":                           {"[calc](https://example.com) does that", "[calc](https://example.com) does that"},
	"mention, in JSON":                       {`{"a": "I use the calc tool"}`, `{"a": "I use the calc tool"}|^calc|calc use the calc tool`},
}

func TestExtractorReadsCallsOutOfText(t *testing.T) {
	for name, c := range callVectors {
		t.Run(name, func(t *testing.T) {
			whole := extractParts(t, c.in, len(c.in)+1)
			if got := summarize(whole); got != c.want {
				t.Errorf("%q: got %q, want %q", c.in, got, c.want)
			}
			llmtest.CheckParts(t, withoutText(whole))
			for n := 1; n < 12; n++ {
				if got := extractParts(t, c.in, n); llmtest.FormatParts(got) != llmtest.FormatParts(whole) {
					t.Errorf("in pieces of %d: got\n%s, want\n%s", n, llmtest.FormatParts(got), llmtest.FormatParts(whole))
				}
			}
		})
	}
}

// An answer that ends at the model's limit of tokens ends in the middle of what it was writing. A call that may lack a
// part of its arguments is not made; one that is complete is.
func TestExtractorMakesNoCallThatWasCutAtTheLimit(t *testing.T) {
	for in, want := range map[string]string{
		"<function=split>\n<parameter=text>\na\n</parameter>\n":                                                     "",
		"<tool_call>\n<function=split>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>":               `split {"text":"a"}`,
		"<invoke name=\"split\"><parameter name=\"text\">a</parameter>":                                             "",
		"<tool_call>split<arg_key>text</arg_key><arg_value>a</arg_value>":                                           "",
		"<tool_call>{\"name\": \"now\"}</tool_call><tool_call>split<arg_key>text</arg_key><arg_value>a</arg_value>": "",
		"<tool_call>now":                                          "",
		"<tool_call>{\"name\": \"now\"}":                          "now {}",
		"<tool_call>now</tool_call>":                              "now {}",
		"Action: get_weather\nAction Input: Ro":                   "",
		"Action: search-web\nAction Input:":                       "",
		"Action: get_weather\nAction Input: {\"city\": \"Rome\"}": `get_weather {"city": "Rome"}`,
		"TOOL: now\nPARAMETERS:":                                  "now PARAMETERS:",
		"TOOL: now\nPARAMETERS: none\nI wait":                     "now {}",
	} {
		var calls []string
		x := newExtractor(func(p llm.Part) {
			if call, ok := p.(llm.ToolCall); ok && isObject(call.Arguments) || ok && strings.HasPrefix(in, "TOOL") {
				calls = append(calls, call.Name+" "+call.Arguments)
			}
		})
		if err := x.readText(in); err != nil {
			t.Fatal(err)
		}
		if err := x.finishAnswer(llm.Finish{Reason: "length"}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(calls, ", "); got != want {
			t.Errorf("%q: got the calls %q, want %q", in, got, want)
		}
	}
}

// withoutText drops the text, which stands between calls here and before them in other
// answers.
func withoutText(parts []llm.Part) []llm.Part {
	return slices.DeleteFunc(slices.Clone(parts), func(p llm.Part) bool { _, ok := p.(llm.Text); return ok })
}

// Each object around a call is decoded with all that is in it: 4,500 of them took four seconds.
func TestExtractorBoundsTheObjectsAroundACall(t *testing.T) {
	for opening, closing := range map[string]string{`{"function":`: "}", `{"tool_calls":[`: "]}"} {
		const depth = 4500
		text := strings.Repeat(opening, depth) + `{"name":"now"}` + strings.Repeat(closing, depth)
		if parts := extractParts(t, text, 4096); len(callsOf(parts)) > 0 {
			t.Errorf("%s: got a call in %d wrappers, want text", opening, depth)
		}
	}
}

// Text before a call still streams, and so do its arguments.
func TestExtractorDelaysTextOnlyWhereACallMayBegin(t *testing.T) {
	var got []llm.Part
	x := newExtractor(func(p llm.Part) { got = append(got, p) })
	for _, step := range []struct{ in, out string }{
		{"Let me ", "Let me "}, {"look *", "look "}, {"now*. A ", "*now*. A "}, {"too", ""}, {"th. ", "tooth. "},
		{"TOOL: ca", ""}, {"lc\nPARAM", ""}, {"ETERS: {", "^calc"}, {`"a": 1`, ""}, {"}\n", ""}, {"So", "So"},
	} {
		got = nil
		if err := x.readText(step.in); err != nil {
			t.Fatal(err)
		}
		if out := summarize(got); out != step.out {
			t.Errorf("after %q: got %q, want %q", step.in, out, step.out)
		}
	}
}

// A header that never ends does not delay the text forever.
func TestExtractorDelaysAtMostAHeader(t *testing.T) {
	for _, text := range []struct{ first, again string }{
		{"", "TOOL: nosuch\nPARAMETERS: "}, {"", "TOOL: "}, {"", "```"}, {"", "*"}, {"", "TOOL: a\n"}, {"TOOL: ", "x"},
		{"TOOL: calc\nPARAMETERS: a=1", " b=2"}, // the rest of the line is this call's arguments
	} {
		emitted := 0
		x := newExtractor(func(llm.Part) { emitted++ })
		for piece := text.first; emitted < 3; piece = text.again {
			if err := x.readText(piece); err != nil {
				t.Fatal(err)
			}
			if len(x.pending) > maxHeader+len(piece) {
				t.Fatalf("%q: got %d bytes pending, want at most %d", text, len(x.pending), maxHeader+len(piece))
			}
		}
	}
}

func TestExtractorBoundsCallsAndArguments(t *testing.T) {
	x := newExtractor(func(llm.Part) {})
	llmtest.RequireError(t, x.readText(strings.Repeat("TOOL: now PARAMETERS: {}\n", llm.MaxCalls+1)), llm.ModelError)
	x = newExtractor(func(llm.Part) {})
	llmtest.RequireError(t, x.readText("TOOL: now PARAMETERS: {"+strings.Repeat("x", llm.MaxArgumentBytes)), llm.ModelError)
}

// otherNotation is the beginning of a call in another notation than the prompt's.
var otherNotation = regexp.MustCompile("<tool_call>|<function|<invoke|<minimax|<\\||<｜|\\[TOOL_CALLS\\]|(?m:^Action:)|(?m:^\\s*```tool_code)|^\\s*(```\\w*\\s*)?[\\[{]|^\\s*[\\pL\\pM\\pN_./-]+[ \\t]*\\r?\\n\\s*\\{")

// findInvented returns the first call that text does not contain. It matches a pattern of
// its own against the whole text at once.
func findInvented(text string, parts []llm.Part) (llm.ToolCall, bool) {
	rest := latin1(text)
	for _, p := range parts {
		c, ok := p.(llm.ToolCall)
		if !ok || strings.Contains(plainText(text), usePhrase(c.Name)) || isNearMiss(c, text) {
			continue
		}
		// A call without arguments, and one in another notation, has its name in the text.
		if (c.Arguments == "{}" || otherNotation.MatchString(text)) && strings.Contains(text, c.Name) {
			continue
		}
		args := "[ \t]*" + regexp.QuoteMeta(latin1(c.Arguments))
		switch {
		case c.Arguments == "PARAMETERS:": // there was nothing behind the word
			args = ""
		case c.Arguments[0] == '{' || c.Arguments[0] == '[': // behind marks, or a fence with a language
			args = "[\\s*`]*[a-z0-9]*\\s*" + regexp.QuoteMeta(latin1(c.Arguments))
		}
		found := regexp.MustCompile("(?is)TOOL[ \t*`]*:[\\s*`\"']*" + regexp.QuoteMeta(latin1(c.Name)) + "[./]*[\\s*`\"',]*PARAMETERS[ \t*`]*:" + args).FindStringIndex(rest)
		if found == nil {
			return c, true
		}
		rest = rest[found[1]:]
	}
	return llm.ToolCall{}, false
}

// latin1 returns text with one character per byte, since patterns match characters.
func latin1(text string) string {
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
	for _, c := range callVectors {
		f.Add(c.in, 1)
		f.Add(c.in+"\n"+c.in, 3)
		f.Add(c.in+" "+c.in, -7)
	}
	f.Fuzz(func(t *testing.T, text string, n int) {
		if strings.Count(strings.ToUpper(text), "TOOL") > llm.MaxCalls {
			return
		}
		whole := extractParts(t, text, len(text)+1)
		llmtest.CheckParts(t, withoutText(whole))
		if got := extractParts(t, text, n); llmtest.FormatParts(got) != llmtest.FormatParts(whole) {
			t.Errorf("%q in pieces of %d: got\n%s, want\n%s", text, n, llmtest.FormatParts(got), llmtest.FormatParts(whole))
		}
		if c, yes := findInvented(text, whole); yes {
			t.Errorf("%q: got a call of %q with %q, want only calls in the text", text, c.Name, c.Arguments)
		}
		said := ""
		for _, p := range whole {
			if p, ok := p.(llm.Text); ok {
				said += p.Delta
			}
		}
		if !isSubsequence(said, text) {
			t.Errorf("%q: got the text %q, want bytes of the input in their order", text, said)
		}
		if !strings.ContainsAny(text, ":") && !otherNotation.MatchString(text) && strings.Trim(text, whiteSpace) != "" {
			if got, ok := whole[0].(llm.Text); !ok || got.Delta != text {
				t.Errorf("got the text %q, want %q", got.Delta, text)
			}
		}
	})
}

// isSubsequence reports whether part remains of whole when bytes of it are removed.
func isSubsequence(part, whole string) bool {
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
				x := newExtractor(func(llm.Part) {})
				for rest := text; rest != ""; {
					n := min(5, len(rest))
					_ = x.readText(rest[:n])
					rest = rest[n:]
				}
				_ = x.finishAnswer()
			}
		})
	}
}
