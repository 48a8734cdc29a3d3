package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/llm/llmtest"
)

// apiFormat is one way to ask a question.
type apiFormat struct {
	name, path string
	body       string // asks the question QUESTION with the native fields OPTIONS
	stream     bool
}

// questionBody returns the body that asks question, with native fields as members of an object, each
// with a comma before it.
func (d apiFormat) questionBody(question, options string) string {
	if d.path == "/answer" || d.path == "/answer/stream" {
		return strings.NewReplacer("QUESTION", question, "OPTIONS", options).Replace(d.body)
	}
	return strings.NewReplacer("QUESTION", question, "OPTIONS", strings.TrimPrefix(options, ",")).Replace(d.body)
}

// formats has all API formats. The middleware before them is the same.
var formats = []apiFormat{
	{"native", "/answer", `{"question":"QUESTION"OPTIONS}`, false},
	{"native stream", "/answer/stream", `{"question":"QUESTION"OPTIONS}`, true},
	{"chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"QUESTION"}],"answerd":{OPTIONS}}`, false},
	{"chat stream", "/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"QUESTION"}],"answerd":{OPTIONS}}`, true},
	{"responses", "/v1/responses", `{"input":"QUESTION","answerd":{OPTIONS}}`, false},
	{"responses stream", "/v1/responses", `{"stream":true,"input":"QUESTION","answerd":{OPTIONS}}`, true},
	{"AI SDK", "/api/chat", `{"id":"t","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"QUESTION"}]}],"answerd":{OPTIONS}}`, true},
	{"AG-UI", "/agui", `{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"QUESTION"}],"forwardedProps":{"answerd":{OPTIONS}}}`, true},
}

// wantRefusal checks that resp refuses in the error shape of the format.
func (d apiFormat) wantRefusal(t *testing.T, resp *http.Response, status int, code string) {
	t.Helper()
	if !strings.HasPrefix(d.path, "/v1/") {
		wantProblem(t, resp, status, code)
		return
	}
	if e := decodeResponse[openAIError](t, resp, status); e.Error.Code != code || e.Error.Message == "" || e.Error.Type == "" || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("error %+v, Content-Type %q, want Error.Code %q, Error.Message non-empty, Error.Type non-empty, Content-Type application/json", e, resp.Header.Get("Content-Type"), code)
	}
}

// boundedContext returns a context that ends before the time limit of the test.
func boundedContext(t *testing.T) context.Context {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(stop)
	return ctx
}

// readBody returns the whole body of a response, which must not be a refusal.
func readBody(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("status %s %s, %v, want status 200, no error", resp.Status, b, err)
	}
	return string(b)
}

// newestRun is the run that was started last.
func newestRun(t *testing.T, s *service, header ...string) string {
	t.Helper()
	list := decodeResponse[struct {
		Runs []struct {
			ID string `json:"run_id"`
		}
	}](t, s.do(t, "GET", "/runs?limit=1", "", header...), 200)
	if len(list.Runs) == 0 {
		t.Fatalf("there is no run: %d Runs, want non-zero", len(list.Runs))
	}
	return list.Runs[0].ID
}

