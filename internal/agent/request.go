package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/agent/budget"
	"answerd/internal/auth"
	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// Request is one question to the agent, in whichever API format it came.
type Request struct {
	// Question may be empty where the history ends with results of the client's tools:
	// the question is then the one before.
	Question string
	Media    []Media // belongs to the question
	History  []Message
	// Instructions of the caller come after the system prompt, which stays.
	Instructions string
	Model        string
	Sampling     Sampling
	MaxTokens    int64 // of each model answer; 0 leaves it to the model's profile
	// ToolNone answers with text only; ToolRequired makes the model call a tool
	// in the first turn.
	ToolChoice ToolChoice
	// Servers and Tools narrow what may be used: names of servers, and globs
	// (path.Match) on the names of tools. nil means all, an empty list none. They never widen.
	Servers []string
	Tools   []string
	// ClientTools are the caller's own. A turn that calls one ends the run; the results
	// come with the history of the next question. One with the name of a server's tool
	// is not offered. ForcedTool, if set, is the tool that the first turn must call.
	ClientTools []ClientTool
	ForcedTool  string
	// MaxTurns lowers the agent's own limit; 0 leaves it.
	MaxTurns int
	Budget   Budget
	// AskAtLimit says that those who answer can raise the request's own budget, and are to be
	// asked when the run reaches one of its limits. Without it the run sums up.
	AskAtLimit bool
	// Context goes to the MCP servers with every call.
	Context map[string]string
	// Prompt is a prompt of an MCP server whose messages come right before the question.
	Prompt     *ServerPrompt
	ThreadID   string
	Metadata   map[string]string
	Background bool
	// Interactive says that somebody can answer while the run goes on: calls that need
	// approval, and what MCP servers ask. Without it the answer is no, at once.
	Interactive bool
	// Awaited says that its caller waits for the whole answer, and is told to come back for
	// it if a person has to be asked: from then on the run needs no reader.
	Awaited bool
	// FormsDeclined says that those who answer can approve calls, and fill in no forms.
	FormsDeclined bool
	// ApprovalsDeclined says that they can fill in forms, and approve nothing.
	ApprovalsDeclined bool
	// Hops is how many agents the question came through on its way here.
	Hops int
	// Record is what the API format needs again to encode the run; it is stored with the run.
	Record []byte

	// IdempotencyKey, if set, makes a second request with the same key and
	// Fingerprint attach to the first one's run. The first FingerprintPathBytes of the
	// Fingerprint are a digest of the path, the others of the body.
	IdempotencyKey string
	Fingerprint    [32]byte
}

// ToolChoice says whether the model may, must not or must call tools.
type ToolChoice = llm.ToolChoice

// The choices of a request; "" is ToolAuto.
const (
	ToolAuto     = llm.Auto
	ToolNone     = llm.None
	ToolRequired = llm.Required
)

// ServerPrompt names a prompt of an MCP server, and what to fill it in with.
type ServerPrompt struct {
	Server, Name string
	Arguments    map[string]string
}

// What a request says of the model, in llm's terms.
type (
	Media      = llm.Media
	Sampling   = llm.Sampling
	ClientTool = llm.Tool
	ClientCall = llm.ToolCall
)

// Budget bounds one run; a zero field is no limit.
type Budget = budget.Limits

// Message is one turn of the history.
type Message struct {
	Role    string
	Content string
	Media   []Media      // of the user
	Calls   []ClientCall // of the assistant: calls of the client's tools
	CallID  string       // of a tool: the call whose result it is
}

