package texttool

import (
	"encoding/json"
	"strconv"
	"strings"
)

// parsePythonCalls reads calls in Python's notation: f(x=1), f.call(x=1), or a list of calls in brackets. It returns
// nil if an argument has no name or is not a literal. Positional arguments would need the order of the tool's
// parameters, which JSON Schema does not define. A variable or an expression has no value that could be passed on.
func parsePythonCalls(text string) (calls []writtenCall) {
	p := &pythonParser{text: strings.TrimSpace(text)}
	isList := p.skipToken("[")
	for {
		call, ok := p.readCall()
		if !ok {
			return nil
		}
		calls = append(calls, call)
		if !p.skipToken(",") && !p.skipToken(";") {
			break
		}
	}
	isUnclosed := isList && !p.skipToken("]")
	if isUnclosed || p.remainingText() != "" {
		return nil
	}
	return calls
}

const (
	toolCodeMark = "```tool_code"
	// toolOutputMark announces what the code prints. A model that writes it after its code invents the output.
	toolOutputMark = "```tool_output"
)

// parseToolCode reads the calls in a fence of tool code, as written by Gemma, with or without print() around each. text
// is the content of the fence. parseToolCode returns nil if the fence contains anything else.
func parseToolCode(text string) (calls []writtenCall) {
	p := &pythonParser{text: text}
	for p.remainingText() != "" {
		isPrinted := p.skipToken("print(")
		call, ok := p.readCall()
		if !ok {
			return nil
		}
		if isPrinted && !p.skipToken(")") {
			return nil
		}
		call.name = strings.TrimPrefix(call.name, "default_api.") // the module of all tools in Gemini's prompt
		calls = append(calls, call)
	}
	return calls
}

// pythonLiteral converts a list or dictionary in Python's notation to JSON. ok is false for anything else.
func pythonLiteral(text string) (value string, ok bool) {
	p := &pythonParser{text: strings.TrimSpace(text)}
	var b strings.Builder
	if !p.readValue(&b) || p.remainingText() != "" || !json.Valid([]byte(b.String())) {
		return "", false
	}
	return b.String(), true
}

// pythonParser reads Python literals and calls from a text. After a method has failed, its position is undefined.
type pythonParser struct {
	text  string
	pos   int // number of bytes read
	depth int // nesting depth of the value that is being read
}

// maxPythonDepth is the deepest nesting of a literal. It is limited because the parser is recursive, and a model may
// write any number of brackets.
const maxPythonDepth = 32

// remainingText skips white space and returns the unread text.
func (p *pythonParser) remainingText() string {
	p.pos = len(p.text) - len(strings.TrimLeft(p.text[p.pos:], " \t\r\n"))
	return p.text[p.pos:]
}

// skipToken skips white space and token, and reports whether token was there. If it was not, only the white space is
// skipped.
func (p *pythonParser) skipToken(token string) bool {
	if !strings.HasPrefix(p.remainingText(), token) {
		return false
	}
	p.pos += len(token)
	return true
}

// readName reads a name, which may contain dots and hyphens. It returns "" if the text does not continue with a name.
func (p *pythonParser) readName() string {
	rest := p.remainingText()
	n := 0
	for n < len(rest) && (isWordByte(rest[n]) || rest[n] == '.') {
		n++
	}
	p.pos += n
	return rest[:n]
}

// readCall reads a name and the arguments in parentheses after it. ok is false if the text does not continue with a
// call.
func (p *pythonParser) readCall() (call writtenCall, ok bool) {
	call.name = strings.TrimSuffix(p.readName(), ".call")
	if call.name == "" || !p.skipToken("(") {
		return call, false
	}
	call.arguments, ok = p.readArguments()
	return call, ok
}

// readArguments reads name=value pairs up to the closing parenthesis, and returns them as a JSON object. ok is false if
// it finds anything else.
func (p *pythonParser) readArguments() (object string, ok bool) {
	var b strings.Builder
	b.WriteByte('{')
	for !p.skipToken(")") {
		if b.Len() > len("{") { // not the first argument
			if !p.skipToken(",") {
				return "", false
			}
			b.WriteByte(',')
		}
		name := p.readName()
		if name == "" || !p.skipToken("=") {
			return "", false
		}
		b.WriteString(strconv.Quote(name)) // only letters, digits, dots and hyphens
		b.WriteByte(':')
		if !p.readValue(&b) {
			return "", false
		}
	}
	b.WriteByte('}')
	return b.String(), true
}

