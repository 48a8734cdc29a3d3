package texttool

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// Models often write calls in the notation of their training, even if the prompt asks for another one. For offered
// tools, these notations are understood too:
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
// From the beginning of such a call, the rest of the answer is buffered and parsed at its end. If it is not a call, it
// is emitted as text.

// maxBuffered is the largest text that is buffered, in bytes. A longer text is not a call.
const maxBuffered = 256 << 10

// Marks that begin a call. All except reactMark, which counts only at the start of a line, are in callMarks.
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

// callMarks are the marks that begin a call anywhere except in inline code.
var callMarks = []string{
	hermesMark, functionMark, invokeMark, minimaxMark, callsMark, dsmlMark, pythonMark, pythonStartMark, callMark,
	callStartMark, mistralMark, kimiSectionMark, kimiMark, deepSeekMark, harmonyMark,
}

// maxNotationStart is how many bytes of text decide whether a call begins.
const maxNotationStart = 400

// position says where in an answer a text begins.
type position struct {
	lineStart   bool
	answerStart bool // only white space precedes the text
	inlineCode  bool // the text directly follows a backtick
}

// matchNotation matches the beginning of text with a call in any of the notations above. at is the position of text in
// the answer. final says that no more text follows. The more a notation resembles prose, the fewer positions are
// accepted:
//   - callMarks: anywhere except in inline code
//   - "Action:" and a fence of tool code: at the start of a line
//   - JSON, a list in Python's notation, or a tool's name: at the start of the answer
func matchNotation(text string, at position, final bool, tools toolSet) matchResult {
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
		result = max(result, matchReAct(text, final, tools), matchPrefix(text, toolCodeMark, final))
	}
	if at.answerStart {
		result = max(result, matchWholeAnswer(text, final, tools))
	}
	return result
}

// matchPrefix matches the beginning of text with prefix. final says that no more text follows.
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
	// reactStart matches a line with an action: its name, and possibly its input in parentheses.
	reactStart = regexp.MustCompile(`^Action:[ \t]*[*` + "`" + `"']*(?:Use (?:the )?)?([\pL\pM\pN_./-]+)[*` + "`" + `"']*[ \t]*(?:\((\{[^\n]*\})\))?[ \t]*\r?(?:\n|$)`)
	// reactBlob matches an action as JSON in a code fence, as the prompts of LangChain and Cohere ask for.
	reactBlob        = regexp.MustCompile("^Action:[ \t]*\r?\n?[ \t]*```(?:json)?[ \t]*\r?\n?\\s*[\\[{]")
	reactBlobPartial = regexp.MustCompile("^Action:[ \t]*\r?\n?[ \t]*(?:`{0,2}|```[json]{0,4}[ \t]*\r?\n?\\s*)$")
)

// matchReAct matches the beginning of text with "Action:" and either the name of a tool or JSON in a code fence.
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
	// jsonStart matches the beginning of an object or a list of objects, up to the first name. Python's dictionaries
	// have single quotes.
	jsonStart   = regexp.MustCompile(`^(?:\[\s*)?\{\s*(?:"([^"\\]*)"|'([^'\\]*)')`)
	jsonPartial = regexp.MustCompile(`^(?:\[\s*)?(?:\{\s*)?(?:["'][^"'\\]*)?$`)
	pythonStart = regexp.MustCompile(`^\[\s*([A-Za-z_][\w.-]*)\(`)
	pythonPart  = regexp.MustCompile(`^\[\s*(?:[A-Za-z_][\w.-]*)?$`)
	nameStart   = regexp.MustCompile(`^([\pL\pM\pN_./-]+)[ \t]*\r?\n\s*\{`)
	namePart    = regexp.MustCompile(`^([\pL\pM\pN_./-]+)(?:[ \t]*\r?\n\s*|[ \t]*\r?)?$`)
	// callMembers has the names that an object's first member may have if the object is a call.
	callMembers = map[string]bool{
		"name": true, "function": true, "tool": true, "tool_name": true, "tool_calls": true, "arguments": true,
		"parameters": true, "type": true, "id": true, "action": true, "tool_call": true, "function_call": true, "tool_input": true,
	}
)

// matchWholeAnswer matches the beginning of text, which is the whole answer so far, with a call without a mark: JSON or
// a list in Python's notation, both possibly in a code fence, or a tool's name on a line with JSON below it.
func matchWholeAnswer(text string, final bool, tools toolSet) matchResult {
	if mayBecomeFence := strings.HasPrefix("```", text); mayBecomeFence && !final {
		return needMore
	}
	if result := matchNameLine(text, final, tools); result != noMatch {
		return result
	}
	text = text[len(fenceStart.FindString(text)):]
	if member := jsonStart.FindStringSubmatch(text); member != nil {
		if callMembers[member[1]+member[2]] { // one of the two groups is empty
			return matched
		}
		return noMatch
	}
	if head := pythonStart.FindStringSubmatch(text); head != nil && tools.isKnown(head[1]) {
		return matched
	}
	if isPartial := jsonPartial.MatchString(text) || pythonPart.MatchString(text); isPartial && !final {
		return needMore
	}
	return noMatch
}