func TestFormatsRequireATokenAlike(t *testing.T) {
	t.Parallel()
	iam := newMint(t)
	v := iam.newVerifier(t, nil)

	const page = "https://ui.example"
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Verifier, o.CORSOrigins, o.MaxBody = v, []string{page}, 4<<10 })
	ada, eve := iam.bearerToken("ada"), iam.bearerToken("eve")
	for _, d := range formats {
		t.Run(d.name, func(t *testing.T) {
			body := d.questionBody("What is 1 + 2?", "")
			before := len(s.Model.Requests())
			resp := s.do(t, "POST", d.path, body)
			d.wantRefusal(t, resp, 401, "unauthenticated")
			if resp.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("WWW-Authenticate %q, want non-empty", resp.Header.Get("WWW-Authenticate"))
			}
			d.wantRefusal(t, s.do(t, "POST", d.path, body, "Authorization", "Bearer x.y.z"), 401, "unauthenticated")
			d.wantRefusal(t, s.do(t, "POST", d.path, body, "Authorization", ada, "Origin", "https://evil.example"), 403, "forbidden")
			d.wantRefusal(t, s.do(t, "POST", d.path, d.questionBody(strings.Repeat("x", 5<<10), ""), "Authorization", ada), 413, "too_large")
			d.wantRefusal(t, s.do(t, "POST", d.path, body, "Authorization", ada, "Content-Type", "text/plain"), 415, "unsupported_media")
			d.wantRefusal(t, s.do(t, "POST", d.path, body, "Authorization", ada, "Idempotency-Key", strings.Repeat("k", 256)), 400, "invalid_request")
			d.wantRefusal(t, s.do(t, "DELETE", d.path, "", "Authorization", ada), 405, "method_not_allowed")
			if n := len(s.Model.Requests()); n != before {
				t.Errorf("%d model requests of those that were turned away, want 0", n-before)
			}

			preflight := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type,idempotency-key"}
			resp = s.do(t, "OPTIONS", d.path, "", append(preflight, "Origin", page)...)
			if h := resp.Header; resp.StatusCode != 204 || h.Get("Access-Control-Allow-Origin") != page || !strings.Contains(h.Get("Access-Control-Allow-Headers"), "Idempotency-Key") {
				t.Errorf("preflight: %s %v, want status 204, Access-Control-Allow-Origin %s, Access-Control-Allow-Headers containing Idempotency-Key", resp.Status, h, page)
			}
			d.wantRefusal(t, s.do(t, "OPTIONS", d.path, "", append(preflight, "Origin", "https://evil.example")...), 403, "forbidden")
			resp = s.doContext(boundedContext(t), t, "POST", d.path, body, "Authorization", ada, "Origin", page)
			if readBody(t, resp); resp.Header.Get("Access-Control-Allow-Origin") != page {
				t.Errorf(`header %v, want Get("Access-Control-Allow-Origin") %q`, resp.Header, page)
			}
			// The result belongs to its owner, in the native format too.
			run := newestRun(t, s, "Authorization", ada)
			wantProblem(t, s.do(t, "GET", "/runs/"+run, "", "Authorization", eve), 404, "not_found")
			wantProblem(t, s.do(t, "GET", "/runs/"+run+"/events", "", "Authorization", eve), 404, "not_found")
			wantProblem(t, s.do(t, "POST", "/runs/"+run+"/cancel", "", "Authorization", eve), 404, "not_found")
		})
	}
}

// F38: a request that is repeated is answered again, and not run again.
func TestFormatsTakeARepeatedRequestForTheSameRun(t *testing.T) {
	t.Parallel()
	for _, d := range formats {
		t.Run(d.name, func(t *testing.T) {
			s := newService(t, addingModel(), nil, nil)
			first := readBody(t, s.doContext(boundedContext(t), t, "POST", d.path, d.questionBody("What is 1 + 2?", ""), "Idempotency-Key", "k"))
			again := readBody(t, s.doContext(boundedContext(t), t, "POST", d.path, d.questionBody("What is 1 + 2?", ""), "Idempotency-Key", "k"))
			if first != again {
				t.Errorf("first\n%s\nagain\n%s, want %s", first, again, again)
			}
			d.wantRefusal(t, s.do(t, "POST", d.path, d.questionBody("What is 2 + 2?", ""), "Idempotency-Key", "k"), 422, "unprocessable")
			if n := len(s.Model.Requests()); n != 2 {
				t.Errorf("%d model requests, want 2", n)
			}
		})
	}
}

