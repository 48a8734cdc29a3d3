package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/api"
)

// wire sends bytes as they are on a connection of their own and reads the first
// response; a 100 is not skipped. With ends it closes its half of the connection, which
// for net/http is a caller who leaves. The server may have answered, and closed, before
// all is sent or that half is closed; if its answer is lost with that, reading says so.
func (s *service) wire(t *testing.T, bytes string, ends bool) *http.Response {
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

// posted is a question on the wire with more or other headers.
func posted(path, body string, header ...string) string {
	lines := append([]string{"Host: 127.0.0.1", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))}, header...)
	return "POST " + path + " HTTP/1.1\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n" + body
}

func chunked(chunks string, header ...string) string {
	lines := append([]string{"Host: 127.0.0.1", "Content-Type: application/json", "Transfer-Encoding: chunked"}, header...)
	return "POST /answer HTTP/1.1\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n" + chunks
}

func got(path string, header ...string) string {
	return "GET " + path + " HTTP/1.1\r\n" + strings.Join(append([]string{"Host: 127.0.0.1"}, header...), "\r\n") + "\r\n\r\n"
}

// What net/http itself refuses is no problem document; code "" stands for that.
func TestWhatIsWrongOnTheWireIsRefusedAndStartsNothing(t *testing.T) {
	s := serve(t, adds(), nil, func(o *api.Options) { o.MaxBody = 1 << 10 })
	whole := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(question), question)
	for _, c := range []struct {
		name, bytes string
		status      int
		code        string
	}{
		// Framing. Clients send again what got 408, so only what is late gets it.
		{"half a body", posted("/answer", question)[:len(posted("/answer", question))-5], 400, "invalid_request"},
		{"half a chunk", chunked("ff\r\n{"), 400, "invalid_request"},
		{"a chunk of no size", chunked("zz\r\n"), 400, "invalid_request"},
		{"a negative chunk", chunked("-1\r\n"), 400, "invalid_request"},
		{"a chunk of 2^72", chunked("ffffffffffffffffff\r\n"), 400, "invalid_request"},
		{"a chunk without its end", chunked(strings.Replace(whole, "\r\n0", "XX0", 1)), 400, "invalid_request"},
		{"a long chunk extension", chunked(strings.Replace(whole, "\r\n", ";"+strings.Repeat("a", 8000)+"\r\n", 1)), 400, "invalid_request"},
		{"long trailers", chunked(strings.TrimSuffix(whole, "\r\n") + "X: " + strings.Repeat("a", 40000) + "\r\n\r\n"), 400, "invalid_request"},
		{"chunks of more than allowed", chunked(strings.Repeat("1\r\na\r\n", 2000) + "0\r\n\r\n"), 413, "too_large"},
		{"a length and chunks", chunked("0\r\n\r\n", "Content-Length: 5"), 400, "invalid_request"},
		{"two lengths", posted("/answer", question, "Content-Length: 6"), 400, ""},
		{"a length with a sign", posted("/answer", "", "Content-Length: +5"), 400, ""},
		{"a length of 2^70", strings.Replace(posted("/answer", ""), "Length: 0", "Length: 1180591620717411303424", 1), 400, ""},
		{"a body that is announced as too large", strings.Replace(posted("/answer", "", "Expect: 100-continue"), "Length: 0", "Length: 99999999", 1), 413, "too_large"},
		{"an unknown expectation", posted("/answer", question, "Expect: more"), 417, ""},
		{"a smuggled encoding", strings.Replace(chunked(whole), "Encoding:", "Encoding :", 1), 400, ""},

		// Headers.
		{"two content types", posted("/answer", question, "Content-Type: text/plain"), 400, "invalid_request"},
		{"two content encodings", posted("/answer", question, "Content-Encoding: identity", "Content-Encoding: gzip"), 400, "invalid_request"},
		{"two origins", posted("/answer", question, "Origin: http://127.0.0.1", "Origin: https://evil.example"), 400, "invalid_request"},
		{"two sites", posted("/answer", question, "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"), 400, "invalid_request"},
		{"two positions", posted("/answer/stream", question, "Last-Event-ID: run_a:1", "Last-Event-ID: run_b:1"), 400, "invalid_request"},
		{"two keys", posted("/answer", question, "Idempotency-Key: a", "Idempotency-Key: b"), 400, "invalid_request"},
		{"an empty key", posted("/answer", question, "Idempotency-Key:"), 400, "invalid_request"},
		{"a key with a control character", posted("/answer", question, "Idempotency-Key: a\tb"), 400, "invalid_request"},
		{"a list of content types", strings.Replace(posted("/answer", question), "application/json", "application/json, text/plain", 1), 415, "unsupported_media"},
		{"UTF-16", strings.Replace(posted("/answer", question), "application/json", "application/json; charset=utf-16", 1), 415, "unsupported_media"},
		{"another JSON", strings.Replace(posted("/answer", question), "application/json", "application/problem+json", 1), 415, "unsupported_media"},
		{"a NUL in a header", posted("/answer", question, "X: a\x00b"), 400, ""},
		{"a line without a colon", posted("/answer", question, "nothing"), 400, ""},

		// Whom it is for.
		{"no host", "GET /tools HTTP/1.1\r\n\r\n", 400, ""},
		{"no host, HTTP/1.0", "GET /tools HTTP/1.0\r\n\r\n", 421, "misdirected"},
		{"two hosts", got("/tools", "Host: evil.example"), 400, ""},
		{"another host in the target", got("http://evil.example/tools"), 421, "misdirected"},
		{"another host behind a user", got("http://127.0.0.1@evil.example/tools"), 421, "misdirected"},
		{"a name that begins with ours", strings.Replace(got("/tools"), "127.0.0.1", "127.0.0.1.evil.example", 1), 421, "misdirected"},
		{"our address written otherwise", strings.Replace(got("/tools"), "127.0.0.1", "0x7f000001", 1), 421, "misdirected"},

		// Targets: no spelling of a path is another's, and none is let in by one.
		{"HTTP/0.9", "GET /healthz\r\n\r\n", 400, ""},
		{"a proxy's target", "CONNECT /answer HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405, "method_not_allowed"},
		{"an asterisk", got("*"), 404, "not_found"},
		{"two slashes", posted("//answer", question), 404, "not_found"},
		{"a slash behind", posted("/answer/", question), 404, "not_found"},
		{"an escaped letter", posted("/%61nswer", question), 404, "not_found"},
		{"an escaped slash", posted("/answer%2fstream", question), 404, "not_found"},
		{"a parameter", posted("/answer;a=1", question), 404, "not_found"},
		{"a fragment", posted("/answer#a", question), 404, "not_found"},
		{"a dot", posted("/./answer", question), 404, "not_found"},
		{"two dots", posted("/healthz/../answer", question), 404, "not_found"},
		{"capitals", posted("/ANSWER", question), 404, "not_found"},
		{"a bad escape", got("/%zz"), 400, ""},
		{"another method in a header", got("/answer", "X-HTTP-Method-Override: POST"), 405, "method_not_allowed"},
		{"a made-up method", "SING /answer HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405, "method_not_allowed"},
		{"a made-up method nowhere", "SING /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404, "not_found"},
		{"a small method", strings.Replace(posted("/answer", question), "POST", "post", 1), 405, "method_not_allowed"},

		// Queries: what can't be read is not left out.
		{"a bad escape in a query", got("/answer/stream?question=a&max_turns=%zz"), 400, "invalid_request"},
		{"a semicolon in a query", got("/answer/stream?question=a;max_turns=1"), 400, "invalid_request"},
		{"a query that is no UTF-8", got("/answer/stream?question=%ff"), 400, "invalid_request"},
		{"a NUL in a query", got("/answer/stream?question=a%00"), 400, "invalid_request"},
		{"a token in a query", got("/answer/stream?question=a&access_token=b"), 400, "invalid_request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := s.wire(t, c.bytes, true)
			if c.code != "" {
				refused(t, resp, c.status, c.code)
			} else if resp.StatusCode != c.status {
				t.Errorf("status %d, want %d", resp.StatusCode, c.status)
			}
			if c.status == 405 && resp.Header.Get("Allow") == "" {
				t.Error("no Allow")
			}
		})
	}
	if n := len(s.Model.Requests()); n != 0 {
		t.Errorf("%d model requests: a bad request started a run", n)
	}
}

// What looks odd and is allowed stays allowed.
func TestWhatIsUnusualOnTheWireIsTaken(t *testing.T) {
	s := serve(t, adds(), nil, nil)
	for name, bytes := range map[string]string{
		"chunks of one byte": chunked("1\r\n" + strings.Join(strings.Split(question, ""), "\r\n1\r\n") + "\r\n0\r\n\r\n"),
		"a trailer":          chunked(fmt.Sprintf("%x\r\n%s\r\n0\r\nX: 1\r\n\r\n", len(question), question)),
		"one length twice":   posted("/answer", question, fmt.Sprintf("Content-Length: %d", len(question))),
		"an absolute target": strings.Replace(posted("/answer", question), "/answer", "http://127.0.0.1/answer", 1),
		"two Accepts":        posted("/answer", question, "Accept: text/html", "Accept: application/json"),
	} {
		if resp := s.wire(t, bytes, false); resp.StatusCode != 200 {
			b, _ := io.ReadAll(resp.Body)
			t.Errorf("%s: %s %s", name, resp.Status, b)
		}
	}
}
