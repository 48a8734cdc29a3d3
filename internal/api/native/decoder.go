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
	"answerd/internal/agent/thread"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is the deepest allowed nesting of a body. A question needs three levels; the arguments of a tool need more.
const maxDepth = 16

// maxValues is the largest number of values in a body. Without this limit, a body of small values such as {} would make
// the server allocate about thirty times the body's size when the arguments of a tool are decoded.
const maxValues = 1 << 16

// FieldError describes one error in a body.
type FieldError struct {
	Pointer string `json:"pointer"` // RFC 6901; "" is the body itself
	Detail  string `json:"detail"`
}

// Invalid is the error for a body that is not a valid request. It lists the body's errors, at most maxErrors, sorted by
// pointer.
type Invalid struct{ Errors []FieldError }

// Error returns all errors on one line.
func (e *Invalid) Error() string {
	parts := make([]string, len(e.Errors))
	for i, f := range e.Errors {
		parts[i] = strings.TrimPrefix(f.Pointer+": "+f.Detail, ": ")
	}
	return strings.Join(parts, "; ")
}

// NewInvalid returns an *Invalid with one error.
func NewInvalid(pointer, detail string) error {
	return &Invalid{[]FieldError{{pointer, detail}}}
}

// decoder reads the fields of one body in order and collects errors. If a field is wrong, the method that reads it adds
// an error, and reading continues with the next field. So a client learns of all errors with one request. The values
// that were read count only if finishBody returns nil. An error in the JSON itself ends the reading, because what
// follows has no certain meaning.
//
// jsontext refuses duplicate names, invalid UTF-8 and lone surrogates, whose meaning RFC 8259 leaves open. Otherwise an
// attacker could send a body that this service and the next reader understand differently.
type decoder struct {
	dec        *jsontext.Decoder
	body       []byte
	field      string       // the JSON pointer to the body in the request; "" for the whole request
	mayHaveNUL bool         // the body contains the escape of U+0000, so every string is checked for it
	values     int          // the number of values read or begun, at most maxValues
	extraDepth int          // how many levels the current value may have in addition to maxDepth
	errors     []FieldError // errors of single fields, at most maxErrors
	err        error        // an *Invalid that ends reading: the body is not JSON or exceeds a bound
}

// newDecoder returns a decoder for body. field is the JSON pointer to body in the request, for errors. If body is not
// an object, finishBody returns that error.
func newDecoder(field string, body []byte) *decoder {
	// For a bytes.Buffer, jsontext.Decoder reads the bytes in place instead of copying them. It
	// does not change them.
	dec := jsontext.NewDecoder(bytes.NewBuffer(body))
	d := &decoder{dec: dec, body: body, field: field, mayHaveNUL: bytes.Contains(body, []byte(`\u0000`))}
	if kind := d.dec.PeekKind(); kind != '{' && kind != jsontext.KindInvalid {
		d.err = NewInvalid(field, "must be an object")
	}
	return d
}

// finishBody checks that the body ends after its object. It returns all errors as an *Invalid, or nil. If an error has
// ended the reading, it returns only that one, because the others may be its consequences.
func (d *decoder) finishBody() error {
	if d.err != nil {
		return d.err
	}
	if _, err := d.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return NewInvalid(d.field, fmt.Sprintf("there is more after the JSON value, at byte %d", d.dec.InputOffset()))
	}
	if len(d.errors) == 0 {
		return nil
	}
	slices.SortStableFunc(d.errors, func(a, b FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return &Invalid{d.errors}
}

// addError adds an error about the value that was read last.
func (d *decoder) addError(detail string) { d.addErrorAt("", detail) }

// addErrorAt adds an error about a part of the value that was read last. suffix is the JSON pointer from the value to
// the part, such as "/name"; "" is the value itself. It does nothing if the decoder has maxErrors, or an error has
// ended the reading.
func (d *decoder) addErrorAt(suffix, detail string) {
	if d.err == nil && len(d.errors) < maxErrors {
		d.errors = append(d.errors, FieldError{d.currentPointer() + suffix, detail})
	}
}

// nextToken reads a string, a name, a number or a literal and returns its JSON as value, or reads the beginning or end
// of an object or array and returns a nil value. kind is KindInvalid if reading has ended, with this token or before.
// All values are read here, so the bounds in checkBounds hold for every field, including those that are skipped.
func (d *decoder) nextToken() (kind jsontext.Kind, value jsontext.Value) {
	if d.err != nil {
		return jsontext.KindInvalid, nil
	}
	var err error
	kind = d.dec.PeekKind()
	switch kind {
	case '{', '[', '}', ']':
		_, err = d.dec.ReadToken()
	default:
		value, err = d.dec.ReadValue()
	}
	if err == nil {
		err = d.checkBounds(kind, value)
	}
	if err != nil {
		d.err = d.invalidError(err)
		return jsontext.KindInvalid, nil
	}
	return kind, value
}

// checkBounds checks the token that was read last; kind and value are those of the token. It returns an *Invalid if the
// token exceeds maxDepth or maxValues, or is a string with U+0000, which many readers of events and logs cannot
// represent. If a value begins with the token, checkBounds counts it in d.values.
func (d *decoder) checkBounds(kind jsontext.Kind, value jsontext.Value) error {
	// In an object, jsontext counts names and values, so after a name the count is odd.
	parent, count := d.dec.StackIndex(d.dec.StackDepth())
	isName := kind == '"' && parent == '{' && count%2 == 1
	switch {
	case kind == '}' || kind == ']':
		return nil
	case d.dec.StackDepth() > maxDepth+d.extraDepth:
		return NewInvalid(d.currentPointer(), fmt.Sprintf("nested deeper than %d levels", maxDepth+d.extraDepth))
	case kind == '"' && d.mayHaveNUL && strings.Contains(unquoteString(value), "\x00"):
		return NewInvalid(d.currentPointer(), "contains U+0000")
	case isName:
		return nil
	case d.values == maxValues:
		return NewInvalid(d.field, fmt.Sprintf("holds more than %d values", maxValues))
	}
	d.values++
	return nil
}

// currentPointer returns the JSON pointer of the value that was read last.
func (d *decoder) currentPointer() string { return d.field + string(d.dec.StackPointer()) }

// unquoteString returns the text of a JSON string. Most strings have no escapes, so they need no unquoting.
func unquoteString(value jsontext.Value) string {
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1])
	}
	text, _ := jsontext.AppendUnquote(nil, value) // cannot fail: the decoder has checked the string
	return string(text)
}

