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
	"unicode/utf8"

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

// Request is one question to the agent, independent of the API format in which it arrived.
type Request struct {
	// Question may be empty if History ends with results of ClientTools. The run then continues to answer the previous
	// question.
	Question string  `json:",omitzero"`
	Media    []Media `json:",omitzero"` // files that belong to the question
	// OnlyAcceptedMedia refuses the request if the model does not accept one of Media. Otherwise the model gets a line
	// of text instead of each file that it does not accept.
	OnlyAcceptedMedia bool      `json:",omitzero"`
	History           []Message `json:",omitzero"`
	// ContinueThread puts the thread's earlier turns before History. A nil History with a ThreadID has the same effect;
	// an empty one means that nothing came before. AfterRun names the run whose turn is the last of these earlier
	// turns; "" means the newest turn.
	ContinueThread bool   `json:",omitzero"`
	AfterRun       string `json:",omitzero"`
	// KeepHistory adds History to the turn of this run, so that the thread's later questions continue it. It is for the
	// first question of a thread: later ones would add what the thread has already.
	KeepHistory bool `json:",omitzero"`
	// OnBusy says what to do while another run of the thread is active; "" refuses the question.
	OnBusy OnBusy `json:",omitzero"`
	// Instructions from the API client follow the system prompt; they do not replace it.
	Instructions string `json:",omitzero"`
	// OutputSchema is the JSON Schema that the answer must match; empty means that the answer is free text.
	OutputSchema json.RawMessage `json:",omitempty"` // omitempty: in a checkpoint, null would not be read as empty
	// Agent is the id of a named agent; "" means the default agent. The agent's definition completes and restricts the
	// request.
	Agent     string   `json:",omitzero"`
	Model     string   `json:",omitzero"`
	Sampling  Sampling `json:",omitzero"`
	MaxTokens int64    `json:",omitzero"` // per model answer; 0 means the limit in the model's profile
	// ToolNone offers no tools. ToolRequired makes the model call a tool in the first turn.
	ToolChoice ToolChoice `json:",omitzero"`
	// Servers and Tools restrict the tools: by names of servers, and by globs (path.Match) for names of tools. nil
	// means all, an empty list means none. They cannot allow more than the access rules do.
	Servers []string `json:",omitzero"`
	Tools   []string `json:",omitzero"`
	// ServerTools restricts the tools of single servers further. It maps a server's name to globs for its tools' names.
	ServerTools map[string][]string `json:",omitzero"`
	// AllowedTools restricts the tools of servers and agents further, to these names, each of which must exist; nil
	// means all. Unlike Tools, it does not restrict the runs of agents that this run asks.
	AllowedTools []string `json:",omitzero"`
	// ClientTools are tools that the API client executes. A turn that calls one ends the run, and the result arrives in
	// the History of the next request. A client tool with the name of another tool is not offered. ForcedTool, if set,
	// names the tool that the model must call in the first turn.
	ClientTools []ClientTool `json:",omitzero"`
	ForcedTool  string       `json:",omitzero"`
	// MaxTurns lowers the agent's limit; 0 keeps it.
	MaxTurns int    `json:",omitzero"`
	Budget   Budget `json:",omitzero"`
	// AskAtLimit means that the people who answer interrupts may raise the run's budget. They are asked when the run
	// reaches one of its limits. Without AskAtLimit, the run then ends with a summary.
	AskAtLimit bool `json:",omitzero"`
	// Context is sent to the MCP servers with every call.
	Context map[string]string `json:",omitzero"`
	// Prompt names a prompt of an MCP server. Its messages are inserted just before the question.
	Prompt     *ServerPrompt     `json:",omitzero"`
	ThreadID   string            `json:",omitzero"`
	Metadata   map[string]string `json:",omitzero"`
	Background bool              `json:",omitzero"`
	// Callback is a URL that gets a POST when the run has ended; "" means none.
	Callback string `json:",omitempty"`
	// Interactive means that a person can answer interrupts during the run, such as approvals and questions from MCP
	// servers. Without it, each interrupt is refused at once.
	Interactive bool `json:",omitzero"`
	// Awaited means that the API client waits for the whole answer. If a person must be asked, the client is asked to
	// fetch the answer later, and from then on the run needs no reader.
	Awaited bool `json:",omitzero"`
	// FormsDeclined means that the people who answer interrupts cannot fill in forms, and ApprovalsDeclined means that
	// they cannot approve calls. Interrupts of these kinds are refused at once.
	FormsDeclined     bool `json:",omitzero"`
	ApprovalsDeclined bool `json:",omitzero"`
	// Hops is how many agents the question has passed through.
	Hops int `json:",omitzero"`
	// Record holds what the API format needs to encode the run again. The log stores it with the run.
	Record []byte `json:",omitzero"`

	// IdempotencyKey, if set, makes a repeated request with the same key and Fingerprint return the run that the first
	// request started. The first FingerprintPathBytes of Fingerprint are a digest of the request's path, the rest is a
	// digest of its body.
	IdempotencyKey string   `json:",omitzero"`
	Fingerprint    [32]byte `json:",omitzero"`

	namedAgent *namedAgent // set by applyAgent; a checkpoint stores its definition
	earlier    []Message   // the thread's earlier turns; nil until beginTurn has read them; stored in checkpoints
	parent     parentCall  // the call that started a child run; zero for other runs; stored in checkpoints

	newThread    bool // ThreadID was made up for this request, so the thread has no other run
	threadExists bool // other runs may have begun the thread, so it must not be deleted with this run
}

