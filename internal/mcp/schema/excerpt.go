package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"answerd/internal/mcp/wire"
)

// Excerpt shortens a schema for a model that has to correct a value with the given problems. The excerpt has only the
// properties that the problems concern. If it is longer than n bytes, or the problems concern no property, Excerpt
// returns the first n bytes of the schema instead. A note of what was left out follows and does not count towards n.
// Excerpt returns "" if raw is not JSON within the limits of Compile.
func Excerpt(raw json.RawMessage, problems []Problem, n int) string {
	tree, problem := parseJSON(raw, lastDuplicateWins)
	if problem != nil {
		return ""
	}
	if properties := tree.keyword("properties"); properties != nil && properties.kind == object {
		selected := properties.selectMembers(func(name string) bool {
			return slices.ContainsFunc(problems, func(p Problem) bool { return p.isWithin(name) })
		})
		tree = tree.withItems(slices.Clone(tree.items))
		tree.items[slices.Index(tree.names, "properties")] = selected.withPositionOf(properties)
		excerpt := tree.appendJSON(nil)
		if len(selected.names) > 0 && len(excerpt) <= n {
			return fmt.Sprintf("%s [%d of %d fields are shown]", excerpt, len(selected.names), len(properties.names))
		}
	}
	beginning := wire.Truncate(string(raw), n)
	return fmt.Sprintf("%s [truncated: %d of %d bytes are shown]", beginning, len(beginning), len(raw))
}

// isWithin reports whether the problem concerns the property called name of the whole value, or a part of it.
func (p Problem) isWithin(name string) bool {
	property, _, _ := strings.Cut(strings.TrimPrefix(p.Pointer, "/"), "/")
	return property == pointerEscaper.Replace(name)
}

// selectMembers returns a copy of the object v with only those members for whose names isSelected returns true.
func (v *value) selectMembers(isSelected func(name string) bool) *value {
	var members []string
	for i, name := range v.names {
		if isSelected(name) {
			quoted, _ := json.Marshal(name) // cannot fail for a string
			members = append(members, string(quoted)+":"+string(v.items[i].raw))
		}
	}
	selected, _ := parseJSON([]byte("{"+strings.Join(members, ",")+"}"), lastDuplicateWins) // cannot fail: v was parsed, too
	return selected
}
