package texttool

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// Models often write calls in the notation of their training even if the prompt asks for another
// one. For tools that exist, these notations are understood too:
//
//	<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>    Hermes, Qwen
//	<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>    GLM
//	<function=f>{"x": 1}</function>                                Llama 3.1; with <parameter=x> Qwen3-Coder
//	<invoke name="f"><parameter name="x">1</parameter></invoke>    MiniMax, Claude; with ｜DSML｜ DeepSeek
//	<|python_tag|>{"name": "f", "parameters": {"x": 1}}            Llama 3.1; also f.call(x=1)
//	<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]            Granite, Phi
//	<|tool_call_start|>[f(x=1)]<|tool_call_end|>                   LFM2
//	[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]             Mistral; also f[ARGS]{"x": 1}
//	<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}                   DeepSeek
//	<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}    Kimi
//	<|channel|>commentary to=functions.f<|message|>{"x": 1}        gpt-oss
//	Action: f⏎Action Input: {"x": 1}                               ReAct; also Action:⏎```{"action": …}```
//	{"name": "f", "arguments": {"x": 1}}                           alone or in a code fence
//	f⏎{"x": 1}                                                     GLM-4, alone
//	[f(x=1)]                                                       Llama 3.2 and 4, alone
//	```tool_code⏎f(x=1)⏎```                                        Gemma; with print(…) Gemini
//
// The text from the beginning of such a call to the end of the answer is held back and read at
// once. If it is not a call, it is emitted as text.

// maxHeld bounds a text that is held back, in bytes; a longer text is not a call.
const maxHeld = 256 << 10

// Marks with which a call begins wherever they stand, except in code within a line.
const (
	hermesMark      = "<tool_call>"
	functionMark    = "<function="
	functionEnd     = "</function>"
	invokeMark      = "<invoke name="
	minimaxMark     = "<minimax:tool_call>"
	callsMark       = "<function_calls>"
	dsmlMark        = "<｜DSML｜"
	pythonMark      = "<|python_tag|>"
	pythonStartMark = "<|python_start|>"
	callMark        = "<|tool_call|>"
	callStartMark   = "<|tool_call_start|>"
	mistralMark     = "[TOOL_CALLS]"
	kimiSectionMark = "<|tool_calls_section_begin|>"
	kimiMark        = "<|tool_call_begin|>"
	deepSeekMark    = "<｜tool▁call"
	harmonyMark     = "<|channel|>"
	reactMark       = "Action:"
)

var callMarks = []string{hermesMark, functionMark, invokeMark, minimaxMark, callsMark, dsmlMark, pythonMark, pythonStartMark, callMark, callStartMark,
	mistralMark, kimiSectionMark, kimiMark, deepSeekMark, harmonyMark}

// maxNotationStart bounds the text that decides whether a call begins, in bytes.
const maxNotationStart = 400

// notationPlace tells where in an answer a text begins.
type notationPlace struct {
	lineStart   bool
	answerStart bool // only white space precedes it
	inlineCode  bool // a backtick is before it
}

// matchNotation looks for the beginning of a call in another notation at the start of text.
// final means that no more text follows. The less a notation differs from prose, the fewer places it
// counts at: marks nearly anywhere, "Action:" and a fence of tool code at the start of a line, JSON and bare names only where
// the answer begins.
func matchNotation(text string, at notationPlace, final bool, tools toolSet) matchResult {
	if len(text) >= maxNotationStart {
		text, final = text[:maxNotationStart], true
	}
	result := noMatch
	if !at.inlineCode {
		for _, mark := range callMarks {
			result = max(result, matchPrefix(text, mark, final))
		}
	}
	if at.lineStart {
		result = max(result, matchReAct(text, final, tools))
	}
	if at.answerStart {
		result = max(result, matchWholeAnswer(text, final, tools))
	}
	if result != noMatch && strings.HasPrefix(text, "```") && !at.answerStart {
		result = noMatch
	}
	if at.lineStart {
		result = max(result, matchPrefix(text, toolCodeMark, final))
	}
	return result
}

// matchPrefix reports whether text begins with prefix, or may do so once more of it has arrived.
func matchPrefix(text, prefix string, final bool) matchResult {
	switch {
	case strings.HasPrefix(text, prefix):
		return matched
	case !final && strings.HasPrefix(prefix, text):
		return needMore
	}
	return noMatch
}

