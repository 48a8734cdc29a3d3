package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"answerd/internal/api"
	"answerd/internal/event"
)

func TestWhatIsNoRequestOfOursIsRefusedByWhatItIs(t *testing.T) {
	s := serve(t, adds(), nil, func(o *api.Options) { o.MaxBody = 1 << 10 })
	big := `{"question":"` + strings.Repeat("x", 1<<10) + `"}`
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code                     string
	}{
		{"a bad body", "POST", "/answer", `{}`, nil, 400, "invalid_request"},
		{"a body that is too large", "POST", "/answer", big, nil, 413, "too_large"},
		{"a body that is too large on a stream", "POST", "/answer/stream", big, nil, 413, "too_large"},
		{"text", "POST", "/answer", question, []string{"Content-Type", "text/plain"}, 415, "unsupported_media"},
		{"a form", "POST", "/answer", "question=a", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported_media"},
		{"another charset", "POST", "/answer", question, []string{"Content-Type", "application/json; charset=latin1"}, 415, "unsupported_media"},
		{"a compressed body", "POST", "/answer", question, []string{"Content-Encoding", "gzip"}, 415, "unsupported_media"},
		{"JSON from a stream", "POST", "/answer/stream", question, []string{"Accept", "application/json"}, 406, "not_acceptable"},
		{"a stream from JSON", "POST", "/answer", question, []string{"Accept", "text/event-stream"}, 406, "not_acceptable"},
		{"a type that is not wanted", "POST", "/answer", question, []string{"Accept", "application/json;q=0"}, 406, "not_acceptable"},
		{"another method", "GET", "/answer", "", nil, 405, "method_not_allowed"},
		{"a delete", "DELETE", "/runs/run_a/events", "", nil, 405, "method_not_allowed"},
		{"a list of strange runs", "GET", "/runs?status=open", "", nil, 400, "invalid_request"},
		{"a list of too many", "GET", "/runs?limit=101", "", nil, 400, "invalid_request"},
		{"a list of none", "GET", "/runs?limit=0", "", nil, 400, "invalid_request"},
		{"a list from nowhere", "GET", "/runs?before=%21", "", nil, 400, "invalid_request"},
		{"another host", "POST", "/answer", question, []string{"Host", "evil.example"}, 421, "misdirected"},
		{"a page of another site", "POST", "/answer", question, []string{"Origin", "https://evil.example"}, 403, "forbidden"},
		{"a sandboxed page", "POST", "/answer", question, []string{"Origin", "null"}, 403, "forbidden"},
		{"an image of another site", "GET", "/answer/stream?question=a", "", []string{"Sec-Fetch-Site", "cross-site"}, 403, "forbidden"},
		{"a sibling", "GET", "/answer/stream?question=a", "", []string{"Sec-Fetch-Site", "same-site"}, 403, "forbidden"},
		{"a background stream", "POST", "/answer/stream", `{"question":"a","background":true}`, nil, 400, "invalid_request"},
		{"a query with more", "GET", "/answer/stream?question=a&x=1", "", nil, 400, "invalid_request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := s.do(t, c.method, c.path, c.body, c.header...)
			refused(t, resp, c.status, c.code)
			if c.status == 405 && resp.Header.Get("Allow") == "" {
				t.Error("no Allow")
			}
		})
	}
	if n := len(s.Model.Requests()); n != 0 {
		t.Errorf("%d model requests: a bad request started a run", n)
	}
}

func TestWhatIsAcceptableIsAccepted(t *testing.T) {
	s := serve(t, adds(), nil, nil)
	for _, header := range [][]string{
		{"Accept", "application/json"}, {"Accept", "text/html, application/*;q=0.5"}, {"Accept", "*/*"},
		{"Content-Type", "application/json; charset=UTF-8"}, {"Origin", s.URL}, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"},
	} {
		if resp := s.do(t, "POST", "/answer", question, header...); resp.StatusCode != 200 {
			t.Errorf("%v: %s", header, resp.Status)
		}
	}
}

func TestProbesAnswerWhoeverAsks(t *testing.T) {
	s := serve(t, adds(), nil, func(o *api.Options) { o.OpenAPI = []byte("openapi: 3.1.0\n") })
	resp := s.do(t, "GET", "/healthz", "", "Host", "10.1.2.3:8080")
	if b, _ := io.ReadAll(resp.Body); strings.TrimSpace(string(b)) != `{"status":"ok"}` {
		t.Errorf("health is %s", b)
	}
	if resp := s.do(t, "HEAD", "/healthz", ""); resp.StatusCode != 200 {
		t.Errorf("HEAD is %s", resp.Status)
	}
	if resp := s.do(t, "HEAD", "/answer/stream?question=a", ""); resp.StatusCode != 405 || len(s.Model.Requests()) != 0 {
		t.Errorf("HEAD of a stream is %s", resp.Status)
	}
	if resp := s.do(t, "GET", "/openapi.yaml", ""); resp.Header.Get("Content-Type") != "application/yaml" {
		t.Errorf("content type %s", resp.Header.Get("Content-Type"))
	}
}