func TestFormatsRefuseRunsBeyondTheLimit(t *testing.T) {
	t.Parallel()
	for _, d := range formats {
		t.Run(d.name, func(t *testing.T) {
			open := make(chan struct{})
			s := newService(t, waitingModel(open), func(o *agent.Options) { o.MaxRuns = 1 }, nil)
			begun := s.doContext(boundedContext(t), t, "POST", "/answer/stream", question)
			readFrames(t, begun, "text_delta")
			s.fillQueue(t)
			resp := s.do(t, "POST", d.path, d.questionBody("And?", ""))
			if d.wantRefusal(t, resp, 503, "overloaded"); resp.Header.Get("Retry-After") == "" {
				t.Errorf("Retry-After %q, want non-empty", resp.Header.Get("Retry-After"))
			}

			over, stop := context.WithCancel(t.Context())
			stop()
			s.Drain(over)
			resp = s.do(t, "POST", d.path, d.questionBody("And?", ""))
			if d.wantRefusal(t, resp, 503, "draining"); resp.Header.Get("Retry-After") == "" {
				t.Errorf("Retry-After %q, want non-empty", resp.Header.Get("Retry-After"))
			}
		})
	}
}

// One way to end a run, and one to read it again, for the runs of every apiFormat.
func TestFormatsStartRunsThatNativeRoutesReadAndCancel(t *testing.T) {
	t.Parallel()
	for _, d := range formats {
		t.Run(d.name, func(t *testing.T) {
			s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"})), nil, nil)
			told := make(chan string, 1)
			go func() {
				defer close(told)
				resp, err := s.Client().Post(s.URL+d.path, "application/json", strings.NewReader(d.questionBody("Wait.", "")))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				b, _ := io.ReadAll(resp.Body)
				told <- resp.Status + " " + string(b)
			}()

			select {
			case <-s.Tools.Entered:
			case <-boundedContext(t).Done():
				t.Fatal("the tool was not called, want one call")
			}

			run := newestRun(t, s)
			reader := s.doContext(boundedContext(t), t, "GET", "/runs/"+run+"/events", "", "Last-Event-ID", run+":2")
			seen := readFrames(t, reader, "tool_call")
			if seen[0].ID != run+":3" {
				t.Errorf("begins with %s, want %s", seen[0].ID, run+":3")
			}
			status := decodeResponse[struct{ Status string }](t, s.do(t, "POST", "/runs/"+run+"/cancel", ""), 200)
			if rest := eventNames(readFrames(t, reader, "")); status.Status != "cancelled" || !strings.HasSuffix(rest, "cancelled") {
				t.Errorf("%s, and then %s, want Status cancelled, rest ending in cancelled", status.Status, rest)
			}
			got := <-told

			want := map[string]string{
				"native": "409", "native stream": "event: cancelled", "chat": "409", "chat stream": "data: [DONE]", "responses": `"status":"cancelled"`,
				"responses stream": `"status":"cancelled"`, "AI SDK": `{"type":"abort"}`, "AG-UI": `"code":"cancelled"`,
			}[d.name]
			if !strings.Contains(got, want) {
				t.Errorf("the caller was told %s, want it to contain %s", got, want)
			}
		})
	}
}

func TestFormatsApplyTheBudget(t *testing.T) {
	t.Parallel()
	for _, d := range formats {
		t.Run(d.name, func(t *testing.T) {
			add := llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}
			s := newService(t, llmtest.Turns(llmtest.Calls(add), llmtest.Calls(add), llmtest.Calls(add), llmtest.Says("So far.")), nil, nil)
			resp := s.doContext(boundedContext(t), t, "POST", d.path, d.questionBody("Add.", `,"budget":{"tool_calls":1}`))
			_, _ = io.ReadAll(resp.Body)
			if n := s.Tools.CallCounts()["add"]; n != 1 {
				t.Errorf("%d calls, want 1", n)
			}
			all := readBody(t, s.do(t, "GET", "/runs/"+newestRun(t, s)+"/events", ""))
			if !strings.Contains(all, "event: budget") {
				t.Errorf(`nothing says that the budget is used up: all %q, want it to contain "event: budget"`, all)
			}
			bad := s.do(t, "POST", d.path, d.questionBody("Add.", `,"budget":{"tool_calls":-1}`))
			d.wantRefusal(t, bad, 400, "invalid_request")
		})
	}
}

