package chat

import "time"

// WithoutTools is what follows a model's id in the id of the same model without tools:
// chat UIs ask one for titles, tags and follow-up questions, and nobody wants a tool
// call for those.
const WithoutTools = ":no-tools"

// Models is the body of GET /v1/models for the models of those ids, each with its twin
// that calls no tools.
func Models(ids []string, since time.Time) any {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	data := make([]model, 0, 2*len(ids))
	for _, id := range ids {
		for _, name := range []string{id, id + WithoutTools} {
			data = append(data, model{name, "model", since.Unix(), "answerd"})
		}
	}
	return map[string]any{"object": "list", "data": data}
}
