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

func newInvalid(pointer, detail string) error {
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
		d.err = newInvalid(at, "must be an object")
	}
	return d
}

// finishBody returns what is wrong with the body, which has been read to its end: an *Invalid or nil.
func (d *decoder) finishBody() error {
	if d.err != nil {
		return d.err
	}
	if _, err := d.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return newInvalid(d.at, fmt.Sprintf("there is more after the JSON value, at byte %d", d.dec.InputOffset()))
	}
	if len(d.errors) == 0 {
		return nil
	}
	slices.SortStableFunc(d.errors, func(a, b FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return &Invalid{d.errors}
}

// addError adds what is wrong with the value that was read last.
func (d *decoder) addError(detail string) { d.addErrorAt("", detail) }

func (d *decoder) addErrorAt(name, detail string) {
	if d.err == nil && len(d.errors) < maxErrors {
		d.errors = append(d.errors, FieldError{d.currentPointer() + name, detail})
	}
}

// nextToken reads a text, a name, a number or a literal, or the begin or end of an object or array,
// which have no value. The kind is KindInvalid once reading has ended.
func (d *decoder) nextToken() (kind jsontext.Kind, value jsontext.Value) {
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
	d.err = d.invalidError(err)
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
		return newInvalid(d.currentPointer(), fmt.Sprintf("nested deeper than %d levels", maxDepth))
	case kind == '"' && d.nul && strings.Contains(unquoteString(value), "\x00"):
		return newInvalid(d.currentPointer(), "contains U+0000")
	case name:
		return nil
	case d.values == maxValues:
		return newInvalid(d.at, fmt.Sprintf("holds more than %d values", maxValues))
	}
	d.values++
	return nil
}

// currentPointer returns where the value that was read last stands in the request.
func (d *decoder) currentPointer() string { return d.at + string(d.dec.StackPointer()) }

// unquoteString returns the text of a JSON string.
func unquoteString(value jsontext.Value) string {
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1])
	}
	text, _ := jsontext.AppendUnquote(nil, value) // the decoder has found it to be well formed
	return string(text)
}

// invalidError returns an error of the library as an *Invalid.
func (d *decoder) invalidError(err error) error {
	if errors.As(err, new(*Invalid)) {
		return err
	}
	if !utf8.Valid(d.body) {
		return newInvalid(d.at, "the body is not valid UTF-8")
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
	return newInvalid(d.at+string(bad.JSONPointer), detail)
}

// skipRest reads the rest of an object or array whose begin was read last.
func (d *decoder) skipRest(kind jsontext.Kind) {
	if kind != '{' && kind != '[' {
		return
	}
	for depth := d.dec.StackDepth(); d.err == nil && d.dec.StackDepth() >= depth; {
		d.nextToken()
	}
}

// readKind reads a value of that kind; of another, wanted is what it must be.
func (d *decoder) readKind(kind jsontext.Kind, wanted string) (value jsontext.Value, ok bool) {
	got, value := d.nextToken()
	if got == kind {
		return value, true
	}
	d.skipRest(got)
	d.addError(wanted)
	return nil, false
}

// skipValue reads a value of any kind.
func (d *decoder) skipValue() {
	kind, _ := d.nextToken()
	d.skipRest(kind)
}

// readObject reads an object and yields the name of each member, whose value is then to be read.
func (d *decoder) readObject(required ...string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if _, ok := d.readKind('{', "must be an object"); !ok {
			return
		}
		for d.err == nil && d.dec.PeekKind() != '}' {
			_, quoted := d.nextToken()
			if d.err != nil {
				return
			}
			name := unquoteString(quoted)
			if !yield(name) {
				return
			}
			required = slices.DeleteFunc(required, func(r string) bool { return r == name })
		}
		d.nextToken()
		for _, name := range required {
			d.addErrorAt("/"+name, "required")
		}
	}
}

// rejectUnknown reads the value of a member that there should not be.
func (d *decoder) rejectUnknown() {
	d.skipValue()
	d.addError("unknown field")
}

// readRaw reads an object and returns it as it is written.
func (d *decoder) readRaw() json.RawMessage {
	if _, ok := d.readKind('{', "must be an object"); !ok {
		return nil
	}
	start := d.dec.InputOffset() - 1
	d.skipRest('{')
	return bytes.Clone(d.body[start:d.dec.InputOffset()])
}