// formatBody is a request body of an API format with every member that is read, and the kind of each:
// s text, b bool, n number, l list, o object, * whatever else; * and what is behind it are
// the wrong ones then. A + says that null is wrong, too.
type formatBody struct {
	path, body string
	members    map[string]string
}

var formatBodies = []formatBody{
	{"/v1/chat/completions", `{"model":"m","messages":[{"role":"developer","content":"B\u00e4"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"x","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"a","content":"1"},{"role":"user","content":[{"type":"text","text":"Wh?"},{"type":"image_url","image_url":{"url":"https://x.example/a.png"}},{"type":"input_audio","input_audio":{"data":"UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=","format":"wav"}}]}],
		"stream":false,"stream_options":{"include_usage":true},"n":1,"tools":[{"type":"function","function":{"name":"t","description":"d","parameters":{"type":"object"}}}],"tool_choice":"auto",
		"parallel_tool_calls":true,"max_tokens":500,"max_completion_tokens":5,"temperature":1.5,"top_p":1,"presence_penalty":0,"frequency_penalty":0,"seed":7,"stop":["x"],"reasoning_effort":"low","verbosity":"low","metadata":{"k":"v"},
		"response_format":{"type":"json_schema","json_schema":{"name":"n"}},"logprobs":false,"top_logprobs":0,"logit_bias":{},"modalities":["text"],"answerd":{"max_turns":2}}`,
		map[string]string{
			"model": "s", "messages": "l+", "messages/0": "o+", "messages/0/role": "s+", "messages/0/content": `* true 0 {} [0] [[]] [{}] [{"type":7}]`, "messages/1/tool_calls": "l", "messages/1/tool_calls/0": "o+",
			"messages/1/tool_calls/0/id": "s+", "messages/1/tool_calls/0/function": "o+", "messages/1/tool_calls/0/function/name": "s+", "messages/1/tool_calls/0/function/arguments": "s",
			"messages/2/tool_call_id": "s+", "messages/2/content": "* true 0 {}", "messages/3/content/0": "o+", "messages/3/content/0/text": "s", "messages/3/content/1/image_url": "o+", "messages/3/content/1/image_url/url": "s+",
			"messages/3/content/2/input_audio": "o+", "messages/3/content/2/input_audio/data": "s+", "messages/3/content/2/input_audio/format": "s+", "stream": "b", "stream_options": "o", "stream_options/include_usage": "b",
			"n": "n", "tools": "l", "tools/0": "o+", "tools/0/type": "s+", "tools/0/function": "o+", "tools/0/function/name": "s+", "tools/0/function/description": "s", "tools/0/function/parameters": "o",
			"tool_choice": `* true 0 [] {} "some" {"type":"function"} {"type":"function","function":"t"}`, "parallel_tool_calls": "b", "max_tokens": "n", "max_completion_tokens": "n", "temperature": "n", "top_p": "n",
			"presence_penalty": "n", "frequency_penalty": "n", "seed": "n", "stop": "* true 0 {} [0] [{}]", "reasoning_effort": "s", "verbosity": "s", "metadata": "o", "metadata/k": "* true 0 [] {}", "response_format": "o", "response_format/type": "s+", "response_format/json_schema": "o+",
			"logprobs": "b", "top_logprobs": "n", "logit_bias": "o", "modalities": "l", "answerd": "o", "answerd/max_turns": "n+",
		}},
	{"/v1/responses", `{"model":"m","instructions":"B\u00e4","input":[{"role":"user","content":[{"type":"input_text","text":"Wh?"},{"type":"input_image","image_url":"https://x.example/a.png"}]},
		{"type":"function_call","call_id":"c","name":"x","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"1"},{"type":"message","role":"user","content":"And?"}],
		"stream":false,"stream_options":{"include_obfuscation":false},"background":false,"store":true,"tools":[{"type":"function","name":"t","description":"d","parameters":{"type":"object"},"strict":true},{"type":"mcp","server_label":"default","allowed_tools":["add"]}],
		"tool_choice":"auto","temperature":1.5,"top_p":1,"presence_penalty":0,"frequency_penalty":0,"max_output_tokens":500,"max_tool_calls":5,"parallel_tool_calls":true,"reasoning":{"effort":"low"},
		"text":{"verbosity":"low","format":{"type":"json_schema","name":"n","schema":{}}},"metadata":{"k":"v"},"truncation":"auto","include":["x"],"top_logprobs":0,"safety_identifier":"s","prompt_cache_key":"p","user":"u","answerd":{"max_turns":2}}`,
		map[string]string{
			"model": "s", "instructions": "s", "input": `* null true 0 {} "" " " [] [0] [null] [[]] [{}]`, "input/0/role": "s+", "input/0/content": `* true 0 {} [0] [{}]`, "input/0/content/0/text": "s", "input/0/content/1/image_url": "s+",
			"input/1/type": "s+", "input/1/call_id": "s+", "input/1/name": "s+", "input/1/arguments": "s", "input/2/call_id": "s+", "input/2/output": "* true 0 {} [0]", "input/3/content": "* null true 0 {} []",
			"stream": "b", "stream_options": "o", "background": "b", "store": "b", "tools": "l", "tools/0": "o+", "tools/0/type": "s+", "tools/0/name": "s+", "tools/0/description": "s", "tools/0/parameters": "o",
			"tools/1/server_label": "s+", "tools/1/allowed_tools": `* true 0 "x" [0]`, "tool_choice": `* true 0 [] {} "some" {"type":"function"}`, "temperature": "n", "top_p": "n", "presence_penalty": "n", "frequency_penalty": "n",
			"max_output_tokens": "n", "max_tool_calls": "n", "parallel_tool_calls": "b", "reasoning": "o", "reasoning/effort": "s", "text": "o", "text/verbosity": "s", "text/format": "o", "text/format/type": `* "xml"`,
			"metadata": "o", "metadata/k": "* true 0 [] {}", "truncation": "s", "include": "l", "top_logprobs": "n", "safety_identifier": "s", "prompt_cache_key": "s", "user": "s", "answerd": "o", "answerd/max_turns": "n+",
		}},
	{"/api/chat", `{"id":"t","trigger":"submit-message","messages":[{"id":"s","role":"system","parts":[{"type":"text","text":"B\u00e4"}]},
		{"id":"m","role":"assistant","parts":[{"type":"step-start"},{"type":"tool-x","toolCallId":"c","state":"output-available","input":{},"output":1}]},
		{"id":"u","role":"user","parts":[{"type":"text","text":"Wh?"},{"type":"file","url":"https://x.example/a.png","mediaType":"image/png"}]}],
		"system":"s","tools":[{"name":"t","description":"d","parameters":{"type":"object"}}],"approvals":true,"model":"m","answerd":{"max_turns":2,"budget":{"total_tokens":500,"seconds":1.5}}}`,
		map[string]string{
			"id": "s+", "messages": "l+", "messages/0": "o+", "messages/0/role": "s+", "messages/0/parts": "l", "messages/0/parts/0": "o", "messages/0/parts/0/text": "s", "messages/1/parts/1/toolCallId": "s+",
			"messages/1/parts/1/state": "s", "messages/2/id": "s", "messages/2/parts": "l+", "messages/2/parts/1/url": "s+", "system": "s", "tools": `* true 0 "x" [0] [null] [{}] {"a b":{}}`, "tools/0/name": "s+",
			"tools/0/description": "s", "tools/0/parameters": "o", "approvals": "b", "model": "s", "messageId": "s", "answerd": "o", "answerd/max_turns": "n+", "answerd/budget": "o+",
		}},
	{"/agui", `{"threadId":"t","runId":"r","protocolVersion":"1.0","state":{},"messages":[{"id":"s","role":"developer","content":"B\u00e4"},{"id":"m","role":"assistant","toolCalls":[{"id":"c","type":"function","function":{"name":"x","arguments":"{}"}}]},
		{"id":"o","role":"tool","toolCallId":"c","content":"1"},{"id":"u","role":"user","content":[{"type":"text","text":"Wh?"},{"type":"image","source":{"type":"url","value":"https://x.example/a.png"}}]}],
		"tools":[{"name":"t","description":"d","parameters":{"type":"object"}}],"context":[{"description":"d","value":"v"}],"forwardedProps":{"answerd":{"max_turns":2,"budget":{"total_tokens":500,"seconds":1.5}}}}`,
		map[string]string{
			"threadId": "s+", "runId": "s+", "protocolVersion": "s", "messages": "l+", "messages/0": "o+", "messages/0/role": "s+", "messages/0/content": "* true 0 [0]", "messages/1/toolCalls": "l", "messages/1/toolCalls/0/id": "s+",
			"messages/1/toolCalls/0/function": "o+", "messages/1/toolCalls/0/function/name": "s+", "messages/2/toolCallId": "s+", "messages/3/content": `* null true 0 {} [] "" " " [0] [{}]`, "messages/3/content/1/source": "o+",
			"messages/3/content/1/source/value": "s+", "tools": "l", "tools/0": "o+", "tools/0/name": "s+", "tools/0/parameters": "o", "context": "l", "context/0": "o", "context/0/value": "s",
			"resume": `* true 0 "x" {} [0] [null] [{}] [{"interruptId":"i"}] [{"interruptId":"i","status":"maybe"}] [{"interruptId":7,"status":"resolved"}]`, "forwardedProps/answerd": "o", "forwardedProps/answerd/max_turns": "n+", "forwardedProps/answerd/budget": "o+",
		}},
}

