// Package responses implements the API format of OpenAI's Responses and of Open Responses: it
// decodes a request to an agent.Request, and encodes the events of a run as the events of a stream
// or as one response with items.
//
//	q, err := responses.Decode(body)             // *responses.Invalid names the parameter
//	enc := responses.NewEncoder(responses.Header{ID: id, Created: run.Created, Echo: q.Echo})
//	frames := enc.Encode(e)                      // stream: true, for every event of the run
//	enc.Encode(e); body := enc.Response()        // otherwise
//
// Calls of the MCP servers' tools are mcp_call items, as in OpenAI's remote MCP. A call that needs
// approval is an mcp_approval_request, which ends the response; the input of the next request
// answers it. Calls of tools that the caller declares are function_call items. The agent declines
// elicitations, because the format has no item for them.
//
// sequence_number counts the events of the stream from 0, not those of the run. It is the same
// each time the stream is read, because the encoder's state depends only on the run's events. An
// Encoder is not safe for concurrent use.
package responses

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"answerd/internal/agent"
	"answerd/internal/event"
)

// Header describes a response, apart from its items.
type Header struct {
	ID           string // of the response
	Created      time.Time
	Model        string // as the request named it
	PreviousID   string // the response that this one continues; "" if none
	Conversation string // the conversation that the request names; "" if none
	Echo         Echo
	ToolLists    []ToolList // the tools of the MCP servers that the request names
	// Span is the part of the run that the response covers. The encoder needs the events up to
	// Span.After too, and encodes nothing for them.
	Span
	// Skip is the number of events of the stream that the reader already has (starting_after).
	// They are encoded, because later ones depend on them, and not sent.
	Skip int
	// Whole is for a run of another API format, whose reader wants all of it: a suspension ends the
	// response only as long as it lasts. The caller says with Encoder.Resume which ones are over.
	Whole bool
}

// ToolList has the tools of an MCP server, for an mcp_list_tools item.
type ToolList struct {
	Server string
	Tools  []ListedTool
}

// Echo holds the members of a request that its response repeats.
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

// Error returns the parameter, if known, and the message.
func (e *Invalid) Error() string { return strings.TrimPrefix(e.Param+": "+e.Message, ": ") }

// maxStored bounds the stored form of a request, in bytes.
const maxStored = 256 << 10

// StoredRequest is the part of a request that its responses, and later responses that continue
// them, need again. It is stored with the run.
type StoredRequest struct {
	Format        string   `json:"face"` // responses
	Model         string   `json:"model"`
	PreviousID    string   `json:"previous,omitempty"`
	Conversation  string   `json:"conversation,omitempty"`
	Echo          Echo     `json:"echo"`
	ListedServers []string `json:"listed,omitempty"`
	Tools         []string `json:"tools"` // allowed_tools of all servers; nil allows all
	// ServerTools are the allowed_tools of each server that has some.
	ServerTools map[string][]string `json:"server_tools,omitempty"`
	History     []agent.Message     `json:"history,omitempty"`
	Question    string              `json:"question,omitempty"`
	Media       []agent.Media       `json:"media,omitempty"`
}

// formatName distinguishes the stored requests of this API format from those of others.
const formatName = "responses"

// NotStored is the stored form of a request with store false.
var NotStored = []byte(`{"face":"` + formatName + `","echo":{"store":false}}`)

// EncodeStored returns the stored form of the request, of at most maxStored bytes. If that is not
// enough, it leaves out images, then the older half of the messages again and again, then most of
// what the response repeats, and at last the question. The request itself runs unchanged; only
// what is retrieved or continued later has less.
func (q *Request) EncodeStored() []byte {
	stored := StoredRequest{
		Format: formatName, Model: q.Model, PreviousID: q.PreviousID, Conversation: q.ConversationID, Echo: q.Echo, ListedServers: q.ListedServers, Tools: q.Tools, ServerTools: q.ServerTools,
		History: q.History, Question: q.Question, Media: q.Media,
	}
	data, _ := json.Marshal(stored) // cannot fail: stored was decoded from JSON
	if len(data) <= maxStored {
		return data
	}
	stored.Question, stored.Media = withoutMedia(stored.Question, stored.Media), nil
	stored.History = make([]agent.Message, len(q.History))
	for i, m := range q.History {
		m.Content, m.Media = withoutMedia(m.Content, m.Media), nil
		stored.History[i] = m
	}
	for {
		data, _ = json.Marshal(stored)
		if len(data) <= maxStored {
			return data
		}
		n := len(stored.History)
		switch {
		case n > 0:
			stored.History = stored.History[(n+1)/2:]
		case stored.Echo.Tools != nil || stored.Echo.Instructions != "":
			stored.Echo = Echo{Metadata: stored.Echo.Metadata, Background: stored.Echo.Background, Store: stored.Echo.Store}
		default:
			stored.Question = "" // the start event has it
			data, _ = json.Marshal(stored)
			return data
		}
	}
}

