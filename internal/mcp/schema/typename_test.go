package schema_test

import (
	"encoding/json"
	"testing"

	"answerd/internal/mcp/schema"
)

func TestCheckTypesNamesThePlaceOfTheFirstUnknownType(t *testing.T) {
	for raw, want := range map[string]string{
		`{"type":"object","properties":{"type":{"type":["null","string"]}}}`: "",
		`{"enum":[{"type":"text"}],"default":{"type":"text"}}`:               "", // values, not schemas
		`true`:                             "",
		`{"type":"text"}`:                  "/type",
		`{"type":["string",1]}`:            "/type",
		`{"items":{"type":"text"}}`:        "/items/type",
		`{"anyOf":[true,{"type":""}]}`:     "/anyOf/1/type",
		`{"items":[true,{"type":"text"}]}`: "/items/1/type",
		`{"dependencies":{"a":["type"],"b":{"type":"text"}}}`:    "/dependencies/b/type",
		`{"contentSchema":{"properties":{"a":{"type":"text"}}}}`: "/contentSchema/properties/a/type",
		`{"properties":{"a/b~":{"type":"x"},"a":{"type":"x"}}}`:  "/properties/a~1b~0/type",
	} {
		got := ""
		if wrong := schema.CheckTypes(json.RawMessage(raw)); wrong != nil {
			got = wrong.Pointer
		}
		if got != want {
			t.Errorf("CheckTypes(%s) = %q, want %q", raw, got, want)
		}
	}
}
