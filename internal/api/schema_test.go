package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v3"

	contract "answerd/api"
	"answerd/internal/api/native"
	"answerd/internal/event"
	"answerd/internal/event/memory"
)

type object = map[string]any

// contractDocument is api/openapi.yaml with the documents of the other formats as JSON values, as
// if they were one, and its schemas as validators read them.
type contractDocument struct {
	root     object
	defs     map[string]json.RawMessage
	resolved map[string]*jsonschema.Resolved // by the schema's JSON; the tests run one by one
}

// documents are the OpenAPI documents of the contract, by their paths. A broken one fails every
// test.
var documents = sync.OnceValue(func() map[string]object {
	names, err := fs.Glob(contract.OpenAPI, "openapi/*.yaml")
	if err != nil {
		panic(err)
	}
	out := make(map[string]object)
	for _, name := range append(names, "openapi.yaml") {
		text, err := contract.OpenAPI.ReadFile(name)
		if err != nil {
			panic(err)
		}
		var raw any
		if err := yaml.Unmarshal(text, &raw); err != nil {
			panic(fmt.Errorf("%s: %w", name, err))
		}
		var document object
		if err := convertJSON(raw, &document); err != nil {
			panic(err)
		}
		out[name] = document
	}
	return out
})

// otherDocument finds the file of a reference to another document.
var otherDocument = regexp.MustCompile(`"(?:\.\./)?[a-z]+\.yaml#/components/`)

// document has what all documents say, in one: references between them are references within it.
var document = sync.OnceValue(func() *contractDocument {
	d := &contractDocument{root: object{"paths": object{}, "components": object{}}, resolved: make(map[string]*jsonschema.Resolved)}
	for name, document := range documents() {
		text, err := json.Marshal(document)
		if err != nil {
			panic(err)
		}
		var part object
		if err := json.Unmarshal(otherDocument.ReplaceAll(text, []byte(`"#/components/`)), &part); err != nil {
			panic(err)
		}
		maps.Copy(d.root["paths"].(object), part["paths"].(object))
		for kind, components := range part["components"].(object) {
			of, _ := d.root["components"].(object)[kind].(object)
			if of == nil {
				of = make(object)
				d.root["components"].(object)[kind] = of
			}
			for key, component := range components.(object) {
				if of[key] != nil && kind != "securitySchemes" {
					panic(name + " has a second " + key)
				}
				if of[key] == nil || name == "openapi.yaml" {
					of[key] = component
				}
			}
		}
	}
	if err := convertJSON(refsToDefs(d.objectAt("components", "schemas")), &d.defs); err != nil {
		panic(err)
	}
	return d
})

