package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// serveBothVersions returns a server whose tools "look" and "book" ask the user. With 2026-07-28 they
// fail as those of FastMCP 4 do; modern counts these calls. Only look is annotated as read-only.
func serveBothVersions(t *testing.T, modern *atomic.Int64) *httpServer {
	t.Helper()
	withTools := func(ask sdk.ToolHandler) *sdk.Server {
		s := newToolServer(nil)
		s.AddTool(&sdk.Tool{Name: "look", InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}}, ask)
		s.AddTool(&sdk.Tool{Name: "book", InputSchema: json.RawMessage(`{"type":"object"}`)}, ask)
		return s
	}
	refusing := streamableHandler(t, withTools(func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		modern.Add(1)
		return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{
			Text: "elicitation via server-initiated requests is unavailable on 2026-07-28 connections.", // FastMCP 4.1.2, server/context.py
		}}}, nil
	}), flavours["stateless sse"])
	asking := streamableHandler(t, withTools(func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		res, err := r.Session.Elicit(ctx, &sdk.ElicitParams{
			Message: "How many?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer","default":3}}}`),
		})
		if err != nil {
			return nil, err
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(res.Action, " ", res.Content["n"])}}}, nil
	}), flavours["stateful sse"])
	return serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Protocol-Version") == transport.StatelessVersion {
			refusing.ServeHTTP(w, r)
			return
		}
		asking.ServeHTTP(w, r)
	}))
}

// A tool that may run twice is called again with 2025-11-25, and the version is remembered.
func TestCallIsRepeatedWithTheVersionInWhichTheServerCanAsk(t *testing.T) {
	for tool, idempotent := range map[string][]string{"look": nil, "book": {"bo*"}} {
		t.Run(tool, func(t *testing.T) {
			var modern atomic.Int64
			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveBothVersions(t, &modern).URL, IdempotentTools: idempotent})
			if got := c.Servers(); len(c.Tools(t.Context())) != 3 || len(got) != 1 {
				t.Fatalf("got the servers %+v, want one with three tools", got)
			}

			for range 3 {
				res, err := c.Call(t.Context(), Call{Tool: tool, Elicit: acceptDefaults})
				if got := mustResult(t, res, err).Text(); got != "accept 3" {
					t.Errorf("got the result %q, want accept 3", got)
				}
			}

			if n := modern.Load(); n != 1 {
				t.Errorf("got %d calls with 2026-07-28, want 1", n)
			}
			if err := c.Refresh(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if got := c.Servers()[0].Protocol; got != "2025-11-25" {
				t.Errorf("got the protocol version %s, want 2025-11-25", got)
			}
		})
	}
}

// A tool that may have changed something before it asked is not called again: the error names the
// setting, and the next call works.
func TestCallThatMayNotRunTwiceNamesTheSettingForTheVersion(t *testing.T) {
	var modern atomic.Int64
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveBothVersions(t, &modern).URL})
	_, err := c.Call(t.Context(), Call{Tool: "book", Elicit: acceptDefaults})
	if e := mustFail(t, err); e.Kind != Execution || !strings.Contains(e.Message, `"protocolVersion": "2025-11-25"`) {
		t.Errorf("got %s: %s, want %s and the setting protocolVersion", e.Kind, e.Message, Execution)
	}
	res, err := c.Call(t.Context(), Call{Tool: "book", Elicit: acceptDefaults})
	if got := mustResult(t, res, err).Text(); got != "accept 3" || modern.Load() != 1 {
		t.Errorf("got the result %q after %d calls with 2026-07-28, want accept 3 after 1", got, modern.Load())
	}
}

// The configured version is kept, and the error says what to change.
func TestConfiguredVersionIsKeptWhenTheServerCannotAsk(t *testing.T) {
	var modern atomic.Int64
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveBothVersions(t, &modern).URL, ProtocolVersion: transport.StatelessVersion})
	for range 2 {
		_, err := c.Call(t.Context(), Call{Tool: "look", Elicit: acceptDefaults})
		if e := mustFail(t, err); e.Kind != Execution || !strings.Contains(e.Message, `"protocolVersion": "2025-11-25"`) {
			t.Errorf("got %s: %s, want %s and the setting protocolVersion", e.Kind, e.Message, Execution)
		}
	}
	if n := modern.Load(); n != 2 {
		t.Errorf("got %d calls with 2026-07-28, want 2", n)
	}
}
