package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/definition"
	"answerd/internal/api/native"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

const sumSchema = `{"type":"object","properties":{"sum":{"type":"integer"}},"required":["sum"],"additionalProperties":false}`

// modelWithAnswers returns a model that gives these answers one after the other; it counts those in the conversation.
func modelWithAnswers(texts ...string) llmtest.Script {
	return func(r llmtest.Request) llmtest.Answer {
		n := 0
		for _, m := range r.Messages {
			if m.Role == "assistant" {
				n++
			}
		}
		return llmtest.Says(texts[min(n, len(texts)-1)])
	}
}

// structured is what answers and runs have of the output.
type structured struct {
	Answer string          `json:"answer"`
	Output json.RawMessage `json:"output"`
	RunID  string          `json:"run_id"`
	Error  problem         `json:"error"`
}

func TestOutputIsAValueInAnswersEventsAndRuns(t *testing.T) {
	t.Parallel()
	s := newService(t, modelWithAnswers(`{"sum":"x"}`, "```json\n{\"sum\": 3}\n```"), nil, nil)
	body := `{"question":"1 + 2?","instructions":"Be exact.","output_schema":` + sumSchema + `}`
	a := decodeResponse[structured](t, s.do(t, "POST", "/answer", body), 200)
	if a.Answer != `{"sum": 3}` || string(a.Output) != `{"sum":3}` {
		t.Errorf(`got %+v, want Answer {"sum": 3} and Output {"sum":3}`, a)
	}
	if r := decodeResponse[structured](t, s.do(t, "GET", "/runs/"+a.RunID, ""), 200); string(r.Output) != `{"sum":3}` {
		t.Errorf(`the run is %+v, want Output {"sum":3}`, r)
	}

	all := readFrames(t, s.do(t, "POST", "/answer/stream", body), "final_answer")
	text, last := "", all[len(all)-1]
	for _, f := range all {
		var e struct{ Delta string }
		if err := json.Unmarshal(f.Data, &e); err != nil {
			t.Fatal(err)
		}
		switch f.Event {
		case "step_start":
			text = ""
		case "text_delta":
			text += e.Delta
		}
	}

	var end structured
	if err := json.Unmarshal(last.Data, &end); err != nil {
		t.Fatal(err)
	}
	if string(end.Output) != `{"sum":3}` || text != end.Answer {
		t.Errorf(`the stream ends with %+v after the text %q, want Output {"sum":3} and the text as Answer`, end, text)
	}
	if first := s.Model.Requests()[0].Messages[0]; first.Role != "system" || !strings.HasSuffix(first.Content, "Be exact.") {
		t.Errorf("the model was told %q, want the instructions at the end", first.Content)
	}
}

func TestOutputThatDoesNotConformIsAProblem(t *testing.T) {
	t.Parallel()
	s := newService(t, modelWithAnswers(`{"sum":"x"}`), nil, nil)
	p := wantProblem(t, s.do(t, "POST", "/answer", `{"question":"?","output_schema":`+sumSchema+`}`), 502, "invalid_output")
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "/sum" {
		t.Errorf("got the problem %+v, want one error at /sum", p)
	}
	run := strings.TrimPrefix(p.Instance, "/runs/")
	if r := decodeResponse[structured](t, s.do(t, "GET", "/runs/"+run, ""), 200); r.Error.Code != "invalid_output" || len(r.Error.Errors) != 1 {
		t.Errorf("the run is %+v, want the same error", r)
	}
	r, err := s.Log.Run(t.Context(), run)
	if end, ok := r.Last.Body.(event.RunError); err != nil || !ok || len(end.Errors) != 1 || end.Errors[0].Pointer != "/sum" {
		t.Errorf("the run ends with %+v, %v, want a run_error with one error at /sum", r.Last.Body, err)
	}
}

