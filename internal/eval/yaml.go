package eval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

const (
	maxDepth    = 64 // nesting of values in a suite
	maxCaseName = 64 // bytes of a case's name in an error
)

// document is a YAML document converted to JSON. lines has the line of each value by JSON pointer.
type document struct {
	value json.RawMessage
	lines map[string]int
}

// lineInError matches an error of the YAML library that has a line.
var lineInError = regexp.MustCompile(`^yaml: line (\d+): (.*)`)

// readYAML parses a file with exactly one YAML document. It converts the value to JSON, so that the schema of suites
// can check it, and keeps the lines for errors that an editor can jump to. It refuses what JSON does not have: aliases,
// other tags, and keys that are not texts. It also refuses duplicate keys. Every error is an *Error.
func readYAML(data []byte) (*document, error) {
	switch {
	case len(data) > maxSuite:
		return nil, &Error{Detail: fmt.Sprintf("is larger than %d bytes", maxSuite)}
	case !utf8.Valid(data):
		return nil, &Error{Detail: "is not UTF-8"}
	}
	root, err := decodeSingle(data)
	if err != nil {
		return nil, err
	}
	if root.Kind != yaml.DocumentNode || len(root.Content) != 1 {
		return nil, &Error{Detail: "has no cases"}
	}
	doc := &document{lines: make(map[string]int)}
	value, err := doc.convert(root.Content[0], "", 0)
	if err != nil {
		return nil, err
	}
	if doc.value, err = json.Marshal(value); err != nil {
		return nil, &Error{Detail: "cannot be written as JSON: " + err.Error()}
	}
	return doc, nil
}

// decodeSingle parses data, which must have exactly one YAML document. Every error is an *Error.
func decodeSingle(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var root, second yaml.Node
	if err := dec.Decode(&root); err != nil {
		return nil, syntaxError(err)
	}
	switch err := dec.Decode(&second); err {
	case io.EOF:
		return &root, nil
	case nil:
		return nil, &Error{Line: second.Line, Detail: "a second document, but a suite has one"}
	default:
		return nil, syntaxError(err)
	}
}

// syntaxError converts an error of the YAML library to an *Error, with the line if the error has one.
func syntaxError(err error) *Error {
	if m := lineInError.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " ")); m != nil {
		line, _ := strconv.Atoi(m[1])
		return &Error{Line: line, Detail: "is not YAML: " + m[2]}
	}
	return &Error{Detail: "is not a YAML document: " + strings.TrimPrefix(err.Error(), "yaml: ")}
}

// convert returns the value of node, and records its line and the lines below it. pointer is the node's JSON pointer
// and depth its nesting.
func (d *document) convert(node *yaml.Node, pointer string, depth int) (any, error) {
	d.lines[pointer] = node.Line
	switch {
	case depth > maxDepth:
		return nil, d.errorAt(pointer, "is nested too deeply")
	case node.Kind == yaml.MappingNode:
		return d.convertMapping(node, pointer, depth)
	case node.Kind == yaml.SequenceNode:
		return d.convertSequence(node, pointer, depth)
	case node.Kind == yaml.ScalarNode:
		return d.convertScalar(node, pointer)
	}
	return nil, d.errorAt(pointer, "is an alias, which is not supported")
}

