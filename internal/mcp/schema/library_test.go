package schema

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// compileBoth compiles a schema here and with the library; nil if Compile refuses it.
func compileBoth(t testing.TB, raw string) (*Schema, *jsonschema.Resolved) {
	t.Helper()
	s, err := Compile(json.RawMessage(raw))
	if err != nil {
		return nil, nil
	}
	var library jsonschema.Schema
	if err := json.Unmarshal([]byte(raw), &library); err != nil {
		t.Fatalf("%s: got %v, want no error", raw, err)
	}
	r, err := library.Resolve(nil)
	if err != nil {
		t.Fatalf("%s: got %v, want no error", raw, err)
	}
	return s, r
}

// valueForLibrary returns a value as the library takes it: it does not support json.Number.
func valueForLibrary(v *value) any {
	switch v.kind {
	case null:
		return nil
	case boolean:
		return v.raw[0] == 't'
	case text:
		return v.text
	case array:
		out := make([]any, len(v.items))
		for i, item := range v.items {
			out[i] = valueForLibrary(item)
		}
		return out
	case object:
		out := make(map[string]any, len(v.items))
		for i, name := range v.names {
			out[name] = valueForLibrary(v.items[i])
		}
		return out
	}
	if n, err := strconv.ParseInt(string(v.raw), 10, 64); err == nil {
		return n
	}
	return v.float
}

// generator makes schemas and values that have something to do with each other.
type generator struct{ *rand.Rand }

func (d generator) pick(of ...string) string { return of[d.IntN(len(of))] }

func (d generator) schema(depth int) string {
	if d.IntN(12) == 0 {
		return d.pick("true", "false", "{}")
	}
	var words []string
	add := func(format string, args ...any) {
		word := fmt.Sprintf(format, args...)
		keyword, _, _ := strings.Cut(word, ":")
		// Twice the same is merged by the library, which no reader of JSON does.
		if !slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, keyword) }) {
			words = append(words, word)
		}
	}
	if d.IntN(3) > 0 {
		add(`"type":%s`, d.pick(`"integer"`, `"number"`, `"string"`, `"boolean"`, `"null"`, `"array"`, `"object"`, `"object"`, `"array"`, `["integer","null"]`, `["string","number"]`, `["object","array"]`))
	}
	for range 1 + d.IntN(2) {
		if depth == 0 {
			d.addLeaf(add)
		} else {
			d.addBranch(add, depth-1)
		}
	}
	return "{" + strings.Join(words, ",") + "}"
}

func (d generator) addLeaf(add func(string, ...any)) {
	switch d.IntN(12) {
	case 0:
		add(`"minimum":%d`, d.IntN(3))
	case 1:
		add(`"exclusiveMaximum":%d.5`, d.IntN(3))
	case 2:
		add(`"minLength":%d`, d.IntN(3))
	case 3:
		add(`"maxLength":%d`, d.IntN(3))
	case 4:
		add(`"pattern":"^[a-b1]*$"`)
	case 5:
		add(`"enum":[%s,%s]`, d.value(0), d.value(1))
	case 6:
		add(`"const":%s`, d.value(1))
	case 7:
		add(`"required":["%s"]`, d.name())
	case 8:
		add(`"minItems":%d,"uniqueItems":true`, d.IntN(2))
	case 9:
		add(`"maxProperties":%d`, d.IntN(3))
	case 10:
		add(`"multipleOf":2`)
	case 11:
		add(`"dependentRequired":{"%s":["%s"]}`, d.name(), d.name())
	}
}

func (d generator) addBranch(add func(string, ...any), depth int) {
	s := func() string { return d.schema(depth) }
	switch d.IntN(18) {
	case 0, 1, 2:
		add(`"properties":{"a":%s,"b":%s}`, s(), s())
	case 3:
		add(`"additionalProperties":%s`, s())
	case 4:
		add(`"patternProperties":{"^[ab]$":%s}`, s())
	case 5, 6:
		add(`"items":%s`, s())
	case 7:
		add(`"prefixItems":[%s,%s]`, s(), s())
	case 8:
		add(`"contains":%s,"minContains":%d,"maxContains":%d`, s(), d.IntN(2), 1+d.IntN(2))
	case 9:
		add(`"allOf":[%s,%s]`, s(), s())
	case 10:
		add(`"anyOf":[%s,%s]`, s(), s())
	case 11:
		add(`"oneOf":[%s,%s]`, s(), s())
	case 12:
		add(`"not":%s`, s())
	case 13:
		add(`"if":%s,"then":%s,"else":%s`, s(), s(), s())
	case 14:
		add(`"propertyNames":%s`, s())
	case 15:
		add(`"dependentSchemas":{"%s":%s}`, d.name(), s())
	case 16:
		add(`"%s":%s`, d.pick("unevaluatedProperties", "unevaluatedItems"), d.pick("false", s()))
	case 17:
		add(`"$ref":"#/$defs/%s"`, d.name())
	}
}

