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
	// Server is the name of the tool's server; "" if unknown. It is used only for a tool that is not in the catalog
	// of this process, because its server has not been listed yet: Call then lists it, for which the user may have to
	// sign in.
	Server string
	Args   json.RawMessage // a JSON object; empty means {}
	// Check refuses arguments, as InvalidArguments, that do not fit the tool's input schema at the moment of sending.
	// That may be long after CheckArgs, because a call waits for a person's approval and for a permit, and during
	// that time the server may list its tools again.
	Check bool
	// Context goes to the server with this call: as query parameters over HTTP, and in _meta. At
	// most 64 entries and 8 KiB.
	Context map[string]string
	// Meta is merged into the request's _meta, such as traceparent. It wins over Context.
	Meta map[string]any
	// CallID, RunID and ThreadID go into _meta, if they are not empty and the server's configuration names them, and
	// so does the subject of Principal. They are the same in all attempts of a call.
	CallID, RunID, ThreadID string
	// Principal is the user for whom the call is made. Servers that are used on behalf of their callers need its
	// Token or its sign-in (config.AuthType.IsDelegated). Principals take turns in the queue for a server's permits.
	Principal auth.Identity
	// Approved is the Version of the tool for which a person approved these Args; "" if no person was asked. A tool
	// that NeedsApproval is called only if Approved is its present Version. Any other tool is called if Approved is
	// its present Version or "": a named agent may ask a person where the server does not.
	Approved string
	// Progress, if set, receives the server's progress notifications for this call, one at a time. Notifications that
	// arrive before the result or the error are delivered before Call returns, later ones never. A slow Progress
	// misses intermediate notifications and gets the latest.
	Progress func(Progress)
	// Log, if set, receives the server's log messages during this call. Log and Progress are never called at the same
	// time. A slow Log misses the latest messages; LogMessage.Omitted counts them. Over HTTP, a message belongs to
	// the call on whose stream it arrives. On a connection that all calls share, a message belongs to a call only
	// while no other call is in flight.
	Log func(LogMessage)
	// Elicit, if set, answers the server's elicitation requests during this call; nil declines them. It may be called
	// concurrently. It must return when its context ends, because Call waits for it; the context ends with the call
	// at the latest. An error means Cancel. The time it takes does not count towards the call's timeout.
	Elicit func(context.Context, Elicitation) (ElicitationResult, error)
	// Suspend ends the call when its server answers with input_required and asks the person (2026-07-28). The Result
	// then has InputRequired and nothing else, and Elicit is not called. Client keeps nothing of the call: any
	// process may send it again with Resume, once the person has answered the Elicitations of that result. A call
	// whose server asks in another way calls Elicit and is not suspended.
	Suspend bool
	Resume  *Resumption // the answers of the person to a suspended call; nil for a new call
	// Waiter identifies the caller of a call whose user may have to sign in to the server first
	// (AuthAuthorizationCode). If set, such a call ends with a Result that has SignIn and nothing else; if "", it is
	// Denied. The call was not sent, and Client keeps nothing of it: any process may send it again after AwaitSignIn,
	// with that SignIn. Client.Callback returns the Waiter when the user's browser is back.
	Waiter string
	SignIn *content.SignIn // of the previous Result, if the call is sent again after a sign-in; else nil
	// Sample, if set, answers the server's sampling requests, if the server's configuration allows
	// them. The rules of Elicit apply, except that its time counts towards the call's timeout.
	Sample func(context.Context, Sampling) (Sample, error)
}

const (
	maxArgs    = 1 << 20 // bytes of a call's arguments
	maxContext = 8 << 10 // bytes of the names and values of a call's context
	maxEntries = 64      // entries of a call's context
	maxTries   = 4       // attempts of one call, including those whose session was lost before anything was sent
)

