package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"answerd/internal/agent"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth bounds the nesting of a body; a question needs three levels, and the rest
// is for the arguments of a tool.
const maxDepth = 16

// maxValues bounds how many values a body holds: who reads the arguments of a tool may need
// thirty times the size of an empty object for it.
const maxValues = 1 << 16

// FieldError is one thing that is wrong with a body.
type FieldError struct {
	Pointer string `json:"pointer"` // RFC 6901; "" is the body itself
	Detail  string `json:"detail"`
}

// Invalid is the error for a body that is not a request. It lists everything that is wrong.
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

// decoder reads the fields of one body in the order in which they stand there, and collects
// what is wrong with them. The methods that read a field return its zero value if it is wrong.
// jsontext refuses duplicate names, invalid UTF-8 and lone surrogates: an attacker could say one thing
// to us and another to the next reader.
type decoder struct {
	dec    *jsontext.Decoder
	body   []byte
	at     string // where the body stands in the request, as a JSON pointer
	nul    bool   // the body may have U+0000 in it
	values int    // values begun so far
	errors []FieldError
	err    error // the body is not JSON, or is too large: reading has ended
}

func newDecoder(at string, body []byte) *decoder {
	// The decoder does not write into a bytes.Buffer.
	d := &decoder{dec: jsontext.NewDecoder(bytes.NewBuffer(body)), body: body, at: at, nul: bytes.Contains(body, []byte(`\u0000`))}
	if kind := d.dec.PeekKind(); kind != '{' && kind != jsontext.KindInvalid {
		d.err = invalid(at, "must be an object")
	}
	return d
}

// end returns what is wrong with the body, which has been read to its end: an *Invalid or nil.
func (d *decoder) end() error {
	if d.err != nil {
		return d.err
	}
	if _, err := d.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return invalid(d.at, fmt.Sprintf("there is more after the JSON value, at byte %d", d.dec.InputOffset()))
	}
	if len(d.errors) == 0 {
		return nil
	}
	slices.SortStableFunc(d.errors, func(a, b FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return &Invalid{d.errors}
}

// add adds what is wrong with the value that was read last.
func (d *decoder) add(detail string) { d.addBelow("", detail) }

func (d *decoder) addBelow(name, detail string) {
	if d.err == nil && len(d.errors) < maxErrors {
		d.errors = append(d.errors, FieldError{d.pointer() + name, detail})
	}
}

// next reads a text, a name, a number or a literal, or the begin or end of an object or array,
// which have no value. The kind is KindInvalid once reading has ended.
func (d *decoder) next() (kind jsontext.Kind, value jsontext.Value) {
	if d.err != nil {
		return jsontext.KindInvalid, nil
	}
	var err error
	switch kind = d.dec.PeekKind(); kind {
	case '{', '[', '}', ']':
		_, err = d.dec.ReadToken()
	default:
		value, err = d.dec.ReadValue()
	}
	if err == nil {
		if err = d.check(kind, value); err == nil {
			return kind, value
		}
	}
	d.err = d.explain(err)
	return jsontext.KindInvalid, nil
}

// check returns what is wrong with what was read last and is JSON.
func (d *decoder) check(kind jsontext.Kind, value jsontext.Value) error {
	parent, read := d.dec.StackIndex(d.dec.StackDepth())
	name := kind == '"' && parent == '{' && read%2 == 1
	switch {
	case kind == '}' || kind == ']':
		return nil
	case d.dec.StackDepth() > maxDepth:
		return invalid(d.pointer(), fmt.Sprintf("nested deeper than %d levels", maxDepth))
	case kind == '"' && d.nul && strings.Contains(unquote(value), "\x00"):
		return invalid(d.pointer(), "contains U+0000")
	case name:
		return nil
	case d.values == maxValues:
		return invalid(d.at, fmt.Sprintf("holds more than %d values", maxValues))
	}
	d.values++
	return nil
}

// pointer returns where the value that was read last stands in the request.
func (d *decoder) pointer() string { return d.at + string(d.dec.StackPointer()) }

// unquote returns the text of a JSON string.
func unquote(value jsontext.Value) string {
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1])
	}
	text, _ := jsontext.AppendUnquote(nil, value) // the decoder has found it to be well formed
	return string(text)
}

// explain returns an error of the library as an *Invalid.
func (d *decoder) explain(err error) error {
	if errors.As(err, new(*Invalid)) {
		return err
	}
	if !utf8.Valid(d.body) {
		return invalid(d.at, "the body is not valid UTF-8")
	}
	bad := &jsontext.SyntacticError{Err: err} // the decoder returns a bare io.EOF for an empty body
	errors.As(err, &bad)
	detail := fmt.Sprintf("not JSON at byte %d", bad.ByteOffset)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		detail = "the JSON ends too early"
	case errors.Is(err, jsontext.ErrDuplicateName):
		detail = "given twice"
	case bytes.HasPrefix(bytes.ToLower(d.body[bad.ByteOffset:min(bad.ByteOffset+3, int64(len(d.body)))]), []byte(`\ud`)):
		detail = "contains half a surrogate pair"
	}
	return invalid(d.at+string(bad.JSONPointer), detail)
}

// skip reads the rest of an object or array whose begin was read last.
func (d *decoder) skip(kind jsontext.Kind) {
	if kind != '{' && kind != '[' {
		return
	}
	for depth := d.dec.StackDepth(); d.err == nil && d.dec.StackDepth() >= depth; {
		d.next()
	}
}