func (d generator) name() string { return d.pick("a", "b", "c") }

// root is a schema with definitions for the references in it. Those within them may lead
// in a circle, which Compile refuses.
func (d generator) root() string {
	head := d.pick("", `"$schema":"http://json-schema.org/draft-07/schema#",`)
	return fmt.Sprintf(`{%s"$defs":{"a":%s,"b":%s,"c":%s},"allOf":[%s]}`, head, d.schema(1), d.schema(1), d.schema(0), d.schema(3))
}

func (d generator) value(depth int) string {
	kinds := 12
	if depth == 0 {
		kinds = 8
	}
	switch d.IntN(kinds) {
	case 0:
		return "null"
	case 1:
		return d.pick("true", "false")
	case 2, 3:
		return d.pick("0", "1", "2", "3", "4")
	case 4:
		return d.pick("0.5", "1.0", "2.50", "1e0", "-1")
	case 5, 6:
		return d.pick(`""`, `"a"`, `"ab"`, `"xyz"`)
	case 7: // what could be repaired
		parseText, _ := json.Marshal(d.value(depth))
		return string(parseText)
	case 8, 9:
		var items []string
		for range d.IntN(4) {
			items = append(items, d.value(depth-1))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	var members []string
	for _, name := range []string{"a", "b", "c"} {
		if d.IntN(2) == 0 {
			members = append(members, fmt.Sprintf("%q:%s", name, d.value(depth-1)))
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

// TestValidateAgreesWithTheLibrary about every value, before and after repair; a value that
// fits comes back byte by byte; one that doesn't gets problems that name places in it;
// and repair loses nothing.
func TestValidateAgreesWithTheLibrary(t *testing.T) {
	d := generator{rand.New(rand.NewPCG(1, 2))}
	n := map[string]int{}
	for range 400 {
		raw := d.root()
		s, library := compileBoth(t, raw)
		if s == nil {
			n["circular"]++
			continue
		}
		for range 10 {
			given := d.value(3)
			v, _ := parseJSON([]byte(given), refuseDuplicates)
			fits := library.Validate(valueForLibrary(v)) == nil
			if got := s.Validate(json.RawMessage(given)); (got == nil) != fits {
				t.Fatalf("schema %s\nvalue %s\nlibrary.Validate = %v, Validate = %v, want a fit: %v", raw, given, library.Validate(valueForLibrary(v)), got, fits)
			}

			coerced, problems := s.Check(json.RawMessage(given))
			switch after, _ := parseJSON(coerced, refuseDuplicates); {
			case fits && (problems != nil || string(coerced) != given):
				t.Fatalf("schema %s\nvalue %s\nis valid, Check = %s, %v, want it unchanged, no problems", raw, given, coerced, problems)
			case fits:
				n["fits"]++
			case problems == nil && library.Validate(valueForLibrary(after)) != nil:
				t.Fatalf("schema %s\nvalue %s\nis repaired to %s, want a valid value", raw, given, coerced)
			case problems == nil && !isLossless(v, after):
				t.Fatalf("schema %s\nvalue %s\nis repaired to %s, want no information lost", raw, given, coerced)
			case problems == nil:
				n["repaired"]++
			default:
				n["wrong"]++
				for _, p := range problems {
					if !v.hasLocation(p.Pointer) {
						t.Fatalf("schema %s\nvalue %s\nproblem at %s: %s, want it at a place of the value", raw, given, p.Pointer, p.Detail)
					}
				}
			}
		}
	}

	t.Log(n)
	for _, what := range []string{"circular", "fits", "repaired", "wrong"} {
		if n[what] < 10 {
			t.Errorf("only %d %s, want at least 10", n[what], what)
		}
	}
}

// isLossless reports whether everything in after is what is in before, or what a string
// there holds as JSON.
func isLossless(before, after *value) bool {
	if before.kind == text && after.kind != text {
		meant := parseText(before)
		return meant != nil && isLossless(meant, after)
	}
	if before.kind != after.kind || len(before.items) != len(after.items) {
		return false
	}
	for i := range before.items {
		if before.kind == object && before.names[i] != after.names[i] || !isLossless(before.items[i], after.items[i]) {
			return false
		}
	}
	return before.items != nil || string(before.raw) == string(after.raw)
}
