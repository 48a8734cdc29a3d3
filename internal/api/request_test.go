package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf16"

	"answerd/internal/api"
	"answerd/internal/event/memory"
)

func TestRequestsAreRefusedByTheirDefect(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.MaxBody = 1 << 10 })
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
		{"any type but that", "POST", "/answer", question, []string{"Accept", "*/*, application/json;q=0"}, 406, "not_acceptable"},
		{"any stream but that", "GET", "/answer/stream?question=x", "", []string{"Accept", "text/event-stream;q=0, text/*, */*"}, 406, "not_acceptable"},
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
			wantProblem(t, resp, c.status, c.code)
			if c.status == 405 && resp.Header.Get("Allow") == "" {
				t.Errorf("Allow %q, want non-empty", resp.Header.Get("Allow"))
			}
		})
	}

	if n := len(s.Model.Requests()); n != 0 {
		t.Errorf("%d model requests: a bad request started a run, want 0", n)
	}
}

func TestRejectedHostsAndOriginsNameTheSetting(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	preflight := []string{"Origin", "https://page.example", "Access-Control-Request-Method", "POST"}
	for _, c := range []struct {
		method  string
		header  []string
		status  int
		code    string
		setting string
		logged  string // attribute of the line
	}{
		{"GET", []string{"Host", "evil.example:8080"}, 421, "misdirected", "ALLOWED_HOSTS", "host=evil.example"},
		{"GET", []string{"Origin", "https://evil.example"}, 403, "forbidden", "CORS_ORIGINS", "origin=https://evil.example"},
		{"GET", []string{"Sec-Fetch-Site", "cross-site"}, 403, "forbidden", "CORS_ORIGINS", `origin=""`},
		{"OPTIONS", preflight, 403, "forbidden", "CORS_ORIGINS", "origin=https://page.example"},
	} {
		for range 3 {
			if p := wantProblem(t, s.do(t, c.method, "/tools", "", c.header...), c.status, c.code); !strings.Contains(p.Detail, c.setting) {
				t.Errorf("%v: detail %q, want it to name %s", c.header, p.Detail, c.setting)
			}
		}
		want := "setting=" + c.setting + " " + c.logged + " help=docs/troubleshooting.md#requests"
		if got := strings.Count(log.String(), want); got != 1 {
			t.Errorf("%v three times: %d lines with %q, want 1:\n%s", c.header, got, want, &log)
		}
	}
}

func TestRejectedHostsCannotFloodTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for i := range 200 {
		wantProblem(t, s.do(t, "GET", "/tools", "", "Host", fmt.Sprintf("h%d.example", i)), 421, "misdirected")
	}
	if got := strings.Count(log.String(), "request rejected"); got < 1 || got > 20 {
		t.Errorf("%d lines for 200 hosts, want 1 to 20", got)
	}
}

func TestAcceptHeadersAreHonored(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for _, header := range [][]string{
		{"Accept", "application/json"}, {"Accept", "text/html, application/*;q=0.5"}, {"Accept", "*/*"},
		{"Accept", "*/*;q=0, application/json"}, {"Accept", "application/*;q=0, */*;q=0, application/json;q=0.1"},
		{"Content-Type", "application/json; charset=UTF-8"}, {"Content-Type", "application/json;charset=utf8"}, {"Origin", s.URL}, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"},
	} {
		if resp := s.do(t, "POST", "/answer", question, header...); resp.StatusCode != 200 {
			t.Errorf("%v: %s, want 200", header, resp.Status)
		}
	}
}

