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
	// maxConsents is how often one call asks its person to agree: first, to more rights,
	// and once more where the server has moved to another authorization server. A server
	// that is never content gets no more.
	maxConsents = 3
	// awaitConsent is the state of a server that nobody has allowed yet to be used.
	awaitConsent = "its tools are listed once a caller has allowed that it is used on his behalf"
	signInTool   = "sign_in"
)

// callWithConsent makes a call. Where the server is used on behalf of the call's principal, and he
// has not agreed to that yet, he is asked, and then the call goes on by itself. It holds
// no permit meanwhile.
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

// askForConsent asks the person behind a call to agree in his browser, and waits until he has. He
// may do so without a word to us, or say first that he will.
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
		Message: fmt.Sprintf("The MCP server %s is used on your behalf, which you have to allow at %s.", s.cfg.Name, a.Host()),
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

// consentFailure returns the failure of a call whose user refused, or could not be asked.
func consentFailure(err error) *transport.Failure {
	return &transport.Failure{Kind: Denied, NotRun: true, Err: transport.CredentialsError(err),
		Public: "its user has not allowed that it is used on his behalf. Where he can be asked, as in POST /answer/stream, he is given the address to do so"}
}

// publicText returns the part of an error of package oauth that is fit for the caller.
func publicText(err error) string {
	if e, ok := errors.AsType[*oauth.Error](err); ok {
		return e.Public
	}
	return "there is no token for it"
}

// offerSignIn offers a tool in place of those that nobody may list before somebody has
// agreed: without any tool nobody would ever be asked to.
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
		Description: "Asks the user to sign in to the MCP server " + c.s.cfg.Name + ", so that its tools can be used on his behalf. Call it when his question needs that server.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
		Annotations: &catalog.Annotations{ReadOnly: true}, // it changes nothing, and the user is asked anyway
	}})
}

// callSignIn lists the tools with the principal's token, which is what makes the server say
// that he has to agree.
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
	text := "The user has signed in. From the next question on there are: " + strings.Join(names, ", ")
	return &content.Result{Content: []json.RawMessage{content.TextBlock(text)}}, nil
}

// Callback takes what a browser brought back from an authorization server to the
// redirect URL. found is false if that was never asked for, is over, or came before: then
// nothing happened. Otherwise the calls that waited for it go on, or fail where err is
// not nil. It waits for a token, at most 20 s.
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

// SignInAt is the host where callers of a server of AuthAuthorizationCode agree that it
// is used on their behalf, as its metadata says now. It registers nobody.
func (c *Client) SignInAt(ctx context.Context, name string) (string, error) {
	s := c.serverByName(name)
	if s == nil || s.consentClient() == nil {
		return "", fmt.Errorf("sign in to %.64q: %w", name, ErrUnknownServer)
	}
	return s.consentClient().SignInHost(ctx, auth.Identity{})
}
