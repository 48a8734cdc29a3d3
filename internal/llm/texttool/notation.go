package texttool

import (
	"encoding/json"
	"regexp"
	"strings"
)

// Models write calls in the notation of their training even if the prompt asks for another
// one. These are understood as well, for tools that exist:
//
//	<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>    Hermes, Qwen
//	<function=f>{"x": 1}</function>                                Llama 3.1; with <parameter=x> Qwen3-Coder
//	<|python_tag|>{"name": "f", "parameters": {"x": 1}}            Llama 3.1; also f.call(x=1)
//	[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]             Mistral; also f[ARGS]{"x": 1}
//	Action: f⏎Action Input: {"x": 1}                               ReAct
//	{"name": "f", "arguments": {"x": 1}}                           alone or in a code fence
//	[f(x=1)]                                                       Llama 3.2 and 4, alone
//
// The text from the beginning of such a call to the end of the answer is held back and read
// at once. If it is not a call, it is the text that the model wrote.

// maxHeld bounds a text that is held back, in bytes; a longer one is text.
const maxHeld = 256 << 10

// Marks with which a call begins wherever they stand.
const (
	hermesMark   = "<tool_call>"
	functionMark = "<function="
	pythonMark   = "<|python_tag|>"
	mistralMark  = "[TOOL_CALLS]"
	reactMark    = "Action:"
)

// maxNotationStart bounds how much text decides whether a call may begin, in bytes.
const maxNotationStart = 400

// notationPlace says where in an answer a text stands.
type notationPlace struct {
	lineStart   bool
	answerStart bool // nothing but white space stands before it
}

// matchNotation looks for the beginning of a call in another notation at the start of text.
// final says that nothing follows text.
func matchNotation(text string, at notationPlace, final bool, isKnown func(string) bool) matchResult {
	if len(text) >= maxNotationStart {
		text, final = text[:maxNotationStart], true
	}
	result := noMatch
	for _, mark := range []string{hermesMark, functionMark, pythonMark, mistralMark} {
		result = max(result, matchPrefix(text, mark, final))
	}
	if at.lineStart {
		result = max(result, matchReAct(text, final, isKnown))
	}
	if at.answerStart {
		result = max(result, matchWholeAnswer(text, final, isKnown))
	}
	if result != noMatch && strings.HasPrefix(text, "```") && !at.answerStart {
		return noMatch
	}
	return result
}

// matchPrefix reports whether text begins with prefix, or may once more of it has arrived.
func matchPrefix(text, prefix string, final bool) matchResult {
	switch {
	case strings.HasPrefix(text, prefix):
		return matched
	case !final && strings.HasPrefix(prefix, text):
		return needMore
	}
	return noMatch
}

var reactStart = regexp.MustCompile(`^Action:[ \t]*[*` + "`" + `"']*([\pL\pM\pN_./-]+)[*` + "`" + `"']*[ \t]*\r?(?:\n|$)`)

// matchReAct looks for a line "Action: " with the name of a tool.
func matchReAct(text string, final bool, isKnown func(string) bool) matchResult {
	if result := matchPrefix(text, reactMark, final); result != matched {
		return result
	}
	if !final && !strings.Contains(text, "\n") {
		return needMore
	}
	if m := reactStart.FindStringSubmatch(text); m != nil && isKnown(m[1]) {
		return matched
	}
	return noMatch
}

var (
	fenceStart = regexp.MustCompile("^```[A-Za-z_]*[ \t]*\r?\n?\\s*")
	// jsonStart is the beginning of an object or a list of objects, with the first name.
	jsonStart   = regexp.MustCompile(`^(?:\[\s*)?\{\s*"([^"\\]*)"`)
	jsonPartial = regexp.MustCompile(`^(?:\[\s*)?(?:\{\s*)?(?:"[^"\\]*)?$`)
	pythonStart = regexp.MustCompile(`^\[\s*([A-Za-z_][\w.-]*)\(`)
	pythonPart  = regexp.MustCompile(`^\[\s*(?:[A-Za-z_][\w.-]*)?$`)
	// callMembers are the names with which an object that is a call begins.
	callMembers = map[string]bool{
		"name": true, "function": true, "tool": true, "tool_name": true, "tool_calls": true, "arguments": true,
		"parameters": true, "type": true, "id": true, "action": true,
	}
)

