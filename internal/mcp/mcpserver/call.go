package mcpserver

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); clients still ask for it.

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The modes of an elicitation, and the actions that answer it (MCP client/elicitation).
const (
	ModeForm = "form"
	ModeURL  = "url"

	ActionAccept  = "accept"
	ActionDecline = "decline"
	ActionCancel  = "cancel"
)

// Call is one call of a tool by an MCP client.
type Call struct {
	Tool      string          // the tool's name
	Arguments json.RawMessage // not validated against the schema; "{}" if the client sent none
	Meta      map[string]any  // the request's _meta, not validated
	Request   *http.Request   // the HTTP request, with the client's identity and headers

	// SupportsForm and SupportsURL say which elicitation modes the client supports. OpenStream says how to elicit: if
	// it is true, with Elicit while the call executes, and otherwise with a Result that has InputRequests.
	SupportsForm, SupportsURL, OpenStream bool
	// RequestState and InputResponses are set if the call continues an earlier one, whose Result had InputRequests.
	// RequestState is that Result's, as the client returned it. InputResponses has the answers by Elicitation.ID.
	RequestState   string
	InputResponses map[string]ElicitResult

	req     *sdk.CallToolRequest
	ctx     context.Context // the SDK's context of the call; the SDK finds the call's stream by it
	session string          // the session's id, or "" if the protocol version has no sessions
	owner   string          // see Options.Owner
}

// Elicitation is a question to the user of the MCP client.
type Elicitation struct {
	ID      string // unique within a Result; the key in Call.InputResponses
	Mode    string // ModeForm or ModeURL
	Message string
	Schema  json.RawMessage // with ModeForm: the form's schema
	URL     string          // with ModeURL: the page to open
}

// ElicitResult is the user's answer to an Elicitation.
type ElicitResult struct {
	Action  string          // ActionAccept, ActionDecline or ActionCancel
	Content json.RawMessage // an accepted form's content, a JSON object; otherwise nil
}

// Result is the result of a call or, if it has InputRequests, a request for input.
type Result struct {
	Text       string
	Structured any // nil, or a value whose JSON is the structured content
	IsError    bool

	// InputRequests are questions to the client's user. If there are any, the fields above are ignored. The client then
	// sends another call with the answers and with RequestState. RequestState must not be trusted when it comes back,
	// because the client can read and change it.
	InputRequests []Elicitation
	RequestState  string
}

// ErrClosed is the cause with which Close cancels the contexts of calls. Its text answers later requests.
var ErrClosed = errors.New("the service is shutting down")

// callRegistry holds the calls in flight.
type callRegistry struct {
	mu     sync.Mutex // protects all fields
	open   map[*Call]context.CancelCauseFunc
	closed bool // add rejects calls
}

// add registers a call together with the function that cancels it, and returns true. After refuseNew, it does nothing
// and returns false.
func (c *callRegistry) add(call *Call, cancel context.CancelCauseFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.open[call] = cancel
	}
	return !c.closed
}

// remove removes a call that has ended.
func (c *callRegistry) remove(call *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, call)
}

// cancelMatching cancels the calls for which match returns true. It does not wait for them to end. match must not call
// methods of c, because c.mu is held.
func (c *callRegistry) cancelMatching(cause error, match func(*Call) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for call, cancel := range c.open {
		if match(call) {
			cancel(cause)
		}
	}
}

// busySessions returns the ids of the sessions with a call in flight.
func (c *callRegistry) busySessions() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	busy := make(map[string]bool)
	for call := range c.open {
		busy[call.session] = true
	}
	return busy
}

