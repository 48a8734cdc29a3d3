package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newClient returns a client of the service at url.
func newClient(t *testing.T, url string, secret auth.Secret) *Client {
	t.Helper()
	c, err := New(Options{URL: url, Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestQuestionHasTheCallAndItsOutcome(t *testing.T) {
	s := webhooktest.New(t, func(webhooktest.Question) string { return `{}` })
	c := newClient(t, s.URL, webhooktest.Secret)
	for _, call := range []Call{
		{Hook: PreToolCall, RunID: "run_1", Subject: "ada", Server: "crm", Tool: "find", CallID: "call_1", Args: json.RawMessage(`{"q":"<é>", "n":12345678901234567890}`)},
		{Hook: ToolError, ArgsText: `{"q":`, Failure: &Failure{Kind: "invalid_arguments", Message: "No."}},
		{Hook: ToolResult, Args: json.RawMessage(`{}`), Result: &Result{Content: []json.RawMessage{json.RawMessage(`{"type":"text","text":"x"}`)}, Structured: json.RawMessage(`0`)}},
	} {
		if r, err := c.Ask(t.Context(), call); err != nil || r.String() != "nothing" {
			t.Errorf(`%s: %+v, %v, want "nothing" and no error`, call.Hook, r, err)
		}
	}

	q := s.Questions()
	if a := q[0]; a.Hook != "pre_tool_call" || a.RunID != "run_1" || a.Subject != "ada" || a.Server != "crm" || a.Tool != "find" || a.CallID != "call_1" ||
		string(a.Args) != `{"q":"<é>","n":12345678901234567890}` || a.Result != nil || a.Error != nil {
		t.Errorf(`before: %+v, want Hook pre_tool_call, RunID run_1, Subject ada, Server crm, Tool find, CallID call_1, Args {"q":"<é>","n":12345678901234567890}, Result nil, Error nil`, a)
	}
	if a := q[1]; a.Hook != "tool_error" || string(a.Args) != "null" || a.ArgsText != `{"q":` || a.Error.Kind != "invalid_arguments" || a.Error.Message != "No." {
		t.Errorf(`failed: %+v, want Hook tool_error, Args null, ArgsText {"q":, Error.Kind invalid_arguments, Error.Message No.`, a)
	}
	if a := q[2]; a.Hook != "tool_result" || string(a.Result.Structured) != "0" || len(a.Result.Content) != 1 || a.Error != nil {
		t.Errorf("worked: %+v, want Hook tool_result, Result.Structured 0, 1 Result.Content, Error nil", a)
	}
}

// A copy of a question, one that was kept, one that was changed and one of somebody
// else are refused by a receiver that does what docs/hooks.md says.
func TestReceiverCanTellAReplayAndAForgery(t *testing.T) {
	s := webhooktest.New(t, func(webhooktest.Question) string { return `{}` })
	if _, err := newClient(t, s.URL, auth.NewSecret("another secret")).Ask(t.Context(), Call{Hook: ToolResult}); err == nil {
		t.Error("a question with another secret was taken, want an error")
	}

	send := func(at time.Time, change func([]byte) []byte) func() int {
		body, err := Call{Hook: PreToolCall, Tool: "find"}.encodeBody(at, fmt.Sprint("dlv_", at))
		if err != nil {
			t.Fatal(err)
		}
		signature := Sign(webhooktest.Secret, body)
		return func() int {
			r := httptest.NewRequest("POST", "/", bytes.NewReader(change(body)))
			r.Header.Set(SignatureHeader, signature)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			return w.Code
		}
	}

	unchanged := func(b []byte) []byte { return b }
	first := send(time.Now(), unchanged)
	if code := first(); code != 200 {
		t.Errorf("the question: %d, want 200", code)
	}
	if code := first(); code != 401 {
		t.Errorf("its copy: %d, want 401", code)
	}
	if code := send(time.Now().Add(-time.Hour), unchanged)(); code != 401 {
		t.Errorf("an old one: %d, want 401", code)
	}
	withLaterTimestamp := func(b []byte) []byte { return bytes.Replace(b, []byte(`"timestamp":`), []byte(`"timestamp":1`), 1) }
	if code := send(time.Now(), withLaterTimestamp)(); code != 401 {
		t.Errorf("one with another time: %d, want 401", code)
	}
}

func TestRepliesAreReadStrictly(t *testing.T) {
	long := strings.Repeat("é", 400)
	for _, c := range []struct {
		about Event
		text  string
		want  string // String, and the value; "" is an error
	}{
		{PreToolCall, `{}`, "nothing"},
		{PreToolCall, " {\n} ", "nothing"},
		{ToolResult, `{"content":null,"args":null,"abort":null,"reason":null}`, "nothing"},
		{ToolResult, `{"abort":false,"reason":""}`, "nothing"},
		{ToolResult, `{"content":"x"}`, "content x"},
		{ToolError, `{"content":""}`, "content "},
		{PreToolCall, `{"content":"x"}`, "content x"},
		{PreToolCall, `{"args":{"a":1.50}}`, `args {"a":1.50}`},
		{ToolError, `{"abort":true}`, "abort "},
		{ToolError, `{"abort":true,"reason":"one\ntwo"}`, "abort one two"},
		{ToolError, `{"abort":true,"reason":"` + long + `"}`, "abort " + long[:500]},

		{ToolResult, `{"content":[{"type":"text","text":"a","annotations":{"audience":["user"]}}],"structured":{"n":1.50}}`, `content {"type":"text","text":"a","annotations":{"audience":["user"]}} {"n":1.50}`},
		{ToolResult, `{"content":"a","structured":[1]}`, `content {"text":"a","type":"text"} [1]`},
		{ToolError, `{"content":[]}`, "content "},
		{PreModelCall, `{"instructions":"x"}`, "extend x "},
		{PreModelCall, `{"instructions":"x","messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, "extend x a,b"},
		{PreModelCall, `{"instructions":"","messages":[]}`, "nothing"},
		{PreModelCall, `{"abort":true,"reason":"no"}`, "abort no"},
		{ModelResult, `{"abort":true}`, "abort "},
		{Interrupt, `{"abort":true}`, "abort "},
		{RunEnd, `{}`, "nothing"},

		{PreToolCall, ``, ""},
		{PreToolCall, `null`, ""},
		{PreToolCall, `[]`, ""},
		{PreToolCall, `"content"`, ""},
		{PreToolCall, `{} {}`, ""},
		{PreToolCall, `{"abort":true`, ""},
		{PreToolCall, `{"ABORT":true}`, ""},
		{PreToolCall, `{"abort":true,"abort":false}`, ""},
		{PreToolCall, `{"abort":null,"abort":false}`, ""},
		{PreToolCall, `{"abort":"true"}`, ""},
		{PreToolCall, `{"abort":1}`, ""},
		{PreToolCall, `{"deny":true}`, ""},
		{PreToolCall, `{"reason":"because"}`, ""},
		{PreToolCall, `{"args":[1]}`, ""},
		{PreToolCall, `{"args":"{}"}`, ""},
		{PreToolCall, `{"content":{"text":"x"}}`, ""},
		{PreToolCall, `{"content":"x","args":{}}`, ""},
		{PreToolCall, `{"content":"x","abort":true}`, ""},
		{PreToolCall, "{\"content\":\"\xff\"}", ""},
		{ToolError, `{"args":{}}`, ""},
		{ToolResult, `{"args":{}}`, ""},
	} {
		r, err := parseReply(c.about, []byte(c.text))
		got := r.String()
		switch {
		case err != nil:
			got = ""
		case r.Text != nil:
			got += " " + *r.Text
		case r.Content != nil:
			for _, b := range r.Content.Content {
				got += " " + string(b)
			}
			got += " " + string(r.Content.Structured)
		case r.extends():
			got += " " + r.Instructions + " " + strings.Join(r.Messages, ",")
		case r.Args != nil:
			got += " " + string(r.Args)
		case r.Abort:
			got += " " + r.Reason
		}
		if got != c.want {
			t.Errorf("%s %.60s: %q, %v; want %q", c.about, c.text, got, err, c.want)
		}
	}
}

// F19 among others. Whatever a service does instead of replying, the error has no
// word of it, nor of the URL.
func TestServiceThatDoesNotReplyIsAnErrorThatQuotesNothing(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed, want it refused") }))
	defer other.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
		"a failure":    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "canary", http.StatusInternalServerError) },
		"an empty 204": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"prose":        func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "canary") },
		"too much": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"content":"%s"}`, strings.Repeat("canary", maxReply/6))
		},
		"half": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"cana`)
		},
		"a cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(answer)
			defer s.Close()
			_, err := newClient(t, s.URL+"/?key=canary", webhooktest.Secret).Ask(t.Context(), Call{Hook: PreToolCall})
			if err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "127.0.0.1") {
				t.Errorf("error %v, want error without canary, error without 127.0.0.1", err)
			}
		})
	}
}

