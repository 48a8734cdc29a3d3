package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Endpoints with the Chat Completions API accept less of JSON Schema than MCP servers use, and refuse a whole request
// because of one keyword of one tool. So schemas are adapted here, for the request only. The stored schema stays
// complete, and arguments are checked against it. The description in an adapted schema says what was removed from it.

// adaptParameters returns a tool's input schema in a form that endpoints accept, encoded without white space. It
// returns noParameters if schema is not a JSON object.
func adaptParameters(schema json.RawMessage) json.RawMessage {
	root, ok := decodeObject(schema)
	if !ok {
		return noParameters // a boolean schema, or no schema
	}
	root = slices.DeleteFunc(root, func(m orderedMember) bool {
		return m.name == "$schema" || m.name == "$id" // endpoints ignore these members, and some refuse them
	})
	root = root.withoutInvalid().mergeAlternatives()
	if string(root.member("type")) != `"object"` {
		root = root.withMember("type", json.RawMessage(`"object"`))
	}
	root = root.adaptKeywords()
	if root.member("properties") == nil {
		root = root.withMember("properties", json.RawMessage(`{}`))
	}
	return root.encodeJSON()
}

// topLevelKeywords are the keywords that OpenAI refuses at the top of a tool's schema ("schema must have type 'object'
// and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"). For each of them, meaning is the phrase that
// mergeAlternatives uses in the sentence that it adds to the description.
var topLevelKeywords = []struct{ name, meaning string }{
	{"allOf", "must fit all of"}, {"anyOf", "must fit at least one of"}, {"oneOf", "must fit exactly one of"},
	{"not", "must not fit"}, {"enum", "must be one of"}, {"const", "must be"},
}

// maxDescribedBytes is the largest size of the text about one keyword in a description, in bytes.
const maxDescribedBytes = 4 << 10

// mergeAlternatives removes topLevelKeywords and a local $ref from the top of a schema. It adds the properties and the
// required names of the schemas in allOf, anyOf, oneOf and $ref to the schema itself. For each removed keyword, it adds
// a sentence to the description.
func (root orderedObject) mergeAlternatives() orderedObject {
	if target, ok := root.resolveRef(root.member("$ref")); ok {
		root = root.withoutMember("$ref").mergeProperties([]orderedObject{target}, "allOf")
	}
	for _, keyword := range topLevelKeywords {
		raw := root.member(keyword.name)
		if raw == nil {
			continue
		}
		root = root.withoutMember(keyword.name)
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) == nil && keyword.name != "enum" && keyword.name != "const" {
			root = root.mergeProperties(root.decodeParts(list), keyword.name)
		}
		values := string(raw)
		if len(values) > maxDescribedBytes {
			values = "several alternatives" // the properties are in the schema already
		}
		root = root.addDescription("The arguments " + keyword.meaning + ": " + values)
	}
	return root
}

// decodeParts decodes the schemas in list, and replaces references within root with their targets. It leaves out
// schemas that are not objects.
func (root orderedObject) decodeParts(list []json.RawMessage) (parts []orderedObject) {
	for _, raw := range list {
		part, ok := decodeObject(raw)
		if !ok {
			continue
		}
		if target, found := root.resolveRef(part.member("$ref")); found {
			part = target
		}
		parts = append(parts, part)
	}
	return parts
}

// resolveRef returns the schema within root that ref refers to. ref is the JSON of a reference such as "#/$defs/point".
// resolveRef returns false if ref is nil, refers to something outside of root, or does not refer to an object.
func (root orderedObject) resolveRef(ref json.RawMessage) (target orderedObject, ok bool) {
	var pointer string
	if json.Unmarshal(ref, &pointer) != nil || !strings.HasPrefix(pointer, "#/") {
		return nil, false
	}
	target = root
	for name := range jsontext.Pointer(pointer[len("#"):]).Tokens() {
		if target, ok = decodeObject(target.member(name)); !ok {
			return nil, false
		}
	}
	return target, true
}

// mergeProperties returns root with the properties of all parts added, and with the names that requiredByParts returns.
// keyword is the keyword whose value the parts are, such as anyOf.
func (root orderedObject) mergeProperties(parts []orderedObject, keyword string) orderedObject {
	properties, _ := decodeObject(root.member("properties"))
	for _, part := range parts {
		added, _ := decodeObject(part.member("properties"))
		for _, property := range added {
			properties = properties.withAlternative(property.name, property.value)
		}
	}
	if len(properties) > 0 {
		root = root.withMember("properties", properties.encodeJSON())
	}
	required := root.requiredNames()
	for _, name := range requiredByParts(parts, keyword) {
		if !slices.Contains(required, name) {
			required = append(required, name)
		}
	}
	if len(required) > 0 {
		quoted := make([]json.RawMessage, len(required))
		for i, name := range required {
			quoted[i] = appendQuoted(nil, name)
		}
		root = root.withMember("required", encodeArray(quoted...))
	}
	return root
}

