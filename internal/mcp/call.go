package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
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
	// Server is the configured name of the tool's server; "" if unknown. It matters only for a tool that is not in
	// this process's catalog because its server has not been listed yet. Client.Call then lists that server first, and
	// the user may have to sign in for that.
	Server string
	Args   json.RawMessage // a JSON object; empty means {}
	// Check makes the call fail with InvalidArguments if Args do not fit the tool's input schema at the moment of
	// sending. CheckArgs may have run long before: a call waits for a person's approval and for a permit, and during
	// that time the server may list its tools again.
	Check bool
	// Context is sent to the server with this call: as query parameters over HTTP, and in _meta. It has at most 64
	// entries and 8 KiB.
	Context map[string]string
	// Meta is merged into the request's _meta, for example traceparent. It takes precedence over Context.
	Meta map[string]any
	// CallID, RunID and ThreadID are sent in _meta if they are not empty and the server's configuration names them. So
	// is the subject of Principal. They are the same in all attempts of a call.
	CallID, RunID, ThreadID string
	// Principal is the user for whom the call is made. A server with per-user tokens (AuthType.IsDelegated in package
	// config) needs Principal's Token or sign-in. Principals take turns in the queue for a server's permits.
	Principal auth.Identity
	// Approved is the Version of the tool for which a person approved these Args; "" for a call without approval. A
	// call of a tool that NeedsApproval fails with "". Any call fails if Approved is another Version than the tool's
	// present one. A call may have Approved although its tool does not need it, because a named agent may ask where
	// the server does not.
	Approved string
	// Progress, if set, receives the server's progress notifications for this call, one at a time. Notifications that
	// arrive before the result or the error are delivered before Call returns; later ones are dropped. If Progress is
	// slow, it misses intermediate notifications and gets the latest one.
	Progress func(Progress)
	// Log, if set, receives the server's log messages during this call. Log and Progress are never called at the same
	// time. If Log is slow, it misses the latest messages, which LogMessage.Omitted counts. Over HTTP, a message
	// belongs to the call on whose stream it arrives. On a connection that all calls share, a message belongs to a
	// call only while no other call is in flight.
	Log func(LogMessage)
	// Elicit, if set, answers the server's elicitation requests during this call; if it is nil, they are declined. It
	// may be called concurrently. Its context ends with the call at the latest. Elicit must return then, because Call
	// waits for it. An error counts as Cancel. The time that Elicit takes does not count towards the call's timeout.
	Elicit func(context.Context, Elicitation) (ElicitationResult, error)
	// Suspend ends the call if the server answers with input_required (2026-07-28) to ask the user something. The
	// Result then has InputRequired and nothing else, and Elicit is not called. The Client keeps no state of the call:
	// once the user has answered the Elicitations of that result, any process may send the call again with Resume. A
	// call whose server asks in another way is not suspended and calls Elicit.
	Suspend bool
	Resume  *Resumption // the user's answers to a suspended call; nil for a new call
	// Waiter identifies this call when its user comes back from a sign-in: Client.Callback returns it then. If it is
	// set and the user must first sign in to the server (AuthAuthorizationCode), the call ends with a Result that has
	// SignIn and nothing else; if it is "", such a call is Denied. In both cases the call was not sent, and the Client
	// keeps no state of it: after AwaitSignIn, any process may send it again with that SignIn.
	Waiter string
	SignIn *content.SignIn // from the previous Result, if the call is sent again after a sign-in; else nil
	// Sample, if set, answers the server's sampling requests, if the server's configuration allows them. The rules for
	// Elicit apply, except that Sample's time counts towards the call's timeout.
	Sample func(context.Context, Sampling) (Sample, error)
}

const (
	maxArgs    = 1 << 20 // bytes of a call's arguments
	maxContext = 8 << 10 // bytes of the names and values of a call's context
	maxEntries = 64      // entries of a call's context
	maxTries   = 4       // attempts per call, including those that lost the session before sending
)

