package api_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/api/native"
	"answerd/internal/llm/llmtest"
)

// responseObject is a response object of the Responses API.
type responseObject struct {
	ID, Status string
	Previous   *string `json:"previous_response_id"`
	Output     []struct {
		ID, Type, Status, Name, Arguments string
		CallID                            string `json:"call_id"`
		Approval                          string `json:"approval_request_id"`
		Output                            *string
		Error                             json.RawMessage
		Content                           []struct{ Text string }
	}
	Usage *struct {
		TotalTokens int `json:"total_tokens"`
	}
	Error *struct{ Code string }
}

// outputShape returns the types and states of the output, in one line.
func (r responseObject) outputShape() string {
	var out []string
	for _, o := range r.Output {
		s := o.Type
		if o.Status != "" {
			s += ":" + o.Status
		}
		for _, c := range o.Content {
			s += "(" + c.Text + ")"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func responsesBody(input string, more ...string) string {
	if !strings.HasPrefix(input, "[") {
		input = `"` + input + `"`
	}
	return `{"model":"scripted","input":` + input + strings.Join(more, "") + `}`
}

func TestResponseIsTheRunsAnswerAndCanBeRetrieved(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("What is 1 + 2?")), 200)
	if r.Status != "completed" || r.outputShape() != "mcp_call:completed message:completed(It is 3.)" || *r.Output[0].Output != `{"sum":3}` || r.Usage.TotalTokens != 30 {
		t.Errorf(`status %s %s %+v, want Status completed, shape "mcp_call:completed message:completed(It is 3.)", Output[0].Output {"sum":3}, Usage.TotalTokens 30`, r.Status, r.outputShape(), r)
	}
	again := decodeResponse[responseObject](t, s.do(t, "GET", "/v1/responses/"+r.ID, ""), 200)
	one, _ := json.Marshal(r)
	two, _ := json.Marshal(again)
	if string(one) != string(two) {
		t.Errorf("retrieved:\n%s\n%s, want %s", one, two, string(two))
	}

	for _, id := range []string{"resp_none", "nope", r.ID + "_99", r.ID + "_-1", strings.Replace(r.ID, "resp", "run", 1) + "_1"} {
		decodeResponse[openAIError](t, s.do(t, "GET", "/v1/responses/"+id, ""), 404)
	}

	// The id of a chat completion is that of its run, which can be read as a response.
	c := decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("x")), 200)
	if of := decodeResponse[responseObject](t, s.do(t, "GET", "/v1/responses/"+c.ID, ""), 200); of.ID != strings.Replace(c.ID, "chatcmpl-run", "resp", 1) || of.Status != "completed" {
		t.Errorf("the response of %s is %s %s, want the same run, completed", c.ID, of.ID, of.Status)
	}
}

// The rules of the strict accumulator of openai's stream helper.
func TestResponseStreamResumesAfterAnyEvent(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	all := readFrames(t, s.do(t, "POST", "/v1/responses", responsesBody("What is 1 + 2?", `,"stream":true`)), "")
	if string(all[len(all)-1].Data) != "[DONE]" || all[0].Event != "response.created" || all[len(all)-2].Event != "response.completed" {
		t.Fatalf("events %s, want Data [DONE], Event response.created, [len-2].Event response.completed", eventNames(all))
	}

	open := make(map[string]bool)
	var id string
	for i, f := range all[:len(all)-1] {
		var e struct {
			Type     string
			Sequence int    `json:"sequence_number"`
			ItemID   string `json:"item_id"`
			Item     struct{ ID string }
			Response struct{ ID string }
		}
		if err := json.Unmarshal(f.Data, &e); err != nil {
			t.Fatal(err)
		}
		if e.Type != f.Event || e.Sequence != i || f.ID != "" {
			t.Errorf("frame %d: %s %s, Type %q, Sequence %d, ID %q, want %s, %d and empty", i, f.Event, f.Data, e.Type, e.Sequence, f.ID, f.Event, i)
		}
		switch {
		case strings.HasSuffix(e.Type, "output_item.added"):
			open[e.Item.ID] = true
		case strings.HasSuffix(e.Type, "output_item.done"):
			if !open[e.Item.ID] {
				t.Errorf("%s was not added, want one", e.Item.ID)
			}
			delete(open, e.Item.ID)
		case e.ItemID != "" && !open[e.ItemID]:
			t.Errorf("%s is not open, want it added before: %s", e.ItemID, f.Data)
		}
		if e.Response.ID != "" {
			id = e.Response.ID
		}
	}
	if len(open) > 0 {
		t.Errorf("open: %v, want 0", open)
	}

	for n := range len(all) - 1 {
		rest := readFrames(t, s.do(t, "GET", fmt.Sprintf("/v1/responses/%s?stream=true&starting_after=%d", id, n), ""), "")
		if len(rest) != len(all)-n-1 {
			t.Fatalf("after %d: %d frames, want %d", n, len(rest), len(all)-n-1)
		}
		for i, f := range rest {
			if string(f.Data) != string(all[n+1+i].Data) {
				t.Fatalf("after %d: %s, was %s, want %s", n, f.Data, all[n+1+i].Data, string(all[n+1+i].Data))
			}
		}
	}

	for _, query := range []string{"stream=perhaps", "starting_after=1", "stream=true&starting_after=-1", "stream=true&starting_after=x", "stream=%zz"} {
		decodeResponse[openAIError](t, s.do(t, "GET", "/v1/responses/"+id+"?"+query, ""), 400)
	}
}

