package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/sse"
)

// says is the body of a chat whose page says text.
func says(id, text string) string {
	return `{"id":"` + id + `","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"` + text + `"}]}]}`
}

// fills is the body that a page posts when the person has answered a server's question.
func fills(id, message, interrupt, output string) string {
	return `{"id":"` + id + `","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"Book."}]},` +
		`{"id":"` + message + `","role":"assistant","parts":[{"type":"dynamic-tool","toolName":"elicitation","toolCallId":"` + interrupt + `","state":"output-available","output":` + output + `}]}]}`
}

type uiChunk struct {
	Type, MessageID, ToolCallID, ToolName, Delta string
}

// chunks are those of a UI message stream, without its [DONE]. until cuts it short at
// a delta.
func chunks(t *testing.T, list []sse.Frame) []uiChunk {
	t.Helper()
	var out []uiChunk
	for i, f := range list {
		if string(f.Data) == "[DONE]" && i == len(list)-1 {
			break
		}
		var c uiChunk
		if err := json.Unmarshal(f.Data, &c); err != nil || f.ID != "" || f.Event != "" {
			t.Fatalf("%+v: %v, want ID empty, Event empty, no error", f, err)
		}
		out = append(out, c)
	}
	return out
}

func types(list []uiChunk) string {
	var out []string
	for _, c := range list {
		out = append(out, c.Type)
	}
	return strings.Join(out, " ")
}

// asked is the interrupt that the page is to answer.
func asked(t *testing.T, list []uiChunk) string {
	t.Helper()
	i := slices.IndexFunc(list, func(c uiChunk) bool { return c.ToolName == "elicitation" })
	if i < 0 {
		t.Fatalf("types %q, want an elicitation", types(list))
	}
	return list[i].ToolCallID
}

func TestUIChatIsAThreadAndItsMessageARun(t *testing.T) {
	t.Parallel()
	s := serve(t, adds(), nil, nil)
	resp := s.do(t, "POST", "/api/chat", says("c", "1 + 2?"))
	if resp.Header.Get("X-Vercel-Ai-Ui-Message-Stream") != "v1" {
		t.Errorf(`header %+v, want Get("X-Vercel-Ai-Ui-Message-Stream") v1`, resp.Header)
	}
	list := frames(t, resp, "")
	if string(list[len(list)-1].Data) != "[DONE]" {
		t.Errorf("[last].Data %q, want [DONE]", string(list[len(list)-1].Data))
	}
	got := chunks(t, list)
	const want = "start start-step tool-input-start tool-input-delta tool-input-available finish-step"
	if !strings.HasPrefix(types(got), want[:len(want)-len(" finish-step")]) || got[len(got)-1].Type != "finish" {
		t.Errorf("types %q, want %q first, finish last", types(got), want)
	}
	run := decode[struct {
		Status   string
		ThreadID string `json:"thread_id"`
	}](t, s.do(t, "GET", "/runs/"+got[0].MessageID, ""), 200)
	if run.Status != "completed" || run.ThreadID != "c" {
		t.Errorf("run %+v, want Status completed, ThreadID c", run)
	}
	// Nothing goes on, and nobody missed the end.
	for path, method := range map[string]string{"/api/chat/c/stream": "GET", "/api/chat/none/stream": "GET", "/api/chat/c/stop": "POST"} {
		if resp := s.do(t, method, path, ""); resp.StatusCode != http.StatusNoContent {
			t.Errorf("method %s %s: %d, want 204", method, path, resp.StatusCode)
		}
	}
}

func TestUIChatMessageContinuesAfterTheAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, asks(), nil, nil)
	first := chunks(t, frames(t, s.do(t, "POST", "/api/chat", says("c", "Book.")), ""))
	id, message := asked(t, first), first[0].MessageID
	if first[len(first)-1].Type != "finish" {
		t.Errorf("types %q, want [last].Type finish", types(first))
	}
	// A page that comes later sees the question, too.
	again := chunks(t, frames(t, s.do(t, "GET", "/api/chat/c/stream", ""), ""))
	if asked(t, again) != id || again[0].MessageID != message {
		t.Errorf("chunks %+v, want question %q of message %q", again, id, message)
	}
	wrong := refused(t, s.do(t, "POST", "/api/chat", fills("c", message, id, `{"action":"accept","content":{"people":"x"}}`)), 422, "unprocessable")
	if len(wrong.Errors) != 1 || wrong.Errors[0].Pointer != "/content/people" {
		t.Errorf("wrong %+v, want 1 Errors with Pointer /content/people", wrong)
	}
	refused(t, s.do(t, "POST", "/api/chat", fills("c", message, id, `7`)), 400, "invalid_request")
	refused(t, s.do(t, "POST", "/api/chat", fills("other", message, id, `{"action":"cancel"}`)), 409, "conflict")

	rest := chunks(t, frames(t, s.do(t, "POST", "/api/chat", fills("c", message, id, `{"action":"accept","content":{"people":2}}`)), ""))
	if rest[0].MessageID != message || slices.ContainsFunc(rest[1:], func(c uiChunk) bool { return c.Type == "start" }) || rest[len(rest)-1].Type != "finish" {
		t.Errorf("chunks %+v, want those of message %s after its start, up to finish", rest, message)
	}
	refused(t, s.do(t, "POST", "/api/chat", fills("c", message, id, `{"action":"accept","content":{"people":2}}`)), 409, "conflict")
}

// Pages put what they are told in the place of the message that has its id.
func TestUIChatResumeKeepsTheCallBeforeTheRun(t *testing.T) {
	t.Parallel()
	s := serve(t, llmtest.Turns(llmtest.Says("Before."), llmtest.Calls(llmtest.Call{Name: "ask"}), llmtest.Says("Booked.")), nil, nil)
	result := `{"id":"c","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"Book."}]},` +
		`{"id":"m1","role":"assistant","parts":[{"type":"tool-colour","toolCallId":"c1","state":"output-available","input":{},"output":"blue"}]}]}`
	posted := chunks(t, frames(t, s.do(t, "POST", "/api/chat", result), ""))
	resumed := chunks(t, frames(t, s.do(t, "GET", "/api/chat/c/stream", ""), ""))
	if posted[0].MessageID != "m1" || resumed[0].MessageID != newest(t, s, "c") || asked(t, posted) != asked(t, resumed) {
		t.Errorf("posted\n%+v\nresumed\n%+v\nwant message m1, then the newest run's, with the same question", posted, resumed)
	}
	// Whoever answers there goes on there.
	answer := fills("c", resumed[0].MessageID, asked(t, resumed), `{"action":"accept","content":{"people":2}}`)
	if rest := chunks(t, frames(t, s.do(t, "POST", "/api/chat", answer), "")); rest[0].MessageID != resumed[0].MessageID || rest[len(rest)-1].Type != "finish" {
		t.Errorf("rest %+v, want [0].MessageID %q, [last].Type finish", rest, resumed[0].MessageID)
	}
}

// A page whose stream broke off comes back to a run that has ended meanwhile: it gets the
// rest, once.
func TestUIChatRepeatsAMessageWhoseEndWasLost(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	s := serve(t, holds(open), nil, nil)
	left := make(chan string, 8)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handler.ServeHTTP(w, r)
		left <- r.URL.Path
	}))
	defer web.Close()
	ctx, cut := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", web.URL+"/api/chat", strings.NewReader(says("c", "And?")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := web.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := sse.NewReader(resp.Body, 1<<20)
	var run string
	for {
		f, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		c := chunks(t, []sse.Frame{f})[0]
		run += c.MessageID
		if c.Type == "text-delta" {
			break
		}
	}
	cut()
	<-left
	close(open)
	frames(t, s.do(t, "GET", "/runs/"+run+"/events", ""), "final_answer")
	got := chunks(t, frames(t, s.do(t, "GET", "/api/chat/c/stream", ""), ""))
	text := ""
	for _, c := range got {
		text += c.Delta
	}
	if got[0].MessageID != run || text != "Wait." || got[len(got)-1].Type != "finish" {
		t.Errorf("chunks %+v, text %q, want got[0].MessageID %q, text Wait., got[last].Type finish", got, text, run)
	}
	if resp := s.do(t, "GET", "/api/chat/c/stream", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("again: %d, want 204", resp.StatusCode)
	}
}

