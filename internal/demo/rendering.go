package demo

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Bounds of a result's text: an answer is to be read, and its tail adds little.
const (
	maxRendered = 1200 // bytes of one result in the answer
	maxFields   = 8    // of an object without a sentence of its own
)

// sentenceKeys are the fields in which results say themselves, best first.
var sentenceKeys = []string{"summary", "text", "message", "answer", "result", "output", "error", "detail", "content", "structuredContent"}

// renderResult is a tool's result as a text to read. JSON gives the field that is
// meant for people, or else its fields by name. Structured content behind a text says
// the same for programs.
func renderResult(result string) string {
	result, _, _ = strings.Cut(result, "\nStructured content: ")
	var v any
	text := result
	if json.Unmarshal([]byte(result), &v) == nil {
		text = renderValue(v, 0)
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return "The tool returned nothing."
	}
	if len(text) > maxRendered {
		text = strings.ToValidUTF8(text[:maxRendered], "") + " …"
	}
	return text
}

// renderValue is v in words. What is nested too deep is left out.
func renderValue(v any, depth int) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return formatNumber(v)
	case map[string]any:
		return renderObject(v, depth)
	case []any:
		var parts []string
		for _, e := range v[:min(len(v), maxFields)] {
			if s := renderValue(e, depth+1); s != "" && depth < maxSchemaDepth {
				parts = append(parts, s)
			}
		}
		return strings.Join(parts, "; ")
	}
	return fmt.Sprint(v)
}

// renderObject prefers a field that is a sentence. Numbers are none: {"result": 4,
// "unit": "km"} is better told whole.
func renderObject(o map[string]any, depth int) string {
	if depth > maxSchemaDepth {
		return "…"
	}
	for _, k := range sentenceKeys {
		if _, isNumber := o[k].(float64); !isNumber {
			if s := renderValue(o[k], depth+1); s != "" {
				return s
			}
		}
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(o)) {
		if s := renderValue(o[k], depth+1); s != "" && len(parts) < maxFields {
			parts = append(parts, k+": "+s)
		}
	}
	return strings.Join(parts, ", ")
}
