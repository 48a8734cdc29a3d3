package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"answerd/internal/auth"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxFileSize  = 1 << 20 // bytes of mcp.json
	maxFileDepth = 16      // levels of nesting in it
)

// jsonValue is one value of mcp.json with its name and its position, which errors need. Decoding into structs and maps
// would lose the positions and the order of the servers.
type jsonValue struct {
	file       []byte         // the whole file
	raw        jsontext.Value // the value's bytes
	offset     int            // offset of raw in file
	nameOffset int            // offset of the name in file, or of raw if the value has no name
	name       string         // the member's name; "" for an item of an array
	path       string         // the place for errors, such as: server "crm", auth.type
	reader     *fileReader
}

// fileReader has the state that all values of one file share: the values of variables, and the warnings.
type fileReader struct {
	getenv   func(string) string
	inputs   map[string]string // default values of inputs, by id
	unset    []string          // inputs that servers use and that have no value
	warnings []string
	more     int // warnings beyond maxWarnings

	inDisabled bool // the values are those of a disabled server
	incomplete bool // a value of the present server needs something that does not exist; only if inDisabled
}

// startServer prepares r for the values of a server with these fields.
func (r *fileReader) startServer(fields []jsonValue) {
	r.inDisabled = slices.ContainsFunc(fields, func(f jsonValue) bool {
		return f.name == "disabled" && f.raw.Kind() == 't' || f.name == "enabled" && f.raw.Kind() == 'f'
	})
	r.incomplete = false
}

// reportMissing returns err, which says that a value needs a variable or a file that does not exist. In a disabled
// server it returns nil and sets r.incomplete, because the server is not used, and what it needs may not exist here.
func (r *fileReader) reportMissing(err error) error {
	if !r.inDisabled {
		return err
	}
	r.incomplete = true
	return nil
}

// maxWarnings is the maximum number of warnings about one file.
const maxWarnings = 50

// warn adds a warning. It only counts the warning if there are maxWarnings already.
func (r *fileReader) warn(text string) {
	if len(r.warnings) == maxWarnings {
		r.more++
		return
	}
	r.warnings = append(r.warnings, text)
}

// byteOrderMark may be at the start of a file that was saved on Windows.
const byteOrderMark = "\ufeff"

// parseJSON parses data as one JSON value, ignoring comments, commas before } and ], and a byte order mark. It rejects
// more than maxFileSize bytes and more than maxFileDepth levels. Duplicate names in an object are an error, because
// programs differ about which one counts (RFC 8259 section 4).
func parseJSON(data []byte, reader *fileReader) (jsonValue, error) {
	switch {
	case len(data) > maxFileSize:
		return jsonValue{}, fmt.Errorf("larger than %d bytes", maxFileSize)
	case !utf8.Valid(data):
		return jsonValue{}, errors.New("not UTF-8")
	}
	data = blankComments(bytes.TrimPrefix(data, []byte(byteOrderMark)))
	blankTrailingCommas(data)
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	isComplete := false
	for !isComplete {
		if _, err := dec.ReadToken(); err != nil {
			return jsonValue{}, syntaxError(data, err)
		}
		if dec.StackDepth() > maxFileDepth {
			return jsonValue{}, fmt.Errorf("line %d: nested deeper than %d levels", lineNumber(data, int(dec.InputOffset())), maxFileDepth)
		}
		isComplete = dec.StackDepth() == 0
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return jsonValue{}, fmt.Errorf("line %d: there is more text after the JSON", lineNumber(data, int(dec.InputOffset())))
	}
	start := len(data) - len(bytes.TrimLeft(data, " \t\r\n"))
	return jsonValue{file: data, raw: data, nameOffset: start, path: "the file", reader: reader}, nil
}

// blankComments returns a copy of data in which spaces replace the comments, so that offsets and line numbers stay
// valid. VS Code, Cursor and Gemini CLI accept comments. blankComments recognizes only strings and comments, because
// the decoder checks the rest. It keeps a comment that is not closed, so that the decoder reports it.
func blankComments(data []byte) []byte {
	out := bytes.Clone(data)
	for i := 0; i < len(out); i++ {
		rest := out[i:] // shares the memory of out, so blankText changes out
		switch {
		case out[i] == '"':
			i += endOfString(rest)
		case bytes.HasPrefix(rest, []byte("//")):
			n := bytes.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			blankText(rest[:n])
		case bytes.HasPrefix(rest, []byte("/*")):
			if n := bytes.Index(rest[2:], []byte("*/")); n >= 0 {
				blankText(rest[:n+len("/*")+len("*/")])
			}
		}
	}
	return out
}

