// Package content decodes the result of a tool call and presents it to its readers: as text and
// media for a model, as one JSON value for a program, and within a number of bytes for an event.
//
//	result, err := content.Decode(raw) // of tools/call
//	if err != nil {
//		return err // a *DecodeError or ErrInputRequired
//	}
//	for _, part := range result.Parts() { // for the model
//		prompt.Add(part.Text, part.Media)
//	}
//	short := result.Truncate(content.TruncateOptions{MaxBytes: 1 << 18, MaxBinary: 1 << 16, URL: url})
//
// Results keep the bytes that the server sent and copy nothing that is large. Nothing blocks. A
// Result is used by one goroutine at a time; everything else may be used concurrently.
package content

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/wire"

	"github.com/go-json-experiment/json/jsontext"
)

// Result is a server's answer to a tool call. One goroutine uses it at a time.
type Result struct {
	Content    []json.RawMessage // each an MCP content block, as received: a valid JSON object
	Structured json.RawMessage   // structuredContent; nil where there is none
	IsError    bool              // the tool itself reports failure; Text says what
	// Violations says how the structured content differs from the tool's own output schema.
	// Structured content of more than 1 MiB is not checked. The result is delivered anyway,
	// and Parts ends with the violations.
	Violations []schema.Problem
	// InputRequired is set, and nothing else, where the result is not complete yet.
	InputRequired *InputRequired
	// SignIn is set, and nothing else, where the call was not sent because its user must sign in first.
	SignIn *SignIn

	blocks   []contentBlock // Content in parts
	isParsed bool           // the members of blocks are decoded
}

// Decode reads a tools/call result as it was received: the SDK's types turn large integers into
// floats and refuse content of unknown types. The result keeps raw, which must not change. An
// error is a *DecodeError, a *DepthError or ErrInputRequired.
func Decode(raw json.RawMessage) (*Result, error) {
	// The decoder accepts invalid UTF-8 within strings. Events and requests must not have it.
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	r := &Result{}
	var isError, resultType json.RawMessage
	dec := wire.NewDecoder(raw)
	if err := wire.AtEnd(dec, wire.Object(dec, func(name string) (err error) {
		switch name {
		case "content":
			return r.readBlocks(dec, raw)
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
		return nil, &DecodeError{"its result does not decode", err}
	}
	kind, ok := wire.Text(resultType)
	if !ok {
		return nil, &DecodeError{Reason: "its resultType is not a string"}
	}
	if err := checkComplete(kind); err != nil {
		return nil, err
	}
	if isError != nil && json.Unmarshal(isError, &r.IsError) != nil {
		return nil, &DecodeError{Reason: "its isError is not a boolean"}
	}
	// Some servers send null for "none"; false, 0 and "" are values.
	if string(r.Structured) == "null" {
		r.Structured = nil
	}
	return r, r.checkDepth()
}

// readBlocks reads the list of content blocks out of raw. null is an empty list.
func (r *Result) readBlocks(dec *jsontext.Decoder, raw []byte) error {
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

// DecodeResource reads a resources/read result as the result of a call that embeds each of the
// contents. Errors are those of Decode.
func DecodeResource(raw json.RawMessage) (*Result, error) {
	var w struct {
		Contents   []json.RawMessage `json:"contents"`
		ResultType string            `json:"resultType"`
	}
	raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, &DecodeError{"its resource does not decode", err}
	}
	if err := checkComplete(w.ResultType); err != nil {
		return nil, err
	}
	r := &Result{}
	for _, c := range w.Contents {
		if len(c) == 0 || c[0] != '{' {
			return nil, &DecodeError{Reason: "the contents of a resource are not objects"}
		}
		block, err := json.Marshal(map[string]any{"type": "resource", "resource": c})
		if err != nil {
			return nil, &DecodeError{"its resource does not encode", err}
		}
		r.Content = append(r.Content, block)
	}
	return r, r.checkDepth()
}

// ErrInputRequired says that a result asks for input once more, after all rounds that a request
// may have.
var ErrInputRequired = errors.New("it asks again and again, whatever the answer")

// checkComplete returns an error unless a result of this resultType is complete. Others are
// "input_required" and "task", whose result would be fetched later. The SDK returns some of them
// as empty results, without an error.
func checkComplete(resultType string) error {
	switch resultType {
	case "", "complete":
		return nil
	case "input_required": // the last round's
		return ErrInputRequired
	}
	return &DecodeError{Reason: fmt.Sprintf("a result of type %.40q", resultType)}
}

// DecodeError says why a result cannot be read.
type DecodeError struct {
	Reason string // fit for the caller: it quotes nothing of the result
	Err    error  // the cause, for the log, or nil
}

func (e *DecodeError) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Reason + ": " + e.Err.Error()
}

func (e *DecodeError) Unwrap() error { return e.Err }

// Payload returns the result for a program: the structured content if there is any, else the
// text as a JSON string if all content is text, else the array of content blocks.
func (r *Result) Payload() json.RawMessage {
	switch text, ok := r.textOnly(); {
	case r.Structured != nil:
		return r.Structured
	case ok && len(r.Content) == 1:
		return r.blocks[0].textJSON
	case ok:
		return wire.Quote(text)
	}
	return joinArray(r.Content)
}

// Size returns the number of bytes of the content and the structured content.
func (r *Result) Size() int { return totalSize(r.Content) + len(r.Structured) }

// IsText reports whether the result is text and nothing else.
func (r *Result) IsText() bool {
	_, ok := r.textOnly()
	return ok && r.Structured == nil
}

// textOnly returns the text of a result whose content blocks are all text; ok is false for others.
func (r *Result) textOnly() (text string, ok bool) {
	blocks := r.parsedBlocks()
	texts := make([]string, len(blocks))
	for i, b := range blocks {
		if b.Type != "text" {
			return "", false
		}
		texts[i] = b.Text
	}
	return strings.Join(texts, "\n"), true
}

// joinArray returns a JSON array of the values, which it does not change.
func joinArray(values []json.RawMessage) json.RawMessage {
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
