package api_test

import (
	"strings"
	"testing"

	"answerd/internal/llm/llmtest"
)

// Proxies neither buffer nor transform the streams of any format.
func TestStreamsAskProxiesNotToBuffer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, body string
		header     []string
	}{
		"native":           {"/answer/stream", `{"question":"?"}`, nil},
		"chat completions": {"/v1/chat/completions", `{"model":"scripted","stream":true,"messages":[{"role":"user","content":"?"}]}`, nil},
		"responses":        {"/v1/responses", `{"model":"scripted","stream":true,"input":"?"}`, nil},
		"AI SDK":           {"/api/chat", `{"id":"c1","trigger":"submit-message","messages":[{"id":"m1","role":"user","parts":[{"type":"text","text":"?"}]}]}`, nil},
		"AG-UI":            {"/agui", `{"threadId":"t1","runId":"r1","state":{},"messages":[{"id":"m1","role":"user","content":"?"}],"tools":[],"context":[],"forwardedProps":{}}`, []string{"Accept", "text/event-stream"}},
		"MCP": {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + callParams(`{"question":"?"}`, "") + `}`, []string{
			"Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, llmtest.Turns(llmtest.Says("Hello.")), nil, nil)
			resp := s.do(t, "POST", c.path, c.body, c.header...)
			if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != "text/event-stream" {
				t.Fatalf("got %s, Content-Type %q, want a stream", resp.Status, got)
			}
			if got := resp.Header.Get("X-Accel-Buffering"); got != "no" {
				t.Errorf("got X-Accel-Buffering %q, want no", got)
			}
			if got := resp.Header.Get("Cache-Control"); !strings.Contains(got, "no-transform") {
				t.Errorf("got Cache-Control %q, want no-transform in it", got)
			}
		})
	}
}