func TestOutputSchemaThatCannotBeUsedIsABadRequest(t *testing.T) {
	t.Parallel()
	s := newService(t, modelWithAnswers(`!`), nil, nil)
	for schema, want := range map[string]string{
		`{"properties":{"a":{"type":"strng"}}}`: "/output_schema/properties/a/type",
		`{"$ref":"https://example.com/"}`:       "/output_schema",
		`[]`:                                    "/output_schema",
		`{"title":"` + strings.Repeat("x", 64<<10) + `"}`: "/output_schema",
	} {
		p := wantProblem(t, s.do(t, "POST", "/answer", `{"question":"?","output_schema":`+schema+`}`), 400, "invalid_request")
		if len(p.Errors) != 1 || p.Errors[0].Pointer != want {
			t.Errorf("%.60s: got %+v, want one error at %s", schema, p.Errors, want)
		}
	}
	if n := len(s.Model.Requests()); n != 0 {
		t.Errorf("the model was asked %d times, want never", n)
	}
}

// Strict formats of the OpenAI APIs are validated; others are passed on.
func TestStrictResponseFormatsAreValidated(t *testing.T) {
	t.Parallel()
	chat := func(strict, more string) string {
		return chatCompletionBody("?", `,"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":`+strict+`,"schema":`+sumSchema+`}}`+more)
	}
	responses := func(strict, more string) string {
		return responsesBody(`?`, `,"text":{"format":{"type":"json_schema","name":"n","strict":`+strict+`,"schema":`+sumSchema+`}}`+more)
	}
	for path, body := range map[string]func(strict, more string) string{"/v1/chat/completions": chat, "/v1/responses": responses} {
		good := newService(t, modelWithAnswers(`Three.`, `{"sum":3}`), nil, nil)
		if got := readText(t, good.do(t, "POST", path, body("true", ""))); !strings.Contains(got, `{\"sum\":3}`) || strings.Contains(got, "Three.") {
			t.Errorf("%s: got %s, want the repaired answer alone", path, got)
		}
		if got := readText(t, good.do(t, "POST", path, body("true", `,"stream":true`))); !strings.Contains(got, `{\"sum\":3}`) || strings.Contains(got, "Three.") {
			t.Errorf("%s: got the stream %s, want the repaired answer alone", path, got)
		}
		if got := string(good.Model.Requests()[0].Body); !strings.Contains(got, `"name":"n"`) {
			t.Errorf("%s: the model was asked %s, want the caller's own format", path, got)
		}
		loose := newService(t, modelWithAnswers(`Three.`), nil, nil)
		if got := readText(t, loose.do(t, "POST", path, body("false", ""))); !strings.Contains(got, "Three.") {
			t.Errorf("%s: got %s, want the answer as it is", path, got)
		}
		bad := newService(t, modelWithAnswers(`{}`), nil, nil)
		if got := readText(t, bad.do(t, "POST", path, body("true", ""))); !strings.Contains(got, `invalid_output`) {
			t.Errorf("%s: got %s, want invalid_output", path, got)
		}
		wrong := strings.Replace(body("true", ""), `"integer"`, `"int"`, 1)
		if got := readText(t, bad.do(t, "POST", path, wrong)); !strings.Contains(got, "cannot be used as a JSON Schema") {
			t.Errorf("%s: got %s, want an error about the schema", path, got)
		}
		if got := readText(t, good.do(t, "POST", path, body("true", `,"answerd":{"output_schema":{}}`))); !strings.Contains(got, "response format of its own") {
			t.Errorf("%s: got %s, want an error about two formats", path, got)
		}
	}
}

