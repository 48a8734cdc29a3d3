package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// askingModel returns a model that calls the tool "ask", which elicits input, and then answers.
func askingModel() llmtest.Script {
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask"}), llmtest.Says("Booked."))
}

// readInterrupt reads a stream to its end, where the run waits for one interrupt.
func readInterrupt(t *testing.T, resp *http.Response) (path, position string, i event.Interrupt) {
	t.Helper()
	list := readFrames(t, resp, "")
	last := list[len(list)-1]
	var s event.Suspended
	if err := json.Unmarshal(last.Data, &s); err != nil || last.Event != "suspended" || len(s.Interrupts) != 1 {
		t.Fatalf("the stream ended with %s %s, %v, %d Interrupts, want suspended, 1 and no error", last.Event, last.Data, err, len(s.Interrupts))
	}
	run, _, _ := strings.Cut(last.ID, ":")
	return "/runs/" + run, last.ID, s.Interrupts[0]
}

// addNeedsApproval makes the tool add wait for a person's approval.
func addNeedsApproval(s *config.Server) { s.ApproveTools = []string{"add"} }

func TestInputAnswersTheQuestionOfARun(t *testing.T) {
	t.Parallel()
	s := newService(t, askingModel(), nil, nil)
	run, _, i := readInterrupt(t, s.do(t, "POST", "/answer/stream", question))
	sendInput := func(body string) *http.Response { return s.do(t, "POST", run+"/input", body) }
	id := `{"id":"` + i.ID + `",`

	// What is not an answer leaves the question open.
	p := wantProblem(t, sendInput(id+`"action":"accept","content":{"people":"x"}}`), 422, "unprocessable")
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "/content/people" {
		t.Errorf("problem %+v, want 1 Errors with Pointer /content/people", p)
	}
	wantProblem(t, sendInput(id+`"action":"accept"}`), 422, "unprocessable")
	for _, bad := range []string{
		id + `"action":"decline","content":{"people":1}}`, id + `"action":"yes"}`, id + `"action":"accept","content":[]}`,
		id + `"action":"cancel","approved":true}`, id + `"action":"accept","args":{}}`, id + `"approved":true}`, id + `"approved":"yes"}`,
		id + `"reason":"x"}`, `{"action":"accept"}`, id + `"action":"accept","content":{"people":1,"people":2}}`, `[]`, `{`,
	} {
		wantProblem(t, sendInput(bad), 400, "invalid_request")
	}
	wantProblem(t, sendInput(`{"id":"int_none","action":"cancel"}`), 404, "not_found")
	wantProblem(t, s.do(t, "POST", "/runs/run_none/input", id+`"action":"cancel"}`), 404, "not_found")
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"action":"cancel"}`, "Content-Type", "text/plain"), 415, "unsupported_media")
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"action":"cancel"}`, "Accept", "text/html"), 406, "not_acceptable")
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"action":"cancel"}`, "Last-Event-ID", "run_x:1"), 400, "invalid_request")
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"action":"cancel"}`, "Last-Event-ID", strings.TrimPrefix(run, "/runs/")+":999"), 400, "invalid_request")

	status := decodeResponse[struct {
		Status  string
		LastSeq int64 `json:"last_seq"`
	}](t, sendInput(id+`"action":"accept","content":{"people":4}}`), 200)
	if status.Status == "" || status.LastSeq == 0 {
		t.Errorf("status %+v, want Status non-empty, LastSeq non-zero", status)
	}
	wantProblem(t, sendInput(id+`"action":"accept","content":{"people":4}}`), 409, "conflict")
	readFrames(t, s.do(t, "GET", run+"/events", ""), "final_answer")
}

