package schema

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// fuzzSchemas have every keyword between them.
var fuzzSchemas = []string{
	`{"type":"object","properties":{"city":{"type":"string","minLength":1},"days":{"type":"integer","minimum":1},"units":{"enum":["c","f",null]}},"required":["city"],"additionalProperties":false}`,
	`{"type":"object","properties":{"tree":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"object","properties":{"v":{"type":["number","null"],"multipleOf":0.5},"kids":{"type":"array","items":{"$ref":"#/$defs/n"},"uniqueItems":true,"maxItems":3}}}}}`,
	`{"type":"object","oneOf":[{"properties":{"k":{"const":"a"},"x":{"type":"boolean"}},"required":["k","x"]},{"properties":{"k":{"const":"b"},"y":{"anyOf":[{"type":"integer"},{"type":"array","prefixItems":[{"type":"string"}],"items":false,"contains":{"type":"string"}}]}},"required":["k"]}],"unevaluatedProperties":{"type":"null"}}`,
	`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","propertyNames":{"pattern":"^[a-z]+$"},"patternProperties":{"^n":{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":9}},"dependencies":{"a":["b"],"c":{"required":["d"]}},"if":{"required":["i"]},"then":{"required":["t"]},"else":{"not":{"required":["t"]}},"additionalProperties":{"items":[{"type":"integer"}],"additionalItems":{"type":"boolean"}}}`,
}

// FuzzCheck: any bytes for arguments. What comes back is JSON that fits, or the bytes as
// they were with problems that can be shown.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{
		`{"city":"Rome","days":"3","units":"null"}`, `{"tree":{"v":"0.5","kids":"[{\"v\":1e2}]"}}`, `{"k":"b","y":["x"],"z":null}`,
		`{"n":"1e-5","a":[1,"true"],"b":{}}`, `{"n":1e308,"n":-0}`, `[[[[{"\ud800":"\u0000"}]]]]`, `"{}"`, "{\"a\":\"\xff\"}", ` {"i" : 1 , "t":"[1 ]"} `,
	} {
		f.Add(seed)
	}
	var all []*Schema
	for _, raw := range fuzzSchemas {
		s, err := Compile(json.RawMessage(raw))
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, s)
	}
	f.Fuzz(func(t *testing.T, args string) {
		for i, s := range all {
			got, problems := s.Check(json.RawMessage(args))
			if problems == nil {
				if !json.Valid(got) || s.Validate(got) != nil {
					t.Errorf("schema %d: %q becomes %q, want a valid value", i, args, got)
				}
				continue
			}
			if string(got) != args || len(problems) > maxProblems+1 {
				t.Errorf("schema %d: %q becomes %q with %d problems, want %q, problems at most %d", i, args, got, len(problems), args, maxProblems+1)
			}
			for _, p := range problems {
				if !utf8.ValidString(p.Pointer+p.Detail) || len(p.Pointer) > maxPointer || len(p.Detail) > 800 {
					t.Errorf("schema %d: %q: problem %+q, want UTF-8, at most %d bytes of pointer and 800 of detail", i, args, p, maxPointer)
				}
			}
		}
	})
}

// FuzzCompile: any bytes for a schema. It is refused, or values can be checked against
// it, in bounded time and stack.
func FuzzCompile(f *testing.F) {
	for _, seed := range fuzzSchemas {
		f.Add(seed)
	}
	for _, seed := range []string{
		`{"$ref":"#"}`, `{"properties":{"a":{"allOf":[{"$ref":"#"},{"$ref":"#"}]}}}`, `{"$id":"http://x/y","$ref":"#z","$defs":{"q":{"$anchor":"z"}}}`,
		`{"pattern":"(a{900}){9}"}`, `{"patternProperties":{"(?=a)":{}}}`, `{"enum":[1e308,{"a":[]}],"const":null}`, `{"items":null,"type":[]}`,
		`{"$dynamicRef":"#m","$dynamicAnchor":"m"}`, `{"minContains":2.0,"contains":{"const":1}}`, `{"dependencies":{"a":["b"],"c":false}}`,
	} {
		f.Add(seed)
	}
	values := []json.RawMessage{
		json.RawMessage(`{"a":{"a":{"a":{"a":"1"}}},"city":["x",1,1.0,null,true,{"b":"[]"}]}`),
		json.RawMessage(`[[1,"2",3.5,"null"],{},"",-1e9]`), json.RawMessage(`"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"`), json.RawMessage(`7`),
	}
	f.Fuzz(func(t *testing.T, raw string) {
		s, err := Compile(json.RawMessage(raw))
		if err != nil {
			if !utf8.ValidString(err.Error()) || len(err.Error()) > 400 {
				t.Errorf("error %+q, want UTF-8 of at most 400 bytes", err)
			}
			return
		}
		for _, value := range values {
			got, problems := s.Check(value)
			if problems == nil && s.Validate(got) != nil {
				t.Errorf("%q: %s becomes %s, want a valid value", raw, value, got)
			}
		}
	})
}
