package native

import (
	"bytes"
	"encoding/json"

	"answerd/internal/jsontext"
)

// Nearly every body is well formed, and most of it is text. Such a body is read here, a
// history of 64 kB in a seventh of the time that json.Decoder takes (BenchmarkDecode). What
// looks odd in any way is left to parse, whose word counts and which says what is wrong:
// FuzzParse holds both to the same values.

// quickParser reads one body.
type quickParser struct {
	rest  []byte // not read yet
	depth int
	read  int // values begun so far
}

// quickParse reads a body if nothing about it is odd; it is known to be valid UTF-8.
func quickParse(body []byte) (v any, ok bool) {
	p := quickParser{rest: body}
	v, ok = p.value()
	p.space()
	return v, ok && len(p.rest) == 0
}

func (p *quickParser) space() {
	for len(p.rest) > 0 {
		switch p.rest[0] {
		case ' ', '\t', '\n', '\r':
			p.rest = p.rest[1:]
		default:
			return
		}
	}
}

// next takes c, behind any white space, if it comes next.
func (p *quickParser) next(c byte) bool {
	p.space()
	if len(p.rest) == 0 || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// value reads a value. The depth is odd one level before it is too deep.
func (p *quickParser) value() (v any, ok bool) {
	p.space()
	if p.read++; p.read > maxValues || len(p.rest) == 0 || p.depth == maxDepth {
		return nil, false
	}
	p.depth++
	defer func() { p.depth-- }()
	switch c := p.rest[0]; {
	case c == '"':
		return p.text()
	case c == '{':
		return p.object()
	case c == '[':
		return p.array()
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	for word, v := range map[string]any{"true": true, "false": false, "null": nil} {
		if rest, found := bytes.CutPrefix(p.rest, []byte(word)); found {
			p.rest = rest
			return v, true
		}
	}
	return nil, false
}

func (p *quickParser) object() (any, bool) {
	p.rest = p.rest[1:]
	out := make(map[string]any)
	if p.next('}') {
		return out, true
	}
	for {
		if p.space(); len(p.rest) == 0 || p.rest[0] != '"' {
			return nil, false
		}
		key, ok := p.text()
		if !ok || !p.next(':') {
			return nil, false
		}
		name := key.(string) // it is what text returns
		if _, twice := out[name]; twice {
			return nil, false
		}
		if out[name], ok = p.value(); !ok {
			return nil, false
		}
		if !p.next(',') {
			return out, p.next('}')
		}
	}
}

func (p *quickParser) array() (any, bool) {
	p.rest = p.rest[1:]
	out := []any{}
	if p.next(']') {
		return out, true
	}
	for {
		v, ok := p.value()
		if !ok {
			return nil, false
		}
		out = append(out, v)
		if !p.next(',') {
			return out, p.next(']')
		}
	}
}

// number reads a number as it is written. One that jsontext.Valid refuses is odd.
func (p *quickParser) number() (any, bool) {
	n := 0
	for n < len(p.rest) && bytes.IndexByte([]byte("+-.0123456789Ee"), p.rest[n]) >= 0 {
		n++
	}
	raw := p.rest[:n]
	p.rest = p.rest[n:]
	return json.Number(raw), jsontext.Valid(raw)
}

// text reads a string. \u is odd: it can stand for half a surrogate pair.
func (p *quickParser) text() (any, bool) {
	in := p.rest[1:]
	n := jsontext.Plain(in)
	if n < len(in) && in[n] == '"' {
		p.rest = in[n+1:]
		return string(in[:n]), true
	}
	out := make([]byte, 0, 2*n+32)
	for {
		if n+1 >= len(in) {
			return nil, false
		}
		out = append(out, in[:n]...)
		switch in[n] {
		case '"':
			p.rest = in[n+1:]
			return string(out), true
		case '\\':
			i := bytes.IndexByte([]byte(`"\/bfnrt`), in[n+1])
			if i < 0 {
				return nil, false
			}
			out = append(out, "\"\\/\b\f\n\r\t"[i])
			in = in[n+2:]
		default:
			return nil, false
		}
		n = jsontext.Plain(in)
	}
}