// Clients parse every text of a message as the answer, which the text before a call of theirs is not.
func TestStructuredAnswerHasNoTextBesideTheCallersCalls(t *testing.T) {
	t.Parallel()
	model := llmtest.Turns(llmtest.SaysAndCalls("Let me look.", llmtest.Call{Name: "locate", Args: `{"exact":true}`}))
	s := newService(t, model, nil, nil)
	format := `"name":"n","strict":true,"schema":` + sumSchema
	chat := `,"tools":[{"type":"function","function":{"name":"locate"}}],"response_format":{"type":"json_schema","json_schema":{` + format + `}}`
	responses := `,"tools":[{"type":"function","name":"locate"}],"text":{"format":{"type":"json_schema",` + format + `}}`
	for _, more := range []string{"", `,"stream":true`} {
		for path, body := range map[string]string{
			"/v1/chat/completions": chatCompletionBody("?", chat, more), "/v1/responses": responsesBody("?", responses, more),
		} {
			got := readText(t, s.do(t, "POST", path, body))
			if !strings.Contains(got, `{\"exact\":true}`) || strings.Contains(got, "Let me look.") {
				t.Errorf("%s%s: got %s, want the call without the text beside it", path, more, got)
			}
		}
	}
}

// Clients send the format that is the default, although they could leave it out.
func TestTextFormatKeepsTheSchemaOfTheAgent(t *testing.T) {
	t.Parallel()
	for path, format := range map[string]string{"/v1/chat/completions": `"response_format":{"type":"text"}`, "/v1/responses": `"text":{"format":{"type":"text"}}`} {
		s := newService(t, modelWithAnswers(`{"sum":3}`), func(o *agent.Options) {
			o.Agents = []definition.Agent{{ID: "adder", OutputSchema: json.RawMessage(sumSchema)}, {ID: "talker"}}
		}, nil)
		for _, more := range []string{`"model":"adder"`, `"model":"talker","answerd":{"output_schema":` + sumSchema + `}`} {
			before := len(s.Model.Requests())
			got := readText(t, s.do(t, "POST", path, `{"input":"?","messages":[{"role":"user","content":"?"}],`+format+`,`+more+`}`))
			if len(s.Model.Requests()) == before {
				t.Fatalf("%s with %s: got %s, want an answer", path, more, got)
			}
			if body := string(s.Model.Requests()[before].Body); !strings.Contains(body, `"json_schema"`) {
				t.Errorf("%s with %s: the model was asked %s, want the schema in response_format", path, more, body)
			}
		}
	}
}

func TestFormatsOfResponsesThatCannotBeUsedAreNamed(t *testing.T) {
	t.Parallel()
	s := newService(t, modelWithAnswers("!"), nil, nil)
	for format, field := range map[string]string{
		`{"type":5}`: "text.format.type",
		`{"name":"n","schema":` + sumSchema + `,"strict":true}`:                        "text.format.type",
		`{"type":"json_schema","name":"n","strict":"true","schema":` + sumSchema + `}`: "text.format.strict",
		`{"type":"json_schema","name":"n","strict":true}`:                              "text.format.schema",
		`{"type":"json_schema","name":"n","schema":"{}"}`:                              "text.format.schema",
		`{"type":"json_schema","json_schema":{"name":"n","schema":` + sumSchema + `}}`: "text.format.schema",
	} {
		e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("?", `,"text":{"format":`+format+`}`)), 400)
		if e.Error.Param == nil || *e.Error.Param != field {
			t.Errorf("text.format %s: got %+v, want an error about %s", format, e, field)
		}
	}
	for _, text := range []string{`{}`, `null`, `{"format":null}`, `{"verbosity":"low"}`} {
		decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("?", `,"text":`+text)), 200)
	}
}

// The AI SDK sends references to items instead of the items.
func TestStructuredAnswerCanBeReferenced(t *testing.T) {
	t.Parallel()
	s := newService(t, modelWithAnswers(`{"sum":3}`, "Yes."), nil, nil)
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("1 + 2?", `,"text":{"format":{"type":"json_schema","name":"n","strict":true,"schema":`+sumSchema+`}}`)), 200)
	if len(one.Output) != 1 {
		t.Fatalf("output = %+v, want one item", one.Output)
	}
	decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses",
		responsesBody(`[{"role":"user","content":"1 + 2?"},{"type":"item_reference","id":"`+one.Output[0].ID+`"},{"role":"user","content":"Sure?"}]`)), 200)
	var got []string
	for _, m := range s.Model.Requests()[1].Messages[1:] {
		got = append(got, m.Role+":"+m.Content)
	}
	if want := `user:1 + 2? assistant:{"sum":3} user:Sure?`; strings.Join(got, " ") != want {
		t.Errorf("the model got %s, want %s", strings.Join(got, " "), want)
	}
}

