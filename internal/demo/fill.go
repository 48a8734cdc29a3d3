package demo

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// filled is the arguments that a clause gives a tool.
type filled struct {
	args    map[string]any
	missing []string // required, and nothing in the clause for it
	found   float64  // worth of finds that speak for the tool by themselves
	hints   int      // arguments found that speak for it only beside its words
	clause  clause
	numbers []string // not used yet
	quoted  []string
}

// fill finds an argument for each parameter. Required ones choose first; optional
// ones are left out unless the clause clearly has something for them.
func fill(t *tool, c clause) *filled {
	f := &filled{args: make(map[string]any), clause: c, numbers: slices.Clone(c.numbers), quoted: slices.Clone(c.quoted)}
	for _, required := range []bool{true, false} {
		for _, p := range t.params {
			if p.required != required {
				continue
			}
			v, ok := f.value(t, p)
			switch {
			case ok:
				f.args[p.name] = v
			case required:
				f.missing = append(f.missing, p.name)
			}
		}
	}
	return f
}

// value is the clause's argument for p, if it has one.
func (f *filled) value(t *tool, p param) (any, bool) {
	if s, ok := f.clause.named[strings.ToLower(p.name)]; ok {
		if v, ok := p.parse(s); ok {
			f.hints += 2
			return v, true
		}
	}
	if p.enum != nil {
		return f.choice(p)
	}
	switch {
	case p.is("string"):
		return f.text(t, p)
	case p.is("integer", "number"):
		return f.number(t, p)
	case p.is("boolean"):
		said := slices.ContainsFunc(stems(p.name), func(w string) bool { return slices.Contains(f.clause.stems, w) })
		return said, said || p.required
	case p.is("array"):
		return f.list(p)
	case p.is("object") && p.required:
		inner := fill(&tool{params: p.params}, f.clause)
		f.missing = append(f.missing, inner.missing...)
		return inner.args, true
	}
	return p.preset, p.preset != nil && p.required
}

// choice is the allowed value that the clause names, or for a required parameter
// the preset or the first.
func (f *filled) choice(p param) (any, bool) {
	padded := " " + strings.Join(splitWords(f.clause.text), " ") + " "
	for _, v := range p.enum {
		if words := splitWords(fmt.Sprint(v)); len(words) > 0 && strings.Contains(padded, " "+strings.Join(words, " ")+" ") {
			f.hints += 2
			return v, true
		}
	}
	if !p.required {
		return nil, false
	}
	return p.fallback(f.clause, 0), true
}

// number is the quantity's for an amount, else the number that stands beside a word
// of the parameter's name, else for a required parameter the next unused one.
func (f *filled) number(t *tool, p param) (any, bool) {
	if q := f.clause.quantity; q != nil && p.means == meansAmount && t.converts() {
		return p.parse(q.value)
	}
	if s := f.clause.beside(p); s != "" {
		if v, ok := p.parse(s); ok {
			f.hints++
			f.numbers = slices.DeleteFunc(f.numbers, func(n string) bool { return n == s })
			return v, true
		}
	}
	if !p.required {
		return nil, false
	}
	// A sum's operands serve tools that take them apart, such as add(a, b).
	if len(f.numbers) == 0 && f.clause.sum != "" && len(f.args) == 0 {
		f.numbers = numberWord.FindAllString(f.clause.sum, 8)
	}
	for i, s := range f.numbers {
		if v, ok := p.parse(s); ok {
			f.numbers = slices.Delete(f.numbers, i, i+1)
			f.hints++
			return v, true
		}
	}
	return nil, false
}

// list is every number, or every quoted text, for a required array.
func (f *filled) list(p param) (any, bool) {
	if !p.required {
		return nil, false
	}
	texts := f.clause.quoted
	if p.items != nil && p.items.is("integer", "number") && !p.items.is("string") {
		if texts = f.clause.numbers; len(texts) == 0 {
			texts = numberWord.FindAllString(f.clause.sum, 8)
		}
	}
	out := []any{}
	for _, s := range texts {
		v, ok := any(s), true
		if p.items != nil {
			v, ok = p.items.parse(s)
		}
		if ok {
			out = append(out, v)
		}
	}
	return out, len(out) > 0
}

// unitSuffixes end the names of parameters that are measured in something: for
// step_ms the number is the one before "ms" and not the one before "steps".
var unitSuffixes = []string{"ms", "seconds", "secs", "sec", "minutes", "mins", "hours", "days", "bytes", "percent"}

// betweens may stand between a thing and its number: "limit of 3", "customer no 7".
var betweens = []string{"of", "is", "to", "number", "no", "id", "code", "key"}

// beside is the number next to a word of p's name: "5 steps", "limit 3". It works on
// tokens: a pattern per parameter of hostile schemas would cost seconds to compile.
func (c clause) beside(p param) string {
	words := p.words
	if len(words) == 0 || len(c.ids) == 0 {
		return ""
	}
	if last := words[len(words)-1]; slices.Contains(unitSuffixes, last) {
		words = []string{last}
	} else if p.hasWord("limit") {
		words = append(slices.Clip(words), "top", "first", "most")
	}
	tokens := c.tokens
	for i, token := range tokens {
		if !slices.ContainsFunc(words, func(w string) bool { return sameNoun(w, token) }) {
			continue
		}
		if i > 0 && isNumber(tokens[i-1]) {
			return tokens[i-1]
		}
		if i+1 < len(tokens) && slices.Contains(betweens, tokens[i+1]) {
			i++
		}
		if i+1 < len(tokens) && isNumber(tokens[i+1]) {
			return tokens[i+1]
		}
	}
	return ""
}

// sameNoun compares without the plural's s.
func sameNoun(a, b string) bool {
	return strings.TrimSuffix(a, "s") == strings.TrimSuffix(b, "s")
}

// isNumber tells the tokens that are numbers: words have no digits.
func isNumber(token string) bool { return strings.ContainsAny(token[len(token)-1:], "0123456789") }

// parse reads s as one of p's types.
func (p param) parse(s string) (any, bool) {
	switch {
	case p.is("string"):
		return s, true
	case p.is("integer"):
		n, err := strconv.ParseInt(plainNumber(s), 10, 64)
		return n, err == nil
	case p.is("number"):
		x, err := strconv.ParseFloat(plainNumber(s), 64)
		return x, err == nil && !math.IsInf(x, 0) && !math.IsNaN(x)
	case p.is("boolean"):
		b, err := strconv.ParseBool(strings.ToLower(s))
		return b, err == nil
	}
	var v any
	return v, json.Unmarshal([]byte(s), &v) == nil && v != nil
}
