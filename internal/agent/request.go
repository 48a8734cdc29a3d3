package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/agent/attachment"
	"answerd/internal/agent/budget"
	"answerd/internal/agent/thread"
	"answerd/internal/agent/toolsearch"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
)

// Request is one question to the agent, independent of its API format.
type Request struct {
	// Question may be empty if the history ends with results of the client's tools; the question
	// is then the previous one.
	Question string  `json:",omitzero"`
	Media    []Media `json:",omitzero"` // belongs to the question
	// OnlyAcceptedMedia refuses a request whose Media the model does not take. Otherwise the model
	// gets a line of text in place of each.
	OnlyAcceptedMedia bool      `json:",omitzero"`
	History           []Message `json:",omitzero"`
	// ContinueThread puts the earlier turns of the thread before History. A request with a ThreadID whose History is
	// nil continues the thread too; an empty History says that nothing came before. AfterRun names the run whose turn
	// is the last of the earlier turns; "" means the newest turn.
	ContinueThread bool   `json:",omitzero"`
	AfterRun       string `json:",omitzero"`
	// OnBusy says what happens while a run of the thread is active; "" refuses the question.
	OnBusy OnBusy `json:",omitzero"`
	// Instructions of the caller follow the system prompt, which they do not replace.
	Instructions string `json:",omitzero"`
	// OutputSchema is the JSON Schema that the answer must have, as JSON; empty means that the answer is any text.
	OutputSchema json.RawMessage `json:",omitempty"` // omitempty: in a checkpoint, null would not be read as empty
	// Agent is the id of a named agent; "" means the default one. Its definition completes and restricts the request.
	Agent     string   `json:",omitzero"`
	Model     string   `json:",omitzero"`
	Sampling  Sampling `json:",omitzero"`
	MaxTokens int64    `json:",omitzero"` // of each model answer; 0 means the limit of the model's profile
	// ToolNone answers with text only; ToolRequired makes the model call a tool in the first turn.
	ToolChoice ToolChoice `json:",omitzero"`
	// Servers and Tools restrict what may be used: names of servers, and globs (path.Match) for names of tools. nil
	// means all, an empty list means none. They cannot allow more than the rules do.
	Servers []string `json:",omitzero"`
	Tools   []string `json:",omitzero"`
	// ServerTools restricts the tools of some of these Servers further: globs by the name of a server.
	ServerTools map[string][]string `json:",omitzero"`
	// ClientTools are executed by the caller. A turn that calls a client tool ends the run, and the results arrive
	// with the history of the next question. A client tool with the name of a server's tool is not offered.
	// ForcedTool, if set, names the tool that the first turn must call.
	ClientTools []ClientTool `json:",omitzero"`
	ForcedTool  string       `json:",omitzero"`
	// MaxTurns lowers the agent's own limit; 0 keeps it.
	MaxTurns int    `json:",omitzero"`
	Budget   Budget `json:",omitzero"`
	// AskAtLimit means that the people who answer interrupts can raise the request's own budget. They are asked when
	// the run reaches one of its limits. Otherwise the run ends with a summary.
	AskAtLimit bool `json:",omitzero"`
	// Context goes to the MCP servers with every call.
	Context map[string]string `json:",omitzero"`
	// Prompt names a prompt of an MCP server, whose messages are inserted directly before the question.
	Prompt     *ServerPrompt     `json:",omitzero"`
	ThreadID   string            `json:",omitzero"`
	Metadata   map[string]string `json:",omitzero"`
	Background bool              `json:",omitzero"`
	// Callback is a URL that gets a POST when the run has ended; "" means none.
	Callback string `json:",omitempty"`
	// Interactive means that a person can answer interrupts during the run: approvals, and
	// questions of MCP servers. Otherwise each is refused at once.
	Interactive bool `json:",omitzero"`
	// Awaited means that the caller waits for the whole answer. If a person must be asked, the
	// caller is asked to fetch the answer later, and from then on the run needs no reader.
	Awaited bool `json:",omitzero"`
	// FormsDeclined means that the people who answer interrupts cannot fill in forms, and ApprovalsDeclined that they
	// cannot approve calls. Such questions are refused at once.
	FormsDeclined     bool `json:",omitzero"`
	ApprovalsDeclined bool `json:",omitzero"`
	// Hops counts the agents that the question has passed through.
	Hops int `json:",omitzero"`
	// Record holds what the API format needs to encode the run again; it is stored with the run.
	Record []byte `json:",omitzero"`

	// IdempotencyKey, if set, makes a repeated request with the same key and Fingerprint attach
	// to the run of the first request. The first FingerprintPathBytes of the Fingerprint are a
	// digest of the path, the others a digest of the body.
	IdempotencyKey string   `json:",omitzero"`
	Fingerprint    [32]byte `json:",omitzero"`

	namedAgent *namedAgent // set by applyAgent; the checkpoint has its definition
	earlier    []Message   // the earlier turns of the thread, also in the checkpoint; nil until beginTurn has read them
	parent     parentCall  // the call for which a child run works, also in the checkpoint; zero for any other run

	newThread    bool // ThreadID was created for this request, so the thread has no other run
	threadExists bool // other runs have begun the thread, or may have: it must not be deleted with this run
}

