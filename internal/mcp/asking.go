package mcp

//lint:file-ignore SA1019 2026-07-28 deprecates sampling (SEP-2577); servers go on asking for it.

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"

	"answerd/internal/mcp/config"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	methodElicit = "elicitation/create"
	methodSample = "sampling/createMessage"
	methodRoots  = "roots/list"
	methodCall   = "tools/call"
	methodPrompt = "prompts/get"
	methodRead   = "resources/read"

	// tagKey is the _meta member that tells a server's request's call, from the connection to
	// our handler: the SDK hands a handler the params and the context of the handshake, and
	// nothing else that the connection could mark. What a server writes there itself is
	// overwritten.
	tagKey = "answerd/request"

	maxOpenRequests  = 8  // of a server, within one call, at a time
	maxTotalRequests = 32 // of a server, within one call
)

// clientOptions are how we answer what a server asks for by itself, whatever the
// transport. What nobody could answer is not declared.
func clientOptions(cfg config.Server, log *slog.Logger) *sdk.ClientOptions {
	o := &sdk.ClientOptions{
		// Not nil, which would offer roots. URL mode is declared only by saying so.
		Capabilities: &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{
			Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{},
		}},
		ElicitationHandler: contained(log, elicit),
	}
	if cfg.Sampling {
		o.CreateMessageHandler = contained(log, answerSampling)
	}
	return o
}

// asked are the requests of a session's server that are on their way through the SDK,
// which hands them to us in the context of the handshake, without a word about where
// they came from (facts 2d). The zero value works.
type asked struct {
	mu   sync.Mutex // protects what follows
	last int64
	open map[string]request
}

// request is one request of a server within a call of ours.
type request struct {
	x      *exchange
	params json.RawMessage // as received: the SDK's types lose the order of fields
}

// keep is the tag under which take finds r.
func (a *asked) keep(r request) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	tag := strconv.FormatInt(a.last, 36)
	if a.open == nil {
		a.open = map[string]request{}
	}
	a.open[tag] = r
	return tag
}

// take is the request of that tag, which it forgets.
func (a *asked) take(tag string) request {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.open[tag]
	delete(a.open, tag)
	return r
}

// forget drops what the SDK never asked for.
func (a *asked) forget(x *exchange) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for tag, r := range a.open {
		if r.x == x {
			delete(a.open, tag)
		}
	}
}

// tag is m as the SDK is to have it: with a tag by which our handler finds the exchange
// that it belongs to, or, where x is nil, that it belongs to none. Other requests than
// those with a handler stay as they are.
func (a *asked) tag(m *jsonrpc.Request, x *exchange) *jsonrpc.Request {
	if m.Method != methodElicit && m.Method != methodSample {
		return m
	}
	var params, meta map[string]json.RawMessage
	if json.Unmarshal(m.Params, &params) != nil || params == nil {
		return m // the SDK refuses it
	}
	if json.Unmarshal(params["_meta"], &meta) != nil || meta == nil {
		meta = map[string]json.RawMessage{}
	}
	tag := ""
	if x != nil {
		x.tagged.Store(true)
		tag = a.keep(request{x, m.Params})
	}
	meta[tagKey], _ = json.Marshal(tag)     // none of this can fail:
	params["_meta"], _ = json.Marshal(meta) // all of it was decoded
	out := *m
	out.Params, _ = json.Marshal(params)
	return &out
}

// requestOf is the request that a handler was given, with the exchange that it belongs
// to; without one if that is over.
func requestOf(ctx context.Context, meta sdk.Meta) request {
	x := exchangeOf(ctx)
	if x == nil {
		return request{}
	}
	tag, _ := meta[tagKey].(string)
	return x.session.asked.take(tag)
}

// talk is what a server may ask during one call, and what it asks now. A nil talk is
// that of a call whose caller answers nothing.
type talk struct {
	elicit func(context.Context, Elicitation) (ElicitationResult, error)
	sample func(context.Context, Sampling) (Sample, error)
	asking func() // called when a person is asked

	x      *exchange
	mu     sync.Mutex // protects what follows
	total  int
	open   int
	people int // open questions to a person
	closed bool
	ends   map[int]context.CancelFunc
	all    sync.WaitGroup
}

// newTalk is the talk of a call; nil where its caller answers nothing.
func newTalk(x *exchange, call Call, asking func()) *talk {
	if call.Elicit == nil && call.Sample == nil {
		return nil
	}
	return &talk{x: x, elicit: call.Elicit, sample: call.Sample, asking: asking, ends: map[int]context.CancelFunc{}}
}

// begin is the context to answer one request in, which ends with the call, or when ctx
// does: the server took it back, or the session ended. While a person is asked the
// call's time stands still. done must be called. ok is false if there were too many,
// or the call is over.
func (t *talk) begin(ctx context.Context, person bool) (_ context.Context, done func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.open == maxOpenRequests || t.total == maxTotalRequests {
		return nil, nil, false
	}
	t.total++
	t.open++
	t.all.Add(1)
	id := t.total
	// The values are the call's: its trace, and its exchange.
	qctx, end := context.WithCancel(t.x.ctx)
	unhook := context.AfterFunc(ctx, end)
	t.ends[id] = end
	if person {
		if t.people++; t.people == 1 {
			t.x.limit.hold()
			t.asking()
		}
	}
	return qctx, func() {
		unhook()
		end()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.ends, id)
		t.open--
		if person {
			if t.people--; t.people == 0 {
				t.x.limit.resume()
			}
		}
		t.all.Done()
	}, true
}

// close ends what is still asked, and returns when nobody is asked any more.
func (t *talk) close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.closed = true
	for _, end := range t.ends {
		end()
	}
	t.mu.Unlock()
	t.all.Wait()
}
