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

// chatBody returns the request body of an AI SDK page that sends text.
func chatBody(id, text string) string {
	return `{"id":"` + id + `","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"` + text + `"}]}]}`
}

// chatAnswerBody returns the body that a page posts when the person has answered a server's question.
func chatAnswerBody(id, message, interrupt, output string) string {
	return `{"id":"` + id + `","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"Book."}]},` +
		`{"id":"` + message + `","role":"assistant","parts":[{"type":"dynamic-tool","toolName":"elicitation","toolCallId":"` + interrupt + `","state":"output-available","output":` + output + `}]}]}`
}

type uiChunk struct {
	Type, MessageID, ToolCallID, ToolName, Delta string
}

// decodeUIChunks returns the chunks of a UI message stream, without its [DONE]. until cuts it short at
// a delta.
func decodeUIChunks(t *testing.T, list []sse.Frame) []uiChunk {
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

func chunkTypes(list []uiChunk) string {
	var out []string
	for _, c := range list {
		out = append(out, c.Type)
	}
	return strings.Join(out, " ")
}

// elicitationID returns the id of the interrupt that the page is to answer.
func elicitationID(t *testing.T, list []uiChunk) string {
	t.Helper()
	i := slices.IndexFunc(list, func(c uiChunk) bool { return c.ToolName == "elicitation" })
	if i < 0 {
		t.Fatalf("types %q, want an elicitation", chunkTypes(list))
	}
	return list[i].ToolCallID
}

func TestUIChatIsAThreadAndItsMessageARun(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	resp := s.do(t, "POST", "/api/chat", chatBody("c", "1 + 2?"))
	if resp.Header.Get("X-Vercel-Ai-Ui-Message-Stream") != "v1" {
		t.Errorf(`header %+v, want Get("X-Vercel-Ai-Ui-Message-Stream") v1`, resp.Header)
	}
	list := readFrames(t, resp, "")
	if string(list[len(list)-1].Data) != "[DONE]" {
		t.Errorf("[last].Data %q, want [DONE]", string(list[len(list)-1].Data))
	}
	got := decodeUIChunks(t, list)
	const want = "start start-step tool-input-start tool-input-delta tool-input-available finish-step"
	if !strings.HasPrefix(chunkTypes(got), want[:len(want)-len(" finish-step")]) || got[len(got)-1].Type != "finish" {
		t.Errorf("types %q, want %q first, finish last", chunkTypes(got), want)
	}

	run := decodeResponse[struct {
		Status   string
		ThreadID string `json:"thread_id"`
	}](t, s.do(t, "GET", "/runs/"+got[0].MessageID, ""), 200)
	if run.Status != "completed" || run.ThreadID != "c" {
		t.Errorf("run %+v, want Status completed, ThreadID c", run)
	}

	// No run is active, and no reader missed the end.
	for path, method := range map[string]string{"/api/chat/c/stream": "GET", "/api/chat/none/stream": "GET", "/api/chat/c/stop": "POST"} {
		if resp := s.do(t, method, path, ""); resp.StatusCode != http.StatusNoContent {
			t.Errorf("method %s %s: %d, want 204", method, path, resp.StatusCode)
		}
	}
}

func TestUIChatMessageContinuesAfterTheAnswer(t *testing.T) {
	t.Parallel()
	s := newService(t, askingModel(), nil, nil)
	first := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", chatBody("c", "Book.")), ""))
	id, message := elicitationID(t, first), first[0].MessageID
	if first[len(first)-1].Type != "finish" {
		t.Errorf("types %q, want Type finish", chunkTypes(first))
	}
	// A page that comes later sees the question, too.
	again := decodeUIChunks(t, readFrames(t, s.do(t, "GET", "/api/chat/c/stream", ""), ""))
	if elicitationID(t, again) != id || again[0].MessageID != message {
		t.Errorf("chunks %+v, want question %q of message %q", again, id, message)
	}
	wrong := wantProblem(t, s.do(t, "POST", "/api/chat", chatAnswerBody("c", message, id, `{"action":"accept","content":{"people":"x"}}`)), 422, "unprocessable")
	if want := "/messages/1/parts/0/output/content/people"; len(wrong.Errors) != 1 || wrong.Errors[0].Pointer != want {
		t.Errorf("wrong %+v, want 1 Errors with Pointer %s", wrong, want)
	}
	wrong = wantProblem(t, s.do(t, "POST", "/api/chat", chatAnswerBody("c", message, id, `7`)), 400, "invalid_request")
	if want := "/messages/1/parts/0/output/action"; len(wrong.Errors) != 1 || wrong.Errors[0].Pointer != want {
		t.Errorf("wrong %+v, want 1 Errors with Pointer %s", wrong, want)
	}
	wantProblem(t, s.do(t, "POST", "/api/chat", chatAnswerBody("other", message, id, `{"action":"cancel"}`)), 409, "conflict")

	rest := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", chatAnswerBody("c", message, id, `{"action":"accept","content":{"people":2}}`)), ""))
	if rest[0].MessageID != message || slices.ContainsFunc(rest[1:], func(c uiChunk) bool { return c.Type == "start" }) || rest[len(rest)-1].Type != "finish" {
		t.Errorf("chunks %+v, want those of message %s after its start, up to finish", rest, message)
	}
	wantProblem(t, s.do(t, "POST", "/api/chat", chatAnswerBody("c", message, id, `{"action":"accept","content":{"people":2}}`)), 409, "conflict")
}

// Pages put what they are told in the place of the message that has its id.
func TestUIChatResumeKeepsTheCallBeforeTheRun(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("Before."), llmtest.Calls(llmtest.Call{Name: "ask"}), llmtest.Says("Booked.")), nil, nil)
	result := `{"id":"c","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"Book."}]},` +
		`{"id":"m1","role":"assistant","parts":[{"type":"tool-colour","toolCallId":"c1","state":"output-available","input":{},"output":"blue"}]}]}`
	posted := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", result), ""))
	resumed := decodeUIChunks(t, readFrames(t, s.do(t, "GET", "/api/chat/c/stream", ""), ""))
	if posted[0].MessageID != "m1" || resumed[0].MessageID != newestRunOfThread(t, s, "c") || elicitationID(t, posted) != elicitationID(t, resumed) {
		t.Errorf("posted\n%+v\nresumed\n%+v\nwant message m1, then the newest run's, with the same question", posted, resumed)
	}
	// A page that answers a question continues in the same response.
	answer := chatAnswerBody("c", resumed[0].MessageID, elicitationID(t, resumed), `{"action":"accept","content":{"people":2}}`)
	if rest := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", answer), "")); rest[0].MessageID != resumed[0].MessageID || rest[len(rest)-1].Type != "finish" {
		t.Errorf("rest %+v, want MessageID %q, Type finish", rest, resumed[0].MessageID)
	}
}

