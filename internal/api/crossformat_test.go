package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/sse"
)

// startFormats are the formats that start runs, each with the body that asks in thread t, with
// native fields as OPTIONS. The empty body is a call of the tool at /mcp.
var startFormats = []struct{ name, path, body string }{
	{"native", "/answer/stream", `{"question":"What is 1 + 2?","thread_id":"t"OPTIONS}`},
	{"Chat Completions", "/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"What is 1 + 2?"}],"answerd":{"thread_id":"t"OPTIONS}}`},
	{"Responses", "/v1/responses", `{"stream":true,"input":"What is 1 + 2?","answerd":{"thread_id":"t"OPTIONS}}`},
	{"AI SDK", "/api/chat", `{"id":"t","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"What is 1 + 2?"}]}],"answerd":{"max_turns":9OPTIONS}}`},
	{"AG-UI", "/agui", `{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"What is 1 + 2?"}],"forwardedProps":{"answerd":{"max_turns":9OPTIONS}}}`},
	{"MCP", "/mcp", ""},
}

// startInFormat starts a run in a format, reads its response in the background, and returns the run's id
// once the model is asked. over is closed when the response has ended.
func (s *service) startInFormat(t *testing.T, path, body string, asked <-chan struct{}) (run string, over <-chan struct{}) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { stop(); wg.Wait() })

	done := make(chan struct{})
	if body == "" {
		host := s.connectHost(t, "2025-11-25", nil, nil)
		wg.Go(func() {
			defer close(done)
			_, _ = host.CallTool(ctx, &sdk.CallToolParams{Name: "answer", Arguments: json.RawMessage(`{"question":"What is 1 + 2?","thread_id":"t"}`)})
		})
	} else {
		wg.Go(func() {
			defer close(done)
			req, _ := http.NewRequestWithContext(ctx, "POST", s.URL+path, strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			resp, err := s.Client().Do(req)
			if err != nil {
				return // the test has ended
			}
			defer resp.Body.Close()
			if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
				t.Errorf("POST %s: %d %s, want 200", path, resp.StatusCode, b)
			}
		})
	}

	select {
	case <-asked:
	case <-done:
	case <-boundedContext(t).Done():
		t.Fatal("the model was not asked, want one request")
	}
	return newestRun(t, s), done
}

// signalRequests returns script with a channel that gets a value for each request.
func signalRequests(script llmtest.Script) (llmtest.Script, <-chan struct{}) {
	asked := make(chan struct{}, 64)
	return func(r llmtest.Request) llmtest.Answer {
		asked <- struct{}{}
		return script(r)
	}, asked
}

// formatReadings has what each format says of one run, in few words.
type formatReadings struct {
	native, events, response, responseStream, chat, chatOfRun string
}

// readInAllFormats reads a run in all formats. While the run continues, a stream is read until a frame
// has the text until.
func (s *service) readInAllFormats(t *testing.T, run, until string) formatReadings {
	t.Helper()
	response := "/v1/responses/" + strings.Replace(run, "run_", "resp_", 1)
	r := formatReadings{
		events: s.lastFrameType(t, "/runs/"+run+"/events", until), responseStream: s.lastFrameType(t, response+"?stream=true", until),
		chat: s.lastFrameType(t, "/api/chat/t/stream", until), chatOfRun: s.lastFrameType(t, "/api/chat/"+run+"/stream", until),
	}
	r.native = decodeResponse[struct{ Status string }](t, s.do(t, "GET", "/runs/"+run, ""), 200).Status
	r.response = s.describeResponse(t, response)
	if again := s.describeResponse(t, "/v1/responses/"+run); again != r.response {
		t.Errorf("by the run's id the response is %s, want %s", again, r.response)
	}
	return r
}

// describeResponse reads a response: its status and its output, or the reason why there is none.
func (s *service) describeResponse(t *testing.T, path string) string {
	t.Helper()
	resp := s.do(t, "GET", path, "")
	if resp.StatusCode != http.StatusOK {
		return refusalReason(t, resp)
	}
	r := decodeResponse[responseObject](t, resp, 200)
	return strings.TrimSpace(r.Status + " " + r.outputShape())
}

