package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Result is a server's answer to a call. One goroutine uses it at a time.
type Result struct {
	Content    []json.RawMessage // each an MCP content block, as received: a valid JSON object
	Structured json.RawMessage   // structuredContent; nil where there is none
	IsError    bool              // the tool itself reports failure; Text says what
	// Violations is how the structured content differs from the tool's own output
	// schema; one of more than 1 MiB is not checked. The result is delivered all the same,
	// and Text says so.
	Violations []ContentField

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
	var w struct{ content, structured, isError, resultType json.RawMessage }
	if err := members(raw, func(name string, value json.RawMessage) {
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
	}); err != nil {
		return nil, badReply("its result is no JSON object", err)
	}
	resultType, ok := textOf(w.resultType)
	if !ok {
		return nil, badReply("its resultType is no text", nil)
	}
	if f := checkType(resultType); f != nil {
		return nil, f
	}
	r := &Result{}
	if w.isError != nil && json.Unmarshal(w.isError, &r.IsError) != nil {
		return nil, badReply("its isError is neither true nor false", nil)
	}
	// null is how some servers write "none"; other falsy values are values (S2.7).
	if string(w.structured) != "null" {
		r.Structured = w.structured
	}
	if w.content == nil || string(w.content) == "null" {
		return r, nil
	}
	var f *failure
	r.Content, f = decodeContent(w.content)
	return r, f
}

// decodeContent is the blocks of a list of content.
func decodeContent(raw json.RawMessage) ([]json.RawMessage, *failure) {
	blocks, err := elements(raw)
	if err != nil {
		return nil, badReply("its content is no list", err)
	}
	for _, b := range blocks {
		if b[0] != '{' {
			return nil, badReply("a content block is not an object", nil)
		}
	}
	return blocks, nil
}

// checkType refuses results that are none yet. The SDK hands some of them out as empty
// results, without an error. Such as "task": an answer that is to be fetched elsewhere,
// later.
func checkType(resultType string) *failure {
	switch resultType {
	case "", "complete":
		return nil
	case "input_required": // what the SDK leaves at the end of its patience
		return &failure{kind: Protocol, public: "it asks again and again, whatever the answer"}
	}
	return badReply(fmt.Sprintf("a result of type %.40q", resultType), nil)
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
