package texttool

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// properties returns the schemas of a tool's parameters, by name. It returns nil if the tool was not offered or its
// schema lists no properties.
func (tools toolSet) properties(tool string) map[string]json.RawMessage {
	t, _ := tools.find(tool)
	var s struct{ Properties map[string]json.RawMessage }
	_ = json.Unmarshal(t.Schema, &s) // a schema that does not decode has no properties
	return s.Properties
}

// propertyType returns the JSON Schema type of a tool's parameter, or "" if the schema has no type or several types for
// it.
func (tools toolSet) propertyType(tool, parameter string) string {
	var property struct{ Type any }
	_ = json.Unmarshal(tools.properties(tool)[parameter], &property)
	name, _ := property.Type.(string) // not a string if the property has several types
	return name
}

// wrapText returns the arguments of call. If the arguments are text (bare, or as a JSON string) and the tool has
// exactly one parameter, of type string, wrapText returns an object with the text as that parameter. It returns any
// other arguments unchanged. It does not wrap text that begins with a brace, which is more likely a malformed object.
// The error about that helps the model more.
func (tools toolSet) wrapText(call writtenCall) string {
	var text string
	switch {
	case isObject(call.arguments):
		return call.arguments
	case json.Unmarshal([]byte(call.arguments), &text) != nil:
		text = call.arguments
	}
	properties := tools.properties(call.name)
	if len(properties) != 1 || strings.HasPrefix(text, "{") {
		return call.arguments
	}
	for parameter := range properties {
		if tools.propertyType(call.name, parameter) == "string" {
			return encodeArguments(map[string]json.RawMessage{parameter: encodeText(text)})
		}
	}
	return call.arguments
}

// decodeValue returns the JSON value of a parameter whose text comes from markup, where strings have no quotes. If text
// is JSON and the tool's schema does not require a string, the value is that JSON. Otherwise the value is text as a
// string.
func (tools toolSet) decodeValue(tool, parameter, text string) json.RawMessage {
	value := json.RawMessage(strings.TrimSpace(text))
	if tools.propertyType(tool, parameter) != "string" && json.Valid(value) {
		return value
	}
	return encodeText(text)
}

// encodeText returns text as a JSON string.
func encodeText(text string) json.RawMessage {
	encoded, _ := json.Marshal(text) // a string can always be encoded
	return encoded
}

// encodeArguments returns arguments as a JSON object with its members sorted by name.
func encodeArguments(arguments map[string]json.RawMessage) string {
	encoded, _ := json.Marshal(arguments) // valid values under string keys can always be encoded
	return string(encoded)
}

var (
	functionHead      = regexp.MustCompile(`^<function=\s*"?([\pL\pM\pN_./-]+)"?\s*>`)
	functionParameter = parameterForm{regexp.MustCompile(`<parameter=([^>\s]+)>\n?`), "\n", "</parameter>"}
)

// parseFunction reads one call in the form <function=NAME>. Its body is a JSON object or <parameter=…> elements.
// parseFunction returns nil if text does not have this form.
func (tools toolSet) parseFunction(text string) []writtenCall {
	head := functionHead.FindStringSubmatch(text)
	if head == nil {
		return nil
	}
	body, _, closed := strings.Cut(text[len(head[0]):], functionEnd)
	body = strings.TrimSpace(body)
	if body == "" {
		return []writtenCall{{name: head[1], arguments: "{}"}}
	}
	if strings.HasPrefix(body, "{") {
		return []writtenCall{{name: head[1], arguments: body}}
	}
	return tools.parseParameters(head[1], body, functionParameter, closed)
}

// parameterForm describes how a notation writes a parameter.
type parameterForm struct {
	head    *regexp.Regexp // before the value; its first group is the parameter's name
	space   string         // white space before closing that does not belong to the value
	closing string         // after the value
}

