package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/console"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

type answer struct {
	Answer   string
	RunID    string `json:"run_id"`
	ThreadID string `json:"thread_id"`
	Status   string
	Metadata event.Metadata
	Error    *problem
	Reason   string
}

// S2.1, S2.11: both ways to ask are the same run.
func TestStreamAndAnswerAgree(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	whole := decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200)
	if whole.Answer != "It is 3." || len(whole.Metadata.ToolNames) != 1 || !strings.HasPrefix(whole.ThreadID, "thr_") {
		t.Errorf(`answer %+v, want Answer "It is 3.", 1 Metadata.ToolNames, ThreadID starting with thr_`, whole)
	}
	resp := s.do(t, "POST", "/answer/stream", question)
	got := readFrames(t, resp, "")
	var end answer
	if err := json.Unmarshal(got[len(got)-1].Data, &end); err != nil {
		t.Fatal(err)
	}
	if end.Answer != whole.Answer || fmt.Sprint(end.Metadata) != fmt.Sprint(whole.Metadata) {
		t.Errorf("the stream ends with %+v, want Answer %q, Metadata %q", end, whole.Answer, fmt.Sprint(whole.Metadata))
	}

	for i, f := range got {
		if want := end.RunID + ":" + strconv.Itoa(i+1); f.ID != want {
			t.Errorf("frame %d has id %s, want %s", i, f.ID, want)
		}
	}

	for name, want := range map[string]string{"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"} {
		if resp.Header.Get(name) != want {
			t.Errorf("%s: %s, want %s", name, resp.Header.Get(name), want)
		}
	}
}

func TestEventSourceCanAsk(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	got := readFrames(t, s.do(t, "GET", "/answer/stream?question="+url.QueryEscape("What is 1 + 2?"), ""), "")
	if got[0].Event != "start" || got[len(got)-1].Event != "final_answer" {
		t.Errorf("got %s, want Event start, Event final_answer", eventNames(got))
	}
}

// After any position, each of the three streams sends the rest of the events and nothing else, and
// the question is asked once.
func TestStreamsResumeAfterLastEventID(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	all := readFrames(t, s.do(t, "POST", "/answer/stream", question), "")
	run, _, _ := strings.Cut(all[0].ID, ":")
	asked := len(s.Model.Requests())

	for i := range all[:len(all)-1] {
		for _, resp := range []*http.Response{
			s.do(t, "POST", "/answer/stream", question, "Last-Event-ID", all[i].ID),
			s.do(t, "GET", "/answer/stream?question=again", "", "Last-Event-ID", all[i].ID),
			s.do(t, "GET", "/runs/"+run+"/events", "", "Last-Event-ID", all[i].ID),
			s.do(t, "GET", "/runs/"+run+"/events?after="+strconv.Itoa(i+1), ""),
			s.do(t, "GET", "/runs/"+run+"/events?after=1", "", "Last-Event-ID", all[i].ID),
		} {
			if rest := readFrames(t, resp, ""); eventNames(rest) != eventNames(all[i+1:]) || rest[0].ID != all[i+1].ID {
				t.Errorf("after %s: %s from %s, want %s from %s", all[i].ID, eventNames(rest), rest[0].ID, eventNames(all[i+1:]), all[i+1].ID)
			}
		}
	}

	if whole := readFrames(t, s.do(t, "GET", "/runs/"+run+"/events", ""), ""); eventNames(whole) != eventNames(all) {
		t.Errorf("from the start: %s, want %s", eventNames(whole), eventNames(all))
	}

	end := all[len(all)-1].ID
	for _, resp := range []*http.Response{
		s.do(t, "POST", "/answer/stream", question, "Last-Event-ID", end),
		s.do(t, "GET", "/answer/stream?question=again", "", "Last-Event-ID", end),
		s.do(t, "GET", "/runs/"+run+"/events", "", "Last-Event-ID", end),
	} {
		if resp.StatusCode != http.StatusNoContent || resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("caught up: %s, want 204", resp.Status)
		}
	}

	if now := len(s.Model.Requests()); now != asked {
		t.Errorf("the question was asked again: %d model requests, want 0", now-asked)
	}
}