// withoutMedia returns the text with a note in place of the media, so that the model knows that
// there were some.
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

// NewStoredRequest returns what a response needs of the request of a run of another API format,
// whose start event is start. It has no conversation: such a run does not keep it.
func NewStoredRequest(run event.Run, start event.Start) StoredRequest {
	return StoredRequest{Model: start.Model, Echo: Echo{Metadata: run.Metadata, Background: run.Background}}
}

// IsStored reports whether the response can be retrieved and continued later.
func (k StoredRequest) IsStored() bool { return k.Echo.Store == nil || *k.Echo.Store }

// Messages returns the conversation up to the answer: the history and the question.
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

const (
	// runPrefix begins the ids of runs. Ids of responses and items have the rest of a run's id.
	runPrefix = "run_"
	// chatPrefix begins the ids of chat completions, which have the whole id of a run after it.
	chatPrefix = "chatcmpl-"
)

// Span is the part of a run that a response covers.
type Span struct {
	After int64 // the event after which it begins; 0 is the start of the run
	// Until is an event before which the span does not end even if the run is suspended; 0 for
	// none.
	Until int64
}

// EndsWith reports whether the response ends with the event although the run does not: the event suspends the run,
// and is not a suspension within the span. A suspension for anything but approvals ends no response,
// because the next response could not answer it.
func (s Span) EndsWith(e event.Event) bool {
	suspended, ok := e.Body.(event.Suspended)
	return ok && e.Seq > s.After && e.Seq >= s.Until && OnlyApprovals(suspended)
}

// OnlyApprovals reports whether a suspended run waits for nothing but approvals, the only kind of
// interrupt that this format has an item for.
func OnlyApprovals(s event.Suspended) bool {
	return !slices.ContainsFunc(s.Interrupts, func(i event.Interrupt) bool { return i.Kind != event.KindApproval })
}

// FormatID returns the id of the response that covers a span of a run, such as resp_abc_12_20.
func FormatID(run string, s Span) string {
	id := "resp_" + strings.TrimPrefix(run, runPrefix)
	if s.After > 0 {
		id += "_" + strconv.FormatInt(s.After, 10)
	}
	if s.Until > 0 {
		id += "_" + strconv.FormatInt(s.Until, 10)
	}
	return id
}

// ParseID parses what FormatID returns. ok is false if id is not an id of a response. The id of a
// run, as the native API and Chat Completions have it, counts as that of the run's first response.
func ParseID(id string) (run string, span Span, ok bool) {
	if name, ok := strings.CutPrefix(strings.TrimPrefix(id, chatPrefix), runPrefix); ok && !strings.Contains(name, "_") {
		id = "resp_" + name
	}
	parts := strings.Split(id, "_")
	if len(parts) < 2 || len(parts) > 4 || parts[0] != "resp" || parts[1] == "" {
		return "", Span{}, false
	}
	for i, n := range []*int64{&span.After, &span.Until}[:len(parts)-2] {
		var err error
		if *n, err = strconv.ParseInt(parts[2+i], 10, 64); err != nil || *n < 1 {
			return "", Span{}, false
		}
	}
	if span.Until > 0 && span.Until <= span.After {
		return "", Span{}, false
	}
	return runPrefix + parts[1], span, true
}

// itemID returns the id of an item: its kind, the run, and a name that is unique among the items of
// its kind in the run.
func itemID(kind, response, name string) string {
	run, _, _ := ParseID(response)
	return kind + "_" + strings.TrimPrefix(run, runPrefix) + "_" + name
}

// parseItemID parses what itemID returns. ok is false if id is not an id of an item.
func parseItemID(id string) (kind, run, name string, ok bool) {
	parts := strings.SplitN(id, "_", 3)
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return "", "", "", false
	}
	return parts[0], runPrefix + parts[1], parts[2], true
}

// ListedTool is a tool in an mcp_list_tools item.
type ListedTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"` // absent rather than null: clients refuse null
	InputSchema json.RawMessage `json:"input_schema"`
}