// invalidError turns an error of jsontext into an *Invalid with a text of this package. The library's texts are not
// part of the API, and may change with its version. An *Invalid is returned unchanged.
func (d *decoder) invalidError(err error) error {
	if errors.As(err, new(*Invalid)) {
		return err
	}
	if !utf8.Valid(d.body) {
		return NewInvalid(d.field, "the body is not valid UTF-8")
	}
	syntaxErr := &jsontext.SyntacticError{Err: err} // for an empty body, the decoder returns io.EOF alone
	errors.As(err, &syntaxErr)
	return NewInvalid(d.field+string(syntaxErr.JSONPointer), d.syntaxDetail(syntaxErr))
}

// syntaxDetail describes a syntax error in the body to the client.
func (d *decoder) syntaxDetail(err *jsontext.SyntacticError) string {
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "the JSON ends too early"
	case errors.Is(err, jsontext.ErrDuplicateName):
		return "given twice"
	case d.hasSurrogateAt(err.ByteOffset):
		return "contains half a surrogate pair"
	}
	return fmt.Sprintf("not JSON at byte %d", err.ByteOffset)
}

// hasSurrogateAt reports whether an escape of a surrogate, such as \ud83d, begins at that offset in the body.
func (d *decoder) hasSurrogateAt(offset int64) bool {
	escape := d.body[offset:min(offset+3, int64(len(d.body)))]
	return bytes.EqualFold(escape, []byte(`\ud`))
}

// skipRest skips the rest of the object or array whose beginning was read last. kind is that of the last token; for any
// other kind, skipRest does nothing.
func (d *decoder) skipRest(kind jsontext.Kind) {
	if kind != '{' && kind != '[' {
		return
	}
	for depth := d.dec.StackDepth(); d.err == nil && d.dec.StackDepth() >= depth; {
		d.nextToken()
	}
}

// readKind reads a string, number or literal of the given kind and returns its JSON, or reads the beginning of an
// object or array. If the next value is of another kind, readKind skips it, adds an error with detail, such as "must be
// a string", and returns false.
func (d *decoder) readKind(kind jsontext.Kind, detail string) (value jsontext.Value, ok bool) {
	got, value := d.nextToken()
	if got == kind {
		return value, true
	}
	d.skipRest(got)
	d.addError(detail)
	return nil, false
}

// readString reads a string and returns its text. If the next value is of another kind, readString skips it, adds an
// error with detail, and returns false.
func (d *decoder) readString(detail string) (text string, ok bool) {
	value, ok := d.readKind('"', detail)
	if !ok {
		return "", false
	}
	return unquoteString(value), true
}

// skipValue skips a value of any kind.
func (d *decoder) skipValue() {
	kind, _ := d.nextToken()
	d.skipRest(kind)
}

// readObject reads an object and yields the name of each member. The loop body must read the member's value, and must
// not break. After the object, readObject adds an error for each required member that is missing. The loop also ends if
// an error ends the reading.
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
		d.nextToken() // the closing brace
		for _, name := range required {
			d.addErrorAt("/"+name, "required")
		}
	}
}

// rejectUnknown skips the value of an unknown member, and adds an error.
func (d *decoder) rejectUnknown() {
	d.skipValue()
	d.addError("unknown field")
}

// readRawObject reads an object and returns its text unchanged, so that large numbers keep all their digits.
func (d *decoder) readRawObject() json.RawMessage {
	if _, ok := d.readKind('{', "must be an object"); !ok {
		return nil
	}
	start := d.dec.InputOffset() - 1 // of the opening brace, which was read last
	d.skipRest('{')
	return bytes.Clone(d.body[start:d.dec.InputOffset()])
}

