package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Excerpt is a schema in at most some n bytes, for whoever is to repair a value with
// those problems: with only the fields that they are about, or else cut. It says what it
// left out.
func Excerpt(raw json.RawMessage, problems []Problem, n int) string {
	v, wrong := parse(raw, lastWins)
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
			return first == escaper.Replace(name)
		})
	}
	shown := 0
	if all > 0 {
		kept := fields.members(about)
		part, _ := parse(kept, lastWins)
		shown = len(part.names)
		v = v.with(slices.Clone(v.items))
		v.items[slices.Index(v.names, "properties")] = part.inPlaceOf(fields)
	}
	s := string(v.render(nil))
	if shown > 0 && len(s) <= n {
		return fmt.Sprintf("%s [%d of %d fields are shown]", s, shown, all)
	}
	return fmt.Sprintf("%s [cut here: %d of %d bytes are shown]", cut(string(raw), n), len(cut(string(raw), n)), len(raw))
}

// members is an object as JSON with only those of its members whose names please.
func (v *value) members(please func(string) bool) []byte {
	out := []byte{'{'}
	for i, name := range v.names {
		if !please(name) {
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