// invalidValues returns values that a member of that kind must not have.
func invalidValues(kind string) []string {
	if list, ok := strings.CutPrefix(kind, "* "); ok {
		var out []string
		for dec := json.NewDecoder(strings.NewReader(list)); dec.More(); {
			var v json.RawMessage
			if err := dec.Decode(&v); err != nil {
				panic(err)
			}
			out = append(out, string(v))
		}
		return out
	}
	all := map[byte]string{'s': `"\u0000 x"`, 'b': "true", 'n': "-1.5", 'l': "[]", 'o': "{}"}
	if kind[0] != 's' {
		all['s'] = `"x"`
	} else {
		delete(all, 's')
	}
	delete(all, kind[0])
	out := []string{}
	for _, v := range all {
		out = append(out, v)
	}
	if kind[0] == 'n' {
		out = append(out, "1e400")
	}
	if strings.HasSuffix(kind, "+") {
		out = append(out, "null")
	}
	return out
}

// withValueAt returns a copy of whole with value at path.
func withValueAt(t *testing.T, whole any, path []string, value json.RawMessage) any {
	if len(path) == 0 {
		return value
	}
	switch v := whole.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, member := range v {
			out[name] = member
		}
		out[path[0]] = withValueAt(t, v[path[0]], path[1:], value)
		return out
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(v) {
			t.Fatalf("the whole request has no %v, want index %s of %d", path, path[0], len(v))
		}
		out := slices.Clone(v)
		out[i] = withValueAt(t, v[i], path[1:], value)
		return out
	}
	t.Fatalf("the whole request has no %v, want one", path)
	return nil
}

