package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// inputPage is a page of what a response was asked with.
type inputPage struct {
	Object string
	Data   []struct {
		ID, Type, Role, Name string
		CallID               string `json:"call_id"`
		ApprovalID           string `json:"approval_request_id"`
		Approve              *bool
		Output               any
		Arguments            *string
		Content              []struct{ Type, Text, ImageURL, Detail string }
	}
	First   *string `json:"first_id"`
	Last    *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

func (p inputPage) shape() string {
	var out []string
	for _, i := range p.Data {
		s := i.Type + " " + i.Role + i.CallID
		for _, c := range i.Content {
			s += "(" + c.Type + ":" + c.Text + ")"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestInputItemsListTheInputOfAResponse(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) {
		o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Images: true}}
	}, nil)
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(`[{"role":"user","content":[{"type":"input_text","text":"Blue?"},{"type":"input_image","image_url":"https://x.example/a.png","detail":"low"}]},
		{"type":"function_call","call_id":"c1","name":"colour","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"blue"},
		{"role":"assistant","content":"Blue."},{"role":"user","content":"Sure?"}]`)), 200)
	path := "/v1/responses/" + one.ID + "/input_items"
	all := decodeResponse[inputPage](t, s.do(t, "GET", path+"?order=asc", ""), 200)
	want := "message user(input_text:Blue?)(input_image:), function_call c1, function_call_output c1, message assistant(output_text:Blue.), message user(input_text:Sure?)"
	if all.shape() != want || all.Object != "list" || all.HasMore || *all.Last != all.Data[4].ID || all.Data[2].Output != "blue" || *all.Data[1].Arguments != "{}" {
		t.Errorf("shape %s, %+v, want shape %s, Object list, HasMore false, Last %s, Data[2].Output blue, Data[1].Arguments {}", all.shape(), all, want, all.Data[4].ID)
	}
	for what, got := range map[string]string{"the input item": fmt.Sprint(all.Data[0].Content), "the request to the model": string(s.Model.Requests()[0].Body)} {
		if !strings.Contains(got, "low") {
			t.Errorf("%s: got %s, want the detail low of the image", what, got)
		}
	}
	// Page by page, in the order that is usual: the newest first.
	var ids []string
	for after := ""; ; {
		page := decodeResponse[inputPage](t, s.do(t, "GET", path+"?limit=2&after="+after, ""), 200)
		for _, i := range page.Data {
			ids = append(ids, i.ID)
		}
		if !page.HasMore {
			break
		}
		after = *page.Last
	}

	slices.Reverse(ids)
	for i, item := range all.Data {
		if ids[i] != item.ID || len(ids) != len(all.Data) {
			t.Fatalf("pages %v, want [i] %q, %d", ids, item.ID, len(all.Data))
		}
	}

	for query, param := range map[string]string{"limit=0": "limit", "limit=101": "limit", "limit=x": "limit", "order=up": "order", "after=msg_none": "after", "a=%zz": ""} {
		e := decodeResponse[openAIError](t, s.do(t, "GET", path+"?"+query, ""), 400)
		if (e.Error.Param == nil) != (param == "") || e.Error.Param != nil && *e.Error.Param != param {
			t.Errorf("%s: %+v, want the parameter %q", query, e, param)
		}
	}
	decodeResponse[openAIError](t, s.do(t, "GET", "/v1/responses/resp_none/input_items", ""), 404)
}

func TestInputItemsHaveTheImagesOfAFunctionsOutput(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) {
		o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", Images: true}}
	}, nil)
	output := `[{"type":"input_text","text":"a map"},{"type":"input_image","detail":"auto","image_url":"https://x.example/a.png"}]`
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(`[{"role":"user","content":"Where?"},
		{"type":"function_call","call_id":"c1","name":"map","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":`+output+`}]`)), 200)
	page := decodeResponse[inputPage](t, s.do(t, "GET", "/v1/responses/"+one.ID+"/input_items", ""), 200)
	var want any
	if err := json.Unmarshal([]byte(output), &want); err != nil {
		t.Fatal(err)
	}
	if got := page.Data[0].Output; !reflect.DeepEqual(got, want) {
		t.Errorf("got the output %v, want %v", got, want)
	}
}

