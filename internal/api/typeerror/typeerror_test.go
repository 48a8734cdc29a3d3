package typeerror_test

import (
	"encoding/json"
	"testing"

	"answerd/internal/api/typeerror"
)

type upper string

func (u *upper) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, (*string)(u)) }

func TestFindNamesTheItemOfAList(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":5}`: "model", `{ "model" : {"a":[1]} }`: "model", `{"model":[]}`: "model",
		`{"items":[{"role":"a"},{"role":5}]}`:                                 "items[1].role",
		`{"items":[{"role":"a"},{"role":[{}]}],"model":"m"}`:                  "items[1].role",
		`{"items":[{"parts":[{"text":""},{"text":""},{"text":true}]}]}`:       "items[0].parts[2].text",
		"{\"items\": [ {\"parts\" :\n[{\"text\":\"\"} ,{ \"text\": 5 } ] }]}": "items[0].parts[1].text",
		`{"items":[{"parts":"x"}]}`:                                           "items[0].parts", `{"items":[{"parts":[5]}]}`: "items[0].parts[0]", `{"items":[7]}`: "items[0]", `{"items":{}}`: "items",
		`{"map":{"a":"b","0":5}}`: "map", // a member of a map has no name of its own

		`{"items":[{"role":"a"},{"upper":5}]}`: "items.upper", // its error has no position in the body
		`{"model":"m"}`:                        "", `[]`: "", `{"model":`: "",
	} {
		var in struct {
			Model string            `json:"model"`
			Map   map[string]string `json:"map"`
			Items []struct {
				Role  string `json:"role"`
				Upper upper  `json:"upper"`
				Parts []struct {
					Text string `json:"text"`
				} `json:"parts"`
			} `json:"items"`
		}
		path, value, ok := typeerror.Find([]byte(body), json.Unmarshal([]byte(body), &in))
		if path != want || ok != (want != "") || ok == (value == "") {
			t.Errorf("Find(%s) = %q, %q, %t, want %q", body, path, value, ok, want)
		}
	}
}