// invalidBodies returns the invalid bodies of an API format; their names say what is wrong.
func invalidBodies(t *testing.T, f formatBody) map[string]string {
	out := make(map[string]string)
	for n := range len(f.body) {
		out[fmt.Sprintf("cut after %d bytes", n)] = f.body[:n]
	}
	var tree any
	if err := json.Unmarshal([]byte(f.body), &tree); err != nil {
		t.Fatal(err)
	}
	for path, kind := range f.members {
		for _, value := range invalidValues(kind) {
			b, err := json.Marshal(withValueAt(t, tree, strings.Split(path, "/"), json.RawMessage(value)))
			if err != nil && value != "1e400" {
				t.Fatalf("error %v, value %q, want 1e400", err, value)
			}
			out[path+" is "+value] = string(b)
		}
	}
	for name, body := range map[string]string{
		"a byte order mark": "\ufeff" + f.body, "UTF-16": string(utf16Bytes(f.body)), "two values": f.body + f.body, "a comma behind": f.body + ",", "NUL behind": f.body + "\x00",
		"a comment": "/**/" + f.body, "single quotes": strings.ReplaceAll(f.body, `"`, "'"), "NaN": strings.Replace(f.body, "1.5", "NaN", 1), "hex": strings.Replace(f.body, "500", "0x1f4", 1),
		"a leading zero": strings.Replace(f.body, "500", "0500", 1), "a plus": strings.Replace(f.body, "500", "+500", 1), "a raw line feed": strings.Replace(f.body, "Wh", "\n", 1),
		"a bad escape": strings.Replace(f.body, `\u00e4`, `\x41`, 1), "half an escape": strings.Replace(f.body, `\u00e4`, `\u00`, 1), "an overlong slash": strings.Replace(f.body, "Wh", "\xc0\xaf", 1),
		"a surrogate in UTF-8": strings.Replace(f.body, "Wh", "\xed\xa0\x80", 1), "deep lists": strings.Repeat("[", 20_000), "deep objects": strings.Repeat(`{"a":`, 20_000),
		"350,000 objects": "[" + strings.Repeat("{},", 349_000) + "{}]", "nothing of ours": `{"a":1}`, "null": "null", "a text": `"x"`, "a number": "7",
		"deep within": strings.Replace(f.body, `{"type":"object"}`, strings.Repeat(`{"a":`, 10_001)+"1"+strings.Repeat("}", 10_001), 1),
	} {
		out[name] = body
	}
	return out
}

