package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	"github.com/go-json-experiment/json/jsontext"
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

	blocks []block // Content in parts
	parsed bool    // and these have been looked into
}

// decodeResult reads a tools/call result from the bytes of the wire rather than from
// the SDK's types: those turn large integers into floats, and refuse content types
// that they don't know. The result shares these bytes, which are nobody else's.
func decodeResult(raw json.RawMessage) (*Result, *transport.Failure) {
	// Decoders let broken UTF-8 pass within strings. Events and requests must not.
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	r := &Result{}
	var isError, resultType json.RawMessage
	dec := wire.NewDecoder(raw)
	if err := wire.AtEnd(dec, wire.Object(dec, func(name string) (err error) {
		switch name {
		case "content":
			return r.readContent(dec, raw)
		case "structuredContent":
			r.Structured, err = wire.ReadRaw(dec, raw)
		case "isError":
			isError, err = wire.ReadRaw(dec, raw)
		case "resultType":
			resultType, err = wire.ReadRaw(dec, raw)
		default:
			err = dec.SkipValue()
		}
		return err
	})); err != nil {
		return nil, transport.BadReply("its result does not decode", err)
	}
	kind, ok := wire.Text(resultType)
	if !ok {
		return nil, transport.BadReply("its resultType is no text", nil)
	}
	if f := checkType(kind); f != nil {
		return nil, f
	}
	if isError != nil && json.Unmarshal(isError, &r.IsError) != nil {
		return nil, transport.BadReply("its isError is neither true nor false", nil)
	}
	// null is how some servers write "none"; other falsy values are values (S2.7).
	if string(r.Structured) == "null" {
		r.Structured = nil
	}
	return r, nil
}

// readContent reads the list of content blocks out of raw; null is none.
func (r *Result) readContent(dec *jsontext.Decoder, raw []byte) error {
	r.Content, r.blocks = nil, nil
	if dec.PeekKind() == 'n' {
		return dec.SkipValue()
	}
	return wire.Array(dec, func() error {
		b, err := readBlock(dec, raw)
		r.Content, r.blocks = append(r.Content, b.raw), append(r.blocks, b)
		return err
	})
}

// checkType refuses results that are none yet. The SDK hands some of them out as empty
// results, without an error. Such as "task": an answer that is to be fetched elsewhere,
// later.
func checkType(resultType string) *transport.Failure {
	switch resultType {
	case "", "complete":
		return nil
	case "input_required": // what the SDK leaves at the end of its patience
		return &transport.Failure{Kind: Protocol, Public: "it asks again and again, whatever the answer"}
	}
	return transport.BadReply(fmt.Sprintf("a result of type %.40q", resultType), nil)
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
		return wire.Quote(text)
	}
	return join(r.Content)
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
	blocks := r.parse()
	texts := make([]string, len(blocks))
	for i, b := range blocks {
		if b.Type != "text" {
			return "", false
		}
		texts[i] = b.Text
	}
	return strings.Join(texts, "\n"), true
}

// join returns a JSON array of values, as they are.
func join(values []json.RawMessage) json.RawMessage {
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
