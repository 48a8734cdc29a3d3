package content

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/wire"
)

// Part is one content block for a model.
type Part struct {
	// Text is the text of the block, or a placeholder with type and size. The text of an embedded
	// resource follows its placeholder.
	Text string
	// Media is the image or audio that the placeholder stands for, or nil.
	Media *Media
}

// Parts returns the result for a model, in order: the content blocks, the structured content
// unless a text block repeats it, and the violations. A result without text has the part "(no content)", so the list is
// never empty.
func (r *Result) Parts() []Part {
	parts := make([]Part, 0, len(r.Content)+1)
	omitStructured := r.Structured == nil
	for _, b := range r.parsedBlocks() {
		parts = append(parts, Part{Text: b.placeholderText(), Media: b.media()})
		if !omitStructured && b.Type == "text" {
			omitStructured = repeatsStructured(b.Text, r.Structured)
		}
	}
	switch {
	case omitStructured:
	case len(parts) == 0:
		parts = append(parts, Part{Text: string(r.Structured)})
	default:
		parts = append(parts, Part{Text: "Structured content: " + string(r.Structured)})
	}
	// Some endpoints refuse a result without text.
	if !slices.ContainsFunc(parts, func(p Part) bool { return p.Text != "" }) {
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

// repeatsStructured reports whether text is the JSON text of the structured content. Servers
// send the same value as a text for clients that do not support structured content (MCP, server/tools,
// "Structured Content"). Some SDKs wrap a value that is not an object as {"result": …} in the structured content, but
// not in the text; a string is then the text itself.
func repeatsStructured(text string, structured json.RawMessage) bool {
	if text == string(structured) {
		return true
	}
	if len(text) < len(structured)/8 {
		return false // escapes make the structured content at most six times as long as the same text
	}
	value, err := decodeJSON(structured)
	if err != nil {
		return false
	}
	var wrapped any
	isWrapped := false
	if object, ok := value.(map[string]any); ok && len(object) == 1 {
		wrapped, isWrapped = object["result"]
	}
	if isWrapped && wrapped == any(text) {
		return true
	}
	decoded, err := decodeJSON([]byte(text))
	if err != nil {
		return false
	}
	return reflect.DeepEqual(decoded, value) || isWrapped && reflect.DeepEqual(decoded, wrapped)
}

// decodeJSON decodes raw, and returns an error if raw is not exactly one JSON value. Numbers are decoded as
// json.Number, so that large integers that differ do not compare as equal.
func decodeJSON(raw []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("more than one value")
	}
	return v, nil
}

// ListProblems returns the problems as a list, each on a line of its own that begins with a dash. The text begins with
// a line break, so that it can follow a heading.
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
