package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/help"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/limiter"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// Call is one tool call.
type Call struct {
	Tool string // Tool.Name
	// Server is the name of the tool's server, if that is known: the user may have to sign in before the
	// tool is known here.
	Server string
	Args   json.RawMessage // a JSON object; empty means {}
	// Check refuses arguments, as InvalidArguments, that do not fit the tool's input schema at the
	// moment of sending. That may be long after CheckArgs, because a call waits for a person's
	// approval and for a permit, and the server may list its tools again meanwhile.
	Check bool
	// Context goes to the server with this call: as query parameters over HTTP, and in _meta. At
	// most 64 entries and 8 KiB.
	Context map[string]string
	// Meta is merged into the request's _meta, such as traceparent. It wins over
	// Context.
	Meta map[string]any
	// CallID, RunID and ThreadID go into _meta, if they are not empty and the server's configuration
	// names them, and so does the subject of Principal. All attempts of a call have the same.
	CallID, RunID, ThreadID string
	// Principal is the user for whom the call is made. Servers of AuthExchange need its Token;
	// others ignore it.
	Principal auth.Identity
	// Approved is the Version of the tool for which a person approved these Args. A tool that
	// NeedsApproval is called only if Approved is the tool's present Version. Any other tool is called
	// only if Approved is that or "": a named agent may ask a person where the server does not.
	Approved string
	// Progress, if set, receives the server's progress notifications for this call, one at a time.
	// Those that arrive before the answer, also if that is an error, are delivered before Call returns,
	// and none after. A slow Progress misses intermediate notifications and gets the latest.
	Progress func(Progress)
	// Log, if set, receives the server's log messages during this call, in turn with Progress and
	// under the same rules, except that a slow Log misses the latest messages, which are counted.
	// Over HTTP, a message belongs to the call on whose stream it arrives. On a connection that all
	// calls share, it belongs to a call only while no other is in flight.
	Log func(LogMessage)
	// Elicit, if set, answers the server's elicitation requests during this call; nil declines
	// them. It may be called concurrently. It must return when its context ends, because Call waits
	// for it; the context ends with the call at the latest. An error means Cancel. The time it
	// takes does not count towards the call's timeout.
	Elicit func(context.Context, Elicitation) (ElicitationResult, error)
	// Suspend ends the call, with a Result of InputRequired alone, when its server answers with
	// input_required and asks the person (2026-07-28). Elicit is not called for that, and nothing
	// of the call is left: any process may send it again with Resume, once the person has answered
	// the Elicitations of that result. A call that asks a person in another way is not suspended.
	Suspend bool
	Resume  *Resumption
	// Waiter, if set, lets the call end with a Result of SignIn alone when its user has to sign in to
	// the server first (AuthAuthorizationCode). The call was not sent, and nothing of it is left: any
	// process may send it again after AwaitSignIn, with that SignIn. Client.Callback returns the Waiter
	// when the user's browser is back. Without a Waiter such a call is Denied.
	Waiter string
	SignIn *content.SignIn // of the latest Result; nil at first
	// Sample, if set, answers the server's sampling requests, if the server's configuration allows
	// them. The rules of Elicit apply, except that its time counts towards the call's timeout.
	Sample func(context.Context, Sampling) (Sample, error)
}

const (
	maxArgs    = 1 << 20 // bytes of a call's arguments
	maxContext = 8 << 10 // bytes of the names and values of a call's context
	maxEntries = 64      // entries of a call's context
	maxTries   = 4       // attempts of a call to find a session that is not lost
)