// matchNameLine matches the beginning of text with the name of a tool on a line, and an object below it.
func matchNameLine(text string, final bool, tools toolSet) matchResult {
	if line := nameStart.FindStringSubmatch(text); line != nil && tools.isKnown(line[1]) {
		return matched
	}
	if line := namePart.FindStringSubmatch(text); line != nil && !final && tools.hasPrefix(line[1]) {
		return needMore
	}
	return noMatch
}

// segment is a part of a buffered text: a call, or text around calls.
type segment struct {
	text string
	call *writtenCall // nil for text
}

// endTokens are tokens that end a message in chat templates. Some endpoints leave them in the text.
var endTokens = []string{"<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<|call|>",
	"</s>", "<｜end▁of▁sentence｜>", "<|python_end|>", "<|tool_call_end|>", "<|/tool_call|>"}

// trimEndTokens removes white space and endTokens from the end of text.
func trimEndTokens(text string) string {
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

// parseBuffered splits a text that matchNotation matched into calls and the text around them. It returns nil if the text
// has no call, or a call of a tool that was not offered. All of it is then text. truncated says that the model could not
// finish the text. A call without a clear end then does not count, because it may lack arguments.
func parseBuffered(text string, tools toolSet, truncated bool) []segment {
	segments := tools.splitCalls(trimEndTokens(text), truncated)
	hasCall := false
	for _, segment := range segments {
		if segment.call == nil {
			continue
		}
		if !tools.isKnown(segment.call.name) {
			return nil
		}
		segment.call.arguments = tools.wrapText(*segment.call)
		hasCall = true
	}
	if !hasCall {
		return nil
	}
	return segments
}

// splitCalls splits a text into calls and the text between them. The mark at the beginning of the text, such as
// <tool_call>, determines the notation. truncated is as in splitBlocks. splitCalls returns nil if the text is not a call
// in this notation.
func (tools toolSet) splitCalls(text string, truncated bool) []segment {
	switch {
	case strings.HasPrefix(text, hermesMark):
		return splitBlocks(text, hermesMark, "</tool_call>", truncated, func(body string, _ bool) []writtenCall {
			return tools.parseBlock(body)
		})
	case strings.HasPrefix(text, functionMark):
		text = strings.ReplaceAll(text, "</tool_call>", "") // some models write it after the function
		return splitBlocks(text, functionMark, functionEnd, truncated, func(body string, closed bool) []writtenCall {
			if closed {
				body += functionEnd
			}
			return tools.parseFunction(functionMark + body)
		})
	case strings.HasPrefix(text, pythonMark), strings.HasPrefix(text, pythonStartMark),
		strings.HasPrefix(text, callMark), strings.HasPrefix(text, callStartMark):
		_, body, _ := strings.Cut(text, "|>")
		return callSegments(tools.parseBlock(trimEndTokens(body)))
	case strings.HasPrefix(text, mistralMark):
		return callSegments(parseMistral(text))
	case strings.HasPrefix(text, toolCodeMark):
		text, _, _ = strings.Cut(text, toolOutputMark)
		return splitBlocks(text, toolCodeMark, "```", truncated, func(body string, _ bool) []writtenCall {
			return parseToolCode(body)
		})
	case strings.HasPrefix(text, reactMark):
		return callSegments(tools.parseReAct(text, truncated))
	case strings.HasPrefix(text, "<"):
		return tools.parseMarkup(text, truncated)
	}
	return callSegments(tools.parseWholeAnswer(text))
}

// parseWholeAnswer reads an answer that matchWholeAnswer matched. It returns nil if the answer is not a call.
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

// parseBlock reads the calls in a block, which may be in a code fence: JSON, <function=…>, GLM's form, or Python's
// notation. It returns nil if the text is none of these.
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

// maxUnclosed is the largest number of brackets that parseUnclosed adds: those of a list, of an object in it, and of an
// object in that one.
const maxUnclosed = 3

// parseUnclosed reads JSON calls that lack up to maxUnclosed brackets at their end. It returns nil if the text is not
// such JSON, or if a missing bracket would close the arguments of a call, because arguments may then be missing too.
func parseUnclosed(text string) []writtenCall {
	missing := missingBrackets(text)
	if missing == "" || len(missing) > maxUnclosed {
		return nil
	}
	calls := parseJSONCalls(text + missing)
	for _, call := range calls {
		if !strings.Contains(text, call.arguments) {
			return nil
		}
	}
	return calls
}

// missingBrackets returns the brackets that would close the objects and lists that are open at the end of a JSON text,
// innermost first. It returns "" if the text ends within a string.
func missingBrackets(text string) string {
	var missing []byte // outermost first
	inString := false
	for i := 0; i < len(text); i++ {
		char := text[i]
		switch {
		case inString && char == '\\':
			i++
		case char == '"':
			inString = !inString
		case inString:
		case char == '{':
			missing = append(missing, '}')
		case char == '[':
			missing = append(missing, ']')
		case char == '}', char == ']':
			missing = missing[:max(len(missing)-1, 0)]
		}
	}
	if inString {
		return ""
	}
	slices.Reverse(missing)
	return string(missing)
}

// trimFence returns text without the white space around it. If text begins with a code fence, trimFence also removes
// the fence.
func trimFence(text string) string {
	text = strings.TrimSpace(text)
	fence := fenceStart.FindString(text)
	if fence == "" {
		return text
	}
	return strings.TrimSpace(strings.TrimSuffix(text[len(fence):], "```"))
}

var mistralName = regexp.MustCompile(`^\s*([\pL\pM\pN_./-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*`)

// parseMistral reads calls in Mistral's notation: each mark is followed by a list of calls in JSON, or by a name and
// arguments. It returns nil if a part is neither.
func parseMistral(text string) (calls []writtenCall) {
	for text != "" {
		var part string
		if part, text = cutMistralPart(text); part == "" {
			continue
		}
		partCalls := parseMistralPart(part)
		if partCalls == nil {
			return nil
		}
		calls = append(calls, partCalls...)
	}
	return calls
}

// cutMistralPart cuts text before the next mark of Mistral's notation. Marks within the JSON at the beginning of text,
// or within the JSON after a name there, are part of a string and do not count.
func cutMistralPart(text string) (part, rest string) {
	jsonEnd := len(mistralName.FindString(text))
	jsonEnd += jsonLength(text[jsonEnd:])
	afterJSON, rest, _ := strings.Cut(text[jsonEnd:], mistralMark)
	part = strings.TrimSpace(text[:jsonEnd] + afterJSON)
	return strings.TrimSpace(strings.TrimSuffix(part, "</s>")), rest
}

// parseMistralPart reads the text between two marks of Mistral's notation. It returns nil if the text is not a call.
func parseMistralPart(part string) []writtenCall {
	if part[0] == '[' || part[0] == '{' {
		return parseJSONCalls(part)
	}
	head := mistralName.FindStringSubmatch(part)
	if head == nil || !strings.HasPrefix(part[len(head[0]):], "{") {
		return nil
	}
	return []writtenCall{{name: head[1], arguments: part[len(head[0]):]}}
}

var (
	reactInput = regexp.MustCompile(`(?s)^\s*\**Action Input:?\**:?\s*(.*)$`)
	// reactNext matches the beginning of what a model invents after the input of its action.
	reactNext = regexp.MustCompile(`\n(?:Observation|Thought|Final Answer)\b`)
)

// parseReAct reads one action, and ignores the text after the action's input, such as an invented observation. It
// returns nil if the text is not an action. It also returns nil if the text is truncated and the input is not an
// object, because only the end of an object shows that the input is complete.
func (tools toolSet) parseReAct(text string, truncated bool) []writtenCall {
	if reactBlob.MatchString(text) {
		_, blob, _ := strings.Cut(text, "```")
		blob, _, _ = strings.Cut(blob, "```")
		return tools.parseBlock("```" + blob)
	}
	head := reactStart.FindStringSubmatch(text)
	if head == nil {
		return nil
	}
	input := cmp.Or(head[2], cutActionInput(text[len(head[0]):]))
	arguments := decodeActionInput(input)
	isComplete := input != "" && isObject(arguments)
	if truncated && !isComplete {
		return nil
	}
	return []writtenCall{{name: head[1], arguments: arguments}}
}

// cutActionInput returns the input of an action from text, which follows the line of the action. It returns "" if the
// action has no input.
func cutActionInput(text string) string {
	match := reactInput.FindStringSubmatch(text)
	if match == nil {
		return ""
	}
	input := match[1]
	if next := reactNext.FindStringIndex(input); next != nil {
		input = input[:next[0]]
	}
	return trimFence(input)
}

// decodeActionInput returns an action's input as a JSON object if it begins with a JSON object, even if other text
// follows, or if it is an object in Python's notation. It returns {} for an empty input, and any other input unchanged.
func decodeActionInput(input string) string {
	if input == "" || strings.EqualFold(input, "none") {
		return "{}"
	}
	if strings.HasPrefix(input, "{") {
		if n := jsonLength(input); n > 0 {
			return input[:n]
		}
		if object, ok := pythonLiteral(input); ok {
			return object
		}
	}
	return input
}
