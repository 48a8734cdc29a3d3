// Package content decodes the result of a tool call and converts it for its readers: to text and media for a model, to
// one JSON value for a program, and to a truncated result for an event.
//
//	result, err := content.Decode(raw) // the result of tools/call
//	if err != nil {
//		return err // a *DecodeError, a *DepthError or ErrInputRequired
//	}
//	for _, part := range result.Parts() { // for the model
//		prompt.Add(part.Text, part.Media)
//	}
//	short := result.Truncate(content.TruncateOptions{MaxBytes: 1 << 18, MaxBinary: 1 << 16, URL: url})
//
// A Result keeps the server's bytes and does not copy large values. No function blocks. A Result may be used by one
// goroutine at a time. Everything else may be used concurrently.
package content

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"answerd/internal/compute"
	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/wire"

	"github.com/go-json-experiment/json/jsontext"
)

// Result is the result of a tool call. It may be used by one goroutine at a time.
type Result struct {
	Content    []json.RawMessage // MCP content blocks as received, each a valid JSON object
	Structured json.RawMessage   // structuredContent; nil if there is none
	IsError    bool              // the tool reports that it failed; the content says why
	// Violations lists where the structured content does not match the tool's output schema. Structured content of
	// more than 1 MiB is not checked. A result with violations is delivered all the same, and Parts ends with them.
	Violations []schema.Problem
	// InputRequired is set if the result is not complete yet. All other fields are empty then. Decode does not set it.
	InputRequired *InputRequired
	// SignIn is set if the call was not sent because its user must sign in first. All other fields are empty then.
	SignIn *SignIn

	blocks []contentBlock // the blocks of Content
}

// Decode decodes a tools/call result from its original bytes. It does not use the SDK's types, which turn large
// integers into floats and reject content of unknown types. raw must be valid JSON and must not change, because the
// result refers to it. The error is a *DecodeError, a *DepthError or ErrInputRequired. With a *DepthError, Decode also
// returns the result.
func Decode(raw json.RawMessage) (*Result, error) {
	defer compute.Begin(len(raw))()
	// Replace invalid UTF-8 and unpaired surrogates. The decoder accepts them in strings, but events and requests must
	// not contain them.
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	raw = wire.ReplaceHalfPairs(raw)

	result := &Result{}
	var isError, resultType json.RawMessage
	dec := wire.NewDecoder(raw)
	err := wire.ReadObject(dec, func(name string) (err error) {
		switch name {
		case "content":
			return result.readBlocks(dec, raw)
		case "structuredContent":
			result.Structured, err = wire.ReadRaw(dec, raw)
		case "isError":
			isError, err = wire.ReadRaw(dec, raw)
		case "resultType":
			resultType, err = wire.ReadRaw(dec, raw)
		default:
			err = dec.SkipValue()
		}
		return err
	})
	if err := wire.AtEnd(dec, err); err != nil {
		return nil, &DecodeError{"its result does not decode", err}
	}

	typeName, isString := wire.Text(resultType)
	if !isString {
		return nil, &DecodeError{Reason: "its resultType is not a string"}
	}
	if err := checkComplete(typeName); err != nil {
		return nil, err
	}
	if isError != nil && json.Unmarshal(isError, &result.IsError) != nil {
		return nil, &DecodeError{Reason: "its isError is not a boolean"}
	}
	// Some servers send null if there is no structured content. false, 0 and "" are values.
	if string(result.Structured) == "null" {
		result.Structured = nil
	}
	return result, result.checkDepth()
}

// readBlocks reads a list of content blocks from dec into r.Content and r.blocks. It replaces the blocks of an earlier
// list, so that of two members "content" the later one counts. null is an empty list. dec must be a decoder of raw.
func (r *Result) readBlocks(dec *jsontext.Decoder, raw []byte) error {
	r.Content, r.blocks = nil, nil
	if dec.PeekKind() == jsontext.KindNull {
		return dec.SkipValue()
	}
	return wire.ReadArray(dec, func() error {
		block, err := readBlock(dec, raw)
		if err != nil {
			return err
		}
		r.Content = append(r.Content, block.raw)
		r.blocks = append(r.blocks, block)
		return nil
	})
}