func TestResponseContinuesPreviousResponses(t *testing.T) {
	t.Parallel()
	s := newService(t, func(r llmtest.Request) llmtest.Answer {
		last := r.Messages[len(r.Messages)-1]
		if last.Role == "user" && last.Content == "first" {
			return llmtest.Calls(llmtest.Call{ID: "s1", Name: "add", Args: `{"a":1,"b":2}`})
		}
		return llmtest.Says("said " + last.Content)
	}, nil, nil)

	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("first")), 200)
	two := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("second", `,"previous_response_id":"`+one.ID+`"`)), 200)
	three := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("third", `,"previous_response_id":"`+two.ID+`"`)), 200)

	requests := s.Model.Requests()
	var got []string
	for _, m := range requests[len(requests)-1].Messages[1:] {
		got = append(got, m.Role+":"+m.Content)
	}

	want := `user:first assistant: tool:{"sum":3} assistant:said {"sum":3} user:second assistant:said second user:third`
	if strings.Join(got, " ") != want || three.Previous == nil || *three.Previous != two.ID {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("x", `,"previous_response_id":"resp_none"`)), 404)
	if e.Error.Param == nil || *e.Error.Param != "previous_response_id" {
		t.Errorf("error %+v, want Error.Param non-nil, Error.Param previous_response_id", e)
	}
	unkept := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("first", `,"store":false`)), 200)
	decodeResponse[openAIError](t, s.do(t, "GET", "/v1/responses/"+unkept.ID, ""), 404)
}