var (
	reactStart = regexp.MustCompile(`^Action:[ \t]*[*` + "`" + `"']*(?:Use (?:the )?)?([\pL\pM\pN_./-]+)[*` + "`" + `"']*[ \t]*(?:\((\{[^\n]*\})\))?[ \t]*\r?(?:\n|$)`)
	// reactBlob is an action as JSON in a code fence, as LangChain's and Cohere's prompts ask for.
	reactBlob        = regexp.MustCompile("^Action:[ \t]*\r?\n?[ \t]*```(?:json)?[ \t]*\r?\n?\\s*[\\[{]")
	reactBlobPartial = regexp.MustCompile("^Action:[ \t]*\r?\n?[ \t]*(?:`{0,2}|```[json]{0,4}[ \t]*\r?\n?\\s*)$")
)

// matchReAct looks for a line "Action: " with the name of a tool, or with JSON in a code fence.
func matchReAct(text string, final bool, tools toolSet) matchResult {
	if result := matchPrefix(text, reactMark, final); result != matched {
		return result
	}
	if reactBlob.MatchString(text) {
		return matched
	}
	isPartial := !strings.Contains(text, "\n") || reactBlobPartial.MatchString(text)
	if isPartial && !final {
		return needMore
	}
	if m := reactStart.FindStringSubmatch(text); m != nil && tools.isKnown(m[1]) {
		return matched
	}
	return noMatch
}

var (
	fenceStart = regexp.MustCompile("^```[A-Za-z_]*[ \t]*\r?\n?\\s*")
	// jsonStart is the beginning of an object or a list of objects, with the first name; Python's
	// dictionaries have single quotes.
	jsonStart   = regexp.MustCompile(`^(?:\[\s*)?\{\s*(?:"([^"\\]*)"|'([^'\\]*)')`)
	jsonPartial = regexp.MustCompile(`^(?:\[\s*)?(?:\{\s*)?(?:["'][^"'\\]*)?$`)
	pythonStart = regexp.MustCompile(`^\[\s*([A-Za-z_][\w.-]*)\(`)
	pythonPart  = regexp.MustCompile(`^\[\s*(?:[A-Za-z_][\w.-]*)?$`)
	nameStart   = regexp.MustCompile(`^([\pL\pM\pN_./-]+)[ \t]*\r?\n\s*\{`)
	namePart    = regexp.MustCompile(`^([\pL\pM\pN_./-]+)(?:[ \t]*\r?\n\s*|[ \t]*\r?)?$`)
	// callMembers lists the names that can begin an object that is a call.
	callMembers = map[string]bool{
		"name": true, "function": true, "tool": true, "tool_name": true, "tool_calls": true, "arguments": true,
		"parameters": true, "type": true, "id": true, "action": true, "tool_call": true, "function_call": true, "tool_input": true,
	}
)

// matchWholeAnswer looks for an answer that is a call as a whole: JSON, or a list in Python's
// notation, both possibly in a code fence, or a tool's name on a line and JSON below it.
func matchWholeAnswer(text string, final bool, tools toolSet) matchResult {
	if !final && strings.HasPrefix("```", text) {
		return needMore
	}
	if m := nameStart.FindStringSubmatch(text); m != nil && tools.isKnown(m[1]) {
		return matched
	}
	if m := namePart.FindStringSubmatch(text); m != nil && !final && tools.hasPrefix(m[1]) {
		return needMore
	}
	if fence := fenceStart.FindString(text); fence != "" {
		text = text[len(fence):]
		if text == "" && !final {
			return needMore
		}
	}
	if match := jsonStart.FindStringSubmatch(text); match != nil {
		if callMembers[match[1]+match[2]] {
			return matched
		}
		return noMatch
	}
	if m := pythonStart.FindStringSubmatch(text); m != nil && tools.isKnown(m[1]) {
		return matched
	}
	if !final && (jsonPartial.MatchString(text) || pythonPart.MatchString(text)) {
		return needMore
	}
	return noMatch
}

// segment holds a part of a held text: a call, or the text around calls.
type segment struct {
	text string
	call *writtenCall
}

// endTokens end a message in chat templates. Some endpoints leave them in the text.
var endTokens = []string{"<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<|call|>",
	"</s>", "<｜end▁of▁sentence｜>", "<|python_end|>", "<|tool_call_end|>", "<|/tool_call|>"}

