package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a body; a question needs three levels, and the rest
// is for the arguments of a tool.
const maxDepth = 16

// maxValues bounds how many values a body holds: in memory an empty object is thirty
// times what it is on the wire.
const maxValues = 1 << 16

// FieldError is one thing that is wrong with a body.
type FieldError struct {
	Pointer string `json:"pointer"` // RFC 6901; "" is the body itself
	Detail  string `json:"detail"`
}

// Invalid is a body that is no request, with everything that is wrong with it.
type Invalid struct{ Errors []FieldError }

func (e *Invalid) Error() string {
	parts := make([]string, len(e.Errors))
	for i, f := range e.Errors {
		parts[i] = strings.TrimPrefix(f.Pointer+": "+f.Detail, ": ")
	}
	return strings.Join(parts, "; ")
}

func invalid(pointer, detail string) error {
	return &Invalid{[]FieldError{{pointer, detail}}}
}

// parse reads exactly one JSON value, into map[string]any, []any, string, bool, nil
// and json.Number. encoding/json alone accepts duplicate keys, invalid UTF-8 and lone
// surrogates; an attacker can say one thing to us and another to the next reader.
func parse(body []byte) (any, error) {
	if !utf8.Valid(body) {
		return nil, invalid("", "the body is not valid UTF-8")
	}
	if v, ok := quickParse(body); ok {
		return v, nil
	}
	return slowParse(body)
}

// slowParse is parse for any body that is valid UTF-8.
func slowParse(body []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	p := parser{dec: dec, body: body}
	v, err := p.value()
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid("", fmt.Sprintf("there is more after the JSON value, at byte %d", dec.InputOffset()))
	}
	return v, nil
}

// parser reads one body. It makes a pointer only of what is wrong: made on the way, one
// for each item below a long key, they would cost the square of the body.
type parser struct {
	dec  *json.Decoder
	body []byte
	path []step // to the value that is being read
	read int    // values begun so far
}

// step is a key, or where key is nil an index.
type step struct {
	key   *string
	index int
}

func (p *parser) value() (any, error) {
	if p.read++; p.read > maxValues {
		return nil, invalid("", fmt.Sprintf("holds more than %d values", maxValues))
	}
	start := p.dec.InputOffset()
	tok, err := p.dec.Token()
	if err != nil {
		return nil, p.syntax(err)
	}
	switch tok := tok.(type) {
	case json.Delim:
		if len(p.path) == maxDepth {
			return nil, p.invalid(fmt.Sprintf("nested deeper than %d levels", maxDepth))
		}
		if tok == '{' {
			return p.object()
		}
		return p.array()
	case string:
		return tok, p.checkText(tok, start)
	default:
		return tok, nil
	}
}

func (p *parser) object() (any, error) {
	out := make(map[string]any)
	for p.dec.More() {
		start := p.dec.InputOffset()
		tok, err := p.dec.Token()
		if err != nil {
			return nil, p.syntax(err)
		}
		key := tok.(string) // the decoder refuses any other key itself
		p.path = append(p.path, step{key: &key})
		if err := p.checkText(key, start); err != nil {
			return nil, err
		}
		if _, twice := out[key]; twice {
			return nil, p.invalid("given twice")
		}
		if out[key], err = p.value(); err != nil {
			return nil, err
		}
		p.path = p.path[:len(p.path)-1]
	}
	if _, err := p.dec.Token(); err != nil {
		return nil, p.syntax(err)
	}
	return out, nil
}

func (p *parser) array() (any, error) {
	out := []any{}
	for p.dec.More() {
		p.path = append(p.path, step{index: len(out)})
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		p.path = p.path[:len(p.path)-1]
	}
	if _, err := p.dec.Token(); err != nil {
		return nil, p.syntax(err)
	}
	return out, nil
}

// invalid says what is wrong with the value that is being read.
func (p *parser) invalid(detail string) error {
	var pointer strings.Builder
	for _, s := range p.path {
		pointer.WriteByte('/')
		if s.key != nil {
			pointer.WriteString(escape(*s.key))
		} else {
			pointer.WriteString(strconv.Itoa(s.index))
		}
	}
	return invalid(pointer.String(), detail)
}

func (p *parser) syntax(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return p.invalid("the JSON ends too early")
	}
	return p.invalid(fmt.Sprintf("not JSON at byte %d", p.dec.InputOffset()))
}

// checkText refuses what has no place in any field: U+0000, and escapes of half a
// surrogate pair, which the decoder turned into U+FFFD without a word.
func (p *parser) checkText(text string, start int64) error {
	if strings.ContainsRune(text, 0) {
		return p.invalid("contains U+0000")
	}
	if strings.ContainsRune(text, utf8.RuneError) && loneSurrogate(p.body[start:p.dec.InputOffset()]) {
		return p.invalid("contains half a surrogate pair")
	}
	return nil
}

// loneSurrogate looks through the escapes of a JSON string that is known to be well
// formed.
func loneSurrogate(raw []byte) bool {
	unit := func(i int) (uint64, bool) {
		if i+6 > len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
			return 0, false
		}
		u, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
		return u, err == nil
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		u, ok := unit(i)
		if !ok {
			i++ // another escape: its second byte is no backslash of its own
			continue
		}
		i += 5
		if u < 0xD800 || u > 0xDFFF {
			continue
		}
		low, ok := unit(i + 1)
		if u >= 0xDC00 || !ok || low < 0xDC00 || low > 0xDFFF {
			return true
		}
		i += 6
	}
	return false
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// escape writes a key as one step of a JSON pointer.
func escape(key string) string { return pointerEscapes.Replace(key) }