// FingerprintPathBytes is the number of bytes at the beginning of a Fingerprint that represent the request's path; the
// rest represents its body.
const FingerprintPathBytes = 8

// reusedKeyError returns the error for two different requests with the same idempotency key: ErrKeyElsewhere if their
// paths differ, otherwise ErrKeyReused.
func reusedKeyError(earlier, later [32]byte) error {
	if [FingerprintPathBytes]byte(earlier[:]) != [FingerprintPathBytes]byte(later[:]) {
		return ErrKeyElsewhere
	}
	return ErrKeyReused
}

// ToolChoice says whether the model may, must not or must call tools.
type ToolChoice = llm.ToolChoice

// The choices of a request; "" is ToolAuto.
const (
	ToolAuto     = llm.Auto
	ToolNone     = llm.None
	ToolRequired = llm.Required
)

// ServerPrompt names a prompt of an MCP server, and its arguments.
type ServerPrompt struct {
	Server, Name string
	Arguments    map[string]string
}

// Types of package llm that are part of a request.
type (
	Media      = llm.Media
	Sampling   = llm.Sampling
	ClientTool = llm.Tool
	ClientCall = llm.ToolCall
)

// Message is one message before the question.
type Message = thread.Message

// Budget limits one run; zero fields mean no limit.
type Budget = budget.Limits

// size returns how many bytes of memory the texts and media of the request need, its thread's earlier turns included.
func (r *Request) size() int {
	n := len(r.Question) + len(r.Instructions) + len(r.OutputSchema) + mediaSize(r.Media)
	return n + sizeOf(r.History) + sizeOf(r.earlier)
}

// sizeOf returns the size of messages in bytes: their texts, media and arguments.
func sizeOf(messages []Message) (n int) {
	for _, m := range messages {
		n += len(m.Content) + mediaSize(m.Media)
		for _, c := range m.Calls {
			n += len(c.Arguments)
		}
	}
	return n
}

// mediaSize returns the size of media in bytes of base64; media that are URLs count 0.
func mediaSize(media []Media) (n int) {
	for _, m := range media {
		n += len(m.Data)
	}
	return n
}

// restrictsTools reports whether the request itself limits which servers' tools it may use, or allows none.
func (r Request) restrictsTools() bool {
	return r.ToolChoice == ToolNone || r.Servers != nil || r.Tools != nil || r.ServerTools != nil
}

// filterTools returns those of the servers' tools in all that the request and its agent may use. It may return all
// itself, so the caller must not change the result.
func (r Request) filterTools(all []catalog.Tool) []catalog.Tool {
	if r.ToolChoice == ToolNone {
		return nil
	}
	if r.namedAgent != nil {
		all = r.namedAgent.FilterTools(all)
	}
	if !r.restrictsTools() {
		return all
	}
	var out []catalog.Tool
	for _, t := range all {
		if matches(r.Servers, t.Server) && matches(r.Tools, t.Name) && matches(r.ServerTools[t.Server], t.Name) {
			out = append(out, t)
		}
	}
	return out
}

// matches reports whether one of globs matches name. nil globs match every name, and a malformed glob none.
func matches(globs []string, name string) bool {
	for _, g := range globs {
		if ok, err := path.Match(g, name); ok && err == nil {
			return true
		}
	}
	return globs == nil
}

