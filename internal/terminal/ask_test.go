package terminal

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// serveRun starts a server whose only run has the given events, in SSE frames of "type data".
func serveRun(t *testing.T, events ...string) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i, e := range events {
			kind, data, _ := strings.Cut(e, " ")
			fmt.Fprintf(w, "id: run_1:%d\nevent: %s\ndata: %s\n\n", i+1, kind, data)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// The contract promises the answer document of POST /answer, which has the answer as a value too.
func TestAskPrintsTheStructuredOutput(t *testing.T) {
	url := serveRun(t, `start {"run_id":"run_1","thread_id":"thr_1","trace_id":"0"}`,
		`final_answer {"answer":"{\"id\":9007199254740993}","output":{"id":9007199254740993},"metadata":{"model":"m"}}`)
	var out strings.Builder
	s := New(Options{URL: url, JSON: true, In: strings.NewReader(""), Out: &out, Err: &strings.Builder{}})
	defer s.Close()
	if err := s.Ask(t.Context(), "?"); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Output json.RawMessage `json:"output"`
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || string(got.Output) != `{"id":9007199254740993}` {
		t.Errorf("got output %s, %v, want the value of the answer", got.Output, err)
	}
}

// A question that cannot be read is not the end of the conversation as the person wanted it.
func TestChatReportsAQuestionThatIsTooLong(t *testing.T) {
	for in, want := range map[string]string{"": "", "\n/quit\n": "", strings.Repeat("x", 2<<20) + "\n": "too long"} {
		s := New(Options{In: strings.NewReader(in), Out: &strings.Builder{}, Err: &strings.Builder{}})
		err := s.Chat(t.Context())
		s.Close()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes of input: got %v, want %q", len(in), err, want)
		}
	}
}
