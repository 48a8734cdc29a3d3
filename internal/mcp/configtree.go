package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxConfig      = 1 << 20 // bytes of mcp.json
	maxConfigDepth = 16      // levels of nesting in it
)

// node is a value of mcp.json with its line. A tree of them keeps what decoding into
// structs and maps would lose: the order of the servers, and where a mistake is.
type node struct {
	line    int
	value   any      // string, json.Number, bool, nil; for the others see next
	members []member // of an object, in the file's order
	items   []*node  // of an array
	kind    string   // as in error messages: "an object", …
}

// member is one field of an object.
type member struct {
	name string
	*node
}

// tree reads data whole. Names that occur twice in an object are an error: readers
// differ in which one they take.
func tree(data []byte) (*node, error) {
	switch {
	case len(data) > maxConfig:
		return nil, fmt.Errorf("larger than %d bytes", maxConfig)
	case !utf8.Valid(data):
		return nil, errors.New("not UTF-8")
	}
	t := &treeReader{data: data, dec: jsontext.NewDecoder(bytes.NewBuffer(data))}
	n, err := t.next()
	if err != nil {
		return nil, t.explain(err)
	}
	if _, err := t.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("line %d: something follows the JSON", t.line(t.dec.InputOffset()))
	}
	return n, nil
}

// treeReader builds a tree from tokens.
type treeReader struct {
	data []byte
	dec  *jsontext.Decoder
	// counted is how many line feeds there are before offset at.
	at, counted int
}

// line returns the line of an offset that is not before that of the last call.
func (t *treeReader) line(offset int64) int {
	t.counted += bytes.Count(t.data[t.at:offset], []byte("\n"))
	t.at = int(offset)
	return t.counted + 1
}

// explain returns what an error of the decoder means to the operator: with the line, and
// without what the file holds.
func (t *treeReader) explain(err error) error {
	bad, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON ends too early")
	case !ok:
		return err
	}
	line := t.line(bad.ByteOffset)
	if errors.Is(bad, jsontext.ErrDuplicateName) {
		return fmt.Errorf("line %d: %.80q is there twice", line, bad.JSONPointer.LastToken())
	}
	what, _, _ := strings.Cut(bad.Err.Error(), " `") // a bad escape is quoted
	return fmt.Errorf("line %d: %s", line, what)
}

// next reads one value.
func (t *treeReader) next() (*node, error) {
	tok, err := t.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	n := &node{line: t.line(t.dec.InputOffset())}
	switch tok.Kind() {
	case '{', '[':
		if t.dec.StackDepth() > maxConfigDepth {
			return nil, fmt.Errorf("line %d: nested deeper than %d levels", n.line, maxConfigDepth)
		}
		if n.kind = "an array"; tok.Kind() == '{' {
			n.kind = "an object"
		}
		return n, t.content(n)
	case '"':
		n.kind, n.value = "a string", tok.String()
	case '0':
		n.kind, n.value = "a number", json.Number(tok.String())
	case 't', 'f':
		n.kind, n.value = "a boolean", tok.Bool()
	default:
		n.kind = "null"
	}
	return n, nil
}

// content reads what is in the object or array n, and its end. A member's line is that
// of its name.
func (t *treeReader) content(n *node) error {
	for {
		kind := t.dec.PeekKind()
		if kind == '}' || kind == ']' {
			_, err := t.dec.ReadToken()
			return err
		}
		name, line := "", 0
		if n.kind == "an object" {
			tok, err := t.dec.ReadToken()
			if err != nil {
				return err
			}
			name, line = tok.String(), t.line(t.dec.InputOffset())
		}
		v, err := t.next()
		if err != nil {
			return err
		}
		if n.kind == "an array" {
			n.items = append(n.items, v)
			continue
		}
		v.line = line
		n.members = append(n.members, member{name, v})
	}
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