// convertJSON converts a value into another type through JSON.
func convertJSON(from, to any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// refsToDefs points the references of a schema to where validators look for them: JSON
// Schema knows $defs, OpenAPI's components mean nothing to it.
func refsToDefs(schema any) json.RawMessage {
	b, err := json.Marshal(schema)
	if err != nil {
		panic(err)
	}
	return bytes.ReplaceAll(b, []byte(`"#/components/schemas/`), []byte(`"#/$defs/`))
}

func componentRef(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// objectAt returns the object under these keys, or nil.
func (d *contractDocument) objectAt(keys ...string) object {
	node := d.root
	for _, k := range keys {
		node, _ = node[k].(object)
	}
	return node
}

// resolveRef returns the object that v refers to, or v itself.
func (d *contractDocument) resolveRef(v any) object {
	o, _ := v.(object)
	if ref, ok := o["$ref"].(string); ok {
		return d.objectAt(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
	return o
}

// flatten returns a schema with its $ref and allOf written out. Members next to them take precedence.
func (d *contractDocument) flatten(schema any) object {
	o, _ := schema.(object)
	parts, _ := o["allOf"].([]any)
	if o["$ref"] != nil {
		parts = append(parts, d.resolveRef(o))
	}
	out, properties, required := object{}, object{}, []any{}
	for _, p := range parts {
		maps.Copy(out, d.flatten(p))
		maps.Copy(properties, out["properties"].(object))
		required = append(required, out["required"].([]any)...)
	}
	maps.Copy(out, o)
	own, _ := o["properties"].(object)
	maps.Copy(properties, own)
	need, _ := o["required"].([]any)
	out["properties"], out["required"] = properties, append(required, need...)
	return out
}

// validate validates a value, as its JSON reads, against a schema of the document.
func (d *contractDocument) validate(schema, value any) error {
	resolved, err := d.newValidator(refsToDefs(schema))
	if err != nil {
		return err
	}
	var v any
	if err := convertJSON(value, &v); err != nil {
		return err
	}
	return resolved.Validate(v)
}

// newValidator returns a validator. It makes one for each schema and with no more of the others
// than it needs: making one takes much longer than using it.
func (d *contractDocument) newValidator(schema json.RawMessage) (*jsonschema.Resolved, error) {
	if known, ok := d.resolved[string(schema)]; ok {
		return known, nil
	}
	root := &jsonschema.Schema{Defs: make(map[string]*jsonschema.Schema)}
	main, err := d.collectSchemas(root.Defs, schema)
	if err != nil {
		return nil, err
	}
	root.AllOf = []*jsonschema.Schema{main}
	resolved, err := root.Resolve(nil)
	d.resolved[string(schema)] = resolved
	return resolved, err
}

var reference = regexp.MustCompile(`"#/\$defs/(\w+)"`)

// collectSchemas reads a schema, and into defs all those that it refers to.
func (d *contractDocument) collectSchemas(defs map[string]*jsonschema.Schema, schema json.RawMessage) (*jsonschema.Schema, error) {
	var s *jsonschema.Schema
	if err := json.Unmarshal(schema, &s); err != nil {
		return nil, err
	}
	for _, m := range reference.FindAllSubmatch(schema, -1) {
		name := string(m[1])
		if _, known := defs[name]; known {
			continue
		}
		defs[name] = nil // against going in circles
		other, err := d.collectSchemas(defs, d.defs[name])
		if err != nil {
			return nil, fmt.Errorf("schema %s: %w", name, err)
		}
		defs[name] = other
	}
	return s, nil
}

// operations are the operations of the document by method and path.
func (d *contractDocument) operations() map[string]object {
	out := make(map[string]object)
	for path, item := range d.objectAt("paths") {
		for method, operation := range item.(object) {
			out[strings.ToUpper(method)+" "+path] = operation.(object)
		}
	}
	return out
}

// walkObjects visits every object of the document except those inside of examples, which
// are not part of it.
func walkObjects(at string, node any, visit func(at string, o object)) {
	switch node := node.(type) {
	case object:
		visit(at, node)
		for _, key := range slices.Sorted(maps.Keys(node)) {
			if key != "example" && key != "examples" {
				walkObjects(at+"/"+key, node[key], visit)
			}
		}
	case []any:
		for i, v := range node {
			walkObjects(fmt.Sprintf("%s/%d", at, i), v, visit)
		}
	}
}

// field is a member of the JSON that a Go struct becomes.
type field struct {
	typ      reflect.Type
	optional bool
}

// fieldsOf are the members that typ's JSON can have. Structs that are no JSON of
// ours, such as agent.Request, have none of their tags: their names are the wire's.
func fieldsOf(typ reflect.Type) map[string]field {
	out := make(map[string]field)
	for _, f := range reflect.VisibleFields(typ) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" {
			continue // the field is not in the JSON
		}
		out[cmp.Or(tag, snakeCase(f.Name))] = field{f.Type, strings.Contains(options, "omitempty")}
	}
	return out
}

// snakeCase turns ThreadID into thread_id.
func snakeCase(name string) string {
	var out []rune
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(runes[i-1]) {
			out = append(out, '_')
		}
		out = append(out, unicode.ToLower(r))
	}
	return string(out)
}

// checkShape checks that a schema declares what the JSON of a Go type can hold, no
// more and no less, and requires what is always there. The names in besides are the
// schema's own.
func (d *contractDocument) checkShape(t *testing.T, at string, typ reflect.Type, schema any, besides ...string) {
	t.Helper()
	s := d.flatten(schema)
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	want := map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer",
		reflect.Float64: "number", reflect.Slice: "array", reflect.Map: "object", reflect.Struct: "object",
	}[typ.Kind()]
	switch {
	case typ == reflect.TypeFor[json.RawMessage]() || typ.Kind() == reflect.Interface:
		return // any JSON; the schema may say more
	case typ == reflect.TypeFor[time.Time]():
		want = "string"
	case typ.Kind() == reflect.Slice:
		d.checkShape(t, at+"/0", typ.Elem(), s["items"])
	case typ.Kind() == reflect.Struct:
		d.checkFields(t, at, typ, s, besides)
	}
	if s["type"] != want {
		t.Errorf("%s: the type is %v in the document, %s in the code", at, s["type"], want)
	}
}

