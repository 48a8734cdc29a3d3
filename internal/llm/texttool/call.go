package texttool

import (
	"slices"
	"strings"

	"answerd/internal/llm"

	"github.com/go-json-experiment/json/jsontext"
)

// writtenCall is a call that was found in a model's text. arguments should be a JSON object, but a model may write
// anything.
type writtenCall struct{ name, arguments string }

// toolSet holds the tools that a model was offered.
type toolSet []llm.Tool

// find returns the tool called name, and whether it was offered. Names are case-sensitive.
func (tools toolSet) find(name string) (tool llm.Tool, found bool) {
	for _, t := range tools {
		if t.Name == name {
			return t, true
		}
	}
	return llm.Tool{}, false
}

// isKnown reports whether a tool with this name was offered.
func (tools toolSet) isKnown(name string) bool {
	_, found := tools.find(name)
	return found
}

// hasPrefix reports whether the name of any offered tool begins with prefix.
func (tools toolSet) hasPrefix(prefix string) bool {
	return slices.ContainsFunc(tools, func(t llm.Tool) bool { return strings.HasPrefix(t.Name, prefix) })
}

// isObject reports whether arguments is a JSON object. It allows duplicate names and invalid UTF-8.
func isObject(arguments string) bool {
	v := jsontext.Value(arguments)
	return v.Kind() == '{' && v.IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// isWordByte reports whether c is an ASCII letter, a digit, "_" or "-". After such a byte, "tool:" is part of a word
// such as "multitool:" and does not begin a header. Letters of other scripts do not count, because in a script without
// spaces, text may directly precede a call.
func isWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}
