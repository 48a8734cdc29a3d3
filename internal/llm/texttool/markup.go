package texttool

import (
	"encoding/json"
	"regexp"
	"strings"

	"answerd/internal/llm"
)

// find returns the tool of this name. Names are compared exactly.
func (tools toolSet) find(name string) (llm.Tool, bool) {
	for _, t := range tools {
		if t.Name == name {
			return t, true
		}
	}
	return llm.Tool{}, false
}

// properties returns the schemas of a tool's parameters.
func (tools toolSet) properties(tool string) map[string]json.RawMessage {
	t, _ := tools.find(tool)
	var s struct{ Properties map[string]json.RawMessage }
	_ = json.Unmarshal(t.Schema, &s) // another schema has no parameters
	return s.Properties
}

// propertyType returns the JSON Schema type of a tool's parameter; "" if it is not given or
// not a single one.
func (tools toolSet) propertyType(tool, parameter string) string {
	var property struct{ Type any }
	_ = json.Unmarshal(tools.properties(tool)[parameter], &property)
	name, _ := property.Type.(string) // a list of types is none
	return name
}

// wrapText returns the arguments of call. A text is the only parameter of a tool that has one
// parameter, of type string. A text that begins with a brace is not wrapped: it is more likely an object
// that the model wrote wrongly, and the error about that helps it more.
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

// decodeValue returns the value of a parameter that a model wrote without JSON's quotes: text for
// a string, and otherwise JSON if it is that.
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

// encodeArguments returns arguments as a JSON object, with its members sorted by name.
func encodeArguments(arguments map[string]json.RawMessage) string {
	encoded, _ := json.Marshal(arguments) // valid values under string keys can always be encoded
	return string(encoded)
}

var (
	functionHead      = regexp.MustCompile(`^<function=\s*"?([\pL\pM\pN_./-]+)"?\s*>`)
	functionParameter = parameterForm{regexp.MustCompile(`<parameter=([^>\s]+)>\n?`), "\n", "</parameter>"}
)

// parseFunction reads <function=NAME>, whose body is a JSON object or <parameter=…> elements.
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

// parameterForm says how a notation writes a parameter: what comes before its value, with its name, the white space
// behind the value that is not part of it, and what closes it.
type parameterForm struct {
	head           *regexp.Regexp
	space, closing string
}

// parseParameters reads the parameters of a call. Some models leave out what closes a value
// (https://github.com/vllm-project/vllm/pull/23099, https://github.com/vllm-project/vllm/issues/57699). It then ends where another
// parameter of the tool begins, or with the call, of which closed says that its end was written. Without either, the
// answer was cut off within the value, which must not be passed on. It returns nil for that, and if there is no parameter.
func (tools toolSet) parseParameters(name, body string, form parameterForm, closed bool) []writtenCall {
	heads := form.head.FindAllStringSubmatchIndex(body, -1)
	nameOf := func(head []int) string { return strings.TrimSpace(body[head[2]:head[3]]) }
	properties := tools.properties(name)
	ends := make([]int, len(heads)) // where the next parameter of the tool begins
	for i, end := len(heads)-1, len(body); i >= 0; i-- {
		ends[i] = end
		if _, known := properties[nameOf(heads[i])]; known {
			end = heads[i][0]
		}
	}

	arguments := make(map[string]json.RawMessage)
	read := 0
	for i, head := range heads {
		if head[0] < read {
			continue // it is within a value
		}
		value, _, ended := strings.Cut(body[head[1]:ends[i]], form.closing)
		space := form.space
		if read = head[1] + len(value) + len(form.closing); !ended {
			if ends[i] == len(body) && !closed {
				return nil
			}
			read, space = ends[i], "\n"
		}
		arguments[nameOf(head)] = tools.decodeValue(name, nameOf(head), strings.TrimSuffix(value, space))
	}
	if len(arguments) == 0 || !closed && strings.Contains(body[read:], "<") { // a mark that was cut off
		return nil
	}
	return []writtenCall{{name: name, arguments: encodeArguments(arguments)}}
}

var (
	keyValueHead = regexp.MustCompile(`^([\pL\pM\pN_./-]+)\s*(<arg_key>|$)`)
	keyValue     = parameterForm{regexp.MustCompile(`<arg_key>([^<]*)</arg_key>\s*<arg_value>`), "", "</arg_value>"}
)

// parseKeyValues reads the name of a tool and <arg_key> and <arg_value> elements, as GLM writes them.
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
	// markupWrapper is what encloses <invoke> elements.
	markupWrapper   = regexp.MustCompile(`</?(?:minimax:tool_call|function_calls|tool_calls)>\n?`)
	invokeHead      = regexp.MustCompile(`^\s*["']?([\pL\pM\pN_./-]+)["']?\s*>`)
	invokeParameter = parameterForm{regexp.MustCompile(`<parameter name=["']?([^"'>]+)["']?[^>]*>`), "", "</parameter>"}

	kimiCall = regexp.MustCompile(`(?s)<\|tool_call_begin\|>\s*(?:functions\.)?([\pL\pM\pN_.-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(.*?)\s*(?:<\|tool_call_end\|>|<\|tool_calls_section_end\|>|$)`)

	deepSeekCall = regexp.MustCompile("(?s)<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?\\s*([\\pL\\pM\\pN_./-]+)\\s*(?:<｜tool▁sep｜>)?\\s*(?:```(?:json)?)?\\s*(\\{.*?\\})\\s*(?:```)?\\s*(?:<｜tool▁call▁end｜>|$)")

	harmonyCall = regexp.MustCompile(`(?s) to=functions\.([\pL\pM\pN_.-]+)[^{]*?<\|message\|>\s*(\{.*?\})\s*(?:<\|call\|>|<\|end\|>|<\|start\|>|$)`)
)

// parseMarkup reads calls in elements or between special tokens. It returns nil if there is none.
func (tools toolSet) parseMarkup(text string, cut bool) []segment {
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
		return splitBlocks(text, invokeMark, "</invoke>", cut, tools.parseInvoke)
	}
	var out []segment
	for _, m := range pattern.FindAllStringSubmatch(text, -1) {
		out = append(out, segment{call: &writtenCall{m[1], m[2]}})
	}
	return out
}

// parseInvoke reads the inside of <invoke name=…>: the name and <parameter name=…> elements.
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