// DecodeResource decodes a resources/read result. The Result has a content block of type resource for each item of
// contents. The errors are those of Decode.
func DecodeResource(raw json.RawMessage) (*Result, error) {
	var decoded struct {
		Contents   []json.RawMessage `json:"contents"`
		ResultType string            `json:"resultType"`
	}
	raw = wire.ReplaceHalfPairs(bytes.ToValidUTF8(raw, []byte("\uFFFD")))
	if err := json.Unmarshal(raw, &decoded); err != nil {
		return nil, &DecodeError{"its resource does not decode", err}
	}
	if err := checkComplete(decoded.ResultType); err != nil {
		return nil, err
	}
	result := &Result{}
	for _, contents := range decoded.Contents {
		if len(contents) == 0 || contents[0] != '{' {
			return nil, &DecodeError{Reason: "the contents of a resource are not objects"}
		}
		block, err := json.Marshal(map[string]any{"type": "resource", "resource": contents})
		if err != nil {
			return nil, &DecodeError{"its resource does not encode", err}
		}
		result.Content = append(result.Content, block)
	}
	return result, result.checkDepth()
}

// ErrInputRequired means that a result has the type input_required. Package session answers such results, so Decode
// gets one only if the request must not be repeated any more, or if answering failed.
var ErrInputRequired = errors.New("it asks again and again, whatever the answer")

// checkComplete returns nil if a result of the given type is complete, and ErrInputRequired for input_required. It
// returns a *DecodeError for any other type, such as "task", whose result would have to be fetched later. The SDK would
// return some of these results as empty ones, without an error.
func checkComplete(resultType string) error {
	switch resultType {
	case "", "complete":
		return nil
	case "input_required":
		return ErrInputRequired
	}
	return &DecodeError{Reason: fmt.Sprintf("a result of type %.40q", resultType)}
}

// DecodeError is the error for a result that cannot be decoded.
type DecodeError struct {
	Reason string // a text that does not quote the result
	Err    error  // the cause, for the log; may be nil
}

// Error returns the reason and the cause.
func (e *DecodeError) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Reason + ": " + e.Err.Error()
}

// Unwrap returns the cause, which may be nil.
func (e *DecodeError) Unwrap() error { return e.Err }

// Payload returns the result for a program, as the first of these that applies:
//   - the structured content
//   - the text as a JSON string, if all content is text; it is "" if there is no content
//   - the array of content blocks
func (r *Result) Payload() json.RawMessage {
	if r.Structured != nil {
		return r.Structured
	}
	text, isText := r.textOnly()
	switch {
	case isText && len(r.Content) == 1:
		return r.blocks[0].textJSON // the same value as text, without encoding it again
	case isText:
		return wire.Quote(text)
	}
	return joinArray(r.Content)
}

// Size returns the number of bytes of the content and the structured content together.
func (r *Result) Size() int { return totalSize(r.Content) + len(r.Structured) }

// IsText reports whether the result has only text blocks and no structured content. It is true for an empty result.
func (r *Result) IsText() bool {
	_, isText := r.textOnly()
	return isText && r.Structured == nil
}

// textOnly returns the texts of the content blocks, joined by newlines. isText is false if any block is not text; text is
// then "". Without content, the result is "" and true.
func (r *Result) textOnly() (text string, isText bool) {
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

// joinArray returns a JSON array of the values. It copies their bytes unchanged.
func joinArray(values []json.RawMessage) json.RawMessage {
	size := len("[]") + len(values) + totalSize(values) // with a comma for each value
	joined := append(make([]byte, 0, size), '[')
	for i, value := range values {
		if i > 0 {
			joined = append(joined, ',')
		}
		joined = append(joined, value...)
	}
	return append(joined, ']')
}

// checkDepth returns a *DepthError if the structured content or a content block is nested deeper than MaxDepth, and
// otherwise nil.
func (r *Result) checkDepth() error {
	for _, value := range append([]json.RawMessage{r.Structured}, r.Content...) {
		if wire.IsDeeper(value, MaxDepth) {
			preview, _ := TruncateText(string(value), maxDepthPreview, "")
			return &DepthError{preview}
		}
	}
	return nil
}