// withAlternative returns properties with the property name added. If properties already has a different schema with
// that name, the property becomes an anyOf of both schemas.
func (properties orderedObject) withAlternative(name string, value json.RawMessage) orderedObject {
	present := properties.member(name)
	switch {
	case present == nil:
		return properties.withMember(name, value)
	case bytes.Equal(present, value):
		return properties
	}
	eitherSchema := orderedObject{{"anyOf", encodeArray(present, value)}}
	return properties.withMember(name, eitherSchema.encodeJSON())
}

// requiredNames returns the names that a schema requires, or nil if the schema has no valid list of them.
func (root orderedObject) requiredNames() (names []string) {
	_ = json.Unmarshal(root.member("required"), &names)
	return names
}

// requiredByParts returns the names that a value must have because of parts, in the order in which they first appear.
// For the keyword allOf, whose parts all apply, these are the names that at least one part requires. For any other
// keyword, these are the names that all parts require.
func requiredByParts(parts []orderedObject, keyword string) (required []string) {
	counts := map[string]int{} // number of parts that require the name
	var names []string
	for _, part := range parts {
		for _, name := range part.requiredNames() {
			if counts[name] == 0 {
				names = append(names, name)
			}
			counts[name]++
		}
	}
	for _, name := range names {
		if keyword == "allOf" || counts[name] == len(parts) {
			required = append(required, name)
		}
	}
	return required
}

// addDescription returns the schema with sentence added to its description, on a new line.
func (object orderedObject) addDescription(sentence string) orderedObject {
	var description string
	_ = json.Unmarshal(object.member("description"), &description)
	if description != "" {
		description += "\n"
	}
	return object.withMember("description", appendQuoted(nil, description+sentence))
}

