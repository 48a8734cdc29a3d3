// Package responses implements the API format of OpenAI's Responses and of Open Responses: it decodes a request to an
// agent.Request, and encodes a run's events as the events of a stream or as one response with items.
//
//	q, err := responses.Decode(body)             // *responses.Invalid names the parameter
//	enc := responses.NewEncoder(responses.Header{ID: id, Created: run.Created, Echo: q.Echo})
//	frames := enc.Encode(e)                      // stream: true, for every event of the run
//	enc.Encode(e); body := enc.Response()        // otherwise
//
// Calls of the MCP servers' tools are mcp_call items, as in OpenAI's remote MCP. A call that needs approval is an
// mcp_approval_request, which ends the response; the input of the next request answers it. Calls of tools that the
// caller declares are function_call items. The agent declines elicitations, because the format has no item for them.
//
// sequence_number counts the events of the stream from 0, not those of the run. It is the same each time the stream is
// read, because the encoder's state depends only on the run's events. An Encoder is not safe for concurrent use.
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
	ID           string // the response's id (FormatID)
	Created      time.Time
	Model        string // the request's model, or the service's default if it named none
	PreviousID   string // the response that this one continues; "" if none
	Conversation string // the conversation that the request names; "" if none
	Echo         Echo
	ToolLists    []ToolList // the tools of the MCP servers that the request names
	// Span is the part of the run that the response covers. The encoder also needs the events up to Span.After, to know
	// which calls and approvals are open, but returns no frames for them.
	Span
	// Skip is the number of the stream's events that the client already has (starting_after). The encoder encodes them,
	// because later events depend on them, but does not return them.
	Skip int
	// Whole is set for a run that was started in another API format. Its response covers the run from start to end, so
	// a suspension that is over does not end it. The encoder's caller reports each such suspension with Encoder.Resume.
	Whole bool
}

// ToolList has the tools of one MCP server, for an mcp_list_tools item.
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

// IsStored reports whether the response can be retrieved and continued later. The default is true.
func (e Echo) IsStored() bool { return e.Store == nil || *e.Store }

// Invalid is the error for a request that cannot be used.
type Invalid struct {
	Param   string // the parameter, such as input[2].content; "" if the error is about the body as a whole
	Message string // written for the client
}

// Error returns the parameter, if known, and the message.
func (e *Invalid) Error() string { return strings.TrimPrefix(e.Param+": "+e.Message, ": ") }

// maxStored is the largest size, in bytes, of a request's stored form.
const maxStored = 256 << 10

// StoredRequest is the part of a request that the event log keeps with the run. From it the response can be encoded
// again, its input listed, and its conversation continued.
type StoredRequest struct {
	Format        string   `json:"face"`  // formatName; "" for a run of another API format
	Model         string   `json:"model"` // as the client wrote it
	PreviousID    string   `json:"previous,omitempty"`
	Conversation  string   `json:"conversation,omitempty"`
	Echo          Echo     `json:"echo"`
	ListedServers []string `json:"listed,omitempty"` // as Request.ListedServers
	Tools         []string `json:"tools"`            // the allowed_tools of all servers together; nil allows all tools
	// ServerTools has the allowed_tools by server, for the servers that have any in the request.
	ServerTools map[string][]string `json:"server_tools,omitempty"`
	History     []agent.Message     `json:"history,omitempty"`
	Question    string              `json:"question,omitempty"`
	Media       []agent.Media       `json:"media,omitempty"`
}

// formatName distinguishes the stored requests of this API format from those of others.
const formatName = "responses"

// NotStored is the stored form of a request with store false.
var NotStored = []byte(`{"face":"` + formatName + `","echo":{"store":false}}`)

// EncodeStored returns the stored form of q, which DecodeStored decodes. To keep it within maxStored, it leaves out as
// much as necessary, in this order: images and files, the older half of the messages (repeatedly), most of what the
// response repeats, the servers and their allowed_tools, and the question. The rest is shorter than maxStored, because
// Decode bounds it. EncodeStored does not change q, so the run gets the whole request. Only a response that is
// retrieved or continued later has less.
func (q *Request) EncodeStored() []byte {
	stored := StoredRequest{
		Format: formatName, Model: q.Model, PreviousID: q.PreviousID, Conversation: q.ConversationID, Echo: q.Echo,
		ListedServers: q.ListedServers, Tools: q.Tools, ServerTools: q.ServerTools,
		History: q.History, Question: q.Question, Media: q.Media,
	}
	data, _ := json.Marshal(stored) // cannot fail: stored was decoded from JSON
	if len(data) > maxStored {
		stored.dropMedia()
		data, _ = json.Marshal(stored)
	}
	for len(data) > maxStored && stored.shorten() {
		data, _ = json.Marshal(stored)
	}
	return data
}

// dropMedia replaces the images and files in the question and the history by notes. It works on a copy of the history,
// because the run uses the original.
func (s *StoredRequest) dropMedia() {
	s.Question = withoutMedia(s.Question, s.Media)
	s.Media = nil
	s.History = slices.Clone(s.History)
	for i := range s.History {
		m := &s.History[i]
		m.Content = withoutMedia(m.Content, m.Media)
		m.Media = nil
	}
}