func TestProbesAnswerForEveryHost(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) {
		o.OpenAPI = fstest.MapFS{"openapi.yaml": {Data: []byte("openapi: 3.1.0\n")}, "openapi/aisdk.yaml": {Data: []byte("openapi: 3.1.0\n")}}
	})
	resp := s.do(t, "GET", "/healthz", "", "Host", "10.1.2.3:8080")
	if b, _ := io.ReadAll(resp.Body); strings.TrimSpace(string(b)) != `{"status":"ok"}` {
		t.Errorf(`health is %s, want {"status":"ok"}`, b)
	}
	if resp := s.do(t, "HEAD", "/healthz", ""); resp.StatusCode != 200 {
		t.Errorf("HEAD is %s, want 200", resp.Status)
	}
	if resp := s.do(t, "HEAD", "/answer/stream?question=a", ""); resp.StatusCode != 405 || len(s.Model.Requests()) != 0 {
		t.Errorf("HEAD of a stream is %s, want status 405, 0 requests", resp.Status)
	}

	for _, path := range []string{"/openapi.yaml", "/openapi/aisdk.yaml"} {
		if resp := s.do(t, "GET", path, ""); resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/yaml" {
			t.Errorf("%s: %s, content type %s, want 200 and application/yaml", path, resp.Status, resp.Header.Get("Content-Type"))
		}
	}

	for _, path := range []string{"/openapi/none.yaml", "/openapi/..%2fopenapi.yaml", "/openapi/"} {
		wantProblem(t, s.do(t, "GET", path, ""), 404, "not_found")
	}
}

func TestTokenIsRequiredAndOnlyItsOwnerSeesARun(t *testing.T) {
	t.Parallel()
	iam := newMint(t)
	v := iam.newVerifier(t, nil)
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Verifier = v })
	ada, bob := iam.bearerToken("ada"), iam.bearerToken("bob")

	resp := s.do(t, "POST", "/answer", question)
	wantProblem(t, resp, 401, "unauthenticated")
	if got := resp.Header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer ") || strings.Contains(got, "error") {
		t.Errorf(`challenge %s, want it to start with "Bearer " and without error`, got)
	}
	resp = s.do(t, "POST", "/answer", question, "Authorization", ada+"x")
	wantProblem(t, resp, 401, "unauthenticated")
	if !strings.Contains(resp.Header.Get("WWW-Authenticate"), `error="invalid_token"`) {
		t.Errorf(`challenge %s, want it to contain error="invalid_token"`, resp.Header.Get("WWW-Authenticate"))
	}
	resp = s.do(t, "POST", "/answer", question, "Authorization", "Bearer "+iam.validToken(nil, fields{"scope": "other"}))
	wantProblem(t, resp, 403, "forbidden")
	if !strings.Contains(resp.Header.Get("WWW-Authenticate"), `error="insufficient_scope"`) {
		t.Errorf(`challenge %s, want it to contain error="insufficient_scope"`, resp.Header.Get("WWW-Authenticate"))
	}

	wantProblem(t, s.do(t, "POST", "/tools/meet/call", `{}`), 401, "unauthenticated")
	if len(s.Tools.Entered) > 0 {
		t.Errorf("somebody without a token called a tool: %d Tools.Entered, want 0", len(s.Tools.Entered))
	}
	if got := decodeResponse[toolResult](t, s.do(t, "POST", "/tools/echo/call", `{"args":{"text":"x"}}`, "Authorization", bob), 200); string(got.Payload) != `"x"` {
		t.Errorf(`result %+v, want Payload "x"`, got)
	}
	a := decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Authorization", ada), 200)
	if st := decodeResponse[answer](t, s.do(t, "GET", "/runs/"+a.RunID, "", "Authorization", ada), 200); st.Status != "completed" {
		t.Errorf("the owner sees %+v, want Status completed", st)
	}
	wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID, "", "Authorization", bob), 404, "not_found")
	wantProblem(t, s.do(t, "GET", "/runs/"+a.RunID+"/events", "", "Authorization", bob), 404, "not_found")
	wantProblem(t, s.do(t, "POST", "/runs/"+a.RunID+"/cancel", "", "Authorization", bob), 404, "not_found")
	wantProblem(t, s.do(t, "POST", "/answer/stream", question, "Authorization", bob, "Last-Event-ID", a.RunID+":1"), 404, "not_found")
	if resp := s.do(t, "GET", "/healthz", ""); resp.StatusCode != 200 {
		t.Errorf("health needs a token: %s, want 200", resp.Status)
	}
}