func TestUIChatStopCancelsTheRunsOfTheChat(t *testing.T) {
	t.Parallel()
	s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"})), nil, nil)
	resp := s.do(t, "POST", "/api/chat", says("c", "And?"))
	<-s.Tools.Entered
	if resp := s.do(t, "POST", "/api/chat/c/stop", ""); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("status %d, want 204", resp.StatusCode)
	}
	<-s.Tools.Canceled
	got := chunks(t, frames(t, resp, ""))
	if got[len(got)-1].Type != "abort" {
		t.Errorf("types %q, want [last].Type abort", types(got))
	}
	if resp := s.do(t, "GET", "/api/chat/c/stream", ""); resp.StatusCode != http.StatusNoContent || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("status %d, Cache-Control %q, want 204 and no-store: the chat may go on", resp.StatusCode, resp.Header.Get("Cache-Control"))
	}
}

// The id of a chat is not a secret: a caller who knows another caller's id learns nothing from it,
// and cannot end the chat.
func TestUIChatBelongsToItsOwner(t *testing.T) {
	t.Parallel()
	iam := newMint(t)
	v := iam.verifier(t, nil)
	s := serve(t, asks(), nil, func(o *api.Options) { o.Verifier = v })
	as := func(name string) []string {
		return []string{"Authorization", iam.bearer(name)}
	}
	ada, eve := as("ada"), as("eve")
	first := chunks(t, frames(t, s.do(t, "POST", "/api/chat", says("c", "Book."), ada...), ""))
	id, message := asked(t, first), first[0].MessageID
	if resp := s.do(t, "GET", "/api/chat/c/stream", "", eve...); resp.StatusCode != http.StatusNoContent {
		t.Errorf("resume: %d, want 204", resp.StatusCode)
	}
	refused(t, s.do(t, "POST", "/api/chat", fills("c", message, id, `{"action":"cancel"}`), eve...), 409, "conflict")
	if resp := s.do(t, "POST", "/api/chat/c/stop", "", eve...); resp.StatusCode != http.StatusNoContent {
		t.Errorf("stop: %d, want 204", resp.StatusCode)
	}
	body := `{"threadId":"c","runId":"r","resume":[{"interruptId":"` + id + `","status":"cancelled"}]}`
	refused(t, s.do(t, "POST", "/agui", body, eve...), 409, "conflict")
	chunks(t, frames(t, s.do(t, "POST", "/api/chat", fills("c", message, id, `{"action":"decline"}`), ada...), ""))
}

func TestUIChatTakesNativeFieldsInAnswerd(t *testing.T) {
	t.Parallel()
	s := serve(t, adds(), func(o *agent.Options) { o.MaxTurns = 5 }, nil)
	with := func(answerd string) string {
		return strings.TrimSuffix(says("c", "1 + 2?"), "}") + `,"answerd":` + answerd + `}`
	}
	for answerd, pointer := range map[string]string{
		`{"servers":["nosuch"]}`: "/answerd/servers/0", `{"thread_id":"x"}`: "/answerd/thread_id", `{"x":1}`: "/answerd/x", `7`: "/answerd",
	} {
		if p := refused(t, s.do(t, "POST", "/api/chat", with(answerd)), 400, "invalid_request"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, want 1 Errors with Pointer %s", answerd, p, pointer)
		}
	}
	got := chunks(t, frames(t, s.do(t, "POST", "/api/chat", with(`{"tools":["echo"]}`)), ""))
	if !strings.Contains(types(got), "tool-output-error") {
		t.Errorf("the tool could be used: %q, want it to contain tool-output-error", types(got))
	}
	p := refused(t, s.do(t, "POST", "/api/chat", `{"id":"c","messages":[{"role":"user","parts":[{"type":"file","url":"x"}]}]}`), 400, "invalid_request")
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "/messages/0/parts/0/url" {
		t.Errorf("problem %+v, want 1 Errors with Pointer /messages/0/parts/0/url", p)
	}
	refused(t, s.do(t, "GET", "/api/chat/"+strings.Repeat("x", 129)+"/stream", ""), 400, "invalid_request")
	refused(t, s.do(t, "POST", "/api/chat", says("c", "x"), "Accept", "application/json"), 406, "not_acceptable")
	refused(t, s.do(t, "POST", "/api/chat", says("c", "x"), "Content-Type", "text/plain"), 415, "unsupported_media")
}