// FingerprintPathBytes is how many bytes at the beginning of a Fingerprint are a digest of the request's path. The rest
// is a digest of its body.
const FingerprintPathBytes = 8

// reusedKeyError returns the error for two different requests with the same idempotency key: ErrKeyElsewhere if their
// paths differ, and otherwise ErrKeyReused.
func reusedKeyError(earlier, later [32]byte) error {
	if [FingerprintPathBytes]byte(earlier[:]) != [FingerprintPathBytes]byte(later[:]) {
		return ErrKeyElsewhere
	}
	return ErrKeyReused
}

// ToolChoice says whether the model may, must not or must call tools.
type ToolChoice = llm.ToolChoice

// The possible choices; "" means ToolAuto.
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

// size returns how many bytes of texts and media the request holds, including the thread's earlier turns.
func (r *Request) size() int {
	n := len(r.Question) + len(r.Instructions) + len(r.OutputSchema) + mediaSize(r.Media)
	return n + sizeOf(r.History) + sizeOf(r.earlier)
}

// sizeOf returns the size of messages in bytes: texts, media and calls' arguments.
func sizeOf(messages []Message) (n int) {
	for _, m := range messages {
		n += len(m.Content) + mediaSize(m.Media)
		for _, c := range m.Calls {
			n += len(c.Arguments)
		}
	}
	return n
}

// mediaSize returns the size of media in bytes of base64. Media that are given by URL count 0.
func mediaSize(media []Media) (n int) {
	for _, m := range media {
		n += len(m.Data)
	}
	return n
}

// restrictsTools reports whether the request limits which of the servers' tools it may use, or allows none.
func (r Request) restrictsTools() bool {
	return r.ToolChoice == ToolNone || r.Servers != nil || r.Tools != nil || r.ServerTools != nil || r.AllowedTools != nil
}

// filterTools returns those tools in all that the request and its agent may use. The result may be all itself, so the
// caller must not change it.
func (r Request) filterTools(all []catalog.Tool) []catalog.Tool {
	if r.ToolChoice == ToolNone {
		return nil
	}
	all = r.namedAgent.FilterTools(all)
	if !r.restrictsTools() {
		return all
	}
	var out []catalog.Tool
	for _, t := range all {
		if matches(r.Servers, t.Server) && r.matchesTool(t.Name) && matches(r.ServerTools[t.Server], t.Name) {
			out = append(out, t)
		}
	}
	return out
}

