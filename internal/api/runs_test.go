package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
)

type runStatus struct{ Status string }

type runList struct {
	Runs []struct {
		RunID    string `json:"run_id"`
		ThreadID string `json:"thread_id"`
		Status   string
	}
	Next string
}

// listRuns returns the ids of all runs that a query lists, page by page.
func listRuns(t *testing.T, s *service, query string) (ids []string) {
	t.Helper()
	for before := ""; ; {
		page := decodeResponse[runList](t, s.do(t, "GET", "/runs?limit=2"+query+before, ""), http.StatusOK)
		for _, r := range page.Runs {
			ids = append(ids, r.RunID)
		}
		if page.Next == "" {
			return ids
		}
		before = "&before=" + page.Next
	}
}

func TestRunsAreListedByThreadAndStatus(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), nil, nil)
	var all, ended []string
	for i := range 5 {
		run := s.StartRun(t, agent.Request{ThreadID: []string{"thr_a", "thr_b"}[i%2], Background: true}).ID
		<-s.Tools.Entered
		all = append([]string{run}, all...)
		if i < 3 {
			decodeResponse[runStatus](t, s.do(t, "POST", "/runs/"+run+"/cancel", ""), http.StatusOK)
			ended = append([]string{run}, ended...)
		}
	}

	for query, want := range map[string][]string{
		"": all, "&status=cancelled": ended, "&status=running": all[:2], "&status=failed": nil, "&thread_id=thr_b": {all[1], all[3]},
		"&thread_id=thr_b&status=running": {all[1]}, "&thread_id=thr_c": nil,
	} {
		if got := listRuns(t, s, query); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
}

// An active run has to be cancelled first; one that is forgotten leaves nothing but
// that it was.
func TestDeletedRunIsGone(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), nil, nil)
	run := s.StartRun(t, agent.Request{Background: true}).ID
	<-s.Tools.Entered
	wantProblem(t, s.do(t, "DELETE", "/runs/"+run, ""), http.StatusConflict, "conflict")
	decodeResponse[runStatus](t, s.do(t, "POST", "/runs/"+run+"/cancel", ""), http.StatusOK)
	if resp := s.do(t, "DELETE", "/runs/"+run, ""); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("status %s, want 204", resp.Status)
	}
	for _, r := range [][2]string{{"GET", ""}, {"GET", "/events"}, {"GET", "/results/call_1"}, {"DELETE", ""}, {"POST", "/cancel"}} {
		wantProblem(t, s.do(t, r[0], "/runs/"+run+r[1], ""), http.StatusGone, "gone")
	}
	if got := listRuns(t, s, ""); len(got) != 0 {
		t.Errorf("listed %v, want 0", got)
	}
}

// Without a durable log, runs end with their process, and a request for one of them says so.
func TestRunOfAnEarlierProcessIsGone(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("Yes.")), nil, nil)
	run := memory.New(memory.Options{}).NewID()
	for _, r := range [][3]string{
		{"GET", "/runs/" + run}, {"GET", "/runs/" + run + "/events"}, {"POST", "/runs/" + run + "/cancel"}, {"DELETE", "/runs/" + run},
	} {
		wantProblem(t, s.do(t, r[0], r[1], ""), http.StatusGone, "gone")
	}
	wantProblem(t, s.do(t, "GET", "/answer/stream?question=x", "", "Last-Event-ID", run+":7"), http.StatusGone, "gone")
	wantProblem(t, s.do(t, "GET", "/runs/run_none", ""), http.StatusNotFound, "not_found")
}

// A drained replica cuts its streams instead of ending them: the run continues elsewhere.
func TestStreamsOfARunThatIsHandedOverAreCut(t *testing.T) {
	t.Parallel()
	durable := func(o *agent.Options) { o.Durable = true }
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), durable, nil)
	run := s.StartRun(t, agent.Request{}).ID
	stream := s.do(t, "GET", "/runs/"+run+"/events", "")
	<-s.Tools.Entered

	drained := make(chan struct{})
	go func() {
		defer close(drained)
		over, stop := context.WithCancel(context.Background())
		stop()
		s.Drain(over)
	}()

	_, cut := io.Copy(io.Discard, stream.Body)
	<-drained
	if cut == nil {
		t.Error("the stream ended as if that were all, want an error")
	}
	if r, err := s.Log.Run(t.Context(), run); err != nil || r.Status() != event.StatusRunning {
		t.Errorf("JSON %s, %v, want status StatusRunning, no error", r.Last.AppendJSON(nil), err)
	}
}