// trimEnd removes white space and tokens that end a message from the end of text.
func trimEnd(text string) string {
	for {
		text = strings.TrimRight(text, whiteSpace)
		before := text
		for _, token := range endTokens {
			text = strings.TrimSuffix(text, token)
		}
		if text == before {
			return text
		}
	}
}

// parseHeld reads the calls of a text that matchNotation matched. It reports false if the text
// has no call, or a call of a tool that does not exist; then all of it is text. cut says that the model could not
// finish the text, so a call whose end is not marked may lack arguments, and is none.
func parseHeld(text string, tools toolSet, cut bool) ([]segment, bool) {
	segments := tools.splitCalls(trimEnd(text), cut)
	hasCall := false
	for _, segment := range segments {
		if segment.call == nil {
			continue
		}
		if !tools.isKnown(segment.call.name) {
			return nil, false
		}
		segment.call.arguments = tools.wrapText(*segment.call)
		hasCall = true
	}
	return segments, hasCall
}

// splitCalls splits a text into calls and the text between them. The mark at its beginning tells
// the notation; see the list at the top of this file.
func (tools toolSet) splitCalls(text string, cut bool) []segment {
	switch {
	case strings.HasPrefix(text, hermesMark):
		return splitBlocks(text, hermesMark, "</tool_call>", cut, func(body string, _ bool) []writtenCall { return tools.parseBlock(body) })
	case strings.HasPrefix(text, functionMark):
		return splitBlocks(strings.ReplaceAll(text, "</tool_call>", ""), functionMark, functionEnd, cut, func(body string, closed bool) []writtenCall {
			if closed {
				body += functionEnd
			}
			return tools.parseFunction(functionMark + body)
		})
	case strings.HasPrefix(text, pythonMark), strings.HasPrefix(text, pythonStartMark), strings.HasPrefix(text, callMark), strings.HasPrefix(text, callStartMark):
		_, body, _ := strings.Cut(text, "|>")
		return callSegments(tools.parseBlock(trimEnd(body)))
	case strings.HasPrefix(text, mistralMark):
		return callSegments(parseMistral(text))
	case strings.HasPrefix(text, toolCodeMark):
		text, _, _ = strings.Cut(text, toolOutputMark)
		return splitBlocks(text, toolCodeMark, "```", cut, func(body string, _ bool) []writtenCall { return parseToolCode(body) })
	case strings.HasPrefix(text, reactMark):
		return callSegments(tools.parseReAct(text, cut))
	case strings.HasPrefix(text, "<"):
		return tools.parseMarkup(text, cut)
	}
	return callSegments(tools.parseWholeAnswer(text))
}

// parseWholeAnswer reads an answer that is a call as a whole.
func (tools toolSet) parseWholeAnswer(text string) []writtenCall {
	if m := nameStart.FindStringSubmatch(text); m != nil {
		arguments := strings.TrimSpace(strings.TrimPrefix(text, m[1]))
		if !isObject(arguments) {
			return nil
		}
		return []writtenCall{{m[1], arguments}}
	}
	return tools.parseBlock(trimFence(text))
}

// callSegments returns a segment for each call, and none between them.
func callSegments(calls []writtenCall) []segment {
	out := make([]segment, len(calls))
	for i := range calls {
		out[i].call = &calls[i]
	}
	return out
}

// splitBlocks splits text into blocks, from the opening to the closing mark, and the text
// between them. The last block may lack its closing mark: some models stop before it. If it was cut, it must be
// complete JSON then.
func splitBlocks(text, opening, closing string, cut bool, parse func(body string, closed bool) []writtenCall) (out []segment) {
	for {
		before, rest, found := strings.Cut(text, opening)
		if strings.TrimSpace(before) != "" {
			out = append(out, segment{text: before})
		}
		if !found {
			return out
		}
		start := jsonLength(rest) // a mark in a string of JSON is part of it
		end := len(rest)
		if next := strings.Index(rest[start:], opening); next >= 0 {
			end = start + next // a block that is not closed ends where the next one begins
		}
		body, _, closed := strings.Cut(rest[start:end], closing)
		body = rest[:start+len(body)]
		text = strings.TrimPrefix(rest[len(body):], closing)
		calls := parse(body, closed)
		if calls == nil || cut && text == "" && !closed && (start == 0 || strings.TrimSpace(body[start:]) != "") {
			return nil
		}
		out = append(out, callSegments(calls)...)
	}
}

