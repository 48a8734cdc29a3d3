package api_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"answerd/internal/llm/llmtest"
)

// RFC 9110 section 9.3.2: HEAD is GET without the content. What may be a stream has no HEAD, because the
// question of a stream would be asked for nothing.
func TestHeadAnswersAsGet(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("Yes.")), nil, nil)
	a := decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200)
	streams := []string{"/answer/stream", "/runs/{run_id}/events", "/v1/responses/{response_id}", "/api/chat/{id}/stream", "/oauth/callback"}
	path := strings.NewReplacer("{run_id}", a.RunID, "{thread_id}", a.ThreadID, "{response_id}", "resp_"+strings.TrimPrefix(a.RunID, "run_"), "{model}", "scripted", "{call_id}", "none", "{name}", "default", "{id}", "default")
	for _, route := range allRoutes(t, s) {
		pattern, ok := strings.CutPrefix(route, "GET ")
		if !ok {
			continue
		}
		head := s.do(t, "HEAD", path.Replace(pattern), "")
		if slices.Contains(streams, pattern) {
			if allow := head.Header.Get("Allow"); head.StatusCode != http.StatusMethodNotAllowed || !strings.HasPrefix(allow, "GET") {
				t.Errorf("HEAD %s: got %s with Allow %q, want 405 and GET", pattern, head.Status, allow)
			}
			continue
		}
		get := s.do(t, "GET", path.Replace(pattern), "")
		content, err := io.ReadAll(head.Body)
		if head.StatusCode != get.StatusCode || head.Header.Get("Content-Type") != get.Header.Get("Content-Type") || head.Header.Get("Cache-Control") != get.Header.Get("Cache-Control") || len(content) > 0 || err != nil {
			t.Errorf("HEAD %s: got %s %v and %d bytes, %v, want %s %v without content", pattern, head.Status, head.Header, len(content), err, get.Status, get.Header)
		}
	}
	if n := len(s.Model.Requests()); n != 1 {
		t.Errorf("%d model requests, want 1", n)
	}
}

// RFC 9110 section 15.5.16: a client whose content coding is refused learns which one is accepted. A refused media
// type is another matter.
func TestRefusedContentCodingNamesTheAcceptedOne(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(), nil, nil)
	for header, want := range map[[2]string]string{{"Content-Encoding", "gzip"}: "identity", {"Content-Type", "text/plain"}: ""} {
		resp := s.do(t, "POST", "/answer", question, header[0], header[1])
		wantProblem(t, resp, http.StatusUnsupportedMediaType, "unsupported_media")
		if got := resp.Header.Get("Accept-Encoding"); got != want {
			t.Errorf("%s: got Accept-Encoding %q, want %q", header, got, want)
		}
	}
}