// matchesTool reports whether Tools and AllowedTools allow the tool called name, of a server or of another agent.
func (r Request) matchesTool(name string) bool {
	return matches(r.Tools, name) && matches(r.AllowedTools, name)
}

// matches reports whether one of globs matches name. nil matches every name; a malformed glob matches none.
func matches(globs []string, name string) bool {
	for _, g := range globs {
		if ok, err := path.Match(g, name); ok && err == nil {
			return true
		}
	}
	return globs == nil
}

// newID returns prefix, an underscore and 130 random bits in base32. The ids are random so that one cannot be guessed
// from another. Their characters are safe in URLs, event streams and NATS subjects.
func newID(prefix string) string {
	return prefix + "_" + strings.ToLower(rand.Text())
}

// MaxClientTools is how many client tools one request may have.
const MaxClientTools = 128

const maxArgs = 64 << 10 // bytes of one call's arguments

// argsLimit returns how many bytes the arguments of one call may have: maxArgs, or more for a tool of the API client,
// which may write a whole file.
func argsLimit(byClient bool) int {
	if byClient {
		return 256 << 10
	}
	return maxArgs
}

// AddClientTool adds a tool that the API client executes. A missing or null schema means no arguments. The error
// reports an invalid or repeated name, or a schema that is not an object. Its pointer is /name or /parameters, relative
// to the tool, because the tool's place depends on the API format.
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

// AllowOnly restricts the tools that the model may call to names: it removes all other ClientTools, and sets
// AllowedTools to the names that no client tool has. All names must be valid (IsToolName).
func (r *Request) AllowOnly(names []string) {
	r.AllowedTools = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(r.ClientTools, func(t ClientTool) bool { return t.Name == name })
	})
	r.ClientTools = slices.DeleteFunc(r.ClientTools, func(t ClientTool) bool { return !slices.Contains(names, t.Name) })
}

// Limits on a request's metadata, in members and characters.
const (
	maxPairs    = 32
	maxPairName = 64
	maxPairText = 1024
)

// SetMetadata sets the texts that are returned with the run. If they exceed the limits, it returns an error with the
// pointer /metadata.
func (r *Request) SetMetadata(metadata map[string]string) *InvalidError {
	if len(metadata) > maxPairs {
		return &InvalidError{"/metadata", fmt.Sprintf("must not have more than %d members", maxPairs)}
	}
	for name, text := range metadata {
		if name == "" || utf8.RuneCountInString(name) > maxPairName || utf8.RuneCountInString(text) > maxPairText {
			return &InvalidError{"/metadata", fmt.Sprintf("must be texts of at most %d characters under names of 1 to %d characters", maxPairText, maxPairName)}
		}
	}
	r.Metadata = metadata
	return nil
}