// shorten removes the next part, after the media, that EncodeStored may leave out. It returns false if none is left.
func (s *StoredRequest) shorten() bool {
	n := len(s.History)
	switch {
	case n > 0:
		s.History = s.History[(n+1)/2:]
	case len(s.Echo.Instructions)+len(s.Echo.Tools)+len(s.Echo.ToolChoice)+len(s.Echo.Reasoning)+len(s.Echo.Text) > 0:
		s.Echo = Echo{Metadata: s.Echo.Metadata, Background: s.Echo.Background, Store: s.Echo.Store}
	case s.ListedServers != nil || s.Tools != nil || s.ServerTools != nil:
		s.ListedServers, s.Tools, s.ServerTools = nil, nil, nil
	case s.Question != "":
		s.Question = "" // the run's start event has the question too
	default:
		return false
	}
	return true
}

// withoutMedia returns text with a note in place of the media, so that the model knows that there were some.
func withoutMedia(text string, media []agent.Media) string {
	if len(media) == 0 {
		return text
	}
	return strings.TrimPrefix(fmt.Sprintf("%s\n[%d images were here.]", text, len(media)), "\n")
}

// DecodeStored decodes the result of EncodeStored. ok is false if data is not a stored request, or belongs to another
// API format; stored is then not complete.
func DecodeStored(data []byte) (stored StoredRequest, ok bool) {
	err := json.Unmarshal(data, &stored)
	return stored, err == nil && stored.Format == formatName
}

// NewStoredRequest returns a StoredRequest for a run that was started in another API format, so that a client can read
// the run as a response. start is the run's first event. History and Question are empty, because other formats do not
// store the conversation before the answer.
func NewStoredRequest(run event.Run, start event.Start) StoredRequest {
	return StoredRequest{Model: start.Model, Echo: Echo{Metadata: run.Metadata, Background: run.Background}}
}

// Messages returns the conversation before the answer: the history, and the question if there is one.
func (s StoredRequest) Messages() []agent.Message {
	if s.Question == "" && len(s.Media) == 0 {
		return s.History
	}
	question := agent.Message{Role: "user", Content: s.Question, Media: s.Media}
	return append(slices.Clip(s.History), question) // Clip makes append copy s.History instead of writing behind it
}

const (
	// runPrefix begins the ids of runs. Ids of responses and items contain a run's id without this prefix.
	runPrefix = "run_"
	// chatPrefix begins the ids of chat completions. A run's whole id follows.
	chatPrefix = "chatcmpl-"
)

// Span is the part of a run that a response covers. A run that is suspended for approvals has several responses in
// sequence. Each ends with a suspension or with the run. Clients send back only a response's id, so the id contains the
// span (FormatID).
type Span struct {
	After int64 // sequence number of the event after which the response begins; 0 is the run's start
	// Until is the sequence number of the last approval that the response answers, if the run was suspended again
	// between those approvals; otherwise 0. Suspensions before Until do not end the response.
	Until int64
}

// EndsWith reports whether the suspension e ends the response although the run has not ended. It does if the run waits
// only for approvals, and e is after After and not before Until. A suspension for other input does not end a response,
// because no request of this format could give that input.
func (s Span) EndsWith(e event.Event) bool {
	suspended, ok := e.Body.(event.Suspended)
	return ok && e.Seq > s.After && e.Seq >= s.Until && OnlyApprovals(suspended)
}

// OnlyApprovals reports whether a suspended run waits only for approvals. This format has no item for other interrupts.
func OnlyApprovals(s event.Suspended) bool {
	return !slices.ContainsFunc(s.Interrupts, func(i event.Interrupt) bool { return i.Kind != event.KindApproval })
}

// FormatID returns the id of the response that covers the span s of a run. For the run run_abc, After 12 and Until 20,
// it is resp_abc_12_20. Numbers that are 0 are left out.
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

// ParseID parses an id that FormatID returned. ok is false if id is not a response's id. ParseID also accepts the id of
// a run from the native API (run_abc) or Chat Completions (chatcmpl-run_abc), which means the run's first response.
func ParseID(id string) (run string, span Span, ok bool) {
	name, isRun := strings.CutPrefix(strings.TrimPrefix(id, chatPrefix), runPrefix)
	if isRun && !strings.Contains(name, "_") {
		id = "resp_" + name
	}
	parts := strings.Split(id, "_")
	if len(parts) < 2 || len(parts) > 4 || parts[0] != "resp" || parts[1] == "" {
		return "", Span{}, false
	}
	positions := []*int64{&span.After, &span.Until}
	for i, digits := range parts[2:] {
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 1 {
			return "", Span{}, false
		}
		*positions[i] = n
	}
	if span.Until > 0 && span.Until <= span.After {
		return "", Span{}, false
	}
	return runPrefix + parts[1], span, true
}

// itemID returns the id of an item in the run that a response belongs to; response is that response's id. kind is a
// prefix such as msg, fc or mcp. name is unique among the items of that kind in the run, such as a part id, a call id,
// an interrupt id or a server's name.
func itemID(kind, response, name string) string {
	run, _, _ := ParseID(response)
	return kind + "_" + strings.TrimPrefix(run, runPrefix) + "_" + name
}

// parseItemID parses an id that itemID returned. run is the run's whole id. ok is false if id is not an item's id.
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