// matchWholeAnswer looks for an answer that is a call as a whole: JSON, or a list in Python's
// notation, both possibly in a code fence.
func matchWholeAnswer(text string, final bool, isKnown func(string) bool) matchResult {
	if !final && strings.HasPrefix("```", text) {
		return needMore
	}
	if fence := fenceStart.FindString(text); fence != "" {
		if text = text[len(fence):]; text == "" && !final {
			return needMore
		}
	}
	if m := jsonStart.FindStringSubmatch(text); m != nil {
		if callMembers[m[1]] {
			return matched
		}
		return noMatch
	}
	if m := pythonStart.FindStringSubmatch(text); m != nil && isKnown(m[1]) {
		return matched
	}
	if !final && (jsonPartial.MatchString(text) || pythonPart.MatchString(text)) {
		return needMore
	}
	return noMatch
}

// writtenCall is a call as a model wrote it, with the arguments as JSON.
type writtenCall struct{ name, arguments string }

// segment is a piece of a held text: a call, or text around calls.
type segment struct {
	text string
	call *writtenCall
}

// parseHeld reads the calls of a text that matchNotation matched. It reports false if the text
// has no call of a known tool, or one that cannot be read: then all of it is text.
func parseHeld(text string, isKnown func(string) bool) ([]segment, bool) {
	var out []segment
	switch {
	case strings.HasPrefix(text, hermesMark):
		out = splitBlocks(text, hermesMark, "</tool_call>", parseBlock)
	case strings.HasPrefix(text, functionMark):
		out = splitBlocks(text, functionMark, "</function>", func(body string) []writtenCall { return parseFunction(functionMark + body) })
	case strings.HasPrefix(text, pythonMark):
		out = callSegments(parseBlock(strings.TrimSuffix(strings.TrimSpace(text[len(pythonMark):]), "<|eom_id|>")))
	case strings.HasPrefix(text, mistralMark):
		out = callSegments(parseMistral(text))
	case strings.HasPrefix(text, reactMark):
		out = callSegments(parseReAct(text))
	default:
		out = callSegments(parseBlock(trimFence(text)))
	}
	calls := 0
	for _, s := range out {
		if s.call != nil {
			if calls++; !isKnown(s.call.name) {
				return nil, false
			}
		}
	}
	return out, calls > 0
}

func callSegments(calls []writtenCall) []segment {
	out := make([]segment, len(calls))
	for i := range calls {
		out[i].call = &calls[i]
	}
	return out
}

// splitBlocks splits text into blocks from opening to closing mark and the text between them.
// The last block may lack its closing mark: some models stop before it.
func splitBlocks(text, opening, closing string, parse func(body string) []writtenCall) (out []segment) {
	for {
		before, rest, found := strings.Cut(text, opening)
		if strings.TrimSpace(before) != "" {
			out = append(out, segment{text: before})
		}
		if !found {
			return out
		}
		body, after, closed := strings.Cut(rest, closing)
		if next := strings.Index(body, opening); next >= 0 { // this block was never closed, and another one follows
			body, after = rest[:next], rest[next:]
		} else if !closed {
			after = ""
		}
		calls := parse(body)
		if calls == nil {
			return nil
		}
		out = append(out, callSegments(calls)...)
		text = after
	}
}

// parseBlock reads calls as JSON, as <function=…>, or in Python's notation.
func parseBlock(text string) []writtenCall {
	text = strings.TrimSpace(trimFence(text))
	switch {
	case strings.HasPrefix(text, functionMark):
		return parseFunction(text)
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "[{"), strings.HasPrefix(text, "["):
		if calls := parseJSONCalls(text); calls != nil {
			return calls
		}
	}
	return parsePythonCalls(text)
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

// parseJSONCalls reads objects that stand alone, in a list, or one after the other with white
// space, commas or semicolons between them. It returns nil if one of them is not a call.
func parseJSONCalls(text string) (calls []writtenCall) {
	for text != "" {
		dec := json.NewDecoder(strings.NewReader(text))
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return nil
		}
		text = strings.TrimLeft(text[dec.InputOffset():], ",; \t\r\n")
		var list []json.RawMessage
		if json.Unmarshal(value, &list) != nil {
			list = []json.RawMessage{value}
		}
		for _, element := range list {
			found := parseJSONCall(element)
			if found == nil {
				return nil
			}
			calls = append(calls, found...)
		}
	}
	return calls
}