// readList reads an array and yields the index of each item, which is then to be read.
func (d *decoder) readList(limit int) iter.Seq[int] {
	return func(yield func(int) bool) {
		if _, ok := d.readKind('[', "must be an array"); !ok {
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
		d.nextToken()
		if n > limit {
			d.addError(fmt.Sprintf("must not have more than %d items", limit))
		}
	}
}

const (
	maxUnbounded = math.MaxInt // only the bound of the body holds
	mustBeText   = "must be a string"
)

func (d *decoder) readText(limit int) string {
	value, ok := d.readKind('"', mustBeText)
	if !ok {
		return ""
	}
	s := unquoteString(value)
	if len(s) > limit {
		d.addError(fmt.Sprintf("must not be longer than %d bytes", limit))
		return ""
	}
	return s
}

// readName reads a text that names something.
func (d *decoder) readName() string {
	detail := fmt.Sprintf("must be a string of 1 to %d bytes", maxName)
	value, ok := d.readKind('"', detail)
	if !ok {
		return ""
	}
	s := unquoteString(value)
	if s == "" || len(s) > maxName {
		d.addError(detail)
	}
	return s
}

// readID reads a text that ends up in logs, headers and URLs: visible ASCII only.
func (d *decoder) readID() string {
	value, ok := d.readKind('"', mustBeText)
	if !ok {
		return ""
	}
	s := unquoteString(value)
	switch {
	case s == "":
		d.addError("must not be empty")
	case len(s) > maxID:
		d.addError(fmt.Sprintf("must not be longer than %d bytes", maxID))
	case strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }):
		d.addError("must be visible ASCII characters")
	}
	return s
}

func (d *decoder) readChoice(allowed []string) string {
	detail := "must be one of " + strings.Join(allowed, ", ")
	value, ok := d.readKind('"', detail)
	if !ok {
		return ""
	}
	s := unquoteString(value)
	if !slices.Contains(allowed, s) {
		d.addError(detail)
	}
	return s
}

func (d *decoder) readBool() bool {
	kind, _ := d.nextToken()
	if kind != 't' && kind != 'f' {
		d.skipRest(kind)
		d.addError("must be true or false")
	}
	return kind == 't'
}

// readPositive reads a whole number of at least 1.
func (d *decoder) readPositive() int64 {
	const detail = "must be a whole number of at least 1"
	value, ok := d.readKind('0', detail)
	if !ok {
		return 0
	}
	n, ok := agent.ParseJSONInteger(string(value))
	if !ok || n < 1 || n > math.MaxInt32 {
		d.addError(detail)
		return 0
	}
	return int64(n)
}

// readFraction reads a number above 0 and at most limit.
func (d *decoder) readFraction(limit float64) float64 {
	detail := fmt.Sprintf("must be a number above 0 and at most %.0f", limit)
	value, ok := d.readKind('0', detail)
	if !ok {
		return 0
	}
	n, err := strconv.ParseFloat(string(value), 64)
	if err != nil || n <= 0 || n > limit {
		d.addError(detail)
		return 0
	}
	return n
}

// readNames appends a list of names to out. The result of an empty list is not nil: nil means all,
// and an empty list none.
func (d *decoder) readNames(out []string) []string {
	if out == nil {
		out = []string{}
	}
	for range d.readList(maxList) {
		out = append(out, d.readName())
	}
	return out
}

// readPairs reads an object of texts.
func (d *decoder) readPairs() map[string]string {
	out, n := make(map[string]string), 0
	for name := range d.readObject() {
		if n++; n > maxPairs {
			d.skipValue()
			continue
		}
		detail := fmt.Sprintf("must be a string of at most %d bytes under a name of 1 to %d bytes", maxPairText, maxPairKey)
		value, ok := d.readKind('"', detail)
		if !ok {
			continue
		}
		s := unquoteString(value)
		if name == "" || len(name) > maxPairKey || len(s) > maxPairText {
			d.addError(detail)
			continue
		}
		out[name] = s
	}
	if n > maxPairs {
		d.addError(fmt.Sprintf("must not have more than %d members", maxPairs))
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
