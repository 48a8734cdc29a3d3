package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Endpoints that speak Chat Completions take less of JSON Schema than MCP servers
// write, and refuse the whole request for one keyword of one tool. So a schema is
// adapted in the request, and only there: the stored one stays whole, and it is what
// arguments are checked against. What is taken out is told in a description instead.

// parameters is a tool's input schema as endpoints take it. One that they take as it is
// comes back byte by byte.
func parameters(schema json.RawMessage) json.RawMessage {
	root, ok := decodeKeywords(schema)
	if !ok {
		return noParameters // a boolean, or none at all
	}
	for i := 0; i < len(root); { // which no endpoint looks up, and some refuse
		if root[i].name == "$schema" || root[i].name == "$id" {
			root = slices.Delete(root, i, i+1)
		} else {
			i++
		}
	}
	root = root.flatten()
	if string(root.get("type")) != `"object"` {
		root = root.set("type", json.RawMessage(`"object"`))
	}
	root = root.adapted()
	if root.get("properties") == nil {
		root = root.set("properties", json.RawMessage(`{}`))
	}
	return root.encode()
}

// topLevel are the keywords that OpenAI refuses at the top of a tool's schema, "schema
// must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top
// level", with how their meaning reads in a sentence.
var topLevel = []struct{ name, means string }{
	{"allOf", "must fit all of"}, {"anyOf", "must fit at least one of"}, {"oneOf", "must fit exactly one of"},
	{"not", "must not fit"}, {"enum", "must be one of"}, {"const", "must be"},
}

// maxTold bounds what a description tells of one keyword, in bytes.
const maxTold = 4 << 10

// flatten moves what stands in alternatives at the top of a schema into the schema
// itself: their properties, and what all of them require.
func (root keywords) flatten() keywords {
	if ref := root.get("$ref"); ref != nil {
		if target, ok := root.local(ref); ok {
			root = root.without("$ref").absorb([]keywords{target}, true)
		}
	}
	for _, k := range topLevel {
		raw := root.get(k.name)
		if raw == nil {
			continue
		}
		root = root.without(k.name)
		var list []json.RawMessage
		var parts []keywords
		if json.Unmarshal(raw, &list) == nil && k.name != "enum" && k.name != "const" {
			for _, one := range list {
				part, ok := decodeKeywords(one)
				if target, found := root.local(part.get("$ref")); found {
					part = target
				}
				if ok {
					parts = append(parts, part)
				}
			}
			root = root.absorb(parts, k.name == "allOf")
		}
		told := string(raw)
		if len(told) > maxTold {
			told = "several alternatives" // the properties are there
		}
		root = root.describe("The arguments " + k.means + ": " + told)
	}
	return root
}

// local is what a reference within the schema leads to.
func (root keywords) local(ref json.RawMessage) (keywords, bool) {
	var pointer string
	if json.Unmarshal(ref, &pointer) != nil || !strings.HasPrefix(pointer, "#/") {
		return nil, false
	}
	at := root
	for _, name := range strings.Split(pointer[2:], "/") {
		next, ok := decodeKeywords(at.get(strings.NewReplacer("~1", "/", "~0", "~").Replace(name)))
		if !ok {
			return nil, false
		}
		at = next
	}
	return at, true
}

