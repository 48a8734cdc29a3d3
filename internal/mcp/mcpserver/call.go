package mcpserver

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); hosts go on asking for it.

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The kinds of an elicitation, and the answers to it.
const (
	ModeForm = "form"
	ModeURL  = "url"

	ActionAccept  = "accept"
	ActionDecline = "decline"
	ActionCancel  = "cancel"
)

// Call is one call of the tool.
type Call struct {
	Arguments json.RawMessage // a JSON object, not checked
	Meta      map[string]any  // not checked
	Request   *http.Request   // that carries it: it has the caller's identity and headers

	// Forms and URLs say what the person before the host can be asked. Streams says how:
	// by Ask, while the call goes on, or else by a Result with InputRequests.
	SupportsForm, SupportsURL, OpenStream bool
	// State and InputResponses are those of a call that goes on with an earlier one: the State of
	// its Result, as the host gave it back, and what its InputRequests were answered with.
	RequestState   string
	InputResponses map[string]ElicitResult

	req     *sdk.CallToolRequest
	ctx     context.Context // the SDK's, which finds the stream
	session string          // "" where the protocol has none
	owner   string
}

// Elicitation is something that a person is asked.
type Elicitation struct {
	ID      string
	Mode    string // ModeForm or ModeURL
	Message string
	Schema  json.RawMessage // of a form
	URL     string
}

// ElicitResult is what the person says to it.
type ElicitResult struct {
	Action  string          // ActionAccept, ActionDecline or ActionCancel
	Content json.RawMessage // of an accepted form, a JSON object
}

// Result is what became of a call. One with InputRequests is not the end of it: they are to
// be answered by another call, which brings State back. State is shown to the host, and
// comes from it: it must not be trusted.
type Result struct {
	Text       string
	Structured any
	IsError    bool

	InputRequests []Elicitation
	RequestState  string
}

// ErrClosed is the cause of the context of a call whose handler is closed.
var ErrClosed = errors.New("the service is shutting down")

// calls are those that are under way.
type calls struct {
	mu     sync.Mutex // protects what follows
	open   map[*Call]context.CancelCauseFunc
	closed bool
}

// enter counts a call in, unless no more are taken.
func (c *calls) enter(call *Call, cancel context.CancelCauseFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.open[call] = cancel
	}
	return !c.closed
}

func (c *calls) leave(call *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, call)
}

// cancel ends the calls that please.
func (c *calls) cancel(cause error, pleases func(*Call) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for call, cancel := range c.open {
		if pleases(call) {
			cancel(cause)
		}
	}
}

// close lets no more in.
func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// call is the SDK's handler of the tool. It has no error: the host's model could not see
// one, and its person would see a protocol that broke.
func (h *Handler) call(ctx context.Context, req *sdk.CallToolRequest) (res *sdk.CallToolResult, _ error) {
	defer h.survived(ctx, &res)
	x, ok := req.Extra.TokenInfo.Extra[exchangeKey].(exchange)
	if !ok {
		return nil, errors.New("a call without a request")
	}
	x.stream.open()
	c := &Call{
		Arguments: req.Params.Arguments, Meta: req.Params.Meta, Request: x.request, RequestState: req.Params.RequestState,
		req: req, ctx: ctx, session: req.Session.ID(), owner: h.Owner(x.request),
	}
	if len(c.Arguments) == 0 {
		c.Arguments = json.RawMessage("{}")
	}
	c.OpenStream = c.session != ""
	if caps := req.ClientCapabilities(); caps != nil && caps.Elicitation != nil {
		c.SupportsURL = caps.Elicitation.URL != nil
		c.SupportsForm = caps.Elicitation.Form != nil || !c.SupportsURL // which is what it was before there were URLs
	}
	for id, given := range req.Params.InputResponses {
		if r, ok := given.(*sdk.ElicitResult); ok {
			if c.InputResponses == nil {
				c.InputResponses = make(map[string]ElicitResult)
			}
			c.InputResponses[id] = answerOf(r)
		}
	}
	// The call ends with its request (2026-07-28 has no other cancellation), and in the older
	// protocols too: without it nobody could take the result.
	own, cancel := context.WithCancelCause(x.request.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(nil) })()
	if !h.calls.enter(c, cancel) {
		return result(Result{Text: ErrClosed.Error(), IsError: true}), nil
	}
	defer h.calls.leave(c)
	return result(h.CallTool(own, c)), nil
}

// survived, deferred, keeps a panic to its call: it is in a goroutine of the SDK, and would
// end the process.
func (h *Handler) survived(ctx context.Context, res **sdk.CallToolResult) {
	if v := recover(); v != nil {
		h.Logger.ErrorContext(ctx, "panic in a tool call", "panic", v)
		*res = result(Result{Text: "Something went wrong inside the service.", IsError: true})
	}
}

func result(r Result) *sdk.CallToolResult {
	if len(r.InputRequests) == 0 {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: r.Text}}, StructuredContent: r.Structured, IsError: r.IsError}
	}
	out := &sdk.CallToolResult{InputRequests: make(sdk.InputRequestMap, len(r.InputRequests)), RequestState: r.RequestState}
	for _, q := range r.InputRequests {
		out.InputRequests[q.ID] = q.params()
	}
	return out
}

func (q Elicitation) params() *sdk.ElicitParams {
	if q.Mode == ModeURL {
		return &sdk.ElicitParams{Mode: ModeURL, Message: q.Message, URL: q.URL, ElicitationID: q.ID}
	}
	return &sdk.ElicitParams{Mode: ModeForm, Message: q.Message, RequestedSchema: q.Schema}
}

func answerOf(r *sdk.ElicitResult) ElicitResult {
	a := ElicitResult{Action: r.Action}
	if r.Action == ActionAccept && r.Content != nil {
		a.Content, _ = json.Marshal(r.Content) // which came as JSON
	}
	return a
}

// Elicit puts a question to the host's person, and waits for the answer until ctx ends. It may
// be called for several questions at a time. Only a call with Streams can ask.
func (c *Call) Elicit(ctx context.Context, q Elicitation) (ElicitResult, error) {
	asked, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	r, err := c.req.Session.Elicit(asked, q.params())
	if err != nil {
		return ElicitResult{}, err
	}
	return answerOf(r), nil
}

// Progress tells how far the call is, where the host wants to hear it. Each progress must
// be above the one before. A host that does not listen is noticed by the call's context.
func (c *Call) Progress(progress float64, message string) {
	if token := c.req.Params.GetProgressToken(); token != nil {
		_ = c.req.Session.NotifyProgress(c.ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: progress, Message: message})
	}
}

// Log sends a log message, where the host asked for messages of that level.
func (c *Call) Log(level, logger string, data json.RawMessage) {
	_ = c.req.Session.Log(c.ctx, &sdk.LoggingMessageParams{Level: sdk.LoggingLevel(level), Logger: logger, Data: data})
}

// MetaStrings are the entries of Meta that are texts.
func (c *Call) MetaStrings() map[string]string {
	out := make(map[string]string)
	for k, v := range c.Meta {
		if s, ok := v.(string); ok {
			out[k] = s
		}
	}
	return out
}
