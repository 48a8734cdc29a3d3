package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
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
	t := &treeReader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	t.dec.UseNumber()
	n, err := t.next(0)
	if err != nil {
		return nil, err
	}
	if _, err := t.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("line %d: something follows the JSON", t.here())
	}
	return n, nil
}

// treeReader builds a tree from tokens. It knows the line of each by counting line
// feeds as it goes on, once over the whole file.
type treeReader struct {
	data []byte
	dec  *json.Decoder
	line int // of offset at
	at   int
}

// here is the line that has been read to.
func (t *treeReader) here() int {
	to := min(int(t.dec.InputOffset()), len(t.data))
	if to > t.at {
		t.line += bytes.Count(t.data[t.at:to], []byte("\n"))
		t.at = to
	}
	return t.line
}

// token is the next token; its errors say where, and quote no values.
func (t *treeReader) token() (json.Token, error) {
	tok, err := t.dec.Token()
	if err == nil {
		return tok, nil
	}
	if bad, ok := errors.AsType[*json.SyntaxError](err); ok {
		to := min(max(int(bad.Offset), 0), len(t.data))
		return nil, fmt.Errorf("line %d: %w", 1+bytes.Count(t.data[:to], []byte("\n")), bad)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("the JSON ends too early")
	}
	return nil, fmt.Errorf("line %d: %w", t.here(), err)
}

// next reads one value.
func (t *treeReader) next(depth int) (*node, error) {
	tok, err := t.token()
	if err != nil {
		return nil, err
	}
	n := &node{line: t.here()}
	// The decoder's tokens have no bound of their own, and this recurses.
	if depth > maxConfigDepth {
		return nil, fmt.Errorf("line %d: nested deeper than %d levels", n.line, maxConfigDepth)
	}
	switch v := tok.(type) {
	case json.Delim:
		if v == '{' {
			n.kind = "an object"
			return n, t.object(n, depth)
		}
		n.kind = "an array"
		return n, t.array(n, depth)
	case string:
		n.kind = "a string"
	case json.Number:
		n.kind = "a number"
	case bool:
		n.kind = "a boolean"
	default:
		n.kind = "null"
	}
	n.value = tok
	return n, nil
}

// object reads the members of n, whose brace has been read. A member's line is that
// of its name.
func (t *treeReader) object(n *node, depth int) error {
	seen := map[string]bool{}
	for t.dec.More() {
		tok, err := t.token()
		if err != nil {
			return err
		}
		name, _ := tok.(string)
		line := t.here()
		if seen[name] {
			return fmt.Errorf("line %d: %.80q is there twice", line, name)
		}
		seen[name] = true
		v, err := t.next(depth + 1)
		if err != nil {
			return err
		}
		v.line = line
		n.members = append(n.members, member{name, v})
	}
	_, err := t.token()
	return err
}

// array reads the elements of n, whose bracket has been read.
func (t *treeReader) array(n *node, depth int) error {
	for t.dec.More() {
		v, err := t.next(depth + 1)
		if err != nil {
			return err
		}
		n.items = append(n.items, v)
	}
	_, err := t.token()
	return err
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
