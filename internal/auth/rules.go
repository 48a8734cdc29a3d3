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

// Rules decide which callers may use which servers, tools, models and agents. A caller may use everything
// that at least one matching rule allows, and nothing if no rule matches. A nil *Rules allows
// everything to all callers, for a service without rules. Rules may be used concurrently.
type Rules struct {
	current         atomic.Pointer[[]Rule]
	exemptAnonymous bool // set before the first use
}

// Rule is one rule. A condition that is left out matches every caller, and a permission that is
// left out allows everything. Names are patterns of path.Match, except that * also matches "/",
// which subjects and models may contain.
type Rule struct {
	Name string `json:"name"` // for the log; if left out, the number of the rule in the file, from 1

	Subjects []string            `json:"subjects"` // the caller's subject matches one of them
	Scopes   []string            `json:"scopes"`   // the caller has all of them; they are not patterns
	Claims   map[string][]string `json:"claims"`   // for each claim, one of the caller's values matches one of these

	Servers []string `json:"servers"` // as mcp.json names them
	Tools   []string `json:"tools"`   // as GET /tools names them
	Models  []string `json:"models"`
	Agents  []string `json:"agents"` // as AGENTS_FILE names them
}

// NewRules returns Rules that apply the given rules.
func NewRules(rules []Rule) *Rules {
	r := &Rules{}
	r.Replace(rules)
	return r
}

// Replace replaces the rules, also for runs in progress: their next decision follows the new ones. The
// caller must not change rules afterwards, because Access shares them.
func (r *Rules) Replace(rules []Rule) { r.current.Store(&rules) }

// ExemptAnonymous lets callers without a token use everything. Call it before r is used.
func (r *Rules) ExemptAnonymous() { r.exemptAnonymous = true }

// Of returns what the caller may use by the current rules. The result does not change when the
// rules are replaced, so that one decision is consistent.
func (r *Rules) Of(id Identity) Access {
	if r == nil || r.exemptAnonymous && id.Issuer == "" && id.Subject == "" {
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
	rules []Rule // that match the caller
}

// AllowsEverything reports whether no rules apply to the caller.
func (a Access) AllowsEverything() bool { return a.all }

// AllowsNothing reports whether there are rules and none of them matches the caller.
func (a Access) AllowsNothing() bool { return !a.all && len(a.rules) == 0 }

// AllowsServer reports whether the caller may see a server.
func (a Access) AllowsServer(name string) bool {
	return a.all || slices.ContainsFunc(a.rules, func(r Rule) bool { return matchesAny(r.Servers, name) })
}

// AllowsModel reports whether the caller may use a model.
func (a Access) AllowsModel(name string) bool {
	return a.all || slices.ContainsFunc(a.rules, func(r Rule) bool { return matchesAny(r.Models, name) })
}

// AllowsAgent reports whether the caller may use a named agent.
func (a Access) AllowsAgent(id string) bool {
	return a.all || slices.ContainsFunc(a.rules, func(r Rule) bool { return matchesAny(r.Agents, id) })
}

// AllowsTool reports whether the caller may use a tool of a server. rule is the name of the first
// rule that allows it, for the audit log, or "" if there are no rules.
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
		if !slices.ContainsFunc(claimValues(id.Claims, name), func(value string) bool { return matchesAny(wanted, value) }) {
			return false
		}
	}
	return matchesAny(r.Subjects, id.Subject)
}

// matchesAny reports whether one of the patterns matches name. nil, a member that the rule leaves out, matches every
// name.
func matchesAny(patterns []string, name string) bool {
	return patterns == nil || slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(withoutSlashes(pattern), withoutSlashes(name))
		return ok && err == nil
	})
}

// withoutSlashes replaces "/", the only character that * of path.Match does not match, in a
// pattern or a name.
func withoutSlashes(s string) string { return strings.ReplaceAll(s, "/", "\x00") }

// Claim returns the first value of one claim of the caller's token, or "" if there is none. name and the values are
// those of claimValues.
func (id Identity) Claim(name string) string {
	if values := claimValues(id.Claims, name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// claimValues returns the values of one claim, as text: one if the claim is a string, number or boolean, and several if
// it is a list of these. Other values are left out. name is the name of the claim or, with a leading "/", a JSON
// pointer (RFC 6901) to a member within the claims, such as "/realm_access/roles".
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
		_ = json.Unmarshal(item, &decoded) // nil after an error
		switch value := decoded.(type) {
		case string:
			values = append(values, value)
		case bool:
			values = append(values, strconv.FormatBool(value))
		case float64:
			values = append(values, string(item)) // as the token writes it: 1e3 is not 1000
		}
	}
	return values
}

// claimAt returns the member of the claims at pointer, a JSON pointer (RFC 6901) that begins with "/". It returns nil if
// the claims do not have the member.
func claimAt(claims map[string]json.RawMessage, pointer string) json.RawMessage {
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	members := strictjson.Object(claims)
	var member json.RawMessage
	for i, token := range strings.Split(pointer[1:], "/") {
		if i > 0 {
			members, _ = strictjson.Parse(member) // nil if it is not an object; then no member is found
		}
		member = members[unescape.Replace(token)]
	}
	return member
}