func TestInputItemsAfterAnApprovalAreTheApproval(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("What is 1 + 2?")), 200)
	two := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(`[{"type":"mcp_approval_response","approval_request_id":"`+one.Output[0].ID+`","approve":false}]`)), 200)
	page := decodeResponse[inputPage](t, s.do(t, "GET", "/v1/responses/"+two.ID+"/input_items", ""), 200)
	if page.shape() != "mcp_approval_response " || page.Data[0].ApprovalID != one.Output[0].ID || *page.Data[0].Approve {
		t.Errorf("input items %+v, want the refusal of %s", page, one.Output[0].ID)
	}
}

func TestDeletedResponseIsNotFoundAndLaterOnesStay(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("Yes.")), nil, nil)
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("first")), 200)
	two := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("second", `,"previous_response_id":"`+one.ID+`"`)), 200)

	said := decodeResponse[struct {
		ID, Object string
		Deleted    bool
	}](t, s.do(t, "DELETE", "/v1/responses/"+one.ID, ""), 200)
	if said.ID != one.ID || said.Object != "response" || !said.Deleted {
		t.Errorf("said %+v, want ID %q, Object response, Deleted true", said, one.ID)
	}

	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/responses/" + one.ID, ""}, {"DELETE", "/v1/responses/" + one.ID, ""}, {"GET", "/v1/responses/" + one.ID + "/input_items", ""},
		{"POST", "/v1/responses", responsesBody("x", `,"previous_response_id":"`+one.ID+`"`)},
	} {
		if e := decodeResponse[openAIError](t, s.do(t, c.method, c.path, c.body), 404); e.Error.Code != "not_found" {
			t.Errorf("%s %s: code %s, want not_found", c.method, c.path, e.Error.Code)
		}
	}

	decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("third", `,"previous_response_id":"`+two.ID+`"`)), 200)
	requests := s.Model.Requests()
	if n := len(requests[len(requests)-1].Messages); n != 6 {
		t.Errorf("%d messages, want 6", n)
	}
	decodeResponse[openAIError](t, s.do(t, "DELETE", "/v1/responses/resp_none", ""), 404)
}

// Deleting a response ends its run if that waits for a person. A run in progress is not deleted by
// mistake.
func TestDeleteResponseRefusesRunningOnes(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	s := newService(t, waitingModel(open), nil, nil)
	r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x", `,"background":true`)), 200)
	resp := s.do(t, "DELETE", "/v1/responses/"+r.ID, "")
	if e := decodeResponse[openAIError](t, resp, 409); e.Error.Code != "conflict" || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("error %+v, X-Should-Retry %q, want Error.Code conflict, X-Should-Retry false", e, resp.Header.Get("X-Should-Retry"))
	}
	decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses/"+r.ID+"/cancel", ""), 200)
	decodeResponse[map[string]any](t, s.do(t, "DELETE", "/v1/responses/"+r.ID, ""), 200)

	s = newService(t, addingModel(), nil, nil, addNeedsApproval)
	r = decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x")), 200)
	decodeResponse[map[string]any](t, s.do(t, "DELETE", "/v1/responses/"+r.ID, ""), 200)
	answer := responsesBody(fmt.Sprintf(`[{"type":"mcp_approval_response","approval_request_id":"%s","approve":true}]`, r.Output[0].ID))
	if resp := s.do(t, "POST", "/v1/responses", answer); resp.StatusCode != 404 {
		t.Errorf("an approval of a deleted response: %s, want 404", resp.Status)
	}
	if s.Tools.CallCounts()["add"] != 0 {
		t.Errorf("add was called %d times, want 0", s.Tools.CallCounts()["add"])
	}
}

// The run is cancelled wherever it continues, so the same request succeeds once the run has ended.
func TestDeleteResponseOfARunThatIsHandedOverMayBeRepeated(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), func(o *agent.Options) { o.Durable = true }, nil, addNeedsApproval)
	r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x")), 200)
	over, stop := context.WithCancel(t.Context())
	stop()
	s.Drain(over)
	resp := s.do(t, "DELETE", "/v1/responses/"+r.ID, "")
	e := decodeResponse[openAIError](t, resp, 409)
	if after, retry := resp.Header.Get("Retry-After"), resp.Header.Get("X-Should-Retry"); after == "" || retry != "" {
		t.Errorf("Retry-After %q, X-Should-Retry %q, want a time and none: OpenAI's clients repeat a 409 by default", after, retry)
	}
	if want := "Delete it again"; !strings.Contains(e.Error.Message, want) {
		t.Errorf("message %q, want %q in it", e.Error.Message, want)
	}
}

