package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// Result is a server's answer to a call. One goroutine uses it at a time.
type Result struct {
	Content    []json.RawMessage // each an MCP content block, as received: a valid JSON object
	Structured json.RawMessage   // structuredContent; nil where there is none
	IsError    bool              // the tool itself reports failure; Text says what

	blocks []block // Content once it was looked into
}

// decodeResult reads a tools/call result from the bytes of the wire rather than from
// the SDK's types: those turn large integers into floats, and refuse content types
// that they don't know. The result shares these bytes, which are nobody else's.
func decodeResult(raw json.RawMessage) (*Result, *failure) {
	// Decoders let broken UTF-8 pass within strings. Events and requests must not.
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	raw = bytes.TrimSpace(raw)
	if !json.Valid(raw) || raw[0] != '{' {
		return nil, badReply("its result is no JSON object", nil)
	}
	var w struct {
		content, structured, isError, resultType json.RawMessage
	}
	for name, value := range members(raw) {
		switch name {
		case "content":
			w.content = value
		case "structuredContent":
			w.structured = value
		case "isError":
			w.isError = value
		case "resultType":
			w.resultType = value
		}
	}
	r := &Result{}
	var resultType string
	for _, m := range []struct {
		value json.RawMessage
		into  any
	}{{w.isError, &r.IsError}, {w.resultType, &resultType}} {
		if m.value != nil && json.Unmarshal(m.value, m.into) != nil {
			return nil, badReply("its result does not decode", nil)
		}
	}
	if f := checkType(resultType); f != nil {
		return nil, f
	}
	// null is how some servers write "none"; other falsy values are values (S2.7).
	if len(w.content) > 0 && string(w.content) != "null" {
		if w.content[0] != '[' {
			return nil, badReply("its content is no list", nil)
		}
		r.Content = elements(w.content)
	}
	for _, c := range r.Content {
		if c[0] != '{' {
			return nil, badReply("a content block is not an object", nil)
		}
	}
	if string(w.structured) != "null" {
		r.Structured = w.structured
	}
	return r, nil
}

// checkType refuses results that are none yet. The SDK hands some of them out as empty
// results, without an error. Such as "task": an answer that is to be fetched elsewhere,
// later. (What input_required leaves here is the end of the SDK's patience with it.)
func checkType(resultType string) *failure {
	if resultType == "" || resultType == "complete" {
		return nil
	}
	return badReply(fmt.Sprintf("a result of type %.40q", resultType), nil)
}

// Piece is one content block for a model.
type Piece struct {
	// Text is the block for a reader of text: its text, or a placeholder with type and
	// size. The text of an embedded resource follows its placeholder.
	Text string
	// Media is the picture or sound that the placeholder stands for; nil for all else.
	Media *Media
}

// Pieces are the result for a model, in order: the content blocks, and the structured
// content where no text says the same. It is never empty: "(no content)" says that
// there is nothing (S0.4, S1.6).
func (r *Result) Pieces() []Piece {
	pieces := make([]Piece, 0, len(r.Content)+1)
	said := r.Structured == nil
	for _, b := range r.parsed() {
		pieces = append(pieces, Piece{Text: b.render(), Media: b.media()})
		said = said || b.Type == "text" && sameValue(b.Text, r.Structured)
	}
	switch {
	case said:
	case len(pieces) == 0:
		pieces = append(pieces, Piece{Text: string(r.Structured)})
	default:
		pieces = append(pieces, Piece{Text: "Structured content: " + string(r.Structured)})
	}
	// Some endpoints refuse a result without text.
	if !slices.ContainsFunc(pieces, func(p Piece) bool { return p.Text != "" }) {
		return []Piece{{Text: "(no content)"}}
	}
	return pieces
}

// Text is the pieces for a reader of text, joined by newlines.
func (r *Result) Text() string {
	pieces := r.Pieces()
	parts := make([]string, len(pieces))
	for i, p := range pieces {
		parts[i] = p.Text
	}
	return strings.Join(parts, "\n")
}

// sameValue reports whether text is the structured content again, as servers send it
// for clients that know no other. Some SDKs wrap what is no object as {"result": …}.
func sameValue(text string, structured json.RawMessage) bool {
	if text == string(structured) {
		return true
	}
	if len(text) < len(structured)/8 {
		return false // escapes make the same text six times as long at most
	}
	value, err := decodeValue(structured)
	if err != nil {
		return false
	}
	wrapped, isWrapped := any(nil), false
	if object, ok := value.(map[string]any); ok && len(object) == 1 {
		wrapped, isWrapped = object["result"]
		if isWrapped && wrapped == any(text) {
			return true
		}
	}
	said, err := decodeValue([]byte(text))
	return err == nil && (reflect.DeepEqual(said, value) || isWrapped && reflect.DeepEqual(said, wrapped))
}

// decodeValue keeps numbers as they are written.
func decodeValue(raw []byte) (v any, err error) {
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

// Payload is the result for a program: the structured content if there is any, else
// the text as a JSON string if every part is text, else the content (S2.7).
func (r *Result) Payload() json.RawMessage {
	switch text, ok := r.onlyText(); {
	case r.Structured != nil:
		return r.Structured
	case ok && len(r.Content) == 1:
		return r.blocks[0].textJSON
	case ok:
		return quote(text)
	}
	return array(r.Content)
}

// Size is the bytes of the content and of the structured content.
func (r *Result) Size() int { return size(r.Content) + len(r.Structured) }

// IsText reports whether the result is text and nothing else.
func (r *Result) IsText() bool {
	_, ok := r.onlyText()
	return ok && r.Structured == nil
}

// onlyText is the text of a result that is nothing else.
func (r *Result) onlyText() (string, bool) {
	blocks := r.parsed()
	texts := make([]string, len(blocks))
	for i, b := range blocks {
		if b.Type != "text" {
			return "", false
		}
		texts[i] = b.Text
	}
	return strings.Join(texts, "\n"), true
}

// quote is text as a JSON string. HTML is no concern of its readers.
func quote(text string) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // strings always encode
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// array is a JSON array of values, as they are.
func array(values []json.RawMessage) json.RawMessage {
	size := 2
	for _, v := range values {
		size += len(v) + 1
	}
	b := append(make([]byte, 0, size), '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}
