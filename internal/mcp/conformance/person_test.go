package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// person is the one with the browser.
type person struct{ client *mcp.Client }

// answer answers a form with nothing, which leaves its fields to their defaults (SEP-1034).
func (p person) answer(_ context.Context, e mcp.Elicitation) (mcp.ElicitationResult, error) {
	if e.Mode == mcp.ElicitForm {
		return mcp.ElicitationResult{Action: mcp.Accept, Content: json.RawMessage(`{}`)}, nil
	}
	return mcp.ElicitationResult{Action: mcp.Decline}, nil
}

// call makes a call. If its user must sign in, the person opens the authorization URL; the suite's
// authorization server redirects back at once.
func (p person) call(ctx context.Context, call mcp.Call) (*content.Result, error) {
	call.Elicit, call.Waiter = p.answer, "person"
	for {
		res, err := p.client.Call(ctx, call)
		if err != nil || res.SignIn == nil {
			return res, err
		}
		query, err := followRedirect(ctx, res.SignIn.URL)
		if err != nil {
			return nil, err
		}
		// Whether it worked is what AwaitSignIn says.
		_, _, _ = p.client.Callback(ctx, query)
		call.SignIn = res.SignIn
		if err := p.client.AwaitSignIn(ctx, call, mcp.Accept); err != nil {
			return nil, err
		}
	}
}

// followRedirect returns the query of the URL that a page redirects to.
func followRedirect(ctx context.Context, page string) (url.Values, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return nil, err
	}
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer browser.CloseIdleConnections()
	resp, err := browser.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		return nil, fmt.Errorf("%s leads nowhere: %w", page, err)
	}
	return to.Query(), nil
}