func TestStreamRefusesInvalidPositionsAndUnknownRuns(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	a := decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200)
	for _, last := range []string{"x", "run:", a.RunID, a.RunID + ":-1", a.RunID + ":999", a.RunID + ":1:1"} {
		wantProblem(t, s.do(t, "POST", "/answer/stream", question, "Last-Event-ID", last), 400, "invalid_request")
		wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID+"/events", "", "Last-Event-ID", last), 400, "invalid_request")
	}
	wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID+"/events", "", "Last-Event-ID", "run_other:1"), 400, "invalid_request")
	wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID+"/events?after=x", ""), 400, "invalid_request")
	wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID+"/events?after=-1", ""), 400, "invalid_request")
	wantProblem(t, s.do(t, "POST", "/answer/stream", question, "Last-Event-ID", "run_none:1"), 404, "not_found")
	for _, path := range []string{"/runs/run_none", "/runs/run_none/events", "/nothing"} {
		wantProblem(t, s.do(t, "GET", path, ""), 404, "not_found")
	}
	wantProblem(t, s.do(t, "POST", "/runs/run_none/cancel", ""), 404, "not_found")
}

func TestStreamReaderWhoLeavesFindsTheRunAgain(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	s := newService(t, waitingModel(open), nil, nil)
	ctx, leave := context.WithCancel(t.Context())
	seen := readFrames(t, s.doContext(ctx, t, "POST", "/answer/stream", question), "text_delta")
	leave()
	resp := s.do(t, "POST", "/answer/stream", question, "Last-Event-ID", seen[len(seen)-1].ID)
	close(open)
	rest := readFrames(t, resp, "")
	if got, want := eventNames(append(seen, rest...)), "start step_start text_start text_delta text_delta text_end step_end final_answer"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// F29
func TestAnswerCallerWhoLeavesCancelsTheRun(t *testing.T) {
	t.Parallel()
	asked, gone := make(chan struct{}), make(chan struct{})
	s := newService(t, llmtest.Turns(func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(gone)
	}), nil, nil)

	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "POST", s.URL+"/answer", strings.NewReader(question))
		req.Header.Set("Content-Type", "application/json")
		resp, err := s.Client().Do(req)
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()

	<-asked
	leave()
	<-gone
	if err := <-done; err == nil {
		t.Error("the caller got an answer, want an error")
	}
}

func TestCancelEndsTheRunAndItsStream(t *testing.T) {
	t.Parallel()
	s := newService(t, waitingModel(nil), nil, nil)
	resp := s.do(t, "POST", "/answer/stream", question)
	first := readFrames(t, resp, "text_delta")
	run, _, _ := strings.Cut(first[0].ID, ":")
	if st := decodeResponse[answer](t, s.do(t, "GET", "/runs/"+run, ""), 200); st.Status != "running" {
		t.Errorf("status %+v, want Status running", st)
	}
	if st := decodeResponse[answer](t, s.do(t, "POST", "/runs/"+run+"/cancel", ""), 200); st.Status != "cancelled" || st.Reason != "requested" {
		t.Errorf("cancelled %+v, want Status cancelled, Reason requested", st)
	}
	if rest := eventNames(readFrames(t, resp, "")); rest != "text_end step_end cancelled" {
		t.Errorf(`the stream went on with %s, want "text_end step_end cancelled"`, rest)
	}
	if again := decodeResponse[answer](t, s.do(t, "POST", "/runs/"+run+"/cancel", ""), 200); again.Status != "cancelled" {
		t.Errorf("again %+v, want Status cancelled", again)
	}
}

func TestBackgroundRunIsReadAtItsLocation(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	s := newService(t, waitingModel(open), nil, nil)
	resp := s.do(t, "POST", "/answer", `{"question":"?","background":true}`)
	begun := decodeResponse[answer](t, resp, 202)
	if begun.Status != "running" || resp.Header.Get("Location") != "/runs/"+begun.RunID {
		t.Fatalf("begun %+v at %s, want Status running, Location %s", begun, resp.Header.Get("Location"), "/runs/"+begun.RunID)
	}
	close(open)
	s.Events(t, begun.RunID)
	end := decodeResponse[answer](t, s.do(t, "GET", resp.Header.Get("Location"), ""), 200)
	if end.Status != "completed" || end.Answer != "Wait." || end.Metadata.Steps != 1 {
		t.Errorf("end %+v, want Status completed, Answer Wait., Metadata.Steps 1", end)
	}
}

func TestFailedRunIsAProblem(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Fails(http.StatusForbidden, "canary")), nil, nil)
	p := wantProblem(t, s.do(t, "POST", "/answer", question), 502, "model_error")
	if strings.Contains(fmt.Sprint(p), "canary") {
		t.Errorf("problem %+v, want no canary", p)
	}
	st := decodeResponse[answer](t, s.do(t, "GET", p.Instance, ""), 200)
	if st.Status != "failed" || st.Error == nil || st.Error.Code != "model_error" || st.Error.Status != 502 {
		t.Errorf("status %+v, want Status failed, Error non-nil, Error.Code model_error, Error.Status 502", st)
	}
}

