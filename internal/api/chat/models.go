package chat

import "time"

// WithoutTools is what follows a model's id in the id of the same model without tools:
// chat UIs ask one for titles, tags and follow-up questions, and nobody wants a tool
// call for those.
const WithoutTools = ":no-tools"

// Model is one model, as GET /v1/models/{model} tells it.
type Model struct {
	ID      string `json:"id"`
	Object  string `json:"object"` // model
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// ModelList returns those of those ids, each with its twin that calls no tools.
func ModelList(ids []string, since time.Time) []Model {
	out := make([]Model, 0, 2*len(ids))
	for _, id := range ids {
		for _, name := range []string{id, id + WithoutTools} {
			out = append(out, Model{name, "model", since.Unix(), "answerd"})
		}
	}
	return out
}
