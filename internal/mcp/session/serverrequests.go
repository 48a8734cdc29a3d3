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

	// tagKey is the member of _meta in the params of a server's request that has the tag of the request
	// (requestRegistry). A value that the server wrote there is overwritten.
	tagKey = "answerd/request"

	maxOpenRequests  = 8  // requests of a server within one call that are answered at a time
	maxTotalRequests = 32 // requests of a server within one call
)

// requestRegistry has the requests of a session's server between the connection, which knows to which call a request
// belongs, and our handlers. The SDK calls a handler with the context of the handshake and the params of the request.
// So the connection registers the request under a tag and adds the tag to the params (tagKey). The zero value works.
type requestRegistry struct {
	mu      sync.Mutex // protects what follows
	lastTag int64
	open    map[string]serverRequest // by tag
}

// serverRequest is one request of a server within one of our calls.
type serverRequest struct {
	call         *transport.RoundTrip
	requests     *serverRequests    // of the call; nil declines the request
	resumeAnswer *ElicitationResult // the person's answer of Handlers.Resume; nil if the person must be asked
	params       json.RawMessage    // as received: the SDK's types lose the order of fields
}

// requestedSchema returns the requested schema of an elicitation as received, because a person fills in a form in the
// order of its fields. Without it, the result is decoded, the schema in the SDK's types, which has lost the order.
func (r serverRequest) requestedSchema(decoded any) json.RawMessage {
	var p struct {
		Schema json.RawMessage `json:"requestedSchema"`
	}
	if json.Unmarshal(r.params, &p) == nil && p.Schema != nil {
		return p.Schema
	}
	raw, _ := json.Marshal(decoded) // cannot fail, since it was decoded from JSON
	return raw
}

// register adds request and returns its tag. claim or removeRequestsOf removes it.
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

// claim removes the request with that tag and returns it. It returns the zero value if there is no such request.
func (g *requestRegistry) claim(tag string) serverRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.open[tag]
	delete(g.open, tag)
	return r
}

// removeRequestsOf removes the requests of call for which the SDK has not called a handler.
func (g *requestRegistry) removeRequestsOf(call *transport.RoundTrip) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for tag, r := range g.open {
		if r.call == call {
			delete(g.open, tag)
		}
	}
}

// tag registers request, to which msg belongs, and returns a copy of msg with the tag. If request has no call, it is
// not registered, and the tag is empty. Messages of methods without a handler are returned unchanged.
func (g *requestRegistry) tag(msg *jsonrpc.Request, request serverRequest) *jsonrpc.Request {
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
	// The SDK does not get the form: it would refuse forms that servers do send, and round large integers.
	// decodeElicitation checks the form.
	delete(params, "requestedSchema")
	// These cannot fail, because all values were decoded from JSON.
	meta[tagKey], _ = json.Marshal(tag)
	params["_meta"], _ = json.Marshal(meta)
	tagged := *msg
	tagged.Params, _ = json.Marshal(params)
	return &tagged
}

// Handlers are the functions with which a caller handles the server's messages during a call. Each may be nil.
// OnProgress and OnLog are called one at a time, Elicit and Sample concurrently.
type Handlers struct {
	OnProgress func(Progress)
	OnLog      func(LogMessage)
	// Elicit asks a person. The request is declined if Elicit is nil, and cancelled after an error.
	Elicit func(context.Context, Elicitation) (ElicitationResult, error)
	// Sample asks a model. The request is refused if Sample is nil.
	Sample func(context.Context, Sampling) (Sample, error)
	// OnQuestion is called before Elicit, unless another question is open. It must be set if Elicit is, and must
	// not wait.
	OnQuestion func()
	// Suspend ends the request when its result is input_required and asks a person (2026-07-28), so that no
	// goroutine waits for the person. Elicit is not called. Request.InputRequired has the questions, and the
	// caller sends the request again with Resume.
	Suspend bool
	Resume  *Resumption
}

// serverRequests answers the requests of a server during one call, within bounds. It is nil if the caller has no
// handlers for them.
type serverRequests struct {
	Handlers
	call *transport.RoundTrip

	mu        sync.Mutex // protects what follows
	total     int        // requests so far
	open      int        // requests that are being answered
	questions int        // requests that a person is being asked to answer
	closed    bool
	cancels   map[int]context.CancelFunc // of the open requests, by their number
	answering sync.WaitGroup             // counts the open requests
}

// newServerRequests returns the serverRequests of a call; nil if handlers h can answer no requests.
func newServerRequests(call *transport.RoundTrip, h Handlers) *serverRequests {
	if h.Elicit == nil && h.Sample == nil {
		return nil
	}
	return &serverRequests{Handlers: h, call: call, cancels: map[int]context.CancelFunc{}}
}

// beginAnswer begins the answer to one request, and returns the context for it. ctx is that of the SDK, which ends when
// the server cancels the request, or with the session; the returned context also ends with the call. person says that a
// person is asked: this stops the timer of the call until no person is asked any more. If ok is true, the caller must
// call done. ok is false if the bounds are reached or the call has ended.
func (r *serverRequests) beginAnswer(ctx context.Context, person bool) (_ context.Context, done func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.open == maxOpenRequests || r.total == maxTotalRequests {
		return nil, nil, false
	}
	r.total++
	r.open++
	r.answering.Add(1)
	id := r.total
	answerCtx, cancel := context.WithCancel(r.call.Context()) // with its values, such as the trace
	unlink := context.AfterFunc(ctx, cancel)
	r.cancels[id] = cancel
	if person {
		r.questions++
		if r.questions == 1 {
			r.call.PauseTimer()
			r.OnQuestion()
		}
	}
	return answerCtx, func() {
		unlink()
		cancel()
		r.endAnswer(id, person)
	}, true
}

// endAnswer ends the answer to the request with the number id, for done of beginAnswer. After the last question to a
// person, it resumes the timer of the call.
func (r *serverRequests) endAnswer(id int, person bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cancels, id)
	r.open--
	if person {
		r.questions--
		if r.questions == 0 {
			r.call.ResumeTimer()
		}
	}
	r.answering.Done()
}

// cancelAndWait cancels the contexts of the open requests and waits until their handlers have returned. Afterwards
// beginAnswer returns false. r may be nil.
func (r *serverRequests) cancelAndWait() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.closed = true
	for _, cancel := range r.cancels {
		cancel()
	}
	r.mu.Unlock()
	r.answering.Wait()
}

// Resumption continues a request that ended with Request.InputRequired, because of Handlers.Suspend.
type Resumption struct {
	Required *content.InputRequired       // that of Request.InputRequired
	Answers  map[string]ElicitationResult // the person's answers, by the keys of Required.Requests
}