// refusalReason returns the status of a refusal and its reason, up to the first comma or full stop.
func refusalReason(t *testing.T, resp *http.Response) string {
	t.Helper()
	var p struct {
		Detail string
		Error  struct{ Message string }
	}
	b, err := io.ReadAll(resp.Body)
	if err == nil && len(b) > 0 {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		t.Fatalf("%d %s: %v", resp.StatusCode, b, err)
	}
	reason := p.Detail + p.Error.Message
	if i := strings.IndexAny(reason, ",.:"); i > 0 {
		reason = reason[:i]
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", resp.StatusCode, reason))
}

// lastFrameType returns the type of a stream's last frame, or of the first that has the text until;
// for a response without a stream its status and reason.
func (s *service) lastFrameType(t *testing.T, path, until string) string {
	t.Helper()
	ctx, stop := context.WithCancel(boundedContext(t))
	defer stop()
	resp := s.doContext(ctx, t, "GET", path, "")
	if resp.StatusCode != http.StatusOK {
		return refusalReason(t, resp)
	}
	last, reader := "", sse.NewReader(bufio.NewReader(resp.Body), 1<<20)
	for {
		f, err := reader.Next()
		if err != nil {
			return last
		}
		if string(f.Data) == "[DONE]" {
			continue
		}
		var frame struct{ Type string }
		if err := json.Unmarshal(f.Data, &frame); err != nil {
			t.Fatalf("%s: %v", f.Data, err)
		}
		if last = frame.Type; until != "" && strings.Contains(string(f.Data), until) {
			return last
		}
	}
}

// waitUntilSettled waits until a run has ended or is suspended.
func (s *service) waitUntilSettled(t *testing.T, run string) {
	t.Helper()
	readFrames(t, s.doContext(boundedContext(t), t, "GET", "/runs/"+run+"/events", ""), "")
}

// checkReadings compares what the formats say of a run.
func checkReadings(t *testing.T, got, want formatReadings) {
	t.Helper()
	if got != want {
		t.Errorf("the run reads as\n%+v\nwant\n%+v", got, want)
	}
}

// Issue 20, criterion 11: a run is read in every format that can represent it.
func TestRunsAreReadInEveryFormat(t *testing.T) {
	t.Parallel()
	for _, f := range startFormats {
		body := strings.Replace(f.body, "OPTIONS", "", 1)
		t.Run(f.name+", completed", func(t *testing.T) {
			open := make(chan struct{})
			script, asked := signalRequests(waitingModel(open))
			s := newService(t, script, nil, nil)
			run, over := s.startInFormat(t, f.path, body, asked)
			checkReadings(t, s.readInAllFormats(t, run, `"Wait"`), formatReadings{
				"running", "text_delta", "in_progress message:in_progress(Wait)", "response.output_text.delta", "text-delta", "text-delta",
			})
			close(open)
			s.waitUntilSettled(t, run)
			<-over // a page that did not get the end of its message would get it again
			checkReadings(t, s.readInAllFormats(t, run, ""), formatReadings{
				"completed", "final_answer", "completed message:completed(Wait.)", "response.completed", "204", "finish",
			})
		})
		t.Run(f.name+", cancelled", func(t *testing.T) {
			script, asked := signalRequests(waitingModel(nil))
			s := newService(t, script, nil, nil)
			run, over := s.startInFormat(t, f.path, body, asked)
			s.lastFrameType(t, "/runs/"+run+"/events", `"Wait"`)
			decodeResponse[struct{}](t, s.do(t, "POST", "/v1/responses/"+strings.Replace(run, "run_", "resp_", 1)+"/cancel", ""), 200)
			<-over
			checkReadings(t, s.readInAllFormats(t, run, ""), formatReadings{
				"cancelled", "cancelled", "cancelled message:incomplete(Wait)", "response.incomplete", "204", "abort",
			})
		})
		t.Run(f.name+", failed", func(t *testing.T) {
			script, asked := signalRequests(llmtest.Turns(llmtest.Fails(400, "no")))
			s := newService(t, script, nil, nil)
			run, over := s.startInFormat(t, f.path, body, asked)
			s.waitUntilSettled(t, run)
			<-over
			checkReadings(t, s.readInAllFormats(t, run, ""), formatReadings{"failed", "run_error", "failed", "response.failed", "204", "error"})
		})
	}
}

// A run that waits for an approval can be read in every API format, as suspended before the approval and as
// completed after it. Chat Completions is left out, because it has no way to ask a person.
func TestRunsThatWaitForAnApprovalAreReadInEveryFormat(t *testing.T) {
	t.Parallel()
	for _, f := range startFormats {
		if f.name == "Chat Completions" {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			script, asked := signalRequests(addingModel())
			s := newService(t, script, nil, nil, addNeedsApproval)
			run, over := s.startInFormat(t, f.path, strings.Replace(f.body, "OPTIONS", "", 1), asked)
			s.waitUntilSettled(t, run)
			<-over
			checkReadings(t, s.readInAllFormats(t, run, ""), formatReadings{
				"suspended", "suspended", "completed mcp_approval_request", "response.completed", "finish", "finish",
			})
			status := decodeResponse[struct{ Interrupts []event.Interrupt }](t, s.do(t, "GET", "/runs/"+run, ""), 200)
			decodeResponse[struct{}](t, s.do(t, "POST", "/runs/"+run+"/input", `{"id":"`+status.Interrupts[0].ID+`","approved":true}`), 200)
			s.waitUntilSettled(t, run)
			want := formatReadings{
				"completed", "final_answer", "completed mcp_approval_request mcp_call:completed message:completed(It is 3.)", "response.completed", "204", "finish",
			}
			if f.name == "Responses" {
				want.response = "completed mcp_approval_request" // what follows is a response of its own
			}
			checkReadings(t, s.readInAllFormats(t, run, ""), want)
		})
	}
}

