package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"answerd/internal/mcp/wire"
)

// A server may require some arguments of a tool in headers as well, so that proxies can route by them (SEP-2243).
const (
	headerAnnotation = "x-mcp-header"
	headerPrefix     = "Mcp-Param-"
	maxSafeInteger   = 1<<53 - 1 // larger JSON numbers differ between languages
)

// HeaderParam is an argument that is also sent as a header.
type HeaderParam struct {
	header string   // its name without headerPrefix
	path   []string // the names of the members that lead to the argument in the arguments
}

// HeaderParams returns the arguments that an input schema annotates with headerAnnotation, in any order; nil without
// an error if there are none. An error means that the annotations are not valid: a client must then leave the tool
// out.
//
// The SDK also reads the annotations, from the lists of its own session. It sends no headers if that session has not
// listed the tools yet, or if a type in the schema is a list of types. The server then refuses the call.
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
		lower := strings.ToLower(p.header)
		if seen[lower] {
			return nil, fmt.Errorf("two properties have the %s %.60q", headerAnnotation, p.header)
		}
		seen[lower] = true
	}
	return params, nil
}

// appendHeaderParams appends to params the annotated properties of the schema at path, and of the schemas of its
// properties, and returns the result. path has the names of the properties that lead to schema; it is not changed.
func appendHeaderParams(params []HeaderParam, schema json.RawMessage, path []string) ([]HeaderParam, error) {
	var decoded struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	// A schema that does not decode, such as true or false, has no properties.
	if json.Unmarshal(schema, &decoded) != nil {
		return params, nil
	}
	for name, property := range decoded.Properties {
		propertyPath := slices.Concat(path, []string{name})
		var keywords map[string]json.RawMessage
		if json.Unmarshal(property, &keywords) != nil {
			continue
		}
		if annotation, ok := keywords[headerAnnotation]; ok {
			header, err := parseHeaderName(annotation, keywords["type"])
			if err != nil {
				return nil, fmt.Errorf("property %.60q: %w", strings.Join(propertyPath, "."), err)
			}
			params = append(params, HeaderParam{header: header, path: propertyPath})
		}
		var err error
		if params, err = appendHeaderParams(params, property, propertyPath); err != nil {
			return nil, err
		}
	}
	return params, nil
}

// countAnnotations returns how many annotations there are in a schema and in all schemas in it, at any place. schema
// is decoded JSON: decoding each nested schema again would cost more the deeper it is.
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

// parseHeaderName decodes and checks an annotation, and returns the header name in it. typ is the type of the
// annotated property: only strings, integers and booleans may be annotated.
func parseHeaderName(annotation, typ json.RawMessage) (string, error) {
	switch string(typ) {
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

// HeaderValues returns the headers of a call with the arguments args, by their full names. An argument that is
// missing, null or of another type has no header.
func HeaderValues(params []HeaderParam, args json.RawMessage) map[string]string {
	headers := make(map[string]string, len(params))
	for _, p := range params {
		if text, ok := p.argumentText(args); ok {
			headers[headerPrefix+p.header] = wire.HeaderValue(text)
		}
	}
	return headers
}

// argumentText returns the value of the parameter in args as text. ok is false if there is none, or if the value
// cannot be sent as a header: null, an array, an object, or a number that is not an integer of at most
// maxSafeInteger.
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
		isSafeInteger := v == math.Trunc(v) && math.Abs(v) <= maxSafeInteger
		return strconv.FormatInt(int64(v), 10), isSafeInteger
	}
	return "", false
}