// A reply that is not HTTP may repeat the signed question. Options.Transport, which records errors in spans, gets an
// error without it.
func TestReplyThatIsNotHTTPIsNotQuotedToTheTransport(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, "canary\r\n\r\n")
		conn.Close()
	}))
	defer s.Close()
	var recorded recordedError
	c, err := New(Options{URL: s.URL, Secret: webhooktest.Secret, Transport: func(own http.RoundTripper) http.RoundTripper {
		recorded.RoundTripper = own
		return &recorded
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Ask(t.Context(), Call{Hook: PreToolCall}); err == nil {
		t.Error("got no error, want one")
	}
	if recorded.err == nil || strings.Contains(recorded.err.Error(), "canary") {
		t.Errorf("the transport got the error %v, want one without canary", recorded.err)
	}
}

// recordedError keeps the error of the last request.
type recordedError struct {
	http.RoundTripper
	err error
}

func (r *recordedError) RoundTrip(request *http.Request) (response *http.Response, err error) {
	response, r.err = r.RoundTripper.RoundTrip(request)
	return response, r.err
}

// silentTransport is a service that accepts a question and never replies, in memory: no socket may
// be in a bubble.
type silentTransport struct{}

func (silentTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestReplyIsWaitedForFiveSecondsAndNoLongerThanTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{URL: "http://localhost", Secret: webhooktest.Secret, Transport: func(http.RoundTripper) http.RoundTripper { return silentTransport{} }})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		_, err = c.Ask(t.Context(), Call{Hook: PreToolCall})
		if took := time.Since(begin); took != 5*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %s, want took 5 s, context.DeadlineExceeded", err, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin = time.Now()
		_, err = c.Ask(ctx, Call{Hook: PreToolCall})
		if took := time.Since(begin); took != time.Second || !errors.Is(err, context.Canceled) {
			t.Errorf("%v after %s, want took 1 s, context.Canceled", err, took)
		}
	})
}

