package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"answerd/internal/auth"
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/oauth"
	"answerd/internal/mcp/transport"
)

// maxConsents bounds how often one call asks its user to sign in. A call can need three sign-ins: the first one, one
// for more scopes, and one after the server has moved to another authorization server. The bound ends the loop with a
// server that refuses every token.
const maxConsents = 3

// callWithConsent sends call to the server or, if call is one of the tool sign_in, lists the server's tools. If the
// user must first sign in and call has a Waiter, the result has SignIn and nothing else.
func (s *server) callWithConsent(ctx context.Context, call Call) (*content.Result, *transport.Failure) {
	tool, _ := s.client.catalog.Resolve(call.Tool)
	isSignInTool := tool.SignsIn || call.SignIn != nil && call.SignIn.ListsTools
	listsTools := isSignInTool && s.signInClient() != nil // a Reload may have ended the need to sign in
	var result *content.Result
	var failure *transport.Failure
	if listsTools {
		result, failure = s.callSignInTool(ctx, call)
	} else {
		result, failure = s.callWithPermit(ctx, call)
	}
	if failure != nil {
		return s.askForConsent(ctx, call, failure, listsTools)
	}
	return result, nil
}

// askForConsent handles the failure of call. If the call failed because the user has not signed in, askForConsent
// starts a sign-in and returns a result with SignIn, which has the URL to sign in at. If call has no Waiter, it starts
// no sign-in and returns a Denied failure. It returns failure itself if a sign-in does not help, or if call has
// already asked for maxConsents sign-ins. listsTools says that call is one of the tool sign_in.
func (s *server) askForConsent(ctx context.Context, call Call, failure *transport.Failure, listsTools bool) (*content.Result, *transport.Failure) {
	timesAsked := 0
	if call.SignIn != nil {
		timesAsked = call.SignIn.Asked
	}
	lacksConsent := failure.NotRun && errors.Is(failure, oauth.ErrConsent)
	if !lacksConsent || s.signInClient() == nil || timesAsked == maxConsents {
		return nil, failure
	}
	if call.Waiter == "" {
		return nil, consentFailure(nil)
	}
	authorization, err := s.signInClient().Authorize(ctx, call.Principal, call.Waiter)
	if err != nil {
		return nil, &transport.Failure{Kind: Unavailable, Public: publicText(err), NotRun: true, Err: transport.CredentialsError(err)}
	}
	return &content.Result{SignIn: &content.SignIn{
		Server: s.cfg.Name, State: authorization.State, URL: authorization.URL, Expires: authorization.Expires,
		Asked: timesAsked + 1, InMemory: s.client.opts.inMemory, ListsTools: listsTools,
		Message: fmt.Sprintf("The MCP server %s needs your permission to act on your behalf. Sign in at %s.", s.cfg.Name, authorization.Host()),
	}}, nil
}

// signInClient returns the OAuth client that signs users in to the server, or nil if they need not sign in.
func (s *server) signInClient() *oauth.Client {
	if s.userSessions == nil {
		return nil
	}
	return s.userSessions.signInClient
}

// AwaitSignIn returns nil if call, which ended with SignIn, can be sent again. action is the user's answer to the
// question whether they sign in. With Accept, AwaitSignIn waits until the user has returned from signing in, the
// sign-in expires or ctx ends. With any other answer it does not wait, but still returns nil if the user has signed
// in. The error is a *CallError.
func (c *Client) AwaitSignIn(ctx context.Context, call Call, action string) error {
	s := c.serverByName(call.SignIn.Server)
	if s == nil || s.signInClient() == nil {
		return nil // a Reload has removed the server or the need to sign in: sending the call again finds out
	}
	hasAgreed := action == Accept
	err := s.signInClient().Await(ctx, call.SignIn.State, hasAgreed)
	var failure *transport.Failure
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		failure = contextFailure(ctx)
	case s.life.Err() != nil:
		failure = shutdownFailure(transport.ErrClosed)
	case errors.Is(err, oauth.ErrConsent):
		failure = consentFailure(err)
	default:
		failure = &transport.Failure{Kind: Denied, Public: publicText(err), NotRun: true, Err: transport.CredentialsError(err)}
	}
	return callError(failure, call.Tool, s.cfg.Name)
}

// consentFailure returns the failure of a call whose user refused to sign in or could not be asked. err is the cause,
// for the log; it may be nil.
func consentFailure(err error) *transport.Failure {
	return &transport.Failure{Kind: Denied, NotRun: true, Err: transport.CredentialsError(err),
		Public: "sign-in required: the user has not authorized access to this server. " +
			"Where the user can be asked, as in POST /answer/stream, they receive the address for it"}
}

// publicText returns the part of err, an error of package oauth, that may be shown to the user.
func publicText(err error) string {
	if e, ok := errors.AsType[*oauth.Error](err); ok {
		return e.Public
	}
	return "there is no token for it"
}

// callSignInTool executes a call of the tool sign_in: it lists the server's tools with the token of call.Principal, and
// returns a text with their names. If that user has not signed in yet, the failure wraps oauth.ErrConsent.
func (s *server) callSignInTool(ctx context.Context, call Call) (*content.Result, *transport.Failure) {
	if err := s.userSessions.listTools(ctx, call.Principal, always); err != nil {
		if failure, ok := errors.AsType[*transport.Failure](err); ok {
			return nil, failure
		}
		if ctx.Err() != nil {
			return nil, contextFailure(ctx)
		}
		return nil, shutdownFailure(err)
	}
	var names []string
	for _, t := range s.client.catalog.Offered() {
		if t.Server == s.cfg.Name {
			names = append(names, t.Name)
		}
	}
	text := "The user has signed in. These tools are available from the next question on: " + strings.Join(names, ", ")
	return &content.Result{Content: []json.RawMessage{content.TextBlock(text)}}, nil
}

