package llm

import "testing"

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
			if p.ID == "" || ids[p.ID] || p.ContextTokens < 0 || p.MaxOutputTokens < 0 || p.Price != nil && (p.Price.Input < 0 || p.Price.Output < 0) {
				t.Errorf("%q: %+v", data, p)
			}
			ids[p.ID] = true
		}
	})
}
