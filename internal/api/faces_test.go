package api_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/llm/llmtest"
)

// door is one way to ask a question.
type door struct {
	name, path string
	body       string // asks the question QUESTION with the native fields OPTIONS
	stream     bool
}

// ask is the body that asks question, with native fields as members of an object, each
// with a comma before it.
func (d door) ask(question, options string) string {
	if d.path == "/answer" || d.path == "/answer/stream" {
		return strings.NewReplacer("QUESTION", question, "OPTIONS", options).Replace(d.body)
	}
	return strings.NewReplacer("QUESTION", question, "OPTIONS", strings.TrimPrefix(options, ",")).Replace(d.body)
}

// doors are all that there are. What stands before them is the same for each.
var doors = []door{
	{"native", "/answer", `{"question":"QUESTION"OPTIONS}`, false},
	{"native stream", "/answer/stream", `{"question":"QUESTION"OPTIONS}`, true},
	{"chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"QUESTION"}],"answerd":{OPTIONS}}`, false},
	{"chat stream", "/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"QUESTION"}],"answerd":{OPTIONS}}`, true},
	{"responses", "/v1/responses", `{"input":"QUESTION","answerd":{OPTIONS}}`, false},
	{"responses stream", "/v1/responses", `{"stream":true,"input":"QUESTION","answerd":{OPTIONS}}`, true},
	{"AI SDK", "/api/chat", `{"id":"t","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"QUESTION"}]}],"answerd":{OPTIONS}}`, true},
	{"AG-UI", "/agui", `{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"QUESTION"}],"forwardedProps":{"answerd":{OPTIONS}}}`, true},
}

// turnedAway checks that resp refuses in the words of the door's format.
func (d door) turnedAway(t *testing.T, resp *http.Response, status int, code string) {
	t.Helper()
	if !strings.HasPrefix(d.path, "/v1/") {
		refused(t, resp, status, code)
		return
	}
	if e := decode[openAIError](t, resp, status); e.Error.Code != code || e.Error.Message == "" || e.Error.Type == "" || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%+v", e)
	}
}

// bounded is a context that ends before the test's own time does.
func bounded(t *testing.T) context.Context {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(stop)
	return ctx
}

// read is the whole body of a response that is no refusal.
func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s %s, %v", resp.Status, b, err)
	}
	return string(b)
}

// newestRun is the run that was started last.
func newestRun(t *testing.T, s *service, header ...string) string {
	t.Helper()
	list := decode[struct {
		Runs []struct {
			ID string `json:"run_id"`
		}
	}](t, s.do(t, "GET", "/runs?limit=1", "", header...), 200)
	if len(list.Runs) == 0 {
		t.Fatal("there is no run")
	}
	return list.Runs[0].ID
}

func TestEveryDoorIsGuardedAlike(t *testing.T) {
	iam := newMint(t)
	v := iam.verifier(t, nil)
	const page = "https://ui.example"
	s := serve(t, adds(), nil, func(o *api.Options) { o.Verifier, o.CORSOrigins, o.MaxBody = v, []string{page}, 4<<10 })
	ada, eve := iam.bearer("ada"), iam.bearer("eve")
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			body := d.ask("What is 1 + 2?", "")
			before := len(s.Model.Requests())
			resp := s.do(t, "POST", d.path, body)
			d.turnedAway(t, resp, 401, "unauthenticated")
			if resp.Header.Get("WWW-Authenticate") == "" {
				t.Error("no challenge")
			}
			d.turnedAway(t, s.do(t, "POST", d.path, body, "Authorization", "Bearer x.y.z"), 401, "unauthenticated")
			d.turnedAway(t, s.do(t, "POST", d.path, body, "Authorization", ada, "Origin", "https://evil.example"), 403, "forbidden")
			d.turnedAway(t, s.do(t, "POST", d.path, d.ask(strings.Repeat("x", 5<<10), ""), "Authorization", ada), 413, "too_large")
			d.turnedAway(t, s.do(t, "POST", d.path, body, "Authorization", ada, "Content-Type", "text/plain"), 415, "unsupported_media")
			d.turnedAway(t, s.do(t, "POST", d.path, body, "Authorization", ada, "Idempotency-Key", strings.Repeat("k", 256)), 400, "invalid_request")
			d.turnedAway(t, s.do(t, "DELETE", d.path, "", "Authorization", ada), 405, "method_not_allowed")
			if n := len(s.Model.Requests()); n != before {
				t.Errorf("%d model requests of those that were turned away", n-before)
			}

			preflight := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type,idempotency-key"}
			resp = s.do(t, "OPTIONS", d.path, "", append(preflight, "Origin", page)...)
			if h := resp.Header; resp.StatusCode != 204 || h.Get("Access-Control-Allow-Origin") != page || !strings.Contains(h.Get("Access-Control-Allow-Headers"), "Idempotency-Key") {
				t.Errorf("preflight: %s %v", resp.Status, h)
			}
			d.turnedAway(t, s.do(t, "OPTIONS", d.path, "", append(preflight, "Origin", "https://evil.example")...), 403, "forbidden")
			resp = s.doContext(bounded(t), t, "POST", d.path, body, "Authorization", ada, "Origin", page)
			if read(t, resp); resp.Header.Get("Access-Control-Allow-Origin") != page {
				t.Errorf("%v", resp.Header)
			}
			// What came of it is its owner's, on the native face as well.
			run := newestRun(t, s, "Authorization", ada)
			refused(t, s.do(t, "GET", "/runs/"+run, "", "Authorization", eve), 404, "not_found")
			refused(t, s.do(t, "GET", "/runs/"+run+"/events", "", "Authorization", eve), 404, "not_found")
			refused(t, s.do(t, "POST", "/runs/"+run+"/cancel", "", "Authorization", eve), 404, "not_found")
		})
	}
}