// Call calls a tool and waits for its result. The error is a *CallError. A result
// with IsError is a result: the tool ran and says that it failed.
//
// The call waits under ctx for one of its server's permits; its timeout starts when it has one.
// When ctx ends, Call returns at once and sends notifications/cancelled to the server.
func (c *Client) Call(ctx context.Context, call Call) (*content.Result, error) {
	if call.SignIn != nil && call.SignIn.ListsTools {
		return c.callSignInAgain(ctx, call)
	}
	for {
		tool, listed := c.catalog.Resolve(call.Tool)
		if !listed {
			c.waitForFirstAttempts(ctx, call.Principal) // its server may still be connecting
			tool, listed = c.catalog.Resolve(call.Tool)
		}
		if !listed {
			result, err := c.callUnlisted(ctx, call)
			if result != nil || err != nil {
				return result, err
			}
			continue // the tool is listed now
		}
		result, failure := c.callListed(ctx, call, tool.ServerID)
		if failure == nil {
			return result, nil
		}
		// If the server was removed, another one may have the tool now. The loop ends, because
		// each repetition needs another Reload.
		if failure == errReconfigured && ctx.Err() == nil && c.life.Err() == nil {
			continue
		}
		return nil, callError(failure, call.Tool, tool.Server)
	}
}

// callListed calls a tool on the server that has it. The failure is errReconfigured if there is no such server any
// more.
func (c *Client) callListed(ctx context.Context, call Call, serverID int) (*content.Result, *transport.Failure) {
	if failure := checkCall(&call); failure != nil {
		return nil, failure
	}
	s := c.serverByID(serverID)
	if s == nil {
		return nil, errReconfigured
	}
	return s.callWithConsent(ctx, call)
}

// callWithPermit waits for a permit and sends the call with callWithRetry. While the server's
// breaker is open, it sends nothing.
func (s *server) callWithPermit(ctx context.Context, call Call) (*content.Result, *transport.Failure) {
	if !s.isLive() {
		return nil, &transport.Failure{Kind: Unavailable, Public: "it is not in use", NotRun: true}
	}

	// Before the breaker: that there are too many callers, or a caller has no token, tells nothing
	// about the server.
	route, leave, failure := s.routeFor(call.Principal)
	if failure != nil {
		return nil, failure
	}
	defer leave()
	if f := s.breaker.openFailure(); f != nil { // before the queue, which may be long while the server fails
		return nil, f
	}
	permit := s.calls.Enqueue(call.Principal.Key(), call.Tool)
	defer permit.End(limiter.Unknown)

	select {
	case <-permit.Admitted():
	case <-ctx.Done():
		return nil, contextFailure(ctx)
	case <-s.drain.leaving:
		return nil, errReconfigured
	case <-s.life.Done():
		return nil, &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: transport.ErrClosed}
	}

	if !s.drain.beginCall() {
		return nil, errReconfigured
	}
	defer s.drain.endCall()
	p, failure := s.breaker.admitCall()
	if failure != nil {
		return nil, failure
	}
	outcome, retryAfter := saysNothing, time.Duration(0) // recorded as such after a panic
	defer func() { s.breaker.recordOutcome(p, outcome, retryAfter) }()

	route.asking = func() {
		s.breaker.withdrawCall(p)
		permit.Exclude()
	}

	res, failure := s.callWithRetry(ctx, call, route)
	// A call that ended because of its caller (canceled, too little time, an unusable token) tells
	// nothing about the server.
	if ctx.Err() == nil && failure != errReconfigured && !s.isUserFailure(failure) {
		outcome, retryAfter = outcomeOf(failure), failure.RetryAfter()
		permit.End(loadOf(res, failure))
	}
	if failure == nil && s.callers == nil && s.isUnreachable() {
		s.wakeSupervisor()
	}
	return res, failure
}

// loadOf returns what a result, or the failure f, says about the server's load. The time of a call that
// the tool refused, or that waits for a person, says nothing.
func loadOf(res *content.Result, f *transport.Failure) limiter.Outcome {
	switch {
	case f == nil && !res.IsError && res.InputRequired == nil:
		return limiter.Answered
	case f == nil:
		return limiter.Unknown
	case f.Kind == Timeout, f.Status == http.StatusTooManyRequests, f.Status == http.StatusServiceUnavailable, f.Status == http.StatusGatewayTimeout:
		return limiter.Overload
	}
	return limiter.Unknown
}

