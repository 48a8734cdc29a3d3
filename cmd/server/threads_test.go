package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"answerd/internal/api/native"
	"answerd/internal/llm/llmtest"
)

// workOncePerQuestion calls the tool work once per question, slowly, and then says which question it was.
func workOncePerQuestion(r llmtest.Request) llmtest.Answer {
	questions := 0
	for _, m := range r.Messages {
		if m.Role == "user" {
			questions++
		}
	}
	asked := r.Messages[len(r.Messages)-1].Role == "user"
	return func(w http.ResponseWriter, req *http.Request) {
		for range 4 {
			llmtest.Stream(w, "", map[string]any{"content": ". "})
			select {
			case <-time.After(10 * time.Millisecond):
			case <-req.Context().Done():
				return
			}
		}
		if asked {
			llmtest.Calls(llmtest.Call{Name: "work", Args: fmt.Sprintf(`{"key":"question-%d"}`, questions)})(w, req)
			return
		}
		llmtest.Says(fmt.Sprintf("Answer %d.", questions))(w, req)
	}
}

// Section 10 of the contract: a thread whose replicas are killed while its questions are answered has every
// turn once and in order, and the model of the next question gets all of them.
func TestThreadSurvivesKilledReplicas(t *testing.T) {
	if os.Getenv("ANSWERD_TEST_LONG") == "" {
		t.Skip("kills replicas for 13 s; make durable runs it")
	}
	t.Parallel()
	model := llmtest.New(t, workOncePerQuestion)
	f := startReplicas(t, 2, "", "LLM_BASE_URL="+model.URL)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	const questions = 5
	for n := range questions {
		body, err := json.Marshal(map[string]string{"question": fmt.Sprintf("Question %d", n+1), "thread_id": "thr_killed", "on_busy": "queue"})
		if err != nil {
			t.Fatal(err)
		}
		reader := &runReader{fleet: f, name: fmt.Sprintf("key-%d", n+1), body: string(body)}

		killed := make(chan struct{})
		go func() { // at any moment: before the run begins, during its steps, at its end
			defer close(killed)
			select {
			case <-time.After(time.Duration(rand.IntN(250)) * time.Millisecond):
			case <-ctx.Done():
			}
			f.killReplica(n % 2)
		}()

		err = reader.readUntil(ctx, -1, "")
		<-killed
		f.startReplica(t, n%2)
		if err != nil {
			t.Fatal(err)
		}
		if end := reader.frames[len(reader.frames)-1]; end.Event != "final_answer" {
			t.Fatalf("question %d ended with %s %s, want final_answer", n+1, end.Event, end.Data)
		}
	}

	page := decodeBody[native.ThreadMessages](t, get(t, f.client, f.url(-1)+"/threads/thr_killed"))
	var got, want []string
	for _, m := range page.Messages {
		got = append(got, strings.Trim(m.Content, ". "))
	}

	for n := range questions {
		want = append(want, fmt.Sprintf("Question %d", n+1), fmt.Sprintf("Answer %d", n+1))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || page.Status != "completed" || page.Runs != questions {
		t.Errorf("messages %q, status %s, %d runs, want %q, completed, %d", got, page.Status, page.Runs, want, questions)
	}

	last := model.Requests()[len(model.Requests())-1]
	said := ""
	for _, m := range last.Messages[1:] {
		said += m.Role + " " + m.Content + "\n"
	}

	for _, text := range want[:len(want)-1] {
		if !strings.Contains(said, text) {
			t.Errorf("the last request of the model is\n%s, want it to contain %q", said, text)
		}
	}
	f.ledger.checkCalls(t)
}

func decodeBody[T any](t *testing.T, resp *http.Response) (v T) {
	t.Helper()
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v, want 200 and JSON", resp.Status, err)
	}
	return v
}
