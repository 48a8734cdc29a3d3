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

	// tagKey is the _meta member that leads our handler from a server's request to the call
	// that it belongs to. The SDK gives a handler the params and the context of the
	// handshake, so the params are all that the connection could mark. What a server writes
	// there itself is overwritten.
	tagKey = "answerd/request"

	maxOpenRequests  = 8  // of a server, within one call, at a time
	maxTotalRequests = 32 // of a server, within one call
)

// requestRegistry holds the requests of a session's server that the SDK is handing to our
// handlers. The SDK calls these in the context of the handshake, without saying where a
// request came from; the tag does. The zero value works.
type requestRegistry struct {
	mu      sync.Mutex // protects what follows
	lastTag int64
	open    map[string]serverRequest
}

// serverRequest is one request of a server within one of our calls.
type serverRequest struct {
	call    *transport.RoundTrip
	answers *serverRequests    // of that call; nil declines the request
	given   *ElicitationResult // the person's answer, if they gave it already
	params  json.RawMessage    // as received: the SDK's types lose the order of fields
}

// requestedSchema returns the requested schema of an elicitation as it was received: a person fills in a
// form in the order of its fields, which is lost in decoded, the SDK's reading of it.
func (r serverRequest) requestedSchema(decoded any) json.RawMessage {
	var p struct {
		Schema json.RawMessage `json:"requestedSchema"`
	}
	if json.Unmarshal(r.params, &p) == nil && p.Schema != nil {
		return p.Schema
	}
	raw, _ := json.Marshal(decoded) // it was decoded from JSON
	return raw
}

// register keeps request and returns its tag.
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

// claim removes the request with that tag and returns it; the zero value if there is none.
func (g *requestRegistry) claim(tag string) serverRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.open[tag]
	delete(g.open, tag)
	return r
}

// removeRequestsOf removes the requests of a call that the SDK never handed to us.
func (g *requestRegistry) removeRequestsOf(call *transport.RoundTrip) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for tag, r := range g.open {
		if r.call == call {
			delete(g.open, tag)
		}
	}
}

// tag returns msg with the tag by which our handler finds request, the call that msg belongs to; with an
// empty tag if request has no call. Methods without a handler are returned unchanged.
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
	meta[tagKey], _ = json.Marshal(tag)     // none of this can fail:
	params["_meta"], _ = json.Marshal(meta) // all of it was decoded
	tagged := *msg
	tagged.Params, _ = json.Marshal(params)
	return &tagged
}

// Handlers are what the caller of a tool does about the server's messages during the call. Each
// may be nil.
type Handlers struct {
	OnProgress func(Progress)
	OnLog      func(LogMessage)
	Elicit     func(context.Context, Elicitation) (ElicitationResult, error)
	Sample     func(context.Context, Sampling) (Sample, error)
	OnQuestion func() // called when a person is asked; must be set if Elicit is
	// Suspend ends the request when its server answers with input_required and asks a person
	// (2026-07-28), so that nothing waits meanwhile: Request.InputRequired has what it asks, and
	// Elicit is not called. The caller sends the request again with Resume.
	Suspend bool
	Resume  *Resumption
}

// serverRequests answers what a server asks during one call, within bounds. A nil one belongs
// to a call whose caller answers nothing.
type serverRequests struct {
	Handlers
	call *transport.RoundTrip

	mu      sync.Mutex // protects what follows
	total   int
	open    int
	people  int // open questions to a person
	closed  bool
	cancels map[int]context.CancelFunc // of the open requests
	all     sync.WaitGroup
}

// newServerRequests returns the server's requests of a call; nil if its caller answers none.
func newServerRequests(call *transport.RoundTrip, h Handlers) *serverRequests {
	if h.Elicit == nil && h.Sample == nil {
		return nil
	}
	return &serverRequests{Handlers: h, call: call, cancels: map[int]context.CancelFunc{}}
}

// beginAnswer returns the context to answer one request in. It ends with the call, or when ctx
// does: then the server cancelled the request, or the session ended. While a person is asked
// the call's time stands still. done must be called. ok is false if there were too many
// requests, or the call is over.
func (r *serverRequests) beginAnswer(ctx context.Context, person bool) (_ context.Context, done func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.open == maxOpenRequests || r.total == maxTotalRequests {
		return nil, nil, false
	}
	r.total++
	r.open++
	r.all.Add(1)
	id := r.total
	// The values are the call's: its trace, and its Request.
	actx, cancel := context.WithCancel(r.call.Context())
	unlink := context.AfterFunc(ctx, cancel)
	r.cancels[id] = cancel
	if person {
		r.people++
		if r.people == 1 {
			r.call.PauseTimer()
			r.OnQuestion()
		}
	}
	return actx, func() {
		unlink()
		cancel()
		r.endAnswer(id, person)
	}, true
}

// endAnswer removes the server request with the number id. After the last one that asked a person,
// it resumes the call's timer.
func (r *serverRequests) endAnswer(id int, person bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cancels, id)
	r.open--
	if person {
		r.people--
		if r.people == 0 {
			r.call.ResumeTimer()
		}
	}
	r.all.Done()
}

// cancelAndWait cancels the open requests and waits until their handlers have returned. No
// further request is answered.
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
	r.all.Wait()
}

// Resumption continues a request that ended with what its server requires (Handlers.Suspend).
type Resumption struct {
	Required *content.InputRequired
	Answers  map[string]ElicitationResult // the person's, by the key of the request
}
