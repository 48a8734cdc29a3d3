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

// maxConsents bounds how often one call asks its user to sign in: the first time, for a larger
// scope, and after the server has moved to another authorization server. The bound ends the
// loop with a server that always refuses the token.
const maxConsents = 3

// callWithConsent makes a call. If the server requires the user to sign in first, the call ends with a
// Result that says where.
func (s *server) callWithConsent(ctx context.Context, call Call) (*content.Result, *transport.Failure) {
	b, _ := s.c.catalog.Resolve(call.Tool)
	signsIn := b.SignsIn || call.SignIn != nil && call.SignIn.ListsTools
	listsTools := signsIn && s.consentClient() != nil
	do := s.callWithPermit
	if listsTools {
		do = s.callSignIn
	}
	res, f := do(ctx, call)
	if f == nil {
		return res, nil
	}
	return s.askForConsent(ctx, call, f, listsTools)
}

// askForConsent returns where the user of a call that failed must sign in, or the failure if a sign-in does not help.
// listsTools says that the call was one of the tool sign_in, which lists the server's tools.
func (s *server) askForConsent(ctx context.Context, call Call, failure *transport.Failure, listsTools bool) (*content.Result, *transport.Failure) {
	asked := 0
	if call.SignIn != nil {
		asked = call.SignIn.Asked
	}
	lacksConsent := failure.NotRun && errors.Is(failure, oauth.ErrConsent)
	switch {
	case !lacksConsent || s.consentClient() == nil || asked == maxConsents:
		return nil, failure
	case call.Waiter == "":
		return nil, consentFailure(nil)
	}
	a, err := s.consentClient().Authorize(ctx, call.Principal, call.Waiter)
	if err != nil {
		return nil, &transport.Failure{Kind: Unavailable, Public: publicText(err), NotRun: true, Err: transport.CredentialsError(err)}
	}
	return &content.Result{SignIn: &content.SignIn{
		Server: s.cfg.Name, State: a.State, URL: a.URL, Expires: a.Expires, Asked: asked + 1, InMemory: s.c.opts.inMemory,
		ListsTools: listsTools, Message: fmt.Sprintf("The MCP server %s needs your permission to act on your behalf. Sign in at %s.", s.cfg.Name, a.Host()),
	}}, nil
}

// consentClient returns the client at which users authorize the server, or nil if they need not.
func (s *server) consentClient() *oauth.Client {
	if s.callers == nil {
		return nil
	}
	return s.callers.consents
}

// AwaitSignIn returns nil if a call that has ended with SignIn can be sent again. action is the user's
// answer: if they have accepted, AwaitSignIn waits until their browser is back or the sign-in has
// expired. The browser counts even if the user has refused to sign in. The error is a *CallError.
func (c *Client) AwaitSignIn(ctx context.Context, call Call, action string) error {
	srv := c.serverByName(call.SignIn.Server)
	if srv == nil || srv.consentClient() == nil {
		return nil // the configuration has changed: the call says what that means for it
	}
	err := srv.consentClient().Await(ctx, call.SignIn.State, action == Accept)
	var failure *transport.Failure
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		failure = contextFailure(ctx)
	case srv.life.Err() != nil:
		failure = &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: transport.ErrClosed}
	case errors.Is(err, oauth.ErrConsent):
		failure = consentFailure(err)
	default:
		failure = &transport.Failure{Kind: Denied, Public: publicText(err), NotRun: true, Err: transport.CredentialsError(err)}
	}
	return callError(failure, call.Tool, srv.cfg.Name)
}

// consentFailure returns the failure of a call whose user refused to sign in or could not be asked.
func consentFailure(err error) *transport.Failure {
	return &transport.Failure{Kind: Denied, NotRun: true, Err: transport.CredentialsError(err),
		Public: "sign-in required: the user has not authorized access to this server. " +
			"Where the user can be asked, as in POST /answer/stream, they receive the address for it"}
}

// publicText returns the part of an error of package oauth that is fit for the caller.
func publicText(err error) string {
	if e, ok := errors.AsType[*oauth.Error](err); ok {
		return e.Public
	}
	return "there is no token for it"
}