// The run is cancelled wherever it continues, so the caller must not be told that it was not.
func TestCancelOfARunThatIsHandedOverIsAccepted(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), func(o *agent.Options) { o.Durable = true }, nil)
	run := s.StartRun(t, agent.Request{}).ID
	<-s.Tools.Entered
	over, stop := context.WithCancel(t.Context())
	stop()
	s.Drain(over)
	if status := decodeResponse[struct{ Status string }](t, s.do(t, "POST", "/runs/"+run+"/cancel", ""), http.StatusAccepted).Status; status != "running" {
		t.Errorf("status %s, want running", status)
	}
	if page, err := s.Log.Inputs(t.Context(), run, 0); err != nil || len(page.Inputs) != 1 {
		t.Errorf("the log has %d inputs of the run, %v, want the cancellation", len(page.Inputs), err)
	}
}

// OpenAI's clients repeat a request that got 503 on their own. If its run continues elsewhere, that would be a
// second run, which calls the tools again.
func TestRequestOfARunThatIsHandedOverIsNotRepeated(t *testing.T) {
	t.Parallel()
	set := func(o *agent.Options) { o.Durable = true }
	for path, body := range map[string]string{"/v1/chat/completions": chatCompletionBody("x"), "/v1/responses": responsesBody("x")} {
		for _, c := range []struct {
			header []string
			want   string
		}{{nil, "false"}, {[]string{"Idempotency-Key", "k"}, ""}} {
			s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), set, nil)
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				<-s.Tools.Entered
				over, stop := context.WithCancel(context.Background())
				stop()
				s.Drain(over)
			}()
			resp := s.do(t, "POST", path, body, c.header...)
			<-drained
			e := decodeResponse[openAIError](t, resp, 503)
			if got := resp.Header.Get("X-Should-Retry"); e.Error.Code != "draining" || got != c.want {
				t.Errorf("%s %v: got the code %s and X-Should-Retry %q, want draining and %q", path, c.header, e.Error.Code, got, c.want)
			}
		}
	}
}

type callResult struct {
	CallID     string `json:"call_id"`
	Tool       string
	Server     string
	IsError    bool `json:"is_error"`
	Payload    any
	Content    []map[string]any
	Structured any
}

const wholeText = 1 << 20 // bytes

// giveToolModel returns a model that calls give twice, the second time for a failure, with an id that
// needs escaping in a path.
func giveToolModel() llmtest.Script {
	return llmtest.Turns(llmtest.Calls(
		llmtest.Call{Name: "give", Args: `{"name":"large"}`},
		llmtest.Call{ID: "call/2 ?%2F", Name: "give", Args: `{"name":"small"}`},
	), llmtest.Says("Read."))
}

func setGiveResults(tools *agenttest.ToolServer) {
	tools.SetResult("large", `{"content":[{"type":"text","text":"`+strings.Repeat("x", wholeText)+`"}],"structuredContent":{"n":9007199254740993}}`)
	tools.SetResult("small", `{"isError":true,"content":[{"type":"text","text":"No."}]}`)
}

