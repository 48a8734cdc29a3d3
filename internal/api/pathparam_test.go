package api_test

import (
	"fmt"
	"net/http"
	"strings"
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

// Clients remove the segments . and .. from a path (RFC 3986, section 5.2.4), so no URL reaches such a thread.
func TestThreadIDThatNoURLCanNameIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for _, id := range []string{".", ".."} {
		for _, c := range []struct{ path, body, field string }{
			{"/answer", `{"question":"?","thread_id":"%s"}`, "/thread_id"},
			{"/answer/stream", `{"question":"?","thread_id":"%s"}`, "/thread_id"},
			{"/api/chat", `{"id":"%s","messages":[{"role":"user","parts":[{"type":"text","text":"?"}]}]}`, "/id"},
			{"/agui", `{"threadId":"%s","runId":"r1","messages":[{"id":"m1","role":"user","content":"?"}],"tools":[],"context":[]}`, "/threadId"},
			{"/v1/responses", `{"model":"scripted","input":"?","conversation":"%s"}`, "conversation"},
			{"/v1/responses", `{"model":"scripted","input":"?","conversation":{"id":"%s"}}`, "conversation"},
			{"/v1/chat/completions", `{"model":"scripted","messages":[{"role":"user","content":"?"}],"answerd":{"thread_id":"%s"}}`, "answerd.thread_id"},
		} {
			resp := s.do(t, "POST", c.path, fmt.Sprintf(c.body, id))
			field := ""
			if strings.HasPrefix(c.path, "/v1/") {
				if e := decodeResponse[openAIError](t, resp, 400); e.Error.Param != nil {
					field = *e.Error.Param
				}
			} else if p := wantProblem(t, resp, 400, "invalid_request"); len(p.Errors) == 1 {
				field = p.Errors[0].Pointer
			}
			if field != c.field {
				t.Errorf("POST %s with the thread %q names the field %q, want %q", c.path, id, field, c.field)
			}
		}
	}
	query := s.do(t, "GET", "/answer/stream?question=What&thread_id=..", "")
	if p := wantProblem(t, query, 400, "invalid_request"); len(p.Errors) != 1 || p.Errors[0].Pointer != "/thread_id" {
		t.Errorf("GET /answer/stream names %v, want /thread_id", p.Errors)
	}
}