func (d *contractDocument) checkFields(t *testing.T, at string, typ reflect.Type, s object, besides []string) {
	t.Helper()
	properties, required := s["properties"].(object), s["required"].([]any)
	fields := fieldsOf(typ)
	for name, f := range fields {
		if properties[name] == nil {
			t.Errorf("%s/%s is in the code and not in the document, want one", at, name)
			continue
		}
		if slices.Contains(required, any(name)) == f.optional {
			t.Errorf("%s/%s: optional in the code is %t, and not so in the document, want slices.Contains(required, any(name)) other than %v", at, name, f.optional, f.optional)
		}
		d.checkShape(t, at+"/"+name, f.typ, properties[name])
	}
	for name := range properties {
		if _, known := fields[name]; !known && !slices.Contains(besides, name) {
			t.Errorf("%s/%s is in the document and not in the code, besides %q, want it to contain %s", at, name, besides, name)
		}
	}
}

// sampleBodies returns one event of every type, with every field set.
func sampleBodies() []event.Body {
	call := event.Call{CallID: "c1", Tool: "t", Server: "s"}
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	usage := event.Usage{InputTokens: 1, OutputTokens: 1, TotalTokens: 2}
	metadata := event.Metadata{
		ToolNames: []string{"t", "u"}, ToolParams: []json.RawMessage{raw(`{"a":1}`), raw(`{}`)},
		ToolResults: []json.RawMessage{raw(`[0]`), raw(`{"error":"x"}`)}, UpstreamModel: "u", Model: "m", Steps: 2, FinishReason: "stop", Usage: usage,
	}

	return []event.Body{
		event.Start{Question: "q", Model: "m", ThreadID: "t", TraceID: strings.Repeat("0a", 16), Metadata: map[string]string{"k": "v"}, UnavailableServers: []string{"crm"}, StructuredOutput: true, Agent: "a", ParentRunID: "run_p"},
		event.StepStart{Step: 1},
		event.StepEnd{Step: 1, FinishReason: "stop", Usage: &usage},
		event.StepReset{Step: 1, Reason: "r"},
		event.ReasoningStart{PartID: "p"}, event.ReasoningDelta{PartID: "p", Delta: "d"}, event.ReasoningEnd{PartID: "p"},
		event.TextStart{PartID: "p"}, event.TextDelta{PartID: "p", Delta: "d"}, event.TextEnd{PartID: "p"},
		event.ToolCallStart{Call: call, NeedsApproval: true, Executor: event.Client},
		event.ToolCallArgs{Call: call, Delta: "{"},
		event.ToolCall{Call: call, Args: raw(`{"a":1}`), ArgsText: "{", Executor: event.Client},
		event.ApprovalRequired{Call: call, InterruptID: "i", Args: raw(`{}`), Message: "m", ExpiresAt: 1, ChildRunID: "run_c"},
		event.ApprovalResolved{Call: call, InterruptID: "i", Approved: true, Reason: "r", By: "b"},
		event.Elicitation{Call: call, InterruptID: "i", Mode: "form", Message: "m", Schema: raw(`{}`), URL: "https://example.com", HeldOpen: true, ExpiresAt: 1, ChildRunID: "run_c"},
		event.ElicitationResolved{Call: call, InterruptID: "i", Action: "accept"},
		event.ToolProgress{Call: call, Progress: 0.5, Total: 1, Message: "m", ChildRunID: "run_c"},
		event.LogMessage{Call: call, Level: "info", Logger: "l", Data: raw(`1`)},
		event.ToolResult{Call: call, Args: raw(`{}`), Payload: raw(`0`), Content: []json.RawMessage{raw(`{"type":"text","text":"x"}`)}, Structured: raw(`0`), Truncated: &event.Truncated{Bytes: 1 << 20, URL: "/runs/run_a/results/c1"}, DurationMS: 1, SchemaViolations: []event.FieldError{{Pointer: "/a", Detail: "d"}}, ChildRunID: "run_c"},
		event.ToolError{Call: call, Args: raw(`{}`), ArgsText: "{", Payload: "p", Kind: "execution", Errors: []event.FieldError{{Pointer: "/a", Detail: "d"}}, Truncated: &event.Truncated{Bytes: 1 << 20}, DurationMS: 1, ChildRunID: "run_c"},
		event.Budget{Limit: "tool_calls", Used: 8, Max: 10},
		event.BudgetRequired{InterruptID: "int_2", Limit: "tool_calls", Used: 8, Max: 8, Message: "Allow it more?", ExpiresAt: 1795274519317},
		event.BudgetResolved{InterruptID: "int_2", Limit: "tool_calls", Approved: true, Max: 16, Reason: "nearly there", By: "ada"},
		event.Suspended{Interrupts: []event.Interrupt{{ID: "i", Kind: "approval"}}},
		event.FinalAnswer{Answer: "a", Output: raw(`"a"`), Metadata: metadata, FinishReason: "stop"},
		event.RunError{Code: "model_error", Reason: event.ModelNotFound, Message: "m", Retryable: true, RetryAfter: 7, PartialAnswer: "p", Errors: []event.FieldError{{Pointer: "/a", Detail: "d"}}},
		event.Cancelled{Reason: "requested", PartialAnswer: "p"},
	}
}

