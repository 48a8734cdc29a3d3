package responses

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
)

// maxKept bounds what is kept of a request, in bytes.
const maxKept = 256 << 10

// Kept is what of a request its responses, and those that go on after them, need again.
type Kept struct {
	Face     string          `json:"face"` // responses
	Model    string          `json:"model"`
	Previous string          `json:"previous,omitempty"`
	Echo     Echo            `json:"echo"`
	Listed   []string        `json:"listed,omitempty"`
	Tools    []string        `json:"tools,omitempty"` // that the request narrows to
	History  []agent.Message `json:"history,omitempty"`
	Question string          `json:"question,omitempty"`
	Media    []agent.Media   `json:"media,omitempty"`
}

const face = "responses"

// Keep is the request as a run keeps it. Of one that is too large, pictures are left out
// first, then the oldest messages, and at last what the response would repeat of it.
func (q *Request) Keep() []byte {
	k := Kept{
		Face: face, Model: q.Model, Previous: q.Previous, Echo: q.Echo, Listed: q.Listed, Tools: q.Tools,
		History: q.History, Question: q.Question, Media: q.Media,
	}
	data, _ := json.Marshal(k) // nothing in it can fail
	if len(data) <= maxKept {
		return data
	}
	k.Question, k.Media = withoutMedia(k.Question, k.Media), nil
	k.History = make([]agent.Message, len(q.History))
	for i, m := range q.History {
		m.Content, m.Media = withoutMedia(m.Content, m.Media), nil
		k.History[i] = m
	}
	for {
		if data, _ = json.Marshal(k); len(data) <= maxKept {
			return data
		}
		switch n := len(k.History); {
		case n > 0:
			k.History = k.History[(n+1)/2:]
		case k.Echo.Tools != nil || k.Echo.Instructions != "":
			k.Echo = Echo{Metadata: k.Echo.Metadata, Background: k.Echo.Background, Store: k.Echo.Store}
		default:
			k.Question = "" // the start event has it
			data, _ = json.Marshal(k)
			return data
		}
	}
}

func withoutMedia(text string, media []agent.Media) string {
	if len(media) == 0 {
		return text
	}
	return strings.TrimPrefix(fmt.Sprintf("%s\n[%d images were here.]", text, len(media)), "\n")
}

// ReadKept reads what Keep wrote. ok is false for the runs of other faces.
func ReadKept(data []byte) (k Kept, ok bool) {
	return k, json.Unmarshal(data, &k) == nil && k.Face == face
}

// Asked is the conversation up to the answer.
func (k Kept) Asked() []agent.Message {
	if k.Question == "" && len(k.Media) == 0 {
		return k.History
	}
	return append(k.History[:len(k.History):len(k.History)], agent.Message{Role: "user", Content: k.Question, Media: k.Media})
}