// validateRequest sets the defaults of r, and refuses a request that can never run.
func (a *Agent) validateRequest(owner auth.Identity, r *Request) error {
	if r.Hops > MaxHops {
		return ErrTooManyHops
	}
	if r.Model == "" {
		r.Model = a.DefaultModel
	}
	if _, served := a.Profiles[r.Model]; !served && len(a.Profiles) > 0 {
		return &InvalidError{"/model", "not one of the models that are served"}
	}
	if access := a.Rules.Of(owner); access.Nothing() || !access.Model(r.Model) {
		return ErrForbidden
	}
	if err := r.validateQuestion(); err != nil {
		return err
	}
	if r.ThreadID == "" {
		r.ThreadID = newID("thr")
	}
	if r.MaxTurns <= 0 || r.MaxTurns > a.MaxTurns {
		r.MaxTurns = a.MaxTurns
	}
	if err := a.validateCostLimit(*r); err != nil {
		return err
	}
	r.Budget = r.Budget.Within(a.Budget)
	known := make(map[string]bool)
	for _, s := range a.ServersFor(owner) {
		known[s.Name] = true
	}
	for i, name := range r.Servers {
		if !known[name] {
			return &InvalidError{fmt.Sprintf("/servers/%d", i), "no MCP server has this name"}
		}
	}
	if r.Prompt != nil && !known[r.Prompt.Server] {
		return &InvalidError{"/prompt/server", "no MCP server has this name"}
	}
	for i, glob := range r.Tools {
		if _, err := path.Match(glob, ""); err != nil {
			return &InvalidError{fmt.Sprintf("/tools/%d", i), "not a valid pattern"}
		}
	}
	return nil
}

// restrictsTools reports whether the request may not use every tool.
func (r Request) restrictsTools() bool {
	return r.ToolChoice == ToolNone || r.Servers != nil || r.Tools != nil
}

// filterTools returns those of all tools that the request may use.
func (r Request) filterTools(all []catalog.Tool) []catalog.Tool {
	if r.ToolChoice == ToolNone {
		return nil
	}
	var out []catalog.Tool
	for _, t := range all {
		if matches(r.Servers, t.Server) && matches(r.Tools, t.Name) {
			out = append(out, t)
		}
	}
	return out
}

// matches reports whether one of globs matches name; nil matches every name.
func matches(globs []string, name string) bool {
	for _, g := range globs {
		if ok, err := path.Match(g, name); ok && err == nil {
			return true
		}
	}
	return globs == nil
}

// newID returns an id of 130 random bits, so that knowing one run tells nothing of
// another. Its letters are safe in URLs, event streams and NATS subjects.
func newID(prefix string) string {
	return prefix + "_" + strings.ToLower(rand.Text())
}

// MaxClientTools bounds the tools that a caller may bring.
const MaxClientTools = 128

// AddClientTool adds a tool that the caller executes. A schema that is missing or null means no
// arguments. The error points at /name or /parameters; each API format writes tools in its own
// way.
func (r *Request) AddClientTool(t ClientTool) *InvalidError {
	switch {
	case !IsToolName(t.Name):
		return &InvalidError{"/name", "must be 1 to 64 letters, digits, _ or -"}
	case slices.ContainsFunc(r.ClientTools, func(c ClientTool) bool { return c.Name == t.Name }):
		return &InvalidError{"/name", "given twice"}
	case len(t.Schema) == 0 || string(t.Schema) == "null":
		t.Schema = json.RawMessage(`{"type":"object","properties":{}}`)
	case t.Schema[0] != '{':
		return &InvalidError{"/parameters", "must be a JSON Schema object"}
	}
	r.ClientTools = append(r.ClientTools, t)
	return nil
}

// IsToolName reports whether model endpoints accept s as the name of a function.
func IsToolName(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}

// clientTools returns the caller's tools that the model is offered. A tool of the operator wins over
// one of the same name: a caller cannot replace it.
func (r Request) clientTools(ours *toolCatalog, search *toolSearch) []llm.Tool {
	if r.ToolChoice == ToolNone {
		return nil
	}
	var out []llm.Tool
	for _, t := range r.ClientTools {
		_, taken := ours.byName[t.Name]
		if !taken && (search == nil || t.Name != search.tool.Name) {
			out = append(out, t)
		}
	}
	return out
}

// isClientTool reports whether the caller executes the calls of that tool.
func (l *loop) isClientTool(name string) bool {
	return slices.ContainsFunc(l.clientTools, func(t llm.Tool) bool { return t.Name == name })
}

// validateForcedTool refuses a request whose model must call a tool that it is not offered. The
// endpoint would refuse it too, but less clearly.
func (a *Agent) validateForcedTool(ctx context.Context, caller auth.Identity, r Request) error {
	if r.ForcedTool == "" {
		return nil
	}
	all := a.toolCatalogs.catalogFor(a.ToolsFor(ctx, caller), r)
	_, ours := all.byName[r.ForcedTool]
	named := func(t ClientTool) bool { return t.Name == r.ForcedTool }
	if ours || slices.ContainsFunc(r.clientTools(all, nil), named) {
		return nil
	}
	return &InvalidError{"/tool_choice", "there is no tool of this name"}
}