func TestIdempotencyKeyAndBodyIdentifyARun(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	first := decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Idempotency-Key", "k 1"), 200)
	again := decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Idempotency-Key", "k 1"), 200)
	if first.RunID != again.RunID || len(s.Model.Requests()) != 2 {
		t.Errorf("%s, then %s, want RunID %s, 2 requests", first.RunID, again.RunID, again.RunID)
	}
	wantProblem(t, s.do(t, "POST", "/answer", `{"question":"Another?"}`, "Idempotency-Key", "k 1"), 422, "unprocessable")
	wantProblem(t, s.do(t, "POST", "/answer", question, "Idempotency-Key", strings.Repeat("k", 256)), 400, "invalid_request")
}

func TestIdempotencyKeyAttachesAtEveryNativeRoute(t *testing.T) {
	t.Parallel()
	query := "/answer/stream?question=" + url.QueryEscape("What is 1 + 2?")
	start := map[string]func(s *service) string{
		"POST /answer": func(s *service) string {
			return decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Idempotency-Key", "k"), 200).RunID
		},
		"POST /answer with other white space": func(s *service) string {
			return decodeResponse[answer](t, s.do(t, "POST", "/answer", strings.ReplaceAll(question, ":", " : "), "Idempotency-Key", "k"), 200).RunID
		},
		"POST /answer/stream": func(s *service) string { return s.runIDWithKey(t, "POST", "/answer/stream", question) },
		"GET /answer/stream":  func(s *service) string { return s.runIDWithKey(t, "GET", query, "") },
	}
	for first := range start {
		for second := range start {
			t.Run(first+", then "+second, func(t *testing.T) {
				s := newService(t, addingModel(), nil, nil)
				if one, two := start[first](s), start[second](s); one != two || len(s.Model.Requests()) != 2 {
					t.Errorf("runs %s and %s after %d model requests, want one run and 2 requests", one, two, len(s.Model.Requests()))
				}
			})
		}
	}
}

// runIDWithKey asks with the Idempotency-Key "k" and returns the run that the stream begins with.
func (s *service) runIDWithKey(t *testing.T, method, path, body string) string {
	t.Helper()
	seen := readFrames(t, s.do(t, method, path, body, "Idempotency-Key", "k"), "final_answer")
	run, _, _ := strings.Cut(seen[0].ID, ":")
	return run
}

func TestIdempotencyKeyOfAnotherFormatIsRefusedAsSuch(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Idempotency-Key", "k"), 200)
	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("What is 1 + 2?"), "Idempotency-Key", "k"), 422)
	if !strings.Contains(e.Error.Message, "another path") {
		t.Errorf("chat: %q, want that the path differs", e.Error.Message)
	}
	if p := wantProblem(t, s.do(t, "POST", "/answer", `{"question":"Another?"}`, "Idempotency-Key", "k"), 422, "unprocessable"); !strings.Contains(p.Detail, "another body") {
		t.Errorf("the same path: %q, want that the body differs", p.Detail)
	}
}

// A caller who lost the connection has no answer, and the run that was cancelled for it has none either.
func TestIdempotencyKeyOfAnAbandonedRunStartsANewOne(t *testing.T) {
	t.Parallel()
	asked, cancelled := make(chan struct{}), make(chan struct{})
	waitForCancel := func(w http.ResponseWriter, r *http.Request) {
		llmtest.Stream(w, "", map[string]any{"content": "Wait"})
		asked <- struct{}{}
		<-r.Context().Done()
		cancelled <- struct{}{}
	}

	const callers = 65
	answers := append(slices.Repeat([]llmtest.Answer{waitForCancel}, callers), llmtest.Says("Yes."))
	s := newService(t, func(llmtest.Request) llmtest.Answer {
		next := answers[0]
		answers = answers[1:]
		return next
	}, nil, nil)

	for range callers { // those who ask again may leave as well
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			req, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/answer", strings.NewReader(question))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k"}}
			if resp, err := s.Client().Do(req); err == nil {
				resp.Body.Close()
				t.Errorf("the caller who left got %s, want an error", resp.Status)
			}
		}()

		select {
		case <-asked:
		case <-left:
		}
		leave()
		<-left
		if t.Failed() {
			return
		}
		<-cancelled
	}

	first := decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Idempotency-Key", "k"), 200)
	if again := decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Idempotency-Key", "k"), 200); again.RunID != first.RunID {
		t.Errorf("a run with an answer was started again: %s, then %s, want %s", first.RunID, again.RunID, first.RunID)
	}
	wantProblem(t, s.do(t, "POST", "/answer", `{"question":"Another?"}`, "Idempotency-Key", "k"), 422, "unprocessable")
}

