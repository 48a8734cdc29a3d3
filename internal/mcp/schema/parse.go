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

// How parseJSON treats an object that has two members with the same name: schemas may have them, and
// values may not.
const (
	lastDuplicateWins = false
	refuseDuplicates  = true // programs differ about which one counts (RFC 8259 section 4)
)

// parseJSON decodes JSON, or returns the first problem.
func parseJSON(raw []byte, strict bool) (*value, *Problem) {
	if !utf8.Valid(raw) {
		return nil, &Problem{Detail: "is not valid UTF-8"}
	}
	p := parser{src: raw, in: jsontext.NewDecoder(bytes.NewBuffer(raw),
		jsontext.AllowDuplicateNames(!strict), jsontext.AllowInvalidUTF8(true))} // half of a surrogate pair, written "\ud800"
	v, wrong := p.readValue(0)
	if wrong != nil {
		return nil, wrong
	}
	if _, err := p.in.ReadToken(); err != io.EOF {
		return nil, decoderProblem(err)
	}
	return v, nil
}

// parser decodes one JSON text within the bounds.
type parser struct {
	src   []byte
	in    *jsontext.Decoder
	count int // values so far
}

// decoderProblem converts an error of the decoder.
func decoderProblem(err error) *Problem {
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && e.Err == jsontext.ErrDuplicateName {
		return &Problem{truncate(string(e.JSONPointer), maxPointer), "is written twice"}
	}
	return &Problem{Detail: "is not valid JSON"}
}

// readValue reads one value. base is the offset of the enclosing value, so that the value knows
// its position in that.
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

// readItems reads the items or members of v. Objects with many members get an index by name.
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
		item, wrong := p.readValue(start)
		if wrong != nil {
			return nil, wrong
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

// setRaw sets the original bytes of v, from start to the decoder's position.
func (p *parser) setRaw(v *value, base, start int) {
	v.raw = p.src[start:p.in.InputOffset()]
	v.at, v.len = start-base, len(v.raw)
}

// isInteger reports whether a number is an integer: 3, and also 3.0 and 3e2 (draft 2020-12
// validation, 6.1.1).
func isInteger(literal string, f float64) bool {
	if !strings.ContainsAny(literal, ".eE") {
		return true
	}
	if r := exactRational(literal); r != nil {
		return r.IsInt()
	}
	return f == math.Trunc(f)
}
