package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// Many frameworks redirect to the same address with or without a slash at its end. The operator
// learns of such a redirect, but not where else a server redirects to: addresses may contain keys.
func TestRedirectForASlashIsExplained(t *testing.T) {
	for path, want := range map[string]string{
		"/mcp?a=1": "it redirects (HTTP 307), which is not followed: its URL must end in /",
		"/rpc/":    "it redirects (HTTP 307), which is not followed: its URL must not end in /",
		"/other":   "it redirects (HTTP 307), which is not followed",
	} {
		w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			to := map[string]string{"/mcp": "/mcp/", "/rpc/": "/rpc", "/other": "/key-1234"}[r.URL.Path]
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		}))
		c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL + path})
		c.Tools(t.Context())
		if got := c.Servers()[0].Reason; got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// TestFailedCallsSayWhatToDoNext goes over the kinds of failures that a server or its connection
// causes.
func TestFailedCallsSayWhatToDoNext(t *testing.T) {
	for _, f := range []*transport.Failure{
		{Kind: Unavailable, Public: "connection refused"},
		{Kind: Unavailable, Public: "it refused our credentials (HTTP 401)", Err: transport.ErrCredentials},
		{Kind: Timeout, Public: "no answer in time"},
		{Kind: Protocol, Public: "its answer is not MCP"},
		{Kind: TooLarge, Public: "its answer is larger than 5 bytes"},
		{Kind: UnknownOutcome, Public: "the connection was cut before its answer"},
	} {
		first, step, _ := strings.Cut(callError(f, "t", "a").Message, "; ")
		if first != "MCP server a: "+f.Public || step == "" {
			t.Errorf("%s: got %q and the step %q, want %q and a step", f.Kind, first, step, "MCP server a: "+f.Public)
		}
	}
}

// A call that was sent may have been carried out when its time ends, so a model must not be told to repeat it. One that
// was not sent was not.
func TestTimedOutCallSaysWhetherItMayHaveRun(t *testing.T) {
	s := &scriptedServer{call: func(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() }}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, Timeout: 50 * time.Millisecond})
	c.Tools(t.Context())
	over, stop := context.WithDeadline(t.Context(), time.Now())
	defer stop()
	for ctx, sent := range map[context.Context]bool{t.Context(): true, over: false} {
		_, err := c.Call(ctx, Call{Tool: "t"})
		e := mustFail(t, err)
		if e.Kind != Timeout || strings.Contains(e.Message, "may or may not have been carried out") != sent {
			t.Errorf("got %s: %s, want %s, and that it may have been carried out: %t", e.Kind, e.Message, Timeout, sent)
		}
	}
}

// The TypeScript SDK refuses a result of its own tool with the code for invalid params. The arguments are not the cause,
// and the tool has run.
func TestResultThatItsServerRefusesIsNotBlamedOnTheArguments(t *testing.T) {
	for _, reply := range []string{
		`"result":{"content":[{"type":"text","text":"MCP error -32602: Output validation error: Tool t has an output schema but no structured content was provided"}],"isError":true}`, // 1
		`"result":{"content":[{"type":"text","text":"Output validation error: Invalid structured content for tool t: expected number"}],"isError":true}`,                               // 2
		`"error":{"code":-32602,"message":"Output validation error: Invalid structured content for tool t: expected number"}`,
		`"error":{"code":-32602,"message":"Invalid tools/call result: [ { \"code\": \"invalid_union\" } ]"}`,
	} {
		s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, reply)
		}}
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		var kind ErrorKind
		if err != nil {
			kind = mustFail(t, err).Kind
		} else {
			kind = ResultErrorKind(res)
		}
		if kind != Execution {
			t.Errorf("%s: got %s, want %s", reply, kind, Execution)
		}
	}
}