// storeEvent returns b as it is after a log has stored it.
func storeEvent(t *testing.T, b event.Body) event.Event {
	t.Helper()
	log := memory.New(memory.Options{})
	if err := log.Create(t.Context(), event.Run{ID: "run_a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(t.Context(), "run_a", b); err != nil {
		t.Fatal(err)
	}
	page, err := log.After(t.Context(), "run_a", 0)
	if err != nil {
		t.Fatal(err)
	}
	return page.Events[0]
}

func TestEventTypesHaveOneSchemaEach(t *testing.T) {
	d := document()
	mapping := d.objectAt("components", "schemas", "Event", "discriminator", "mapping")

	listed := make(map[string]bool)
	for _, s := range d.objectAt("components", "schemas", "Event")["oneOf"].([]any) {
		listed[s.(object)["$ref"].(string)] = true
	}

	for _, typ := range event.Types() {
		ref, _ := mapping[string(typ)].(string)
		s := d.flatten(object{"$ref": ref})
		properties := s["properties"].(object)
		if got, _ := properties["type"].(object); got["const"] != string(typ) || !listed[ref] {
			t.Errorf(`%s has no schema of its own, got["const"] %v, want got["const"] %s, listed[ref] true`, typ, got["const"], string(typ))
		}
	}

	if n := len(event.Types()); len(mapping) != n || len(listed) != n {
		t.Errorf("%d schemas, %d in the mapping, for %d types, want mapping %d, listed %d", len(listed), len(mapping), n, n, n)
	}
}

// S2.1
func TestEventsMatchTheirSchemasFieldByField(t *testing.T) {
	d := document()
	var types []event.Type
	for _, b := range sampleBodies() {
		name := string(b.Type())
		types = append(types, b.Type())
		schema := object{"$ref": d.objectAt("components", "schemas", "Event", "discriminator", "mapping")[name]}
		d.checkShape(t, name, reflect.TypeOf(b), schema, "type", "run_id", "seq", "ts")

		line := storeEvent(t, b).AppendJSON(nil)
		for _, s := range []object{schema, componentRef("Event")} {
			if err := d.validate(s, json.RawMessage(line)); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}

		var members object
		if err := json.Unmarshal(line, &members); err != nil {
			t.Fatal(err)
		}
		if want := len(fieldsOf(reflect.TypeOf(b))) + 4; len(members) != want {
			t.Errorf("%s: the sample has %d of %d fields", line, len(members), want)
		}
	}
	if !slices.Equal(types, event.Types()) {
		t.Errorf("samples of %v, want %v", types, event.Types())
	}
}

func TestThreadsMatchTheirSchemas(t *testing.T) {
	d := document()
	d.checkShape(t, "ThreadList", reflect.TypeFor[native.ThreadList](), componentRef("ThreadList"))
	d.checkShape(t, "ThreadMessages", reflect.TypeFor[native.ThreadMessages](), componentRef("ThreadMessages"))
}