// F32
func TestPanicInAHandlerIsAProblem(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) {
		o.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") })
	})
	p := wantProblem(t, s.do(t, "GET", "/metrics", ""), 500, "internal")
	if strings.Contains(fmt.Sprint(p), "bug") {
		t.Errorf("problem %+v, want no bug", p)
	}
	decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200)
}

func TestToolsWithoutServersAreAnEmptyList(t *testing.T) {
	log := memory.New(memory.Options{})
	server := httptest.NewServer(newHandlerOver(t, log))
	defer server.Close()
	resp, err := server.Client().Get(server.URL + "/tools")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); strings.TrimSpace(string(b)) != `{"tools":[]}` {
		t.Errorf(`got %s, want {"tools":[]}`, b)
	}
}

// fullQuestion has every field; invalid questions are made from it.
const fullQuestion = `{"question":"Wh\u00e4t?","history":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"model":"m",` +
	`"tool_choice":"auto","servers":["default"],"tools":["a*"],"max_turns":2,"budget":{"tool_calls":8,"total_tokens":500,"seconds":1.5},` +
	`"context":{"id":"1"},"thread_id":"t","metadata":{"k":"v"},"background":false}`

// invalidQuestions returns invalid bodies of a question, made anew at every run from the few lines
// below; the names say what is wrong.
func invalidQuestions() map[string]string {
	out := make(map[string]string)
	for n := range len(fullQuestion) {
		out[fmt.Sprintf("cut after %d bytes", n)] = fullQuestion[:n]
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(fullQuestion), &fields); err != nil {
		panic(err)
	}
	in := strings.TrimSuffix(fullQuestion, "}")
	for name, value := range fields {
		out["two of "+name] = in + `,"` + name + `":` + string(value) + "}"
		// Whoever compares names in any case, as encoding/json does, sees two.
		for _, folded := range []string{strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:], strings.ReplaceAll(name, "s", "\u017f"), strings.ReplaceAll(name, "k", "\u212a"), name + `\u0000`, " " + name, name + "\u200b"} {
			if folded != name {
				out[fmt.Sprintf("%s as %q", name, folded)] = in + `,"` + folded + `":` + string(value) + "}"
			}
		}
		for _, wrong := range []string{`null`, `true`, `false`, `0`, `-1`, `1.5`, `1e400`, `"x\u0000"`, `"\ud800"`, "\"\xff\"", `[null]`, `[[]]`, `[{}]`, `{"a":null}`, `{"a":{}}`, `{"":""}`} {
			if name == "background" && (wrong == "true" || wrong == "false") {
				continue
			}
			out[name+" is "+wrong] = strings.Replace(fullQuestion, `"`+name+`":`+string(value), `"`+name+`":`+wrong, 1)
		}
	}
	for name, body := range map[string]string{
		"a byte order mark": "\ufeff" + fullQuestion, "UTF-16": string(utf16Bytes(fullQuestion)), "two values": fullQuestion + fullQuestion, "a comma behind": fullQuestion + ",",
		"NUL behind": fullQuestion + "\x00", "a comment": "/**/" + fullQuestion, "single quotes": strings.ReplaceAll(fullQuestion, `"`, "'"), "NaN": strings.Replace(fullQuestion, "1.5", "NaN", 1),
		"hex": strings.Replace(fullQuestion, "500", "0x1f4", 1), "a leading zero": strings.Replace(fullQuestion, "500", "0500", 1), "a plus": strings.Replace(fullQuestion, "500", "+500", 1),
		"a raw line feed": strings.Replace(fullQuestion, "Wh", "\n", 1), "a bad escape": strings.Replace(fullQuestion, `\u00e4`, `\x41`, 1), "half an escape": strings.Replace(fullQuestion, `\u00e4`, `\u00`, 1),
		"an overlong slash": strings.Replace(fullQuestion, "Wh", "\xc0\xaf", 1), "a surrogate in UTF-8": strings.Replace(fullQuestion, "Wh", "\xed\xa0\x80", 1),
		"deep lists": strings.Repeat("[", 20_000), "deep objects": strings.Repeat(`{"a":`, 20_000), "350,000 objects": "[" + strings.Repeat("{},", 349_000) + "{}]",
		"a prototype": in + `,"__proto__":{"background":true}}`, "system": in + `,"system":"obey"}`, "an endpoint": in + `,"base_url":"http://evil.example"}`,
		"long names": in + `,"context":{"` + strings.Repeat("k", 100_000) + `":[` + strings.Repeat("1,", 200_000) + `1]}}`,
	} {
		out[name] = body
	}
	return out
}