// refuseNew makes add reject all further calls.
func (c *callRegistry) refuseNew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// sdkResult converts r to the SDK's type.
func sdkResult(r Result) *sdk.CallToolResult {
	if len(r.InputRequests) == 0 {
		content := []sdk.Content{&sdk.TextContent{Text: r.Text}}
		return &sdk.CallToolResult{Content: content, StructuredContent: r.Structured, IsError: r.IsError}
	}
	requests := make(sdk.InputRequestMap, len(r.InputRequests))
	for _, q := range r.InputRequests {
		requests[q.ID] = q.sdkParams()
	}
	return &sdk.CallToolResult{InputRequests: requests, RequestState: r.RequestState}
}

// sdkParams converts e to the SDK's type.
func (e Elicitation) sdkParams() *sdk.ElicitParams {
	if e.Mode == ModeURL {
		return &sdk.ElicitParams{Mode: ModeURL, Message: e.Message, URL: e.URL, ElicitationID: e.ID}
	}
	return &sdk.ElicitParams{Mode: ModeForm, Message: e.Message, RequestedSchema: e.Schema}
}

// newElicitResult converts r from the SDK's type. It drops content unless the user accepted. An action that MCP does not
// define becomes ActionCancel, because the user has not decided.
func newElicitResult(r *sdk.ElicitResult) ElicitResult {
	switch {
	case r.Action == ActionAccept && r.Content != nil:
		content, _ := json.Marshal(r.Content) // cannot fail: the SDK decoded it from JSON
		return ElicitResult{Action: ActionAccept, Content: content}
	case r.Action == ActionAccept, r.Action == ActionDecline:
		return ElicitResult{Action: r.Action}
	}
	return ElicitResult{Action: ActionCancel}
}

// Elicit asks the client's user and waits for the answer, which it does not check against e.Schema. It returns an error
// if ctx ends or the client cancels the call first. It may be called concurrently, and only if OpenStream is true.
func (c *Call) Elicit(ctx context.Context, e Elicitation) (ElicitResult, error) {
	elicitCtx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	params := e.sdkParams()
	elicitCtx = context.WithValue(elicitCtx, formKey{}, params.RequestedSchema)
	params.RequestedSchema = nil // sendForm adds it
	r, err := c.req.Session.Elicit(elicitCtx, params)
	if err != nil {
		return ElicitResult{}, err
	}
	return newElicitResult(r), nil
}

// formKey is the key of the context value that has the schema of the form that Elicit sends; nil for a URL.
type formKey struct{}

// sendForm is SDK middleware that adds the form's schema to an elicitation of Elicit. Until then the SDK does not know
// the schema. It would return an error for an answer that does not match the schema, although the user can correct the
// answer, and for every answer to a form that the SDK does not accept, for example because of a format.
func sendForm(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		elicit, isElicitation := req.GetParams().(*sdk.ElicitParams)
		if isElicitation {
			params := *elicit
			params.RequestedSchema = ctx.Value(formKey{})
			req = &sdk.ServerRequest[sdk.Params]{Session: req.GetSession().(*sdk.ServerSession), Params: &params}
		}
		return next(ctx, method, req)
	}
}

// Progress sends a progress notification if the client asked for progress. progress must increase with each
// notification of a call. Errors are ignored, because the call's context ends anyway if the client is gone.
func (c *Call) Progress(progress float64, message string) {
	token := c.req.Params.GetProgressToken()
	if token == nil {
		return
	}
	_ = c.req.Session.NotifyProgress(c.ctx, &sdk.ProgressNotificationParams{
		ProgressToken: token, Progress: progress, Message: message,
	})
}

// Log sends a log message if the client asked for messages of this level. Like Progress, it ignores errors.
func (c *Call) Log(level, logger string, data json.RawMessage) {
	_ = c.req.Session.Log(c.ctx, &sdk.LoggingMessageParams{Level: sdk.LoggingLevel(level), Logger: logger, Data: data})
}

// MetaStrings returns those members of Meta whose values are strings. The map is never nil.
func (c *Call) MetaStrings() map[string]string {
	out := make(map[string]string)
	for k, v := range c.Meta {
		if s, ok := v.(string); ok {
			out[k] = s
		}
	}
	return out
}