// Call calls a tool and waits for its result. The error is a *CallError. A Result with IsError is not an error: the
// tool ran and reported that it failed.
//
// Call first waits for one of the server's permits; the call's timeout starts when it gets one. When ctx ends, Call
// returns at once, and sends notifications/cancelled to the server if it had sent the request.
func (c *Client) Call(ctx context.Context, call Call) (*content.Result, error) {
	if call.SignIn != nil && call.SignIn.ListsTools {
		return c.repeatSignInCall(ctx, call)
	}
	for {
		tool, listed := c.catalog.Resolve(call.Tool)
		if !listed {
			c.waitForFirstAttempts(ctx, call.Principal) // the tool's server may still be connecting
			tool, listed = c.catalog.Resolve(call.Tool)
		}
		if !listed {
			signIn, err := c.listServerOf(ctx, call)
			if signIn != nil || err != nil {
				return signIn, err
			}
			continue // the tool may be listed now
		}
		result, failure := c.callListed(ctx, call, tool.ServerID)
		if failure == nil {
			return result, nil
		}
		// If a Reload has removed the server, another server may have the tool now. The loop ends, because each
		// repetition requires another Reload.
		mayHaveMoved := failure == errReconfigured && ctx.Err() == nil && c.life.Err() == nil
		if !mayHaveMoved {
			return nil, callError(failure, call.Tool, tool.Server)
		}
	}
}

// callListed checks call and sends it to the server with the id serverID, which listed the tool. The failure is
// errReconfigured if a Reload removed that server or gave the tool to another one.
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

// callWithPermit waits for a permit, sends call with callWithRetry, and records the outcome in the breaker and in the
// concurrency limit. It fails at once while the breaker is open. The failure is errReconfigured if a Reload removed
// the server, or gave the tool to another one, before call was sent.
func (s *server) callWithPermit(ctx context.Context, call Call) (*content.Result, *transport.Failure) {
	if !s.isLive() {
		return nil, notInUseFailure()
	}

	// Get the route before asking the breaker: a missing token or too many users say nothing about the server's state.
	route, release, failure := s.routeFor(call.Principal)
	if failure != nil {
		return nil, failure
	}
	defer release()
	// Also ask the breaker before waiting for a permit: while the server fails, the queue may be long.
	if failure := s.breaker.openFailure(); failure != nil {
		return nil, failure
	}
	permit := s.callLimiter.Enqueue(call.Principal.Key(), call.Tool)
	defer permit.End(limiter.Unknown) // does nothing if the call has ended the permit with its own outcome
	if failure := s.waitForPermit(ctx, permit); failure != nil {
		return nil, failure
	}
	if !s.drain.beginCall() {
		return nil, errReconfigured
	}
	defer s.drain.endCall()
	pass, failure := s.breaker.admitCall()
	if failure != nil {
		return nil, failure
	}
	outcome, retryAfter := outcomeNeutral, time.Duration(0) // the breaker gets these values after a panic
	defer func() { s.breaker.recordOutcome(pass, outcome, retryAfter) }()

	route.onQuestion = func() {
		s.breaker.withdrawTrial(pass)
		permit.Exclude()
	}

	result, failure := s.callWithRetry(ctx, call, route)
	// A call that ended because of its user (cancelled, too little time, an unusable token) says nothing about the
	// server's state.
	if ctx.Err() == nil && failure != errReconfigured && !s.isUserFailure(failure) {
		outcome = outcomeOf(failure)
		retryAfter = failure.RetryAfter()
		permit.End(limiterOutcome(result, failure))
	}
	// The call shows that the server works again, so the supervisor need not wait for the end of its backoff.
	if failure == nil && s.userSessions == nil && s.isUnreachable() {
		s.wakeSupervisor()
	}
	return result, failure
}

// waitForPermit waits until permit is admitted and returns nil. If ctx or the server's life ends first, or a Reload
// removes the server, it returns the failure of the call.
func (s *server) waitForPermit(ctx context.Context, permit *limiter.Ticket) *transport.Failure {
	select {
	case <-permit.Admitted():
		return nil
	case <-ctx.Done():
		return contextFailure(ctx)
	case <-s.drain.started:
		return errReconfigured
	case <-s.life.Done():
		return s.endedFailure()
	}
}