func TestOnlyConfiguredOriginsMayCall(t *testing.T) {
	const origin = "https://app.example"
	s := serve(t, adds(), nil, func(o *api.Options) { o.CORSOrigins = []string{origin} })
	pre := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type,last-event-id"}
	ok := s.do(t, "OPTIONS", "/answer/stream", "", append(pre, "Origin", origin)...)
	if ok.StatusCode != 204 || ok.Header.Get("Access-Control-Allow-Origin") != origin || ok.Header.Get("Access-Control-Allow-Credentials") != "" ||
		!strings.Contains(ok.Header.Get("Access-Control-Allow-Headers"), "Last-Event-ID, Prefer") {
		t.Errorf("preflight %s %v", ok.Status, ok.Header)
	}
	for _, other := range []string{"https://app.example.evil", "http://app.example", "https://APP.example", "null"} {
		resp := s.do(t, "OPTIONS", "/answer/stream", "", append(pre, "Origin", other)...)
		refused(t, resp, 403, "forbidden")
		if resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s is allowed", other)
		}
	}
	resp := s.do(t, "POST", "/answer", question, "Origin", origin, "Sec-Fetch-Site", "cross-site")
	if resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != origin || !strings.Contains(fmt.Sprint(resp.Header["Vary"]), "Origin") {
		t.Errorf("call %s %v", resp.Status, resp.Header)
	}
	bad := s.do(t, "POST", "/answer", `{}`, "Origin", origin)
	if refused(t, bad, 400, "invalid_request"); bad.Header.Get("Access-Control-Allow-Origin") != origin {
		t.Error("the page cannot read why it was refused")
	}
}

func TestOnlyAValidTokenGetsInAndOnlyItsOwnerSeesARun(t *testing.T) {
	iam := newMint(t)
	v := iam.verifier(t, nil)
	s := serve(t, adds(), nil, func(o *api.Options) { o.Verifier = v })
	ada, bob := iam.bearer("ada"), iam.bearer("bob")

	resp := s.do(t, "POST", "/answer", question)
	refused(t, resp, 401, "unauthenticated")
	if got := resp.Header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer ") || strings.Contains(got, "error") {
		t.Errorf("challenge %s", got)
	}
	resp = s.do(t, "POST", "/answer", question, "Authorization", ada+"x")
	refused(t, resp, 401, "unauthenticated")
	if !strings.Contains(resp.Header.Get("WWW-Authenticate"), `error="invalid_token"`) {
		t.Errorf("challenge %s", resp.Header.Get("WWW-Authenticate"))
	}
	resp = s.do(t, "POST", "/answer", question, "Authorization", "Bearer "+iam.good(nil, fields{"scope": "other"}))
	refused(t, resp, 403, "forbidden")
	if !strings.Contains(resp.Header.Get("WWW-Authenticate"), `error="insufficient_scope"`) {
		t.Errorf("challenge %s", resp.Header.Get("WWW-Authenticate"))
	}

	refused(t, s.do(t, "POST", "/tools/meet/call", `{}`), 401, "unauthenticated")
	if len(s.Tools.Entered) > 0 {
		t.Error("somebody without a token called a tool")
	}
	if got := decode[toolResult](t, s.do(t, "POST", "/tools/echo/call", `{"args":{"text":"x"}}`, "Authorization", bob), 200); string(got.Payload) != `"x"` {
		t.Errorf("result %+v", got)
	}
	a := decode[answer](t, s.do(t, "POST", "/answer", question, "Authorization", ada), 200)
	if st := decode[answer](t, s.do(t, "GET", "/runs/"+a.RunID, "", "Authorization", ada), 200); st.Status != "completed" {
		t.Errorf("the owner sees %+v", st)
	}
	refused(t, s.do(t, "GET", "/runs/"+a.RunID, "", "Authorization", bob), 404, "not_found")
	refused(t, s.do(t, "GET", "/runs/"+a.RunID+"/events", "", "Authorization", bob), 404, "not_found")
	refused(t, s.do(t, "POST", "/runs/"+a.RunID+"/cancel", "", "Authorization", bob), 404, "not_found")
	refused(t, s.do(t, "POST", "/answer/stream", question, "Authorization", bob, "Last-Event-ID", a.RunID+":1"), 404, "not_found")
	if resp := s.do(t, "GET", "/healthz", ""); resp.StatusCode != 200 {
		t.Errorf("health needs a token: %s", resp.Status)
	}
}

// F32
func TestAPanicInAHandlerIsAProblemAndTheServiceLives(t *testing.T) {
	s := serve(t, adds(), nil, func(o *api.Options) {
		o.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") })
	})
	p := refused(t, s.do(t, "GET", "/metrics", ""), 500, "internal")
	if strings.Contains(fmt.Sprint(p), "bug") {
		t.Errorf("problem %+v", p)
	}
	decode[answer](t, s.do(t, "POST", "/answer", question), 200)
}

func TestAServiceWithoutServersListsNoToolsAsAList(t *testing.T) {
	log := event.NewMemory(event.MemoryOptions{})
	server := httptest.NewServer(apiOver(t, log))
	defer server.Close()
	resp, err := server.Client().Get(server.URL + "/tools")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); strings.TrimSpace(string(b)) != `{"tools":[]}` {
		t.Errorf("got %s", b)
	}
}