// blankTrailingCommas replaces the comma before each } and ] by a space. VS Code and Cursor accept such commas. data must
// not have comments.
func blankTrailingCommas(data []byte) {
	comma := -1 // index of a comma after which there was only white space so far; -1 if there is none
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case ' ', '\t', '\r', '\n':
			continue
		case ',':
			comma = i
			continue
		case '}', ']':
			if comma >= 0 {
				data[comma] = ' '
			}
		case '"':
			i += endOfString(data[i:])
		}
		comma = -1
	}
}

// endOfString returns the index of the quote that closes the string at the start of text, or len(text) if the string is
// not closed.
func endOfString(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i
		case '\\':
			i++ // the next byte is escaped, and may be a quote
		}
	}
	return len(text)
}

// blankText replaces every byte of text except line feeds by a space.
func blankText(text []byte) {
	for i, c := range text {
		if c != '\n' {
			text[i] = ' '
		}
	}
}

// lineNumber returns the number of the line at offset, counting from 1.
func lineNumber(file []byte, offset int) int { return 1 + bytes.Count(file[:offset], []byte("\n")) }

// syntaxError converts the decoder's error to one for the operator, with the line number and without any content of the
// file, which may be secret.
func syntaxError(file []byte, err error) error {
	syntactic, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok || errors.Is(syntactic, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends too early") // the error for an empty file is io.EOF
	}
	line := lineNumber(file, int(syntactic.ByteOffset))
	if errors.Is(syntactic, jsontext.ErrDuplicateName) {
		return fmt.Errorf("line %d: %.80q appears twice", line, syntactic.JSONPointer.LastToken())
	}
	// Remove the part that quotes the file, which begins in one of two ways.
	reason, _, _ := strings.Cut(syntactic.Err.Error(), " `")
	reason, _, _ = strings.Cut(reason, ` "`)
	return fmt.Errorf("line %d: %s", line, reason)
}

// kindNames maps JSON types to their names in error texts.
var kindNames = map[jsontext.Kind]string{
	'{': "an object", '[': "an array", '"': "a string", '0': "a number", 't': "a boolean", 'f': "a boolean", 'n': "null",
}

// isNull reports whether v is null.
func (v jsonValue) isNull() bool { return v.raw.Kind() == 'n' }

// errorf returns an error about v that names its path and line. The text must not quote the value, which may be secret.
func (v jsonValue) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s (line %d)", v.path, fmt.Sprintf(format, args...), lineNumber(v.file, v.nameOffset))
}

// warnUnknown adds a warning about an unknown member. It is not an error, because files of other MCP hosts, which have
// members of their own, must load unchanged.
func (v jsonValue) warnUnknown() { v.reader.warn(v.errorf("unknown member").Error()) }

// wrongKind returns an error that says that v must be of the given kind, such as "an object".
func (v jsonValue) wrongKind(kind string) error {
	return v.errorf("must be %s, not %s", kind, kindNames[v.raw.Kind()])
}

// readObject returns the members of the object v in the file's order, without _comment and $schema. It returns an error
// if v is not an object.
func (v jsonValue) readObject() ([]jsonValue, error) {
	if v.raw.Kind() != '{' {
		return nil, v.wrongKind("an object")
	}
	var members []jsonValue
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.raw))
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		m := jsonValue{file: v.file, nameOffset: v.offset + int(dec.InputOffset()), name: name.String(), reader: v.reader}
		if m.raw, err = dec.ReadValue(); err != nil {
			return nil, err
		}
		m.offset = v.offset + int(dec.InputOffset()) - len(m.raw)
		m.path = v.memberPath(m.name)
		if m.name != "_comment" && m.name != "$schema" {
			members = append(members, m)
		}
	}
	return members, nil
}

// memberPath returns the path of the member called name of the object v. It has a comma before the first member, and
// dots before the members within it: server "crm", auth.type. Because names are untrusted text, the path quotes and
// truncates names that are not plain, and then always has a comma before them.
func (v jsonValue) memberPath(name string) string {
	switch {
	case !plainName.MatchString(name):
		return fmt.Sprintf("%s, %.80q", v.path, name)
	case strings.Contains(v.path, ", "):
		return v.path + "." + name
	}
	return v.path + ", " + name
}