func TestOutputIsStructuredContentOfTheTool(t *testing.T) {
	t.Parallel()
	s := newService(t, modelWithAnswers(`{"sum":3}`), nil, nil)
	m := s.callModern(t, callParams(`{"question":"?","output_schema":`+sumSchema+`}`, ""))
	if got := string(m.Result.StructuredContent.Output); got != `{"sum":3}` {
		t.Errorf(`got structuredContent with output %s, want {"sum":3}`, got)
	}
}

func TestAttachmentsAreCheckedInTheBody(t *testing.T) {
	for body, want := range map[string]string{
		`[{"name":"a.txt","media_type":"text/plain","data":"eA=="}]`:                   "",
		`[{"media_type":"image/png","data":"eA=="}]`:                                   "/attachments/0",
		`[{"media_type":"text/plain","data":"eA=="},{"media_type":"text/plain"}]`:      "/attachments/1/data",
		`[{"media_type":"text/plain","data":"eA==","url":"x"}]`:                        "/attachments/0/url",
		`[` + strings.Repeat(`{"media_type":"text/plain","data":"eA=="},`, 16) + `{}]`: "/attachments",
	} {
		_, err := native.Decode([]byte(`{"question":"?","attachments":` + body + `}`))
		got := ""
		if invalid, ok := err.(*native.Invalid); ok {
			got = invalid.Errors[0].Pointer
		}
		if got != want {
			t.Errorf("%.80s: got an error at %q (%v), want at %q", body, got, err, want)
		}
	}
}

// Endpoints fetch no file but images. As the URL of an image, they would refuse a document with an error that says
// nothing about the message.
func TestOnlyImagesHaveHTTPSURLs(t *testing.T) {
	t.Parallel()
	chat := func(part string) string { return `{"messages":[{"role":"user","content":[` + part + `]}]}` }
	responses := func(part string) string { return `{"input":[{"role":"user","content":[` + part + `]}]}` }
	page := func(part string) string {
		return `{"id":"t","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"?"},` + part + `]}]}`
	}
	agui := func(part string) string {
		return `{"threadId":"t","runId":"r","messages":[{"id":"m","role":"user","content":[` + part + `]}]}`
	}

	const document, image = `https://files.example/a.pdf`, `https://files.example/a.png`
	s := newService(t, modelWithAnswers("!"), nil, nil)
	for _, c := range []struct{ path, body, where string }{
		{"/v1/chat/completions", chat(`{"type":"file","file":{"filename":"a.pdf","file_data":"` + document + `"}}`), `"messages[0].content[0].file.file_data"`},
		{"/v1/chat/completions", chat(`{"type":"image_url","image_url":{"url":"` + image + `"}}`), ""},
		{"/v1/responses", responses(`{"type":"input_file","filename":"a.pdf","file_data":"` + document + `"}`), `"input[0].content[0].file_data"`},
		{"/v1/responses", responses(`{"type":"input_image","file_id":"file-1"}`), `"input[0].content[0].file_id"`},
		{"/v1/responses", responses(`{"type":"input_image","image_url":"` + image + `"}`), ""},
		{"/api/chat", page(`{"type":"file","mediaType":"application/pdf","filename":"a.pdf","url":"` + document + `"}`), `"/messages/0/parts/1/url"`},
		{"/api/chat", page(`{"type":"file","mediaType":"image/png","url":"` + image + `"}`), ""},
		{"/agui", agui(`{"type":"document","source":{"type":"url","value":"` + document + `"}}`), `"/messages/0/content/0"`},
		{"/agui", agui(`{"type":"document","source":{"type":"url","mimeType":"application/pdf","value":"` + document + `"}}`), `"/messages/0/content/0"`},
		{"/agui", agui(`{"type":"binary","mimeType":"application/pdf","url":"` + document + `"}`), `"/messages/0/content/0"`},
		{"/agui", agui(`{"type":"image","source":{"type":"url","value":"` + image + `"}}`), ""},
	} {
		before := len(s.Model.Requests())
		resp := s.do(t, "POST", c.path, c.body)
		got := readText(t, resp)
		if c.where == "" && (resp.StatusCode != 200 || !strings.Contains(string(s.Model.Requests()[before].Body), image)) {
			t.Errorf("%s %s: got %s %s, want the model asked with the URL", c.path, c.body, resp.Status, got)
		}
		if c.where != "" && (resp.StatusCode != 400 || !strings.Contains(got, c.where) || len(s.Model.Requests()) > before) {
			t.Errorf("%s %s: got %s %s, want 400 about %s and no question to the model", c.path, c.body, resp.Status, got, c.where)
		}
	}
}