// Call calls a tool and waits for its result. The error is a *CallError. A result
// with IsError is a result: the tool ran and says that it failed.
//
// The call waits under ctx for one of its server's permits; its timeout starts when it has one. When ctx ends, Call
// returns at once and sends notifications/cancelled to the server if the request was sent.
func (c *Client) Call(ctx context.Context, call Call) (*content.Result, error) {
	if call.SignIn != nil && call.SignIn.ListsTools {
		return c.callSignInAgain(ctx, call)
	}
	for {
		tool, listed := c.catalog.Resolve(call.Tool)
		if !listed {
			c.waitForFirstAttempts(ctx, call.Principal) // the tool's server may still be connecting
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
		// If a Reload has removed the server, another server may have the tool now. The loop ends, because each
		// further repetition needs a further Reload.
		if failure == errReconfigured && ctx.Err() == nil && c.life.Err() == nil {
			continue
		}
		return nil, callError(failure, call.Tool, tool.Server)
	}
}

// callListed checks a call and sends it to the server with that id, which listed the tool. The failure is
// errReconfigured if that server was removed, or if another server has the tool now.
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

// callWithPermit waits for a permit, sends the call with callWithRetry, and records the outcome in the breaker and in
// the concurrency limit. While the server's breaker is open, it fails at once. The failure is errReconfigured if a
// Reload removed the server, or gave the tool to another one, before the call was sent.
func (s *server) callWithPermit(ctx context.Context, call Call) (*content.Result, *transport.Failure) {
	if !s.isLive() {
		return nil, &transport.Failure{Kind: Unavailable, Public: "it is not in use", NotRun: true}
	}

	// Get the route before asking the breaker: a missing token or too many users are no evidence of the server's state.
	route, release, failure := s.routeFor(call.Principal)
	if failure != nil {
		return nil, failure
	}
	defer release()
	// Ask the breaker before waiting for a permit too: the queue may be long while the server fails.
	if f := s.breaker.openFailure(); f != nil {
		return nil, f
	}
	permit := s.callLimiter.Enqueue(call.Principal.Key(), call.Tool)
	defer permit.End(limiter.Unknown)

	select {
	case <-permit.Admitted():
	case <-ctx.Done():
		return nil, contextFailure(ctx)
	case <-s.drain.started:
		return nil, errReconfigured
	case <-s.life.Done():
		return nil, shutdownFailure(transport.ErrClosed)
	}

	if !s.drain.beginCall() {
		return nil, errReconfigured
	}
	defer s.drain.endCall()
	pass, failure := s.breaker.admitCall()
	if failure != nil {
		return nil, failure
	}
	outcome, retryAfter := outcomeNeutral, time.Duration(0) // recorded unchanged after a panic
	defer func() { s.breaker.recordOutcome(pass, outcome, retryAfter) }()

	route.onQuestion = func() {
		s.breaker.withdrawTrial(pass)
		permit.Exclude()
	}

	res, failure := s.callWithRetry(ctx, call, route)
	// A call that ended because of its caller (canceled, too little time, an unusable token) is no evidence of the
	// server's state.
	if ctx.Err() == nil && failure != errReconfigured && !s.isUserFailure(failure) {
		outcome = outcomeOf(failure)
		retryAfter = failure.RetryAfter()
		permit.End(loadOf(res, failure))
	}
	// The server works again, so the supervisor need not wait until the end of its backoff.
	if failure == nil && s.userSessions == nil && s.isUnreachable() {
		s.wakeSupervisor()
	}
	return res, failure
}

// callWithRetry sends the call, and sends it again in these cases only:
//   - the session was lost and the call provably did not run;
//   - the outcome is unknown and the tool is repeatable;
//   - the person has visited the pages that the server requires (URL elicitation), once;
//   - the server refused the headers of the call and the tools have been listed again, once.
//
// In the first two cases, the server gets the call twice at most. If the outcome of one attempt is unknown and the
// server does not accept the next one, callWithRetry returns the failure of the first.
func (s *server) callWithRetry(ctx context.Context, call Call, route callRoute) (*content.Result, *transport.Failure) {
	deadline := time.Now().Add(s.cfg.MaxTime)
	sends := 0                        // times that the server may have received the call since one of the last two cases
	visitedPages := false             // the person has visited the pages
	relisted := false                 // the tools were listed again because of the headers
	var mayHaveRun *transport.Failure // of an earlier attempt whose outcome is unknown
	for try := 1; ; try++ {
		tool, failure := s.resolveTool(ctx, call, deadline)
		if failure == nil && call.Check {
			failure = checkArguments(tool, call.Args)
		}
		if failure != nil {
			return nil, cmp.Or(mayHaveRun, failure)
		}
		res, sent, failure := s.sendOnce(ctx, call, tool, route, deadline)
		if failure == nil {
			return res, nil
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
			deadline = deadline.Add(time.Since(askedAt)) // the person's time does not count towards the call's
			visitedPages, sends = true, 0
		case isHeaderMismatch(failure) && !relisted && s.refreshNow(ctx, call.Principal) == nil:
			relisted, sends = true, 0
		case mayRepeat && failure.Kind == UnknownOutcome:
			mayHaveRun = failure
		case mayRepeat: // the session was lost before the call ran
		case mayHaveRun != nil && isNotAccepted:
			return nil, mayHaveRun // only the repetition did not run; the earlier attempt may have
		default:
			return nil, failure
		}
	}
}

// isSafeToRepeat reports whether a call of the tool that ended with failure may be sent again.
func (s *server) isSafeToRepeat(tool catalog.Resolved, failure *transport.Failure) bool {
	lostBeforeRun := failure.Lost && failure.NotRun
	return lostBeforeRun || failure.Kind == UnknownOutcome && s.isRepeatable(tool)
}

// routeFor returns the session pool and the credentials for requests of the user, without onQuestion. The caller must
// call release, which is nil after a failure, when the requests have ended.
func (s *server) routeFor(user auth.Identity) (route callRoute, release func(), _ *transport.Failure) {
	if s.userSessions == nil {
		return callRoute{pool: s.pool}, func() {}, nil
	}
	u, f := s.userSessions.acquireSession(user)
	if f != nil {
		return callRoute{}, nil, f
	}
	route = callRoute{pool: u.pool, tokens: s.userSessions.senderFor(user)}
	return route, func() { s.userSessions.releaseSession(u) }, nil
}

// resolveTool returns the tool of a call if this server still has it and it may be called. It runs right before each
// attempt, because the tool may have changed while the call waited. The failure is errReconfigured if another server
// has the tool now. With pinned tools, resolveTool first waits, until deadline, for a list that the current session
// has sent.
func (s *server) resolveTool(ctx context.Context, call Call, deadline time.Time) (catalog.Resolved, *transport.Failure) {
	if f := s.waitForPinnedTools(ctx, deadline); f != nil {
		return catalog.Resolved{}, f
	}
	tool, ok := s.client.catalog.Resolve(call.Tool)
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
func (s *server) isRepeatable(tool catalog.Resolved) bool {
	return tool.ReadsResources || catalog.MatchAny(s.cfg.IdempotentTools, tool.Original, tool.Name)
}

// callRoute says how a call is sent.
type callRoute struct {
	pool       *session.Pool    // of the server, or of one user
	tokens     transport.Sender // with the tokens of one user; nil if all users share the server's
	onQuestion func()           // called before a person is asked, which may take long
}

// sendOnce sends the call once, in the current session, and reports whether the server may have received it. A
// failure has been handled: a lost session was dropped, and the server's state is set.
func (s *server) sendOnce(ctx context.Context, call Call, tool catalog.Resolved, route callRoute, deadline time.Time) (_ *content.Result, sent bool, _ *transport.Failure) {
	request := session.NewRequest(ctx, s.life, deadline, nil)
	defer request.Finish()
	request.SetIdleTimeout(s.cfg.Timeout)
	request.Tokens = route.tokens
	used, failure := route.pool.GetSession(request.Context())
	if failure != nil {
		return nil, false, s.sessionFailure(request, failure)
	}
	// The session may be newer than the list in which resolveTool found the tool. The next attempt waits for the new
	// list.
	if s.cfg.Pin && !s.isListedFrom(used) {
		return nil, false, listOutdated
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
	if failure := s.checkCannotAsk(tool, used, route, result, nil); failure != nil {
		return nil, true, failure
	}
	if result.IsError && ResultErrorKind(result) == UnknownTool {
		s.markOutdated() // the server listed the tool, and may not announce that its list has changed
	}
	result.Violations = tool.ResultViolations(result.Structured, result.IsError)
	if result.Violations != nil {
		// The violations quote the result, which must not be logged.
		s.log.Warn("MCP result does not fit the tool's output schema", "tool", tool.Name, "problems", len(result.Violations), help.ToolSchemas.Attr())
	}
	return result, true, nil
}

// sessionFailure returns the failure of a call that got no session, because GetSession returned failure. There are
// two cases. If the request's deadline or its caller ended the wait, sessionFailure returns that, with failure as the
// cause only if failure is about the user's credentials. Otherwise it returns failure, marks the server as failed
// (unless each user has sessions of their own), and wakes the supervisor, which connects it again.
func (s *server) sessionFailure(request *session.Request, failure *transport.Failure) *transport.Failure {
	if request.Context().Err() != nil {
		ended := request.Ended()
		if errors.Is(failure, transport.ErrCredentials) {
			ended.Err = failure
		}
		return ended
	}
	if s.userSessions == nil && s.markFailed(failure) {
		s.wakeSupervisor()
	}
	return failure
}

// decodeResult decodes the result of tools/call, or of resources/read if the tool is the one that reads resources.
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

// handleFailure handles the failure of a call in the session used: it drops a lost session, has the tools listed
// again if the server does not know the tool, and marks a server as failed that cannot be reached. It returns the
// failure for the caller, which is another one if the tool cannot ask the user (checkCannotAsk).
func (s *server) handleFailure(failure *transport.Failure, sent bool, tool catalog.Resolved, used *session.Session, route callRoute) *transport.Failure {
	if unableToAsk := s.checkCannotAsk(tool, used, route, nil, failure); unableToAsk != nil {
		return unableToAsk
	}
	if failure.Kind == UnknownTool {
		s.markOutdated() // the server listed the tool, and may not announce that its list has changed
	}
	switch {
	case failure.Lost: // if other calls have lost the same session, the pool makes one new session for all
		route.pool.DropSession(used)
	case !sent && failure.Kind == Unavailable && s.userSessions == nil:
		if s.markFailed(failure) {
			s.wakeSupervisor()
		}
	}
	return failure
}

// roundTrip sends tools/call in the session used, or resources/read if the tool is the one that reads resources, and
// returns the result as received. A suspended call has no result: request.InputRequired is set.
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
	uri, f := s.readURI(call.Args)
	if f != nil {
		return nil, f
	}
	return used.ReadResource(request, session.ResourceRead{URI: uri, Scope: s.readScope(call), Meta: s.callMeta(call), Handlers: handlers})
}

// Prefixes of names in _meta (MCP basic, _meta: reversed domains).
const (
	reservedMeta = "io.modelcontextprotocol/" // of the specification
	MetaPrefix   = "io.answerd/"              // of answerd
)

// callMeta returns the _meta of a call: its Context, the ids that the configuration names, and its Meta, where of two
// equal names the later wins. Call.Context comes from outside, so names that would set the protocol version, the
// client info, a progress token or a caller's subject are left out.
func (s *server) callMeta(call Call) sdk.Meta {
	m := make(sdk.Meta, len(call.Context)+len(call.Meta)+8) // room for 4 ids, and for 4 entries that the session adds
	for name, value := range call.Context {
		isReserved := strings.HasPrefix(name, reservedMeta) || strings.HasPrefix(name, MetaPrefix)
		if !isReserved && name != "progressToken" {
			m[name] = value
		}
	}
	for name, value := range s.callIDs(call) {
		m[name] = value
	}
	maps.Copy(m, call.Meta)
	return m
}

// callIDs returns the ids of a call that the server's configuration names, by their names in _meta. Without a
// configuration that is the call id alone. Empty ids are left out.
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

// readScope returns everything that the server gets with a read besides the URI and on which the content of the
// resource may depend: the context and the ids of the call, except for its call id. Reads with different scopes do
// not share a cached result.
func (s *server) readScope(call Call) map[string]string {
	scope := make(map[string]string, len(call.Context)+3)
	maps.Copy(scope, call.Context)
	for name, value := range s.callIDs(call) {
		if name != MetaPrefix+config.MetaCallID {
			scope["_meta."+name] = value // the prefix keeps it apart from an entry of the context with the same name
		}
	}
	return scope
}

// Repeatable reports whether a call of the tool may be sent again when its outcome is unknown: the tool reads
// resources, or the configuration says that it is idempotent. An unknown tool is not repeatable.
func (c *Client) Repeatable(tool string) bool {
	resolved, ok := c.catalog.Resolve(tool)
	if !ok {
		return false
	}
	s := c.serverByID(resolved.ServerID)
	return s != nil && s.isRepeatable(resolved)
}
