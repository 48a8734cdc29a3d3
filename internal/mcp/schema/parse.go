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
	in := jsontext.NewDecoder(bytes.NewBuffer(raw),
		jsontext.AllowDuplicateNames(duplicates == lastDuplicateWins),
		jsontext.AllowInvalidUTF8(true)) // accept an unpaired surrogate, such as "\ud800"
	p := parser{src: raw, in: in}
	v, problem := p.readValue(0)
	if problem != nil {
		return nil, problem
	}
	if _, err := p.in.ReadToken(); err != io.EOF {
		return nil, decoderProblem(err)
	}
	return v, nil
}

// parser decodes one JSON text.
type parser struct {
	src   []byte            // the whole text
	in    *jsontext.Decoder // of src
	count int               // number of values read so far
}

// decoderProblem converts an error of the decoder to a Problem. The error is nil if a second value follows the first
// one.
func decoderProblem(err error) *Problem {
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && e.Err == jsontext.ErrDuplicateName {
		return &Problem{truncate(string(e.JSONPointer), maxPointer), "is written twice"}
	}
	return &Problem{Detail: "is not valid JSON"}
}

// readValue reads the next value and all values within it. base is the offset of the enclosing value in p.src, to which
// the new value's own offset is relative.
func (p *parser) readValue(base int) (*value, *Problem) {
	p.count++
	if p.count > maxValues {
		return nil, &Problem{Detail: fmt.Sprintf("has more than %d values in it", maxValues)}
	}
	if p.in.StackDepth() > maxDepth {
		return nil, &Problem{Detail: fmt.Sprintf("is nested deeper than %d levels", maxDepth)}
	}
	v := &value{}
	first := p.in.PeekKind()
	if first == '{' || first == '[' {
		return p.readItems(v, first, base)
	}
	raw, err := p.in.ReadValue()
	if err != nil {
		return nil, decoderProblem(err)
	}
	p.setRaw(v, base, int(p.in.InputOffset())-len(raw))

	switch first {
	case 'n':
		v.kind = null
	case 't', 'f':
		v.kind = boolean
	case '"':
		v.kind = text
		unquoted, _ := jsontext.AppendUnquote(nil, raw) // cannot fail: the decoder has checked it
		v.text = string(unquoted)
	case '0':
		if v.float, err = strconv.ParseFloat(string(raw), 64); err != nil {
			return nil, &Problem{truncate(string(p.in.StackPointer()), maxPointer), "is a number that is out of range"}
		}
		v.kind = fraction
		if isInteger(string(raw), v.float) {
			v.kind = integer
		}
	}
	return v, nil
}

// readItems reads an array or an object into v, which must be empty, and returns v. first is the opening bracket. As in
// readValue, base is the offset of the enclosing value.
func (p *parser) readItems(v *value, first jsontext.Kind, base int) (*value, *Problem) {
	v.kind = array
	if first == '{' {
		v.kind = object
	}

	_, err := p.in.ReadToken()
	start := int(p.in.InputOffset()) - 1
	for err == nil && p.in.PeekKind() != first+2 { // in ASCII, the closing bracket is 2 after the opening one
		if v.kind == object {
			var name jsontext.Token
			if name, err = p.in.ReadToken(); err != nil {
				break
			}
			v.names = append(v.names, name.String())
		}
		item, problem := p.readValue(start)
		if problem != nil {
			return nil, problem
		}
		v.items = append(v.items, item)
	}
	if err == nil {
		_, err = p.in.ReadToken()
	}
	if err != nil {
		return nil, decoderProblem(err)
	}
	p.setRaw(v, base, start)

	if len(v.names) > linearSearchMax {
		v.byName = make(map[string]int, len(v.names))
		for i, name := range v.names {
			v.byName[name] = i
		}
	}
	return v, nil
}

// setRaw sets v.raw to the bytes from start to the decoder's position, and v.offset and v.length relative to base, the
// offset of the enclosing value.
func (p *parser) setRaw(v *value, base, start int) {
	v.raw = p.src[start:p.in.InputOffset()]
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
