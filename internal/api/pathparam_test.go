package api_test

import (
	"net/http"
	"testing"

	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// Clients escape parameters in a path, and not all of them escape the same characters (RFC 3986
// section 2.2): a slash must be escaped, and some leave an apostrophe or a parenthesis as it is.
func TestPathParametersAreUnescaped(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"})), nil, nil, func(c *config.Server) { c.Name = "example.com/tools (test)" })
	stream := s.do(t, "POST", "/api/chat", chatBody("ann@example.com/1", "And?"))
	<-s.Tools.Entered
	if resp := s.do(t, "POST", "/api/chat/ann%40example.com%2F1/stop", ""); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("stop a chat: got %s, want 204", resp.Status)
	}

	select {
	case <-s.Tools.Canceled:
	case <-boundedContext(t).Done():
		t.Fatal("the run of the chat goes on, want it cancelled")
	}

	readFrames(t, stream, "")
	for _, path := range []string{"/servers/example.com%2Ftools%20(test)/refresh", "/servers/example.com%2ftools%20%28test%29/refresh", "/tools/%61dd/call"} {
		if resp := s.do(t, "POST", path, `{"args":{"a":1,"b":2}}`); resp.StatusCode != http.StatusOK {
			t.Errorf("POST %s: got %s, want 200", path, resp.Status)
		}
	}

	resp := s.do(t, "PUT", "/threads/ann%40example.com%2F1", "")
	wantProblem(t, resp, http.StatusMethodNotAllowed, "method_not_allowed")
	if got := resp.Header.Get("Allow"); got != "GET, HEAD, PATCH, DELETE" {
		t.Errorf("Allow: got %q, want GET, HEAD, PATCH, DELETE", got)
	}
	req, err := http.NewRequest("GET", "/threads/ann%40example.com%2F1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.handler.RoutePattern(req); got != "/threads/{thread_id}" {
		t.Errorf("route of %s: got %q, want /threads/{thread_id}", req.URL, got)
	}
}