// The first response of a thread may have a whole conversation as its input. Its turn includes that conversation.
func TestPreviousResponseIncludesAllMessagesOfItsInput(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	first := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", `{"model":"m","input":[
		{"role":"user","content":"one"},{"role":"assistant","content":"ONE"},{"role":"user","content":"two"}]}`), 200)
	second := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("three", `,"previous_response_id":"`+first.ID+`"`)), 200)
	if got, want := s.lastConversation(), "user:one|assistant:ONE|user:two|assistant:Answer 2.|user:three"; got != want {
		t.Errorf("conversation %s, want %s", got, want)
	}
	s.do(t, "POST", "/v1/responses", responsesBody("four", `,"previous_response_id":"`+second.ID+`"`))
	if got, want := s.lastConversation(), "user:one|assistant:ONE|user:two|assistant:Answer 2.|user:three|assistant:Answer 3.|user:four"; got != want {
		t.Errorf("a third response: conversation %s, want %s", got, want)
	}
}

// The AI SDK sends references to items instead of the items.
func TestResponseResolvesItemReferences(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)

	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("What is 1 + 2?")), 200)
	input := `[{"role":"user","content":"What is 1 + 2?"}`
	types := []string{`"type":"item_reference",`, ""} // the type is optional
	for i, o := range one.Output {
		input += `,{` + types[i] + `"id":"` + o.ID + `"}`
	}
	decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(input+`,{"role":"user","content":[{"type":"input_text","text":"And?"}]}]`)), 200)
	requests := s.Model.Requests()
	var got []string
	for _, m := range requests[2].Messages[1:] {
		got = append(got, m.Role+":"+m.Content)
	}

	if want := `user:What is 1 + 2? assistant: tool:{"sum":3} assistant:It is 3. user:And?`; strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}

	for _, c := range []struct {
		id     string
		status int
		param  string
	}{
		{"x", 400, "input[0].id"}, {"msg_none_text_1", 404, "input"}, {one.Output[0].ID + "x", 400, "input[0].id"}, {strings.Replace(one.Output[0].ID, "mcp_", "msg_", 1), 400, "input[0].id"},
		{strings.Replace(one.Output[0].ID, "mcp_", "fco_", 1), 400, "input[0].id"},
	} {
		e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody(`[{"type":"item_reference","id":"`+c.id+`"},{"role":"user","content":"?"}]`)), c.status)
		if e.Error.Param == nil || *e.Error.Param != c.param {
			t.Errorf("reference to %s: got %+v, want the param %s", c.id, e, c.param)
		}
	}
}

// MAX_HISTORY alone bounds the history, whether a request has the items or refers to them.
func TestResponseResolvesAsManyReferencesAsTheHistoryMayHave(t *testing.T) {
	t.Parallel()
	const n = 40
	s := newService(t, func(llmtest.Request) llmtest.Answer { return llmtest.Says("Yes.") }, func(o *agent.Options) { o.MaxHistory = n }, nil)
	input := "["
	for range n {
		r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x")), 200)
		input += `{"type":"item_reference","id":"` + r.Output[0].ID + `"},`
	}
	decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(input+`{"role":"user","content":"Sure?"}]`)), 200)
	if got, want := strings.Count(s.lastConversation(), "assistant:Yes."), n; got != want {
		t.Errorf("%d answers in %s, want %d", got, s.lastConversation(), want)
	}
}

// The types of OpenAI's clients have these members as numbers, so their users add them up.
func TestUsageOfAResponseHasTheMembersThatClientsExpect(t *testing.T) {
	t.Parallel()
	s := newService(t, modelWithAnswers("It is 3."), nil, nil)
	got := decodeResponse[struct {
		Usage struct {
			Input  map[string]int64 `json:"input_tokens_details"`
			Output map[string]int64 `json:"output_tokens_details"`
		}
	}](t, s.do(t, "POST", "/v1/responses", responsesBody("What is 1 + 2?")), 200).Usage
	for _, name := range []string{"cached_tokens", "cache_write_tokens"} {
		if _, ok := got.Input[name]; !ok {
			t.Errorf("input_tokens_details %v, want the member %s", got.Input, name)
		}
	}
	if _, ok := got.Output["reasoning_tokens"]; !ok {
		t.Errorf("output_tokens_details %v, want the member reasoning_tokens", got.Output)
	}
}

func TestResponseApprovalIsAnsweredInTheNext(t *testing.T) {
	t.Parallel()
	for _, approve := range []bool{true, false} {
		s := newService(t, addingModel(), nil, nil, addNeedsApproval)
		one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("What is 1 + 2?")), 200)
		if one.Status != "completed" || one.outputShape() != "mcp_approval_request" || one.Output[0].Arguments != `{"a":1,"b":2}` {
			t.Fatalf(`%s: %s, Output[0].Arguments %q, want completed, mcp_approval_request and {"a":1,"b":2}`, one.Status, one.outputShape(), one.Output[0].Arguments)
		}
		answer := responsesBody(fmt.Sprintf(`[{"type":"mcp_approval_response","approval_request_id":"%s","approve":%t,"reason":"because"}]`, one.Output[0].ID, approve),
			`,"previous_response_id":"`+one.ID+`"`)
		two := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", answer), 200)
		want := map[bool]string{true: "mcp_call:completed message:completed(It is 3.)", false: "mcp_call:failed message:completed(It is 3.)"}[approve]
		if two.outputShape() != want || two.ID == one.ID || two.Output[0].Approval != one.Output[0].ID || two.Previous == nil || *two.Previous != one.ID {
			t.Errorf("approve %t: %s, %+v, want shape %s, ID other than %s, Output[0].Approval %s, Previous non-nil, Previous %s", approve, two.outputShape(), two, want, one.ID, one.Output[0].ID, one.ID)
		}
		if two.Usage.TotalTokens != 15 || one.Usage.TotalTokens != 15 {
			t.Errorf("usage %d and %d, want Usage.TotalTokens 15, Usage.TotalTokens 15", one.Usage.TotalTokens, two.Usage.TotalTokens)
		}

		// A client that lost the answer asks again, and gets the same.
		again := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", answer), 200)
		first := decodeResponse[responseObject](t, s.do(t, "GET", "/v1/responses/"+one.ID, ""), 200)
		if again.outputShape() != two.outputShape() || again.ID != two.ID || first.outputShape() != one.outputShape() {
			t.Errorf("again %s, first %s, want %s and %s", again.outputShape(), first.outputShape(), two.outputShape(), one.outputShape())
		}

		// The other answer comes too late.
		late := strings.Replace(answer, fmt.Sprintf(`"approve":%t`, approve), fmt.Sprintf(`"approve":%t`, !approve), 1)
		if e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", late), 409); e.Error.Code != "conflict" {
			t.Errorf("error %+v, want Error.Code conflict", e)
		}
		if n := len(s.Model.Requests()); n != 2 {
			t.Errorf("%d model calls, want 2", n)
		}
	}
}

func TestResponseApprovalOverStreams(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)
	all := readFrames(t, s.do(t, "POST", "/v1/responses", responsesBody("What is 1 + 2?", `,"stream":true`)), "")
	var end struct{ Response responseObject }
	if err := json.Unmarshal(all[len(all)-2].Data, &end); err != nil || end.Response.outputShape() != "mcp_approval_request" {
		t.Fatalf("%s: %v, want shape mcp_approval_request, no error", eventNames(all), err)
	}

	// Neither the history that comes along nor earlier answers matter.
	answer := responsesBody(`[{"role":"user","content":"What is 1 + 2?"},{"type":"item_reference","id":"`+end.Response.Output[0].ID+`"},
		{"type":"mcp_approval_response","approval_request_id":"`+end.Response.Output[0].ID+`","approve":true}]`, `,"stream":true`)
	all = readFrames(t, s.do(t, "POST", "/v1/responses", answer), "")
	if all[0].Event != "response.created" || strings.Contains(eventNames(all), "approval") {
		t.Errorf("events %s, want Event response.created, events(all) without approval", eventNames(all))
	}
	if err := json.Unmarshal(all[len(all)-2].Data, &end); err != nil || end.Response.outputShape() != "mcp_call:completed message:completed(It is 3.)" {
		t.Errorf(`shape %s, want "mcp_call:completed message:completed(It is 3.)" and no error`, end.Response.outputShape())
	}
	var first struct {
		Sequence int `json:"sequence_number"`
	}
	if err := json.Unmarshal(all[0].Data, &first); err != nil || first.Sequence != 0 {
		t.Errorf("the second response begins with event %d, want 0 and no error", first.Sequence)
	}
}

// A response that is not stored cannot be continued, so nobody is asked for an approval.
func TestResponseWithoutStoreRequestsNoApproval(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)
	r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x", `,"store":false`)), 200)
	if want := "mcp_call:failed message:completed(It is 3.)"; r.outputShape() != want {
		t.Errorf("shape %q, want %q", r.outputShape(), want)
	}
	c := decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("x")), 200)
	if !strings.Contains(c.Choices[0].Message.Reasoning, "[add failed: denied]") {
		t.Errorf(`completion %+v, want Choices[0].Message.Reasoning containing "[add failed: denied]"`, c)
	}
}

func TestFormsAreDeclinedWhereApprovalsAreNot(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "ask"}), llmtest.Says("Well.")), nil, nil)
	r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x")), 200)
	if r.outputShape() != "mcp_call:completed message:completed(Well.)" || !strings.Contains(*r.Output[0].Output, "decline") {
		t.Errorf(`shape %s %+v, want shape "mcp_call:completed message:completed(Well.)", Output[0].Output containing decline`, r.outputShape(), r)
	}
}

func TestBackgroundResponseIsStreamedAndCancelled(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	s := newService(t, waitingModel(open), nil, nil)
	r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x", `,"background":true`)), 200)
	if r.Status != "in_progress" {
		t.Errorf("resource %+v, want Status in_progress", r)
	}
	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("y", `,"previous_response_id":"`+r.ID+`"`)), 409)
	if e.Error.Param == nil || *e.Error.Param != "previous_response_id" {
		t.Errorf("error %+v, want Error.Param non-nil, Error.Param previous_response_id", e)
	}
	stream := s.do(t, "GET", "/v1/responses/"+r.ID+"?stream=true", "")
	readFrames(t, stream, "response.output_text.delta")
	if now := decodeResponse[responseObject](t, s.do(t, "GET", "/v1/responses/"+r.ID, ""), 200); now.outputShape() != "message:in_progress(Wait)" {
		t.Errorf("now: %s, want message:in_progress(Wait)", now.outputShape())
	}
	r = decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses/"+r.ID+"/cancel", ""), 200)
	if r.Status != "cancelled" || r.outputShape() != "message:incomplete(Wait)" {
		t.Errorf("status %s %s, want cancelled and message:incomplete(Wait)", r.Status, r.outputShape())
	}
	rest, err := io.ReadAll(stream.Body)
	if err != nil || !strings.Contains(string(rest), "event: response.incomplete\n") || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf(`rest %s, %v, want rest containing "event: response.incomplete\n", rest ending in "data: [DONE]\n\n", no error`, rest, err)
	}

	again := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses/"+r.ID+"/cancel", ""), 200)
	if again.Status != "cancelled" {
		t.Errorf("again %s, want cancelled", again.Status)
	}
}

func TestFailedResponseIsAnErrorAndAFailedResource(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Fails(http.StatusBadRequest, "no")), nil, nil)
	resp := s.do(t, "POST", "/v1/responses", responsesBody("x"))
	if e := decodeResponse[openAIError](t, resp, 502); e.Error.Code != "model_error" || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("error %+v %v, want Error.Code model_error, X-Should-Retry false", e, resp.Header)
	}
	all := readFrames(t, s.do(t, "POST", "/v1/responses", responsesBody("x", `,"stream":true`)), "")
	if last := all[len(all)-2].Event; last != "response.failed" || strings.Contains(eventNames(all), " error ") {
		t.Errorf(`events %s, last %q, want last response.failed, events(all) without " error "`, eventNames(all), last)
	}
}

func TestResponseListsAndLimitsServers(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses",
		responsesBody("x", `,"tools":[{"type":"mcp","server_label":"default","allowed_tools":["add"],"authorization":"s3cret","require_approval":"never"}]`)), 200)
	if want := "mcp_list_tools mcp_call:completed message:completed(It is 3.)"; r.outputShape() != want {
		t.Errorf("shape %q, want %q", r.outputShape(), want)
	}
	if tools := s.Model.Requests()[0].Tools; len(tools) != 1 || tools[0].Function.Name != "add" {
		t.Errorf("%d tools, want tools 1, Function.Name add", len(tools))
	}
	b, err := io.ReadAll(s.do(t, "GET", "/v1/responses/"+r.ID, "").Body)
	if err != nil || strings.Contains(string(b), "s3cret") || !strings.Contains(string(b), `"tools":[{"type":"mcp","server_label":"default","allowed_tools":["add"]}]`) {
		t.Errorf("read all %s, want b without s3cret, b containing %s, no error", b, `"tools":[{"type":"mcp","server_label":"default","allowed_tools":["add"]}]`)
	}

	for field, body := range map[string]string{
		"tools[0].server_url":       `,"tools":[{"type":"mcp","server_label":"x","server_url":"http://169.254.169.254/"}]`,
		"tools[0].require_approval": `,"tools":[{"type":"mcp","server_label":"default","require_approval":"always"}]`,
		"tools[1].server_label":     `,"tools":[{"type":"mcp","server_label":"default"},{"type":"mcp","server_label":"nosuch"}]`,
		"answerd.servers.0":         `,"tools":[{"type":"mcp","server_label":"default"}],"answerd":{"servers":["nosuch"]}`,
		"background":                `,"background":true,"store":false`,
	} {
		e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("x", body)), 400)
		if e.Error.Param == nil || *e.Error.Param != field {
			t.Errorf("%s: %+v, want Error.Param non-nil, Error.Param %s", field, e, field)
		}
	}
}

// Calls of the caller's functions, with the response that made them and without.
func TestResponseFunctionCallAndOutput(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{ID: "c1", Name: "colour", Args: `{}`}), llmtest.Says("Blue.")), nil, nil)
	tools := `,"tools":[{"type":"function","name":"colour","parameters":{"type":"object"},"strict":true}]`
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("The sky?", tools)), 200)
	if one.Status != "completed" || one.outputShape() != "function_call:completed" || one.Output[0].CallID != "c1" {
		t.Fatalf("status %s %s, Output[0].CallID %q, want completed, function_call:completed and c1", one.Status, one.outputShape(), one.Output[0].CallID)
	}
	output := `{"type":"function_call_output","call_id":"c1","output":"blue"}`
	two := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(`[`+output+`]`, tools, `,"previous_response_id":"`+one.ID+`"`)), 200)
	whole := `[{"role":"user","content":"The sky?"},{"type":"function_call","call_id":"c1","name":"colour","arguments":"{}"},` + output + `]`
	three := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(whole, tools)), 200)
	referred := `[{"role":"user","content":"The sky?"},{"type":"item_reference","id":"` + one.Output[0].ID + `"},` + output + `]`

	four := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(referred, tools)), 200)
	for _, r := range []responseObject{two, three, four} {
		if r.outputShape() != "message:completed(Blue.)" {
			t.Errorf("shape %q, want message:completed(Blue.)", r.outputShape())
		}
	}

	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody(`[`+output+`]`, tools)), 400)
	if e.Error.Param == nil || *e.Error.Param != "input" {
		t.Errorf("error %+v, want Error.Param non-nil, Error.Param input", e)
	}
}

// A native reader sees the same run.
func TestResponseIsARunLikeAnyOther(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x")), 200)
	run := decodeResponse[native.Status](t, s.do(t, "GET", "/runs/"+strings.Replace(r.ID, "resp_", "run_", 1), ""), 200)
	if run.Status != "completed" || *run.Answer != "It is 3." {
		t.Errorf(`run %+v, want Status completed, Answer "It is 3."`, run)
	}
}

// A response belongs to the caller who asked for it. For anyone else it does not exist, under any of
// its ids.
func TestResponseOfAnotherCallerDoesNotExist(t *testing.T) {
	t.Parallel()
	iam := newMint(t)
	v := iam.newVerifier(t, nil)
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Verifier = v }, addNeedsApproval)
	ada, eve := iam.bearerToken("ada"), iam.bearerToken("eve")

	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x"), "Authorization", ada), 200)
	request := one.Output[0].ID
	approval := responsesBody(`[{"type":"mcp_approval_response","approval_request_id":"` + request + `","approve":true}]`)
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/responses/" + one.ID, ""},
		{"GET", "/v1/responses/" + one.ID + "?stream=true", ""},
		{"POST", "/v1/responses/" + one.ID + "/cancel", ""},
		{"POST", "/v1/responses", responsesBody("y", `,"previous_response_id":"`+one.ID+`"`)},
		{"POST", "/v1/responses", responsesBody(`[{"type":"item_reference","id":"` + request + `"},{"role":"user","content":"y"}]`)},
		{"POST", "/v1/responses", approval},
	} {
		e := decodeResponse[openAIError](t, s.do(t, c.method, c.path, c.body, "Authorization", eve), 404)
		if e.Error.Code != "not_found" {
			t.Errorf("method %s %s: %+v, want Error.Code not_found", c.method, c.path, e)
		}
	}

	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", approval), 401)
	if e.Error.Type != "authentication_error" {
		t.Errorf("error %+v, want Error.Type authentication_error", e)
	}
	two := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", approval, "Authorization", ada), 200)
	if want := "mcp_call:completed message:completed(It is 3.)"; two.outputShape() != want {
		t.Errorf("shape %q, want %q", two.outputShape(), want)
	}
}