// All approvals of a request count, or none.
func TestApprovalsOfOneRequestAreGivenAllOrNone(t *testing.T) {
	t.Parallel()
	calls := llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}, llmtest.Call{ID: "call_2", Name: "add", Args: `{"a":3,"b":4}`})
	s := newService(t, llmtest.Turns(calls, llmtest.Says("Done.")), nil, nil, addNeedsApproval)
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("Both?")), 200)
	if want := "mcp_approval_request mcp_approval_request"; one.outputShape() != want {
		t.Fatalf("shape %q, want %q", one.outputShape(), want)
	}

	approve := func(ids ...string) string {
		var items []string
		for _, id := range ids {
			items = append(items, fmt.Sprintf(`{"type":"mcp_approval_response","approval_request_id":"%s","approve":true}`, id))
		}
		return responsesBody("[" + strings.Join(items, ",") + "]")
	}

	first, second := one.Output[0].ID, one.Output[1].ID
	unknown := first[:strings.LastIndex(first, "_")] + "_none"
	for _, body := range []string{approve(first, unknown), approve(first, first)} {
		resp := s.do(t, "POST", "/v1/responses", body)
		if resp.StatusCode/100 != 4 {
			t.Errorf("%s: %s, resp.StatusCode/100 %d, want 4", body, resp.Status, resp.StatusCode/100)
		}
	}

	run := "/runs/" + strings.Replace(one.ID, "resp_", "run_", 1)
	if now := decodeResponse[native.Status](t, s.do(t, "GET", run, ""), 200); len(now.Interrupts) != 2 {
		t.Errorf("%d things are still asked, want 2", len(now.Interrupts))
	}
	two := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", approve(first, second)), 200)
	again := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", approve(first, second)), 200)
	if want := "mcp_call:completed mcp_call:completed message:completed(Done.)"; two.outputShape() != want || again.outputShape() != want || two.ID != again.ID {
		t.Errorf("%s, again %s, ID %q, want %s, %s and %s", two.outputShape(), again.outputShape(), two.ID, want, want, again.ID)
	}
}

// One of two approvals may come later than the other.
func TestApprovalsCanBeGivenOneAfterTheOther(t *testing.T) {
	t.Parallel()
	calls := llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}, llmtest.Call{ID: "call_2", Name: "add", Args: `{"a":3,"b":4}`})
	s := newService(t, llmtest.Turns(calls, llmtest.Says("Done.")), nil, nil, addNeedsApproval)
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("Both?")), 200)
	approve := func(id string) string {
		return responsesBody(`[{"type":"mcp_approval_response","approval_request_id":"` + id + `","approve":true}]`)
	}
	two := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", approve(one.Output[0].ID)), 200)
	last := two.Output[len(two.Output)-1]
	if last.Type != "mcp_approval_request" || last.ID != one.Output[1].ID {
		t.Fatalf("shape %q, Type %q, ID %q, want mcp_approval_request and %q", two.outputShape(), last.Type, last.ID, one.Output[1].ID)
	}
	three := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", approve(last.ID)), 200)
	if three.Status != "completed" || !strings.HasSuffix(three.outputShape(), "mcp_call:completed message:completed(Done.)") || three.ID == two.ID {
		t.Errorf(`ID %s %s, Status %q, want Status completed, shape ending in "mcp_call:completed message:completed(Done.)", ID other than %s`, three.ID, three.outputShape(), three.Status, two.ID)
	}

	for _, r := range []responseObject{one, two, three} {
		if again := decodeResponse[responseObject](t, s.do(t, "GET", "/v1/responses/"+r.ID, ""), 200); again.outputShape() != r.outputShape() {
			t.Errorf("%s: %s, want %s", r.ID, again.outputShape(), r.outputShape())
		}
	}
}