// absorb adds the properties of parts to those of root, and to what is required what
// every part requires, or any if all of them apply.
func (root keywords) absorb(parts []keywords, all bool) keywords {
	properties, _ := decodeKeywords(root.get("properties"))
	var required []string
	_ = json.Unmarshal(root.get("required"), &required)
	asked := map[string]int{}
	var names []string
	for _, part := range parts {
		own, _ := decodeKeywords(part.get("properties"))
		for _, p := range own {
			if had := properties.get(p.name); had == nil {
				properties = properties.set(p.name, p.value)
			} else if !bytes.Equal(had, p.value) {
				either := keywords{{"anyOf", list(had, p.value)}}
				properties = properties.set(p.name, either.encode())
			}
		}
		var needs []string
		_ = json.Unmarshal(part.get("required"), &needs)
		for _, name := range needs {
			if asked[name]++; asked[name] == 1 {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		if (all || asked[name] == len(parts)) && !slices.Contains(required, name) {
			required = append(required, name)
		}
	}
	if len(properties) > 0 {
		root = root.set("properties", properties.encode())
	}
	if len(required) > 0 {
		quoted := make([]json.RawMessage, len(required))
		for i, name := range required {
			quoted[i] = appendQuoted(nil, name)
		}
		root = root.set("required", list(quoted...))
	}
	return root
}

// describe adds a sentence to the schema's description.
func (m keywords) describe(sentence string) keywords {
	var description string
	_ = json.Unmarshal(m.get("description"), &description)
	if description != "" {
		description += "\n"
	}
	return m.set("description", appendQuoted(nil, description+sentence))
}

// Where the schemas are in a keyword's value. Those of additionalProperties and the like
// may stay booleans, which every endpoint knows there.
var (
	holdSchema  = []string{"items", "additionalItems", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else"}
	holdList    = []string{"prefixItems", "allOf", "anyOf", "oneOf"}
	holdSchemas = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)

// knownFormats are those that endpoints know; others refuse the request at some
// (Gemini's), and say nothing at the rest.
var knownFormats = []string{`"date-time"`, `"int32"`, `"int64"`, `"float"`, `"double"`}

// adapted is a schema, with all within it, as endpoints take it.
func (m keywords) adapted() keywords {
	out := slices.Clone(m)
	for i, k := range out {
		switch {
		case k.name == "items" && k.kind() == '[':
			out[i] = keyword{"prefixItems", eachOf(k.value)} // draft-07's way of writing it
		case slices.Contains(holdSchema, k.name) && k.kind() == '{', k.name == "items", k.name == "not":
			out[i].value = adaptSchema(k.value)
		case slices.Contains(holdList, k.name) && k.kind() == '[':
			out[i].value = eachOf(k.value)
		case slices.Contains(holdSchemas, k.name):
			within, _ := decodeKeywords(k.value)
			for j := range within {
				within[j].value = adaptSchema(within[j].value)
			}
			if within != nil {
				out[i].value = within.encode()
			}
		}
	}
	if f := out.get("format"); jsontext.Value(f).Kind() == '"' && !slices.Contains(knownFormats, string(f)) {
		out = out.without("format").describe("Format: " + strings.Trim(string(f), `"`))
	}
	// "array schema missing items"
	if string(out.get("type")) == `"array"` && out.get("items") == nil {
		out = out.set("items", json.RawMessage(`{}`))
	}
	return out
}

// adaptSchema is adapted for the JSON of a schema, which may be a boolean.
func adaptSchema(schema json.RawMessage) json.RawMessage {
	m, ok := decodeKeywords(schema)
	switch {
	case ok:
		return m.adapted().encode()
	case string(schema) == "true":
		return json.RawMessage(`{}`)
	case string(schema) == "false":
		return json.RawMessage(`{"not":{}}`)
	}
	return schema
}

// eachOf adapts a list of schemas.
func eachOf(raw json.RawMessage) json.RawMessage {
	var all []json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return raw
	}
	for i := range all {
		all[i] = adaptSchema(all[i])
	}
	return list(all...)
}

// keywords is a JSON object in the order in which it was written, which is the order in
// which a model reads it.
type keywords []keyword

type keyword struct {
	name  string
	value json.RawMessage
}

func (k keyword) kind() jsontext.Kind { return jsontext.Value(k.value).Kind() }

// decodeKeywords reads the object raw; false where it is none.
func decodeKeywords(raw json.RawMessage) (keywords, bool) {
	dec := jsontext.NewDecoder(bytes.NewReader(raw), asWritten...)
	if open, err := dec.ReadToken(); err != nil || open.Kind() != '{' {
		return nil, false
	}
	out := keywords{}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, false
		}
		k := keyword{name: name.String()}
		value, err := dec.ReadValue()
		if err != nil {
			return nil, false
		}
		k.value = json.RawMessage(value.Clone())
		out = append(out, k)
	}
	return out, true
}

// encode writes the object without blanks of its own.
func (m keywords) encode() json.RawMessage {
	out := []byte{'{'}
	for i, k := range m {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(appendQuoted(out, k.name), ':'), k.value...)
	}
	return append(out, '}')
}

func (m keywords) index(name string) int {
	return slices.IndexFunc(m, func(k keyword) bool { return k.name == name })
}

// get is the member of that name; nil where there is none.
func (m keywords) get(name string) json.RawMessage {
	if i := m.index(name); i >= 0 {
		return m[i].value
	}
	return nil
}

// set is m with that member, at the end where it is new.
func (m keywords) set(name string, value json.RawMessage) keywords {
	out := slices.Clone(m)
	if i := m.index(name); i >= 0 {
		out[i].value = value
		return out
	}
	return append(out, keyword{name, value})
}

func (m keywords) without(name string) keywords {
	return slices.DeleteFunc(slices.Clone(m), func(k keyword) bool { return k.name == name })
}

// list is a JSON array of all.
func list(all ...json.RawMessage) json.RawMessage {
	size := len("[]")
	for _, one := range all {
		size += len(one) + 1
	}
	out := append(make([]byte, 0, size), '[')
	for i, one := range all {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, one...)
	}
	return append(out, ']')
}