// S2.7: where the event has a part, it leads to the whole.
func TestResultEndpointHasTheWholeResult(t *testing.T) {
	t.Parallel()
	s := newService(t, giveToolModel(), nil, nil)
	setGiveResults(s.Tools)

	stream := readFrames(t, s.do(t, "POST", "/answer/stream", question), "")
	var seen int
	for _, f := range stream {
		var e struct {
			RunID     string           `json:"run_id"`
			CallID    string           `json:"call_id"`
			Truncated *event.Truncated `json:"truncated"`
		}
		if err := json.Unmarshal(f.Data, &e); err != nil {
			t.Fatal(err)
		}
		switch f.Event {
		case "tool_result":
			seen++
			if e.Truncated == nil || e.Truncated.Bytes < wholeText || len(f.Data) > 320<<10 {
				t.Fatalf("%d bytes, truncated %+v, want Truncated non-nil, Truncated.Bytes at least %d, Data at most 320<<10", len(f.Data), e.Truncated, wholeText)
			}
			resp := s.do(t, "GET", e.Truncated.URL, "")
			if got := resp.Header.Get("Cache-Control"); got != "no-store" {
				t.Errorf("Cache-Control is %s, want no-store", got)
			}
			r := decodeResponse[callResult](t, resp, 200)
			if len(r.Content) != 1 || len(r.Content[0]["text"].(string)) != wholeText || r.IsError || r.CallID != "call_1" || r.Tool != "give" || r.Server != "default" {
				t.Errorf(`%d blocks of %s, %s, %s, want Content 1, len(Content[0]["text"].(string)) %d, IsError false, CallID call_1, Tool give, Server default`, len(r.Content), r.CallID, r.Tool, r.Server, wholeText)
			}
		case "tool_error":
			seen++
			path := "/runs/" + e.RunID + "/results/" + url.PathEscape(e.CallID)
			r := decodeResponse[callResult](t, s.do(t, "GET", path, ""), 200)
			if e.Truncated != nil || !r.IsError || r.Payload != "No." || r.CallID != "call/2 ?%2F" {
				t.Errorf(`truncated %+v, result %+v, want Truncated nil, IsError true, Payload No., CallID "call/2 ?%%2F"`, e.Truncated, r)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d calls ended, want 2", seen)
	}
}

func TestResultBelongsToTheOwnerOfTheRun(t *testing.T) {
	t.Parallel()
	iam := newMint(t)
	v := iam.newVerifier(t, nil)
	s := newService(t, giveToolModel(), nil, func(o *api.Options) { o.Verifier = v })
	setGiveResults(s.Tools)
	ada, bob := iam.bearerToken("ada"), iam.bearerToken("bob")
	a := decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Authorization", ada), 200)
	path := "/runs/" + a.RunID + "/results/call_1"
	decodeResponse[callResult](t, s.do(t, "GET", path, "", "Authorization", ada), 200)
	wantProblem(t, s.do(t, "GET", path, "", "Authorization", bob), 404, "not_found")
	wantProblem(t, s.do(t, "GET", path, ""), 401, "unauthenticated")
	wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID+"/results/call_9", "", "Authorization", ada), 404, "not_found")
	wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID+"/results/%2e%2e%2f", "", "Authorization", ada), 404, "not_found")
	wantProblem(t, s.do(t, "GET", "/runs/run_none/results/call_1", "", "Authorization", ada), 404, "not_found")
	wantProblem(t, s.do(t, "GET", path, "", "Authorization", ada, "Accept", "text/html"), 406, "not_acceptable")
}

func TestResultThatWasDroppedIsGone(t *testing.T) {
	t.Parallel()
	s := newService(t, giveToolModel(), func(o *agent.Options) { o.Log = memory.New(memory.Options{MaxBytes: 900 << 10}) }, nil)
	setGiveResults(s.Tools)
	a := decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200)
	wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID+"/results/call_1", ""), 410, "gone")
	decodeResponse[callResult](t, s.do(t, "GET", "/runs/"+a.RunID+"/results/"+url.PathEscape("call/2 ?%2F"), ""), 200)
}

// A call that goes on has no result yet.
func TestResultOfACallInProgressIsNotFound(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "meet", Args: `{"text":"x"}`}), llmtest.Says("Met.")), nil, nil)
	run := s.StartRun(t, agent.Request{})
	<-s.Tools.Entered
	wantProblem(t, s.do(t, http.MethodGet, "/runs/"+run.ID+"/results/call_1", ""), 404, "not_found")
	close(s.Tools.ReleaseMeet)
	s.Events(t, run.ID)
	if r := decodeResponse[callResult](t, s.do(t, http.MethodGet, "/runs/"+run.ID+"/results/call_1", ""), 200); r.Payload != "x" {
		t.Errorf("call result %+v, want Payload x", r)
	}
}
