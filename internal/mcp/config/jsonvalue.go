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

// jsonValue is one value of mcp.json with its name, its position for error messages, and the
// environment. Decoding into structs and maps would lose the order of the servers and the
// positions.
type jsonValue struct {
	file       []byte
	raw        jsontext.Value
	offset     int // offset of raw in file
	nameOffset int // offset of its name where it has one, else begin
	name       string
	path       string
	reader     *fileReader
}

// fileReader is what the values of one file share: what ${…} stands for, and the warnings.
type fileReader struct {
	getenv   func(string) string
	inputs   map[string]string // default values of inputs, by id
	unset    []string          // inputs without any value that servers refer to
	warnings []string
	more     int // warnings that are not kept
}

// maxWarnings bounds the warnings about one file.
const maxWarnings = 50

func (r *fileReader) warn(text string) {
	if len(r.warnings) == maxWarnings {
		r.more++
		return
	}
	r.warnings = append(r.warnings, text)
}

// parseJSON returns the JSON value that is all of data. Duplicate names in an object are an
// error, since readers differ in which one counts.
func parseJSON(data []byte, reader *fileReader) (jsonValue, error) {
	switch {
	case len(data) > maxFileSize:
		return jsonValue{}, fmt.Errorf("larger than %d bytes", maxFileSize)
	case !utf8.Valid(data):
		return jsonValue{}, errors.New("not UTF-8")
	}
	data = blankComments(data)
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	for complete := false; ; complete = dec.StackDepth() == 0 {
		_, err := dec.ReadToken()
		switch {
		case complete && errors.Is(err, io.EOF):
			at := len(data) - len(bytes.TrimLeft(data, " \t\r\n"))
			return jsonValue{file: data, raw: data, nameOffset: at, path: "the file", reader: reader}, nil
		case complete:
			return jsonValue{}, fmt.Errorf("line %d: something follows the JSON", lineNumber(data, int(dec.InputOffset())))
		case err != nil:
			return jsonValue{}, syntaxError(data, err)
		case dec.StackDepth() > maxFileDepth:
			return jsonValue{}, fmt.Errorf("line %d: nested deeper than %d levels", lineNumber(data, int(dec.InputOffset())), maxFileDepth)
		}
	}
}

// blankComments returns data with spaces for comments, so that offsets and lines stay. VS Code,
// Cursor and Gemini CLI read files that have them.
func blankComments(data []byte) []byte {
	out := bytes.Clone(data)
	for i := 0; i < len(out); i++ {
		rest := out[i:]
		switch {
		case out[i] == '"':
			for i++; i < len(out) && out[i] != '"'; i++ {
				if out[i] == '\\' {
					i++
				}
			}
		case bytes.HasPrefix(rest, []byte("//")):
			n := bytes.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			blank(rest[:n])
		case bytes.HasPrefix(rest, []byte("/*")):
			if n := bytes.Index(rest[2:], []byte("*/")); n >= 0 {
				blank(rest[:n+4])
			}
		}
	}
	return out
}

// blank replaces everything but line feeds by spaces.
func blank(text []byte) {
	for i, c := range text {
		if c != '\n' {
			text[i] = ' '
		}
	}
}

// lineNumber returns the number of the line at an offset, from 1.
func lineNumber(file []byte, offset int) int { return 1 + bytes.Count(file[:offset], []byte("\n")) }

// syntaxError returns an error of the decoder for the operator: with the line, and without
// what the file holds, which may be a secret.
func syntaxError(file []byte, err error) error {
	bad, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok || errors.Is(bad, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends too early") // it is io.EOF if the file is empty
	}
	at := lineNumber(file, int(bad.ByteOffset))
	if errors.Is(bad, jsontext.ErrDuplicateName) {
		return fmt.Errorf("line %d: %.80q is there twice", at, bad.JSONPointer.LastToken())
	}
	what, _, _ := strings.Cut(bad.Err.Error(), " `") // the library quotes a bad escape in either of two ways
	what, _, _ = strings.Cut(what, ` "`)
	return fmt.Errorf("line %d: %s", at, what)
}

// kindNames has the names of the JSON types in error messages.
var kindNames = map[jsontext.Kind]string{
	'{': "an object", '[': "an array", '"': "a string", '0': "a number", 't': "a boolean", 'f': "a boolean", 'n': "null",
}

