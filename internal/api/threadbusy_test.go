package api_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"answerd/internal/api"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// busyProblem is the problem of a question on a busy thread.
type busyProblem struct {
	Code, Detail string
	RunID        string `json:"run_id"`
}

func TestBusyThreadRefusesQueuesOrCancels(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	s := newService(t, waitingModel(open), nil, nil)
	active := decodeResponse[native.Status](t, s.do(t, "POST", "/answer", `{"question":"one","thread_id":"t","background":true}`), 202)
	readFrames(t, s.do(t, "GET", "/runs/"+active.RunID+"/events", ""), "text_delta")

	if p := decodeResponse[busyProblem](t, s.do(t, "POST", "/answer", `{"question":"two","thread_id":"t"}`), 409); p.Code != "conflict" || p.RunID != active.RunID {
		t.Errorf("problem %+v, want conflict with the run %s", p, active.RunID)
	}
	for name, body := range map[string][2]string{
		"Chat Completions": {"/v1/chat/completions", chatCompletionBody("two", `,"answerd":{"thread_id":"t"}`)},
		"Responses":        {"/v1/responses", responsesBody("two", `,"conversation":"t"`)},
		"previous":         {"/v1/responses", responsesBody("two", `,"previous_response_id":"`+active.RunID+`"`)},
	} {
		e := decodeResponse[openAIError](t, s.do(t, "POST", body[0], body[1]), 409)
		if e.Error.Code != "conflict" || !strings.Contains(e.Error.Message, active.RunID) || !strings.Contains(e.Error.Message, "answerd") {
			t.Errorf("%s: %+v, want conflict with the run %s and the member answerd, which has on_busy", name, e.Error, active.RunID)
		}
	}
	for path, body := range map[string]string{"/api/chat": chatBody("t", "two"), "/agui": aguiInput("r", "")} {
		if p := decodeResponse[busyProblem](t, s.do(t, "POST", path, body), 409); p.RunID != active.RunID {
			t.Errorf("%s: problem %+v, want the run %s", path, p, active.RunID)
		}
	}
	if th := s.threadList(t, "").Threads; len(th) != 1 || th[0].Status != event.StatusRunning || th[0].Runs != 1 {
		t.Errorf("threads %+v, want one that is running, with one run", th)
	}
	page := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t", ""), 200)
	if len(page.Messages) != 2 || page.Messages[0].Content != "one" || page.Messages[1].Status != event.StatusRunning {
		t.Errorf("messages %+v, want the question and what was said so far", page.Messages)
	}

	cancelled := s.do(t, "POST", "/answer/stream", `{"question":"three","thread_id":"t","on_busy":"cancel"}`)
	if run := decodeResponse[native.Status](t, s.do(t, "GET", "/runs/"+active.RunID, ""), 200); run.Status != "cancelled" {
		t.Errorf("the active run is %s, want cancelled", run.Status)
	}
	queued := make(chan output)
	go func() {
		queued <- decodeResponse[output](t, s.do(t, "POST", "/answer", `{"question":"four","thread_id":"t","on_busy":"queue"}`), 200)
	}()
	close(open)
	readFrames(t, cancelled, "final_answer")
	if got := <-queued; got.ThreadID != "t" {
		t.Errorf("thread %q, want t", got.ThreadID)
	}
	if got, want := s.lastConversation(), "user:one|assistant:Wait|user:three|assistant:Wait.|user:four"; got != want {
		t.Errorf("conversation %s, want %s", got, want)
	}
}

// A suspended run counts as active, a repeated request attaches to its own run, and a question that brings
// its history does not wait for others.
func TestSuspendedRunKeepsItsThreadBusy(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)
	body := `{"question":"What is 1 + 2?","thread_id":"t"}`
	one := decodeResponse[native.Status](t, s.do(t, "POST", "/answer", body, "Idempotency-Key", "k"), 202)
	again := decodeResponse[native.Status](t, s.do(t, "POST", "/answer", body, "Idempotency-Key", "k"), 202)
	if again.RunID != one.RunID {
		t.Errorf("repeated: run %s, want %s", again.RunID, one.RunID)
	}
	if p := decodeResponse[busyProblem](t, s.do(t, "POST", "/answer", `{"question":"And?","thread_id":"t"}`), 409); p.RunID != one.RunID {
		t.Errorf("problem %+v, want the run %s", p, one.RunID)
	}
	if th := s.threadList(t, "").Threads[0]; th.Status != event.StatusSuspended {
		t.Errorf("status %s, want suspended", th.Status)
	}
	decodeResponse[native.Status](t, s.do(t, "POST", "/answer", `{"question":"And?","thread_id":"t","history":[{"role":"user","content":"x"}]}`), 202)
	if resp := s.do(t, "DELETE", "/threads/t", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: %s, want 204", resp.Status)
	}
	wantProblem(t, s.do(t, "GET", "/runs/"+one.RunID, ""), 410, "gone")
}

// logThatCallsBeforeDelete calls beforeDelete once, before it deletes a run.
type logThatCallsBeforeDelete struct {
	event.Log
	beforeDelete func()
}

func (l logThatCallsBeforeDelete) Delete(ctx context.Context, run string) error {
	l.beforeDelete()
	return l.Log.Delete(ctx, run)
}

// A question that waited for the active run of a thread (on_busy) starts its run when that one is cancelled, while the
// thread is deleted.
func TestDeletedThreadDeletesTheRunOfAWaitingQuestion(t *testing.T) {
	t.Parallel()
	var s *service
	var second native.Status
	start := func(question string) native.Status {
		return decodeResponse[native.Status](t, s.do(t, "POST", "/answer", `{"question":"`+question+`","thread_id":"t","background":true}`), 202)
	}
	startSecond := sync.OnceFunc(func() { second = start("two") })
	s = newService(t, waitingModel(make(chan struct{})), nil, func(o *api.Options) { o.Log = logThatCallsBeforeDelete{o.Log, startSecond} })
	first := start("one")
	if resp := s.do(t, "DELETE", "/threads/t", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: got %s, want 204", resp.Status)
	}
	for _, run := range []native.Status{first, second} {
		wantProblem(t, s.do(t, "GET", "/runs/"+run.RunID, ""), 410, "gone")
	}
}