// Every invalid body is reported as a mistake of the caller, in the form of the API format. None
// causes an internal error, and none starts a run.
func TestFormatsRefuseTheCorpusOfInvalidBodies(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.MaxBody = 2 << 20 })
	for _, f := range formatBodies {
		t.Run(f.path, func(t *testing.T) {
			bodies := invalidBodies(t, f)
			if len(bodies) < 700 {
				t.Errorf("%d bodies, want at least 700", len(bodies))
			}
			kind := "application/problem+json"
			if strings.HasPrefix(f.path, "/v1/") {
				kind = "application/json"
			}

			for name, body := range bodies {
				req, err := http.NewRequestWithContext(boundedContext(t), "POST", s.URL+f.path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				resp, err := s.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 400 || resp.Header.Get("Content-Type") != kind || !json.Valid(b) {
					t.Errorf("%s: %s %.200s %v, want 400 as %s\n%.300s", name, resp.Status, b, err, kind, body)
				}
			}

			if n := len(s.Model.Requests()); n != 0 {
				t.Errorf("%d model requests, want 0", n)
			}
		})
	}
}

// The bodies that the corpus damages are valid before that.
func TestFormatsAcceptCompleteRequests(t *testing.T) {
	t.Parallel()
	for _, f := range formatBodies {
		s := newService(t, addingModel(), nil, nil)
		readBody(t, s.doContext(boundedContext(t), t, "POST", f.path, f.body))
	}
}