// A page whose stream broke off comes back to a run that has ended meanwhile: it gets the
// rest, once.
func TestUIChatRepeatsAMessageWhoseEndWasLost(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})

	s := newService(t, waitingModel(open), nil, nil)
	left := make(chan string, 8)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handler.ServeHTTP(w, r)
		left <- r.URL.Path
	}))
	defer web.Close()
	ctx, cut := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", web.URL+"/api/chat", strings.NewReader(chatBody("c", "And?")))
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
		c := decodeUIChunks(t, []sse.Frame{f})[0]
		run += c.MessageID
		if c.Type == "text-delta" {
			break
		}
	}

	cut()
	<-left
	close(open)
	readFrames(t, s.do(t, "GET", "/runs/"+run+"/events", ""), "final_answer")

	got := decodeUIChunks(t, readFrames(t, s.do(t, "GET", "/api/chat/c/stream", ""), ""))
	text := ""
	for _, c := range got {
		text += c.Delta
	}
	if got[0].MessageID != run || text != "Wait." || got[len(got)-1].Type != "finish" {
		t.Errorf("chunks %+v, text %q, want MessageID %q, text Wait., Type finish", got, text, run)
	}
	if resp := s.do(t, "GET", "/api/chat/c/stream", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("again: %d, want 204", resp.StatusCode)
	}
}

