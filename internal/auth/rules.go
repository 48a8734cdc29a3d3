package auth

import (
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"answerd/internal/auth/strictjson"
)

// Rules decide which callers may use which servers, tools, models and agents. A caller may use everything that at least
// one matching rule allows, and nothing if no rule matches. A nil *Rules, for a service without rules, allows
// everything to all callers. Rules may be used concurrently.
type Rules struct {
	current         atomic.Pointer[[]Rule]
	exemptAnonymous bool // see ExemptAnonymous
}

// Rule is one rule. A condition that is left out matches every caller, and a permission that is left out allows
// everything. Names are patterns as in path.Match, except that * also matches "/", which subjects and models may
// contain.
type Rule struct {
	Name string `json:"name"` // for the log; if left out, the number of the rule in the file, from 1

	Subjects []string            `json:"subjects"` // the caller's subject matches one of them
	Scopes   []string            `json:"scopes"`   // the caller has all of them; they are not patterns
	Claims   map[string][]string `json:"claims"`   // for each of these claims, one of its values matches one of the patterns

	Servers []string `json:"servers"` // by their names in mcp.json
	Tools   []string `json:"tools"`   // by their names in GET /tools
	Models  []string `json:"models"`
	Agents  []string `json:"agents"` // by their ids in AGENTS_FILE
}

// NewRules returns Rules with the given rules. Callers must not change rules afterwards.
func NewRules(rules []Rule) *Rules {
	r := &Rules{}
	r.Replace(rules)
	return r
}

// Replace replaces the rules, even for runs in progress, whose next decision follows the new rules. Callers must not
// change rules afterwards, because Access values share them.
func (r *Rules) Replace(rules []Rule) { r.current.Store(&rules) }

// ExemptAnonymous makes the rules allow everything to callers without a token. It must be called before r is used.
func (r *Rules) ExemptAnonymous() { r.exemptAnonymous = true }

// Of returns what the caller may use according to the current rules. Replace does not change the result, so that all
// parts of one decision follow the same rules.
func (r *Rules) Of(id Identity) Access {
	isAnonymous := id.Issuer == "" && id.Subject == ""
	if r == nil || r.exemptAnonymous && isAnonymous {
		return Access{all: true}
	}
	var a Access
	for _, rule := range *r.current.Load() {
		if rule.matches(id) {
			a.rules = append(a.rules, rule)
		}
	}
	return a
}

// Access describes what one caller may use.
type Access struct {
	all   bool   // there are no rules, or the caller is exempt
	rules []Rule // the rules that match the caller
}

// AllowsEverything reports whether no rules apply to the caller.
func (a Access) AllowsEverything() bool { return a.all }

// AllowsNothing reports whether there are rules and none of them matches the caller.
func (a Access) AllowsNothing() bool { return !a.all && len(a.rules) == 0 }

// AllowsServer reports whether the caller may see the server.
func (a Access) AllowsServer(name string) bool {
	return a.all || slices.ContainsFunc(a.rules, func(r Rule) bool { return matchesAny(r.Servers, name) })
}

// AllowsModel reports whether the caller may use the model.
func (a Access) AllowsModel(name string) bool {
	return a.all || slices.ContainsFunc(a.rules, func(r Rule) bool { return matchesAny(r.Models, name) })
}

// AllowsAgent reports whether the caller may use the named agent.
func (a Access) AllowsAgent(id string) bool {
	return a.all || slices.ContainsFunc(a.rules, func(r Rule) bool { return matchesAny(r.Agents, id) })
}

// AllowsTool reports whether the caller may use a server's tool. rule is the name of the first rule that allows it, for
// the audit log. It is "" if no rule does or if there are no rules.
func (a Access) AllowsTool(server, tool string) (rule string, ok bool) {
	for _, r := range a.rules {
		if matchesAny(r.Servers, server) && matchesAny(r.Tools, tool) {
			return r.Name, true
		}
	}
	return "", a.all
}

// matches reports whether the caller meets all conditions of the rule.
func (r Rule) matches(id Identity) bool {
	for _, scope := range r.Scopes {
		if !slices.Contains(id.Scopes, scope) {
			return false
		}
	}
	for name, wanted := range r.Claims {
		isWanted := func(value string) bool { return matchesAny(wanted, value) }
		if !slices.ContainsFunc(claimValues(id.Claims, name), isWanted) {
			return false
		}
	}
	return matchesAny(r.Subjects, id.Subject)
}

// matchesAny reports whether one of the patterns matches name. nil, which means that the rule leaves the member out,
// matches every name.
func matchesAny(patterns []string, name string) bool {
	return patterns == nil || slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(withoutSlashes(pattern), withoutSlashes(name))
		return ok && err == nil
	})
}

// withoutSlashes replaces each "/" in a pattern or a name, because path.Match lets * match everything except "/".
func withoutSlashes(s string) string { return strings.ReplaceAll(s, "/", "\x00") }

// Claim returns the first value of a claim in the caller's token, or "" if there is none. See claimValues for the forms
// of name and of the values.
func (id Identity) Claim(name string) string {
	if values := claimValues(id.Claims, name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// claimValues returns a claim's values as text. A string, number or boolean is one value, and a list can have several.
// Other values are left out. name is the claim's name or, with a leading "/", a JSON pointer (RFC 6901) to a member
// within the claims, such as "/realm_access/roles".
func claimValues(claims map[string]json.RawMessage, name string) []string {
	claim := claims[name]
	if strings.HasPrefix(name, "/") {
		claim = claimAt(claims, name)
	}
	var list []json.RawMessage
	if json.Unmarshal(claim, &list) != nil {
		list = []json.RawMessage{claim} // a single value
	}
	var values []string
	for _, item := range list {
		var decoded any
		_ = json.Unmarshal(item, &decoded) // after an error, decoded is nil and is left out
		switch value := decoded.(type) {
		case string:
			values = append(values, value)
		case bool:
			values = append(values, strconv.FormatBool(value))
		case float64:
			values = append(values, string(item)) // in the token's spelling: 1e3 does not become 1000
		}
	}
	return values
}

// claimAt returns the member of claims at pointer, a JSON pointer (RFC 6901) that begins with "/". It returns nil if
// there is no such member.
func claimAt(claims map[string]json.RawMessage, pointer string) json.RawMessage {
	members := strictjson.Object(claims)
	var member json.RawMessage
	for name := range jsontext.Pointer(pointer).Tokens() {
		member = members[name]
		members, _ = strictjson.Parse(member) // nil if member is not an object, so that nothing below it is found
	}
	return member
}
