package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"answerd/internal/jsontext"
)

// How an object is read that has two members of one name.
const (
	lastWins     = false
	twiceIsWrong = true // its readers may differ about which one counts (RFC 8259, 4)
)

// parse reads JSON. What is wrong with it is one problem.
func parse(raw []byte, strict bool) (*value, *Problem) {
	if !utf8.Valid(raw) {
		return nil, &Problem{Detail: "is not valid UTF-8"}
	}
	if !jsontext.Valid(raw) {
		return nil, &Problem{Detail: "is not valid JSON"}
	}
	p := parser{src: raw, strict: strict}
	v := p.value(0)
	if p.wrong != nil {
		return nil, p.wrong
	}
	return v, nil
}

// parser reads JSON that is known to be valid.
type parser struct {
	src    []byte
	pos    int
	path   []step
	count  int
	strict bool
	wrong  *Problem // ends it
}

// fail says what is wrong with the whole or, here, with the value that is being read.
func (p *parser) fail(here bool, format string, args ...any) {
	var at *step
	for i := range p.path {
		if here {
			p.path[i].up, at = at, &p.path[i]
		}
	}
	if p.wrong == nil {
		p.wrong = &Problem{at.pointer(), fmt.Sprintf(format, args...)}
	}
}

func (p *parser) blanks() {
	for p.pos < len(p.src) && strings.IndexByte(" \t\r\n", p.src[p.pos]) >= 0 {
		p.pos++
	}
}

// value reads one value, which lies in one whose raw begins at base.
func (p *parser) value(base int) *value {
	p.blanks()
	if p.count++; p.count > maxValues {
		p.fail(false, "has more than %d values in it", maxValues)
	}
	start := p.pos
	v := &value{at: start - base}
	switch p.src[p.pos] {
	case '{':
		v.kind = object
		p.members(v)
	case '[':
		v.kind = array
		p.elements(v)
	case '"':
		v.kind = text
		v.text = p.string()
	case 't', 'n':
		v.kind = boolean
		if p.src[p.pos] == 'n' {
			v.kind = null
		}
		p.pos += len("true")
	case 'f':
		v.kind = boolean
		p.pos += len("false")
	default:
		p.number(v)
	}
	v.raw = p.src[start:p.pos]
	v.len = len(v.raw)
	return v
}

func (p *parser) members(v *value) {
	start := p.pos
	p.pos++
	for p.wrong == nil {
		p.blanks()
		if p.src[p.pos] == '}' {
			break
		}
		name := p.string()
		p.blanks()
		p.pos++ // the colon
		p.path = append(p.path, step{name: name})
		if p.strict && v.get(name) != nil {
			p.fail(true, "is written twice")
		}
		p.deeper(v, start)
		if p.wrong != nil {
			return
		}
		v.names = append(v.names, name)
		if n := len(v.names); n == fewNames+1 {
			v.byName = make(map[string]int, 2*n)
			for i, name := range v.names {
				v.byName[name] = i
			}
		} else if n > fewNames {
			v.byName[name] = n - 1
		}
	}
	p.pos++
}

func (p *parser) elements(v *value) {
	start := p.pos
	p.pos++
	for p.wrong == nil {
		p.blanks()
		if p.src[p.pos] == ']' {
			break
		}
		p.path = append(p.path, step{index: len(v.items), item: true})
		p.deeper(v, start)
	}
	p.pos++
}

// deeper reads what lies in v at the path's end, and the comma behind it.
func (p *parser) deeper(v *value, start int) {
	if len(p.path) > maxDepth {
		p.fail(false, "is nested deeper than %d levels", maxDepth)
	}
	if p.wrong != nil {
		return
	}
	v.items = append(v.items, p.value(start))
	p.path = p.path[:len(p.path)-1]
	if p.blanks(); p.wrong == nil && p.src[p.pos] == ',' {
		p.pos++
	}
}

func (p *parser) string() string {
	start, plain := p.pos, true
	for p.pos++; p.src[p.pos] != '"'; p.pos++ {
		if p.src[p.pos] == '\\' {
			plain = false
			p.pos++
		}
	}
	p.pos++
	if plain {
		return string(p.src[start+1 : p.pos-1])
	}
	var s string
	_ = json.Unmarshal(p.src[start:p.pos], &s) // it is valid
	return s
}

func (p *parser) number(v *value) {
	start := p.pos
	for p.pos < len(p.src) && strings.IndexByte("+-.0123456789eE", p.src[p.pos]) >= 0 {
		p.pos++
	}
	literal := string(p.src[start:p.pos])
	var err error
	if v.float, err = strconv.ParseFloat(literal, 64); err != nil {
		p.fail(true, "is a number that is out of range")
		return
	}
	v.kind = fraction
	if whole(literal, v.float) {
		v.kind = integer
	}
}

// whole reports whether a number is an integer: 3, and also 3.0 and 3e2 (draft
// 2020-12 validation, 6.1.1).
func whole(literal string, f float64) bool {
	if !strings.ContainsAny(literal, ".eE") {
		return true
	}
	if r := exact(literal); r != nil {
		return r.IsInt()
	}
	return f == math.Trunc(f)
}