// callSignIn lists the tools with the principal's token. If the user has not signed in yet, that
// fails with oauth.ErrConsent.
func (s *server) callSignIn(ctx context.Context, call Call) (*content.Result, *transport.Failure) {
	if err := s.callers.listTools(ctx, call.Principal, true); err != nil {
		if f, ok := errors.AsType[*transport.Failure](err); ok {
			return nil, f
		}
		if ctx.Err() != nil {
			return nil, contextFailure(ctx)
		}
		return nil, &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: err}
	}
	var names []string
	for _, t := range s.c.catalog.Offered() {
		if t.Server == s.cfg.Name {
			names = append(names, t.Name)
		}
	}
	text := "The user has signed in. These tools are available from the next question on: " + strings.Join(names, ", ")
	return &content.Result{Content: []json.RawMessage{content.TextBlock(text)}}, nil
}

// callSignInAgain calls the tool sign_in of the server that a user was asked to sign in to. That tool may
// be gone: the server's own tools replace it as soon as anybody has listed them.
func (c *Client) callSignInAgain(ctx context.Context, call Call) (*content.Result, error) {
	s := c.serverByName(call.SignIn.Server)
	if s == nil || s.consentClient() == nil {
		return nil, callError(&transport.Failure{Kind: UnknownTool, Public: "no tool has that name"}, call.Tool, "")
	}
	res, f := s.callWithConsent(ctx, call)
	if f != nil {
		return nil, callError(f, call.Tool, s.cfg.Name)
	}
	return res, nil
}

// callUnlisted handles a call of a tool that is unknown, perhaps because nobody has signed in to its server
// in this process. Then it lists the tools with the token of the user, who may have to sign in. Without
// a result and an error, the tool may be known now.
func (c *Client) callUnlisted(ctx context.Context, call Call) (*content.Result, error) {
	srv := c.serverByName(call.Server)
	if srv == nil || srv.consentClient() == nil || srv.callers.isKnown() {
		return nil, callError(&transport.Failure{Kind: UnknownTool, Public: "no tool has that name"}, call.Tool, "")
	}
	err := srv.callers.listTools(ctx, call.Principal, false)
	failure, failed := errors.AsType[*transport.Failure](err)
	switch {
	case err == nil:
		return nil, nil
	case ctx.Err() != nil:
		return nil, callError(contextFailure(ctx), call.Tool, srv.cfg.Name)
	case !failed:
		return nil, callError(&transport.Failure{
			Kind:   Cancelled,
			Public: "answerd is shutting down",
			NotRun: true,
			Err:    err,
		}, call.Tool, srv.cfg.Name)
	}
	res, failure := srv.askForConsent(ctx, call, failure, false)
	if failure != nil {
		return nil, callError(failure, call.Tool, srv.cfg.Name)
	}
	return res, nil
}

// Callback handles the query with which an authorization server redirected a browser to the
// redirect URL (RFC 6749, section 4.1.2), wherever the sign-in was started. found is false if the state
// parameter is unknown, expired or already used; then nothing happens. waiters are those of the calls
// that wait for the sign-in: they can be sent again, or fail if err is not nil. An error with found
// false is that of Options.SignIns, and the same query may be handled later. Callback waits up to 20 s
// for the token.
func (c *Client) Callback(ctx context.Context, query url.Values) (waiters []string, found bool, err error) {
	for _, s := range c.allServers() {
		if o := s.consentClient(); o != nil {
			if waiters, found, err = o.Callback(ctx, query); found || err != nil {
				return waiters, found, err
			}
		}
	}
	return nil, false, nil
}

// SignOut removes the tokens that a user has granted for a server of AuthAuthorizationCode, and has
// them revoked where the authorization server can do that. It reports whether the user had signed in.
func (c *Client) SignOut(ctx context.Context, user auth.Identity, name string) (bool, error) {
	s := c.serverByName(name)
	if s == nil || s.consentClient() == nil {
		return false, fmt.Errorf("sign out of %.64q: %w", name, ErrUnknownServer)
	}
	return s.consentClient().SignOut(ctx, user)
}

// SignInAt returns the host at which users sign in to a server of AuthAuthorizationCode, from the
// server's present metadata. It does not register a client.
func (c *Client) SignInAt(ctx context.Context, name string) (string, error) {
	s := c.serverByName(name)
	if s == nil || s.consentClient() == nil {
		return "", fmt.Errorf("sign in to %.64q: %w", name, ErrUnknownServer)
	}
	return s.consentClient().SignInHost(ctx, auth.Identity{})
}

// elicitAll asks the person to visit each of the pages in turn, and reports whether they accepted
// all.
func (s *server) elicitAll(ctx context.Context, call Call, pages []Elicitation) bool {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.life, func() { stop(context.Cause(s.life)) })()
	for _, page := range pages {
		res, err := call.Elicit(ctx, page)
		if err != nil || res.Action != Accept || ctx.Err() != nil {
			return false
		}
	}
	return true
}
