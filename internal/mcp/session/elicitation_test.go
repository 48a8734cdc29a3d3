package session

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// An elicitation whose schema refers to itself ended the process once it was answered: whoever
// validates the answer, this program or the SDK, would follow the reference until the stack is full.
func TestElicitationWithARecursiveSchemaIsRefused(t *testing.T) {
	for _, form := range []string{
		`{"type":"object","properties":{"a":{"$ref":"#"}},"$ref":"#"}`,
		`{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}`,
	} {
		_, err := decodeElicitation(&sdk.ElicitParams{Message: "?"}, json.RawMessage(form))
		if err == nil || !strings.Contains(err.Error(), "leads back to itself") {
			t.Errorf("decodeElicitation(%s) = %v, want that it leads back to itself", form, err)
		}
	}
}

func TestElicitationCheckNamesTheFieldsThatAreWrong(t *testing.T) {
	form := Elicitation{Mode: ElicitForm, Schema: json.RawMessage(`{"type":"object","properties":{"people":{"type":"integer","minimum":1},"area":{"type":"string","enum":["in","out"]}},"required":["people"]}`)}
	for content, want := range map[string]string{
		`{"people":2,"area":"in"}`: "", `{"people":2,"more":1}`: "", `{"people":2.0}`: "",
		`{}`: "/people", `{"people":"2"}`: "/people", `{"people":2.5}`: "/people", `{"people":0}`: "/people",
		`{"area":"roof"}`: "/people /area", `{"people":2,"area":1}`: "/area",
		`[]`: "", `null`: "", ``: "", `1`: "",
	} {
		err := form.Check(json.RawMessage(content))
		var pointers []string
		if wrong, ok := errors.AsType[*ContentError](err); ok {
			for _, f := range wrong.Fields {
				pointers = append(pointers, f.Pointer)
			}
		}
		good := strings.HasPrefix(content, "{") && want == ""
		if (err == nil) != good || strings.Join(pointers, " ") != want {
			t.Errorf("Check(%s) = %v, want the fields %q", content, err, want)
		}
	}

	closed := Elicitation{Mode: ElicitForm, Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`)}
	if closed.Check(json.RawMessage(`{"b":1}`)) == nil {
		t.Error("Check accepted a field that the form does not have, want an error")
	}
	if (Elicitation{Mode: ElicitURL}).Check(json.RawMessage(`{}`)) == nil || (Elicitation{Mode: ElicitURL}).Check(nil) != nil {
		t.Error("Check accepted content for a URL, or refused none, want it the other way round")
	}
}