// Questions about calls of one turn are asked together: each is answered only when
// all are there.
func TestQuestionsAreAskedTogether(t *testing.T) {
	const n = 20
	var arrived = make(chan struct{}, n)
	all := make(chan struct{})
	s := webhooktest.New(t, func(webhooktest.Question) string {
		arrived <- struct{}{}
		<-all
		return `{}`
	})

	c := newClient(t, s.URL, webhooktest.Secret)
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := c.Ask(t.Context(), Call{Hook: PreToolCall})
			errs <- err
		}()
	}

	for range n {
		<-arrived
	}

	close(all)
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestServiceWithoutTLSIsRefused(t *testing.T) {
	for _, o := range []Options{
		{URL: "http://hooks.example.com", Secret: webhooktest.Secret},
		{URL: "https://user:canary@hooks.example.com", Secret: webhooktest.Secret},
		{URL: "ftp://hooks.example.com", Secret: webhooktest.Secret},
		{URL: "", Secret: webhooktest.Secret},
		{URL: "https://hooks.example.com"},
	} {
		if _, err := New(o); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v, want error without canary", o.URL, err)
		}
	}
}

// An invalid reply is logged with the member that is wrong, and none of its values.
func TestInvalidReplyIsAnErrorThatNamesTheMember(t *testing.T) {
	many := strings.Repeat(`{"type":"text","text":"canary"},`, maxBlocks) + `{"type":"text","text":"canary"}`
	for _, c := range []struct {
		about      Event
		text, want string
	}{
		{ToolResult, `{"content":[{"type":"text","text":1}]}`, "the reply's content/0/text is missing or not a string"},
		{ToolResult, `{"content":[{"type":"text","text":"a"},{"type":"video","data":"canary"}]}`, "the reply's content/1/type must be text, image, audio, resource_link or resource"},
		{ToolResult, `{"content":[{"text":"canary"}]}`, "the reply's content/0/type is missing or not a string"},
		{ToolResult, `{"content":["canary"]}`, "the reply's content/0 is not an object"},
		{ToolResult, `{"content":[{"type":"image","data":"canary!","mimeType":"image/png"}]}`, "the reply's content/0/data is not base64"},
		{ToolResult, `{"content":[{"type":"image","data":"","mimeType":"image/png"}]}`, "the reply's content/0/data is not base64"},
		{ToolResult, `{"content":[{"type":"audio","data":"AAAA"}]}`, "the reply's content/0/mimeType is missing or not a string"},
		{ToolResult, `{"content":[{"type":"resource_link","uri":"https://canary"}]}`, "the reply's content/0/name is missing or not a string"},
		{ToolResult, `{"content":[{"type":"resource"}]}`, "the reply's content/0/resource is missing or not an object"},
		{ToolResult, `{"content":[{"type":"resource","resource":{"text":"canary"}}]}`, "the reply's content/0/resource/uri is missing or not a string"},
		{ToolResult, `{"content":[{"type":"resource","resource":{"uri":"x:y","text":"canary","blob":""}}]}`, "the reply's content/0/resource must have either text or blob, a string"},
		{ToolResult, `{"content":[{"type":"resource","resource":{"uri":"x:y","blob":"canary!"}}]}`, "the reply's content/0/resource/blob is not base64"},
		{ToolResult, `{"content":[` + many + `]}`, "the reply's content has more than 1000 blocks"},
		{ToolResult, `{"content":{"type":"text","text":"canary"}}`, "the reply's content is of a wrong type"},
		{ToolResult, `{"structured":{"canary":1}}`, "the reply has structured without content"},
		{ToolResult, `{"args":{"canary":1}}`, "the reply has args, which tool_result does not take"},
		{ToolResult, `{"instructions":"canary"}`, "the reply has instructions, which tool_result does not take"},
		{PreModelCall, `{"content":"canary"}`, "the reply has content, which pre_model_call does not take"},
		{PreModelCall, `{"instructions":1}`, "the reply's instructions is of a wrong type"},
		{PreModelCall, `{"messages":[{"role":"system","content":"canary"}]}`, "the reply's messages/0/role must be user"},
		{PreModelCall, `{"messages":[{"role":"user","content":"a"},{"role":"user"}]}`, "the reply's messages/1/content is missing"},
		{PreModelCall, `{"messages":[{"role":"user","content":[],"canary":1}]}`, "the reply's messages/0 is not {role, content} with two strings"},
		{PreModelCall, `{"instructions":"canary","abort":true}`, "the reply has instructions or messages beside an abort"},
		{PreModelCall, `{"instructions":"` + strings.Repeat("canary", maxAdded/6+1) + `"}`, "the reply's instructions and messages are longer than 262144 bytes"},
		{ModelResult, `{"content":"canary"}`, "the reply has content, which model_result does not take"},
		{Interrupt, `{"args":{}}`, "the reply has args, which interrupt does not take"},
		{RunEnd, `{"abort":true}`, "the reply has abort, which run_end does not take"},
	} {
		if r, err := parseReply(c.about, []byte(c.text)); err == nil || err.Error() != c.want {
			t.Errorf("%s %.80s: got %+v, %v; want %s", c.about, c.text, r, err, c.want)
		}
	}
}

func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[`, `{"a":1}`, `{"content":"x"}`, `{"content":null}`, `{"args":{"a":[1]}}`, `{"abort":true,"reason":"x"}`, `{"abort":false}`,
		`{"content":[{"type":"image","data":"AAAA","mimeType":"image/png"}],"structured":{}}`,
		`{"instructions":"x","messages":[{"role":"user","content":"a"}]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, about := range Events() {
			r, err := parseReply(about, []byte(text))
			if err != nil {
				continue
			}
			areUsable := about == PreToolCall && json.Valid(r.Args) && r.Args[0] == '{'
			if r.Args != nil && !areUsable {
				t.Errorf("args %s of %s, want a JSON object, only of pre_tool_call", r.Args, about)
			}
			if hasMore := r.Args != nil || r.Text != nil || r.Content != nil || r.extends(); r.Abort && hasMore {
				t.Errorf("reply %+v, want no args or content beside abort", r)
			}
			if len(r.Reason) > maxReason {
				t.Errorf("reply %+v, want a reason of at most %d bytes", r, maxReason)
			}
		}
	})
}