// isNull reports whether v is null.
func (v jsonValue) isNull() bool { return v.raw.Kind() == 'n' }

// errorf returns an error about v. The text must not quote what v holds: it may be a secret.
func (v jsonValue) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s (line %d)", v.path, fmt.Sprintf(format, args...), lineNumber(v.file, v.nameOffset))
}

// warnUnknown adds the warning for a member that has no reader. Other hosts have members of their
// own, and their files load as they are.
func (v jsonValue) warnUnknown() { v.reader.warn(v.errorf("unknown member").Error()) }

// wrongKind returns the error for a value of another type than the one that is expected.
func (v jsonValue) wrongKind(kind string) error {
	return v.errorf("must be %s, not %s", kind, kindNames[v.raw.Kind()])
}

// readObject returns the members of an object in the file's order, without comments.
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
		m := jsonValue{file: v.file, nameOffset: v.offset + int(dec.InputOffset()), name: tok.String(), reader: v.reader}
		m.raw, err = dec.ReadValue()
		m.offset = v.offset + int(dec.InputOffset()) - len(m.raw)
		if m.name == "_comment" || m.name == "$schema" {
			continue
		}
		// Names come from the file: names with other characters are quoted and truncated.
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

// readArray returns the items of an array.
func (v jsonValue) readArray() ([]jsonValue, error) {
	if v.raw.Kind() != '[' {
		return nil, v.wrongKind("an array")
	}
	var out []jsonValue
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.raw))
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() != ']' {
		item := jsonValue{file: v.file, path: fmt.Sprintf("%s[%d]", v.path, len(out)), reader: v.reader}
		item.raw, err = dec.ReadValue()
		item.offset = v.offset + int(dec.InputOffset()) - len(item.raw)
		item.nameOffset = item.offset
		out = append(out, item)
	}
	return out, err
}

// readString returns a string with its variables replaced.
func (v jsonValue) readString() (string, error) {
	if v.raw.Kind() != '"' {
		return "", v.wrongKind("a string")
	}
	raw, err := jsontext.AppendUnquote(nil, v.raw)
	if err != nil {
		return "", v.errorf("is not a string")
	}
	s, err := v.reader.expandVariables(string(raw))
	if err != nil {
		return "", v.errorf("%s", err)
	}
	return s, nil
}

// readOptionalString returns a string like readString, and "" for null.
func (v jsonValue) readOptionalString() (string, error) {
	if v.isNull() {
		return "", nil
	}
	return v.readString()
}

// readSecret returns a string that is never printed, and an empty one for null.
func (v jsonValue) readSecret() (auth.Secret, error) {
	s, err := v.readOptionalString()
	return auth.NewSecret(s), err
}

// readBool returns a boolean. Strings are errors: "false" in quotes must not switch
// something on.
func (v jsonValue) readBool() (bool, error) {
	if kind := v.raw.Kind(); kind != 't' && kind != 'f' {
		return false, v.wrongKind("a boolean")
	}
	return v.raw.Kind() == 't', nil
}

// readCount returns an integer above 0.
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

// readDuration returns a duration, written as in Go or as a number of seconds.
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

// maxSeconds is the largest number that readTimeout takes for seconds.
const maxSeconds = 3600

// readTimeout returns a duration like readDuration, but takes numbers above maxSeconds for
// milliseconds, which some hosts write (Gemini CLI, MCPHub). Others write seconds (Cline).
func (v jsonValue) readTimeout() (time.Duration, error) {
	if v.raw.Kind() == '0' {
		if f, err := strconv.ParseFloat(string(v.raw), 64); err == nil && f > maxSeconds && f <= MaxTimeout.Seconds()*1000 {
			return time.Duration(f * float64(time.Millisecond)), nil
		}
	}
	return v.readDuration()
}

// readStringMap returns an object of strings, such as query; null is an empty one.
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

// readSecretMap returns an object of strings that may be secret: headers, env.
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

// readStringList returns an array of strings; null is an empty one.
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

// appendStrings appends an array of strings to list.
func (v jsonValue) appendStrings(list *[]string) error {
	more, err := v.readStringList()
	*list = append(*list, more...)
	return err
}

// parseTransportType returns the type for s, in any of the spellings that hosts use.
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
	return "", v.errorf("must be http, stdio, websocket or sse")
}
