package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"answerd/internal/auth"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxConfig      = 1 << 20 // bytes of mcp.json
	maxConfigDepth = 16      // levels of nesting in it
)

// value is a value of mcp.json with what is needed to read it: its name, where it stands for
// error messages, and the environment. Decoding into structs and maps would lose the order of
// the servers, and where a mistake is.
type value struct {
	file   []byte
	raw    jsontext.Value
	begin  int // offset of raw in file
	at     int // offset of its name where it has one, else begin
	name   string
	path   string
	getenv func(string) string
}

// readFile returns the value that data is, all of which is JSON. Names that occur twice in
// an object are an error: readers differ in which one they take.
func readFile(data []byte, getenv func(string) string) (value, error) {
	switch {
	case len(data) > maxConfig:
		return value{}, fmt.Errorf("larger than %d bytes", maxConfig)
	case !utf8.Valid(data):
		return value{}, errors.New("not UTF-8")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	for whole := false; ; whole = dec.StackDepth() == 0 {
		_, err := dec.ReadToken()
		switch {
		case whole && errors.Is(err, io.EOF):
			at := len(data) - len(bytes.TrimLeft(data, " \t\r\n"))
			return value{file: data, raw: data, at: at, path: "the file", getenv: getenv}, nil
		case whole:
			return value{}, fmt.Errorf("line %d: something follows the JSON", line(data, int(dec.InputOffset())))
		case err != nil:
			return value{}, syntaxError(data, err)
		case dec.StackDepth() > maxConfigDepth:
			return value{}, fmt.Errorf("line %d: nested deeper than %d levels", line(data, int(dec.InputOffset())), maxConfigDepth)
		}
	}
}

// line returns the line of an offset.
func line(file []byte, offset int) int { return 1 + bytes.Count(file[:offset], []byte("\n")) }

// syntaxError returns what an error of the decoder means to the operator: with the line, and
// without what the file holds.
func syntaxError(file []byte, err error) error {
	bad, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok || errors.Is(bad, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends too early") // a bare io.EOF where there is nothing
	}
	at := line(file, int(bad.ByteOffset))
	if errors.Is(bad, jsontext.ErrDuplicateName) {
		return fmt.Errorf("line %d: %.80q is there twice", at, bad.JSONPointer.LastToken())
	}
	what, _, _ := strings.Cut(bad.Err.Error(), " `") // a bad escape is quoted, in either way
	what, _, _ = strings.Cut(what, ` "`)
	return fmt.Errorf("line %d: %s", at, what)
}

// kinds are those of JSON, as in error messages.
var kinds = map[jsontext.Kind]string{
	'{': "an object", '[': "an array", '"': "a string", '0': "a number", 't': "a boolean", 'f': "a boolean", 'n': "null",
}

// null reports whether v is null.
func (v value) null() bool { return v.raw.Kind() == 'n' }

// errorf is an error about v. It must not quote what v holds: it may be a secret.
func (v value) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s (line %d)", v.path, fmt.Sprintf(format, args...), line(v.file, v.at))
}

// unknown is the error for a field that nobody reads.
func (v value) unknown() error { return v.errorf("unknown field") }

// want is the error for a value of another kind.
func (v value) want(kind string) error {
	return v.errorf("must be %s, not %s", kind, kinds[v.raw.Kind()])
}

// object is the members of an object in the file's order, without comments.
func (v value) object() ([]value, error) {
	if v.raw.Kind() != '{' {
		return nil, v.want("an object")
	}
	var out []value
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.raw))
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() != '}' {
		var tok jsontext.Token
		if tok, err = dec.ReadToken(); err != nil {
			break
		}
		m := value{file: v.file, at: v.begin + int(dec.InputOffset()), name: tok.String(), getenv: v.getenv}
		m.raw, err = dec.ReadValue()
		m.begin = v.begin + int(dec.InputOffset()) - len(m.raw)
		if m.name == "_comment" || m.name == "$schema" {
			continue
		}
		// Names come from the file: what is not plain is quoted, and cut.
		m.path = fmt.Sprintf("%s, %.80q", v.path, m.name)
		if plain := strings.IndexFunc(m.name, unsafe) < 0 && m.name != ""; plain && len(m.name) <= 80 {
			m.path = v.path + ", " + m.name
			if strings.Contains(v.path, ", ") {
				m.path = v.path + "." + m.name
			}
		}
		out = append(out, m)
	}
	return out, err
}