// extraSchemaDepth is how many levels a schema may have in addition to maxDepth. A schema needs two levels for each
// level of the values that it describes.
const extraSchemaDepth = 48

// readSchema reads a JSON Schema, which must be an object, and returns its text unchanged.
func (d *decoder) readSchema() json.RawMessage {
	d.extraDepth = extraSchemaDepth
	raw := d.readRawObject()
	d.extraDepth = 0
	return raw
}

// readList reads an array and yields the index of each item. The loop body must read the item, and must not break. If
// the array has more than limit items, readList skips the rest and adds one error.
func (d *decoder) readList(limit int) iter.Seq[int] {
	return func(yield func(int) bool) {
		if _, ok := d.readKind('[', "must be an array"); !ok {
			return
		}
		count := 0
		for ; d.err == nil && d.dec.PeekKind() != ']'; count++ {
			if count >= limit {
				d.skipValue()
			} else if !yield(count) {
				return
			}
		}
		d.nextToken() // the closing bracket
		if count > limit {
			d.addError(fmt.Sprintf("must not have more than %d items", limit))
		}
	}
}

const (
	maxUnbounded = math.MaxInt // only the size of the body limits the value
	mustBeText   = "must be a string"
)

// readText reads a string of at most limit characters, which may be empty.
func (d *decoder) readText(limit int) string {
	s, _ := d.readString(mustBeText)
	if utf8.RuneCountInString(s) > limit {
		d.addError(fmt.Sprintf("must not be longer than %d characters", limit))
		return ""
	}
	return s
}

// readName reads the name of a server, a prompt or a tool, of 1 to maxName characters.
func (d *decoder) readName() string {
	detail := fmt.Sprintf("must be a string of 1 to %d characters", maxName)
	s, ok := d.readString(detail)
	if ok && (s == "" || utf8.RuneCountInString(s) > maxName) {
		d.addError(detail)
	}
	return s
}

// readID reads an identifier that has the form of a thread id (thread.IsID).
func (d *decoder) readID() string {
	s, ok := d.readString(mustBeText)
	if ok && !thread.IsID(s) {
		d.addError(thread.IDRule)
	}
	return s
}

// readChoice reads a string that is one of allowed.
func (d *decoder) readChoice(allowed []string) string {
	detail := "must be one of " + strings.Join(allowed, ", ")
	s, ok := d.readString(detail)
	if ok && !slices.Contains(allowed, s) {
		d.addError(detail)
	}
	return s
}

// readBool reads true or false.
func (d *decoder) readBool() bool {
	kind, _ := d.nextToken()
	if kind != 't' && kind != 'f' {
		d.skipRest(kind)
		d.addError("must be true or false")
	}
	return kind == 't'
}

// readInteger reads an integer from 1 to 2³¹-1, in any spelling that JSON Schema counts as an integer, such as 1.0 or
// 1e2. It returns 0 for any other value, and adds an error.
func (d *decoder) readInteger() int64 {
	const detail = "must be a whole number of at least 1"
	value, ok := d.readKind(jsontext.KindNumber, detail)
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

// readNumber reads a number greater than 0 and at most limit, with or without a fraction. It returns 0 for any other
// value, and adds an error.
func (d *decoder) readNumber(limit float64) float64 {
	detail := fmt.Sprintf("must be a number above 0 and at most %.0f", limit)
	value, ok := d.readKind(jsontext.KindNumber, detail)
	if !ok {
		return 0
	}
	number, err := strconv.ParseFloat(string(value), 64)
	if err != nil || number <= 0 || number > limit {
		d.addError(detail)
		return 0
	}
	return number
}

// readNames reads a list of at most maxList names and returns out with the names appended. The result is never nil: in
// a request, nil allows all servers or tools, and an empty list allows none.
func (d *decoder) readNames(out []string) []string {
	if out == nil {
		out = []string{}
	}
	for range d.readList(maxList) {
		out = append(out, d.readName())
	}
	return out
}

// readPairs reads an object whose values are strings, such as metadata. It may have maxPairs members, with names of at
// most maxPairKey characters and values of at most maxPairText characters. The result is nil if the object has no valid
// members.
func (d *decoder) readPairs() map[string]string {
	out := make(map[string]string)
	count := 0 // members, including those with errors
	for name := range d.readObject() {
		count++
		if count > maxPairs {
			d.skipValue()
			continue
		}
		detail := fmt.Sprintf("must be a string of at most %d characters under a name of 1 to %d characters", maxPairText, maxPairKey)
		s, ok := d.readString(detail)
		switch {
		case !ok: // readString has added the error
		case name == "" || utf8.RuneCountInString(name) > maxPairKey || utf8.RuneCountInString(s) > maxPairText:
			d.addError(detail)
		default:
			out[name] = s
		}
	}
	if count > maxPairs {
		d.addError(fmt.Sprintf("must not have more than %d members", maxPairs))
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