// suspended ends a stretch of the stream. The next one is the answer to
// the input, or comes with Last-Event-ID, whichever the reader likes.
func TestInputStreamContinuesAfterTheAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, header string }{{"where it was", ""}, {"from the reader's position", "Last-Event-ID"}} {
		t.Run(c.name, func(t *testing.T) {
			s := newService(t, addingModel(), nil, nil, addNeedsApproval)
			run, position, i := readInterrupt(t, s.do(t, "POST", "/answer/stream", question))
			status := decodeResponse[struct {
				Status     string
				Interrupts []event.Interrupt
			}](t, s.do(t, "GET", run, ""), 200)
			if status.Status != "suspended" || len(status.Interrupts) != 1 || status.Interrupts[0].ID != i.ID || string(status.Interrupts[0].Args) != `{"a":1,"b":2}` {
				t.Errorf(`status %+v, want Status suspended, 1 Interrupts, ID %q, Args {"a":1,"b":2}`, status, i.ID)
			}
			headers := []string{"Accept", "text/event-stream"}
			want := "approval_resolved tool_result step_start text_start text_delta text_delta text_end step_end final_answer"
			if c.header != "" {
				headers = append(headers, c.header, strings.TrimPrefix(run, "/runs/")+":"+"0")
				want = "start step_start tool_call_start tool_call_args tool_call step_end approval_required suspended " + want
			}

			// Somebody else waits at the same place, with an EventSource's request.
			other := s.do(t, "GET", run+"/events", "", "Last-Event-ID", position)
			stream := s.do(t, "POST", run+"/input", `{"id":"`+i.ID+`","approved":true}`, headers...)
			if got := eventNames(readFrames(t, stream, "")); got != want {
				t.Errorf("then came %s, want %s", got, want)
			}
			if got := eventNames(readFrames(t, other, "")); !strings.HasPrefix(got, "approval_resolved") || !strings.HasSuffix(got, "final_answer") {
				t.Errorf("elsewhere came %s, want it to start with approval_resolved and to end in final_answer", got)
			}

			// Who reads it all later is not stopped at what is past.
			if got := eventNames(readFrames(t, s.do(t, "GET", run+"/events", ""), "")); !strings.Contains(got, "suspended approval_resolved") || !strings.HasSuffix(got, "final_answer") {
				t.Errorf(`later %s, want it to contain "suspended approval_resolved" and to end in final_answer`, got)
			}
		})
	}
}

func TestEditedArgumentsArriveAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)
	run, _, i := readInterrupt(t, s.do(t, "POST", "/answer/stream", question))
	id := `{"id":"` + i.ID + `",`
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"approved":true,"args":[]}`), 400, "invalid_request")
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"approved":false,"args":{}}`), 400, "invalid_request")
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"approved":true,"args":{"a":1,"a":2}}`), 400, "invalid_request")
	p := wantProblem(t, s.do(t, "POST", run+"/input", id+`"approved":true,"args":{"a":"forty","b":1}}`), 422, "unprocessable")
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "/args/a" {
		t.Errorf("problem %+v, want 1 Errors with Pointer /args/a", p)
	}
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"approved":true,"args":{"a":"`+strings.Repeat("x", 64<<10)+`"}}`), 422, "unprocessable")

	stream := s.do(t, "POST", run+"/input", id+`"approved":true,"args":{"b":5,"a":40},"reason":"more"}`, "Accept", "text/event-stream")
	for _, f := range readFrames(t, stream, "") {
		if f.Event == "tool_result" && !strings.Contains(string(f.Data), `"args":{"b":5,"a":40},"payload":{"sum":45}`) {
			t.Errorf(`data %s, want it to contain "args":{"b":5,"a":40},"payload":{"sum":45}`, f.Data)
		}
	}
}

