package content

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"

	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/wire"
)

// Part is one content block as a model gets it.
type Part struct {
	// Text is the block's text, or a placeholder with its type and size. The text of an embedded resource follows its
	// placeholder.
	Text string
	// Media is the image or audio that the placeholder stands for, or nil.
	Media *Media
}

// Parts returns the result as a model gets it: the content blocks, then the structured content unless a text block
// repeats it, and then the violations. If no part has text, the part "(no content)" replaces them, so the list is never
// empty.
func (r *Result) Parts() []Part {
	parts := make([]Part, 0, len(r.Content)+1)
	addStructured := r.Structured != nil
	for _, b := range r.parsedBlocks() {
		parts = append(parts, Part{Text: b.placeholderText(), Media: b.media()})
		if addStructured && b.Type == "text" {
			addStructured = !repeatsStructured(b.Text, r.Structured)
		}
	}
	if addStructured {
		heading := ""
		if len(parts) > 0 {
			heading = "Structured content: "
		}
		parts = append(parts, Part{Text: heading + string(r.Structured)})
	}
	hasText := slices.ContainsFunc(parts, func(p Part) bool { return p.Text != "" })
	if !hasText { // some endpoints reject a result without text
		parts = []Part{{Text: "(no content)"}}
	}
	if r.Violations != nil {
		parts = append(parts, Part{Text: "[This result does not fit the tool's own output schema:" + ListProblems(r.Violations) + "]"})
	}
	return parts
}

// Text returns the texts of the parts, joined by newlines.
func (r *Result) Text() string {
	parts := r.Parts()
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n")
}

// repeatsStructured reports whether text is the JSON text of the structured content. Servers send the same value as
// text for clients that do not support structured content (MCP, server/tools, "Structured Content"). Some SDKs wrap a
// value that is not an object as {"result": …}, but only in the structured content. The text is then the value alone,
// and for a string it is the string without quotes.
func repeatsStructured(text string, structured json.RawMessage) bool {
	if text == string(structured) {
		return true
	}
	if len(text) < len(structured)/8 {
		return false // too short: escapes lengthen a text at most six times, and the wrapping is short
	}
	value, err := decodeJSON(structured)
	if err != nil {
		return false
	}
	var wrapped any // the value in {"result": …}
	isWrapped := false
	if object, isObject := value.(map[string]any); isObject && len(object) == 1 {
		wrapped, isWrapped = object["result"]
	}
	if isWrapped && wrapped == any(text) {
		return true
	}
	valueOfText, err := decodeJSON([]byte(text))
	if err != nil {
		return false
	}
	return reflect.DeepEqual(valueOfText, value) || isWrapped && reflect.DeepEqual(valueOfText, wrapped)
}

// decodeJSON decodes raw, and returns an error unless raw is exactly one JSON value. It decodes numbers as json.Number,
// so that different large integers do not compare as equal.
func decodeJSON(raw []byte) (value any, _ error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("text after the value")
	}
	return value, nil
}

// ListProblems returns the problems as a list with one line each, which begins with a dash. The result begins with a
// line break, so that it can follow a heading.
func ListProblems(problems []schema.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		b.WriteString("\n- ")
		if p.Pointer != "" {
			b.WriteString(wire.Printable(p.Pointer, 300) + ": ")
		}
		b.WriteString(p.Detail)
	}
	return b.String()
}
