package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"answerd/internal/mcp/wire"
)

// duplicatePolicy says how parseJSON treats an object with two members of the same name.
type duplicatePolicy bool

const (
	lastDuplicateWins duplicatePolicy = false // for schemas
	refuseDuplicates  duplicatePolicy = true  // for values: programs differ about which member counts (RFC 8259 section 4)
)

// parseJSON parses one JSON text. It returns a Problem if the text is invalid or exceeds maxValues or maxDepth. The
// value refers to the bytes of raw, which must not change afterwards.
func parseJSON(raw []byte, duplicates duplicatePolicy) (*value, *Problem) {
	if !utf8.Valid(raw) {
		return nil, &Problem{Detail: "is not valid UTF-8"}
	}
	decoder := jsontext.NewDecoder(bytes.NewBuffer(raw),
		jsontext.AllowDuplicateNames(duplicates == lastDuplicateWins),
		jsontext.AllowInvalidUTF8(true)) // accept an unpaired surrogate, such as "\ud800"
	p := parser{source: raw, decoder: decoder}
	v, problem := p.readValue(0)
	if problem != nil {
		return nil, problem
	}
	if _, err := p.decoder.ReadToken(); err != io.EOF {
		return nil, decoderProblem(err)
	}
	return v, nil
}

// parser decodes one JSON text.
type parser struct {
	source  []byte            // the whole text
	decoder *jsontext.Decoder // of source
	count   int               // number of values read so far
}

// decoderProblem converts an error of the decoder to a Problem. The error is nil if a second value follows the first
// one.
func decoderProblem(err error) *Problem {
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && e.Err == jsontext.ErrDuplicateName {
		return &Problem{wire.Truncate(string(e.JSONPointer), maxPointer), "is written twice"}
	}
	return &Problem{Detail: "is not valid JSON"}
}

// readValue reads the next value and all values within it. base is the offset in p.source of the value that encloses the
// new one, whose own offset is relative to it.
func (p *parser) readValue(base int) (*value, *Problem) {
	p.count++
	if p.count > maxValues {
		return nil, &Problem{Detail: fmt.Sprintf("has more than %d values in it", maxValues)}
	}
	if p.decoder.StackDepth() > maxDepth {
		return nil, &Problem{Detail: fmt.Sprintf("is nested deeper than %d levels", maxDepth)}
	}
	switch p.decoder.PeekKind() {
	case jsontext.KindBeginObject:
		return p.readItems(object, jsontext.KindEndObject, base)
	case jsontext.KindBeginArray:
		return p.readItems(array, jsontext.KindEndArray, base)
	}
	return p.readScalar(base)
}

// readScalar reads a value that is neither an object nor an array. base is that of readValue.
func (p *parser) readScalar(base int) (*value, *Problem) {
	raw, err := p.decoder.ReadValue()
	if err != nil {
		return nil, decoderProblem(err)
	}
	v := &value{}
	p.setRaw(v, base, int(p.decoder.InputOffset())-len(raw))
	switch raw.Kind() {
	case jsontext.KindNull:
		v.kind = null
	case jsontext.KindTrue, jsontext.KindFalse:
		v.kind = boolean
	case jsontext.KindString:
		v.kind = text
		unquoted, _ := jsontext.AppendUnquote(nil, raw) // cannot fail: the decoder has checked it
		v.text = string(unquoted)
	case jsontext.KindNumber:
		if v.float, err = strconv.ParseFloat(string(raw), 64); err != nil {
			return nil, &Problem{wire.Truncate(string(p.decoder.StackPointer()), maxPointer), "is a number that is out of range"}
		}
		v.kind = fraction
		if isInteger(string(raw), v.float) {
			v.kind = integer
		}
	}
	return v, nil
}

// readItems reads a value of the given kind, array or object, with everything in it. end is its closing bracket. base is
// that of readValue.
func (p *parser) readItems(kind kind, end jsontext.Kind, base int) (*value, *Problem) {
	if _, err := p.decoder.ReadToken(); err != nil { // the opening bracket
		return nil, decoderProblem(err)
	}
	v := &value{kind: kind}
	start := int(p.decoder.InputOffset()) - len("[")
	for p.decoder.PeekKind() != end {
		if kind == object {
			name, err := p.decoder.ReadToken()
			if err != nil {
				return nil, decoderProblem(err)
			}
			v.names = append(v.names, name.String())
		}
		item, problem := p.readValue(start)
		if problem != nil {
			return nil, problem
		}
		v.items = append(v.items, item)
	}
	if _, err := p.decoder.ReadToken(); err != nil { // the closing bracket
		return nil, decoderProblem(err)
	}
	p.setRaw(v, base, start)
	v.indexNames()
	return v, nil
}

// indexNames sets v.byName if v has so many members that a linear search for a name would be slow.
func (v *value) indexNames() {
	if len(v.names) <= linearSearchMax {
		return
	}
	v.byName = make(map[string]int, len(v.names))
	for i, name := range v.names {
		v.byName[name] = i
	}
}

// setRaw sets v.raw to the bytes from start to the decoder's position, and v.offset and v.length relative to base, the
// offset of the enclosing value.
func (p *parser) setRaw(v *value, base, start int) {
	v.raw = p.source[start:p.decoder.InputOffset()]
	v.offset = start - base
	v.length = len(v.raw)
}

// isInteger reports whether a number is an integer, such as 3, 3.0 or 3e2 (draft 2020-12 validation, 6.1.1). f is the
// literal's approximate value. It decides if the literal is too long for exact arithmetic.
func isInteger(literal string, f float64) bool {
	if !strings.ContainsAny(literal, ".eE") {
		return true
	}
	if r := exactRational(literal); r != nil {
		return r.IsInt()
	}
	return f == math.Trunc(f)
}
