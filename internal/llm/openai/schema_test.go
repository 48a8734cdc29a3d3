package openai

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"answerd/internal/llm"

	"github.com/google/jsonschema-go/jsonschema"
)

// What every endpoint accepts goes as it is; the rest is adapted, and what is lost is
// told in words.
var adaptations = map[string]struct{ schema, want, fits string }{
	"nothing to adapt": {`{"type":"object","properties":{"a":{"type":["string","null"],"enum":["x",null]},"o":{"type":"object","additionalProperties":true}},"additionalProperties":false}`, "same", `{"a":null}`},
	"order and digits": {`{"properties":{"z":{"const":1.50},"a":{"default":1e3}},"type":"object","x-vendor":{"b":1,"a":2}}`, "same", `{"z":1.5}`},
	"no properties":    {`{"type":"object"}`, `{"type":"object","properties":{}}`, `{"any":1}`},
	"no type":          {`{"properties":{}}`, `{"properties":{},"type":"object"}`, `{}`},
	"a list of types":  {`{"type":["object","null"],"properties":{}}`, `{"type":"object","properties":{}}`, `{}`},
	"a boolean":        {`true`, string(noParameters), `{}`},
	"an array":         {`[]`, string(noParameters), ``},
	"names of schemas": {`{"$schema":"http://json-schema.org/draft-07/schema#","$id":"https://example.com/x","type":"object","properties":{"$id":{}}}`,
		`{"type":"object","properties":{"$id":{}}}`, `{}`},
	"booleans within": {`{"type":"object","properties":{"a":true,"b":false,"c":{"anyOf":[true],"items":true,"not":false,"additionalProperties":false}}}`,
		`{"type":"object","properties":{"a":{},"b":{"not":{}},"c":{"anyOf":[{}],"items":{},"not":{"not":{}},"additionalProperties":false}}}`, `{"a":1}`},
	"formats": {`{"type":"object","properties":{"m":{"type":"string","format":"email"},"t":{"type":"string","description":"When.","format":"iso <date>"},"d":{"type":"string","format":"date-time"},"format":{"type":"string"}}}`,
		`{"type":"object","properties":{"m":{"type":"string","description":"Format: email"},"t":{"type":"string","description":"When.\nFormat: iso <date>"},"d":{"type":"string","format":"date-time"},"format":{"type":"string"}}}`, `{"m":"a@b"}`},
	"arrays of anything": {`{"type":"object","properties":{"a":{"type":"array"},"t":{"type":"array","items":[{"type":"string"},true]}}}`,
		`{"type":"object","properties":{"a":{"type":"array","items":{}},"t":{"type":"array","prefixItems":[{"type":"string"},{}],"items":{}}}}`, `{"a":[1],"t":["x",2,3]}`},
	"anyOf at the top": {`{"type":"object","properties":{"q":{"type":"string"}},"anyOf":[{"required":["a"],"properties":{"a":{"type":"integer"}}},{"required":["b"],"properties":{"b":{"type":"string"}}}]}`,
		`{"type":"object","properties":{"q":{"type":"string"},"a":{"type":"integer"},"b":{"type":"string"}},"description":"The arguments must fit at least one of: [{\"required\":[\"a\"],\"properties\":{\"a\":{\"type\":\"integer\"}}},{\"required\":[\"b\"],\"properties\":{\"b\":{\"type\":\"string\"}}}]"}`, `{"a":1}`},
	"a union at the top": {`{"type":"object","description":"A shape.","oneOf":[{"properties":{"kind":{"const":"circle"}},"required":["kind"]},{"$ref":"#/$defs/box"}],"$defs":{"box":{"properties":{"kind":{"const":"box"}},"required":["kind"]}}}`,
		`{"type":"object","description":"A shape.\nThe arguments must fit exactly one of: [{\"properties\":{\"kind\":{\"const\":\"circle\"}},\"required\":[\"kind\"]},{\"$ref\":\"#/$defs/box\"}]","$defs":{"box":{"properties":{"kind":{"const":"box"}},"required":["kind"]}},"properties":{"kind":{"anyOf":[{"const":"circle"},{"const":"box"}]}},"required":["kind"]}`, `{"kind":"box"}`},
	"allOf at the top": {`{"type":"object","allOf":[{"$ref":"#/definitions/a"},{"required":["b"]}],"definitions":{"a":{"properties":{"a":{"type":"integer"}},"required":["a"]}}}`,
		`{"type":"object","definitions":{"a":{"properties":{"a":{"type":"integer"}},"required":["a"]}},"properties":{"a":{"type":"integer"}},"required":["a","b"],"description":"The arguments must fit all of: [{\"$ref\":\"#/definitions/a\"},{\"required\":[\"b\"]}]"}`, `{"a":1,"b":2}`},
	"a reference at the top": {`{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"object","properties":{"x":true},"required":["x"]}}}`,
		`{"$defs":{"a/b":{"type":"object","properties":{"x":{}},"required":["x"]}},"properties":{"x":{}},"required":["x"],"type":"object"}`, `{"x":1}`},
	"not and enum at the top": {`{"type":"object","not":{"required":["a","b"]},"enum":[{},{"a":1}]}`,
		`{"type":"object","description":"The arguments must not fit: {\"required\":[\"a\",\"b\"]}\nThe arguments must be one of: [{},{\"a\":1}]","properties":{}}`, `{"a":1}`},
	"keywords without a value": {`{"type":"object","properties":{"a":{"type":"string","enum":null,"required":false,"default":null,"const":null,"x-a":null},"o":{"type":"object","properties":[],"required":null},"required":{"type":"array","items":null}},"required":null,"anyOf":null,"description":null}`,
		`{"type":"object","properties":{"a":{"type":"string","default":null,"const":null,"x-a":null},"o":{"type":"object"},"required":{"type":"array","items":{}}}}`, ``},
	"booleans for bounds": {`{"type":"object","properties":{"h":{"type":"number","minimum":0,"exclusiveMinimum":true,"exclusiveMaximum":false},"exclusiveMinimum":true}}`,
		`{"type":"object","properties":{"h":{"type":"number","minimum":0},"exclusiveMinimum":{}}}`, ``},
	"types of nothing": {`{"type":"any","properties":{"a":{"type":"any"},"d":{"type":"date","description":"When."},"type":{"type":"string"}}}`,
		`{"type":"object","properties":{"a":{"description":"Type: any"},"d":{"description":"When.\nType: date"},"type":{"type":"string"}}}`, ``},
	"properties without a value":     {`{"type":"object","properties":null}`, `{"type":"object","properties":{}}`, `{}`},
	"alternatives further down stay": {`{"type":"object","properties":{"u":{"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}],"not":{"const":""}}}}`, "same", `{"u":"x"}`},
	"what is no schema stays":        {`{"type":"object","properties":{"a":3},"required":"x","anyOf":7}`, `{"type":"object","properties":{"a":3},"required":"x","description":"The arguments must fit at least one of: 7"}`, ``},
}

