package catalog

import (
	"answerd/internal/mcp/wire"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Of tools whose arguments a server wants to see in headers, too, so that proxies can
// route by them (SEP-2243).
const (
	headerAnnotation = "x-mcp-header"
	headerPrefix     = "Mcp-Param-"
	maxSafeInteger   = 1<<53 - 1 // beyond it, JSON numbers differ between languages
)

// HeaderParam is one argument that also goes into a header.
type HeaderParam struct {
	header string
	path   []string // the names that lead to it in the arguments
}

// HeaderParams reads the annotations of an input schema within its bounds. The error
// is one for which a client must leave the tool out.
//
// The SDK has its own reading of them, from the lists that its session has seen. It
// sends no headers where that session has not listed yet, or where a type in the
// schema is a list of types; and the server then refuses the call.
func HeaderParams(schema json.RawMessage) ([]HeaderParam, error) {
	if !bytes.Contains(schema, []byte(headerAnnotation)) {
		return nil, nil
	}
	params, err := appendHeaderParams(nil, schema, nil)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for _, p := range params {
		// Header names are the same in upper and lower case.
		low := strings.ToLower(p.header)
		if seen[low] {
			return nil, fmt.Errorf("two properties have the %s %.60q", headerAnnotation, p.header)
		}
		seen[low] = true
	}
	return params, nil
}

// appendHeaderParams adds those of the properties of schema, which stands at path.
func appendHeaderParams(params []HeaderParam, schema json.RawMessage, path []string) ([]HeaderParam, error) {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	// What is no object schema has no properties; true and false are schemas, too.
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

// parseHeaderName is what an annotation says, if it may stand at a property of that type.
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
		// token of RFC 9110 section 5.6.2; anything else would let a server write
		// into our requests.
		if !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return "", fmt.Errorf("%s %.60q is not a header name", headerAnnotation, name)
		}
	}
	return name, nil
}

// HeaderValues are what the arguments put into the headers of a call. An argument that is
// missing or null has none.
func HeaderValues(params []HeaderParam, args json.RawMessage) map[string]string {
	out := make(map[string]string, len(params))
	for _, p := range params {
		if text, ok := p.argumentText(args); ok {
			out[headerPrefix+p.header] = wire.HeaderValue(text)
		}
	}
	return out
}

// argumentText is the argument as text; false where it is none of the types that may be sent.
func (p HeaderParam) argumentText(args json.RawMessage) (string, bool) {
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
