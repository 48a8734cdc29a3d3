package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

// asks is a model that calls the tool that asks, and then answers.
func asks() llmtest.Script {
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask"}), llmtest.Says("Booked."))
}

// questionIn reads a stream to the question in it.
func questionIn(t *testing.T, resp *http.Response) (path string, q event.Elicitation) {
	t.Helper()
	list := frames(t, resp, "elicitation")
	last := list[len(list)-1]
	if err := json.Unmarshal(last.Data, &q); err != nil {
		t.Fatal(err)
	}
	run, _, _ := strings.Cut(last.ID, ":")
	return "/runs/" + run, q
}

func TestInputAnswersTheQuestionOfARun(t *testing.T) {
	s := serve(t, asks(), nil, nil)
	stream := s.do(t, "POST", "/answer/stream", question)
	run, q := questionIn(t, stream)
	in := func(body string) *http.Response { return s.do(t, "POST", run+"/input", body) }
	id := `{"id":"` + q.InterruptID + `",`

	// What is not an answer leaves the question open.
	p := refused(t, in(id+`"action":"accept","content":{"people":"x"}}`), 422, "unprocessable")
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "/content/people" {
		t.Errorf("%+v", p)
	}
	refused(t, in(id+`"action":"accept"}`), 422, "unprocessable")
	refused(t, in(id+`"action":"decline","content":{"people":1}}`), 400, "invalid_request")
	refused(t, in(id+`"action":"yes"}`), 400, "invalid_request")
	refused(t, in(id+`"action":"accept","content":[]}`), 400, "invalid_request")
	refused(t, in(id+`"action":"cancel","approved":true}`), 400, "invalid_request")
	refused(t, in(`{"action":"accept"}`), 400, "invalid_request")
	refused(t, in(id+`"action":"accept","content":{"people":1,"people":2}}`), 400, "invalid_request")
	refused(t, in(`{"id":"int_none","action":"cancel"}`), 404, "not_found")
	refused(t, s.do(t, "POST", "/runs/run_none/input", id+`"action":"cancel"}`), 404, "not_found")
	refused(t, s.do(t, "POST", run+"/input", id+`"action":"cancel"}`, "Content-Type", "text/plain"), 415, "unsupported_media")

	status := decode[struct {
		Status  string
		LastSeq int64 `json:"last_seq"`
	}](t, in(id+`"action":"accept","content":{"people":4}}`), 200)
	if status.Status == "" || status.LastSeq == 0 {
		t.Errorf("%+v", status)
	}
	refused(t, in(id+`"action":"accept","content":{"people":4}}`), 409, "conflict")
	if rest := events(frames(t, stream, "")); !strings.HasPrefix(rest, "elicitation_resolved tool_result") || !strings.HasSuffix(rest, "final_answer") {
		t.Errorf("then came %s", rest)
	}
}

func TestInputThatComesTooLateIsGone(t *testing.T) {
	s := serve(t, asks(), func(o *agent.Options) { o.AnswerTime = time.Millisecond }, nil)
	stream := s.do(t, "POST", "/answer/stream", question)
	run, q := questionIn(t, stream)
	frames(t, stream, "")
	refused(t, s.do(t, "POST", run+"/input", `{"id":"`+q.InterruptID+`","action":"decline"}`), 410, "gone")
}

// Who waits for the whole answer could never answer a question on the way to it.
func TestABlockingAnswerDeclinesQuestionsAtOnce(t *testing.T) {
	s := serve(t, asks(), nil, nil)
	a := decode[struct {
		Metadata struct {
			Results []json.RawMessage `json:"tool_results"`
		}
	}](t, s.do(t, "POST", "/answer", question), 200)
	if len(a.Metadata.Results) != 1 || !strings.Contains(string(a.Metadata.Results[0]), "decline") {
		t.Errorf("%+v", a)
	}
}

func TestABackgroundRunCanBeAnswered(t *testing.T) {
	s := serve(t, asks(), nil, nil)
	location := s.do(t, "POST", "/answer", `{"question":"?","background":true}`).Header.Get("Location")
	stream := s.do(t, "GET", location+"/events", "")
	run, q := questionIn(t, stream)
	if resp := s.do(t, "POST", run+"/input", `{"id":"`+q.InterruptID+`","action":"decline"}`); resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
	frames(t, stream, "final_answer")
}