func utf16Bytes(s string) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		out = append(out, byte(u>>8), byte(u))
	}
	return out
}

// Every bad body is a problem for the caller, on every route that takes one; none is a
// fault of ours, and none starts a run.
func TestRequestRefusesTheCorpusOfInvalidBodies(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.MaxBody = 2 << 20 })
	bodies := invalidQuestions()
	if len(bodies) < 600 {
		t.Errorf("%d bodies, want at least 600", len(bodies))
	}
	for _, path := range []string{"/answer", "/answer/stream", "/tools/meet/call", "/runs/run_none/input"} {
		for name, body := range bodies {
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+path, strings.NewReader(body))
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
			if err != nil || resp.StatusCode/100 != 4 || resp.Header.Get("Content-Type") != "application/problem+json" || !json.Valid(b) {
				t.Errorf("%s, %s: %s %.200s %v, want 4xx and a problem document", path, name, resp.Status, b, err)
			}
		}
	}
	if n := len(s.Model.Requests()); n != 0 || len(s.Tools.Entered) != 0 {
		t.Errorf("%d model requests, %d tool calls, want 0 and 0", n, len(s.Tools.Entered))
	}
}

// sendBytes sends bytes as they are on a connection of their own and reads the first
// response; a 100 is not skipped. With ends it closes its half of the connection, which
// for net/http is a caller who leaves. The server may have answered, and closed, before
// all is sent or that half is closed; if its answer is lost with that, reading says so.
func (s *service) sendBytes(t *testing.T, bytes string, ends bool) *http.Response {
	t.Helper()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, bytes)
	if ends {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	method, _, _ := strings.Cut(bytes, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.60q: %v", bytes, err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%.60q: %v", bytes, err)
	}
	resp.Body = io.NopCloser(strings.NewReader(string(b)))
	return resp
}

// rawPost returns the bytes of a POST request with more or other headers.
func rawPost(path, body string, header ...string) string {
	lines := append([]string{"Host: 127.0.0.1", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))}, header...)
	return "POST " + path + " HTTP/1.1\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n" + body
}

func rawChunked(chunks string, header ...string) string {
	lines := append([]string{"Host: 127.0.0.1", "Content-Type: application/json", "Transfer-Encoding: chunked"}, header...)
	return "POST /answer HTTP/1.1\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n" + chunks
}

func rawGet(path string, header ...string) string {
	return "GET " + path + " HTTP/1.1\r\n" + strings.Join(append([]string{"Host: 127.0.0.1"}, header...), "\r\n") + "\r\n\r\n"
}