// Each format has its own form for a file.
func TestFilesReachTheModelFromEveryFormat(t *testing.T) {
	t.Parallel()
	const data = "data:text/csv;base64,eCx5"
	for path, body := range map[string]string{
		"/answer":              `{"question":"?","attachments":[{"name":"a.csv","media_type":"text/csv","data":"eCx5"}]}`,
		"/v1/chat/completions": `{"model":"scripted","messages":[{"role":"user","content":[{"type":"text","text":"?"},{"type":"file","file":{"filename":"a.csv","file_data":"` + data + `"}}]}]}`,
		"/v1/responses":        `{"model":"scripted","input":[{"role":"user","content":[{"type":"input_text","text":"?"},{"type":"input_file","filename":"a.csv","file_data":"` + data + `"}]}]}`,
		"/api/chat":            `{"id":"thr_a","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"?"},{"type":"file","mediaType":"text/csv","filename":"a.csv","url":"` + data + `"}]}]}`,
		"/agui":                `{"threadId":"t","runId":"r","state":{},"tools":[],"context":[],"forwardedProps":{},"messages":[{"id":"m","role":"user","content":[{"type":"text","text":"?"},{"type":"binary","mimeType":"text/csv","filename":"a.csv","data":"eCx5"}]}]}`,
	} {
		s := newService(t, modelWithAnswers("!"), nil, nil)
		readText(t, s.do(t, "POST", path, body))
		if len(s.Model.Requests()) != 1 {
			t.Errorf("%s: the model got %d requests, want 1", path, len(s.Model.Requests()))
			continue
		}
		messages := s.Model.Requests()[0].Messages
		if got, want := messages[len(messages)-1].Content, "?\n\nAttachment a.csv:\n```\nx,y\n```"; got != want {
			t.Errorf("%s: the model got %q, want %q", path, got, want)
		}
	}
}

// readText returns the body of a response.
func readText(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The pointer of an error leads to the member of the body that has the schema.
func TestUnusableSchemaIsNamedWithItsPlace(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("Hi.")), nil, nil)
	const options = `"answerd":{"output_schema":{"type":5}}`
	for path, c := range map[string]struct{ body, want string }{
		"/api/chat": {`{"id":"c","messages":[{"id":"1","role":"user","parts":[{"type":"text","text":"x"}]}],` + options + `}`, "/answerd/output_schema"},
		"/agui":     {`{"threadId":"t","runId":"r","messages":[{"role":"user","content":"x"}],"forwardedProps":{` + options + `}}`, "/forwardedProps/answerd/output_schema"},
	} {
		p := decodeResponse[problem](t, s.do(t, "POST", path, c.body), 400)
		if len(p.Errors) != 1 || p.Errors[0].Pointer != c.want {
			t.Errorf("%s: got the errors %+v, want one at %s", path, p.Errors, c.want)
		}
	}
}
