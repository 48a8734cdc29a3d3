package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"answerd/internal/auth"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/oauth"
	"answerd/internal/mcp/transport"
)

const (
	// maxConsents bounds how often one call asks its user to sign in: the first time, for a larger
	// scope, and after the server has moved to another authorization server. The bound ends the
	// loop with a server that always refuses the token.
	maxConsents = 3
	// awaitConsent is the reason that a server's status gives until the first user has signed in.
	awaitConsent = "its tools are listed after the first user has signed in"
	signInTool   = "sign_in"
)

// callWithConsent makes a call. If the server requires the user to sign in first, callWithConsent
// asks them to and then repeats the call. While it waits for the user, it holds no permit.
func (s *server) callWithConsent(ctx context.Context, call Call) (*content.Result, *transport.Failure) {
	do := s.callWithPermit
	if b, ok := s.c.catalog.Resolve(call.Tool); ok && b.SignsIn && s.consentClient() != nil {
		do = s.callSignIn
	}
	for asked := 0; ; asked++ {
		res, f := do(ctx, call)
		if f == nil || !f.NotRun || s.consentClient() == nil || !errors.Is(f, oauth.ErrConsent) || asked == maxConsents {
			return res, f
		}
		if f := s.askForConsent(ctx, call); f != nil {
			return nil, f
		}
	}
}

// consentClient returns the client at which users authorize the server, or nil if they need not.
func (s *server) consentClient() *oauth.Client {
	if s.callers == nil {
		return nil
	}
	return s.callers.consents
}

// askForConsent asks the user of a call to sign in with their browser and waits until they have.
// The browser's redirect counts even if the user has not answered the elicitation, so both are
// awaited.
func (s *server) askForConsent(ctx context.Context, call Call) *transport.Failure {
	if call.Elicit == nil {
		return consentFailure(nil)
	}
	a, err := s.consentClient().Authorize(ctx, call.Principal)
	if err != nil {
		return &transport.Failure{Kind: Unavailable, Public: publicText(err), NotRun: true, Err: transport.CredentialsError(err)}
	}
	actx, end := context.WithDeadline(ctx, a.Expires)
	defer end()
	defer context.AfterFunc(s.life, end)()
	var watch sync.WaitGroup
	defer watch.Wait()
	defer end()
	watch.Go(func() {
		select {
		case <-a.Done:
			end()
		case <-actx.Done():
		}
	})
	res, err := call.Elicit(actx, Elicitation{
		Mode: ElicitURL, URL: a.URL, Done: a.Done,
		Message: fmt.Sprintf("The MCP server %s needs your permission to act on your behalf. Sign in at %s.", s.cfg.Name, a.Host()),
	})
	if err == nil && res.Action == Accept {
		<-actx.Done() // at the latest when it expires
	}
	switch {
	case isClosed(a.Done):
		if err := a.Err(); err != nil {
			return &transport.Failure{Kind: Denied, Public: publicText(err), NotRun: true, Err: transport.CredentialsError(err)}
		}
		return nil
	case ctx.Err() != nil:
		return contextFailure(ctx)
	case s.life.Err() != nil:
		return &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: transport.ErrClosed}
	}
	return consentFailure(err)
}

// consentFailure returns the failure of a call whose user refused to sign in or could not be asked.
func consentFailure(err error) *transport.Failure {
	return &transport.Failure{Kind: Denied, NotRun: true, Err: transport.CredentialsError(err),
		Public: "sign-in required: the user has not authorized access to this server. Where the user can be asked, as in POST /answer/stream, they receive the address for it"}
}

// publicText returns the part of an error of package oauth that is fit for the caller.
func publicText(err error) string {
	if e, ok := errors.AsType[*oauth.Error](err); ok {
		return e.Public
	}
	return "there is no token for it"
}

// offerSignIn offers one tool that asks the user to sign in. The server's own tools cannot be
// listed before that, and without any tool the model would have no reason to call the server.
func (c *userSessions) offerSignIn(f *transport.Failure) {
	c.mu.Lock()
	known := c.known
	c.mu.Unlock()
	if known || c.consents == nil || !errors.Is(f, oauth.ErrConsent) {
		return
	}
	c.s.c.catalog.SetTools(c.s.id, &c.s.cfg, []catalog.Tool{{
		Server: c.s.cfg.Name, Original: signInTool, SignsIn: true,
		Title:       "Sign in to " + c.s.cfg.Name,
		Description: "Asks the user to sign in to the MCP server " + c.s.cfg.Name + ", so that its tools can be used on their behalf. Call it when the question needs that server.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Annotations: &catalog.Annotations{ReadOnly: true}, // it changes nothing, and the user is asked anyway
	}})
}

// callSignIn lists the tools with the principal's token. If the user has not signed in yet, that
// fails with oauth.ErrConsent, and callWithConsent asks them to.
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

// Callback handles the query with which an authorization server redirected a browser to the
// redirect URL (RFC 6749, section 4.1.2). found is false if the state parameter is unknown, expired
// or already used; then nothing happens. Otherwise the calls that wait for the sign-in continue, or
// fail if err is not nil. Callback waits up to 20 s for the token.
func (c *Client) Callback(ctx context.Context, query url.Values) (found bool, err error) {
	for _, s := range c.allServers() {
		if o := s.consentClient(); o != nil {
			if found, err = o.Callback(ctx, query); found {
				return true, err
			}
		}
	}
	return false, nil
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
