package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"answerd/internal/auth"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxFileSize  = 1 << 20 // bytes of mcp.json
	maxFileDepth = 16      // levels of nesting in it
)

// value is a value of mcp.json with what is needed to read it: its name, where it stands for
// error messages, and the environment. Decoding into structs and maps would lose the order of
// the servers, and where a mistake is.
type jsonValue struct {
	file       []byte
	raw        jsontext.Value
	offset     int // offset of raw in file
	nameOffset int // offset of its name where it has one, else begin
	name       string
	path       string
	getenv     func(string) string
}

// readFile returns the value that data is, all of which is JSON. Names that occur twice in
// an object are an error: readers differ in which one they take.
func parseJSON(data []byte, getenv func(string) string) (jsonValue, error) {
	switch {
	case len(data) > maxFileSize:
		return jsonValue{}, fmt.Errorf("larger than %d bytes", maxFileSize)
	case !utf8.Valid(data):
		return jsonValue{}, errors.New("not UTF-8")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	for whole := false; ; whole = dec.StackDepth() == 0 {
		_, err := dec.ReadToken()
		switch {
		case whole && errors.Is(err, io.EOF):
			at := len(data) - len(bytes.TrimLeft(data, " \t\r\n"))
			return jsonValue{file: data, raw: data, nameOffset: at, path: "the file", getenv: getenv}, nil
		case whole:
			return jsonValue{}, fmt.Errorf("line %d: something follows the JSON", lineNumber(data, int(dec.InputOffset())))
		case err != nil:
			return jsonValue{}, syntaxError(data, err)
		case dec.StackDepth() > maxFileDepth:
			return jsonValue{}, fmt.Errorf("line %d: nested deeper than %d levels", lineNumber(data, int(dec.InputOffset())), maxFileDepth)
		}
	}
}

// line returns the line of an offset.
func lineNumber(file []byte, offset int) int { return 1 + bytes.Count(file[:offset], []byte("\n")) }

// syntaxError returns what an error of the decoder means to the operator: with the line, and
// without what the file holds.
func syntaxError(file []byte, err error) error {
	bad, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok || errors.Is(bad, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends too early") // a bare io.EOF where there is nothing
	}
	at := lineNumber(file, int(bad.ByteOffset))
	if errors.Is(bad, jsontext.ErrDuplicateName) {
		return fmt.Errorf("line %d: %.80q is there twice", at, bad.JSONPointer.LastToken())
	}
	what, _, _ := strings.Cut(bad.Err.Error(), " `") // a bad escape is quoted, in either way
	what, _, _ = strings.Cut(what, ` "`)
	return fmt.Errorf("line %d: %s", at, what)
}

// kinds are those of JSON, as in error messages.
var kindNames = map[jsontext.Kind]string{
	'{': "an object", '[': "an array", '"': "a string", '0': "a number", 't': "a boolean", 'f': "a boolean", 'n': "null",
}

// null reports whether v is null.
func (v jsonValue) isNull() bool { return v.raw.Kind() == 'n' }

// errorf is an error about v. It must not quote what v holds: it may be a secret.
func (v jsonValue) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s (line %d)", v.path, fmt.Sprintf(format, args...), lineNumber(v.file, v.nameOffset))
}

// unknown is the error for a field that nobody reads.
func (v jsonValue) unknownField() error { return v.errorf("unknown field") }

// want is the error for a value of another kind.
func (v jsonValue) wrongKind(kind string) error {
	return v.errorf("must be %s, not %s", kind, kindNames[v.raw.Kind()])
}

// object is the members of an object in the file's order, without comments.
func (v jsonValue) readObject() ([]jsonValue, error) {
	if v.raw.Kind() != '{' {
		return nil, v.wrongKind("an object")
	}
	var out []jsonValue
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.raw))
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() != '}' {
		var tok jsontext.Token
		if tok, err = dec.ReadToken(); err != nil {
			break
		}
		m := jsonValue{file: v.file, nameOffset: v.offset + int(dec.InputOffset()), name: tok.String(), getenv: v.getenv}
		m.raw, err = dec.ReadValue()
		m.offset = v.offset + int(dec.InputOffset()) - len(m.raw)
		if m.name == "_comment" || m.name == "$schema" {
			continue
		}
		// Names come from the file: what is not plain is quoted, and cut.
		m.path = fmt.Sprintf("%s, %.80q", v.path, m.name)
		if isPlain(m.name) && len(m.name) <= 80 {
			m.path = v.path + ", " + m.name
			if strings.Contains(v.path, ", ") {
				m.path = v.path + "." + m.name
			}
		}
		out = append(out, m)
	}
	return out, err
}

// isPlain reports whether a field's name can be shown without quotes.
func isPlain(name string) bool {
	isOther := func(r rune) bool {
		return !(r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) || r == '_' || r == '-')
	}
	return name != "" && !strings.ContainsFunc(name, isOther)
}

