package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The floor must do the work of answerd, and the check must see what is missing.
func TestFloorAnswersEveryRow(t *testing.T) {
	m, calls := &model{}, &tools{}
	modelServer, toolServer := httptest.NewServer(m), httptest.NewServer(calls)
	transport := &http.Transport{}
	f := httptest.NewServer(&floor{model: modelServer.URL, tools: toolServer.URL + "/old/10", transport: transport})
	t.Cleanup(func() {
		f.Close()
		transport.CloseIdleConnections()
		modelServer.Close()
		toolServer.Close()
	})

	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			l := newLoad(f.URL, r)
			defer l.client.CloseIdleConnections()
			asked, called := m.requests.Load(), calls.calls.Load()
			if _, err := l.askOnce(ctx); err != nil {
				t.Fatalf("askOnce: %v", err)
			}
			used := upstream{model: m.requests.Load() - asked, calls: calls.calls.Load() - called}
			if err := used.checkCounts(r.script, 1); err != nil {
				t.Error(err)
			}
			if err := used.checkCounts(r.script, 2); err == nil {
				t.Error("expect accepts the requests of one answer for two, want an error")
			}
		})
	}
}

func TestCheckAnswerRefusesIncompleteAnswers(t *testing.T) {
	s := script{Tokens: 2, Rounds: 1, Calls: 1, Result: 5}
	whole := `{"answer":"wo100 wo137 ","metadata":{"tool_results":[` + quoteJSON(resultText(5)) + `]}}`
	if err := s.checkAnswer([]byte(whole)); err != nil {
		t.Error(err)
	}
	for _, lacking := range []string{`{`, `{"answer":"wo100 "}`, `{"answer":"wo100 wo137 ","metadata":{"tool_results":[]}}`, `{"answer":"wo100 wo137 ","metadata":{"tool_results":["A lin"]}}`[:50] + `"]}}`} {
		if s.checkAnswer([]byte(lacking)) == nil {
			t.Errorf("checkAnswer(%s) = nil, want an error", lacking)
		}
	}
	delta := "event: text_delta\ndata: {\"delta\":\"wo100 \"}\n\n"
	if s.checkStream([]byte(delta+"event: final_answer\ndata: "+whole+"\n\n")) == nil {
		t.Error("checkStream of a stream without its second delta = nil, want an error")
	}
}

func TestScriptIsEncodedAsTheModelsName(t *testing.T) {
	for _, r := range rows {
		if got, ok := scriptIn(r.questionBody()); !ok || got != r.script {
			t.Errorf("scriptIn of %s = %+v, want %+v", r.name, got, r.script)
		}
	}
	if _, ok := scriptIn([]byte(`{"model":"gpt"}`)); ok {
		t.Error("scriptIn of another model = ok, want not")
	}
}