var errMediaURL = errors.New("must be a data: URL with a PNG, JPEG, GIF or WebP image or WAV or MP3 sound in base64, or the https: URL of an image")

// NewMedia reads an image or audio as callers send it: a data: URL (RFC 2397) in base64, or an
// https: URL, which the model's endpoint fetches and the agent never does.
func NewMedia(address string) (Media, error) {
	rest, inline := strings.CutPrefix(address, "data:")
	if !inline {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return Media{}, errMediaURL
		}
		return Media{URL: address}, nil
	}
	kind, data, ok := strings.Cut(rest, ";base64,")
	if !ok || data == "" {
		return Media{}, errMediaURL
	}
	m, err := (&content.Media{MIME: kind, Data: data}).Normalize()
	if err != nil {
		return Media{}, errMediaURL
	}
	return Media{MIME: m.MIME, Data: m.Data}, nil
}

const (
	// HopsKey is the entry of an MCP request's _meta that says how many agents a question
	// has come through. Names before the slash are reversed domains (MCP basic, _meta).
	HopsKey = "io.answerd/hops"
	// MaxHops is how many it may be. Agents that have each other for tools would go on
	// for ever, and each of their questions costs a model.
	MaxHops = 3
)

// ErrTooManyHops: the question has come through more than MaxHops agents.
var ErrTooManyHops = errors.New("the question has come through too many agents")

// ParseHops returns how many agents a call came through, by its _meta. ok is false if the entry is
// not a count: only a client that wants to avoid the limit writes something else.
func ParseHops(meta map[string]any) (hops int, ok bool) {
	v, given := meta[HopsKey]
	if !given {
		return 0, true
	}
	n, ok := v.(float64)
	if !ok || n < 0 || n != math.Trunc(n) {
		return 0, false
	}
	return int(min(n, MaxHops+1)), true
}

// nextHops returns the number of agents for the _meta of a call.
func (x *toolExecution) nextHops() int {
	if x.loop == nil {
		return 1
	}
	return x.loop.run.req.Hops + 1
}

// ContinueTrace returns ctx within the trace that carrier names, as W3C trace context. If ctx is in
// that trace already, it is returned as it is, since its span is nearer.
func ContinueTrace(ctx context.Context, carrier map[string]string) context.Context {
	of := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier(carrier))
	span := trace.SpanContextFromContext(of)
	if !span.IsValid() || span.TraceID() == trace.SpanContextFromContext(ctx).TraceID() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, span)
}

// validateCostLimit refuses a limit on the cost of a model without a price: it would never be
// reached.
func (a *Agent) validateCostLimit(r Request) error {
	switch {
	case a.Profiles[r.Model].Price != nil:
		return nil
	case r.Budget.Cost > 0:
		return &InvalidError{"/budget/cost", "no price is configured for this model"}
	case a.Budget.Cost > 0:
		return &InvalidError{"/model", "no price is configured for this model, and the cost of every run is limited"}
	}
	return nil
}

// JSONInteger is a whole number of a request, in whichever API format. JSON has one kind of
// number: 5.0 and 5e0 are the integer 5 (JSON Schema 2020-12 Core, 4.2.3), and so they are in
// the OpenAPI document, which says "integer". encoding/json would refuse them for an int64.
type JSONInteger int64

// maxExactInteger is the largest number that may be written as a fraction or with an exponent: a
// larger one may have been another number before it was rounded (RFC 7493 section 2.2).
const maxExactInteger = 1<<53 - 1

// ParseJSONInteger reads a JSON number; ok is false if text is not a number, or not a whole one.
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

// UnmarshalJSON implements json.Unmarshaler. Its errors are those of an int64.
func (w *JSONInteger) UnmarshalJSON(data []byte) error {
	if n, ok := ParseJSONInteger(string(data)); ok {
		*w = n
		return nil
	}
	return json.Unmarshal(data, (*int64)(w))
}