func TestEmptyListsOfToolsAndServersMeanNone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, body string
		tools      int
	}{
		"no list":         {"/answer", `{"question":"x"}`, 11},
		"tools":           {"/answer", `{"question":"x","tools":[]}`, 0},
		"servers":         {"/answer", `{"question":"x","servers":[]}`, 0},
		"chat completion": {"/v1/chat/completions", chatCompletionBody("x", `,"answerd":{"tools":[]}`), 0},
		"response":        {"/v1/responses", responsesBody("x", `,"answerd":{"servers":[]}`), 0},
		"allowed_tools":   {"/v1/responses", responsesBody("x", `,"tools":[{"type":"mcp","server_label":"default","allowed_tools":[]}]`), 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, llmtest.Turns(llmtest.Says("Yes.")), nil, nil)
			s.do(t, "POST", c.path, c.body)
			requests := s.Model.Requests()
			if len(requests) == 0 {
				t.Fatalf("the model was not asked: %d requests, want non-zero", len(requests))
			}
			if got := len(requests[0].Tools); got != c.tools && (c.tools == 0 || got == 0) {
				t.Errorf("%d tools are offered, want %d", got, c.tools)
			}
		})
	}
}

func TestRunsBeyondTheLimitAre503WithRetryAfter(t *testing.T) {
	t.Parallel()
	s := newService(t, waitingModel(nil), func(o *agent.Options) { o.MaxRuns = 1 }, nil)
	s.StartRun(t, agent.Request{})
	s.fillQueue(t)
	resp := s.do(t, "POST", "/answer", question)
	wantProblem(t, resp, 503, "overloaded")
	if resp.Header.Get("Retry-After") == "" {
		t.Errorf("Retry-After %q, want non-empty", resp.Header.Get("Retry-After"))
	}
}

func TestDrainingServiceRefusesQuestions(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	decodeResponse[map[string]any](t, s.do(t, "GET", "/tools", ""), 200) // waits for the first list
	if r := decodeResponse[answer](t, s.do(t, "GET", "/readyz", ""), 200); r.Status != "ready" {
		t.Errorf("before: %+v, want Status ready", r)
	}
	s.handler.MarkUnready()
	s.Drain(t.Context())
	if r := decodeResponse[answer](t, s.do(t, "GET", "/readyz", ""), 503); r.Status != "draining" {
		t.Errorf("after: %+v, want Status draining", r)
	}
	resp := s.do(t, "POST", "/answer", question)
	wantProblem(t, resp, 503, "draining")
	if resp.Header.Get("Retry-After") == "" {
		t.Errorf("Retry-After %q, want non-empty", resp.Header.Get("Retry-After"))
	}
}

// A silent stream is kept open by comments of one line feed, which no client takes
// for an event.
func TestStreamSendsHeartbeats(t *testing.T) {
	t.Parallel()
	s := newService(t, waitingModel(nil), nil, func(o *api.Options) { o.Heartbeat = 1 })
	resp := s.do(t, "POST", "/answer/stream", question)
	var got strings.Builder
	for buf := make([]byte, 512); !strings.Contains(got.String(), ": ping\n: ping\n"); {
		n, err := resp.Body.Read(buf)
		if err != nil {
			t.Fatalf("%s: %v", got.String(), err)
		}
		got.Write(buf[:n])
	}
	if strings.Contains(got.String(), ": ping\n\n") {
		t.Errorf(`got %q, want no ": ping\n\n"`, got.String())
	}
}

func TestStreamOfAnUnwatchedRunGetsItsEnd(t *testing.T) {
	t.Parallel()
	s := newService(t, waitingModel(nil), func(o *agent.Options) { o.DisconnectGrace = 0 }, nil)
	ctx, leave := context.WithCancel(t.Context())
	seen := readFrames(t, s.doContext(ctx, t, "POST", "/answer/stream", question), "text_delta")
	run, _, _ := strings.Cut(seen[0].ID, ":")
	leave()
	end := agenttest.TerminalEvent[event.Cancelled](t, s.Events(t, run))
	if end.Reason != "abandoned" {
		t.Errorf("end %+v, want Reason abandoned", end)
	}
}

func TestUnknownPathOfTheConsoleIsAProblemDocument(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Console = console.Handler(console.Options{}) })
	for _, path := range []string{"/console/none.js", "/console/", "/console/../x"} {
		wantProblem(t, s.do(t, "GET", path, ""), 404, "not_found")
	}
	if resp := s.do(t, "GET", "/", ""); resp.StatusCode != 200 {
		t.Errorf("the page: %s, want 200", resp.Status)
	}
}