func TestModelIsFoundByItsID(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(), func(o *agent.Options) {
		o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted"}, "meta/llama": {ID: "meta/llama"}}
	}, nil)
	for path, id := range map[string]string{"scripted": "scripted", "scripted:no-tools": "scripted:no-tools", "meta%2Fllama": "meta/llama", "meta%2Fllama%3Ano-tools": "meta/llama:no-tools"} {
		if m := decodeResponse[struct{ ID, Object string }](t, s.do(t, "GET", "/v1/models/"+path, ""), 200); m.ID != id || m.Object != "model" {
			t.Errorf("%s: %+v, want ID %s, Object model", path, m, id)
		}
	}
	for _, path := range []string{"other", "%2e%2e", "scripted%3Ano"} {
		if e := decodeResponse[openAIError](t, s.do(t, "GET", "/v1/models/"+path, ""), 404); e.Error.Code != "model_not_found" {
			t.Errorf("%s: %+v, want Error.Code model_not_found", path, e)
		}
	}
}

// Open Responses wants every member of a response, and of what it repeats of the request.
func TestResponseRepeatsItsRequest(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	body := responsesBody("x", `,"tools":[{"type":"function","name":"colour"}],"text":{"verbosity":"low"},"reasoning":{"effort":"low"},"truncation":"auto","parallel_tool_calls":false,
		"safety_identifier":"s","prompt_cache_key":"p","user":"u","max_tool_calls":3,"include":["reasoning.encrypted_content"],"stream_options":{"include_obfuscation":false},"metadata":{"k":"v"}`)

	got := decodeResponse[map[string]json.RawMessage](t, s.do(t, "POST", "/v1/responses", body), 200)
	for member, want := range map[string]string{
		"tools": `[{"description":null,"name":"colour","parameters":null,"strict":null,"type":"function"}]`, "text": `{"format":{"type":"text"},"verbosity":"low"}`,
		"reasoning": `{"effort":"low","summary":null}`, "truncation": `"auto"`, "parallel_tool_calls": "false", "safety_identifier": `"s"`, "prompt_cache_key": `"p"`,
		"user": `"u"`, "max_tool_calls": "3", "metadata": `{"k":"v"}`,
	} {
		if string(got[member]) != want {
			t.Errorf("%s: %s, want %s", member, got[member], want)
		}
	}
	for _, want := range []string{`"parallel_tool_calls":false`, `"verbosity":"low"`} {
		if got := string(s.Model.Requests()[0].Body); !strings.Contains(got, want) {
			t.Errorf("got the request %s to the model, want %s in it", got, want)
		}
	}

	for param, more := range map[string]string{
		"top_logprobs": `,"top_logprobs":1`, "include[1]": `,"include":["x","message.output_text.logprobs"]`, "truncation": `,"truncation":"head"`,
		"user": `,"user":"` + strings.Repeat("u", 513) + `"`, "include": `,"include":"x"`, "stream_options": `,"stream_options":1`,
	} {
		e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("x", more)), 400)
		if e.Error.Param == nil || *e.Error.Param != param {
			t.Errorf("%s: %+v, want Error.Param non-nil, Error.Param %s", param, e, param)
		}
	}
}

// A run that waits for an approval cannot take a message as well, so neither may be ignored if a request has both.
func TestResponseApprovalWithAMessageIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil, addNeedsApproval)
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("What is 1 + 2?")), 200)
	approval := fmt.Sprintf(`{"type":"mcp_approval_response","approval_request_id":"%s","approve":true}`, one.Output[0].ID)
	both := `[{"role":"user","content":"What is 1 + 2?"},` + approval + `,{"role":"user","content":"Thanks."}]`
	for _, member := range []string{"", `,"previous_response_id":"` + one.ID + `"`} {
		e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody(both, member)), 400).Error
		if e.Param == nil || *e.Param != "input[1]" || !strings.Contains(e.Message, "next request") {
			t.Errorf("%q: got %+v, want an error about input[1] that says to send the message in the next request", member, e)
		}
	}

	previous := `,"previous_response_id":"` + one.ID + `"`
	before := `[{"role":"user","content":"And 3 + 4?"},` + approval + `]`
	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody(before, previous)), 400).Error
	if e.Param == nil || *e.Param != "input" || !strings.Contains(e.Message, "next request") {
		t.Errorf("new message before the approval: got %+v, want an error about input that says to send the message in the next request", e)
	}

	decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("["+approval+"]", previous)), 200)

	// The run has the answer now, so the approval is part of the history.
	decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody(both)), 200)
}
