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

// The modes of an elicitation, and the actions with which a person answers it (MCP
// client/elicitation).
const (
	ModeForm = "form"
	ModeURL  = "url"

	ActionAccept  = "accept"
	ActionDecline = "decline"
	ActionCancel  = "cancel"
)

// Call is one call of a tool.
type Call struct {
	Tool      string          // the tool's name
	Arguments json.RawMessage // not validated; "{}" if the client sent none
	Meta      map[string]any  // the member _meta, not validated
	Request   *http.Request   // the HTTP request; it has the caller's identity and headers

	// SupportsForm and SupportsURL are the elicitation modes that the client supports. OpenStream
	// says how to elicit: with Elicit while the call executes, or else with a Result that has
	// InputRequests.
	SupportsForm, SupportsURL, OpenStream bool
	// RequestState and InputResponses are set in a call that continues an earlier one: the
	// RequestState of that call's Result, as the client returned it, and the answers to its InputRequests by their IDs.
	RequestState   string
	InputResponses map[string]ElicitResult

	req     *sdk.CallToolRequest
	ctx     context.Context // that the SDK gave to the call; the SDK sends messages on the stream to which it belongs
	session string          // the session's id, or "" if the protocol version has no sessions
	owner   string          // see Options.Owner
}

// Elicitation is a question to the person who uses the client.
type Elicitation struct {
	ID      string // unique within a Result; the key in Call.InputResponses
	Mode    string // ModeForm or ModeURL
	Message string
	Schema  json.RawMessage // of the form, with ModeForm
	URL     string          // of the page to open, with ModeURL
}

// ElicitResult is the person's answer to an Elicitation.
type ElicitResult struct {
	Action  string          // ActionAccept, ActionDecline or ActionCancel
	Content json.RawMessage // the content of an accepted form, a JSON object
}

// Result is the result of a call, or, with InputRequests, a request for input.
type Result struct {
	Text       string
	Structured any // nil, or a value whose JSON is the structured content
	IsError    bool

	// InputRequests are questions to the person. The other fields above are ignored then. The client sends another call
	// with the answers and with RequestState. It can read and change RequestState, so the value must not be trusted.
	InputRequests []Elicitation
	RequestState  string
}

// ErrClosed is the cause for which Close cancels the contexts of calls. Its text is the answer to later requests.
var ErrClosed = errors.New("the service is shutting down")

// callRegistry holds the calls in flight.
type callRegistry struct {
	mu     sync.Mutex // protects all fields
	open   map[*Call]context.CancelCauseFunc
	closed bool // add refuses calls
}

// add registers a call with the function that cancels it, and returns true. After refuseNew it does nothing and returns
// false.
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

// cancelMatching cancels the calls for which match returns true, and does not wait for their end. match must not use c,
// whose mutex is held.
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

// refuseNew makes add refuse all calls from now on.
func (c *callRegistry) refuseNew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// sdkResult returns r in the type of the SDK.
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

// sdkParams returns the elicitation in the type of the SDK.
func (e Elicitation) sdkParams() *sdk.ElicitParams {
	if e.Mode == ModeURL {
		return &sdk.ElicitParams{Mode: ModeURL, Message: e.Message, URL: e.URL, ElicitationID: e.ID}
	}
	return &sdk.ElicitParams{Mode: ModeForm, Message: e.Message, RequestedSchema: e.Schema}
}

// newElicitResult returns the SDK's result as an ElicitResult. It drops content that was not accepted.
func newElicitResult(r *sdk.ElicitResult) ElicitResult {
	a := ElicitResult{Action: r.Action}
	if r.Action == ActionAccept && r.Content != nil {
		a.Content, _ = json.Marshal(r.Content) // the SDK decoded it from JSON
	}
	return a
}

// Elicit asks the person who uses the client, and waits for the answer until ctx ends or the client cancels the call. It
// may be called concurrently, and only if OpenStream is true.
func (c *Call) Elicit(ctx context.Context, e Elicitation) (ElicitResult, error) {
	elicitCtx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	r, err := c.req.Session.Elicit(elicitCtx, e.sdkParams())
	if err != nil {
		return ElicitResult{}, err
	}
	return newElicitResult(r), nil
}

// Progress sends a progress notification if the client has asked for progress. progress must increase with each
// notification of a call. Progress ignores errors: if the client is gone, the context of the call ends.
func (c *Call) Progress(progress float64, message string) {
	token := c.req.Params.GetProgressToken()
	if token == nil {
		return
	}
	_ = c.req.Session.NotifyProgress(c.ctx, &sdk.ProgressNotificationParams{
		ProgressToken: token, Progress: progress, Message: message,
	})
}

// Log sends a log message if the client has asked for messages of this level. It ignores errors, as Progress does.
func (c *Call) Log(level, logger string, data json.RawMessage) {
	_ = c.req.Session.Log(c.ctx, &sdk.LoggingMessageParams{Level: sdk.LoggingLevel(level), Logger: logger, Data: data})
}

// MetaStrings returns the members of Meta that are strings.
func (c *Call) MetaStrings() map[string]string {
	out := make(map[string]string)
	for k, v := range c.Meta {
		if s, ok := v.(string); ok {
			out[k] = s
		}
	}
	return out
}