// array is the items of an array.
func (v value) array() ([]value, error) {
	if v.raw.Kind() != '[' {
		return nil, v.want("an array")
	}
	var out []value
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.raw))
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() != ']' {
		item := value{file: v.file, path: fmt.Sprintf("%s[%d]", v.path, len(out)), getenv: v.getenv}
		item.raw, err = dec.ReadValue()
		item.begin = v.begin + int(dec.InputOffset()) - len(item.raw)
		item.at = item.begin
		out = append(out, item)
	}
	return out, err
}

// text is a string with its variables replaced.
func (v value) text() (string, error) {
	if v.raw.Kind() != '"' {
		return "", v.want("a string")
	}
	raw, err := jsontext.AppendUnquote(nil, v.raw)
	if err != nil {
		return "", v.errorf("is not a string")
	}
	s, err := expand(string(raw), v.getenv)
	if err != nil {
		return "", v.errorf("%s", err)
	}
	return s, nil
}

// optional is a text; null is none.
func (v value) optional() (string, error) {
	if v.null() {
		return "", nil
	}
	return v.text()
}

// secret is a text that is never printed; null is none.
func (v value) secret() (auth.Secret, error) {
	s, err := v.optional()
	return auth.NewSecret(s), err
}

// boolean is true or false, and nothing that merely looks like it: "false" in
// quotes must not switch something on.
func (v value) boolean() (bool, error) {
	if kind := v.raw.Kind(); kind != 't' && kind != 'f' {
		return false, v.want("a boolean")
	}
	return v.raw.Kind() == 't', nil
}

// count is a whole number above 0.
func (v value) count() (int, error) {
	if v.raw.Kind() != '0' {
		return 0, v.want("a number")
	}
	i, err := strconv.ParseInt(string(v.raw), 10, 64)
	if err != nil || i < 1 || i > math.MaxInt32 {
		return 0, v.errorf("must be a whole number above 0")
	}
	return int(i), nil
}

// duration is a Go duration, or a number of seconds.
func (v value) duration() (time.Duration, error) {
	if v.raw.Kind() == '0' {
		f, err := strconv.ParseFloat(string(v.raw), 64)
		if err != nil || f <= 0 || f > maxTimeout.Seconds() {
			return 0, v.errorf("must be more than 0 and at most %s", maxTimeout)
		}
		return time.Duration(f * float64(time.Second)), nil
	}
	s, err := v.text()
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > maxTimeout {
		return 0, v.errorf("must be a duration such as 30s, or a number of seconds, of more than 0 and at most %s", maxTimeout)
	}
	return d, nil
}

// texts is an object of texts, such as headers; null is none.
func (v value) texts() (map[string]string, error) {
	if v.null() {
		return nil, nil
	}
	members, err := v.object()
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(members))
	for _, m := range members {
		if out[m.name], err = m.text(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// secrets is texts for values that may be secret: headers, a child's environment.
func (v value) secrets() (map[string]auth.Secret, error) {
	texts, err := v.texts()
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
func (v value) list() ([]string, error) {
	if v.null() {
		return nil, nil
	}
	items, err := v.array()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, item := range items {
		s, err := item.text()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// serverType reads a type, s, in the spellings that hosts and seed 004 use.
func (v value) serverType(s string) (string, error) {
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
func expand(s string, getenv func(string) string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		inside, after, closed := strings.Cut(rest, "}")
		name, fallback, hasFallback := strings.Cut(inside, ":-")
		if !closed || !isVariable(name) {
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
func isVariable(s string) bool {
	for i, r := range s {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
