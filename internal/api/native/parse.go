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
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	p := parser{dec: dec, body: body}
	v, err := p.value("", 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid("", fmt.Sprintf("there is more after the JSON value, at byte %d", dec.InputOffset()))
	}
	return v, nil
}

type parser struct {
	dec  *json.Decoder
	body []byte
}

func (p *parser) value(pointer string, depth int) (any, error) {
	start := p.dec.InputOffset()
	tok, err := p.dec.Token()
	if err != nil {
		return nil, p.syntax(pointer, err)
	}
	switch tok := tok.(type) {
	case json.Delim:
		if depth == maxDepth {
			return nil, invalid(pointer, fmt.Sprintf("nested deeper than %d levels", maxDepth))
		}
		if tok == '{' {
			return p.object(pointer, depth+1)
		}
		return p.array(pointer, depth+1)
	case string:
		return tok, p.checkText(pointer, tok, start)
	default:
		return tok, nil
	}
}

func (p *parser) object(pointer string, depth int) (any, error) {
	out := make(map[string]any)
	for p.dec.More() {
		start := p.dec.InputOffset()
		tok, err := p.dec.Token()
		if err != nil {
			return nil, p.syntax(pointer, err)
		}
		key := tok.(string) // the decoder refuses any other key itself
		field := pointer + "/" + escape(key)
		if err := p.checkText(field, key, start); err != nil {
			return nil, err
		}
		if _, twice := out[key]; twice {
			return nil, invalid(field, "given twice")
		}
		if out[key], err = p.value(field, depth); err != nil {
			return nil, err
		}
	}
	if _, err := p.dec.Token(); err != nil {
		return nil, p.syntax(pointer, err)
	}
	return out, nil
}

func (p *parser) array(pointer string, depth int) (any, error) {
	out := []any{}
	for p.dec.More() {
		v, err := p.value(pointer+"/"+strconv.Itoa(len(out)), depth)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	if _, err := p.dec.Token(); err != nil {
		return nil, p.syntax(pointer, err)
	}
	return out, nil
}

func (p *parser) syntax(pointer string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid(pointer, "the JSON ends too early")
	}
	return invalid(pointer, fmt.Sprintf("not JSON at byte %d", p.dec.InputOffset()))
}

// checkText refuses what has no place in any field: U+0000, and escapes of half a
// surrogate pair, which the decoder turned into U+FFFD without a word.
func (p *parser) checkText(pointer, text string, start int64) error {
	if strings.ContainsRune(text, 0) {
		return invalid(pointer, "contains U+0000")
	}
	if strings.ContainsRune(text, utf8.RuneError) && loneSurrogate(p.body[start:p.dec.InputOffset()]) {
		return invalid(pointer, "contains half a surrogate pair")
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

// escape writes a key as one step of a JSON pointer.
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