// readValue reads a literal and appends it to out as JSON. It returns false if the text does not continue with a
// literal.
func (p *pythonParser) readValue(out *strings.Builder) bool {
	p.depth++
	if p.depth > maxPythonDepth {
		return false
	}
	defer func() { p.depth-- }()
	rest := p.remainingText()
	switch {
	case rest == "":
		return false
	case rest[0] == '\'' || rest[0] == '"':
		return p.readString(out)
	case p.skipToken("["):
		return p.readElements(out, "[", "]", p.readValue)
	case p.skipToken("{"):
		return p.readElements(out, "{", "}", p.readMember)
	}
	for literal, asJSON := range pythonConstants {
		if strings.HasPrefix(rest, literal) {
			p.pos += len(literal)
			out.WriteString(asJSON)
			return true
		}
	}
	number := rest[:len(rest)-len(strings.TrimLeft(rest, "+-0123456789.eE"))]
	if !json.Valid([]byte(number)) {
		return false
	}
	p.pos += len(number)
	out.WriteString(number)
	return true
}

// pythonConstants maps Python's constants to JSON. It includes JSON's constants, because models write them too.
var pythonConstants = map[string]string{
	"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null",
}

// readElements reads a list or dictionary whose opening bracket was already read, and appends it to out as JSON. It
// calls read for each element. Elements are separated by commas and end at the closing bracket. readElements returns
// false if the text is not a list or dictionary.
func (p *pythonParser) readElements(out *strings.Builder, opening, closing string, read func(*strings.Builder) bool) bool {
	out.WriteString(opening)
	separator := ""
	for !p.skipToken(closing) {
		out.WriteString(separator)
		separator = ","
		if !read(out) {
			return false
		}
		hasComma := p.skipToken(",") // Python allows a comma after the last element
		if !hasComma && !strings.HasPrefix(p.remainingText(), closing) {
			return false
		}
	}
	out.WriteString(closing)
	return true
}

// readMember reads a key and a value of a dictionary, and appends them to out as a member of a JSON object. It returns
// false if the key is not a string, or if the value is missing.
func (p *pythonParser) readMember(out *strings.Builder) bool {
	rest := p.remainingText()
	isString := strings.HasPrefix(rest, "'") || strings.HasPrefix(rest, `"`)
	if !isString || !p.readString(out) || !p.skipToken(":") {
		return false
	}
	out.WriteByte(':')
	return p.readValue(out)
}

// readString reads a string in single or double quotes, whose opening quote is at p.pos, and appends it to out as a
// JSON string. It returns false if the closing quote is missing.
func (p *pythonParser) readString(out *strings.Builder) bool {
	quote := p.text[p.pos]
	var s strings.Builder
	for i := p.pos + 1; i < len(p.text); i++ {
		c := p.text[i]
		switch {
		case c == quote:
			encoded, _ := json.Marshal(s.String()) // a string can always be encoded
			out.Write(encoded)
			p.pos = i + 1
			return true
		case c == '\\' && i+1 < len(p.text):
			i += appendEscape(&s, p.text[i:]) - 1
		default:
			s.WriteByte(c)
		}
	}
	return false
}

// appendEscape appends the character for the escape at the beginning of text to s, and returns the length of the
// escape. text must have a backslash and at least one more byte. As in Python, the backslash of an unknown escape is
// kept, such as \d in a regular expression, and a backslash before a line break continues the line. Python does not
// have the escape \/, but models know it from JSON.
func appendEscape(s *strings.Builder, text string) int {
	switch text[1] {
	case '\'', '"', '/':
		s.WriteByte(text[1])
		return 2
	case '\n':
		return 2
	}
	r, _, rest, err := strconv.UnquoteChar(text, 0)
	if err != nil {
		s.WriteByte('\\')
		return 1 // only the backslash: the caller appends the byte after it like any other
	}
	s.WriteRune(r)
	return len(text) - len(rest)
}