// callWithRetry sends the call, and again only while that is safe: if the session was lost and the call provably did
// not run, or if the outcome is unknown and the tool is repeatable. It also sends the call again, once, after the
// person has visited the pages that the server requires (URL elicitation), and after listing the tools if the server
// refuses its headers.
func (s *server) callWithRetry(ctx context.Context, call Call, route callRoute) (*content.Result, *transport.Failure) {
	deadline := time.Now().Add(s.cfg.MaxTime)
	sends, asked, listed := 0, false, false
	var mayHaveRun *transport.Failure // of an earlier attempt
	for try := 1; ; try++ {
		tool, failure := s.resolveTool(ctx, call, deadline)
		if failure == nil && call.Check {
			failure = checkArguments(tool, call.Args)
		}
		switch {
		case failure != nil && mayHaveRun != nil:
			return nil, mayHaveRun
		case failure != nil:
			return nil, failure
		}
		res, sent, failure := s.sendOnce(ctx, call, tool, route, deadline)
		if sent {
			sends++
		}
		if failure == nil {
			return res, nil
		}
		if pages := session.RequiredElicitations(failure); len(pages) > 0 && !asked {
			if call.Elicit == nil {
				failure.Public = "the user must visit a web page first, and can be asked to only in a run; " +
					"ask a question that needs this tool"
				return nil, failure
			}
			route.asking()
			began := time.Now()
			if !s.elicitAll(ctx, call, pages) {
				failure.Public = "the user did not agree to visit the web page that it requires first"
				return nil, failure
			}
			deadline = deadline.Add(time.Since(began)) // the person's time does not count towards the call's
			asked, sends = true, 0
			continue
		}
		if isHeaderMismatch(failure) && !listed && s.refreshNow(ctx, call.Principal) == nil {
			listed, sends = true, 0
			continue
		}
		wasNotRun := failure.Lost && failure.NotRun
		isSafeToRepeat := wasNotRun || failure.Kind == UnknownOutcome && s.isRepeatable(tool)
		if !isSafeToRepeat || sends > 1 || try >= maxTries || ctx.Err() != nil {
			notTaken := failure.Kind == Unavailable && failure.NotRun && !errors.Is(failure, transport.ErrCredentials)
			if mayHaveRun != nil && notTaken {
				return nil, mayHaveRun // the server only did not take the repetition
			}
			return nil, failure
		}
		if failure.Kind == UnknownOutcome {
			mayHaveRun = failure
		}
	}
}

// routeFor returns the session pool and the credentials for requests of the user. Call leave when they
// are no longer needed.
func (s *server) routeFor(user auth.Identity) (on callRoute, leave func(), _ *transport.Failure) {
	if s.callers == nil {
		return callRoute{pool: s.pool}, func() {}, nil
	}
	t, f := s.callers.acquireSession(user)
	if f != nil {
		return callRoute{}, nil, f
	}
	return callRoute{pool: t.pool, tokens: s.callers.of(user)}, func() { s.callers.releaseSession(t) }, nil
}

// resolveTool returns the tool of a call if this server still has it and it may be called. It runs
// right before each attempt, because the tool may have changed while the call waited.
func (s *server) resolveTool(ctx context.Context, call Call, deadline time.Time) (catalog.Resolved, *transport.Failure) {
	if f := s.waitForPinnedTools(ctx, deadline); f != nil {
		return catalog.Resolved{}, f
	}
	tool, ok := s.c.catalog.Resolve(call.Tool)
	switch {
	case !ok:
		return tool, &transport.Failure{Kind: UnknownTool, Public: "the tool no longer exists", NotRun: true}
	case tool.ServerID != s.id:
		return tool, errReconfigured
	case tool.Disabled != "":
		return tool, &transport.Failure{Kind: Denied, Public: tool.Disabled, NotRun: true}
	}
	return tool, checkApproval(tool, call)
}

// isRepeatable reports whether a call whose outcome is unknown may be sent again: if the
// configuration says so, or if it reads a resource, which changes nothing. The server's own
// annotations do not count, since the server may be wrong about them.
func (s *server) isRepeatable(b catalog.Resolved) bool {
	return b.ReadsResources || catalog.MatchAny(s.cfg.IdempotentTools, b.Original, b.Name)
}

