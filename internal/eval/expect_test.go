package eval

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// newExpect compiles expectations that are written as JSON.
func newExpect(t *testing.T, text string) *Expect {
	t.Helper()
	e := &Expect{}
	if err := json.Unmarshal([]byte(text), e); err != nil {
		t.Fatal(err)
	}
	if member, err := e.compile(); err != nil {
		t.Fatalf("%s: %v", member, err)
	}
	return e
}

func TestExpectReportsWhatARunDoesNotMeet(t *testing.T) {
	cost := 0.02
	text := &outcome{answer: "It is 12:30.\nHave a nice day.", calls: []string{"crm_get_order", "current_time", "crm_get_order"}, cost: &cost, elapsed: 2 * time.Second}
	value := &outcome{answer: "```json…", output: json.RawMessage(`{"a":[1,{"b/c":null}],"d~":"x"}`)}
	for _, c := range []struct {
		run    *outcome
		expect string
		want   string // the members that are not met
	}{
		{text, `{"contains":"12:30"}`, ""},
		{text, `{"contains":["12:30","13:30","nice"]}`, "contains"},
		{text, `{"matches":"\\d\\d:\\d\\d"}`, ""},
		{text, `{"matches":["^Have","(?m)^Have"]}`, "matches"},
		{text, `{"json":{"/a":1}}`, "json"},
		{text, `{"schema":{"type":"object"}}`, "schema"},
		{value, `{"json":{"/a/0":1.0,"/a/1/b~1c":null,"/d~0":"x"},"schema":{"required":["a"]}}`, ""},
		{value, `{"json":{"/a/0":2,"/a/2":1,"/a/01":1,"/a/x":1,"/d~0/x":1,"/missing":null}}`, "json json json json json json"},
		{value, `{"schema":{"required":["b","c"]}}`, "schema schema"},
		{&outcome{answer: " [1, 2] \n"}, `{"json":{"":[1,2]},"schema":{"type":"array"}}`, ""},
		{&outcome{answer: `{"id":9007199254740993,"n":8.0}`}, `{"json":{"/id":9007199254740993,"/n":8,"":{"n":8,"id":9007199254740993}}}`, ""},
		{&outcome{answer: `{"id":9007199254740993}`}, `{"json":{"/id":9007199254740992}}`, "json"},
		{text, `{"calls":["current_time","crm_*"]}`, ""},
		{text, `{"calls":["crm_get_order","crm_get_order"]}`, ""},
		{text, `{"calls":["current_time","current_time"]}`, "calls"},
		{text, `{"calls":["crm_*","current_*","crm_*"],"in_order":true}`, ""},
		{text, `{"calls":["current_time","current_*"],"in_order":true}`, "calls"},
		{text, `{"never_calls":["*delete*"]}`, ""},
		{text, `{"never_calls":["current_*","crm_*"]}`, "never_calls never_calls"},
		{text, `{"max_cost":0.02,"max_seconds":2}`, ""},
		{text, `{"max_cost":0.01,"max_seconds":1.5}`, "max_cost max_seconds"},
		{value, `{"max_cost":1}`, "max_cost"},
	} {
		var got []string
		for _, f := range newExpect(t, c.expect).check(c.run) {
			got = append(got, f.Expect)
			if f.Detail == "" {
				t.Errorf("%s: got no detail of %s, want one", c.expect, f.Expect)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got failures %q, want %q", c.expect, got, c.want)
		}
	}
}