func TestInputRaisesTheBudgetOfTheOwnersRun(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":3,"b":4}`}), llmtest.Says("7.")), nil, nil)
	const limited = `{"question":"?","budget":{"tool_calls":1,"on_limit":"ask"}}`
	run, _, i := readInterrupt(t, s.do(t, "POST", "/answer/stream", limited))
	if i.Kind != event.KindBudget || i.Limit != "tool_calls" || i.Used != 1 || i.Max != 1 {
		t.Errorf("interrupt %+v, want Kind KindBudget, Limit tool_calls, Used 1, Max 1", i)
	}
	id := `{"id":"` + i.ID + `",`
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"action":"accept"}`), 400, "invalid_request")
	p := wantProblem(t, s.do(t, "POST", run+"/input", id+`"approved":true,"args":{"max":1}}`), 422, "unprocessable")
	if want := "The answer does not fit what was asked for."; len(p.Errors) != 1 || p.Errors[0].Pointer != "/args/max" || p.Detail != want {
		t.Errorf("problem %+v, want 1 Errors with Pointer /args/max, Detail %q", p, want)
	}
	stream := s.do(t, "POST", run+"/input", id+`"approved":true,"args":{"max":2}}`, "Accept", "text/event-stream")
	if got := eventNames(readFrames(t, stream, "final_answer")); !strings.HasPrefix(got, "budget_resolved step_start") {
		t.Errorf(`events %s, want it to start with "budget_resolved step_start"`, got)
	}
	wantProblem(t, s.do(t, "POST", run+"/input", id+`"approved":false}`), 409, "conflict")
	if got := eventNames(readFrames(t, s.do(t, "POST", "/answer/stream", `{"question":"?","budget":{"tool_calls":1}}`), "final_answer")); strings.Contains(got, "budget_required") {
		t.Errorf("asked without being told to: %s, want no budget_required", got)
	}
}

func TestInputAfterItsTimeoutIsGone(t *testing.T) {
	t.Parallel()
	s := newService(t, askingModel(), func(o *agent.Options) { o.InputTimeout = time.Millisecond }, nil)
	// Whether the stream sees the wait end is a matter of the machine's speed.
	run, _, _ := strings.Cut(readFrames(t, s.do(t, "POST", "/answer/stream", question), "")[0].ID, ":")
	asked := agenttest.EventsOf[event.Elicitation](s.Events(t, run))[0]
	wantProblem(t, s.do(t, "POST", "/runs/"+run+"/input", `{"id":"`+asked.InterruptID+`","action":"decline"}`), 410, "gone")
}

// suspension is the answer to a question that waits for a person.
type suspension struct {
	RunID      string `json:"run_id"`
	Status     string
	Interrupts []event.Interrupt
}

// A caller who waits for the whole answer learns that a person must decide, and may
// come back for it without reading on the way.
func TestAnswerIs202WhenTheRunIsSuspended(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), func(o *agent.Options) { o.DisconnectGrace = 0 }, nil, addNeedsApproval)
	askWithKey := func() *http.Response { return s.do(t, "POST", "/answer", question, "Idempotency-Key", "k") }
	resp := askWithKey()
	a := decodeResponse[suspension](t, resp, 202)
	if a.Status != "suspended" || len(a.Interrupts) != 1 || a.Interrupts[0].Kind != "approval" || resp.Header.Get("Location") != "/runs/"+a.RunID {
		t.Fatalf("suspension %+v, Location %q, want Status suspended, 1 Interrupts, Interrupts[0].Kind approval, Location %q", a, resp.Header.Get("Location"), "/runs/"+a.RunID)
	}
	if again := decodeResponse[suspension](t, askWithKey(), 202); again.RunID != a.RunID {
		t.Errorf("suspension %+v, want RunID %q", again, a.RunID)
	}
	decodeResponse[suspension](t, s.do(t, "POST", "/runs/"+a.RunID+"/input", `{"id":"`+a.Interrupts[0].ID+`","approved":true}`), 200)
	if answer := decodeResponse[struct{ Answer string }](t, askWithKey(), 200); answer.Answer != "It is 3." {
		t.Errorf(`answer %+v, want Answer "It is 3."`, answer)
	}
}

// RFC 7240: the caller would rather wait.
func TestAnswerWaitsForAPersonAsLongAsPreferred(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)

	type reply struct {
		resp *http.Response
		err  error
	}

	done := make(chan reply, 1)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/answer", strings.NewReader(question))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Prefer": {"wait=600"}, "Idempotency-Key": {"k"}}
		resp, err := s.Client().Do(req)
		done <- reply{resp, err}
	}()

	// The same question without patience tells the run and what it waits for.
	a := decodeResponse[suspension](t, s.do(t, "POST", "/answer", question, "Idempotency-Key", "k"), 202)
	select {
	case r := <-done:
		t.Fatalf("answered %+v before the input, want it to wait", r)
	default:
	}

	decodeResponse[suspension](t, s.do(t, "POST", "/runs/"+a.RunID+"/input", `{"id":"`+a.Interrupts[0].ID+`","approved":false}`), 200)
	r := <-done
	if r.err != nil {
		t.Fatalf("err %v, want no error", r.err)
	}
	defer r.resp.Body.Close()
	decodeResponse[struct{ Answer string }](t, r.resp, 200)
	if got := r.resp.Header.Get("Preference-Applied"); got != "wait=600" {
		t.Errorf("get %q, want wait=600", got)
	}
}

func TestInputReachesABackgroundRun(t *testing.T) {
	t.Parallel()
	s := newService(t, askingModel(), nil, nil)
	location := s.do(t, "POST", "/answer", `{"question":"?","background":true}`).Header.Get("Location")
	run, position, i := readInterrupt(t, s.do(t, "GET", location+"/events", ""))
	if resp := s.do(t, "POST", run+"/input", `{"id":"`+i.ID+`","action":"decline"}`); resp.StatusCode != 200 {
		t.Errorf("status %d, want 200", resp.StatusCode)
	}
	readFrames(t, s.do(t, "GET", location+"/events", "", "Last-Event-ID", position), "final_answer")
}

func TestToolCallNeedsApproved(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)
	p := wantProblem(t, s.do(t, "POST", "/tools/add/call", `{"args":{"a":1,"b":2}}`), 403, "forbidden")
	if !strings.Contains(p.Detail, `"approved": true`) {
		t.Errorf(`detail %q, want it to contain "approved": true`, p.Detail)
	}
	wantProblem(t, s.do(t, "POST", "/tools/add/call", `{"args":{"a":1,"b":2},"approved":1}`), 400, "invalid_request")
	decodeResponse[struct{ Payload any }](t, s.do(t, "POST", "/tools/add/call", `{"args":{"a":1,"b":2},"approved":true}`), 200)
}

// For other callers a run that waits does not exist, whatever they send: no response depends on
// whether it exists.
func TestInputRevealsNothingToOtherCallers(t *testing.T) {
	t.Parallel()
	iam := newMint(t)
	v := iam.newVerifier(t, nil)
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Verifier = v }, addNeedsApproval)
	ada, eve := iam.bearerToken("ada"), iam.bearerToken("eve")

	run, position, i := readInterrupt(t, s.do(t, "POST", "/answer/stream", question, "Authorization", ada))
	id, _, _ := strings.Cut(position, ":")
	good := `{"id":"` + i.ID + `","approved":true}`
	for _, body := range []string{good, `{"id":"int_none","approved":true}`, `{"id":"` + i.ID + `","action":"accept"}`, `{}`, `x`} {
		for _, header := range [][]string{nil, {"Last-Event-ID", position}, {"Last-Event-ID", id + ":999"}, {"Accept", "text/event-stream"}} {
			wantProblem(t, s.do(t, "POST", run+"/input", body, append(header, "Authorization", eve)...), 404, "not_found")
		}
	}

	for _, last := range []string{position, id + ":999"} {
		wantProblem(t, s.do(t, "GET", run+"/events", "", "Last-Event-ID", last, "Authorization", eve), 404, "not_found")
	}

	wantProblem(t, s.do(t, "GET", run, "", "Authorization", eve), 404, "not_found")
	stream := s.do(t, "POST", run+"/input", good, "Authorization", ada, "Accept", "text/event-stream")
	list := readFrames(t, stream, "")
	if list[0].Event != "approval_resolved" || !strings.Contains(string(list[0].Data), `"by":"ada"`) {
		t.Errorf(`data %s, [0].Event %q, want Event approval_resolved, Data containing "by":"ada"`, list[0].Data, list[0].Event)
	}
}
