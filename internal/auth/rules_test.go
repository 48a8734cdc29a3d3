package auth

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// callerWithClaims returns an identity with these claims, a JSON object.
func callerWithClaims(t testing.TB, subject, scope, claims string) Identity {
	t.Helper()
	id := Identity{Issuer: "https://iam.example", Subject: subject, Scopes: strings.Fields(scope)}
	if err := json.Unmarshal([]byte(claims), &id.Claims); err != nil {
		t.Fatal(err)
	}
	return id
}

func mustParseRules(t testing.TB, file string) *Rules {
	t.Helper()
	rules, err := ParseRules([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return NewRules(rules)
}

func TestRulesAllowWhatAnyMatchingRuleAllows(t *testing.T) {
	r := mustParseRules(t, `{"rules": [
		{"name": "ops", "claims": {"groups": ["ops", "root*"]}},
		{"subjects": ["svc/*"], "scopes": ["crm", "read"], "servers": ["crm"], "tools": ["crm_get_*", "crm_list"], "models": ["openai/*"]},
		{"subjects": ["svc/a/1"], "servers": ["crm"], "tools": ["crm_put"]},
		{"claims": {"/realm_access/roles": ["clerk"], "level": ["3"], "staff": ["true"]}, "tools": ["a~b_*"]},
		{"claims": {"https://x.example/role": ["clerk"]}, "servers": ["wiki"]}
	]}`)

	for _, c := range []struct {
		name    string
		id      Identity
		server  string
		tool    string
		rule    string // "" where it is not allowed
		unknown bool   // the server
	}{
		{"nobody's rule", callerWithClaims(t, "eve", "crm read", `{}`), "crm", "crm_get_a", "", true},
		{"the anonymous caller", Identity{}, "crm", "crm_get_a", "", true},
		{"everything, by a list", callerWithClaims(t, "ada", "", `{"groups": ["x", "ops"]}`), "any", "thing", "ops", false},
		{"everything, by a string and a glob", callerWithClaims(t, "ada", "", `{"groups": "rootless"}`), "any", "thing", "ops", false},
		{"a part of a value", callerWithClaims(t, "ada", "", `{"groups": "devops"}`), "any", "thing", "", true},
		{"a claim in another case", callerWithClaims(t, "ada", "", `{"Groups": "ops"}`), "any", "thing", "", true},
		{"a glob over a slash", callerWithClaims(t, "svc/a/1", "crm read", `{}`), "crm", "crm_get_a", "2", false},
		{"another rule for the same", callerWithClaims(t, "svc/a/1", "", `{}`), "crm", "crm_put", "3", false},
		{"neither rule", callerWithClaims(t, "svc/a/1", "crm read", `{}`), "crm", "crm_drop", "", false},
		{"the tool's name on another server", callerWithClaims(t, "svc/a/1", "crm read", `{}`), "evil", "crm_get_a", "", true},
		{"one scope of two", callerWithClaims(t, "svc/b", "crm", `{}`), "crm", "crm_get_a", "", true},
		{"another subject", callerWithClaims(t, "user/svc/b", "crm read", `{}`), "crm", "crm_get_a", "", true},
		{"claims within claims", callerWithClaims(t, "u", "", `{"realm_access": {"roles": ["clerk"]}, "level": 3, "staff": true}`), "s", "a~b_c", "4", false},
		{"one claim of three", callerWithClaims(t, "u", "", `{"realm_access": {"roles": ["clerk"]}, "level": 3}`), "s", "a~b_c", "", true},
		{"null claims", callerWithClaims(t, "u", "", `{"realm_access": null, "level": null, "staff": null}`), "s", "a~b_c", "", true},
		{"an object for a value", callerWithClaims(t, "u", "", `{"groups": {"ops": "ops"}}`), "s", "t", "", true},
		{"a claim whose name is an address", callerWithClaims(t, "u", "", `{"https://x.example/role": "clerk"}`), "wiki", "t", "5", false},
	} {
		access := r.Of(c.id)
		rule, ok := access.AllowsTool(c.server, c.tool)
		if rule != c.rule || ok != (c.rule != "") || access.AllowsServer(c.server) == c.unknown {
			t.Errorf("%s: %t by %q, the server %t, want %q, the server %t", c.name, ok, rule, access.AllowsServer(c.server), c.rule, !c.unknown)
		}
	}

	models := r.Of(callerWithClaims(t, "svc/b", "crm read", `{}`))
	if !models.AllowsModel("openai/gpt/x") || models.AllowsModel("xai.grok-4") || models.AllowsNothing() || models.AllowsEverything() {
		t.Errorf("access %+v, want openai/gpt/x but not xai.grok-4, something, with a limit", models)
	}
	if access := r.Of(Identity{}); !access.AllowsNothing() || access.AllowsModel("a") || access.AllowsEverything() {
		t.Errorf("the anonymous caller: %+v, want nothing, with a limit", access)
	}
}

func TestRulesNilAllowsEverything(t *testing.T) {
	access := (*Rules)(nil).Of(Identity{})
	if _, ok := access.AllowsTool("s", "t"); !ok || !access.AllowsServer("s") || !access.AllowsModel("m") || access.AllowsNothing() || !access.AllowsEverything() {
		t.Errorf("access without rules: %+v, want everything, without a limit", access)
	}
	// A file without rules is not no file.
	if access := mustParseRules(t, `{"rules": []}`).Of(callerWithClaims(t, "ada", "", `{}`)); !access.AllowsNothing() {
		t.Errorf("access by an empty list: %+v, want nothing", access)
	}
}

// A rule that is misspelt must not be one that everybody meets.
func TestParseRulesIsStrict(t *testing.T) {
	for file, want := range map[string]string{
		``: "is not JSON (line 1)", "{\n\"rules\": [\n}": "is not JSON (line 3)", `{"rules": []} {}`: "is not JSON (line 1)",
		`[]`: "must be an object whose names are unique, in UTF-8", `{}`: "/rules: must be a list", `{"rules": {}}`: "/rules: must be a list", `{"rules": null}`: "/rules: must be a list",
		`{"rules": [], "rules": []}`:                          "must be an object whose names are unique, in UTF-8",
		`{"rules": [], "Rules": []}`:                          "/Rules: unknown field",
		`{"rules": [1]}`:                                      "/rules/0: must be an object whose names are unique, in UTF-8",
		`{"rules": [{}, {"subjets": ["a"]}]}`:                 "/rules/1/subjets: unknown field",
		`{"rules": [{"a/b~": 1}]}`:                            "/rules/0/a~1b~0: unknown field",
		`{"rules": [{"subjects": []}]}`:                       "/rules/0/subjects: must be a list of strings, with one at least",
		`{"rules": [{"subjects": "a"}]}`:                      "/rules/0/subjects: must be a list of strings, with one at least",
		`{"rules": [{"subjects": ["a"], "subjects": ["b"]}]}`: "/rules/0: must be an object whose names are unique, in UTF-8",
		`{"rules": [{"tools": ["a", null]}]}`:                 "/rules/0/tools: must be a list of strings, with one at least",
		`{"rules": [{"tools": ["a", "["]}]}`:                  "/rules/0/tools/1: is not a valid pattern",
		`{"rules": [{"scopes": [""]}]}`:                       "/rules/0/scopes/0: must not be empty",
		`{"rules": [{"claims": []}]}`:                         "/rules/0/claims: must be an object whose names are unique, in UTF-8",
		`{"rules": [{"claims": {"g/h": [1]}}]}`:               "/rules/0/claims/g~1h: must be a list of strings, with one at least",
		`{"rules": [{"name": 1}]}`:                            "/rules/0/name: must be a string of at most 64 bytes",
		`{"rules": [` + strings.Repeat("{},", 1000) + `{}]}`:  "/rules: has more than 1000 rules",
		strings.Repeat(" ", maxRulesFile+1):                   "is larger than 1048576 bytes",
	} {
		_, err := ParseRules([]byte(file))
		if e, ok := errors.AsType[*RulesError](err); !ok || e.Error() != want {
			t.Errorf("%.60q: %v, want %s", file, err, want)
		}
	}
}

func FuzzParseRules(f *testing.F) {
	f.Add([]byte(`{"rules": [{"name": "a", "subjects": ["*"], "scopes": ["s"], "claims": {"/a/b": ["c"]}, "servers": ["s"], "tools": ["t"], "models": ["m"]}]}`))
	f.Add([]byte(`{"rules": [{"claims": {"": ["["]}}]}`))
	f.Add([]byte("{\"rules\": [\xff]}"))
	f.Fuzz(func(t *testing.T, file []byte) {
		rules, err := ParseRules(file)
		if (err != nil) == (rules != nil) {
			t.Fatalf("ParseRules = %v, %v, want either rules or an error", rules, err)
		}
		if e, ok := errors.AsType[*RulesError](err); err != nil && (!ok || e.Detail == "") {
			t.Errorf("error %v, want a RulesError, Detail non-empty", err)
		}
		if err == nil {
			access := NewRules(rules).Of(Identity{Subject: "s", Claims: map[string]json.RawMessage{"a": []byte(`{"b":["c"]}`)}})
			if _, ok := access.AllowsTool("s", "t"); ok && access.AllowsNothing() {
				t.Error("access to nothing gives a tool, want none")
			}
		}
	})
}
