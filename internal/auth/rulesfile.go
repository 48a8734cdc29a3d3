package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Bounds of a file of rules.
const (
	maxRulesFile = 1 << 20 // bytes
	maxRules     = 1000
)

// RulesError is what is wrong with a file of rules.
type RulesError struct {
	Pointer string // to the member (RFC 6901); "" where the file is no JSON
	Line    int    // from 1, where the file is no JSON; else 0
	Detail  string
}

func (e *RulesError) Error() string {
	switch {
	case e.Line > 0:
		return fmt.Sprintf("%s (line %d)", e.Detail, e.Line)
	case e.Pointer == "":
		return e.Detail
	}
	return e.Pointer + ": " + e.Detail
}

// ParseRules reads a file of rules, {"rules": [{"subjects": […], "tools": […]}]}. It is
// strict, because a condition that is misspelt would be one that everybody meets. Errors
// are *RulesError.
func ParseRules(data []byte) ([]Rule, error) {
	if len(data) > maxRulesFile {
		return nil, &RulesError{Detail: fmt.Sprintf("is larger than %d bytes", maxRulesFile)}
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		line := 1
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			line += bytes.Count(data[:min(int(syntax.Offset), len(data))], []byte("\n"))
		}
		return nil, &RulesError{Line: line, Detail: "is not JSON"}
	}
	r := rulesReader{}
	file := r.object("", whole)
	r.only("", file, "rules")
	var list []json.RawMessage
	if raw, ok := file["rules"]; !ok || json.Unmarshal(raw, &list) != nil || list == nil {
		r.fail("/rules", "must be a list")
	}
	if len(list) > maxRules {
		r.fail("/rules", fmt.Sprintf("has more than %d rules", maxRules))
	}
	if r.err != nil {
		return nil, r.err
	}
	rules := make([]Rule, len(list))
	for i, raw := range list {
		if rules[i] = r.rule(fmt.Sprintf("/rules/%d", i), raw); rules[i].Name == "" {
			rules[i].Name = fmt.Sprint(i + 1)
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	return rules, nil
}

// rulesReader keeps the first thing that is wrong; what it reads after that is of no use.
type rulesReader struct{ err error }

func (r *rulesReader) fail(pointer, detail string) {
	if r.err == nil {
		r.err = &RulesError{Pointer: pointer, Detail: detail}
	}
}

// object reads an object whose names are unique.
func (r *rulesReader) object(pointer string, raw json.RawMessage) object {
	o, err := parseObject(raw)
	if err != nil {
		r.fail(pointer, "must be an object whose names are unique, in UTF-8")
	}
	return o
}

// only refuses members of other names.
func (r *rulesReader) only(pointer string, o object, names ...string) {
	for _, name := range sortedNames(o) {
		if !slices.Contains(names, name) {
			r.fail(pointer+"/"+escapePointer(name), "unknown field")
		}
	}
}

func (r *rulesReader) rule(pointer string, raw json.RawMessage) Rule {
	o := r.object(pointer, raw)
	r.only(pointer, o, "name", "subjects", "scopes", "claims", "servers", "tools", "models")
	name, err := o.text("name")
	if err != nil || len(name) > 64 {
		r.fail(pointer+"/name", "must be a string of at most 64 bytes")
	}
	rule := Rule{
		Name: name, Subjects: r.globs(pointer, o, "subjects"), Scopes: r.texts(pointer, o, "scopes"),
		Servers: r.globs(pointer, o, "servers"), Tools: r.globs(pointer, o, "tools"), Models: r.globs(pointer, o, "models"),
	}
	if !o.has("claims") {
		return rule
	}
	claims := r.object(pointer+"/claims", o["claims"])
	rule.Claims = make(map[string][]string, len(claims))
	for _, name := range sortedNames(claims) {
		rule.Claims[name] = r.globs(pointer+"/claims", claims, name)
	}
	return rule
}

// texts is the member of that name, nil if there is none: a list that has something in it.
// An empty one could be taken for nothing as well as for everything.
func (r *rulesReader) texts(pointer string, o object, name string) []string {
	if !o.has(name) {
		return nil
	}
	at := pointer + "/" + escapePointer(name)
	list, err := o.texts(name)
	if err != nil || len(list) == 0 || !bytes.HasPrefix(bytes.TrimSpace(o[name]), []byte("[")) {
		r.fail(at, "must be a list of strings, with one at least")
	}
	for i, text := range list {
		if text == "" {
			r.fail(fmt.Sprintf("%s/%d", at, i), "must not be empty")
		}
	}
	return list
}

func (r *rulesReader) globs(pointer string, o object, name string) []string {
	list := r.texts(pointer, o, name)
	for i, glob := range list {
		if _, err := path.Match(flat(glob), ""); err != nil {
			r.fail(fmt.Sprintf("%s/%s/%d", pointer, escapePointer(name), i), "is not a valid pattern")
		}
	}
	return list
}

func sortedNames(o object) []string { return slices.Sorted(maps.Keys(o)) }

func escapePointer(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
