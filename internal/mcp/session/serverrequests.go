package session

//lint:file-ignore SA1019 2026-07-28 deprecates sampling (SEP-2577); servers still use it.

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"

	"answerd/internal/mcp/content"
	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	methodElicit = "elicitation/create"
	methodSample = "sampling/createMessage"
	methodRoots  = "roots/list"
	methodCall   = "tools/call"
	methodPrompt = "prompts/get"
	methodRead   = "resources/read"

	// tagKey is the member of params._meta in a server's request that has the request's tag (requestRegistry). A value
	// that the server has set there is overwritten.
	tagKey = "answerd/request"

	maxOpenRequests  = 8  // requests of a server that are answered at the same time, per call
	maxTotalRequests = 32 // requests of a server that are answered, per call
)

// requestRegistry passes the requests of a session's server from the connection to answerd's handlers. Only the
// connection knows to which call a request belongs: the SDK calls a handler with the handshake's context and the
// request's params. So the connection registers the request under a tag and adds the tag to the params (tagKey). The
// zero value is ready to use.
type requestRegistry struct {
	mu      sync.Mutex // protects the fields below
	lastTag int64
	open    map[string]serverRequest // by tag
}

// serverRequest is one request that a server sends during a call.
type serverRequest struct {
	call         *transport.RoundTrip
	answerer     *requestAnswerer   // the call's; nil declines the request
	resumeAnswer *ElicitationResult // the user's answer from Handlers.Resume; nil if the user must be asked
	params       json.RawMessage    // as received, because the SDK's types lose the order of fields
}

// requestedSchema returns an elicitation's requested schema as received, because the user fills in the form in the
// order of its fields. If r.params has no such schema, requestedSchema returns decoded, the schema in the SDK's type,
// which has lost that order.
func (r serverRequest) requestedSchema(decoded any) json.RawMessage {
	var p struct {
		Schema json.RawMessage `json:"requestedSchema"`
	}
	if json.Unmarshal(r.params, &p) == nil && p.Schema != nil {
		return p.Schema
	}
	raw, _ := json.Marshal(decoded) // cannot fail, because it was decoded from JSON
	return raw
}

// register adds request and returns its tag. claim and removeRequestsOf remove the request.
func (g *requestRegistry) register(request serverRequest) (tag string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lastTag++
	tag = strconv.FormatInt(g.lastTag, 36)
	if g.open == nil {
		g.open = map[string]serverRequest{}
	}
	g.open[tag] = request
	return tag
}

// claim removes the request with this tag and returns it. It returns the zero value if no request has the tag.
func (g *requestRegistry) claim(tag string) serverRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.open[tag]
	delete(g.open, tag)
	return r
}

// removeRequestsOf removes those requests of call for which the SDK has not called a handler.
func (g *requestRegistry) removeRequestsOf(call *transport.RoundTrip) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for tag, r := range g.open {
		if r.call == call {
			delete(g.open, tag)
		}
	}
}

// registerAndTag registers request, which describes msg, and returns a copy of msg with the tag. If request has no
// call, it is not registered, and the copy has an empty tag. If msg's method has no handler, the result is msg.
func (g *requestRegistry) registerAndTag(msg *jsonrpc.Request, request serverRequest) *jsonrpc.Request {
	if msg.Method != methodElicit && msg.Method != methodSample {
		return msg
	}
	var params, meta map[string]json.RawMessage
	if json.Unmarshal(msg.Params, &params) != nil || params == nil {
		return msg // the SDK refuses it
	}
	if json.Unmarshal(params["_meta"], &meta) != nil || meta == nil {
		meta = map[string]json.RawMessage{}
	}
	tag := ""
	if request.call != nil {
		request.params = msg.Params
		tag = g.register(request)
	}
	// Hide the form from the SDK, which would refuse forms that servers do send, and round large integers.
	// decodeElicitation checks the form instead.
	delete(params, "requestedSchema")
	// These cannot fail, because all values were decoded from JSON.
	meta[tagKey], _ = json.Marshal(tag)
	params["_meta"], _ = json.Marshal(meta)
	tagged := *msg
	tagged.Params, _ = json.Marshal(params)
	return &tagged
}

