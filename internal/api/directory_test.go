package api_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/event"
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

// listed are the ids of all runs that a query lists, page by page.
func listed(t *testing.T, s *service, query string) (ids []string) {
	t.Helper()
	for before := ""; ; {
		page := decode[runList](t, s.do(t, "GET", "/runs?limit=2"+query+before, ""), http.StatusOK)
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
	s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), nil, nil)
	var all, ended []string
	for i := range 5 {
		run := s.Begin(t, agent.Request{ThreadID: []string{"thr_a", "thr_b"}[i%2], Background: true}).ID
		<-s.Tools.Entered
		all = append([]string{run}, all...)
		if i < 3 {
			decode[runStatus](t, s.do(t, "POST", "/runs/"+run+"/cancel", ""), http.StatusOK)
			ended = append([]string{run}, ended...)
		}
	}
	for query, want := range map[string][]string{
		"": all, "&status=cancelled": ended, "&status=running": all[:2], "&status=failed": nil, "&thread_id=thr_b": {all[1], all[3]},
		"&thread_id=thr_b&status=running": {all[1]}, "&thread_id=thr_c": nil,
	} {
		if got := listed(t, s, query); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
}

// A run that goes on has to be cancelled first; one that is forgotten leaves nothing but
// that it was.
func TestARunIsForgotten(t *testing.T) {
	s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), nil, nil)
	run := s.Begin(t, agent.Request{Background: true}).ID
	<-s.Tools.Entered
	refused(t, s.do(t, "DELETE", "/runs/"+run, ""), http.StatusConflict, "conflict")
	decode[runStatus](t, s.do(t, "POST", "/runs/"+run+"/cancel", ""), http.StatusOK)
	if resp := s.do(t, "DELETE", "/runs/"+run, ""); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("%s", resp.Status)
	}
	for _, r := range [][2]string{{"GET", ""}, {"GET", "/events"}, {"GET", "/results/call_1"}, {"DELETE", ""}, {"POST", "/cancel"}} {
		refused(t, s.do(t, r[0], "/runs/"+run+r[1], ""), http.StatusGone, "gone")
	}
	if got := listed(t, s, ""); len(got) != 0 {
		t.Errorf("listed %v", got)
	}
}

// Without a durable log, runs go with their process; whoever asks is told so.
func TestARunOfAnEarlierProcessIsGone(t *testing.T) {
	s := serve(t, llmtest.Turns(llmtest.Says("Yes.")), nil, nil)
	run := event.NewMemory(event.MemoryOptions{}).NewID()
	for _, r := range [][3]string{
		{"GET", "/runs/" + run}, {"GET", "/runs/" + run + "/events"}, {"POST", "/runs/" + run + "/cancel"}, {"DELETE", "/runs/" + run},
	} {
		refused(t, s.do(t, r[0], r[1], ""), http.StatusGone, "gone")
	}
	refused(t, s.do(t, "GET", "/answer/stream?question=x", "", "Last-Event-ID", run+":7"), http.StatusGone, "gone")
	refused(t, s.do(t, "GET", "/runs/run_none", ""), http.StatusNotFound, "not_found")
}

// A drained replica cuts its streams instead of ending them: the run goes on elsewhere.
func TestReadersOfARunThatIsHandedOverAreCut(t *testing.T) {
	set := func(o *agent.Options) { o.Durable = true }
	s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), set, nil)
	run := s.Begin(t, agent.Request{}).ID
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
		t.Error("the stream ended as if that were all")
	}
	if r, err := s.Log.Run(t.Context(), run); err != nil || r.Status() != event.StatusRunning {
		t.Errorf("%s, %v", r.Last.JSON, err)
	}
}