// array is the items of an array.
func (v jsonValue) readArray() ([]jsonValue, error) {
	if v.raw.Kind() != '[' {
		return nil, v.wrongKind("an array")
	}
	var out []jsonValue
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.raw))
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() != ']' {
		item := jsonValue{file: v.file, path: fmt.Sprintf("%s[%d]", v.path, len(out)), getenv: v.getenv}
		item.raw, err = dec.ReadValue()
		item.offset = v.offset + int(dec.InputOffset()) - len(item.raw)
		item.nameOffset = item.offset
		out = append(out, item)
	}
	return out, err
}

// text is a string with its variables replaced.
func (v jsonValue) readString() (string, error) {
	if v.raw.Kind() != '"' {
		return "", v.wrongKind("a string")
	}
	raw, err := jsontext.AppendUnquote(nil, v.raw)
	if err != nil {
		return "", v.errorf("is not a string")
	}
	s, err := expandVariables(string(raw), v.getenv)
	if err != nil {
		return "", v.errorf("%s", err)
	}
	return s, nil
}

// optional is a text; null is none.
func (v jsonValue) readOptionalString() (string, error) {
	if v.isNull() {
		return "", nil
	}
	return v.readString()
}

// secret is a text that is never printed; null is none.
func (v jsonValue) readSecret() (auth.Secret, error) {
	s, err := v.readOptionalString()
	return auth.NewSecret(s), err
}

// boolean is true or false, and nothing that merely looks like it: "false" in
// quotes must not switch something on.
func (v jsonValue) readBool() (bool, error) {
	if kind := v.raw.Kind(); kind != 't' && kind != 'f' {
		return false, v.wrongKind("a boolean")
	}
	return v.raw.Kind() == 't', nil
}

// count is a whole number above 0.
func (v jsonValue) readCount() (int, error) {
	if v.raw.Kind() != '0' {
		return 0, v.wrongKind("a number")
	}
	i, err := strconv.ParseInt(string(v.raw), 10, 64)
	if err != nil || i < 1 || i > math.MaxInt32 {
		return 0, v.errorf("must be a whole number above 0")
	}
	return int(i), nil
}

// duration is a Go duration, or a number of seconds.
func (v jsonValue) readDuration() (time.Duration, error) {
	if v.raw.Kind() == '0' {
		f, err := strconv.ParseFloat(string(v.raw), 64)
		if err != nil || f <= 0 || f > MaxTimeout.Seconds() {
			return 0, v.errorf("must be more than 0 and at most %s", MaxTimeout)
		}
		return time.Duration(f * float64(time.Second)), nil
	}
	s, err := v.readString()
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > MaxTimeout {
		return 0, v.errorf("must be a duration such as 30s, or a number of seconds, of more than 0 and at most %s", MaxTimeout)
	}
	return d, nil
}

// texts is an object of texts, such as headers; null is none.
func (v jsonValue) readStringMap() (map[string]string, error) {
	if v.isNull() {
		return nil, nil
	}
	members, err := v.readObject()
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(members))
	for _, m := range members {
		if out[m.name], err = m.readString(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// secrets is texts for values that may be secret: headers, a child's environment.
func (v jsonValue) readSecretMap() (map[string]auth.Secret, error) {
	texts, err := v.readStringMap()
	if err != nil || texts == nil {
		return nil, err
	}
	out := make(map[string]auth.Secret, len(texts))
	for name, s := range texts {
		out[name] = auth.NewSecret(s)
	}
	return out, nil
}

// list is an array of texts; null is none.
func (v jsonValue) readStringList() ([]string, error) {
	if v.isNull() {
		return nil, nil
	}
	items, err := v.readArray()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, item := range items {
		s, err := item.readString()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// serverType reads a type, s, in the spellings that hosts and seed 004 use.
func (v jsonValue) parseTransportType(s string) (string, error) {
	switch strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) {
	case "http", "streamablehttp":
		return TypeHTTP, nil
	case "stdio", "process":
		return TypeStdio, nil
	case "websocket", "ws":
		return TypeWebSocket, nil
	case "sse":
		return TypeSSE, nil
	}
	return "", v.errorf("must be http, stdio or websocket")
}

// expand replaces ${NAME} and ${NAME:-default} in s. As in a shell, a variable that
// is empty counts as unset. What a variable holds is not looked at again.
func expandVariables(s string, getenv func(string) string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		inside, after, closed := strings.Cut(rest, "}")
		name, fallback, hasFallback := strings.Cut(inside, ":-")
		if !closed || !isVariableName(name) {
			return "", errors.New("has a ${ that is not ${NAME} or ${NAME:-default}")
		}
		value := getenv(name)
		if value == "" && !hasFallback {
			return "", fmt.Errorf("needs the environment variable %s, which is not set", name)
		}
		if value == "" {
			value = fallback
		}
		out.WriteString(value)
		s = after
	}
}

// isVariable reports whether s is a name as shells take it.
func isVariableName(s string) bool {
	for i, r := range s {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