// parseBlock reads calls as JSON, as <function=…>, in GLM's form, or in Python's notation.
func (tools toolSet) parseBlock(text string) []writtenCall {
	text = strings.TrimSpace(trimFence(text))
	switch {
	case strings.HasPrefix(text, functionMark):
		return tools.parseFunction(text)
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		if calls := parseJSONCalls(text); calls != nil {
			return calls
		}
		if calls := parseUnclosed(text); calls != nil {
			return calls
		}
		if value, ok := pythonLiteral(text); ok {
			return parseJSONCalls(value)
		}
	}
	if calls := tools.parseKeyValues(text); calls != nil {
		return calls
	}
	return parsePythonCalls(text)
}

// parseUnclosed reads JSON calls that lack brackets at their end. What is missing may close the
// call, but not its arguments: those may be incomplete.
func parseUnclosed(text string) []writtenCall {
	var open []byte
	inString := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{', c == '[':
			open = append(open, c+2) // the bracket that closes it
		case c == '}', c == ']':
			open = open[:max(len(open)-1, 0)]
		}
	}
	if inString || len(open) == 0 || len(open) > 3 {
		return nil
	}
	slices.Reverse(open)
	calls := parseJSONCalls(text + string(open))
	for _, c := range calls {
		if !strings.Contains(text, c.arguments) {
			return nil
		}
	}
	return calls
}

// trimFence returns the content of a code fence that encloses all of text, or text.
func trimFence(text string) string {
	text = strings.TrimSpace(text)
	fence := fenceStart.FindString(text)
	if fence == "" {
		return text
	}
	return strings.TrimSpace(strings.TrimSuffix(text[len(fence):], "```"))
}

var mistralName = regexp.MustCompile(`^\s*([\pL\pM\pN_./-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*`)

// parseMistral reads a list of calls after the mark, or a name and its arguments after each mark.
func parseMistral(text string) (calls []writtenCall) {
	for text != "" {
		start := len(mistralName.FindString(text))
		start += jsonLength(text[start:]) // a mark in a string of JSON is part of it
		part, rest, _ := strings.Cut(text[start:], mistralMark)
		part = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text[:start]+part), "</s>"))
		text = rest
		if part == "" {
			continue
		}
		if part[0] == '[' || part[0] == '{' {
			found := parseJSONCalls(part)
			if found == nil {
				return nil
			}
			calls = append(calls, found...)
			continue
		}
		m := mistralName.FindStringSubmatch(part)
		if m == nil || !strings.HasPrefix(part[len(m[0]):], "{") {
			return nil
		}
		calls = append(calls, writtenCall{name: m[1], arguments: part[len(m[0]):]})
	}
	return calls
}

var (
	reactInput = regexp.MustCompile(`(?s)^\s*\**Action Input:?\**:?\s*(.*)$`)
	// reactNext is what a model invents behind the input of its action.
	reactNext = regexp.MustCompile(`\n(?:Observation|Thought|Final Answer)\b`)
)

// parseReAct reads one action. It ignores what the model wrote after the action's input, such as
// an invented observation. If the text was cut, the input must be an object, which shows its end.
func (tools toolSet) parseReAct(text string, cut bool) []writtenCall {
	if reactBlob.MatchString(text) {
		_, blob, _ := strings.Cut(text, "```")
		blob, _, _ = strings.Cut(blob, "```")
		return tools.parseBlock("```" + blob)
	}
	head := reactStart.FindStringSubmatch(text)
	if head == nil {
		return nil
	}
	input := head[2]
	if m := reactInput.FindStringSubmatch(text[len(head[0]):]); m != nil && input == "" {
		input = m[1]
		if next := reactNext.FindStringIndex(input); next != nil {
			input = input[:next[0]]
		}
		input = trimFence(strings.TrimSpace(input))
	}
	arguments := readInput(input)
	if cut && (input == "" || !isObject(arguments)) {
		return nil
	}
	return []writtenCall{{name: head[1], arguments: arguments}}
}

// readInput returns the input of an action as JSON where it is an object, in Python's notation or
// with other text behind it.
func readInput(input string) string {
	if input == "" || strings.EqualFold(input, "none") {
		return "{}"
	}
	if strings.HasPrefix(input, "{") {
		dec := json.NewDecoder(strings.NewReader(input))
		var object json.RawMessage
		if dec.Decode(&object) == nil {
			return string(object)
		}
		if object, ok := pythonLiteral(input); ok {
			return object
		}
	}
	return input
}