// Handlers are the functions that handle the server's messages during a call. Each may be nil. OnProgress and OnLog
// are never called at the same time; Elicit and Sample may be called concurrently.
type Handlers struct {
	OnProgress func(Progress)
	OnLog      func(LogMessage)
	// Elicit asks the user. If Elicit is nil, the request is declined; if it fails, the request is cancelled.
	Elicit func(context.Context, Elicitation) (ElicitationResult, error)
	// Sample asks a model. If Sample is nil, the request is refused.
	Sample func(context.Context, Sampling) (Sample, error)
	// OnQuestion is called before Elicit. It must be set if Elicit is set, and must not block.
	OnQuestion func()
	// Suspend ends the request if its result is input_required and asks the user something (2026-07-28), so that no
	// goroutine waits for the user. Elicit is then not called. Request.InputRequired has the questions; to continue,
	// send the request again with Resume.
	Suspend bool
	Resume  *Resumption
}

// requestAnswerer answers the requests that a server sends during one call, within bounds. It is nil if the call has
// no handlers for them.
type requestAnswerer struct {
	Handlers
	call   *transport.RoundTrip
	ctx    context.Context    // ends with the call, or with cancelAndWait; has the call's values, such as the trace
	cancel context.CancelFunc // ends ctx

	mu        sync.Mutex     // protects the fields below
	total     int            // requests answered so far
	open      int            // requests being answered
	answering sync.WaitGroup // counts the open requests
}

// newRequestAnswerer returns the requestAnswerer of a call; nil if h has neither Elicit nor Sample.
func newRequestAnswerer(call *transport.RoundTrip, h Handlers) *requestAnswerer {
	if h.Elicit == nil && h.Sample == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(call.Context())
	return &requestAnswerer{Handlers: h, call: call, ctx: ctx, cancel: cancel}
}

// beginAnswer begins the answer to one request of the server with this method, and returns a context for it. ctx is the
// SDK's context, which ends when the server cancels the request, or with the session; the returned context also ends
// with the call. While the user is asked (methodElicit), the call's timer is paused. If ok is true, done must be
// called. ok is false if too many requests were sent or are open, or if the call has ended.
func (r *requestAnswerer) beginAnswer(ctx context.Context, method string) (_ context.Context, done func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil || r.open == maxOpenRequests || r.total == maxTotalRequests {
		return nil, nil, false
	}
	r.total++
	r.open++
	r.answering.Add(1)
	answerCtx, cancel := context.WithCancel(r.ctx)
	unlink := context.AfterFunc(ctx, cancel)
	asksUser := method == methodElicit
	if asksUser {
		r.call.PauseTimer()
		r.OnQuestion()
	}
	return answerCtx, func() {
		unlink()
		cancel()
		r.endAnswer(asksUser)
	}, true
}

// endAnswer ends the answer to one request. askedUser says that it was a question to the user, so that endAnswer resumes
// the call's timer. beginAnswer's done calls it.
func (r *requestAnswerer) endAnswer(askedUser bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	if askedUser {
		r.call.ResumeTimer()
	}
	r.answering.Done()
}

// cancelAndWait cancels the contexts of the open requests and waits until their handlers have returned. From then on,
// beginAnswer returns false. r may be nil.
func (r *requestAnswerer) cancelAndWait() {
	if r == nil {
		return
	}
	r.mu.Lock() // so that answering does not grow any more when it is waited for
	r.cancel()
	r.mu.Unlock()
	r.answering.Wait()
}

// Resumption continues a request that ended with Request.InputRequired because of Handlers.Suspend.
type Resumption struct {
	Required *content.InputRequired       // the value of Request.InputRequired
	Answers  map[string]ElicitationResult // the user's answers, by the keys of Required.Requests
}