// plainName matches the names that errors show completely and without quotes.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

// readArray returns the items of the array v. It returns an error if v is not an array.
func (v jsonValue) readArray() ([]jsonValue, error) {
	if v.raw.Kind() != '[' {
		return nil, v.wrongKind("an array")
	}
	var items []jsonValue
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.raw))
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	for dec.PeekKind() != ']' {
		raw, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		offset := v.offset + int(dec.InputOffset()) - len(raw)
		path := fmt.Sprintf("%s[%d]", v.path, len(items))
		items = append(items, jsonValue{file: v.file, raw: raw, offset: offset, nameOffset: offset, path: path, reader: v.reader})
	}
	return items, nil
}

// readString returns the string v with its variables replaced. It returns an error if v is not a string.
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

// readOptionalString is like readString, but returns "" for null.
func (v jsonValue) readOptionalString() (string, error) {
	if v.isNull() {
		return "", nil
	}
	return v.readString()
}

// readSecret returns the string v, with its variables replaced, as a secret. The secret is empty if v is null.
func (v jsonValue) readSecret() (auth.Secret, error) {
	s, err := v.readOptionalString()
	return auth.NewSecret(s), err
}

// readBool returns the boolean v. A string is an error, because "false" in quotes must not enable anything.
func (v jsonValue) readBool() (bool, error) {
	if kind := v.raw.Kind(); kind != 't' && kind != 'f' {
		return false, v.wrongKind("a boolean")
	}
	return v.raw.Kind() == 't', nil
}

// readCount returns the integer v. It returns an error unless v is a number from 1 to math.MaxInt32.
func (v jsonValue) readCount() (int, error) {
	if v.raw.Kind() != '0' {
		return 0, v.wrongKind("a number")
	}
	count, err := strconv.ParseInt(string(v.raw), 10, 64)
	if err != nil || count < 1 || count > math.MaxInt32 {
		return 0, v.errorf("must be a whole number above 0")
	}
	return int(count), nil
}

// MaxTimeout is the longest duration that mcp.json may have.
const MaxTimeout = 24 * time.Hour

// readDuration returns the duration v, which is a string as in Go or a number of seconds. It returns an error unless
// the duration is above 0 and at most MaxTimeout.
func (v jsonValue) readDuration() (time.Duration, error) {
	if v.raw.Kind() == '0' {
		seconds, err := strconv.ParseFloat(string(v.raw), 64)
		if err != nil || seconds <= 0 || seconds > MaxTimeout.Seconds() {
			return 0, v.errorf("must be more than 0 and at most %s", MaxTimeout)
		}
		return time.Duration(seconds * float64(time.Second)), nil
	}
	text, err := v.readString()
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > MaxTimeout {
		return 0, v.errorf("must be a duration such as 30s, or a number of seconds, of more than 0 and at most %s", MaxTimeout)
	}
	return d, nil
}

// maxSeconds is the largest number that readTimeout interprets as seconds.
const maxSeconds = 3600

// readTimeout is like readDuration, but it treats a number above maxSeconds as milliseconds, because some hosts write
// milliseconds (Gemini CLI, MCPHub) and others seconds (Cline). It returns 0 for null, which means the default timeout.
func (v jsonValue) readTimeout() (time.Duration, error) {
	if v.isNull() {
		return 0, nil
	}
	if v.raw.Kind() == '0' {
		number, err := strconv.ParseFloat(string(v.raw), 64)
		isMilliseconds := err == nil && number > maxSeconds && number <= float64(MaxTimeout.Milliseconds())
		if isMilliseconds {
			return time.Duration(number * float64(time.Millisecond)), nil
		}
	}
	return v.readDuration()
}

// readStringMap returns an object of strings, such as query, with their variables replaced. It returns nil for null.
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

// readSecretMap is like readStringMap, for strings that may be secret, such as headers.
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

// readStringList returns an array of strings with their variables replaced. It returns nil for null and for an empty
// array.
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

// appendStrings appends the strings in the array v to *list.
func (v jsonValue) appendStrings(list *[]string) error {
	more, err := v.readStringList()
	*list = append(*list, more...)
	return err
}