// parseJSONCall reads one object: a call with its name and arguments under the names that models
// use, the form of Chat Completions, or {"tool_calls": […]}.
func parseJSONCall(value json.RawMessage) []writtenCall {
	var object map[string]json.RawMessage
	if json.Unmarshal(value, &object) != nil {
		return nil
	}
	if list, ok := object["tool_calls"]; ok && len(object) == 1 {
		return parseJSONCalls(string(list))
	}
	if inner, ok := object["function"]; ok && len(inner) > 0 && inner[0] == '{' {
		return parseJSONCall(inner)
	}
	var call writtenCall
	for member, v := range object {
		switch member {
		case "name", "function", "tool", "tool_name", "action":
			if call.name != "" || json.Unmarshal(v, &call.name) != nil {
				return nil
			}
		case "arguments", "parameters", "args", "input", "action_input":
			if call.arguments != "" {
				return nil
			}
			call.arguments = string(v)
			var quoted string // Chat Completions has the arguments as text
			if json.Unmarshal(v, &quoted) == nil {
				call.arguments = quoted
			}
		case "id", "type", "index":
		default:
			return nil // an object of another kind that happens to have a name
		}
	}
	if call.name == "" {
		return nil
	}
	if call.arguments == "" || call.arguments == "null" {
		call.arguments = "{}"
	}
	return []writtenCall{call}
}

var (
	functionHead  = regexp.MustCompile(`^<function=\s*"?([\pL\pM\pN_./-]+)"?\s*>`)
	parameterPart = regexp.MustCompile(`(?s)<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|$)`)
)

// parseFunction reads <function=NAME>, whose body is a JSON object or <parameter=…> elements.
func parseFunction(text string) []writtenCall {
	head := functionHead.FindStringSubmatch(text)
	if head == nil {
		return nil
	}
	body, _, _ := strings.Cut(text[len(head[0]):], "</function>")
	body = strings.TrimSpace(body)
	if body == "" {
		return []writtenCall{{name: head[1], arguments: "{}"}}
	}
	if strings.HasPrefix(body, "{") {
		return []writtenCall{{name: head[1], arguments: body}}
	}
	arguments := make(map[string]json.RawMessage)
	for _, m := range parameterPart.FindAllStringSubmatch(body, -1) {
		value := json.RawMessage(strings.TrimSpace(m[2]))
		if !json.Valid(value) {
			value, _ = json.Marshal(m[2]) // text without quotes; a string can always be encoded
		}
		arguments[m[1]] = value
	}
	if len(arguments) == 0 {
		return nil
	}
	encoded, _ := json.Marshal(arguments) // valid values under string keys can always be encoded
	return []writtenCall{{name: head[1], arguments: string(encoded)}}
}

var mistralName = regexp.MustCompile(`^\s*([\pL\pM\pN_./-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*`)

// parseMistral reads a list of calls after the mark, or a name and its arguments after each mark.
func parseMistral(text string) (calls []writtenCall) {
	for part := range strings.SplitSeq(text, mistralMark) {
		part = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(part), "</s>"))
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

var reactInput = regexp.MustCompile(`(?s)^\s*\**Action Input:?\**:?\s*(.*)$`)

// parseReAct reads one action. What the model wrote after its input, such as an observation, is
// not part of it.
func parseReAct(text string) []writtenCall {
	head := reactStart.FindStringSubmatch(text)
	if head == nil {
		return nil
	}
	call := writtenCall{name: head[1], arguments: "{}"}
	if m := reactInput.FindStringSubmatch(text[len(head[0]):]); m != nil {
		input, _, _ := strings.Cut(m[1], "\nObservation")
		if input = trimFence(strings.TrimSpace(input)); strings.HasPrefix(input, "{") {
			dec := json.NewDecoder(strings.NewReader(input))
			var object json.RawMessage
			if dec.Decode(&object) == nil {
				input = string(object)
			}
		}
		if input != "" && !strings.EqualFold(input, "none") {
			call.arguments = input
		}
	}
	return []writtenCall{call}
}