// newID returns prefix, an underscore and 130 random bits in base32, so that the id of one run does not help to guess
// another. Its characters are safe in URLs, event streams and NATS subjects.
func newID(prefix string) string {
	return prefix + "_" + strings.ToLower(rand.Text())
}

// MaxClientTools limits the tools in one request.
const MaxClientTools = 128

// AddClientTool adds a tool that the caller executes. A missing or null schema means no arguments. It refuses an
// invalid or repeated name, and a schema that is not an object. The pointer of the error is /name or /parameters,
// relative to the tool, because each API format has its own layout for tools.
func (r *Request) AddClientTool(tool ClientTool) *InvalidError {
	if !IsToolName(tool.Name) {
		return &InvalidError{"/name", "must be 1 to 64 letters, digits, _ or -"}
	}
	if slices.ContainsFunc(r.ClientTools, func(c ClientTool) bool { return c.Name == tool.Name }) {
		return &InvalidError{"/name", "given twice"}
	}
	if len(tool.Schema) == 0 || string(tool.Schema) == "null" {
		tool.Schema = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	if tool.Schema[0] != '{' { // a json.RawMessage that was decoded has no leading white space
		return &InvalidError{"/parameters", "must be a JSON Schema object"}
	}
	r.ClientTools = append(r.ClientTools, tool)
	return nil
}

// Bounds of the metadata of a request, in members and bytes.
const (
	maxPairs    = 32
	maxPairName = 64
	maxPairText = 1024
)

// SetMetadata sets the texts that come back with the run. If they exceed the bounds, it returns an error whose pointer
// is /metadata.
func (r *Request) SetMetadata(metadata map[string]string) *InvalidError {
	if len(metadata) > maxPairs {
		return &InvalidError{"/metadata", fmt.Sprintf("must not have more than %d members", maxPairs)}
	}
	for name, text := range metadata {
		if name == "" || len(name) > maxPairName || len(text) > maxPairText {
			return &InvalidError{"/metadata", fmt.Sprintf("must be texts of at most %d bytes under names of 1 to %d bytes", maxPairText, maxPairName)}
		}
	}
	r.Metadata = metadata
	return nil
}

// IsToolName reports whether model endpoints accept name for a function: 1 to 64 ASCII letters, digits, _ or -.
func IsToolName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for _, r := range name {
		isLetter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		isDigit := '0' <= r && r <= '9'
		if !isLetter && !isDigit && r != '_' && r != '-' {
			return false
		}
	}
	return true
}

// clientTools returns the caller's tools that the model is offered. It drops a tool that has the name of one of the
// service's tools: a caller cannot replace these, and endpoints refuse two tools with one name. The service's tools
// are those of servers, the search tool unless search is nil, and asks, the tools that ask other agents.
func (r Request) clientTools(servers *toolCatalog, search *toolsearch.Search, asks []askTool) []llm.Tool {
	if r.ToolChoice == ToolNone {
		return nil
	}
	var out []llm.Tool
	for _, t := range r.ClientTools {
		_, isServerTool := servers.ByName[t.Name]
		isSearch := search != nil && t.Name == search.Tool.Name
		if !isServerTool && !isSearch && !hasAskTool(asks, t.Name) {
			out = append(out, t)
		}
	}
	return out
}

// isClientTool reports whether the caller executes the calls of the tool with that name.
func (l *loop) isClientTool(name string) bool {
	return slices.ContainsFunc(l.clientTools, func(t llm.Tool) bool { return t.Name == name })
}

// NewMedia parses a file of a request: address is a data: URL (RFC 2397) in base64, or the https: URL of an image. The
// model's endpoint fetches an https: URL; the agent does not.
func NewMedia(name, address string) (Media, error) { return attachment.FromURL(name, address) }

// NewFile parses a file of a request whose media type is known; name and address are as for NewMedia. It refuses the
// https: URL of any file but an image, because model endpoints fetch only images.
func NewFile(name, mediaType, address string) (Media, error) {
	media, err := NewMedia(name, address)
	if err == nil && media.URL != "" && !strings.HasPrefix(strings.ToLower(mediaType), "image/") {
		return Media{}, errNotInline
	}
	return media, err
}

// errNotInline refuses a file that is not an image and is given by its https: URL.
var errNotInline = errors.New("must be a data: URL, because only an image can be given by its https: URL")

