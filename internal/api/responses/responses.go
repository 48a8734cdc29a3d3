// Package responses implements the API format of OpenAI's Responses and of Open Responses: it
// decodes a request to an agent.Request, and encodes the events of a run as the events of a stream
// or as one response with items.
//
//	q, err := responses.Decode(body)             // *responses.Invalid names the parameter
//	enc := responses.NewEncoder(responses.Header{ID: id, Created: run.Created, Echo: q.Echo})
//	frames := enc.Encode(e)                      // stream: true, for every event of the run
//	enc.Encode(e); body := enc.Response()        // else
//
// Calls of the MCP servers' tools are mcp_call items, as in OpenAI's remote MCP. A call that needs
// approval is an mcp_approval_request, which ends the response; the input of the next request
// answers it. Calls of tools that the caller declares are function_call items. The agent declines
// elicitations, because the format has no item for them.
//
// sequence_number counts the events of the stream from 0, not those of the run. It is the same each
// time the stream is read, because the encoder's state depends only on the run's events.
package responses

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"answerd/internal/agent"
	"answerd/internal/event"
)

// Header has what a response says besides its items.
type Header struct {
	ID         string // of the response
	Created    time.Time
	Model      string // as the request named it
	PreviousID string // the response that this one goes on after; "" if none
	Echo       Echo
	ToolLists  []ToolList // the tools of the MCP servers that the request names
	// Span is the part of the run that the response covers. The encoder needs the events up to
	// Span.After too, and encodes nothing for them.
	Span
	// Skip is how many events of the stream the reader has already; they are not sent.
	Skip int
}

// ToolList has the tools of an MCP server, for an mcp_list_tools item.
type ToolList struct {
	Server string
	Tools  []ListedTool
}

// Echo are the fields of a request that its response repeats.
type Echo struct {
	Instructions      string             `json:"instructions,omitempty"`
	Tools             []json.RawMessage  `json:"tools,omitempty"`
	ToolChoice        json.RawMessage    `json:"tool_choice,omitempty"`
	Temperature       *float64           `json:"temperature,omitempty"`
	TopP              *float64           `json:"top_p,omitempty"`
	PresencePenalty   *float64           `json:"presence_penalty,omitempty"`
	FrequencyPenalty  *float64           `json:"frequency_penalty,omitempty"`
	MaxOutputTokens   *agent.JSONInteger `json:"max_output_tokens,omitempty"`
	MaxToolCalls      *agent.JSONInteger `json:"max_tool_calls,omitempty"`
	ParallelToolCalls *bool              `json:"parallel_tool_calls,omitempty"`
	Reasoning         json.RawMessage    `json:"reasoning,omitempty"`
	Text              json.RawMessage    `json:"text,omitempty"`
	Metadata          map[string]string  `json:"metadata,omitempty"`
	Background        bool               `json:"background,omitempty"`
	Store             *bool              `json:"store,omitempty"`
	Truncation        *string            `json:"truncation,omitempty"`
	SafetyIdentifier  *string            `json:"safety_identifier,omitempty"`
	PromptCacheKey    *string            `json:"prompt_cache_key,omitempty"`
	User              *string            `json:"user,omitempty"`
}

// Invalid is the error for a request that cannot be used.
type Invalid struct {
	Param   string // the parameter, such as input[2].content
	Message string // for the caller
}

func (e *Invalid) Error() string { return strings.TrimPrefix(e.Param+": "+e.Message, ": ") }

// maxStored bounds what is kept of a request, in bytes.
const maxStored = 256 << 10

// StoredRequest is the part of a request that its responses, and later responses that continue
// them, need again. It is stored with the run.
type StoredRequest struct {
	Format        string          `json:"face"` // responses
	Model         string          `json:"model"`
	PreviousID    string          `json:"previous,omitempty"`
	Echo          Echo            `json:"echo"`
	ListedServers []string        `json:"listed,omitempty"`
	Tools         []string        `json:"tools"` // allowed_tools; nil allows all
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
	data, _ := json.Marshal(k) // cannot fail
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

// Messages returns the conversation up to the answer.
func (k StoredRequest) Messages() []agent.Message {
	if k.Question == "" && len(k.Media) == 0 {
		return k.History
	}
	return append(k.History[:len(k.History):len(k.History)], agent.Message{Role: "user", Content: k.Question, Media: k.Media})
}

// Clients send back only ids, so an id has all that identifies a response. A run that is suspended
// for approvals is several responses in sequence. The id of each has the run and the event after
// which the response begins; if the run got its approvals one by one and was suspended in between,
// it also has the last of those.

const runPrefix = "run_"

// Span is the part of a run that a response covers.
type Span struct {
	After int64 // the event after which it begins; 0 is the start of the run
	// Until is an event before which the span does not end even if the run is suspended; 0 for
	// none.
	Until int64
}

// EndsWith reports whether the span ends with e, before the run does.
func (s Span) EndsWith(e event.Event) bool {
	_, waits := e.Body.(event.Suspended)
	return waits && e.Seq > s.After && e.Seq >= s.Until
}

// ID returns the id of the response that covers the span s of a run.
func ID(run string, s Span) string {
	id := "resp_" + strings.TrimPrefix(run, runPrefix)
	if s.After > 0 {
		id += "_" + strconv.FormatInt(s.After, 10)
	}
	if s.Until > 0 {
		id += "_" + strconv.FormatInt(s.Until, 10)
	}
	return id
}

// ParseID returns the arguments of ID. ok is false if id is not an id of a response.
func ParseID(id string) (run string, s Span, ok bool) {
	parts := strings.Split(id, "_")
	if len(parts) < 2 || len(parts) > 4 || parts[0] != "resp" || parts[1] == "" {
		return "", Span{}, false
	}
	for i, n := range []*int64{&s.After, &s.Until}[:len(parts)-2] {
		var err error
		if *n, err = strconv.ParseInt(parts[2+i], 10, 64); err != nil || *n < 1 {
			return "", Span{}, false
		}
	}
	if s.Until > 0 && s.Until <= s.After {
		return "", Span{}, false
	}
	return runPrefix + parts[1], s, true
}

// itemID returns the id of an item: its kind, the run, and a name that is unique among the items of
// its kind in the run.
func itemID(kind, response, name string) string {
	run, _, _ := ParseID(response)
	return kind + "_" + strings.TrimPrefix(run, runPrefix) + "_" + name
}

// parseItemID returns the parts of an id that itemID returned.
func parseItemID(id string) (kind, run, name string, ok bool) {
	parts := strings.SplitN(id, "_", 3)
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return "", "", "", false
	}
	return parts[0], runPrefix + parts[1], parts[2], true
}
