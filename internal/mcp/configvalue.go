package mcp

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"answerd/internal/auth"
)

// value is a node with what is needed to read it: its name, where it stands for
// error messages, and the environment.
type value struct {
	*node
	name   string
	path   string
	getenv func(string) string
}

// errorf is an error about v. It must not quote what v holds: it may be a secret.
func (v value) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s (line %d)", v.path, fmt.Sprintf(format, args...), v.line)
}

// unknown is the error for a field that nobody reads.
func (v value) unknown() error { return v.errorf("unknown field") }

// want is the error for a value of another kind.
func (v value) want(kind string) error { return v.errorf("must be %s, not %s", kind, v.kind) }

// object is the members of an object, without comments.
func (v value) object() ([]value, error) {
	if v.kind != "an object" {
		return nil, v.want("an object")
	}
	var out []value
	for _, m := range v.members {
		if m.name == "_comment" || m.name == "$schema" {
			continue
		}
		// Names come from the file: what is not plain is quoted, and cut.
		path := fmt.Sprintf("%s, %.80q", v.path, m.name)
		if plain := strings.IndexFunc(m.name, unsafe) < 0 && m.name != ""; plain && len(m.name) <= 80 {
			path = v.path + ", " + m.name
			if strings.Contains(v.path, ", ") {
				path = v.path + "." + m.name
			}
		}
		out = append(out, value{node: m.node, name: m.name, path: path, getenv: v.getenv})
	}
	return out, nil
}

// text is a string with its variables replaced.
func (v value) text() (string, error) {
	s, ok := v.value.(string)
	if !ok {
		return "", v.want("a string")
	}
	s, err := expand(s, v.getenv)
	if err != nil {
		return "", v.errorf("%s", err)
	}
	return s, nil
}

// optional is a text; null is none.
func (v value) optional() (string, error) {
	if v.kind == "null" {
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
	b, ok := v.value.(bool)
	if !ok {
		return false, v.want("a boolean")
	}
	return b, nil
}

// count is a whole number above 0.
func (v value) count() (int, error) {
	n, ok := v.value.(json.Number)
	if !ok {
		return 0, v.want("a number")
	}
	i, err := n.Int64()
	if err != nil || i < 1 || i > math.MaxInt32 {
		return 0, v.errorf("must be a whole number above 0")
	}
	return int(i), nil
}

// duration is a Go duration, or a number of seconds.
func (v value) duration() (time.Duration, error) {
	if n, ok := v.value.(json.Number); ok {
		f, err := n.Float64()
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
	if v.kind == "null" {
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
	switch v.kind {
	case "null":
		return nil, nil
	case "an array":
	default:
		return nil, v.want("an array")
	}
	var out []string
	for i, n := range v.items {
		item := value{node: n, path: fmt.Sprintf("%s[%d]", v.path, i), getenv: v.getenv}
		s, err := item.text()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// serverType reads a type in the spellings that hosts and seed 004 use.
func (v value) serverType() (string, error) {
	s, err := v.text()
	if err != nil {
		return "", err
	}
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