const (
	// HopsKey names the member of an MCP request's _meta that counts the agents that a question has passed through.
	HopsKey = mcp.MetaPrefix + "hops"
	// MaxHops limits that count. Agents that have each other as tools could otherwise call each
	// other without end, and every question costs a model call.
	MaxHops = 3
)

// ErrTooManyHops means that the question has passed through more than MaxHops agents.
var ErrTooManyHops = errors.New("the question has come through too many agents")

// ParseHops returns how many agents a call has passed through, according to HopsKey in its _meta: 0 if the member is
// missing, and at most MaxHops+1. ok is false if the member is not a count; only a client that tries to evade the
// limit sends such a value.
func ParseHops(meta map[string]any) (hops int, ok bool) {
	member, given := meta[HopsKey]
	if !given {
		return 0, true
	}
	count, isNumber := member.(float64)
	if !isNumber || count < 0 || count != math.Trunc(count) {
		return 0, false
	}
	return int(min(count, MaxHops+1)), true
}

// ContinueTrace returns ctx within the trace that carrier names in the W3C trace context format. It returns ctx
// unchanged if carrier names no valid trace, or if ctx is already in that trace: its own span is then a descendant.
func ContinueTrace(ctx context.Context, carrier map[string]string) context.Context {
	remote := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier(carrier))
	span := trace.SpanContextFromContext(remote)
	if !span.IsValid() || span.TraceID() == trace.SpanContextFromContext(ctx).TraceID() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, span)
}

// JSONInteger decodes a whole number of a request, in any API format. It accepts 5.0 and 5e0 as 5, which encoding/json
// refuses for an int64. JSON has one number type, and JSON Schema counts these numbers as integers (2020-12 Core,
// section 4.2.3), so the type "integer" of the OpenAPI document allows them.
type JSONInteger int64

// maxExactInteger bounds numbers that are written with a fraction or an exponent. They are parsed as float64, in which
// a greater number may be the result of rounding (RFC 7493, section 2.2).
const maxExactInteger = 1<<53 - 1

// ParseJSONInteger parses a JSON number; ok is false if text is not a whole number.
func ParseJSONInteger(text string) (n JSONInteger, ok bool) {
	if !json.Valid([]byte(text)) {
		return 0, false
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return JSONInteger(i), true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > maxExactInteger {
		return 0, false
	}
	return JSONInteger(f), true
}

// UnmarshalJSON sets w to the whole number in data, in one of the forms that ParseJSONInteger accepts. As for an int64,
// null leaves w unchanged, and any other value gives the error of package json.
func (w *JSONInteger) UnmarshalJSON(data []byte) error {
	if n, ok := ParseJSONInteger(string(data)); ok {
		*w = n
		return nil
	}
	return json.Unmarshal(data, (*int64)(w))
}

// OnBusy says what happens with a question while a run of its thread is active.
type OnBusy string

// parentCall identifies the call for which a child run works.
type parentCall struct {
	Run   string `json:"run,omitempty"`   // the parent run; "" if the run is not a child run
	Call  string `json:"call,omitempty"`  // the id of the call in the parent run
	Level int    `json:"level,omitempty"` // how many parents the run has, directly and indirectly
}

// nextHops returns how many agents the question has passed through when the call arrives, this agent included.
func (exec *toolExecution) nextHops() int {
	if exec.loop == nil {
		return 1
	}
	return exec.loop.run.req.Hops + 1
}

// questionText returns the text of the question. If the request has no question, because its history ends with results
// of the caller's tools, it returns the user's last message.
func (r Request) questionText() string {
	if r.Question != "" || len(r.Media) > 0 {
		return r.Question
	}
	for _, m := range slices.Backward(slices.Concat(r.earlier, r.History)) {
		if strings.EqualFold(m.Role, string(llm.User)) {
			return m.Content
		}
	}
	return ""
}

// canAnswer reports whether the people who answer the run's interrupts can answer one of that kind (event.KindApproval,
// event.KindElicitation or event.KindBudget).
func (r Request) canAnswer(kind string) bool {
	switch kind {
	case event.KindElicitation:
		return r.Interactive && !r.FormsDeclined
	case event.KindApproval:
		return r.Interactive && !r.ApprovalsDeclined
	case event.KindBudget:
		return r.Interactive && r.AskAtLimit
	}
	return r.Interactive
}