// A request that net/http refuses by itself is not answered with a problem document; code "" means
// that.
func TestMalformedHTTPIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.MaxBody = 1 << 10 })
	whole := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(question), question)
	for _, c := range []struct {
		name, bytes string
		status      int
		code        string
	}{
		// Framing. Clients send again what got 408, so only what is late gets it.
		{"half a body", rawPost("/answer", question)[:len(rawPost("/answer", question))-5], 400, "invalid_request"},
		{"half a chunk", rawChunked("ff\r\n{"), 400, "invalid_request"},
		{"a chunk of no size", rawChunked("zz\r\n"), 400, "invalid_request"},
		{"a negative chunk", rawChunked("-1\r\n"), 400, "invalid_request"},
		{"a chunk of 2^72", rawChunked("ffffffffffffffffff\r\n"), 400, "invalid_request"},
		{"a chunk without its end", rawChunked(strings.Replace(whole, "\r\n0", "XX0", 1)), 400, "invalid_request"},
		{"a long chunk extension", rawChunked(strings.Replace(whole, "\r\n", ";"+strings.Repeat("a", 8000)+"\r\n", 1)), 400, "invalid_request"},
		{"long trailers", rawChunked(strings.TrimSuffix(whole, "\r\n") + "X: " + strings.Repeat("a", 40000) + "\r\n\r\n"), 400, "invalid_request"},
		{"chunks of more than allowed", rawChunked(strings.Repeat("1\r\na\r\n", 2000) + "0\r\n\r\n"), 413, "too_large"},
		{"a length and chunks", rawChunked("0\r\n\r\n", "Content-Length: 5"), 400, "invalid_request"},
		{"two lengths", rawPost("/answer", question, "Content-Length: 6"), 400, ""},
		{"a length with a sign", rawPost("/answer", "", "Content-Length: +5"), 400, ""},
		{"a length of 2^70", strings.Replace(rawPost("/answer", ""), "Length: 0", "Length: 1180591620717411303424", 1), 400, ""},
		{"a body that is announced as too large", strings.Replace(rawPost("/answer", "", "Expect: 100-continue"), "Length: 0", "Length: 99999999", 1), 413, "too_large"},
		{"an unknown expectation", rawPost("/answer", question, "Expect: more"), 417, ""},
		{"a smuggled encoding", strings.Replace(rawChunked(whole), "Encoding:", "Encoding :", 1), 400, ""},

		// Headers.
		{"two content types", rawPost("/answer", question, "Content-Type: text/plain"), 400, "invalid_request"},
		{"two content encodings", rawPost("/answer", question, "Content-Encoding: identity", "Content-Encoding: gzip"), 400, "invalid_request"},
		{"two origins", rawPost("/answer", question, "Origin: http://127.0.0.1", "Origin: https://evil.example"), 400, "invalid_request"},
		{"two sites", rawPost("/answer", question, "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"), 400, "invalid_request"},
		{"two positions", rawPost("/answer/stream", question, "Last-Event-ID: run_a:1", "Last-Event-ID: run_b:1"), 400, "invalid_request"},
		{"two keys", rawPost("/answer", question, "Idempotency-Key: a", "Idempotency-Key: b"), 400, "invalid_request"},
		{"an empty key", rawPost("/answer", question, "Idempotency-Key:"), 400, "invalid_request"},
		{"a key with a control character", rawPost("/answer", question, "Idempotency-Key: a\tb"), 400, "invalid_request"},
		{"a list of content types", strings.Replace(rawPost("/answer", question), "application/json", "application/json, text/plain", 1), 415, "unsupported_media"},
		{"UTF-16", strings.Replace(rawPost("/answer", question), "application/json", "application/json; charset=utf-16", 1), 415, "unsupported_media"},
		{"another JSON", strings.Replace(rawPost("/answer", question), "application/json", "application/problem+json", 1), 415, "unsupported_media"},
		{"a NUL in a header", rawPost("/answer", question, "X: a\x00b"), 400, ""},
		{"a line without a colon", rawPost("/answer", question, "nothing"), 400, ""},

		// Whom it is for.
		{"no host", "GET /tools HTTP/1.1\r\n\r\n", 400, ""},
		{"no host, HTTP/1.0", "GET /tools HTTP/1.0\r\n\r\n", 421, "misdirected"},
		{"two hosts", rawGet("/tools", "Host: evil.example"), 400, ""},
		{"another host in the target", rawGet("http://evil.example/tools"), 421, "misdirected"},
		{"another host behind a user", rawGet("http://127.0.0.1@evil.example/tools"), 421, "misdirected"},
		{"a name that begins with ours", strings.Replace(rawGet("/tools"), "127.0.0.1", "127.0.0.1.evil.example", 1), 421, "misdirected"},
		{"our address written otherwise", strings.Replace(rawGet("/tools"), "127.0.0.1", "0x7f000001", 1), 421, "misdirected"},

		// Targets: no spelling of a path is another's, and none is let in by one.
		{"HTTP/0.9", "GET /healthz\r\n\r\n", 400, ""},
		{"a proxy's target", "CONNECT /answer HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405, "method_not_allowed"},
		{"an asterisk", rawGet("*"), 404, "not_found"},
		{"two slashes", rawPost("//answer", question), 404, "not_found"},
		{"a slash behind", rawPost("/answer/", question), 404, "not_found"},
		{"an escaped letter", rawPost("/%61nswer", question), 404, "not_found"},
		{"an escaped slash", rawPost("/answer%2fstream", question), 404, "not_found"},
		{"a parameter", rawPost("/answer;a=1", question), 404, "not_found"},
		{"a fragment", rawPost("/answer#a", question), 404, "not_found"},
		{"a dot", rawPost("/./answer", question), 404, "not_found"},
		{"two dots", rawPost("/healthz/../answer", question), 404, "not_found"},
		{"capitals", rawPost("/ANSWER", question), 404, "not_found"},
		{"a bad escape", rawGet("/%zz"), 400, ""},
		{"another method in a header", rawGet("/answer", "X-HTTP-Method-Override: POST"), 405, "method_not_allowed"},
		{"a made-up method", "SING /answer HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405, "method_not_allowed"},
		{"a made-up method nowhere", "SING /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404, "not_found"},
		{"a small method", strings.Replace(rawPost("/answer", question), "POST", "post", 1), 405, "method_not_allowed"},

		// Queries: what can't be read is not left out.
		{"a bad escape in a query", rawGet("/answer/stream?question=a&max_turns=%zz"), 400, "invalid_request"},
		{"a semicolon in a query", rawGet("/answer/stream?question=a;max_turns=1"), 400, "invalid_request"},
		{"a query that is no UTF-8", rawGet("/answer/stream?question=%ff"), 400, "invalid_request"},
		{"a NUL in a query", rawGet("/answer/stream?question=a%00"), 400, "invalid_request"},
		{"a token in a query", rawGet("/answer/stream?question=a&access_token=b"), 400, "invalid_request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := s.sendBytes(t, c.bytes, true)
			if c.code != "" {
				wantProblem(t, resp, c.status, c.code)
			} else if resp.StatusCode != c.status {
				t.Errorf("status %d, want %d", resp.StatusCode, c.status)
			}
			if c.status == 405 && resp.Header.Get("Allow") == "" {
				t.Errorf("Allow %q, want non-empty", resp.Header.Get("Allow"))
			}
		})
	}
	if n := len(s.Model.Requests()); n != 0 {
		t.Errorf("%d model requests: a bad request started a run, want 0", n)
	}
}

// Unusual requests that are allowed stay allowed.
func TestUnusualHTTPIsAccepted(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for name, bytes := range map[string]string{
		"chunks of one byte": rawChunked("1\r\n" + strings.Join(strings.Split(question, ""), "\r\n1\r\n") + "\r\n0\r\n\r\n"),
		"a trailer":          rawChunked(fmt.Sprintf("%x\r\n%s\r\n0\r\nX: 1\r\n\r\n", len(question), question)),
		"one length twice":   rawPost("/answer", question, fmt.Sprintf("Content-Length: %d", len(question))),
		"an absolute target": strings.Replace(rawPost("/answer", question), "/answer", "http://127.0.0.1/answer", 1),
		"an empty Accept":    rawPost("/answer", question, "Accept:"),
		"two Accepts":        rawPost("/answer", question, "Accept: text/html", "Accept: application/json"),
	} {
		if resp := s.sendBytes(t, bytes, false); resp.StatusCode != 200 {
			b, _ := io.ReadAll(resp.Body)
			t.Errorf("%s: %s %s, want 200", name, resp.Status, b)
		}
	}
}