// Keywords whose value is a schema, a list of schemas, or an object with schemas by name. Among schemaKeywords,
// adaptNested replaces a boolean only in items and not, because every endpoint accepts booleans in the others.
var (
	schemaKeywords     = []string{"items", "additionalItems", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else"}
	schemaListKeywords = []string{"prefixItems", "allOf", "anyOf", "oneOf"}
	schemaMapKeywords  = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)

// knownFormats are the formats, as JSON, that all endpoints accept. Some endpoints, such as Gemini's, refuse a request
// with any other format. The rest ignore it.
var knownFormats = []string{`"date-time"`, `"int32"`, `"int64"`, `"float"`, `"double"`}

// typeNames are the types of JSON Schema, as JSON. Some servers write others, such as any or date, which endpoints refuse.
var typeNames = []string{`"null"`, `"boolean"`, `"integer"`, `"number"`, `"string"`, `"array"`, `"object"`}

// adaptKeywords returns a copy of a schema in which all keywords have a form that endpoints accept, including the
// keywords of nested schemas.
func (object orderedObject) adaptKeywords() orderedObject {
	out := object.withoutInvalid()
	for i, keyword := range out {
		out[i] = keyword.adaptNested()
	}
	if t := out.member("type"); jsontext.Value(t).Kind() == '"' && !slices.Contains(typeNames, string(t)) {
		out = out.withoutMember("type").addDescription("Type: " + strings.Trim(string(t), `"`))
	}
	if f := out.member("format"); jsontext.Value(f).Kind() == '"' && !slices.Contains(knownFormats, string(f)) {
		out = out.withoutMember("format").addDescription("Format: " + strings.Trim(string(f), `"`))
	}
	// Endpoints refuse an array without items: "array schema missing items".
	if string(out.member("type")) == `"array"` && out.member("items") == nil {
		out = out.withMember("items", json.RawMessage(`{}`))
	}
	return out
}

// adaptNested returns the keyword with the schemas in its value adapted. items with a list of schemas, as in draft-07,
// becomes prefixItems.
func (keyword orderedMember) adaptNested() orderedMember {
	isList := keyword.jsonKind() == '['
	mayBeBoolean := keyword.name == "items" || keyword.name == "not"
	switch {
	case keyword.name == "items" && isList:
		return orderedMember{"prefixItems", adaptList(keyword.value)}
	case slices.Contains(schemaKeywords, keyword.name) && keyword.jsonKind() == '{', mayBeBoolean:
		return orderedMember{keyword.name, adaptSchema(keyword.value)}
	case slices.Contains(schemaListKeywords, keyword.name) && isList:
		return orderedMember{keyword.name, adaptList(keyword.value)}
	case slices.Contains(schemaMapKeywords, keyword.name):
		if schemas, ok := decodeObject(keyword.value); ok {
			for i := range schemas {
				schemas[i].value = adaptSchema(schemas[i].value)
			}
			return orderedMember{keyword.name, schemas.encodeJSON()}
		}
	}
	return keyword
}

// withoutInvalid returns a copy of a schema without the keywords whose value has the wrong type, because endpoints
// refuse those. Servers in Go write null for an empty list, servers in PHP write [] for an empty object, JSON Schema
// draft 3 has a boolean in required, and draft 4 and OpenAPI 3.0 have one in exclusiveMinimum and exclusiveMaximum. null
// is valid in const and default, and is kept in extensions ("x-").
func (object orderedObject) withoutInvalid() orderedObject {
	return slices.DeleteFunc(slices.Clone(object), func(keyword orderedMember) bool {
		switch keyword.jsonKind() {
		case 'n':
			return keyword.name != "const" && keyword.name != "default" && !strings.HasPrefix(keyword.name, "x-")
		case 't', 'f':
			return slices.Contains([]string{"required", "exclusiveMinimum", "exclusiveMaximum"}, keyword.name)
		case '[':
			return slices.Contains(schemaMapKeywords, keyword.name)
		}
		return false
	})
}

// adaptSchema adapts the JSON of a schema with adaptKeywords. It converts a boolean schema to the equivalent object,
// and returns any other JSON unchanged.
func adaptSchema(schema json.RawMessage) json.RawMessage {
	object, ok := decodeObject(schema)
	switch {
	case ok:
		return object.adaptKeywords().encodeJSON()
	case string(schema) == "true":
		return json.RawMessage(`{}`)
	case string(schema) == "false":
		return json.RawMessage(`{"not":{}}`)
	}
	return schema
}

// adaptList adapts the JSON of a list of schemas. It returns any other JSON unchanged.
func adaptList(raw json.RawMessage) json.RawMessage {
	var schemas []json.RawMessage
	if json.Unmarshal(raw, &schemas) != nil {
		return raw
	}
	for i := range schemas {
		schemas[i] = adaptSchema(schemas[i])
	}
	return encodeArray(schemas...)
}

// orderedObject holds the members of a JSON object in their original order, because a model reads them in that order.
// Its methods leave the object unchanged and return the result.
type orderedObject []orderedMember

// orderedMember is a member of an orderedObject. value is the member's JSON, which is parsed only if it has to be
// changed.
type orderedMember struct {
	name  string
	value json.RawMessage
}

// jsonKind returns the kind of the value: '{', '[', '"', '0', 't', 'f' or 'n'.
func (member orderedMember) jsonKind() jsontext.Kind { return jsontext.Value(member.value).Kind() }

// decodeObject returns the members of the JSON object raw. It returns nil and false if raw is not a JSON object.
func decodeObject(raw json.RawMessage) (members orderedObject, ok bool) {
	dec := jsontext.NewDecoder(bytes.NewReader(raw), laxJSON...)
	if open, err := dec.ReadToken(); err != nil || open.Kind() != '{' {
		return nil, false
	}
	out := orderedObject{}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, false
		}
		member := orderedMember{name: name.String()} // before ReadValue, which invalidates the token
		value, err := dec.ReadValue()
		if err != nil {
			return nil, false
		}
		member.value = json.RawMessage(value.Clone())
		out = append(out, member)
	}
	return out, true
}

// encodeJSON encodes the object without white space.
func (object orderedObject) encodeJSON() json.RawMessage {
	out := []byte{'{'}
	for i, member := range object {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(appendQuoted(out, member.name), ':'), member.value...)
	}
	return append(out, '}')
}

// indexOf returns the position of the member with that name, or -1.
func (object orderedObject) indexOf(name string) int {
	return slices.IndexFunc(object, func(member orderedMember) bool { return member.name == name })
}

// member returns the value of the member with that name, or nil.
func (object orderedObject) member(name string) json.RawMessage {
	if i := object.indexOf(name); i >= 0 {
		return object[i].value
	}
	return nil
}

// withMember returns a copy of the object with the member set. A new member comes last.
func (object orderedObject) withMember(name string, value json.RawMessage) orderedObject {
	out := slices.Clone(object)
	if i := object.indexOf(name); i >= 0 {
		out[i].value = value
		return out
	}
	return append(out, orderedMember{name, value})
}

// withoutMember returns a copy of the object without the member with that name.
func (object orderedObject) withoutMember(name string) orderedObject {
	return slices.DeleteFunc(slices.Clone(object), func(member orderedMember) bool { return member.name == name })
}

// encodeArray returns the JSON array with these elements.
func encodeArray(elements ...json.RawMessage) json.RawMessage {
	size := len("[]")
	for _, element := range elements {
		size += len(element) + len(",")
	}
	out := append(make([]byte, 0, size), '[') // growing the array of 1,000 tools takes four times the memory
	for i, element := range elements {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, element...)
	}
	return append(out, ']')
}
