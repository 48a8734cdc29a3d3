package api_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

// countingModel calls add if the question has the word, and otherwise answers with the number of questions that it sees.
func countingModel(r llmtest.Request) llmtest.Answer {
	last := r.Messages[len(r.Messages)-1]
	if last.Role == "user" && strings.Contains(last.Content, "add") {
		return llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`})
	}
	n := 0
	for _, m := range r.Messages {
		if m.Role == "user" {
			n++
		}
	}
	return llmtest.Says(fmt.Sprintf("Answer %d.", n))
}

// lastConversation returns the messages of the last request that the model got, without the system prompt and
// the ids of calls.
func (s *service) lastConversation() string {
	all := s.Model.Requests()
	var out []string
	for _, m := range all[len(all)-1].Messages[1:] {
		line := m.Role + ":" + m.Content
		for _, c := range m.ToolCalls {
			line += c.Function.Name + c.Function.Arguments
		}
		out = append(out, line)
	}
	return strings.Join(out, "|")
}

// askers ask a question in a thread, in each API format, and wait for the answer.
var askers = []struct {
	name string
	ask  func(t *testing.T, s *service, thread, question string)
}{
	{"native", func(t *testing.T, s *service, thread, question string) {
		decodeResponse[output](t, s.do(t, "POST", "/answer", fmt.Sprintf(`{"question":%q,"thread_id":%q}`, question, thread)), 200)
	}},
	{"native stream", func(t *testing.T, s *service, thread, question string) {
		readFrames(t, s.do(t, "POST", "/answer/stream", fmt.Sprintf(`{"question":%q,"thread_id":%q}`, question, thread)), "final_answer")
	}},
	{"EventSource", func(t *testing.T, s *service, thread, question string) {
		readFrames(t, s.do(t, "GET", "/answer/stream?"+url.Values{"question": {question}, "thread_id": {thread}}.Encode(), ""), "final_answer")
	}},
	{"Chat Completions", func(t *testing.T, s *service, thread, question string) {
		decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody(question, fmt.Sprintf(`,"answerd":{"thread_id":%q}`, thread))), 200)
	}},
	{"Responses", func(t *testing.T, s *service, thread, question string) {
		decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(question, fmt.Sprintf(`,"conversation":%q`, thread))), 200)
	}},
	{"Responses, object", func(t *testing.T, s *service, thread, question string) {
		decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(fmt.Sprintf(`[{"role":"user","content":%q}]`, question), fmt.Sprintf(`,"conversation":{"id":%q}`, thread))), 200)
	}},
	{"AI SDK", func(t *testing.T, s *service, thread, question string) {
		readFrames(t, s.do(t, "POST", "/api/chat", chatBody(thread, question)), "")
	}},
	{"AG-UI", func(t *testing.T, s *service, thread, question string) {
		readFrames(t, s.do(t, "POST", "/agui", fmt.Sprintf(`{"threadId":%q,"runId":"r","messages":[{"id":"u","role":"user","content":%q}]}`, thread, question)), "")
	}},
	{"MCP", func(t *testing.T, s *service, thread, question string) {
		readFrames(t, s.do(t, "POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"answer","arguments":{"question":%q,"thread_id":%q},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, question, thread),
			"Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "answer"), "")
	}},
}

// Section 10 of the contract: the messages that the model receives for a thread do not depend on the
// formats in which it was asked.
func TestThreadIsTheSameInEveryFormat(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 8 {
		questions := []string{"first", "add them", "third", "add again", "last"}
		want := ""
		for round := range 3 {
			thread, used := fmt.Sprintf("thread-%d-%d", n, round), []string(nil)
			for _, question := range questions {
				by := askers[0]
				if round > 0 {
					by = askers[random.IntN(len(askers))]
				}
				used = append(used, by.name)
				by.ask(t, s, thread, question)
			}
			got := s.lastConversation()
			if round == 0 {
				want = got
				if first := "user:first|assistant:Answer 1.|user:add them|assistant:add{\"a\":1,\"b\":2}|tool:{\"sum\":3}|assistant:Answer 2.|user:third"; !strings.HasPrefix(got, first) {
					t.Fatalf("conversation %s, want it to begin with %s", got, first)
				}
			}
			if got != want {
				t.Errorf("%v: conversation\n%s, want\n%s", used, got, want)
			}
		}
	}
}

func TestThreadContinuesInEachFormat(t *testing.T) {
	t.Parallel()
	for _, by := range askers {
		t.Run(by.name, func(t *testing.T) {
			s := newService(t, countingModel, nil, nil)
			by.ask(t, s, "t", "one")
			by.ask(t, s, "t", "two")
			if got, want := s.lastConversation(), "user:one|assistant:Answer 1.|user:two"; got != want {
				t.Errorf("conversation %s, want %s", got, want)
			}
			page := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t", ""), 200)
			if len(page.Messages) != 4 || page.Runs != 2 || page.Title != "one" || page.Status != event.StatusCompleted {
				t.Errorf("%d messages, %d runs, title %q, status %s, want 4, 2, one, completed", len(page.Messages), page.Runs, page.Title, page.Status)
			}
		})
	}
}

// A request that brings more messages than its question brings its history: the thread is not read.
func TestHistoryReplacesTheThread(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	for name, body := range map[string][2]string{
		"native":           {"/answer", `{"question":"two","thread_id":"t","history":[{"role":"user","content":"own"},{"role":"assistant","content":"said"}]}`},
		"Chat Completions": {"/v1/chat/completions", `{"messages":[{"role":"user","content":"own"},{"role":"assistant","content":"said"},{"role":"user","content":"two"}],"answerd":{"thread_id":"t"}}`},
		"native, streamed": {"/answer/stream", `{"question":"two","thread_id":"t","history":[{"role":"user","content":"own"},{"role":"assistant","content":"said"}]}`},
		"AI SDK":           {"/api/chat", `{"id":"t","messages":[{"id":"1","role":"user","parts":[{"type":"text","text":"own"}]},{"id":"2","role":"assistant","parts":[{"type":"text","text":"said"}]},{"id":"3","role":"user","parts":[{"type":"text","text":"two"}]}]}`},
		"AG-UI":            {"/agui", `{"threadId":"t","runId":"r","messages":[{"id":"1","role":"user","content":"own"},{"id":"2","role":"assistant","content":"said"},{"id":"3","role":"user","content":"two"}]}`},
	} {
		askers[0].ask(t, s, "t", "one")
		before := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t", ""), 200).Runs

		resp := s.do(t, "POST", body[0], body[1])
		if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
			readFrames(t, resp, "")
		} else {
			decodeResponse[map[string]any](t, resp, 200)
		}

		if got, want := s.lastConversation(), "user:own|assistant:said|user:two"; got != want {
			t.Errorf("%s: conversation %s, want %s", name, got, want)
		}
		page := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t", ""), 200)
		if last := page.Messages[len(page.Messages)-2]; page.Runs != before+1 || last.Content != "two" {
			t.Errorf("%s: %d runs, the last question is %q, want %d and two: the run is a turn of its thread", name, page.Runs, last.Content, before+1)
		}
	}
}

// previous_response_id continues from that response, also where it is not the newest turn, and whichever
// format it is of.
func TestPreviousResponseIsContinued(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	begun := decodeResponse[output](t, s.do(t, "POST", "/answer", `{"question":"one"}`), 200)
	continueWith := func(input, previous string) responseObject {
		return decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(input, `,"previous_response_id":"`+previous+`"`)), 200)
	}
	two := continueWith("two", begun.RunID)
	three := continueWith("three", two.ID)
	if got, want := s.lastConversation(), "user:one|assistant:Answer 1.|user:two|assistant:Answer 2.|user:three"; got != want {
		t.Errorf("conversation %s, want %s", got, want)
	}
	other := continueWith("other", two.ID)
	if got, want := s.lastConversation(), "user:one|assistant:Answer 1.|user:two|assistant:Answer 2.|user:other"; got != want {
		t.Errorf("a second question after two: conversation %s, want %s", got, want)
	}
	continueWith("more", other.ID)
	if got, want := s.lastConversation(), "user:one|assistant:Answer 1.|user:two|assistant:Answer 2.|user:other|assistant:Answer 3.|user:more"; got != want {
		t.Errorf("after the second question: conversation %s, want %s", got, want)
	}
	continueWith("on", three.ID)
	if got := s.lastConversation(); strings.Contains(got, "other") {
		t.Errorf("after three: conversation %s, want nothing of the other question", got)
	}
	if page := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/"+begun.ThreadID, ""), 200); page.Runs != 6 {
		t.Errorf("the thread has %d runs, want 6", page.Runs)
	}
	s.do(t, "DELETE", "/threads/"+begun.ThreadID, "")
	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("x", `,"previous_response_id":"`+two.ID+`"`)), 404)
	if e.Error.Param == nil || *e.Error.Param != "previous_response_id" {
		t.Errorf("after the thread is deleted: %+v, want the parameter previous_response_id", e)
	}
	e = decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("x", `,"previous_response_id":"`+two.ID+`","conversation":"c"`)), 400)
	if e.Error.Param == nil || *e.Error.Param != "conversation" {
		t.Errorf("both: %+v, want the parameter conversation", e)
	}
}

// A thread can be kept without the run of one of its turns; the reverse is an error in OpenAI's words.
func TestPreviousResponseWithoutItsTurnIsNotFound(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("one", `,"conversation":"c"`)), 200)
	if err := s.Log.DeleteThread(t.Context(), event.Owner{}, "c"); err != nil {
		t.Fatal(err)
	}
	askers[0].ask(t, s, "c", "again") // another thread of that id
	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("x", `,"previous_response_id":"`+one.ID+`"`)), 404)
	if want := "Previous response with id '" + one.ID + "' not found."; e.Error.Message != want || *e.Error.Param != "previous_response_id" {
		t.Errorf("error %+v, want %q and the parameter previous_response_id", e.Error, want)
	}
}

// threadList asks for a page of threads.
func (s *service) threadList(t *testing.T, query string, header ...string) native.ThreadList {
	t.Helper()
	return decodeResponse[native.ThreadList](t, s.do(t, "GET", "/threads"+query, "", header...), 200)
}

func TestThreadsAreListedReadRenamedAndDeleted(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	for i := range 5 {
		askers[0].ask(t, s, fmt.Sprintf("thread/%d", i), fmt.Sprintf("\nQuestion %d\nmore", i))
	}
	askers[0].ask(t, s, "thread/1", "add them")

	// The list has the newest thread first, page by page.
	var ids []string
	for after := ""; ; {
		page := s.threadList(t, "?limit=2&after="+url.QueryEscape(after))
		for _, th := range page.Threads {
			ids = append(ids, th.ThreadID)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if want := []string{"thread/1", "thread/4", "thread/3", "thread/2", "thread/0"}; !slices.Equal(ids, want) {
		t.Errorf("threads %v, want %v", ids, want)
	}
	first := s.threadList(t, "?limit=1").Threads[0]
	if first.Title != "Question 1" || first.Agent != "default" || first.Runs != 2 || first.Status != "completed" || first.CreatedAt.IsZero() || first.UpdatedAt.Before(first.CreatedAt) {
		t.Errorf("thread %+v, want the title Question 1, agent default, 2 runs, status completed, and times in order", first)
	}

	// A thread is renamed, and found by its title.
	path := "/threads/thread%2F1"
	renamed := decodeResponse[native.Thread](t, s.do(t, "PATCH", path, `{"title":" The  sum "}`), 200)
	if renamed.Title != "The sum" || renamed.ThreadID != "thread/1" {
		t.Errorf("renamed %+v, want the title %q", renamed, "The sum")
	}
	if found := s.threadList(t, "?q=SUM").Threads; len(found) != 1 || found[0].ThreadID != "thread/1" {
		t.Errorf("found %+v, want thread/1", found)
	}

	// Its messages are read, newest page first.
	newest := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", path+"?limit=2", ""), 200)
	if len(newest.Messages) != 2 || newest.Next == "" || newest.Title != "The sum" {
		t.Fatalf("newest page %+v, want 2 messages and a next", newest)
	}
	user, assistant := newest.Messages[0], newest.Messages[1]
	if user.Role != "user" || user.Content != "add them" || assistant.Role != "assistant" || assistant.Content != "Answer 2." || user.RunID != assistant.RunID || user.Time == 0 || assistant.Time < user.Time {
		t.Errorf("messages %+v, want the question and its answer", newest.Messages)
	}
	if c := assistant.Calls; len(c) != 1 || c[0].Tool != "add" || c[0].Server == "" || string(c[0].Args) != `{"a":1,"b":2}` || string(c[0].Payload) != `{"sum":3}` || c[0].Error != nil {
		t.Errorf("calls %+v, want one of add with its payload", assistant.Calls)
	}
	older := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", path+"?limit=2&before="+newest.Next, ""), 200)
	if len(older.Messages) != 2 || older.Next != "" || older.Messages[0].Content != "\nQuestion 1\nmore" {
		t.Errorf("older page %+v, want the first question and no next", older)
	}

	// A deleted thread is gone with its runs, and its id can be used again.
	run := user.RunID
	if resp := s.do(t, "DELETE", path, ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: %s, want 204", resp.Status)
	}
	for _, method := range []string{"GET", "PATCH", "DELETE"} {
		body := map[string]string{"PATCH": `{"title":"x"}`}[method]
		if p := wantProblem(t, s.do(t, method, path, body), 404, "not_found"); p.Detail != "There is no such thread." {
			t.Errorf("%s: detail %q, want that of a thread", method, p.Detail)
		}
	}
	wantProblem(t, s.do(t, "GET", "/runs/"+run, ""), 410, "gone")
	askers[0].ask(t, s, "thread/1", "anew")
	if got, want := s.lastConversation(), "user:anew"; got != want {
		t.Errorf("conversation after DELETE %s, want %s", got, want)
	}
}

// A run in progress counts towards the messages of a page, as any other does.
func TestThreadPageWithARunInProgressKeepsItsLimit(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	var held atomic.Bool
	s := newService(t, func(r llmtest.Request) llmtest.Answer {
		if held.Load() {
			return waitingModel(open)(r)
		}
		return llmtest.Says("One.")
	}, nil, nil)

	decodeResponse[answer](t, s.do(t, "POST", "/answer", `{"question":"1","thread_id":"t"}`), 200)
	held.Store(true)
	stream := s.do(t, "POST", "/answer/stream", `{"question":"2","thread_id":"t"}`)
	readFrames(t, stream, "text_delta")

	for _, limit := range []string{"1", "2"} {
		newest := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t?limit="+limit, ""), 200)
		if len(newest.Messages) != 2 || newest.Messages[0].Content != "2" || newest.Next == "" {
			t.Errorf("limit %s: the newest page is %+v, want the run in progress alone, and a next", limit, newest)
			continue
		}
		older := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t?limit="+limit+"&before="+newest.Next, ""), 200)
		if len(older.Messages) != 2 || older.Messages[0].Content != "1" || older.Next != "" {
			t.Errorf("limit %s: the page before is %+v, want the first run, and no next", limit, older)
		}
	}

	if all := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t?limit=4", ""), 200); len(all.Messages) != 4 || all.Next != "" {
		t.Errorf("limit 4: got %+v, want both runs and no next", all)
	}
	close(open)
	readFrames(t, stream, "")
}

func TestThreadRequestsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	askers[0].ask(t, s, "t", "one")

	for _, path := range []string{"/threads?limit=0", "/threads?limit=101", "/threads?limit=x", "/threads?after=!", "/threads/t?limit=0", "/threads/t?limit=201", "/threads/t?before=0", "/threads/t?before=x"} {
		wantProblem(t, s.do(t, "GET", path, ""), 400, "invalid_request")
	}

	for body, pointer := range map[string]string{
		`{}`: "/title", `{"title":"  "}`: "/title", `{"title":5}`: "/title", `{"title":"` + strings.Repeat("x", event.MaxTitle+1) + `"}`: "/title", `{"title":"x","agent":"y"}`: "/agent", `[]`: "",
	} {
		p := wantProblem(t, s.do(t, "PATCH", "/threads/t", body), 400, "invalid_request")
		if len(p.Errors) == 0 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: errors %+v, want the pointer %q", body, p.Errors, pointer)
		}
	}

	for path, allow := range map[string]string{"/threads": "GET, HEAD", "/threads/t": "GET, HEAD, PATCH, DELETE"} {
		resp := s.do(t, "POST", path, `{}`)
		if wantProblem(t, resp, 405, "method_not_allowed"); resp.Header.Get("Allow") != allow {
			t.Errorf("%s: Allow %q, want %q", path, resp.Header.Get("Allow"), allow)
		}
	}

	wantProblem(t, s.do(t, "GET", "/threads", "", "Accept", "text/html"), 406, "not_acceptable")
	p := wantProblem(t, s.do(t, "POST", "/answer", `{"question":"x","on_busy":"wait"}`), 400, "invalid_request")
	if p.Errors[0].Pointer != "/on_busy" {
		t.Errorf("errors %+v, want the pointer /on_busy", p.Errors)
	}
}

func TestThreadsLastAgentAnswers(t *testing.T) {
	t.Parallel()
	s := newService(t, answerWithPrompt, withAgents, nil)
	ask := func(body string, status int) string {
		return decodeResponse[struct{ Answer, Code string }](t, s.do(t, "POST", "/answer", body), status).Answer
	}
	ask(`{"question":"x","thread_id":"t","agent":"b"}`, 200)
	if got := ask(`{"question":"y","thread_id":"t"}`, 200); !strings.Contains(got, "You are b.") {
		t.Errorf("answer %s, want that of b", got)
	}
	if th := s.threadList(t, "").Threads[0]; th.Agent != "b" {
		t.Errorf("agent %q, want b", th.Agent)
	}
	if got := ask(`{"question":"y","thread_id":"t","agent":"a"}`, 200); !strings.Contains(got, "You are a.") {
		t.Errorf("answer %s, want that of a", got)
	}
	if _, err := s.Log.BeginTurn(t.Context(), event.Owner{}, "u", "run_x", "c", "of c"); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, s.do(t, "POST", "/answer", `{"question":"y","thread_id":"u"}`), 404, "not_found")
}

// Deleting a thread deletes the runs of agents that its runs asked.
func TestDeletedThreadDeletesItsChildRuns(t *testing.T) {
	t.Parallel()
	script := func(r llmtest.Request) llmtest.Answer {
		if strings.Contains(r.Messages[0].Content, "You are b.") && r.Messages[len(r.Messages)-1].Role == "user" {
			return llmtest.Calls(llmtest.Call{Name: "ask_a", Args: `{"question":"What is it?"}`})
		}
		return llmtest.Says(`{}`)
	}

	s := newService(t, script, withAgents, nil)
	decodeResponse[output](t, s.do(t, "POST", "/answer", `{"question":"x","thread_id":"t","agent":"b"}`), 200)
	runs, err := s.Log.Runs(t.Context(), event.Filter{ThreadID: "t", Children: true})
	if err != nil || len(runs.Runs) != 2 {
		t.Fatalf("%d runs, %v, want a parent and a child", len(runs.Runs), err)
	}
	if page := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t", ""), 200); len(page.Messages) != 2 || page.Runs != 1 {
		t.Errorf("%d messages, %d runs, want 2 and 1: children are no turns", len(page.Messages), page.Runs)
	}
	s.do(t, "DELETE", "/threads/t", "")

	for _, run := range runs.Runs {
		wantProblem(t, s.do(t, "GET", "/runs/"+run.ID, ""), 410, "gone")
	}
}

// A client's own tools: the results come with the next request on the thread.
func TestThreadContinuesWithResultsOfTheCallersTools(t *testing.T) {
	t.Parallel()
	script := func(r llmtest.Request) llmtest.Answer {
		if r.Messages[len(r.Messages)-1].Role == "user" && strings.Contains(r.Messages[len(r.Messages)-1].Content, "colour") {
			return llmtest.Calls(llmtest.Call{Name: "colour", Args: `{}`})
		}
		return llmtest.Says("It is.")
	}

	s := newService(t, script, nil, nil)
	tools := `,"conversation":"c","tools":[{"type":"function","name":"colour"}]`
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("Which colour?", tools)), 200)
	decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(`[{"type":"function_call_output","call_id":"`+one.Output[0].CallID+`","output":"blue"}]`, tools)), 200)
	if got, want := s.lastConversation(), "user:Which colour?|assistant:colour{}|tool:blue"; got != want {
		t.Errorf("conversation %s, want %s", got, want)
	}
	askers[0].ask(t, s, "c", "Sure?")
	if got, want := s.lastConversation(), "user:Which colour?|assistant:colour{}|tool:blue|assistant:It is.|user:Sure?"; got != want {
		t.Errorf("conversation %s, want %s", got, want)
	}
	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody(`[{"type":"function_call_output","call_id":"none","output":"blue"}]`, tools)), 400)
	if e.Error.Param == nil || *e.Error.Param != "input" {
		t.Errorf("a result without a call: %+v, want the parameter input", e)
	}
	askers[0].ask(t, s, "c", "Still?") // the refused request has not kept the thread busy
}

// MAX_HISTORY is for histories that requests bring.
func TestMaxHistoryDoesNotCutThreads(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, func(o *agent.Options) { o.MaxHistory = 2 }, nil)
	for i := range 5 {
		askers[0].ask(t, s, "t", fmt.Sprint("q", i))
	}
	if got, want := strings.Count(s.lastConversation(), "user:"), 5; got != want {
		t.Errorf("%d questions in %s, want %d", got, s.lastConversation(), want)
	}
}

func TestThreadKeepsAttachments(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	body, _ := json.Marshal(map[string]any{"question": "What is in it?", "thread_id": "t", "attachments": []any{map[string]any{"name": "a.txt", "media_type": "text/plain", "data": "SGVsbG8="}}})
	decodeResponse[output](t, s.do(t, "POST", "/answer", string(body)), 200)
	askers[0].ask(t, s, "t", "Again?")
	if got := s.lastConversation(); !strings.Contains(got, "a.txt") || !strings.Contains(got, "Hello") {
		t.Errorf("conversation %s, want the text of the file", got)
	}
	page := decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t", ""), 200)
	if a := page.Messages[0].Attachments; len(a) != 1 || a[0].Name != "a.txt" || a[0].MediaType != "text/plain" {
		t.Errorf("attachments %+v, want a.txt", a)
	}
}

// An empty history, and another answer to the first question of a page: nothing came before.
func TestEmptyHistoryDoesNotReadTheThread(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	for path, body := range map[string]string{
		"/answer":   `{"question":"two","thread_id":"t","history":[]}`,
		"/api/chat": `{"id":"t","trigger":"regenerate-message","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"two"}]}]}`,
	} {
		askers[0].ask(t, s, "t", "one")
		if resp := s.do(t, "POST", path, body); path == "/answer" {
			decodeResponse[output](t, resp, 200)
		} else {
			readFrames(t, resp, "")
		}
		if got, want := s.lastConversation(), "user:two"; got != want {
			t.Errorf("%s: conversation %s, want %s", path, got, want)
		}
	}
}