// repeatSignInCall sends a call of the tool sign_in again, after the user was asked to sign in. It finds the server by
// call.SignIn and not by the tool, because the server's own tools replace sign_in as soon as they are listed for any
// user. The error is a *CallError.
func (c *Client) repeatSignInCall(ctx context.Context, call Call) (*content.Result, error) {
	s := c.serverByName(call.SignIn.Server)
	if s == nil || s.signInClient() == nil {
		return nil, unknownToolError(call.Tool)
	}
	result, failure := s.callWithConsent(ctx, call)
	if failure != nil {
		return nil, callError(failure, call.Tool, s.cfg.Name)
	}
	return result, nil
}

// listServerOf lists the tools of the server call.Server with the token of call's user, because call's tool is not in
// the catalog. It does so only if users sign in to the server, and this process has not listed its tools yet. It
// returns
//   - nil and nil if that succeeded: the tool may be in the catalog now;
//   - a result with SignIn if the user must sign in first;
//   - a *CallError otherwise, of kind UnknownTool if the tool cannot belong to an unlisted server.
func (c *Client) listServerOf(ctx context.Context, call Call) (signIn *content.Result, _ error) {
	s := c.serverByName(call.Server)
	if s == nil || s.signInClient() == nil || s.userSessions.wasListed() {
		return nil, unknownToolError(call.Tool)
	}
	err := s.userSessions.listTools(ctx, call.Principal, ifNeeded)
	failure, isFailure := errors.AsType[*transport.Failure](err)
	switch {
	case err == nil:
		return nil, nil
	case ctx.Err() != nil:
		failure = contextFailure(ctx)
	case isFailure:
		signIn, failure = s.askForConsent(ctx, call, failure, false) // false: the tool is not sign_in
	default: // the server's life has ended
		failure = shutdownFailure(err)
	}
	if failure != nil {
		return nil, callError(failure, call.Tool, s.cfg.Name)
	}
	return signIn, nil
}

// unknownToolError returns the error of a call of a tool that no server has.
func unknownToolError(tool string) *CallError {
	return callError(&transport.Failure{Kind: UnknownTool, Public: "no tool has that name"}, tool, "")
}

// Callback handles the query with which an authorization server redirected a browser to the redirect URL (RFC 6749,
// section 4.1.2). Another process may have started the sign-in. Callback may take 35 s: 20 s for the token, and the
// rest for Options.SignIns. The end of ctx does not shorten that.
//
// If the state parameter is unknown, expired or already used, found is false and nothing happens. If err is not nil
// and found is false, err comes from Options.SignIns, and the same query may be handled later. waiters are the Waiters
// of the calls that wait for the sign-in. If err is nil, these calls can be sent again; otherwise they fail.
func (c *Client) Callback(ctx context.Context, query url.Values) (waiters []string, found bool, err error) {
	for _, s := range c.allServers() {
		client := s.signInClient()
		if client == nil {
			continue
		}
		if waiters, found, err = client.Callback(ctx, query); found || err != nil {
			return waiters, found, err
		}
	}
	return nil, false, nil
}

// SignOut removes the tokens that user has granted for a server of AuthAuthorizationCode, and asks the authorization
// server to revoke them if it has an endpoint for that. It reports whether the user had signed in. The error is
// ErrUnknownServer, also for a server that needs no sign-in, or an *oauth.Error.
func (c *Client) SignOut(ctx context.Context, user auth.Identity, name string) (bool, error) {
	s := c.serverByName(name)
	if s == nil || s.signInClient() == nil {
		return false, fmt.Errorf("sign out of %.64q: %w", name, ErrUnknownServer)
	}
	return s.signInClient().SignOut(ctx, user)
}

// SignInAt returns the host at which users sign in to a server of AuthAuthorizationCode. It requests the server's
// metadata, but does not register a client. The error is ErrUnknownServer, also for a server that needs no sign-in, or
// an *oauth.Error.
func (c *Client) SignInAt(ctx context.Context, name string) (string, error) {
	s := c.serverByName(name)
	if s == nil || s.signInClient() == nil {
		return "", fmt.Errorf("sign in to %.64q: %w", name, ErrUnknownServer)
	}
	return s.signInClient().SignInHost(ctx, auth.Identity{})
}

// askToVisit asks the user to visit pages, one after the other, and calls onQuestion before that. It returns "" if the
// user accepted all of them. Otherwise it returns a reason for the user: call.Elicit is nil, the user declined a page,
// or ctx or the server's life has ended.
func (s *server) askToVisit(ctx context.Context, call Call, pages []Elicitation, onQuestion func()) (refusal string) {
	if call.Elicit == nil {
		return "the user must visit a web page first, and can be asked to only in a run; ask a question that needs this tool"
	}
	onQuestion()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.life, func() { stop(context.Cause(s.life)) })()
	for _, page := range pages {
		answer, err := call.Elicit(ctx, page)
		if err != nil || answer.Action != Accept || ctx.Err() != nil {
			return "the user did not agree to visit the web page that it requires first"
		}
	}
	return ""
}
