package llm

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseProfilesReadsAllFields(t *testing.T) {
	got, err := ParseProfiles([]byte(`[
		{"id":"fast","upstream":"vendor/fast-2","tool_calling":"native","context_tokens":400000,"max_output_tokens":128000,"images":true,"audio":true,
		 "price":{"input_per_million":0.25,"output_per_million":2}},
		{"id":"free","price":{}}, {"id":"local"}]`))
	want := []Profile{
		{ID: "fast", Upstream: "vendor/fast-2", ToolCalling: NativeCalling, ContextTokens: 400000, MaxOutputTokens: 128000, Images: true, Audio: true, Price: &Price{0.25, 2}},
		{ID: "free", Price: &Price{}}, {ID: "local"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ParseProfiles = %+v, %v, want %+v", got, err, want)
	}
}

func TestParseProfilesNamesThePlaceOfAMistake(t *testing.T) {
	for file, want := range map[string]string{
		`[{"id":"a"},{"id":"b","windows":1}]`: "/1/windows: unknown field",
		`[{"id":"a","ID":"b"}]`:               "/0/ID: unknown field",
		`[{"id":"a","id":"a"}]`:               "/0/id: given twice",
		`[{"id":"a","price":{"input_per_million":1,"input_per_million":2}}]`: "/0/price/input_per_million: given twice",
		`[{"id":"a"},{"id":"b"},{"id":"a"}]`:                                 "/2/id: the same as /0/id",
		`[{"id":"a","context_tokens":-1}]`:                                   "/0/context_tokens: below 0",
		`[{"id":"a","max_output_tokens":-1}]`:                                "/0/max_output_tokens: below 0",
		`[{"id":"a","context_tokens":10,"max_output_tokens":10}]`:            "/0/max_output_tokens: not below context_tokens",
		`[{"id":"a","price":{"output_per_million":-0.1}}]`:                   "/0/price/output_per_million: below 0",
		`[{"id":"a","price":{"input_per_million":-1}}]`:                      "/0/price/input_per_million: below 0",
		`[{"id":"a","price":{"currency":"EUR"}}]`:                            "/0/price/currency: unknown field",
		`[{"id":"a","price":3}]`:                                             "/0/price: not an object",
		`[{"id":"a","price":null}]`:                                          "/0/price: not an object",
		`[{"id":"a","context_tokens":1.5}]`:                                  "/0/context_tokens: not a whole number",
		`[{"id":"a","context_tokens":1e99}]`:                                 "/0/context_tokens: not a whole number",
		`[{"id":"a","images":"yes"}]`:                                        "/0/images: not true or false",
		`[{"id":"a","images":null}]`:                                         "/0/images: not true or false",
		`[{"id":"a","tool_calling":"magic"}]`:                                "/0/tool_calling: not auto, native or text",
		`[{"id":"a","x/~y":1}]`:                                              "/0/x~1~0y: unknown field",
		`[{"upstream":"a"}]`:                                                 "/0/id: missing",
		`[{"id":"a\u0000"}]`:                                                 "/0/id: not a name",
		`[{"id":"` + strings.Repeat("a", 257) + `"}]`:                        "/0/id: not a name",
		`[{"id":3}]`:                 "/0/id: not a text",
		`["a"]`:                      "/0: not an object",
		`[null]`:                     "/0: not an object",
		`[]`:                         "0 models listed; the limit is 1 to 1000",
		`{}`:                         "not a list of models",
		`null`:                       "not a list of models",
		`[{"id":"a"}] x`:             "there is more text after the list",
		`[{"id":"a"}`:                "the JSON ends too early",
		``:                           "the JSON ends too early",
		`[{"id":"a",}]`:              "/0: invalid character",
		"[{\"id\":\"\xff\"}]":        "not UTF-8",
		`[[[[[]]]]]`:                 "/0: not an object",
		strings.Repeat(" ", 1<<20+1): "larger than 1048576 bytes",
		"[" + strings.TrimSuffix(strings.Repeat(`{"id":"a"},`, 1001), ",") + "]": "1001 models",
	} {
		got, err := ParseProfiles([]byte(file))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || got != nil {
			t.Errorf("ParseProfiles(%.80s) = %v, %v, want error %s", file, got, err, want)
		}
	}
}

func FuzzProfiles(f *testing.F) {
	for _, s := range []string{
		`[{"id":"fast","upstream":"u","context_tokens":400000,"images":true,"price":{"input_per_million":0.25,"output_per_million":2}}]`,
		`[{"id":"a","tool_calling":"text","context_tokens":8192,"max_output_tokens":1024},{"id":"b"}]`,
		`[{"id":"a"},{"id":"a"}]`, `[{"id":"a","id":"b"}]`, `[]`, `{}`, `[null]`, `[{"id":1}]`, `[{"id":"a","context_tokens":-1}]`, `[{"id":"a","price":{"input_per_million":1e400}}]`, `[[[[[[`, "[{\"id\":\"\xff\"}]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		profiles, err := ParseProfiles(data)
		if err != nil {
			return
		}
		ids := make(map[string]bool)
		for _, p := range profiles {
			if p.ID == "" || ids[p.ID] {
				t.Errorf("ParseProfiles(%q) returned %+v, want a unique id", data, p)
			}
			price := Price{}
			if p.Price != nil {
				price = *p.Price
			}
			if p.ContextTokens < 0 || p.MaxOutputTokens < 0 || price.Input < 0 || price.Output < 0 {
				t.Errorf("ParseProfiles(%q) returned %+v, want no number below 0", data, p)
			}
			ids[p.ID] = true
		}
	})
}
