package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"answerd/internal/mcp"
)

// person is the one with the browser.
type person struct{ client *mcp.Client }

// answer answers a form with nothing, which leaves its fields to their defaults
// (SEP-1034), and goes where an authorization server sends him: the suite's sends him
// back at once.
func (p person) answer(ctx context.Context, e mcp.Elicitation) (mcp.ElicitationResult, error) {
	if e.Mode == mcp.ElicitForm {
		return mcp.ElicitationResult{Action: mcp.Accept, Content: json.RawMessage(`{}`)}, nil
	}
	if e.Done == nil { // a question of the server's own
		return mcp.ElicitationResult{Action: mcp.Decline}, nil
	}
	query, err := redirect(ctx, e.URL)
	if err != nil {
		return mcp.ElicitationResult{}, err
	}
	// Whether it worked is what the call says that waits for it.
	_, _ = p.client.Callback(ctx, query)
	return mcp.ElicitationResult{Action: mcp.Accept}, nil
}

// redirect is the query of the address that a page redirects to.
func redirect(ctx context.Context, page string) (url.Values, error) {
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