func TestUIChatStopCancelsTheRunsOfTheChat(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"})), nil, nil)
	resp := s.do(t, "POST", "/api/chat", chatBody("c", "And?"))
	<-s.Tools.Entered
	if resp := s.do(t, "POST", "/api/chat/c/stop", ""); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("status %d, want 204", resp.StatusCode)
	}
	<-s.Tools.Canceled
	got := decodeUIChunks(t, readFrames(t, resp, ""))
	if got[len(got)-1].Type != "abort" {
		t.Errorf("types %q, want Type abort", chunkTypes(got))
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
	v := iam.newVerifier(t, nil)
	s := newService(t, askingModel(), nil, func(o *api.Options) { o.Verifier = v })
	askAs := func(name string) []string {
		return []string{"Authorization", iam.bearerToken(name)}
	}
	ada, eve := askAs("ada"), askAs("eve")
	first := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", chatBody("c", "Book."), ada...), ""))
	id, message := elicitationID(t, first), first[0].MessageID
	if resp := s.do(t, "GET", "/api/chat/c/stream", "", eve...); resp.StatusCode != http.StatusNoContent {
		t.Errorf("resume: %d, want 204", resp.StatusCode)
	}
	wantProblem(t, s.do(t, "POST", "/api/chat", chatAnswerBody("c", message, id, `{"action":"cancel"}`), eve...), 409, "conflict")
	if resp := s.do(t, "POST", "/api/chat/c/stop", "", eve...); resp.StatusCode != http.StatusNoContent {
		t.Errorf("stop: %d, want 204", resp.StatusCode)
	}
	body := `{"threadId":"c","runId":"r","resume":[{"interruptId":"` + id + `","status":"cancelled"}]}`
	wantProblem(t, s.do(t, "POST", "/agui", body, eve...), 409, "conflict")
	decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", chatAnswerBody("c", message, id, `{"action":"decline"}`), ada...), ""))
}

func TestUIChatTakesNativeFieldsInAnswerd(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), func(o *agent.Options) { o.MaxTurns = 5 }, nil)
	chatBodyWith := func(answerd string) string {
		return strings.TrimSuffix(chatBody("c", "1 + 2?"), "}") + `,"answerd":` + answerd + `}`
	}

	for answerd, pointer := range map[string]string{
		`{"servers":["nosuch"]}`: "/answerd/servers/0", `{"thread_id":"x"}`: "/answerd/thread_id", `{"x":1}`: "/answerd/x", `7`: "/answerd",
	} {
		if p := wantProblem(t, s.do(t, "POST", "/api/chat", chatBodyWith(answerd)), 400, "invalid_request"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, want 1 Errors with Pointer %s", answerd, p, pointer)
		}
	}

	got := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", chatBodyWith(`{"tools":["echo"]}`)), ""))
	if !strings.Contains(chunkTypes(got), "tool-output-error") {
		t.Errorf("the tool could be used: %q, want it to contain tool-output-error", chunkTypes(got))
	}
	p := wantProblem(t, s.do(t, "POST", "/api/chat", `{"id":"c","messages":[{"role":"user","parts":[{"type":"file","url":"x"}]}]}`), 400, "invalid_request")
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "/messages/0/parts/0/url" {
		t.Errorf("problem %+v, want 1 Errors with Pointer /messages/0/parts/0/url", p)
	}
	wantProblem(t, s.do(t, "GET", "/api/chat/"+strings.Repeat("x", 129)+"/stream", ""), 400, "invalid_request")
	wantProblem(t, s.do(t, "POST", "/api/chat", chatBody("c", "x"), "Accept", "application/json"), 406, "not_acceptable")
	wantProblem(t, s.do(t, "POST", "/api/chat", chatBody("c", "x"), "Content-Type", "text/plain"), 415, "unsupported_media")
}

func TestUIChatRepeatsAMessageForTheSameKey(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	key := []string{"Idempotency-Key", "k"}
	one := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", chatBody("c", "1 + 2?"), key...), ""))
	two := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", chatBody("c", "1 + 2?"), key...), ""))
	if one[0].MessageID != two[0].MessageID || chunkTypes(one) != chunkTypes(two) {
		t.Errorf("chunks\n%+v\nagain\n%+v\nwant the same", one, two)
	}
	wantProblem(t, s.do(t, "POST", "/api/chat", chatBody("c", "2 + 2?"), key...), 422, "unprocessable")
}