// convertSequence converts a YAML sequence to a list, as convert does for any node.
func (d *document) convertSequence(node *yaml.Node, pointer string, depth int) (any, error) {
	list := make([]any, len(node.Content))
	for i, item := range node.Content {
		var err error
		if list[i], err = d.convert(item, pointer+"/"+strconv.Itoa(i), depth+1); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// convertMapping converts a YAML mapping to an object, as convert does for any node.
func (d *document) convertMapping(node *yaml.Node, pointer string, depth int) (any, error) {
	object := make(map[string]any, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		member := string(jsontext.Pointer(pointer).AppendToken(key.Value))
		if _, twice := object[key.Value]; twice {
			d.lines[member] = key.Line
			return nil, d.errorAt(member, "is given twice")
		}
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" {
			d.lines[member] = key.Line
			return nil, d.errorAt(member, "the name of a member must be a text")
		}
		value, err := d.convert(node.Content[i+1], member, depth+1)
		if err != nil {
			return nil, err
		}
		d.lines[member] = key.Line // the key's line, because a block scalar or a mapping begins on a later one
		object[key.Value] = value
	}
	return object, nil
}

// convertScalar returns a text, number, boolean or null. A date stays a text.
func (d *document) convertScalar(node *yaml.Node, pointer string) (any, error) {
	switch node.Tag {
	case "!!str", "!!timestamp":
		return node.Value, nil
	case "!!null":
		return nil, nil
	case "!!bool":
		var b bool
		if err := node.Decode(&b); err != nil {
			return nil, d.errorAt(pointer, "is not a boolean")
		}
		return b, nil
	case "!!int", "!!float":
		return d.convertNumber(node, pointer)
	}
	return nil, d.errorAt(pointer, fmt.Sprintf("has the tag %.40q, which is not supported", node.Tag))
}

// convertNumber returns a number with its digits if they are valid JSON, because a float64 would round large integers.
// In other notations of YAML, such as 0x1F, an integer becomes an int64 if it fits, and every other number a float64.
func (d *document) convertNumber(node *yaml.Node, pointer string) (any, error) {
	if json.Valid([]byte(node.Value)) {
		return json.Number(node.Value), nil
	}
	var i int64
	if err := node.Decode(&i); err == nil && node.Tag == "!!int" {
		return i, nil
	}
	var f float64
	if err := node.Decode(&f); err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, d.errorAt(pointer, "is not a number of JSON")
	}
	return f, nil
}

// casePointer matches the JSON pointer of a case or of a value inside a case.
var casePointer = regexp.MustCompile(`^/cases/(\d+)(/.*)?$`)

// errorAt returns an error for the value at pointer. It identifies the case by name or number, and the value by its
// path inside the case. If the value is missing, the error has the line of the nearest value above it.
func (d *document) errorAt(pointer, detail string) *Error {
	located := &Error{Detail: detail, Line: d.lineOf(pointer)}
	below := pointer
	if m := casePointer.FindStringSubmatch(pointer); m != nil {
		i, _ := strconv.Atoi(m[1])
		located.Case, below = strconv.Itoa(i+1), m[2]
		if name := d.caseName(i); name != "" {
			located.Case = printable(name, maxCaseName)
		}
	}
	if member := strings.ReplaceAll(strings.TrimPrefix(below, "/"), "/", "."); member != "" {
		located.Detail = printable(member, 100) + ": " + detail
	}
	return located
}

// lineOf returns the line of the value at pointer, or of the nearest value above it that has a line.
func (d *document) lineOf(pointer string) int {
	for d.lines[pointer] == 0 && pointer != "" {
		pointer = pointer[:strings.LastIndexByte(pointer, '/')]
	}
	return d.lines[pointer]
}

// caseName returns the name of the case at index i. It returns "" if the case has no name, or before d.value is set.
func (d *document) caseName(i int) string {
	var file struct{ Cases []struct{ Name any } }
	if json.Unmarshal(d.value, &file) != nil || i >= len(file.Cases) {
		return ""
	}
	name, _ := file.Cases[i].Name.(string)
	return name
}

// printable returns at most limit bytes of text on one line, followed by an ellipsis if it cut some off. It replaces
// characters that cannot be printed, because text from outside could otherwise control a terminal.
func printable(text string, limit int) string {
	isCut := len(text) > limit
	text = strings.ToValidUTF8(text[:min(limit, len(text))], "")
	text = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		if !strconv.IsPrint(r) {
			return '�'
		}
		return r
	}, text)
	if isCut {
		text += "…"
	}
	return text
}