// A response has no item for a form, and neither a response nor a message of the AI SDK has one
// for a limit.
func TestRunsThatAFormatCannotRepresentAreNotFoundWithTheReason(t *testing.T) {
	t.Parallel()
	const noItem, noPart = "404 The run waits for input that a response has no item for", "404 The run waits for a person to raise one of its limits"
	add := llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}

	limited := llmtest.Turns(llmtest.Calls(add), llmtest.Calls(add), llmtest.Says("It is 3."))
	for _, f := range startFormats {
		form, limit := f.name != "Chat Completions" && f.name != "Responses", f.name == "native" || f.name == "AG-UI"
		if form {
			t.Run(f.name+", form", func(t *testing.T) {
				script, asked := signalRequests(askingModel())
				s := newService(t, script, nil, nil)
				run, over := s.startInFormat(t, f.path, strings.Replace(f.body, "OPTIONS", "", 1), asked)
				s.waitUntilSettled(t, run)
				<-over
				checkReadings(t, s.readInAllFormats(t, run, ""), formatReadings{"suspended", "suspended", noItem, noItem, "finish", "finish"})
				s.answerInterrupt(t, run, `"action":"accept","content":{"people":2}`)
				checkReadings(t, s.readInAllFormats(t, run, ""), formatReadings{
					"completed", "final_answer", "completed mcp_call:completed message:completed(Booked.)", "response.completed", "204", "finish",
				})
			})
		}
		if limit {
			t.Run(f.name+", limit", func(t *testing.T) {
				script, asked := signalRequests(limited)
				s := newService(t, script, nil, nil)
				run, over := s.startInFormat(t, f.path, strings.Replace(f.body, "OPTIONS", `,"budget":{"tool_calls":1,"on_limit":"ask"}`, 1), asked)
				s.waitUntilSettled(t, run)
				<-over
				checkReadings(t, s.readInAllFormats(t, run, ""), formatReadings{"suspended", "suspended", noItem, noItem, noPart, noPart})
				s.answerInterrupt(t, run, `"approved":true,"args":{"max":5}`)
				checkReadings(t, s.readInAllFormats(t, run, ""), formatReadings{
					"completed", "final_answer", "completed mcp_call:completed mcp_call:completed message:completed(It is 3.)", "response.completed", "204", "finish",
				})
			})
		}
	}
}