// Pages that leave the conversation to the server send only the last message, also if it is the assistant's and has the
// result of a tool of the page.
func TestUIChatContinuesItsThreadWithAResultAlone(t *testing.T) {
	t.Parallel()
	model := llmtest.Turns(llmtest.SaysAndCalls("I look.", llmtest.Call{Name: "locate", Args: "{}"}), llmtest.Calls(llmtest.Call{ID: "call_2", Name: "locate", Args: "{}"}), llmtest.Says("In Rome."))
	s := newService(t, model, nil, nil)
	post := func(message string) {
		t.Helper()
		list := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", `{"id":"c","messages":[`+message+`],"tools":[{"name":"locate"}]}`), ""))
		if got := chunkTypes(list); !strings.HasSuffix(got, "finish") {
			t.Fatalf("%s: types %q, want them to end in finish", message, got)
		}
	}
	call := func(id, output string) string {
		return `{"type":"step-start"},{"type":"tool-locate","toolCallId":"` + id + `","state":"output-available","input":{},"output":"` + output + `"}`
	}
	post(`{"id":"m1","role":"user","parts":[{"type":"text","text":"Where am I?"}]}`)
	post(`{"id":"m2","role":"assistant","parts":[` + call("call_1", "unknown") + `]}`)
	post(`{"id":"m2","role":"assistant","parts":[` + call("call_1", "unknown") + `,` + call("call_2", "Rome") + `]}`)
	if got, want := s.lastConversation(), "user:Where am I?|assistant:I look.locate{}|tool:unknown|assistant:locate{}|tool:Rome"; got != want {
		t.Errorf("conversation %s, want %s", got, want)
	}
	unknown := `{"id":"unknown","messages":[{"id":"m2","role":"assistant","parts":[` + call("call_1", "Rome") + `]}]}`
	wantProblem(t, s.do(t, "POST", "/api/chat", unknown), 400, "invalid_request")
}

// If the run waited before, and has continued or ended since, a stream from its beginning does not
// end at the place where it waited.
func TestStreamIgnoresSuspensionsThatAreOver(t *testing.T) {
	t.Parallel()
	s := newService(t, askingModel(), nil, nil)
	key := []string{"Idempotency-Key", "k"}
	first := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", chatBody("c", "Book."), key...), ""))
	answer := chatAnswerBody("c", first[0].MessageID, elicitationID(t, first), `{"action":"accept","content":{"people":2}}`)
	decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", answer), ""))
	again := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", chatBody("c", "Book."), key...), ""))
	if got := chunkTypes(again); strings.Count(got, " finish ")+strings.Count(got, "abort") != 0 || !strings.HasSuffix(got, "text-end finish-step finish") {
		t.Errorf(`types %q, want it to end in "text-end finish-step finish", no finish or abort before`, got)
	}

	_, asked := readAGUIRun(t, s.do(t, "POST", "/agui", aguiInput("r", ""), "Idempotency-Key", "a"))
	if !strings.HasSuffix(asked, "RUN_FINISHED") {
		t.Fatalf("asked %q, want it to end in RUN_FINISHED", asked)
	}
	page := decodeResponse[struct{ Interrupts []struct{ ID string } }](t, s.do(t, "GET", "/runs/"+newestRunOfThread(t, s, "t"), ""), 200)
	resume := aguiInput("r2", `,"resume":[{"interruptId":"`+page.Interrupts[0].ID+`","status":"cancelled"}]`)
	readAGUIRun(t, s.do(t, "POST", "/agui", resume))
	if _, got := readAGUIRun(t, s.do(t, "POST", "/agui", aguiInput("r", ""), "Idempotency-Key", "a")); strings.Count(got, "RUN_FINISHED") != 1 || !strings.HasSuffix(got, "RUN_FINISHED") {
		t.Errorf("agui run %q, want 1 times RUN_FINISHED and to end in RUN_FINISHED", got)
	}
}

// newestRunOfThread returns the id of the newest run of a thread.
func newestRunOfThread(t *testing.T, s *service, thread string) string {
	t.Helper()
	page, err := s.Log.Runs(t.Context(), event.Filter{ThreadID: thread, Limit: 1})
	if err != nil || len(page.Runs) != 1 {
		t.Fatalf("page %+v, %v, want 1 Runs, no error", page, err)
	}
	return page.Runs[0].ID
}
