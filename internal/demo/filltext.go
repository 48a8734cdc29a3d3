package demo

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Texts that can be told by their looks.
var (
	emailWord  = regexp.MustCompile(`[\w.+-]+@[\w-]+(?:\.[\w-]+)+`)
	urlWord    = regexp.MustCompile(`https?://[^\s"'<>]+`)
	dateWord   = regexp.MustCompile(`\b\d{4}-\d{2}-\d{2}(?:T[\d:.]+(?:Z|[+-]\d{2}:\d{2})?)?`)
	properName = regexp.MustCompile(`\p{Lu}[\p{L}'-]+(?:\s+\p{Lu}[\p{L}'-]+)*`)
)

// text is the clause's argument for a parameter that takes text: what matches the
// parameter's meaning, else something quoted, else for a required one the subject.
func (f *filled) text(t *tool, p param) (any, bool) {
	m := p.means
	if s, worth, ok := f.find(t, p, m); ok {
		if worth > 0 {
			f.found += worth
		} else {
			f.hints++
		}
		return s, true
	}
	switch m {
	case meansQuery, meansOther, meansFrom, meansTo:
	case meansZone:
		return "UTC", p.required // time is asked for, of nowhere in particular
	default:
		return nil, false
	}
	if len(f.quoted) > 0 {
		s := f.quoted[0]
		f.quoted = f.quoted[1:]
		f.hints++
		return s, true
	}
	if !p.required || (m != meansQuery && m != meansOther) {
		return nil, false
	}
	if m == meansOther {
		// A name of something: capitals after the first word tell it best.
		words := strings.SplitN(f.clause.text, " ", 2)
		if s := properName.FindString(words[len(words)-1]); s != "" {
			return s, true
		}
	}
	return f.clause.subject(), true
}

// find looks for what m means. worth is what the find says for the tool by itself.
func (f *filled) find(t *tool, p param, m meaning) (s string, worth float64, ok bool) {
	c := f.clause
	switch m {
	case meansZone:
		if c.place != nil && c.place.zone != "" {
			return c.place.zone, 0, true
		} else if c.place != nil {
			return c.place.name, 0, true // let the tool say that it knows no such place
		}
	case meansPlace:
		if c.place != nil {
			return c.place.name, 0, true
		}
	case meansExpression:
		if c.sum != "" {
			return c.sum, foundWorth, true
		}
	case meansFrom, meansTo:
		if c.quantity == nil || !t.converts() {
			break
		}
		if m == meansFrom {
			return c.quantity.from, foundWorth / 2, true
		}
		return c.quantity.to, foundWorth / 2, true
	case meansID:
		s = f.id(p)
	case meansEmail:
		s = emailWord.FindString(c.text)
	case meansURL:
		s = urlWord.FindString(c.text)
	case meansDate:
		s = dateWord.FindString(c.text)
	}
	return s, 0, s != ""
}

// id is the word with a digit in it that follows the thing's name, else any such
// word, else something quoted.
func (f *filled) id(p param) string {
	names := p.words
	fields := strings.FieldsFunc(f.clause.text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("#:=,.;?!\"()", r) })
	for i, field := range fields {
		if !slices.Contains(names, strings.ToLower(field)) {
			continue
		}
		if i+1 < len(fields) && slices.Contains(betweens, strings.ToLower(fields[i+1])) {
			i++
		}
		if i+1 < len(fields) && len(f.clause.ids) > 0 && idWord.FindString(fields[i+1]) == fields[i+1] {
			return fields[i+1]
		}
	}
	if len(f.clause.ids) > 0 {
		return f.clause.ids[0]
	}
	if len(f.quoted) > 0 {
		return f.quoted[0]
	}
	return ""
}

// fallback is a value that the schema allows, for a call that must be made although
// the clause says nothing.
func (p param) fallback(c clause, depth int) any {
	switch {
	case p.preset != nil:
		return p.preset
	case len(p.enum) > 0:
		return p.enum[0]
	case depth > maxSchemaDepth:
		return nil
	case p.is("string"):
		return p.fallbackText(c)
	case p.is("integer", "number"):
		if p.minimum != nil {
			return *p.minimum
		}
		return 1
	case p.is("boolean"):
		return false
	case p.is("array") && p.items != nil:
		return []any{p.items.fallback(c, depth+1)}
	case p.is("array"):
		return []any{}
	}
	out := make(map[string]any)
	for _, q := range p.params {
		if q.required {
			out[q.name] = q.fallback(c, depth+1)
		}
	}
	return out
}

// fallbackText is a text of the kind that p wants. The example values are those that
// RFC 2606 reserves, so that a call made with them reaches nobody.
func (p param) fallbackText(c clause) any {
	switch p.means {
	case meansZone:
		return "UTC"
	case meansExpression:
		return "1 + 1"
	case meansDate:
		return "2026-01-01"
	case meansEmail:
		return "someone@example.com"
	case meansURL:
		return "https://example.com"
	case meansID:
		return "1"
	}
	if s := c.subject(); s != "" {
		return s
	}
	return "example"
}
