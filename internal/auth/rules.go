package auth

import (
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"answerd/internal/auth/strictjson"
)

// Rules say which callers may use which servers, tools and models: whatever any rule
// allows that is about the caller. Whom no rule is about may use nothing. A nil *Rules
// lets everybody use everything, which is how a service without rules works.
type Rules struct{ current atomic.Pointer[[]Rule] }

// Rule is one rule. What a condition or a permission leaves out is met by everybody, and
// allowed whole. Names are globs of path.Match, in which * goes over "/" too: subjects
// and models have it in their names.
type Rule struct {
	Name string `json:"name"` // in the log; its number in the file, from 1, where the file gives none

	Subjects []string            `json:"subjects"` // the caller's is one of them
	Scopes   []string            `json:"scopes"`   // the caller has all of them; no globs
	Claims   map[string][]string `json:"claims"`   // for each claim, one of the caller's values is one of these

	Servers []string `json:"servers"` // as mcp.json names them
	Tools   []string `json:"tools"`   // as GET /tools names them
	Models  []string `json:"models"`
}

// NewRules is rules in force.
func NewRules(rules []Rule) *Rules {
	r := &Rules{}
	r.Replace(rules)
	return r
}

// Replace puts other rules into force, for runs that go on too.
func (r *Rules) Replace(rules []Rule) { r.current.Store(&rules) }

// Of is what the caller may use, by the rules that are in force now.
func (r *Rules) Of(id Identity) Access {
	if r == nil {
		return Access{all: true}
	}
	var a Access
	for _, rule := range *r.current.Load() {
		if rule.about(id) {
			a.rules = append(a.rules, rule)
		}
	}
	return a
}

// Access is what one caller may use.
type Access struct {
	all   bool   // there are no rules
	rules []Rule // that are about the caller
}

// Unlimited reports whether there are no rules to look at.
func (a Access) Unlimited() bool { return a.all }

// Nothing reports whether the caller may use nothing at all.
func (a Access) Nothing() bool { return !a.all && len(a.rules) == 0 }

// Server reports whether the caller may know of a server, because he may use what it has.
func (a Access) Server(name string) bool {
	return a.all || slices.ContainsFunc(a.rules, func(r Rule) bool { return within(r.Servers, name) })
}

// Model reports whether the caller may use a model.
func (a Access) Model(name string) bool {
	return a.all || slices.ContainsFunc(a.rules, func(r Rule) bool { return within(r.Models, name) })
}

// Tool reports whether the caller may use a tool of a server, and by which rule, ""
// where there are none.
func (a Access) Tool(server, tool string) (rule string, ok bool) {
	for _, r := range a.rules {
		if within(r.Servers, server) && within(r.Tools, tool) {
			return r.Name, true
		}
	}
	return "", a.all
}

// about reports whether the caller meets every condition of the rule.
func (r Rule) about(id Identity) bool {
	for _, scope := range r.Scopes {
		if !slices.Contains(id.Scopes, scope) {
			return false
		}
	}
	for name, wanted := range r.Claims {
		if !slices.ContainsFunc(claimValues(id.Claims, name), func(value string) bool { return within(wanted, value) }) {
			return false
		}
	}
	return within(r.Subjects, id.Subject)
}

// within reports whether one of globs matches name; where there are none, anything does.
func within(globs []string, name string) bool {
	return globs == nil || slices.ContainsFunc(globs, func(glob string) bool {
		ok, err := path.Match(flat(glob), flat(name))
		return ok && err == nil
	})
}

// flat lets * go over "/", the one character that path.Match keeps it from.
func flat(s string) string { return strings.ReplaceAll(s, "/", "\x00") }

// claimValues are the values of one claim: a string, number or truth value, or a list of
// such. Name is the claim's, or, with a "/" in front, a JSON pointer (RFC 6901) to what
// stands within one, as in "/realm_access/roles".
func claimValues(claims map[string]json.RawMessage, name string) []string {
	raw := claims[name]
	if strings.HasPrefix(name, "/") {
		members := strictjson.Object(claims)
		tokens := strings.Split(name[1:], "/")
		for i, token := range tokens {
			raw = members[strings.NewReplacer("~1", "/", "~0", "~").Replace(token)]
			if i < len(tokens)-1 {
				members, _ = strictjson.Parse(raw) // nil if it is not an object; then no member is found
			}
		}
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	var values []string
	for _, item := range list {
		var v any
		if json.Unmarshal(item, &v) != nil {
			continue
		}
		switch v := v.(type) {
		case string:
			values = append(values, v)
		case bool:
			values = append(values, strconv.FormatBool(v))
		case float64:
			values = append(values, string(item)) // as it is written: 1e3 is not 1000
		}
	}
	return values
}