// answerInterrupt answers the one interrupt of a suspended run and waits until the run settles.
func (s *service) answerInterrupt(t *testing.T, run, answer string) {
	t.Helper()
	status := decodeResponse[struct{ Interrupts []event.Interrupt }](t, s.do(t, "GET", "/runs/"+run, ""), 200)
	readFrames(t, s.doContext(boundedContext(t), t, "POST", "/runs/"+run+"/input", `{"id":"`+status.Interrupts[0].ID+`",`+answer+`}`, "Accept", "text/event-stream"), "")
}

// A reader that is there already gets the rest of the run after a question that its format lacks.
func TestStreamsContinueAfterAQuestionThatTheFormatLacks(t *testing.T) {
	t.Parallel()
	add, open := llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}, make(chan struct{})
	script := llmtest.Turns(llmtest.Calls(add), llmtest.Calls(add), llmtest.Says("It is ", "3."))
	s := newService(t, func(r llmtest.Request) llmtest.Answer {
		return func(w http.ResponseWriter, req *http.Request) {
			select {
			case <-open:
			case <-req.Context().Done():
			}
			script(r)(w, req)
		}
	}, nil, nil)

	run := decodeResponse[struct {
		ID string `json:"run_id"`
	}](t, s.do(t, "POST", "/answer", `{"question":"?","thread_id":"t","background":true,"budget":{"tool_calls":1,"on_limit":"ask"}}`), 202).ID

	readers := make(map[string]*http.Response)
	for _, path := range []string{"/v1/responses/" + run + "?stream=true", "/api/chat/t/stream", "/api/chat/" + run + "/stream"} {
		readers[path] = s.doContext(boundedContext(t), t, "GET", path, "")
	}

	close(open)
	s.waitUntilSettled(t, run)
	s.answerInterrupt(t, run, `"approved":true,"args":{"max":5}`)

	for path, resp := range readers {
		list := readFrames(t, resp, "")
		var all strings.Builder
		for _, f := range list {
			all.Write(f.Data)
		}
		if got := all.String(); strings.Count(got, "[DONE]") != 1 || !strings.HasSuffix(got, "[DONE]") || !strings.Contains(got, `"delta":"3."`) {
			t.Errorf("%s: %s, want one [DONE], after the delta 3.", path, got)
		}
	}
}

// If a response cannot represent a run, the error gives the reason.
func TestResponsesSayWhyARunIsNotReadable(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	run := decodeResponse[output](t, s.do(t, "POST", "/answer", question), 200).RunID
	unkept := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x", `,"store":false`)), 200).ID
	for _, c := range []struct{ method, path, body, param, reason string }{
		{"GET", "/v1/responses/" + unkept, "", "response_id", "The response was created with store false"},
		{"GET", "/v1/responses/" + unkept + "?stream=true", "", "response_id", "The response was created with store false"},
		{"POST", "/v1/responses/" + unkept + "/cancel", "", "response_id", "The response was created with store false"},
		{"DELETE", "/v1/responses/" + unkept, "", "response_id", "The response was created with store false"},
		{"POST", "/v1/responses", responsesBody("y", `,"previous_response_id":"`+unkept+`"`), "previous_response_id", "The response was created with store false"},
		{"GET", "/v1/responses/" + run + "/input_items", "", "response_id", "The run was started in another API format"},
	} {
		e := decodeResponse[openAIError](t, s.do(t, c.method, c.path, c.body), 404)
		if !strings.HasPrefix(e.Error.Message, c.reason) || e.Error.Param == nil || *e.Error.Param != c.param {
			t.Errorf("%s %s: %+v, want the parameter %s and a message that begins with %q", c.method, c.path, e.Error, c.param, c.reason)
		}
	}

	if status := decodeResponse[output](t, s.do(t, "GET", "/runs/"+strings.Replace(unkept, "resp_", "run_", 1), ""), 200).Status; status != "completed" {
		t.Errorf("the run of the response that is not kept is %s, want completed", status)
	}
	decodeResponse[map[string]any](t, s.do(t, "DELETE", "/v1/responses/"+run, ""), 200)
	if e := decodeResponse[openAIError](t, s.do(t, "GET", "/v1/responses/"+run, ""), 404); e.Error.Message != "The response is no longer kept." {
		t.Errorf("a deleted response: %s, want that it is no longer kept", e.Error.Message)
	}
}