// read reads a value of that kind; of another, wanted is what it must be.
func (d *decoder) read(kind jsontext.Kind, wanted string) (value jsontext.Value, ok bool) {
	got, value := d.next()
	if got == kind {
		return value, true
	}
	d.skip(got)
	d.add(wanted)
	return nil, false
}

// skipValue reads a value of any kind.
func (d *decoder) skipValue() {
	kind, _ := d.next()
	d.skip(kind)
}

// object reads an object and yields the name of each member, whose value is then to be read.
func (d *decoder) object(required ...string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if _, ok := d.read('{', "must be an object"); !ok {
			return
		}
		for d.err == nil && d.dec.PeekKind() != '}' {
			_, quoted := d.next()
			if d.err != nil {
				return
			}
			name := unquote(quoted)
			if !yield(name) {
				return
			}
			required = slices.DeleteFunc(required, func(r string) bool { return r == name })
		}
		d.next()
		for _, name := range required {
			d.addBelow("/"+name, "required")
		}
	}
}

// unknown reads the value of a member that there should not be.
func (d *decoder) unknown() {
	d.skipValue()
	d.add("unknown field")
}

// raw reads an object and returns it as it is written.
func (d *decoder) raw() json.RawMessage {
	if _, ok := d.read('{', "must be an object"); !ok {
		return nil
	}
	start := d.dec.InputOffset() - 1
	d.skip('{')
	return bytes.Clone(d.body[start:d.dec.InputOffset()])
}

// list reads an array and yields the index of each item, which is then to be read.
func (d *decoder) list(limit int) iter.Seq[int] {
	return func(yield func(int) bool) {
		if _, ok := d.read('[', "must be an array"); !ok {
			return
		}
		n := 0
		for ; d.err == nil && d.dec.PeekKind() != ']'; n++ {
			if n >= limit {
				d.skipValue()
			} else if !yield(n) {
				return
			}
		}
		d.next()
		if n > limit {
			d.add(fmt.Sprintf("must not have more than %d items", limit))
		}
	}
}

const (
	maxUnbounded = math.MaxInt // only the bound of the body holds
	mustBeText   = "must be a string"
)

func (d *decoder) text(limit int) string {
	value, ok := d.read('"', mustBeText)
	if !ok {
		return ""
	}
	s := unquote(value)
	if len(s) > limit {
		d.add(fmt.Sprintf("must not be longer than %d bytes", limit))
		return ""
	}
	return s
}

// name reads a text that names something.
func (d *decoder) name() string {
	detail := fmt.Sprintf("must be a string of 1 to %d bytes", maxName)
	value, ok := d.read('"', detail)
	if !ok {
		return ""
	}
	s := unquote(value)
	if s == "" || len(s) > maxName {
		d.add(detail)
	}
	return s
}

// id reads a text that ends up in logs, headers and URLs: visible ASCII only.
func (d *decoder) id() string {
	value, ok := d.read('"', mustBeText)
	if !ok {
		return ""
	}
	s := unquote(value)
	switch {
	case s == "":
		d.add("must not be empty")
	case len(s) > maxID:
		d.add(fmt.Sprintf("must not be longer than %d bytes", maxID))
	case strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }):
		d.add("must be visible ASCII characters")
	}
	return s
}

func (d *decoder) choice(allowed []string) string {
	detail := "must be one of " + strings.Join(allowed, ", ")
	value, ok := d.read('"', detail)
	if !ok {
		return ""
	}
	s := unquote(value)
	if !slices.Contains(allowed, s) {
		d.add(detail)
	}
	return s
}

func (d *decoder) boolean() bool {
	kind, _ := d.next()
	if kind != 't' && kind != 'f' {
		d.skip(kind)
		d.add("must be true or false")
	}
	return kind == 't'
}

// positive reads a whole number of at least 1.
func (d *decoder) positive() int64 {
	const detail = "must be a whole number of at least 1"
	value, ok := d.read('0', detail)
	if !ok {
		return 0
	}
	n, ok := agent.ParseJSONInteger(string(value))
	if !ok || n < 1 || n > math.MaxInt32 {
		d.add(detail)
		return 0
	}
	return int64(n)
}

// fraction reads a number above 0 and at most limit.
func (d *decoder) fraction(limit float64) float64 {
	detail := fmt.Sprintf("must be a number above 0 and at most %.0f", limit)
	value, ok := d.read('0', detail)
	if !ok {
		return 0
	}
	n, err := strconv.ParseFloat(string(value), 64)
	if err != nil || n <= 0 || n > limit {
		d.add(detail)
		return 0
	}
	return n
}

// names reads a list of names.
func (d *decoder) names() []string {
	var out []string
	for range d.list(maxList) {
		out = append(out, d.name())
	}
	return out
}

// pairs reads an object of texts.
func (d *decoder) pairs() map[string]string {
	out, n := make(map[string]string), 0
	for name := range d.object() {
		if n++; n > maxPairs {
			d.skipValue()
			continue
		}
		detail := fmt.Sprintf("must be a string of at most %d bytes under a name of 1 to %d bytes", maxPairText, maxPairKey)
		value, ok := d.read('"', detail)
		if !ok {
			continue
		}
		s := unquote(value)
		if name == "" || len(name) > maxPairKey || len(s) > maxPairText {
			d.add(detail)
			continue
		}
		out[name] = s
	}
	if n > maxPairs {
		d.add(fmt.Sprintf("must not have more than %d members", maxPairs))
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