// A file whose bytes are not what its media type says is told from a media type that is not supported.
func TestFormatsSayWhatIsWrongWithAFile(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	const gif, latin1 = "R0lGODlh", "w6QgLSDk" // the second one ends with a byte that is not UTF-8
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + gif + `"}}]}]}`, "its data is not image/png"},
		{"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_file","filename":"a.txt","file_data":"data:text/plain;base64,` + latin1 + `"}]}]}`, "its data is not text in UTF-8"},
		{"/api/chat", `{"id":"t","messages":[{"role":"user","parts":[{"type":"file","mediaType":"image/png","url":"data:image/png;base64,` + gif + `"}]}]}`, "its data is not image/png"},
		{"/agui", `{"threadId":"t","runId":"r","messages":[{"role":"user","content":[{"type":"image","source":{"type":"data","value":"` + gif + `","mimeType":"image/png"}}]}]}`, "its data is not image/png"},
		{"/api/chat", `{"id":"t","messages":[{"role":"user","parts":[{"type":"file","mediaType":"video/mp4","url":"data:video/mp4;base64,AAAA"}]}]}`, "must be a data: URL with a PNG"},
	} {
		resp := s.do(t, "POST", c.path, c.body)
		if got := readText(t, resp); resp.StatusCode != 400 || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: got %s %s, want 400 with %q", c.path, c.body, resp.Status, got, c.want)
		}
	}
}

// The error about a value of the wrong type says in which message it is.
func TestFormatsNameTheItemOfTheWrongType(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for _, c := range []struct{ path, body, where string }{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"?"},{"role":5}]}`, `"param":"messages[1].role"`},
		{"/v1/chat/completions", `{"tools":[{"type":"function","function":{"name":{}}}],"messages":[]}`, `"param":"tools[0].function.name"`},
		{"/v1/responses", `{"input":[{"role":"user","content":"?"},{"role":[]}]}`, `"param":"input[1].role"`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"?"},{"type":"image_url","image_url":"https://x.example/a"}]}]}`, `"param":"messages[0].content[1].image_url"`},
		{"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"?"},{"type":"input_image","image_url":{"url":"https://x.example/a"}}]}]}`, `"param":"input[0].content[1].image_url"`},
		{"/v1/responses", `{"input":"?","tools":[{"type":"function","name":"f","strict":"yes"}]}`, `"param":"tools[0].strict"`},
		{"/v1/responses", `{"input":"?","text":{"verbosity":5}}`, `"param":"text.verbosity"`},
		{"/v1/responses", `{"input":"?","text":{"format":"json_object"}}`, `"param":"text.format"`},
		{"/v1/responses", `{"input":"?","reasoning":{"effort":5}}`, `"param":"reasoning.effort"`},
		{"/v1/responses", `{"input":"?","include":["x",5]}`, `"param":"include[1]"`},
		{"/v1/responses", `{"input":"?","max_output_tokens":"x"}`, `"param":"max_output_tokens"`},
		{"/api/chat", `{"id":"t","messages":[{"role":"user","parts":[]},{"role":"user","parts":[{"type":"text","text":1}]}]}`, `"pointer":"/messages/1/parts/0/text"`},
		{"/agui", `{"threadId":"t","runId":"r","messages":[{"role":"user"},{"role":"tool","toolCallId":true}]}`, `"pointer":"/messages/1/toolCallId"`},
		{"/agui", `{"threadId":"t","runId":"r","messages":[{"role":"user","content":"?"},{"role":"assistant","toolCalls":[{"id":"c","function":{"name":"f"}}]},{"role":"tool","toolCallId":"c","content":{"n":1}}]}`, `"pointer":"/messages/2/content"`},
		{"/agui", `{"threadId":"t","runId":"r","messages":[{"role":"user","content":[{"type":"text","text":5}]}]}`, `"pointer":"/messages/0/content/0/text"`},
	} {
		resp := s.do(t, "POST", c.path, c.body)
		if got := readText(t, resp); resp.StatusCode != 400 || !strings.Contains(got, c.where) {
			t.Errorf("%s %s: got %s %s, want 400 with %s", c.path, c.body, resp.Status, got, c.where)
		}
	}
}
