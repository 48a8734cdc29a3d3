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

// A server may require that some of a tool's arguments are also sent as headers, so that proxies can route by them
// (SEP-2243).
const (
	headerAnnotation = "x-mcp-header"
	headerPrefix     = "Mcp-Param-"
	maxSafeInteger   = 1<<53 - 1 // some languages round larger JSON numbers
)

// HeaderParam is a tool argument that is also sent as a header.
type HeaderParam struct {
	header string   // its name without headerPrefix
	path   []string // names of the nested members that lead to the argument
}

// HeaderParams returns the arguments that an input schema annotates with headerAnnotation, in any order. If there are
// none, it returns nil and no error. It returns an error if the annotations are not valid. A client must then leave the
// tool out.
//
// The SDK reads the annotations too, from the tools that its own session has listed. It sends no headers if that
// session has not listed the tools yet, or if a type in the schema is a list of types. The server then rejects the
// call.
func HeaderParams(schema json.RawMessage) ([]HeaderParam, error) {
	if !bytes.Contains(schema, []byte(headerAnnotation)) {
		return nil, nil
	}
	params, err := appendHeaderParams(nil, schema, nil)
	if err != nil {
		return nil, err
	}
	var decoded any
	dec := json.NewDecoder(bytes.NewReader(schema))
	dec.UseNumber() // a number in the schema may be too large for a float64
	if err := dec.Decode(&decoded); err != nil {
		return nil, fmt.Errorf("decode the schema: %w", err)
	}
	if countAnnotations(decoded) != len(params) {
		return nil, fmt.Errorf("%s is allowed only for properties that are reached from the root by properties alone", headerAnnotation)
	}
	seen := make(map[string]bool) // keyed by the name in lower case: header names ignore case (RFC 9110 section 5.1)
	for _, p := range params {
		lower := strings.ToLower(p.header)
		if seen[lower] {
			return nil, fmt.Errorf("two properties have the %s %.60q", headerAnnotation, p.header)
		}
		seen[lower] = true
	}
	return params, nil
}

// appendHeaderParams appends to params all annotated properties of schema, including nested ones, and returns the
// result. path has the names of the properties that lead to schema. It is not changed.
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

// countAnnotations returns the number of annotations anywhere in a schema, including those in places where they are not
// allowed. schema is decoded JSON, because decoding each nested schema separately would cost more the deeper it is.
func countAnnotations(schema any) (count int) {
	switch schema := schema.(type) {
	case []any:
		for _, item := range schema {
			count += countAnnotations(item)
		}
	case map[string]any:
		for keyword, value := range schema {
			switch keyword {
			case headerAnnotation:
				count++
			case "const", "default", "enum", "example", "examples": // not schemas
			case "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions":
				subschemas, _ := value.(map[string]any) // by names that are not keywords
				for _, subschema := range subschemas {
					count += countAnnotations(subschema)
				}
			default:
				count += countAnnotations(value)
			}
		}
	}
	return count
}

// parseHeaderName returns the header name in an annotation, or an error if it is not valid. typ is the annotated
// property's type. Only strings, integers and booleans may be annotated.
func parseHeaderName(annotation, typ json.RawMessage) (string, error) {
	isAnnotatable := slices.Contains([]string{`"string"`, `"integer"`, `"boolean"`}, string(typ)) // typ is quoted JSON text
	if !isAnnotatable {
		return "", errors.New(headerAnnotation + " is only for strings, integers and booleans")
	}
	var name string
	if json.Unmarshal(annotation, &name) != nil || name == "" {
		return "", errors.New(headerAnnotation + " is not a name")
	}
	// Characters that are not allowed in a token would let a server forge headers.
	if strings.ContainsFunc(name, func(r rune) bool { return !isTokenChar(r) }) {
		return "", fmt.Errorf("%s %.60q is not a header name", headerAnnotation, name)
	}
	return name, nil
}

// isTokenChar reports whether r may be part of a token, such as a header name (RFC 9110 section 5.6.2).
func isTokenChar(r rune) bool {
	isAlphanumeric := '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
	return isAlphanumeric || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// HeaderValues returns the headers to send with a call, by their full names. args has the call's arguments. An argument
// that is missing, null or of an unsupported type has no header.
func HeaderValues(params []HeaderParam, args json.RawMessage) map[string]string {
	headers := make(map[string]string, len(params))
	for _, p := range params {
		if text, ok := p.argumentText(args); ok {
			headers[headerPrefix+p.header] = wire.HeaderValue(text)
		}
	}
	return headers
}

// argumentText returns the parameter's value in args as text. ok is false if args has no value for it, or if the value
// cannot be sent as a header: null, an array, an object, or a number that is not an integer of at most maxSafeInteger.
func (p HeaderParam) argumentText(args json.RawMessage) (text string, ok bool) {
	for _, name := range p.path {
		var object map[string]json.RawMessage
		if json.Unmarshal(args, &object) != nil {
			return "", false
		}
		args = object[name] // nil if it is missing: the next Unmarshal fails
	}
	var value any
	if json.Unmarshal(args, &value) != nil {
		return "", false
	}
	switch v := value.(type) {
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