// callRoute says how a call is sent: in a session of the pool, and with tokens if each user has
// their own (nil otherwise).
type callRoute struct {
	pool   *session.Pool
	tokens transport.Sender
	asking func() // called when a person is asked, which may take long
}

// sendOnce sends the call once, in the current session, and reports whether the server may have
// received it.
func (s *server) sendOnce(ctx context.Context, call Call, tool catalog.Resolved, route callRoute, deadline time.Time) (_ *content.Result, sent bool, _ *transport.Failure) {
	request := session.NewRequest(ctx, s.life, deadline, nil)
	defer request.Finish()
	request.SetIdleTimeout(s.cfg.Timeout)
	request.Tokens = route.tokens
	used, failure := route.pool.GetSession(request.Context())
	if failure != nil {
		return nil, false, s.sessionFailure(request, failure)
	}
	if s.cfg.Pin && !s.isListedFrom(used) {
		return nil, false, listOutdated
	}
	request.Query = call.Context
	if params, err := catalog.HeaderParams(tool.InputSchema); err == nil && params != nil {
		request.Headers = catalog.HeaderValues(params, call.Args)
	}
	raw, failure := s.roundTrip(request, used, tool, call, route.asking)
	if failure == nil && request.InputRequired != nil {
		return &content.Result{InputRequired: request.InputRequired}, true, nil
	}
	var result *content.Result
	if failure == nil {
		result, failure = decodeResult(raw, tool)
	}
	if failure != nil {
		sent = request.Sent()
		return nil, sent, s.handleFailure(failure, sent, tool, used, route)
	}
	if failure := s.checkCannotAsk(tool, used, route, result, nil); failure != nil {
		return nil, true, failure
	}
	if result.IsError && ResultErrorKind(result) == UnknownTool {
		s.markOutdated()
	}
	result.Violations = tool.ResultViolations(result.Structured, result.IsError)
	if result.Violations != nil {
		// The violations quote the result, which must not be logged.
		s.log.Warn("MCP result does not fit the tool's output schema", "tool", tool.Name, "problems", len(result.Violations), help.ToolSchemas.Attr())
	}
	return result, true, nil
}

// sessionFailure returns the failure of a call for which GetSession returned failure. If the call's own time or its caller
// ended the wait, that is the failure, and it keeps the other one only if that is about the user's credentials.
// Otherwise the server is marked as failed, so that it is connected again.
func (s *server) sessionFailure(request *session.Request, failure *transport.Failure) *transport.Failure {
	if request.Context().Err() != nil {
		ended := request.Ended()
		if errors.Is(failure, transport.ErrCredentials) {
			ended.Err = failure
		}
		return ended
	}
	if s.callers == nil && s.setFailed(failure) {
		s.wakeSupervisor()
	}
	return failure
}

// decodeResult decodes the result of tools/call, or of resources/read for the tool that reads resources.
func decodeResult(raw json.RawMessage, tool catalog.Resolved) (*content.Result, *transport.Failure) {
	decode := content.Decode
	if tool.ReadsResources {
		decode = content.DecodeResource
	}
	result, err := decode(raw)
	if err != nil {
		return nil, decodeFailure(err)
	}
	return result, nil
}

// handleFailure does what the failure of a call means for the session in which it was sent, for the server and for its
// list of tools. It returns the failure that the caller gets.
func (s *server) handleFailure(failure *transport.Failure, sent bool, tool catalog.Resolved, used *session.Session, route callRoute) *transport.Failure {
	if other := s.checkCannotAsk(tool, used, route, nil, failure); other != nil {
		return other
	}
	if failure.Kind == UnknownTool {
		s.markOutdated() // the server listed the tool, and may not announce that its list has changed
	}
	switch {
	// Other calls may have lost the same session. The pool makes one new session for all.
	case failure.Lost:
		route.pool.DropSession(used)
	case !sent && failure.Kind == Unavailable && s.callers == nil && s.setFailed(failure):
		s.wakeSupervisor()
	}
	return failure
}