func TestUIChatRepeatsAMessageForTheSameKey(t *testing.T) {
	t.Parallel()
	s := serve(t, adds(), nil, nil)
	key := []string{"Idempotency-Key", "k"}
	one := chunks(t, frames(t, s.do(t, "POST", "/api/chat", says("c", "1 + 2?"), key...), ""))
	two := chunks(t, frames(t, s.do(t, "POST", "/api/chat", says("c", "1 + 2?"), key...), ""))
	if one[0].MessageID != two[0].MessageID || types(one) != types(two) {
		t.Errorf("chunks\n%+v\nagain\n%+v\nwant the same", one, two)
	}
	refused(t, s.do(t, "POST", "/api/chat", says("c", "2 + 2?"), key...), 422, "unprocessable")
}

// If the run waited before, and has continued or ended since, a stream from its beginning does not
// end at the place where it waited.
func TestStreamIgnoresSuspensionsThatAreOver(t *testing.T) {
	t.Parallel()
	s := serve(t, asks(), nil, nil)
	key := []string{"Idempotency-Key", "k"}
	first := chunks(t, frames(t, s.do(t, "POST", "/api/chat", says("c", "Book."), key...), ""))
	answer := fills("c", first[0].MessageID, asked(t, first), `{"action":"accept","content":{"people":2}}`)
	chunks(t, frames(t, s.do(t, "POST", "/api/chat", answer), ""))
	again := chunks(t, frames(t, s.do(t, "POST", "/api/chat", says("c", "Book."), key...), ""))
	if got := types(again); strings.Count(got, " finish ")+strings.Count(got, "abort") != 0 || !strings.HasSuffix(got, "text-end finish-step finish") {
		t.Errorf(`types %q, want it to end in "text-end finish-step finish", no finish or abort before`, got)
	}

	_, asked := aguiRun(t, s.do(t, "POST", "/agui", aguiInput("r", ""), "Idempotency-Key", "a"))
	if !strings.HasSuffix(asked, "RUN_FINISHED") {
		t.Fatalf("asked %q, want it to end in RUN_FINISHED", asked)
	}
	page := decode[struct{ Interrupts []struct{ ID string } }](t, s.do(t, "GET", "/runs/"+newest(t, s, "t"), ""), 200)
	resume := aguiInput("r2", `,"resume":[{"interruptId":"`+page.Interrupts[0].ID+`","status":"cancelled"}]`)
	aguiRun(t, s.do(t, "POST", "/agui", resume))
	if _, got := aguiRun(t, s.do(t, "POST", "/agui", aguiInput("r", ""), "Idempotency-Key", "a")); strings.Count(got, "RUN_FINISHED") != 1 || !strings.HasSuffix(got, "RUN_FINISHED") {
		t.Errorf("agui run %q, want 1 times RUN_FINISHED, got ending in RUN_FINISHED", got)
	}
}

// newest is the newest run of a thread.
func newest(t *testing.T, s *service, thread string) string {
	t.Helper()
	page, err := s.Log.Runs(t.Context(), event.Filter{ThreadID: thread, Limit: 1})
	if err != nil || len(page.Runs) != 1 {
		t.Fatalf("page %+v, %v, want 1 Runs, no error", page, err)
	}
	return page.Runs[0].ID
}