// parseParameters reads the parameters of one call of the tool name from body, and returns the call. closed says that
// the model wrote the end of the call. Some models leave out what closes a value
// (https://github.com/vllm-project/vllm/pull/23099, https://github.com/vllm-project/vllm/issues/57699). The value then
// ends at its valueLimit. parseParameters returns nil if body has no parameters, or if the answer was cut off within
// body, because a value may then be incomplete.
func (tools toolSet) parseParameters(name, body string, form parameterForm, closed bool) []writtenCall {
	arguments := make(map[string]json.RawMessage)
	end := 0 // end of the previous parameter
	for _, head := range tools.findHeads(name, body, form) {
		if head.start < end {
			continue // the head is text within the previous value
		}
		value, _, hasClosing := strings.Cut(body[head.valueStart:head.valueLimit], form.closing)
		space := form.space
		end = head.valueStart + len(value) + len(form.closing)
		if !hasClosing {
			space = "\n"
			end = head.valueLimit
			if end == len(body) && !closed {
				return nil
			}
		}
		arguments[head.name] = tools.decodeValue(name, head.name, strings.TrimSuffix(value, space))
	}
	isCutOff := !closed && strings.Contains(body[end:], "<") // within the head of another parameter
	if len(arguments) == 0 || isCutOff {
		return nil
	}
	return []writtenCall{{name: name, arguments: encodeArguments(arguments)}}
}

// parameterHead is a match of parameterForm.head in the body of a call, with offsets in that body.
type parameterHead struct {
	name       string
	start      int
	valueStart int // end of the head
	valueLimit int // where the value must end: at the tool's next parameter, or at the end of the body
}

// findHeads returns the heads in the body of a call. A head whose name is not one of the tool's parameters does not
// limit the value before it, because it may be text within that value.
func (tools toolSet) findHeads(tool, body string, form parameterForm) []parameterHead {
	matches := form.head.FindAllStringSubmatchIndex(body, -1)
	heads := make([]parameterHead, len(matches))
	properties := tools.properties(tool)
	limit := len(body)
	for i, m := range slices.Backward(matches) {
		heads[i] = parameterHead{strings.TrimSpace(body[m[2]:m[3]]), m[0], m[1], limit}
		if _, known := properties[heads[i].name]; known {
			limit = m[0]
		}
	}
	return heads
}

var (
	keyValueHead = regexp.MustCompile(`^([\pL\pM\pN_./-]+)\s*(<arg_key>|$)`)
	keyValue     = parameterForm{regexp.MustCompile(`<arg_key>([^<]*)</arg_key>\s*<arg_value>`), "", "</arg_value>"}
)

// parseKeyValues reads one call in GLM's form: the name of a tool, followed by <arg_key> and <arg_value> elements or by
// nothing. It returns nil if text does not have this form, or if the tool was not offered.
func (tools toolSet) parseKeyValues(text string) []writtenCall {
	head := keyValueHead.FindStringSubmatch(text)
	switch {
	case head == nil || !tools.isKnown(head[1]):
		return nil
	case head[2] == "":
		return []writtenCall{{name: head[1], arguments: "{}"}}
	}
	return tools.parseParameters(head[1], text, keyValue, false)
}

var (
	// markupWrapper matches the tags of the elements that enclose <invoke> elements.
	markupWrapper   = regexp.MustCompile(`</?(?:minimax:tool_call|function_calls|tool_calls)>\n?`)
	invokeHead      = regexp.MustCompile(`^\s*["']?([\pL\pM\pN_./-]+)["']?\s*>`)
	invokeParameter = parameterForm{regexp.MustCompile(`<parameter name=["']?([^"'>]+)["']?[^>]*>`), "", "</parameter>"}

	kimiCall = regexp.MustCompile(`(?s)<\|tool_call_begin\|>\s*(?:functions\.)?([\pL\pM\pN_.-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(.*?)\s*(?:<\|tool_call_end\|>|<\|tool_calls_section_end\|>|$)`)

	deepSeekCall = regexp.MustCompile("(?s)<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?\\s*([\\pL\\pM\\pN_./-]+)\\s*(?:<｜tool▁sep｜>)?\\s*(?:```(?:json)?)?\\s*(\\{.*?\\})\\s*(?:```)?\\s*(?:<｜tool▁call▁end｜>|$)")

	harmonyCall = regexp.MustCompile(`(?s) to=functions\.([\pL\pM\pN_.-]+)[^{]*?<\|message\|>\s*(\{.*?\})\s*(?:<\|call\|>|<\|end\|>|<\|start\|>|$)`)
)