// F38: a request that is repeated is answered again, and not run again.
func TestEveryDoorTakesARepeatedRequestForTheSame(t *testing.T) {
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			s := serve(t, adds(), nil, nil)
			first := read(t, s.doContext(bounded(t), t, "POST", d.path, d.ask("What is 1 + 2?", ""), "Idempotency-Key", "k"))
			again := read(t, s.doContext(bounded(t), t, "POST", d.path, d.ask("What is 1 + 2?", ""), "Idempotency-Key", "k"))
			if first != again {
				t.Errorf("first\n%s\nagain\n%s", first, again)
			}
			d.turnedAway(t, s.do(t, "POST", d.path, d.ask("What is 2 + 2?", ""), "Idempotency-Key", "k"), 422, "unprocessable")
			if n := len(s.Model.Requests()); n != 2 {
				t.Errorf("%d model requests", n)
			}
		})
	}
}

func TestEveryDoorIsShutWhenThereIsNoRoom(t *testing.T) {
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			open := make(chan struct{})
			s := serve(t, holds(open), func(o *agent.Options) { o.MaxRuns = 1 }, nil)
			begun := s.doContext(bounded(t), t, "POST", "/answer/stream", question)
			frames(t, begun, "text_delta")
			resp := s.do(t, "POST", d.path, d.ask("And?", ""))
			if d.turnedAway(t, resp, 503, "overloaded"); resp.Header.Get("Retry-After") == "" {
				t.Error("it does not say when")
			}

			over, stop := context.WithCancel(t.Context())
			stop()
			s.Drain(over)
			resp = s.do(t, "POST", d.path, d.ask("And?", ""))
			if d.turnedAway(t, resp, 503, "draining"); resp.Header.Get("Retry-After") == "" {
				t.Error("it does not say when")
			}
		})
	}
}

// One way to end a run, and one to read it again, for the runs of every door.
func TestARunOfAnyDoorIsReadAndEndedFromOutside(t *testing.T) {
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"})), nil, nil)
			told := make(chan string, 1)
			go func() {
				defer close(told)
				resp, err := s.Client().Post(s.URL+d.path, "application/json", strings.NewReader(d.ask("Wait.", "")))
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
			case <-bounded(t).Done():
				t.Fatal("the tool was not called")
			}
			run := newestRun(t, s)
			reader := s.doContext(bounded(t), t, "GET", "/runs/"+run+"/events", "", "Last-Event-ID", run+":2")
			seen := frames(t, reader, "tool_call")
			if seen[0].ID != run+":3" {
				t.Errorf("begins with %s", seen[0].ID)
			}
			status := decode[struct{ Status string }](t, s.do(t, "POST", "/runs/"+run+"/cancel", ""), 200)
			if rest := events(frames(t, reader, "")); status.Status != "cancelled" || !strings.HasSuffix(rest, "cancelled") {
				t.Errorf("%s, and then %s", status.Status, rest)
			}
			got := <-told
			want := map[string]string{
				"native": "409", "native stream": "event: cancelled", "chat": "409", "chat stream": "data: [DONE]", "responses": `"status":"cancelled"`,
				"responses stream": `"status":"cancelled"`, "AI SDK": `{"type":"abort"}`, "AG-UI": `"code":"cancelled"`,
			}[d.name]
			if !strings.Contains(got, want) {
				t.Errorf("the caller was told %s", got)
			}
		})
	}
}

func TestABudgetHoldsAtEveryDoor(t *testing.T) {
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			add := llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}
			s := serve(t, llmtest.Turns(llmtest.Calls(add), llmtest.Calls(add), llmtest.Calls(add), llmtest.Says("So far.")), nil, nil)
			resp := s.doContext(bounded(t), t, "POST", d.path, d.ask("Add.", `,"budget":{"tool_calls":1}`))
			_, _ = io.ReadAll(resp.Body)
			if n := s.Tools.Made()["add"]; n != 1 {
				t.Errorf("%d calls", n)
			}
			all := read(t, s.do(t, "GET", "/runs/"+newestRun(t, s)+"/events", ""))
			if !strings.Contains(all, "event: budget") {
				t.Error("nothing says that the budget is used up")
			}
			bad := s.do(t, "POST", d.path, d.ask("Add.", `,"budget":{"tool_calls":-1}`))
			d.turnedAway(t, bad, 400, "invalid_request")
		})
	}
}
