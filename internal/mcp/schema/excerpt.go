package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Excerpt returns a schema in at most about n bytes, for a model that must repair a value with
// those problems. It returns only the fields that the problems concern, or the beginning of the
// schema if that is too long. The text says what was left out.
func Excerpt(raw json.RawMessage, problems []Problem, n int) string {
	v, wrong := parseJSON(raw, lastDuplicateWins)
	if wrong != nil {
		return ""
	}
	fields, all := v.keyword("properties"), 0
	if fields != nil && fields.kind == object {
		all = len(fields.names)
	}
	about := func(name string) bool {
		return slices.ContainsFunc(problems, func(p Problem) bool {
			first, _, _ := strings.Cut(strings.TrimPrefix(p.Pointer, "/"), "/")
			return first == pointerEscaper.Replace(name)
		})
	}
	shown := 0
	if all > 0 {
		kept := fields.selectMembers(about)
		part, _ := parseJSON(kept, lastDuplicateWins)
		shown = len(part.names)
		v = v.withItems(slices.Clone(v.items))
		v.items[slices.Index(v.names, "properties")] = part.withPositionOf(fields)
	}
	s := string(v.appendJSON(nil))
	if shown > 0 && len(s) <= n {
		return fmt.Sprintf("%s [%d of %d fields are shown]", s, shown, all)
	}
	return fmt.Sprintf("%s [truncated: %d of %d bytes are shown]", truncate(string(raw), n), len(truncate(string(raw), n)), len(raw))
}

// selectMembers returns an object as JSON with only the members whose names are selected.
func (v *value) selectMembers(selected func(string) bool) []byte {
	out := []byte{'{'}
	for i, name := range v.names {
		if !selected(name) {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		quoted, _ := json.Marshal(name)
		out = append(append(append(out, quoted...), ':'), v.items[i].raw...)
	}
	return append(out, '}')
}