// parseMarkup splits a text with <invoke> elements into calls and the text between them. For texts with the special
// tokens of Kimi, DeepSeek or gpt-oss, it returns the calls between these tokens. It returns nil if the text has no
// calls. truncated is passed to splitBlocks.
func (tools toolSet) parseMarkup(text string, truncated bool) []segment {
	var pattern *regexp.Regexp
	switch {
	case strings.HasPrefix(text, kimiSectionMark), strings.HasPrefix(text, kimiMark):
		pattern = kimiCall
	case strings.HasPrefix(text, deepSeekMark):
		pattern = deepSeekCall
	case strings.HasPrefix(text, harmonyMark):
		pattern = harmonyCall
	default:
		text = markupWrapper.ReplaceAllString(strings.ReplaceAll(text, "｜DSML｜", ""), "")
		return splitBlocks(text, invokeMark, "</invoke>", truncated, tools.parseInvoke)
	}
	var out []segment
	for _, m := range pattern.FindAllStringSubmatch(text, -1) {
		out = append(out, segment{call: &writtenCall{m[1], m[2]}})
	}
	return out
}

// parseInvoke reads one call from body, the text between "<invoke name=" and "</invoke>". It consists of the name, ">",
// and any number of <parameter name=…> elements. closed says that the model wrote "</invoke>". parseInvoke returns nil
// if body does not have this form.
func (tools toolSet) parseInvoke(body string, closed bool) []writtenCall {
	head := invokeHead.FindStringSubmatch(body)
	if head == nil {
		return nil
	}
	if strings.TrimSpace(body[len(head[0]):]) == "" {
		return []writtenCall{{name: head[1], arguments: "{}"}}
	}
	return tools.parseParameters(head[1], body[len(head[0]):], invokeParameter, closed)
}

// callSegments returns one segment per call, without text between them.
func callSegments(calls []writtenCall) []segment {
	out := make([]segment, len(calls))
	for i := range calls {
		out[i].call = &calls[i]
	}
	return out
}

// splitBlocks splits text into blocks, each from the opening to the closing mark, and the text between them. parse
// returns the calls in a block's body, which is the text between its marks. closed says that the block has its closing
// mark, which some models omit.
//
// splitBlocks returns nil if parse returns nil for a block. truncated says that the model was stopped in the middle of
// its answer. Then splitBlocks also returns nil if the last block is cut off: it has no closing mark, and its body is
// not complete JSON.
func splitBlocks(
	text, opening, closing string, truncated bool, parse func(body string, closed bool) []writtenCall,
) (out []segment) {
	for {
		before, rest, found := strings.Cut(text, opening)
		if strings.TrimSpace(before) != "" {
			out = append(out, segment{text: before})
		}
		if !found {
			return out
		}
		body, remaining, closed := cutBlock(rest, opening, closing)
		calls := parse(body, closed)
		isCutOff := truncated && remaining == "" && !closed && !isCompleteJSON(body)
		if calls == nil || isCutOff {
			return nil
		}
		out = append(out, callSegments(calls)...)
		text = remaining
	}
}

// cutBlock cuts text, which begins after a block's opening mark, into the block's body and the text after its closing
// mark. A block without a closing mark ends where the next block begins, or at the end of text. Marks within the JSON
// at the beginning of text are part of the body.
func cutBlock(text, opening, closing string) (body, remaining string, closed bool) {
	jsonEnd := jsonLength(text)
	end := len(text)
	if next := strings.Index(text[jsonEnd:], opening); next >= 0 {
		end = jsonEnd + next
	}
	if i := strings.Index(text[jsonEnd:end], closing); i >= 0 {
		return text[:jsonEnd+i], text[jsonEnd+i+len(closing):], true
	}
	return text[:end], text[end:], false
}

// isCompleteJSON reports whether text is a complete JSON value, except for white space after it.
func isCompleteJSON(text string) bool {
	n := jsonLength(text)
	return n > 0 && strings.TrimSpace(text[n:]) == ""
}