// roundTrip sends tools/call, or resources/read for the read tool, and waits for the result.
func (s *server) roundTrip(request *session.Request, used *session.Session, b catalog.Resolved, call Call, onQuestion func()) (json.RawMessage, *transport.Failure) {
	handlers := session.Handlers{
		OnProgress: call.Progress, OnLog: call.Log, Elicit: call.Elicit, Sample: call.Sample,
		OnQuestion: onQuestion, Suspend: call.Suspend, Resume: call.Resume,
	}
	if !b.ReadsResources {
		return used.CallTool(request, session.ToolCall{Name: b.Original, Args: call.Args, Meta: s.callMeta(call), Handlers: handlers})
	}
	uri, f := s.readURI(call.Args)
	if f != nil {
		return nil, f
	}
	return used.ReadResource(request, session.ResourceRead{URI: uri, Scope: s.readScope(call), Meta: s.callMeta(call), Handlers: handlers})
}

// Prefixes of names in _meta (MCP basic, _meta: reversed domains). reservedMeta is the
// specification's own, and MetaPrefix is ours.
const (
	reservedMeta = "io.modelcontextprotocol/"
	MetaPrefix   = "io.answerd/"
)

// callMeta returns the _meta of a call: its context, then the ids that the configuration names, then
// its Meta. Call.Context comes from outside. It must not set the protocol version or the client
// info, nor a caller's subject.
func (s *server) callMeta(call Call) sdk.Meta {
	m := make(sdk.Meta, len(call.Context)+len(call.Meta)+8) // the session adds up to four entries
	for name, value := range call.Context {
		if !strings.HasPrefix(name, reservedMeta) && !strings.HasPrefix(name, MetaPrefix) && name != "progressToken" {
			m[name] = value
		}
	}
	for name, value := range s.callIDs(call) {
		m[name] = value
	}
	maps.Copy(m, call.Meta)
	return m
}

// callIDs returns the members of _meta that the server's configuration names.
func (s *server) callIDs(call Call) map[string]string {
	members := s.cfg.Meta
	if members == nil {
		members = []string{config.MetaCallID}
	}
	all := map[string]string{
		config.MetaCallID: call.CallID, config.MetaRunID: call.RunID, config.MetaThreadID: call.ThreadID, config.MetaSubject: call.Principal.Subject,
	}
	ids := make(map[string]string, len(members))
	for _, name := range members {
		if all[name] != "" {
			ids[MetaPrefix+name] = all[name]
		}
	}
	return ids
}

// readScope returns what the content of a resource may depend on: all that the server is sent with
// the request, except for the id of the call.
func (s *server) readScope(call Call) map[string]string {
	scope := make(map[string]string, len(call.Context)+3)
	maps.Copy(scope, call.Context)
	for name, value := range s.callIDs(call) {
		if name != MetaPrefix+config.MetaCallID {
			scope["_meta."+name] = value // a context may have the name itself
		}
	}
	return scope
}

// checkApproval refuses a call that a person has not approved, or whose tool has changed since
// they did.
func checkApproval(b catalog.Resolved, call Call) *transport.Failure {
	switch {
	case call.Approved != "" && call.Approved == b.Version():
		return nil
	case call.Approved == "" && !b.NeedsApproval:
		return nil
	case call.Approved == "":
		return &transport.Failure{Kind: Denied, Public: "the call needs a person's approval", NotRun: true}
	}
	return &transport.Failure{Kind: Denied, Public: "the tool has changed since a person approved the call", NotRun: true}
}

// Repeatable reports whether a call of the tool may be sent again when its outcome is unknown: it
// changes nothing, or the configuration says so.
func (c *Client) Repeatable(tool string) bool {
	b, ok := c.catalog.Resolve(tool)
	if !ok {
		return false
	}
	s := c.serverByID(b.ServerID)
	return s != nil && s.isRepeatable(b)
}