// TakeQuestion makes the last message of the history the question. If no other message is left, the history becomes nil,
// so that the question continues its thread.
func (r *Request) TakeQuestion() {
	last := len(r.History) - 1
	r.Question, r.Media, r.History = r.History[last].Content, r.History[last].Media, r.History[:last]
	if last == 0 {
		r.History = nil
	}
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

// clientTools returns the API client's tools that the model is offered. It drops a tool whose name the service already
// uses, for a server's tool, for the search tool (unless search is nil) or for one of asks, the tools that ask other
// agents: API clients must not replace the service's tools, and endpoints refuse two tools with the same name.
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

// isClientTool reports whether the API client executes calls of the tool called name.
func (l *loop) isClientTool(name string) bool {
	return slices.ContainsFunc(l.clientTools, func(t llm.Tool) bool { return t.Name == name })
}

// NewMedia parses a file in a request. address is a base64 data: URL (RFC 2397), or the https: URL of an image. The
// model's endpoint fetches an https: URL; the agent does not.
func NewMedia(name, address string) (Media, error) { return attachment.FromURL(name, address) }

// NewFile parses a file whose media type is known. name and address are as for NewMedia. It refuses an https: URL
// unless the file is an image, because model endpoints fetch only images.
func NewFile(name, mediaType, address string) (Media, error) {
	media, err := NewMedia(name, address)
	if err == nil && media.URL != "" && !strings.HasPrefix(strings.ToLower(mediaType), "image/") {
		return Media{}, errNotInline
	}
	return media, err
}

// errNotInline refuses a file that is given by an https: URL but is not an image.
var errNotInline = errors.New("must be a data: URL, because only an image can be given by its https: URL")

const (
	// HopsKey is the member of an MCP request's _meta that counts how many agents the question has passed through.
	HopsKey = mcp.MetaPrefix + "hops"
	// MaxHops is the highest count that is accepted. Without a limit, agents that have each other as tools could call
	// each other forever, and every question costs a model call.
	MaxHops = 3
)

// ErrTooManyHops means that the question has passed through more than MaxHops agents.
var ErrTooManyHops = errors.New("the question has come through too many agents")

// ParseHops reads from a call's _meta (HopsKey) how many agents the question has passed through. It returns 0 if the
// member is missing, and at most MaxHops+1. ok is false if the member is not a count; only a client that tries to evade
// the limit sends such a value.
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

// ContinueTrace returns ctx with the trace that carrier contains in the W3C trace context format. It returns ctx
// unchanged if carrier contains no valid trace, or if ctx is already in that trace, because the span in ctx is then a
// descendant of the one in carrier.
func ContinueTrace(ctx context.Context, carrier map[string]string) context.Context {
	remote := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier(carrier))
	span := trace.SpanContextFromContext(remote)
	if !span.IsValid() || span.TraceID() == trace.SpanContextFromContext(ctx).TraceID() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, span)
}

// JSONInteger decodes a whole number in a request, in any API format. Unlike an int64, it also accepts 5.0 and 5e0 for
// 5. JSON has only one number type, and JSON Schema counts these numbers as integers (2020-12 Core, section 4.2.3), so
// the type "integer" in the OpenAPI document allows them.
type JSONInteger int64

// maxExactInteger is the highest number that may be written with a fraction or an exponent. Such numbers are parsed as
// float64, where a higher number may have been rounded (RFC 7493, section 2.2).
const maxExactInteger = 1<<53 - 1

// ParseJSONInteger parses a JSON number. ok is false if text is not a whole number or is out of range.
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

// UnmarshalJSON accepts the forms that ParseJSONInteger accepts. As for an int64, null leaves w unchanged, and any
// other value results in the error of package json.
func (w *JSONInteger) UnmarshalJSON(data []byte) error {
	if n, ok := ParseJSONInteger(string(data)); ok {
		*w = n
		return nil
	}
	return json.Unmarshal(data, (*int64)(w))
}

// OnBusy says what to do with a question while another run of its thread is active.
type OnBusy string

// The values of OnBusy.
const (
	BusyRefuse OnBusy = ""       // refuse the question
	BusyQueue  OnBusy = "queue"  // wait for the end of the active run, but not longer than Options.InputTimeout
	BusyCancel OnBusy = "cancel" // cancel the active run
)

// parentCall identifies the call that started a child run.
type parentCall struct {
	Run   string `json:"run,omitempty"`   // the parent run; "" if the run is not a child run
	Call  string `json:"call,omitempty"`  // the id of the call in the parent run
	Level int    `json:"level,omitempty"` // how many runs are above this one, counting indirect parents
}

// questionText returns the question's text. If the request has no question, because its history ends with results of
// the API client's tools, questionText returns the last user message.
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

// canAnswer reports whether the people who answer the run's interrupts can answer one of this kind (event.KindApproval,
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
