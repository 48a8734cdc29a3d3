package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
)

func TestStreamAnswers410ForDroppedEvents(t *testing.T) {
	t.Parallel()
	log := memory.New(memory.Options{MaxBytes: 16 << 10})
	long := make([]string, 100)
	for i := range long {
		long[i] = strings.Repeat("x", 200)
	}
	s := newService(t, llmtest.Turns(llmtest.Says(long...)), func(o *agent.Options) { o.Log = log }, nil)
	a := decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200) // the whole answer all the same
	if len(a.Answer) != 20000 {
		t.Errorf("an answer of %d bytes, want 20000", len(a.Answer))
	}
	wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID+"/events", ""), 410, "gone")
	wantProblem(t, s.do(t, "POST", "/answer/stream", question, "Last-Event-ID", a.RunID+":3"), 410, "gone")
	for range 2 { // the repeated request cannot read the run from its beginning
		r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x"), "Idempotency-Key", "k"), 200)
		if got := r.outputShape(); r.Status != "completed" || len(got) < 20000 || r.Usage.TotalTokens == 0 {
			t.Errorf("got a response that is %s with %d bytes and the usage %+v, want it completed, with the whole answer and its usage", r.Status, len(got), r.Usage)
		}
		for _, query := range []string{"", "?stream=true"} { // OpenAI's API has no 410
			decodeResponse[openAIError](t, s.do(t, "GET", "/v1/responses/"+r.ID+query, ""), 404)
		}
	}
}

// The log of a service that keeps little drops the beginning of a run while that is in progress. The run
// can be cancelled all the same, and its response is then what GET says of it.
func TestCancelResponseOfDroppedEventsIsNotFound(t *testing.T) {
	t.Parallel()
	longText := func(w http.ResponseWriter, r *http.Request) {
		llmtest.Stream(w, "", slices.Repeat([]any{map[string]any{"content": strings.Repeat("x", 1<<10)}}, 30)...)
		<-r.Context().Done()
	}
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), longText),
		func(o *agent.Options) { o.Log = memory.New(memory.Options{MaxBytes: 16 << 10}) }, nil, addNeedsApproval)
	asked := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x")), 200)
	approval := `[{"type":"mcp_approval_response","approval_request_id":"` + asked.Output[0].ID + `","approve":true}]`
	begun := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(approval, `,"background":true`)), 200)
	run := "run_" + strings.Split(begun.ID, "_")[1]
	s.waitUntilDropped(t, run)

	for range 2 { // the second one finds that the run has ended
		for _, id := range []string{begun.ID, asked.ID} {
			resp := s.do(t, "POST", "/v1/responses/"+id+"/cancel", "")
			if e := decodeResponse[openAIError](t, resp, 404); e.Error.Code != "not_found" || e.Error.Param == nil || *e.Error.Param != "response_id" {
				t.Errorf("cancel %s: got %+v, want not_found with the parameter response_id", id, e)
			}
			if st := decodeResponse[answer](t, s.do(t, "GET", "/runs/"+run, ""), 200); st.Status != "cancelled" {
				t.Errorf("after cancel %s: got the status %s, want cancelled", id, st.Status)
			}
		}
	}
}

// waitUntilDropped waits until the log has dropped the first event of a run.
func (s *service) waitUntilDropped(t *testing.T, run string) {
	t.Helper()
	for pos := int64(0); ; {
		page, err := s.Log.After(t.Context(), run, pos)
		if errors.Is(err, event.ErrGone) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if pos > 0 {
			if _, err := s.Log.After(t.Context(), run, 0); errors.Is(err, event.ErrGone) {
				return
			}
		}
		if n := len(page.Events); n > 0 {
			pos = page.Events[n-1].Seq
			continue
		}
		select {
		case <-page.More:
		case <-boundedContext(t).Done():
			t.Fatalf("the log has all events up to %d, want the first one dropped", pos)
		}
	}
}

// A stream that cannot begin at the first event is refused before its header, in the error format of its API. Each
// format has a log of its own: in a full log, the run of one format would replace that of another, with its key.
func TestRepeatedStreamOfDroppedEventsIsGone(t *testing.T) {
	t.Parallel()
	long := slices.Repeat([]string{strings.Repeat("x", 200)}, 100)
	for _, d := range formats {
		if !d.stream {
			continue
		}
		s := newService(t, llmtest.Turns(llmtest.Says(long...)), func(o *agent.Options) { o.Log = memory.New(memory.Options{MaxBytes: 16 << 10}) }, nil)
		body := d.questionBody("x", "")
		s.do(t, "POST", d.path, body, "Idempotency-Key", d.name)
		s.waitUntilDropped(t, newestRun(t, s))
		d.wantRefusal(t, s.do(t, "POST", d.path, body, "Idempotency-Key", d.name), 410, "gone")
	}
}

// Calls of the caller's tools are in events alone. An answer without them would look complete.
func TestAnswerWithoutItsCallsIsGone(t *testing.T) {
	t.Parallel()
	log := memory.New(memory.Options{MaxBytes: 16 << 10})
	calls := make([]llmtest.Call, 60)
	for i := range calls {
		calls[i] = llmtest.Call{ID: fmt.Sprint("c", i), Name: "colour", Args: `{"a":"` + strings.Repeat("x", 200) + `"}`}
	}
	s := newService(t, llmtest.Turns(llmtest.Calls(calls...)), func(o *agent.Options) { o.Log = log }, nil)
	bodies := map[string]string{
		"/v1/chat/completions": chatCompletionBody("x", `,"tools":[{"type":"function","function":{"name":"colour"}}]`),
		"/v1/responses":        responsesBody("x", `,"tools":[{"type":"function","name":"colour"}]`),
	}
	for path, body := range bodies {
		s.do(t, "POST", path, body, "Idempotency-Key", path)
		if e := decodeResponse[openAIError](t, s.do(t, "POST", path, body, "Idempotency-Key", path), 410); e.Error.Code != "gone" {
			t.Errorf("%s: got the code %s, want gone", path, e.Error.Code)
		}
	}
}

// OpenAI's API has no 410. The response may have been in the memory of a process that has ended.
func TestResponsesOfAnEarlierProcessAreNotFound(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(), nil, nil)
	const id = "resp_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	for _, c := range []struct{ method, path, body, param string }{
		{"GET", "/v1/responses/" + id, "", "response_id"}, {"DELETE", "/v1/responses/" + id, "", "response_id"},
		{"GET", "/v1/responses/" + id + "/input_items", "", "response_id"}, {"POST", "/v1/responses/" + id + "/cancel", "", "response_id"},
		{"POST", "/v1/responses", responsesBody("x", `,"previous_response_id":"`+id+`"`), "previous_response_id"},
		{"POST", "/v1/responses", responsesBody(`[{"type":"item_reference","id":"msg_aaaaaaaaaaaaaaaaaaaaaaaaaa_text_1"},{"role":"user","content":"x"}]`), "input"},
	} {
		resp := s.do(t, c.method, c.path, c.body)
		if e := decodeResponse[openAIError](t, resp, 404); e.Error.Code != "not_found" || e.Error.Param == nil || *e.Error.Param != c.param {
			t.Errorf("%s %s: got %+v, want not_found with the parameter %s", c.method, c.path, e, c.param)
		}
	}
	wantProblem(t, s.do(t, "GET", "/runs/run_aaaaaaaaaaaaaaaaaaaaaaaaaa", ""), 410, "gone") // of the same run
}