// callWithRetry sends call. It sends call again only in these cases:
//   - the session was lost, and the tool provably did not run;
//   - the outcome is unknown, and the tool is repeatable;
//   - the user has visited the pages that the server requires (URL elicitation), once;
//   - the server refused the call's headers, and the tools have been listed again, once.
//
// The first two cases together make the server receive the call at most twice; each of the last two restarts that
// count. If one attempt has an unknown outcome and the server does not accept the next one, callWithRetry returns the
// failure of the earlier attempt.
func (s *server) callWithRetry(ctx context.Context, call Call, route callRoute) (*content.Result, *transport.Failure) {
	deadline := time.Now().Add(s.cfg.MaxTime)
	sends := 0                     // sends that the server may have received, since the user's visit or the new list
	visitedPages := false          // the user has visited the required pages
	relisted := false              // the tools were listed again because the server refused the headers
	var unknown *transport.Failure // failure of an earlier attempt whose outcome is unknown, or nil
	for try := 1; ; try++ {
		tool, failure := s.resolveTool(ctx, call, deadline)
		if failure == nil && call.Check {
			failure = checkArguments(tool, call.Args)
		}
		if failure != nil {
			return nil, cmp.Or(unknown, failure)
		}
		result, sent, failure := s.sendOnce(ctx, call, tool, route, deadline)
		if failure == nil {
			return result, nil
		}
		if sent {
			sends++
		}
		pages := session.RequiredElicitations(failure)
		mayRepeat := s.isSafeToRepeat(tool, failure) && sends <= 1 && try < maxTries && ctx.Err() == nil
		isNotAccepted := failure.Kind == Unavailable && failure.NotRun && !errors.Is(failure, transport.ErrCredentials)
		switch {
		case len(pages) > 0 && !visitedPages:
			askedAt := time.Now()
			if refusal := s.askToVisit(ctx, call, pages, route.onQuestion); refusal != "" {
				failure.Public = refusal
				return nil, failure
			}
			deadline = deadline.Add(time.Since(askedAt)) // the user's time does not count towards the call's
			visitedPages, sends = true, 0
		case isHeaderMismatch(failure) && !relisted && s.refreshNow(ctx, call.Principal) == nil:
			relisted, sends = true, 0
		case mayRepeat && failure.Kind == UnknownOutcome:
			unknown = failure
		case mayRepeat: // the session was lost before the call ran
		case unknown != nil && isNotAccepted:
			return nil, unknown // only the repetition did not run; the earlier attempt may have
		default:
			return nil, failure
		}
	}
}

// isSafeToRepeat reports whether a call of tool that ended with failure may be sent again.
func (s *server) isSafeToRepeat(tool catalog.Resolved, failure *transport.Failure) bool {
	lostBeforeRun := failure.Lost && failure.NotRun
	return lostBeforeRun || failure.Kind == UnknownOutcome && s.isRepeatable(tool)
}

// routeFor returns the session pool and the credentials for user's requests. It does not set onQuestion. After the
// requests have ended, release must be called. If routeFor fails, release is nil.
func (s *server) routeFor(user auth.Identity) (route callRoute, release func(), _ *transport.Failure) {
	if s.userSessions == nil {
		return callRoute{pool: s.pool}, func() {}, nil
	}
	acquired, failure := s.userSessions.acquireSession(user)
	if failure != nil {
		return callRoute{}, nil, failure
	}
	route = callRoute{pool: acquired.pool, tokens: s.userSessions.senderFor(user)}
	return route, func() { s.userSessions.releaseSession(acquired) }, nil
}

// resolveTool returns the tool that call names, if it may still be called on this server. It runs right before each
// attempt, because the tool may have changed while the call waited. The failure is errReconfigured if another server
// has the tool now. If the server has Pin, resolveTool first waits until deadline for the current session to list the
// tools.
func (s *server) resolveTool(ctx context.Context, call Call, deadline time.Time) (catalog.Resolved, *transport.Failure) {
	if failure := s.waitForPinnedTools(ctx, deadline); failure != nil {
		return catalog.Resolved{}, failure
	}
	tool, exists := s.client.catalog.Resolve(call.Tool)
	switch {
	case !exists:
		return tool, &transport.Failure{Kind: UnknownTool, Public: "the tool no longer exists", NotRun: true}
	case tool.ServerID != s.id:
		return tool, errReconfigured
	case tool.Disabled != "":
		return tool, &transport.Failure{Kind: Denied, Public: tool.Disabled, NotRun: true}
	}
	return tool, checkApproval(tool, call)
}

