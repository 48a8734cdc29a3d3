package api

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
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent/agenttest"
	"answerd/internal/llm/llmtest"
)

// badRequest is one invalid request: its bytes, and what is wrong with it. status 0 means any 4xx
// with a problem; others come from net/http itself, as text.
type badRequest struct {
	name, bytes string
	status      int
}

// routeRequest is a request for one route.
type routeRequest struct {
	method, path, body string
	guarded            bool // needs a token
}

// goodBodies has a valid request body for each route that reads one.
var goodBodies = map[string]string{
	"/answer": `{"question":"?"}`, "/answer/stream": `{"question":"?"}`,
	"/runs/{run_id}/input": `{"id":"int_a","approved":true}`, "/tools/{name}/call": `{"args":{"a":1,"b":2}}`,
	"/v1/chat/completions": `{"messages":[{"role":"user","content":"?"}]}`, "/v1/responses": `{"input":"?"}`,
	"/api/chat": `{"id":"c","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"?"}]}]}`,
	"/agui":     `{"threadId":"t","runId":"r","state":{},"messages":[{"id":"m","role":"user","content":"?"}],"tools":[],"context":[],"forwardedProps":{}}`,
}

// allRoutes returns one request for each route of h.
func allRoutes(t *testing.T, h *Handler) (out []routeRequest) {
	open := []string{"/healthz", "/readyz", "/metrics", "/openapi.yaml", "/openapi/{file}", "/.well-known/jwks.json", "/", "/console/*", "/oauth/callback"}
	err := chi.Walk(h.routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		path := strings.NewReplacer("{run_id}", "run_00000000000000000000000000", "{thread_id}", "thr_none", "{response_id}", "resp_none", "{name}", "add", "{id}", "chat", "{call_id}", "call_1", "{file}", "aisdk.yaml", "*", "none.js").Replace(route)
		out = append(out, routeRequest{method, path, "", !slices.Contains(open, route)})
		if method == http.MethodPost {
			out[len(out)-1].body = goodBodies[route]
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// rawRequest returns the bytes of the request, with method, path, body and headers in place of its own.
func (e routeRequest) rawRequest(method, path, body string, header ...string) string {
	if body == "" {
		body = e.body
	}
	lines := append([]string{method + " " + path + " HTTP/1.1", "Host: 127.0.0.1"}, header...)
	has := func(name string) bool {
		return slices.ContainsFunc(header, func(h string) bool { return strings.HasPrefix(h, name+":") })
	}
	if body != "" && !has("Content-Type") {
		lines = append(lines, "Content-Type: application/json")
	}
	if body != "" && !has("Transfer-Encoding") && !has("Content-Length") {
		lines = append(lines, fmt.Sprintf("Content-Length: %d", len(body)))
	}
	return strings.Join(lines, "\r\n") + "\r\n\r\n" + body
}

// badRequests returns every kind of invalid request to e that does not depend on the route's purpose.
func (e routeRequest) badRequests(methods []string) (out []badRequest) {
	add := func(status int, name, bytes string) {
		out = append(out, badRequest{e.method + " " + e.path + ": " + name, bytes, status})
	}

	for _, m := range []string{"PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND", "SING", "GETS", "get", "PRI", "POST"} {
		if !slices.Contains(methods, m) {
			add(0, "method "+m, e.rawRequest(m, e.path, ""))
		}
	}

	if e.path != "/" {
		last := e.path[strings.LastIndex(e.path, "/")+1:]
		base := strings.TrimSuffix(e.path, last)
		for _, p := range []string{
			e.path + "/", e.path + "//", "/" + e.path, "/." + e.path, "/healthz/.." + e.path, e.path + "/.", e.path + "/..", e.path + "%2f", e.path + "%00/x",
			base + "%2e%2e%2f" + last, base + "%252e/" + last, "/%2e" + e.path, "/x%5c" + last, strings.ToUpper(base) + strings.ToUpper(last) + "/", e.path + "%0d%0aX:%20y/x", e.path + "/%ff", "/%c0%ae" + e.path,
		} {
			add(0, "path "+p, e.rawRequest(e.method, p, ""))
		}
	}

	for _, p := range []string{"%zz", "/%", "/a b", "/\x01"} {
		add(400, "target "+fmt.Sprintf("%q", p), e.rawRequest(e.method, p, ""))
	}

	for _, name := range singleValueHeaders {
		add(0, "two of "+name, e.rawRequest(e.method, e.path, "", name+": a", name+": b"))
	}

	for name, header := range map[string]string{
		"a NUL": "X: a\x00b", "no colon": "nothing", "a space before the colon": "X : a", "an empty name": ": a", "a name of bytes": "X\xff: a", "two hosts": "Host: 127.0.0.1",
		"a length with a sign": "Content-Length: +5", "a length of words": "Content-Length: five", "a hexadecimal length": "Content-Length: 0x10", "two lengths": "Content-Length: 5\r\nContent-Length: 6",
	} {
		add(400, name, e.rawRequest(e.method, e.path, "", header))
	}

	add(417, "an unknown expectation", e.rawRequest(e.method, e.path, "", "Expect: the-unexpected"))
	add(431, "one long header", e.rawRequest(e.method, e.path, "", "X: "+strings.Repeat("a", 64<<10)))
	add(431, "10,000 headers", e.rawRequest(e.method, e.path, "", strings.TrimSuffix(strings.Repeat("X: a\r\n", 10_000), "\r\n")))
	add(431, "a long target", e.rawRequest(e.method, e.path+"?"+strings.Repeat("a", 64<<10), ""))
	add(400, "HTTP/0.9", e.method+" "+e.path+"\r\n\r\n")
	add(400, "no host", e.method+" "+e.path+" HTTP/1.1\r\n\r\n")

	if !slices.Contains([]string{"/healthz", "/readyz", "/metrics"}, e.path) {
		for _, host := range []string{"evil.example", "127.0.0.1.evil.example", "127.0.0.2", "0x7f000001", "[::ffff:127.0.0.1]"} {
			add(0, "host "+host, strings.Replace(e.rawRequest(e.method, e.path, ""), "Host: 127.0.0.1", "Host: "+host, 1))
		}
	}

	if e.guarded {
		for _, query := range []string{"%zz", "a=%", "a;b", "a=%ff", "%fe=a", "a=%00", "a=%ed%a0%80", "a=%c0%af"} {
			add(0, "query "+query, e.rawRequest(e.method, e.path+"?"+query, ""))
		}
		for _, header := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Sec-Fetch-Site: nonsense", "Origin: null", "Origin: https://evil.example", "Origin: http://127.0.0.1@evil.example", "Origin: %zz"} {
			add(0, header, e.rawRequest(e.method, e.path, "", header))
		}
	}

	if e.body != "" {
		out = append(out, e.badBodies()...)
	}
	return out
}

// badBodies returns every kind of request with an invalid JSON body.
func (e routeRequest) badBodies() (out []badRequest) {
	add := func(name, bytes string) {
		out = append(out, badRequest{e.method + " " + e.path + ": " + name, bytes, 0})
	}
	for _, kind := range []string{"", "text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "application/json; charset=utf-16", "application/json; charset=latin1", "application/json, text/plain", "application/problem+json", "application/", "/", "application/json; charset"} {
		add("content type "+kind, e.rawRequest(e.method, e.path, "", "Content-Type: "+kind))
	}
	for _, encoding := range []string{"gzip", "br", "deflate", "identity, gzip", "x"} {
		add("encoding "+encoding, e.rawRequest(e.method, e.path, "", "Content-Encoding: "+encoding))
	}
	in, half := strings.TrimSuffix(e.body, "}"), len(e.body)/2
	for name, body := range map[string]string{
		"white space": " \n", "null": "null", "a list": "[]", "a string": `"a"`, "a number": "1", "a byte order mark": "\ufeff" + e.body, "half": e.body[:half], "twice": e.body + e.body,
		"a comma behind": e.body + ",", "NUL behind": e.body + "\x00", "a bad byte": in + `,"x":"` + "\xff" + `"}`, "an unclosed string": in + `,"x":"`,
		"deep lists": strings.Repeat("[", 20_000), "deep objects": strings.Repeat(`{"a":`, 10_000), "deep and closed": in + `,"x":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + "}",
		"many values": "[" + strings.Repeat("{},", 20_000) + "{}]", "a long number": in + `,"x":` + strings.Repeat("9", 60_000) + "x}",
		"too large": in + strings.Repeat(" ", surfaceBody) + "}",
	} {
		add(name, e.rawRequest(e.method, e.path, body))
	}
	// The native face alone is strict about all of a body.
	if strings.HasPrefix(e.path, "/answer") || strings.HasPrefix(e.path, "/runs") || strings.HasPrefix(e.path, "/tools") {
		add("a lone surrogate", e.rawRequest(e.method, e.path, in+`,"x":"\ud800"}`))
		add("one name twice", e.rawRequest(e.method, e.path, in+","+strings.TrimPrefix(e.body, "{")))
	}
	for name, chunks := range map[string]string{
		"no size": "zz\r\n", "a negative size": "-1\r\n", "too large a size": "ffffffffffffffffff\r\n", "no end": "1\r\n{XX0\r\n\r\n", "too many": strings.Repeat("400\r\n"+strings.Repeat(" ", 1024)+"\r\n", surfaceBody/1024+1) + "0\r\n\r\n",
	} {
		add("chunks with "+name, e.rawRequest(e.method, e.path, chunks, "Transfer-Encoding: chunked"))
	}
	add("an announced body that is too large", e.rawRequest(e.method, e.path, "{", "Content-Length: 99999999", "Expect: 100-continue"))
	return out
}

// surfaceBody is what a body may have in bytes, here.
const surfaceBody = 256 << 10

// allocatedBytes returns how many bytes this process has allocated so far.
func allocatedBytes() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// Every kind of invalid request, at every route: the caller gets a problem, nothing is started,
// nothing panics, and the refusal costs little. Requests that net/http refuses by itself get a line
// of text.
func TestRoutesAnswerInvalidRequestsWith4xx(t *testing.T) {
	fixture := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), nil)
	var faults bytes.Buffer
	h := New(Options{
		Agent: fixture.Agent, Log: fixture.Log, AllowedHosts: []string{"127.0.0.1"}, MaxBody: surfaceBody,
		Metrics: http.NotFoundHandler(), Console: http.NotFoundHandler(),
		Logger: slog.New(slog.NewTextHandler(&faults, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	server := httptest.NewUnstartedServer(h)
	server.Config.MaxHeaderBytes = MaxHeaderBytes
	server.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(&faults, nil), slog.LevelError)
	server.Start()
	defer server.Close()

	all := allRoutes(t, h)
	methods := make(map[string][]string)
	for _, e := range all {
		methods[e.path] = append(methods[e.path], e.method)
	}
	methods["/answer/stream"] = append(methods["/answer/stream"], "GET")

	// Send each invalid request, and measure what it costs.
	count, worst, slowest := 0, uint64(0), time.Duration(0)
	var costly, slow string
	for _, e := range all {
		for _, c := range e.badRequests(methods[e.path]) {
			count++
			before, began := allocatedBytes(), time.Now()
			resp, body, err := sendRaw(server.Listener.Addr().String(), c.bytes)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			if cost := allocatedBytes() - before; cost > worst {
				worst, costly = cost, c.name
			}
			if took := time.Since(began); took > slowest {
				slowest, slow = took, c.name
			}

			if c.status != 0 {
				if resp.StatusCode != c.status {
					t.Errorf("%s: %s, want %d", c.name, resp.Status, c.status)
				}
				continue
			}
			checkProblem(t, c.name, e, resp, body)
		}
	}

	t.Logf("%d cases; the costliest allocated %d KiB (%s), the slowest took %s (%s)", count, worst>>10, costly, slowest.Round(100*time.Microsecond), slow)
	if count < 800 {
		t.Errorf("%d cases, want at least 800", count)
	}
	if worst > 16<<20 {
		t.Errorf("%s allocated %d bytes, want at most 16<<20", costly, worst)
	}
	if faults.Len() > 0 {
		t.Errorf("faults of ours: %s, want len 0", faults.String())
	}
	if n := len(fixture.Model.Requests()); n != 0 || len(fixture.Tools.Entered) != 0 {
		t.Errorf("%d model requests, %d tool calls, want 0 and 0", n, len(fixture.Tools.Entered))
	}
}

// checkProblem checks that resp is 4xx and gives the reason in the form of its API format.
func checkProblem(t *testing.T, name string, e routeRequest, resp *http.Response, body []byte) {
	t.Helper()
	var p struct {
		Status              int
		Code, Title, Detail string
		Error               struct{ Message, Type string }
	}
	kind := resp.Header.Get("Content-Type")
	err := json.Unmarshal(body, &p)
	ours := resp.Request.Method != http.MethodHead && !strings.HasPrefix(e.path, "/console/")
	if resp.StatusCode/100 != 4 || ours && err != nil {
		t.Errorf("%s: %s %s %.200s, want 4xx, and a body that can be read", name, resp.Status, kind, body)
		return
	}
	switch {
	case resp.Request.Method == http.MethodHead:
	case strings.HasPrefix(e.path, "/console/") && resp.StatusCode == http.StatusNotFound: // a page's, and the console's own
	case kind == "application/json" && strings.Contains(resp.Request.RequestURI, "/v1/"):
		if p.Error.Message == "" || p.Error.Type == "" {
			t.Errorf("%s: %s, Error.Message %q, Error.Type %q, want Error.Message non-empty, Error.Type non-empty", name, body, p.Error.Message, p.Error.Type)
		}
	case kind != "application/problem+json" || p.Status != resp.StatusCode || problemKinds[p.Code].status != p.Status || p.Title == "" || p.Detail == "":
		t.Errorf("%s: %s %s, want a complete problem document", name, kind, body)
	}
	if resp.StatusCode == http.StatusMethodNotAllowed && resp.Header.Get("Allow") == "" {
		t.Errorf("%s: no Allow, Allow %q, want non-empty", name, resp.Header.Get("Allow"))
	}
}

// sendRaw sends bytes on a connection of their own and reads the first response. The
// server may have answered, and stopped reading, before all is sent.
func sendRaw(addr, request string) (*http.Response, []byte, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, request)
	_ = c.(*net.TCPConn).CloseWrite()
	method, rest, _ := strings.Cut(request, " ")
	target, _, _ := strings.Cut(rest, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method, RequestURI: target})
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}
