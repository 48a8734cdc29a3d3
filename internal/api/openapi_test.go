package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	contract "answerd/api"
	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/api/mcptool"
	"answerd/internal/api/native"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/sse"
)

func TestRoutesAreInTheDocumentAndViceVersa(t *testing.T) {
	documented := document().operations()
	routes := make(map[string]bool)
	h := New(Options{Metrics: http.NotFoundHandler(), Console: http.NotFoundHandler()})
	err := chi.Walk(h.routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if method == http.MethodHead {
			return nil // what GET says, without the body
		}
		name := method + " " + strings.Replace(route, "*", "{file}", 1) // OpenAPI has no wildcards
		routes[name] = true
		if documented[name] == nil {
			t.Errorf("%s is not in the document, want one", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range documented {
		if !routes[name] {
			t.Errorf("%s is no route, want one", name)
		}
	}
}

// Issue 21, criterion 3: clients of the native API are generated from one document, which has
// nothing of the other formats.
func TestNativeDocumentNeedsNoOther(t *testing.T) {
	native := documents()["openapi.yaml"]
	walkObjects("#", native, func(at string, o object) {
		if ref, ok := o["$ref"].(string); ok && !strings.HasPrefix(ref, "#/") {
			t.Errorf("%s refers to %s, want a reference within the document", at, ref)
		}
	})
	for path := range native["paths"].(object) {
		for _, other := range []string{"/v1/", "/api/", "/agui", "/mcp"} {
			if strings.HasPrefix(path, other) {
				t.Errorf("%s is in the native document, want it in that of its format", path)
			}
		}
	}
	if len(documents()) != 6 {
		t.Errorf("%d documents, want the native one, 4 of other formats and the webhooks", len(documents()))
	}
}

// Constructs that generators fail on, so that an edit shows it before make generators does.
func TestNativeDocumentHasNothingThatGeneratorsFailOn(t *testing.T) {
	native := documents()["openapi.yaml"]
	components := native["components"].(object)
	schemas := components["schemas"].(object)
	for name := range components["parameters"].(object) {
		if schemas[name] != nil {
			t.Errorf("%s is a parameter and a schema, want two names: oapi-codegen makes types of both", name)
		}
	}
	walkObjects("#/components", components, func(at string, o object) {
		if list, ok := o["type"].([]any); ok {
			t.Errorf("%s has the types %v, want one", at, list)
		}
		if o["const"] != nil && o["type"] == nil {
			t.Errorf("%s has a const and no type, want both", at)
		}
		if (o["oneOf"] != nil || o["anyOf"] != nil) && o["discriminator"] == nil {
			t.Errorf("%s is one of several schemas without a discriminator, want one", at)
		}
		if properties, ok := o["properties"].(object); ok {
			for name, p := range properties {
				if p, ok := p.(object); ok && p["default"] != nil {
					t.Errorf("%s/%s has a default, want it in the description: openapi-typescript makes the member required", at, name)
				}
			}
		}
	})
	for name := range schemas {
		if schema := schemas[name].(object); schema["default"] != nil {
			t.Errorf("%s has a default, want it in the description", name)
		}
	}
	owner := make(map[string]string) // the Go client has the values of all named enums in one package
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		schema := schemas[name].(object)
		values, _ := schema["enum"].([]any)
		if names, ok := schema["x-enum-varnames"].([]any); ok {
			if len(names) != len(values) {
				t.Errorf("%s has %d names of values, want %d", name, len(names), len(values))
			}
			values = names
		}
		for _, v := range values {
			key := strings.ToUpper(v.(string))
			if owner[key] != "" {
				t.Errorf("%s and %s both have the value %s, want x-enum-varnames on one of them", owner[key], name, key)
			}
			owner[key] = name
		}
	}
}

func TestExamplesMatchTheirSchemas(t *testing.T) {
	d, count := document(), 0
	check := func(at string, schema, example any) {
		count++
		if err := d.validate(schema, example); err != nil {
			t.Errorf("%s: %v\n%v, want no error", at, err, example)
		}
	}
	walkObjects("#", d.root, func(at string, o object) {
		if list, ok := o["examples"].([]any); ok { // of a schema
			for _, example := range list {
				check(at, o, example)
			}
		}
		schema, ok := o["schema"].(object) // of a parameter, a header or a body
		if !ok {
			return
		}
		if example := o["example"]; example != nil {
			check(at, schema, example)
		}
		named, _ := o["examples"].(object)
		for name, example := range named {
			check(at+"/"+name, schema, example.(object)["value"])
		}
	})
	if count < 100 {
		t.Errorf("only %d examples were found, want at least 100", count)
	}
}

// checkFrames reads a stream and checks each frame: its event against the schema, and
// its fields against its event.
func checkFrames(t *testing.T, stream io.Reader) (count int) {
	t.Helper()
	for r := sse.NewReader(stream, 1<<20); ; count++ {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			return count
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := document().validate(componentRef("Event"), json.RawMessage(f.Data)); err != nil {
			t.Errorf("%s: %v", f.Data, err)
		}
		var e struct {
			Type  string
			RunID string `json:"run_id"`
			Seq   int64
		}
		if err := json.Unmarshal(f.Data, &e); err != nil {
			t.Fatal(err)
		}
		if f.Event != e.Type || f.ID != e.RunID+":"+strconv.FormatInt(e.Seq, 10) {
			t.Errorf("the frame of %s is %s, %s, want the event's type and ID", f.Data, f.Event, f.ID)
		}
	}
}

func TestExamplesOfStreamsAreFramesOfEvents(t *testing.T) {
	for name, want := range map[string]int{"fromTheStart": 9, "resumed": 4, "heartbeat": 0} {
		example := document().objectAt("components", "responses", "EventStream", "content", "text/event-stream", "examples", name)
		if n := checkFrames(t, strings.NewReader(example["value"].(string))); n != want {
			t.Errorf("%s has %d frames, want %d", name, n, want)
		}
	}
}

func TestAnswersAndStatesOfRunsMatchTheirSchemas(t *testing.T) {
	d := document()
	d.checkShape(t, "Answer", reflect.TypeFor[native.Answer](), componentRef("Answer"))
	d.checkShape(t, "Status", reflect.TypeFor[native.Status](), componentRef("Status"))
	d.checkShape(t, "RunList", reflect.TypeFor[native.RunList](), componentRef("RunList"))
	d.checkShape(t, "Problem", reflect.TypeFor[problem](), componentRef("Problem"))
	d.checkShape(t, "Tool", reflect.TypeFor[catalog.Tool](), componentRef("Tool"))
	d.checkShape(t, "Prompt", reflect.TypeFor[mcp.Prompt](), componentRef("Prompt"))
	d.checkShape(t, "ToolCall", reflect.TypeFor[struct {
		Args     json.RawMessage   `json:"args,omitempty"`
		Context  map[string]string `json:"context,omitempty"`
		Approved bool              `json:"approved,omitempty"`
	}](), componentRef("ToolCall"))
	d.checkShape(t, "ToolResult", reflect.TypeFor[event.ToolResult](), componentRef("ToolResult"))
	d.checkShape(t, "CallResult", reflect.TypeFor[agent.Result](), componentRef("CallResult"))
	d.checkShape(t, "ServerStatus", reflect.TypeFor[mcp.ServerStatus](), componentRef("ServerStatus"))
	states := make(map[string]bool)
	for _, b := range sampleBodies() {
		run := event.Run{ID: "run_a", ThreadID: "thr_a", TraceID: strings.Repeat("0a", 16), Created: time.Now(), Last: storeEvent(t, b)}
		s := (&Handler{}).runStatus(run)
		states[string(s.Status)] = true
		if err := d.validate(componentRef("Status"), s); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
		if end, ok := b.(event.FinalAnswer); ok {
			if err := d.validate(componentRef("Answer"), native.NewAnswer(run, end)); err != nil {
				t.Error(err)
			}
		}
	}
	if len(states) != 5 {
		t.Errorf("states %v, want 5", states)
	}
}

func TestProblemCodesAreInTheDocumentWithTheirMeaning(t *testing.T) {
	d := document()
	listed := d.objectAt("components", "schemas", "ProblemCode")["enum"].([]any)
	shown := make(map[string]bool)
	for name, operation := range d.operations() {
		for status, response := range operation["responses"].(object) {
			content, _ := d.resolveRef(response)["content"].(object)
			body, _ := content["application/problem+json"].(object)
			examples, _ := body["examples"].(object)
			for _, example := range examples {
				p := example.(object)["value"].(object)
				code := p["code"].(string)
				shown[code] = true
				k := problemKinds[code]
				if p["status"] != float64(k.status) || p["title"] != k.title || status != strconv.Itoa(k.status) {
					t.Errorf("%s %s: the example is %v, want %v", name, status, p, k)
				}
			}
		}
	}
	for code := range problemKinds {
		if !slices.Contains(listed, any(code)) || !shown[code] {
			t.Errorf("%s is not in the document, or has no example, want both", code)
		}
	}
	if len(listed) != len(problemKinds) {
		t.Errorf("%d codes in the document, %d in the code, want %d", len(listed), len(problemKinds), len(problemKinds))
	}
}

func TestQuestionHasTheFieldsThatAreRead(t *testing.T) {
	d := document()
	properties := d.flatten(componentRef("Question"))["properties"].(object)
	body := make(object)
	for name, p := range properties {
		body[name] = p.(object)["examples"].([]any)[0]
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	request, err := native.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	fields := fieldsOf(reflect.TypeFor[agent.Request]())
	delete(fields, "idempotency_key") // of a header
	delete(fields, "fingerprint")
	delete(fields, "interactive")  // follows from the endpoint, as awaited does
	delete(fields, "ask_at_limit") // on_limit of the budget
	fields["attachments"] = fields["media"]
	for _, name := range []string{"awaited", "media", "only_accepted_media", "sampling", "max_tokens", "client_tools", "server_tools", "allowed_tools", "forced_tool", "forms_declined", "approvals_declined", "record", "hops", "continue_thread", "keep_history", "after_run"} {
		delete(fields, name) // of other formats
	}
	checkSameKeys(t, "Question", fields, properties)
	var tool object
	if err := json.Unmarshal(mcptool.InputSchema, &tool); err != nil {
		t.Fatal(err)
	}
	asked := tool["properties"].(object)
	for _, name := range []string{"budget", "prompt"} {
		documented := maps.Clone(d.flatten(d.flatten(properties[name]))["properties"].(object))
		delete(documented, "on_limit") // a host is not asked for more
		checkSameKeys(t, "the tool's "+name, asked[name].(object)["properties"].(object), documented)
	}
	asked["background"], asked["callback"] = nil, nil // a call has a result
	checkSameKeys(t, "the tool", asked, properties)
	limits := fieldsOf(reflect.TypeFor[agent.Budget]())
	limits["on_limit"] = limits["seconds"] // of the request: the operator has none
	checkSameKeys(t, "Question/budget", limits, d.flatten(componentRef("Limits"))["properties"].(object))
	checkSameKeys(t, "Question/prompt", fieldsOf(reflect.TypeFor[agent.ServerPrompt]()), d.flatten(componentRef("ServerPrompt"))["properties"].(object))
	message := fieldsOf(reflect.TypeFor[agent.Message]())
	for _, name := range []string{"media", "calls", "call_id"} {
		delete(message, name)
	}
	checkSameKeys(t, "Question/history/0", message, d.flatten(componentRef("Message"))["properties"].(object))
	for _, f := range reflect.VisibleFields(reflect.TypeFor[agent.Request]()) {
		if _, ok := fields[snakeCase(f.Name)]; ok && reflect.ValueOf(request).FieldByIndex(f.Index).IsZero() {
			t.Errorf("%s was not read from %s, want a value", f.Name, text)
		}
	}
}

func checkSameKeys[A, B any](t *testing.T, at string, code map[string]A, documented map[string]B) {
	t.Helper()
	in, out := slices.Sorted(maps.Keys(code)), slices.Sorted(maps.Keys(documented))
	if !slices.Equal(in, out) {
		t.Errorf("%s: the code has %v, the document %v, want %s", at, in, out, out)
	}
}

func TestDocumentRefusesTheBodiesThatAreRefused(t *testing.T) {
	items := func(n int, item string) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }
	pairs := func(n int) string {
		var b bytes.Buffer
		for i := range n {
			fmt.Fprintf(&b, `,"k%d":"v"`, i)
		}
		return "{" + strings.TrimPrefix(b.String(), ",") + "}"
	}
	long := func(n int) string { return `"` + strings.Repeat("語", n) + `"` } // maxLength counts characters, not bytes
	turn := `{"role":"user","content":""}`
	for field, values := range map[string]struct{ good, bad []string }{
		"question":    {[]string{`"?"`}, []string{`""`, `" \t"`, `1`, `null`}},
		"nope":        {nil, []string{`1`}},
		"history":     {[]string{`[]`, items(1024, turn)}, []string{`{}`, items(1025, turn), `[1]`, `[{"role":"user"}]`, `[{"role":"u","content":"","x":1}]`}},
		"model":       {[]string{`""`, long(256)}, []string{long(257), `null`}},
		"tool_choice": {[]string{`"auto"`, `"none"`, `"required"`}, []string{`""`, `"any"`}},
		"servers":     {[]string{`[]`}, []string{`"a"`, `[""]`, `[1]`}},
		"tools":       {[]string{items(256, long(128))}, []string{items(257, `"a"`), `[` + long(129) + `]`}},
		"max_turns":   {[]string{`1`, `2147483647`}, []string{`0`, `-1`, `1.5`, `2147483648`, `"1"`}},
		"budget":      {[]string{`{}`, `{"tool_calls":1,"total_tokens":1,"seconds":0.5}`, `{"seconds":86400}`, `{"input_tokens":1,"output_tokens":1,"result_bytes":1,"cost":0.001}`}, []string{`1`, `{"input_tokens":0}`, `{"output_tokens":1.5}`, `{"result_bytes":0}`, `{"cost":0}`, `{"cost":1e10}`, `{"tool_calls":0}`, `{"total_tokens":0.5}`, `{"seconds":0}`, `{"seconds":86401}`, `{"x":1}`}},
		"context":     {[]string{`{}`, pairs(32), `{"a":` + long(1024) + `}`, `{` + long(64) + `:""}`}, []string{pairs(33), `{"a":1}`, `{"":"v"}`, `{` + long(65) + `:""}`, `{"a":` + long(1025) + `}`}},
		"prompt":      {[]string{`{"server":"a","name":"p"}`, `{"server":"a","name":"p","arguments":{"k":"v"}}`}, []string{`{}`, `null`, `{"server":"a"}`, `{"server":"","name":"p"}`, `{"server":"a","name":1}`, `{"server":"a","name":"p","x":1}`, `{"server":"a","name":"p","arguments":{"k":1}}`}},
		"thread_id":   {[]string{`"` + strings.Repeat("x", 128) + `"`, `"!~"`}, []string{`""`, long(129), `"a b"`, `"é"`}},
		"metadata":    {[]string{pairs(1)}, []string{`[]`}},
		"background":  {[]string{`true`, `false`}, []string{`"true"`, `0`}},
	} {
		for _, value := range append(values.good, values.bad...) {
			body := `{"question":"?","` + field + `":` + value + `}`
			if field == "question" {
				body = `{"question":` + value + `}`
			}
			_, decoded := native.Decode([]byte(body))
			checked := document().validate(componentRef("Question"), json.RawMessage(body))
			want := slices.Contains(values.good, value)
			if (decoded == nil) != want || (checked == nil) != want {
				t.Errorf("%.80s should be good: %t; Decode says %v, the document %v", body, want, decoded, checked)
			}
		}
	}
}

func TestQueryHasTheParametersThatAreRead(t *testing.T) {
	d := document()
	documented := make(map[string]bool)
	for _, p := range d.operations()["GET /answer/stream"]["parameters"].([]any) {
		if p := d.resolveRef(p); p["in"] == "query" {
			documented[p["name"].(string)] = true
		}
	}
	if !documented["question"] {
		t.Fatal(`no parameters were found: documented["question"] false, want true`)
	}
	for name := range d.flatten(componentRef("Question"))["properties"].(object) {
		_, _, err := native.DecodeQuery(url.Values{"question": {"?"}, name: {"1"}})
		if known := err == nil || !strings.Contains(err.Error(), "unknown parameter"); known != documented[name] {
			t.Errorf("%s: documented is %t, and DecodeQuery says %v, known %v, want %v", name, documented[name], err, known, documented[name])
		}
	}
}

// Each response to a real request is one of the responses of the document.
func TestServiceAnswersAsDocumented(t *testing.T) {
	fixture := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("It is ", "3.")), nil)
	web := httptest.NewServer(New(Options{Agent: fixture.Agent, Log: fixture.Log, AllowedHosts: []string{"127.0.0.1"}, OpenAPI: contract.OpenAPI}))
	t.Cleanup(web.Close)
	run := fixture.StartRun(t, agent.Request{})
	fixture.Events(t, run.ID)
	const ask = `{"question":"What is 1 + 2?"}`
	for _, c := range []struct {
		route, path, body, header, value string
		status                           int
	}{
		{route: "POST /answer", body: ask, status: 200},
		{route: "POST /answer", body: `{"question":"?","background":true}`, status: 202},
		{route: "POST /answer", body: `{"qestion":"?"}`, status: 400},
		{route: "POST /answer", body: ask, header: "Origin", value: "https://example.com", status: 403},
		{route: "POST /answer", body: ask, header: "Accept", value: "text/html", status: 406},
		{route: "POST /answer", body: ask, header: "Content-Type", value: "text/plain", status: 415},
		{route: "POST /answer/stream", body: ask, status: 200},
		{route: "POST /answer/stream", body: ask, header: "Last-Event-ID", value: "run_none:1", status: 404},
		{route: "GET /answer/stream", path: "/answer/stream?question=x", status: 200},
		{route: "GET /runs/{run_id}", path: "/runs/" + run.ID, status: 200},
		{route: "GET /runs/{run_id}", path: "/runs/run_none", status: 404},
		{route: "GET /runs/{run_id}/events", path: "/runs/" + run.ID + "/events", status: 200},
		{route: "GET /runs/{run_id}/events", path: "/runs/" + run.ID + "/events?after=999", status: 400},
		{route: "GET /runs/{run_id}/results/{call_id}", path: "/runs/" + run.ID + "/results/call_1", status: 200},
		{route: "GET /runs/{run_id}/results/{call_id}", path: "/runs/" + run.ID + "/results/call_2", status: 404},
		{route: "POST /runs/{run_id}/input", path: "/runs/" + run.ID + "/input", body: `{"id":"int_none","action":"cancel"}`, status: 404},
		{route: "POST /runs/{run_id}/input", path: "/runs/" + run.ID + "/input", body: `{"id":"int_none"}`, status: 400},
		{route: "POST /runs/{run_id}/cancel", path: "/runs/" + run.ID + "/cancel", status: 200},
		{route: "GET /runs", status: 200},
		{route: "GET /runs", path: "/runs?status=open", status: 400},
		{route: "DELETE /runs/{run_id}", path: "/runs/run_none", status: 404},
		{route: "GET /tools", status: 200},
		{route: "POST /tools/{name}/call", path: "/tools/add/call", body: `{"args":{"a":1,"b":2}}`, status: 200},
		{route: "POST /tools/{name}/call", path: "/tools/add/call", body: `{"arguments":{}}`, status: 400},
		{route: "POST /tools/{name}/call", path: "/tools/none/call", body: `{}`, status: 404},
		{route: "POST /tools/{name}/call", path: "/tools/add/call", body: `{"args":{"a":"` + strings.Repeat("x", 64<<10) + `"}}`, status: 422},
		{route: "POST /tools/{name}/call", path: "/tools/fail/call", body: `{}`, status: 502},
		{route: "GET /agents", status: 200},
		{route: "GET /agents/{id}", path: "/agents/default", status: 200},
		{route: "GET /agents/{id}", path: "/agents/none", status: 404},
		{route: "GET /servers", status: 200},
		{route: "POST /servers/{name}/refresh", path: "/servers/default/refresh", status: 200},
		{route: "POST /servers/{name}/refresh", path: "/servers/none/refresh", status: 404},
		{route: "GET /servers/{name}/prompts", path: "/servers/default/prompts", status: 200},
		{route: "GET /servers/{name}/prompts", path: "/servers/none/prompts", status: 404},
		{route: "DELETE /servers/{name}/sign-in", path: "/servers/default/sign-in", status: 404},
		{route: "POST /v1/chat/completions", body: `{"messages":[{"role":"user","content":"What is 1 + 2?"}]}`, status: 200},
		{route: "POST /v1/chat/completions", body: `{"messages":[]}`, status: 400},
		{route: "GET /v1/models", status: 200},
		{route: "POST /v1/responses", body: `{"input":"What is 1 + 2?"}`, status: 200},
		{route: "POST /v1/responses", body: `{"input":[]}`, status: 400},
		{route: "GET /v1/responses/{response_id}", path: "/v1/responses/resp_none", status: 404},
		{route: "POST /v1/responses/{response_id}/cancel", path: "/v1/responses/resp_none/cancel", status: 404},
		{route: "GET /healthz", status: 200},
		{route: "GET /readyz", status: 200},
		{route: "GET /openapi.yaml", status: 200}, {route: "GET /openapi/{file}", path: "/openapi/eval.schema.json", status: 200},
	} {
		method, path, _ := strings.Cut(c.route, " ")
		if c.path != "" {
			path = c.path
		}
		req, err := http.NewRequestWithContext(t.Context(), method, web.URL+path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if c.header != "" {
			req.Header.Set(c.header, c.value)
		}
		checkConforms(t, web.Client(), req, c.route, c.status)
	}
}

func checkConforms(t *testing.T, client *http.Client, req *http.Request, route string, status int) {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	d := document()
	response := d.resolveRef(d.operations()[route]["responses"].(object)[strconv.Itoa(resp.StatusCode)])
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	content, _ := response["content"].(object)
	media, ok := content[kind].(object)
	if resp.StatusCode != status || !ok {
		t.Fatalf("%s: %d %s, want a documented %d", route, resp.StatusCode, kind, status)
	}
	headers, _ := response["headers"].(object)
	for name := range headers {
		if d.resolveRef(headers[name])["required"] == true && resp.Header.Get(name) == "" {
			t.Errorf("%s: %d without %s, want Header.Get(name) non-empty", route, status, name)
		}
	}
	switch kind {
	case "application/json", "application/problem+json":
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.validate(media["schema"], json.RawMessage(body)); err != nil {
			t.Errorf("%s: %s: %v", route, body, err)
		}
	case "text/event-stream":
		if checkFrames(t, resp.Body) == 0 {
			t.Errorf("%s: no events, want at least 1", route)
		}
	}
}