// An approval that a native run asks for is answered in the input of a response, and in a chat.
func TestApprovalsAreAnsweredInAnotherFormat(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)
	path, _, _ := readInterrupt(t, s.do(t, "POST", "/answer/stream", question))
	first := decodeResponse[responseObject](t, s.do(t, "GET", "/v1/responses"+strings.TrimPrefix(path, "/runs"), ""), 200)
	body := responsesBody(`[{"type":"mcp_approval_response","approval_request_id":"` + first.Output[0].ID + `","approve":true}]`)
	next := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", body), 200)
	if want := "mcp_call:completed message:completed(It is 3.)"; next.outputShape() != want || next.Status != "completed" || next.Previous == nil || *next.Previous != first.ID {
		t.Errorf("the next response is %+v, want %s after %s", next, want, first.ID)
	}
	for id, want := range map[string]string{
		next.ID: "mcp_call:completed message:completed(It is 3.)", first.ID: "mcp_approval_request mcp_call:completed message:completed(It is 3.)",
	} {
		if got := decodeResponse[responseObject](t, s.do(t, "GET", "/v1/responses/"+id, ""), 200); got.outputShape() != want {
			t.Errorf("%s is %s, want %s", id, got.outputShape(), want)
		}
	}
	page := decodeResponse[inputPage](t, s.do(t, "GET", "/v1/responses/"+next.ID+"/input_items", ""), 200)
	if page.shape() != "mcp_approval_response " {
		t.Errorf("input items %s, want the approval", page.shape())
	}

	// A page shows the run by its id, and answers with that id too.
	path, _, i := readInterrupt(t, s.do(t, "POST", "/answer/stream", question))
	run := strings.TrimPrefix(path, "/runs/")
	approve := `{"id":"` + run + `","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"?"}]},{"id":"` + run + `","role":"assistant","parts":[` +
		`{"type":"dynamic-tool","toolName":"add","toolCallId":"` + i.CallID + `","state":"approval-responded","input":{},"approval":{"id":"` + i.ID + `","approved":true}}]}]}`
	rest := decodeUIChunks(t, readFrames(t, s.do(t, "POST", "/api/chat", approve), ""))
	if rest[0].MessageID != run || rest[len(rest)-1].Type != "finish" {
		t.Errorf("the page got %+v, want the rest of the message %s", rest, run)
	}
}

func TestStopOfAChatWithARunsIDCancelsTheRun(t *testing.T) {
	t.Parallel()
	s := newService(t, askingModel(), nil, nil)
	path, _, _ := readInterrupt(t, s.do(t, "POST", "/answer/stream", question))
	if resp := s.do(t, "POST", "/api/chat"+strings.TrimPrefix(path, "/runs")+"/stop", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("stop: %s, want 204", resp.Status)
	}
	if got := decodeResponse[output](t, s.do(t, "GET", path, ""), 200).Status; got != "cancelled" {
		t.Errorf("the run is %s, want cancelled", got)
	}
}

// A reader that lost its connection asks for the rest by the number of the last event, so the
// numbers are the same however often the run was suspended when it was read.
func TestResponseOfANativeRunIsTheSameStreamEachTime(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)
	path, _, _ := readInterrupt(t, s.do(t, "POST", "/answer/stream", question))
	stream := "/v1/responses" + strings.TrimPrefix(path, "/runs") + "?stream=true"
	suspended := readFrames(t, s.do(t, "GET", stream, ""), "")
	s.answerInterrupt(t, strings.TrimPrefix(path, "/runs/"), `"approved":true`)
	whole := readFrames(t, s.do(t, "GET", stream, ""), "")
	for n, f := range suspended[:len(suspended)-2] { // without the response's end and [DONE]
		if string(f.Data) != string(whole[n].Data) {
			t.Errorf("event %d was %s, is %s, want no change", n, f.Data, whole[n].Data)
		}
	}
	if rest := readFrames(t, s.do(t, "GET", stream+"&starting_after=3", ""), ""); eventNames(rest) != eventNames(whole[4:]) {
		t.Errorf("after event 3 came %s, want %s", eventNames(rest), eventNames(whole[4:]))
	}
}
