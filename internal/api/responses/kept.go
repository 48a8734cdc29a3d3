package responses

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
)

// maxStored bounds what is kept of a request, in bytes.
const maxStored = 256 << 10

// StoredRequest is what of a request its responses, and those that go on after them, need again.
type StoredRequest struct {
	Format        string          `json:"face"` // responses
	Model         string          `json:"model"`
	PreviousID    string          `json:"previous,omitempty"`
	Echo          Echo            `json:"echo"`
	ListedServers []string        `json:"listed,omitempty"`
	Tools         []string        `json:"tools,omitempty"` // that the request narrows to
	History       []agent.Message `json:"history,omitempty"`
	Question      string          `json:"question,omitempty"`
	Media         []agent.Media   `json:"media,omitempty"`
}

const formatName = "responses"

// Keep is the request as a run keeps it. Of one that is too large, pictures are left out
// first, then the oldest messages, and at last what the response would repeat of it.
func (q *Request) EncodeStored() []byte {
	k := StoredRequest{
		Format: formatName, Model: q.Model, PreviousID: q.PreviousID, Echo: q.Echo, ListedServers: q.ListedServers, Tools: q.Tools,
		History: q.History, Question: q.Question, Media: q.Media,
	}
	data, _ := json.Marshal(k) // nothing in it can fail
	if len(data) <= maxStored {
		return data
	}
	k.Question, k.Media = withoutMedia(k.Question, k.Media), nil
	k.History = make([]agent.Message, len(q.History))
	for i, m := range q.History {
		m.Content, m.Media = withoutMedia(m.Content, m.Media), nil
		k.History[i] = m
	}
	for {
		if data, _ = json.Marshal(k); len(data) <= maxStored {
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

// DecodeStored reads what EncodeStored returns. ok is false for a run of another API format.
func DecodeStored(data []byte) (k StoredRequest, ok bool) {
	return k, json.Unmarshal(data, &k) == nil && k.Format == formatName
}

// Asked is the conversation up to the answer.
func (k StoredRequest) Messages() []agent.Message {
	if k.Question == "" && len(k.Media) == 0 {
		return k.History
	}
	return append(k.History[:len(k.History):len(k.History)], agent.Message{Role: "user", Content: k.Question, Media: k.Media})
}