// isRepeatable reports whether a call of tool may be sent again after an unknown outcome. It may if the configuration
// says so, or if the tool reads a resource, which changes nothing. The server's own annotations do not count, since
// the server may be wrong about them.
func (s *server) isRepeatable(tool catalog.Resolved) bool {
	return tool.ReadsResources || catalog.MatchAny(s.cfg.IdempotentTools, tool.Original, tool.Name)
}

// callRoute has the sessions and the credentials with which a call is sent.
type callRoute struct {
	pool       *session.Pool    // the server's pool, or one user's
	tokens     transport.Sender // adds one user's tokens; nil if all users share the server's
	onQuestion func()           // called before the user is asked something, which may take long
}

// sendOnce sends call once, in the current session. sent reports whether the server may have received it, with a result
// or a failure. Before sendOnce returns a failure, it drops a lost session and updates the server's state. A suspended
// call has a result with InputRequired.
func (s *server) sendOnce(ctx context.Context, call Call, tool catalog.Resolved, route callRoute, deadline time.Time) (_ *content.Result, sent bool, _ *transport.Failure) {
	request := session.NewRequest(ctx, s.life, deadline, nil)
	defer request.Finish()
	request.SetIdleTimeout(s.cfg.Timeout)
	request.Tokens = route.tokens
	used, failure := route.pool.GetSession(request.Context())
	if failure != nil {
		return nil, false, s.handleNoSession(request, failure)
	}
	// The session may be newer than the list in which resolveTool found the tool. callWithRetry waits for the new
	// list.
	if s.cfg.Pin && !s.isListedFrom(used) {
		return nil, false, errListOutdated
	}
	request.Query = call.Context
	if params, err := catalog.HeaderParams(tool.InputSchema); err == nil && params != nil {
		request.Headers = catalog.HeaderValues(params, call.Args)
	}
	raw, failure := s.roundTrip(request, used, tool, call, route.onQuestion)
	if failure == nil && request.InputRequired != nil { // the call is suspended
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
	if failure := s.checkCannotAsk(errorResultText(result), tool, used, route.pool); failure != nil {
		return nil, true, failure
	}
	if result.IsError && ResultErrorKind(result) == UnknownTool {
		s.markOutdated() // the server had listed the tool, and may not have sent list_changed
	}
	result.Violations = tool.ResultViolations(result.Structured, result.IsError)
	if result.Violations != nil {
		// The violations quote the result, which must not appear in the log.
		s.log.Warn("MCP result does not fit the tool's output schema", "tool", tool.Name, "problems", len(result.Violations), help.ToolSchemas.Attr())
	}
	return result, true, nil
}

// handleNoSession reacts to failure, with which GetSession returned no session for request, and returns the failure to
// report. Usually that is failure, and the server gets the state that recordUnusable sets. If the request's context has
// ended, the server may work, so its state stays, and the failure to report says why the context ended.
func (s *server) handleNoSession(request *session.Request, failure *transport.Failure) *transport.Failure {
	if request.Context().Err() == nil {
		s.recordUnusable(failure)
		return failure
	}
	ended := request.Ended()
	if errors.Is(failure, transport.ErrCredentials) {
		ended.Err = failure // so that the log and isUserFailure see it
	}
	return ended
}

// recordUnusable marks the server as failed with failure, and wakes the supervisor to connect again if the state
// changed. It does nothing if the server has per-user sessions, because the failure may concern only one user.
func (s *server) recordUnusable(failure *transport.Failure) {
	if s.userSessions == nil && s.markFailed(failure) {
		s.wakeSupervisor()
	}
}

// handleFailure reacts to the failure of a call in the session used. It drops a lost session, has the tools listed
// again if the server does not know the tool, and marks the server as failed if it cannot be reached. It returns the
// failure to report: that of checkCannotAsk if the tool cannot ask the user, otherwise failure.
func (s *server) handleFailure(failure *transport.Failure, sent bool, tool catalog.Resolved, used *session.Session, route callRoute) *transport.Failure {
	if unableToAsk := s.checkCannotAsk(rpcErrorText(failure), tool, used, route.pool); unableToAsk != nil {
		return unableToAsk
	}
	if failure.Kind == UnknownTool {
		s.markOutdated() // the server had listed the tool, and may not have sent list_changed
	}
	switch {
	case failure.Lost: // if several calls lost this session, the pool still opens only one new session
		route.pool.DropSession(used)
	case !sent && failure.Kind == Unavailable && !isForbidden(failure):
		s.recordUnusable(failure)
	}
	return failure
}

// roundTrip sends tools/call in the session used, or resources/read if tool is the tool that reads resources. It
// returns the result as received. For a suspended call it returns neither a result nor a failure, and
// request.InputRequired is set.
func (s *server) roundTrip(request *session.Request, used *session.Session, tool catalog.Resolved, call Call, onQuestion func()) (json.RawMessage, *transport.Failure) {
	handlers := session.Handlers{
		OnProgress: call.Progress, OnLog: call.Log, Elicit: call.Elicit, Sample: call.Sample,
		OnQuestion: onQuestion, Suspend: call.Suspend, Resume: call.Resume,
	}
	if !tool.ReadsResources {
		return used.CallTool(request, session.ToolCall{
			Name: tool.Original, Args: call.Args, Meta: s.callMeta(call), Handlers: handlers,
		})
	}
	uri, failure := s.readURI(call.Args)
	if failure != nil {
		return nil, failure
	}
	return used.ReadResource(request, session.ResourceRead{URI: uri, Scope: s.readScope(call), Meta: s.callMeta(call), Handlers: handlers})
}

// Prefixes of names in _meta (MCP basic, _meta: reversed domain names).
const (
	reservedMeta = "io.modelcontextprotocol/" // reserved by the specification
	MetaPrefix   = "io.answerd/"              // for answerd's own entries
)

// callMeta returns the call's _meta: its Context, the ids that the configuration names, and its Meta. If a name occurs
// twice, the later source in this order wins. Call.Context comes from outside, so callMeta leaves out its reserved
// names and the progress token; otherwise it could set the protocol version, the client info or a user's subject.
func (s *server) callMeta(call Call) sdk.Meta {
	const otherEntries = 4 + 4 // at most 4 ids, and 4 entries that package session adds
	meta := make(sdk.Meta, len(call.Context)+len(call.Meta)+otherEntries)
	for name, value := range call.Context {
		isReserved := strings.HasPrefix(name, reservedMeta) || strings.HasPrefix(name, MetaPrefix)
		if !isReserved && name != "progressToken" {
			meta[name] = value
		}
	}
	for name, value := range s.callIDs(call) {
		meta[name] = value
	}
	maps.Copy(meta, call.Meta)
	return meta
}

// callIDs returns the call's ids that the server's configuration names, keyed by their names in _meta. If the
// configuration has no such list, that is the call id alone. Empty ids are left out.
func (s *server) callIDs(call Call) map[string]string {
	sent := s.cfg.Meta // the names without MetaPrefix
	if sent == nil {
		sent = []string{config.MetaCallID}
	}
	all := map[string]string{
		config.MetaCallID:   call.CallID,
		config.MetaRunID:    call.RunID,
		config.MetaThreadID: call.ThreadID,
		config.MetaSubject:  call.Principal.Subject,
	}
	ids := make(map[string]string, len(sent))
	for _, name := range sent {
		if all[name] != "" {
			ids[MetaPrefix+name] = all[name]
		}
	}
	return ids
}

// readScope returns what the server receives with a read besides the URI and may use to choose the content: the call's
// context and its ids, except the call id. Reads with different scopes do not share a cached result.
func (s *server) readScope(call Call) map[string]string {
	scope := make(map[string]string, len(call.Context)+3)
	maps.Copy(scope, call.Context)
	for name, value := range s.callIDs(call) {
		if name != MetaPrefix+config.MetaCallID {
			scope["_meta."+name] = value // the prefix distinguishes it from an entry of the context
		}
	}
	return scope
}

// Repeatable reports whether a call of tool may be sent again after an unknown outcome: the tool reads resources, or
// the configuration says that it is idempotent. It returns false for an unknown tool.
func (c *Client) Repeatable(tool string) bool {
	resolved, ok := c.catalog.Resolve(tool)
	if !ok {
		return false
	}
	s := c.serverByID(resolved.ServerID)
	return s != nil && s.isRepeatable(resolved)
}