func TestAdaptParametersGivesWhatEndpointsAccept(t *testing.T) {
	for name, c := range adaptations {
		before := strings.Clone(c.schema)
		got := adaptParameters(json.RawMessage(c.schema))
		want := c.want
		if want == "same" {
			want = c.schema
		}
		if string(got) != want {
			t.Errorf("%s\ngot  %s\nwant %s", name, got, want)
		}
		if c.schema != before {
			t.Errorf("%s: got the stored schema changed to %s, want %s", name, c.schema, before)
		}
		if again := adaptParameters(got); string(again) != string(got) {
			t.Errorf("%s: got %s for the adapted schema, want it unchanged: %s", name, again, got)
		}
	}
}

// A model that does as it is told must not be refused for it: whatever fits the stored
// schema fits what the endpoint was given.
func TestAdaptParametersAcceptsTheSameArguments(t *testing.T) {
	for name, c := range adaptations {
		if c.fits == "" {
			continue
		}
		var value any
		if err := json.Unmarshal([]byte(c.fits), &value); err != nil {
			t.Fatal(err)
		}
		for _, raw := range []json.RawMessage{json.RawMessage(c.schema), adaptParameters(json.RawMessage(c.schema))} {
			var s jsonschema.Schema
			if err := json.Unmarshal(raw, &s); err != nil {
				t.Fatal(name, err)
			}
			s.Schema, s.ID = "", ""
			r, err := s.Resolve(nil)
			if err != nil {
				t.Fatal(name, err)
			}
			if err := r.Validate(value); err != nil {
				t.Errorf("%s: got %v for %s, want that it fits %s", name, err, value, raw)
			}
		}
	}
}

// A version of a tool is marshalled once, beside whatever other tools it is offered.
func TestToolTextCacheRendersAToolOnce(t *testing.T) {
	var c toolTextCache
	tools := newTools(2)
	first, err := c.renderTool(tools[0])
	if err != nil {
		t.Fatal(err)
	}
	listedAgain := tools[0]
	listedAgain.Schema = json.RawMessage(strings.Clone(string(tools[0].Schema)))
	if again, _ := c.renderTool(listedAgain); &again[0] != &first[0] {
		t.Error("got the same tool rendered again, want it from the cache")
	}
	newer := tools[0]
	newer.Description = "Does something else."
	if other, _ := c.renderTool(newer); string(other) == string(first) {
		t.Errorf("got the old text %s for another version, want a new one", other)
	}

	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for _, tool := range tools {
				if _, err := c.renderTool(tool); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// A server that invents tools without end does not fill the memory.
func TestToolTextCacheIsBounded(t *testing.T) {
	var c toolTextCache
	big := llm.Tool{Name: "x", Description: strings.Repeat("d", maxToolTextBytes/8)}
	for i := range 20 {
		big.Name = strings.Repeat("x", i+1)
		if _, err := c.renderTool(big); err != nil {
			t.Fatal(err)
		}
		if c.size > maxToolTextBytes {
			t.Fatalf("got %d bytes in the cache, want at most %d", c.size, maxToolTextBytes)
		}
	}
}
