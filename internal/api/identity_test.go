package api_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/auth"
	"answerd/internal/mcp"
)

// exchanging is an MCP server that is used on behalf of its callers, and the IAM that
// exchanges their tokens.
type exchanging struct {
	tools *mcp.Client

	mu       sync.Mutex // protects what follows
	subjects []string   // the tokens that were exchanged
	called   []string   // the tokens of tools/call
	received string     // whatever the MCP server got
}

func newExchanging(t *testing.T) *exchanging {
	e := &exchanging{}
	iam := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.subjects = append(e.subjects, r.FormValue("subject_token"))
		fmt.Fprintf(w, `{"access_token":"exchanged-%d","token_type":"Bearer","expires_in":3600}`, len(e.subjects))
	}))
	t.Cleanup(iam.Close)
	server := sdk.NewServer(&sdk.Implementation{Name: "crm", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "add"}, func(context.Context, *sdk.CallToolRequest, struct {
		A int `json:"a"`
		B int `json:"b"`
	}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "3"}}}, nil, nil
	})
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil)
	crm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		e.mu.Lock()
		e.received += fmt.Sprint(r.URL, r.Header, string(body), "\n")
		if strings.Contains(string(body), "tools/call") {
			e.called = append(e.called, r.Header.Get("Authorization"))
		}
		e.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(crm.Close)
	var err error
	e.tools, err = mcp.New([]mcp.ServerConfig{{Name: "crm", URL: crm.URL, Auth: mcp.AuthExchange, Grant: mcp.TokenGrant{
		TokenURL: iam.URL, ClientID: "answerd", ClientSecret: auth.NewSecret("x"),
	}}}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.tools.Close() })
	return e
}

// RFC 8693: a question is answered with tools on behalf of who asked it. The token that
// he brought goes to the IAM and nowhere else: not to the MCP server, and not into what
// the run says.
func TestToolsAreCalledOnBehalfOfWhoAsked(t *testing.T) {
	iam := newMint(t)
	v := iam.verifier(t, nil)
	e := newExchanging(t)
	s := serve(t, adds(), func(o *agent.Options) { o.Tools = e.tools }, func(o *api.Options) { o.Verifier = v })
	var brought []string
	for n, name := range []string{"ada", "bob"} {
		bearer := iam.bearer(name)
		brought = append(brought, strings.TrimPrefix(bearer, "Bearer "))
		a := decode[answer](t, s.do(t, "POST", "/answer", question, "Authorization", bearer), 200)
		said := s.do(t, "GET", "/runs/"+a.RunID+"/events", "", "Authorization", bearer)
		events, err := io.ReadAll(said.Body)
		if err != nil || !strings.Contains(string(events), "tool_result") || strings.Contains(string(events), brought[n]) {
			t.Errorf("%v\n%s", err, events)
		}
	}
	// A call without a model is made on behalf of its caller, too.
	eve := iam.bearer("eve")
	decode[map[string]any](t, s.do(t, "POST", "/tools/add/call", `{"args":{"a":1,"b":2}}`, "Authorization", eve), 200)
	brought = append(brought, strings.TrimPrefix(eve, "Bearer "))
	e.mu.Lock()
	defer e.mu.Unlock()
	if got := strings.Join(e.subjects, " "); got != strings.Join(brought, " ") {
		t.Errorf("exchanged %s", got)
	}
	if got := strings.Join(e.called, ", "); got != "Bearer exchanged-1, Bearer exchanged-2, Bearer exchanged-3" {
		t.Errorf("called with %s", got)
	}
	for _, token := range brought {
		if strings.Contains(e.received, token) {
			t.Error("the MCP server got the caller's own token")
		}
	}
}

// Without inbound authentication nobody brings a token: such a server has no tools, and
// says why.
func TestNobodyIsActedForWithoutAToken(t *testing.T) {
	e := newExchanging(t)
	s := serve(t, adds(), func(o *agent.Options) { o.Tools = e.tools }, nil)
	decode[answer](t, s.do(t, "POST", "/answer", question), 200)
	status := decode[struct {
		Servers []mcp.ServerStatus `json:"servers"`
	}](t, s.do(t, "GET", "/servers", ""), 200)
	if st := status.Servers[0]; st.State != mcp.Connecting || !strings.Contains(st.Reason, "first caller") {
		t.Errorf("%+v", st)
	}
	p := refused(t, s.do(t, "POST", "/servers/crm/refresh", ""), 502, "unavailable")
	if !strings.Contains(p.Detail, "first caller") {
		t.Errorf("%+v", p)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.subjects) != 0 || e.received != "" {
		t.Errorf("%d exchanges; the server got %s", len(e.subjects), e.received)
	}
}
