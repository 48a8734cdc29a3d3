package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"answerd/internal/mcp/wire"
)

// A server may require some arguments of a tool in headers as well, so that proxies can route by them
// (SEP-2243).
const (
	headerAnnotation = "x-mcp-header"
	headerPrefix     = "Mcp-Param-"
	maxSafeInteger   = 1<<53 - 1 // larger JSON numbers differ between languages
)

// HeaderParam is an argument that is also sent as a header.
type HeaderParam struct {
	header string
	path   []string // the names that lead to it in the arguments
}

// HeaderParams returns the annotated arguments of an input schema. After an error, a client must
// leave the tool out.
//
// The SDK also reads the annotations, from the lists of its own session. It sends no headers if
// that session has not listed the tools yet, or if a type in the schema is a list of types. The
// server then refuses the call.
func HeaderParams(schema json.RawMessage) ([]HeaderParam, error) {
	if !bytes.Contains(schema, []byte(headerAnnotation)) {
		return nil, nil
	}
	params, err := appendHeaderParams(nil, schema, nil)
	if err != nil {
		return nil, err
	}
	var tree any
	dec := json.NewDecoder(bytes.NewReader(schema))
	dec.UseNumber() // a bound may be larger than a float64
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("decode the schema: %w", err)
	}
	if countAnnotations(tree) != len(params) {
		return nil, fmt.Errorf("%s is allowed only for properties that are reached from the root by properties alone", headerAnnotation)
	}
	seen := make(map[string]bool)
	for _, p := range params {
		// Header names are case-insensitive (RFC 9110 section 5.1).
		low := strings.ToLower(p.header)
		if seen[low] {
			return nil, fmt.Errorf("two properties have the %s %.60q", headerAnnotation, p.header)
		}
		seen[low] = true
	}
	return params, nil
}

// appendHeaderParams appends the annotated properties of the schema at path, and of the schemas of
// its properties.
func appendHeaderParams(params []HeaderParam, schema json.RawMessage, path []string) ([]HeaderParam, error) {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	// Other schemas, such as true and false, have no properties.
	if json.Unmarshal(schema, &s) != nil {
		return params, nil
	}
	for name, property := range s.Properties {
		at := append(path[:len(path):len(path)], name)
		var p map[string]json.RawMessage
		if json.Unmarshal(property, &p) != nil {
			continue
		}
		if raw, annotated := p[headerAnnotation]; annotated {
			header, err := parseHeaderName(raw, p["type"])
			if err != nil {
				return nil, fmt.Errorf("property %.60q: %w", strings.Join(at, "."), err)
			}
			params = append(params, HeaderParam{header, at})
		}
		var err error
		if params, err = appendHeaderParams(params, property, at); err != nil {
			return nil, err
		}
	}
	return params, nil
}

// countAnnotations returns how many annotations there are in a schema and in all schemas in it. The schema is
// decoded once, so that deep ones cost no more.
func countAnnotations(schema any) (n int) {
	switch schema := schema.(type) {
	case []any:
		for _, s := range schema {
			n += countAnnotations(s)
		}
	case map[string]any:
		for keyword, value := range schema {
			switch keyword {
			case headerAnnotation:
				n++
			case "const", "default", "enum", "example", "examples": // not schemas
			case "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions":
				named, _ := value.(map[string]any)
				for _, s := range named {
					n += countAnnotations(s)
				}
			default:
				n += countAnnotations(value)
			}
		}
	}
	return n
}

// parseHeaderName returns the header name of an annotation. kind is the type of the property,
// since only some types can be sent.
func parseHeaderName(annotation, kind json.RawMessage) (string, error) {
	switch string(kind) {
	case `"string"`, `"integer"`, `"boolean"`:
	default:
		return "", errors.New(headerAnnotation + " is only for strings, integers and booleans")
	}
	var name string
	if json.Unmarshal(annotation, &name) != nil || name == "" {
		return "", errors.New(headerAnnotation + " is not a name")
	}
	for _, c := range []byte(name) {
		// RFC 9110 section 5.6.2: a token. Other characters would let a server forge headers.
		switch {
		case '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)):
		default:
			return "", fmt.Errorf("%s %.60q is not a header name", headerAnnotation, name)
		}
	}
	return name, nil
}

// HeaderValues returns the headers of a call with these arguments. An argument that is missing or
// null has no header.
func HeaderValues(params []HeaderParam, args json.RawMessage) map[string]string {
	out := make(map[string]string, len(params))
	for _, p := range params {
		if text, ok := p.argumentText(args); ok {
			out[headerPrefix+p.header] = wire.HeaderValue(text)
		}
	}
	return out
}

// argumentText returns the argument as text. ok is false if it is missing or its value cannot be
// sent.
func (p HeaderParam) argumentText(args json.RawMessage) (text string, ok bool) {
	for _, name := range p.path {
		var object map[string]json.RawMessage
		if json.Unmarshal(args, &object) != nil {
			return "", false
		}
		args = object[name]
	}
	var v any
	if json.Unmarshal(args, &v) != nil {
		return "", false
	}
	switch v := v.(type) {
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case float64:
		return strconv.FormatInt(int64(v), 10), v == math.Trunc(v) && math.Abs(v) <= maxSafeInteger
	}
	return "", false
}
