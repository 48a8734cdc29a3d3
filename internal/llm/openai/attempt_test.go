package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// F1
func TestStreamRetriesARefusedConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	var log bytes.Buffer
	m := New(Config{BaseURL: "http://" + l.Addr().String() + "/v1", MaxRetries: 2, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer m.Close()
	_, err = llmtest.Collect(t.Context(), m, testRequest)
	e := requireError(t, err, llm.ModelError)
	if !e.Retryable || e.Status != 0 || e.Public != publicUnreachable {
		t.Errorf("got %+v, want a retryable error without status and %q", e, publicUnreachable)
	}
	if n := strings.Count(log.String(), "trying again"); n != 2 {
		t.Errorf("got %d retries in the log, want 2:\n%s", n, log.String())
	}
}

// F1: a connection that breaks before the reply is as good as none.
func TestStreamRetriesAConnectionLostBeforeTheReply(t *testing.T) {
	s, m := newEndpoint(t, Config{MaxRetries: 1}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, sendStream(helloStream))
	if _, err := llmtest.Collect(t.Context(), m, testRequest); err != nil {
		t.Error(err)
	}
	if n := len(s.receivedRequests()); n != 2 {
		t.Errorf("got %d requests, want 2", n)
	}
}

// A server that is stopped while it reads the prompt has sent its header already, and nothing of the answer.
func TestStreamCutBeforeItsFirstPartIsRetried(t *testing.T) {
	for name, cut := range map[string]http.HandlerFunc{
		"cut": sendAndAbort(""), "end": sendStream(""), "heartbeats": sendAndAbort(": ping\n\n"), "role": sendAndAbort(eventStream(deltaChunk(`{"role":"assistant"}`))),
	} {
		s, m := newEndpoint(t, Config{MaxRetries: 1}, cut, sendStream(helloStream))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		if n := len(s.receivedRequests()); err != nil || n != 2 {
			t.Errorf("%s: got error %v after %d requests, want none after 2", name, err, n)
		}
		_, m = newEndpoint(t, Config{}, cut)
		_, err = llmtest.Collect(t.Context(), m, testRequest)
		if e := requireError(t, err, llm.UpstreamTruncated); !e.Retryable || !e.Unavailable {
			t.Errorf("%s: got %+v, want a retryable error after which a fallback is asked", name, e)
		}
	}
}

// F4
func TestStreamCutByTheEndpointIsTruncated(t *testing.T) {
	for name, wire := range map[string]string{
		"between chunks": eventStream(textChunk("a")), "within a chunk": eventStream(textChunk("a")) + `data: {"choices":[{"del`,
	} {
		s, m := newEndpoint(t, Config{MaxRetries: 2}, sendAndAbort(wire))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		if e := requireError(t, err, llm.UpstreamTruncated); !e.Retryable || e.Unavailable {
			t.Errorf("%s: got %+v, want a retryable error after which no fallback is asked", name, e)
		}
		if n := len(s.receivedRequests()); n != 1 {
			t.Errorf("%s: got %d requests, want 1", name, n)
		}
	}
}

// F5
func TestStreamWithoutFinishReasonIsTruncated(t *testing.T) {
	for name, wire := range map[string]string{
		"end": eventStream(textChunk("a")), "DONE": eventStream(textChunk("a"), "[DONE]"), "nothing": "", "only heartbeats": ": ping\n\n",
		"within a chunk":      eventStream(textChunk("a")) + `data: {"choices":[{"del`,
		"null as text":        eventStream(`{"choices":[{"delta":{"content":"a"},"finish_reason":"null"}]}`),
		"empty finish_reason": eventStream(textChunk("a"), `{"choices":[{"delta":{},"finish_reason":""}]}`),
		"usage only":          eventStream(usageChunk, "[DONE]"),
	} {
		_, m := newEndpoint(t, Config{}, sendStream(wire))
		parts, err := llmtest.Collect(t.Context(), m, testRequest)
		requireError(t, err, llm.UpstreamTruncated)
		for _, p := range parts {
			if _, ok := p.(llm.Finish); ok {
				t.Errorf("%s: got %+v, want no Finish in an answer that was cut", name, p)
			}
		}
	}
}

func TestStreamEndsWithACutOrSilenceAfterFinishReason(t *testing.T) {
	want := llmtest.Lines(`text "a"`, `finish stop m-1`)
	for name, step := range map[string]http.HandlerFunc{"cut": sendAndAbort(eventStream(textChunk("a"), stopChunk)), "silence": sendAndWait(eventStream(textChunk("a"), stopChunk))} {
		_, m := newEndpoint(t, Config{IdleTimeout: 50 * time.Millisecond}, step)
		parts, err := llmtest.Collect(t.Context(), m, testRequest)
		if got := llmtest.FormatParts(parts); err != nil || got != want {
			t.Errorf("%s: got error %v and\n%swant\n%s", name, err, got, want)
		}
	}
}

func TestFinishReasonsOfProvidersAreThoseOfTheSpecification(t *testing.T) {
	for reason, want := range map[string]string{
		"model_length": "length", "MAX_TOKENS": "length", "SAFETY": "content_filter", "PROHIBITED_CONTENT": "content_filter", "content_filter: RECITATION": "content_filter", "STOP": "stop", "tool_calls": "tool_calls", "eos": "eos",
	} {
		_, m := newEndpoint(t, Config{}, sendStream(eventStream(textChunk("a"), `{"model":"m-1","choices":[{"delta":{},"finish_reason":"`+reason+`"}]}`)))
		parts, err := llmtest.Collect(t.Context(), m, testRequest)
		if got := llmtest.FormatParts(parts); err != nil || got != llmtest.Lines(`text "a"`, `finish `+want+` m-1`) {
			t.Errorf("%s: got error %v and\n%swant the reason %s", reason, err, got, want)
		}
	}
}

// An answer that the endpoint gave up is not complete. It is asked for again if nothing of it has been passed on.
func TestAnswerThatTheEndpointGaveUpIsAnError(t *testing.T) {
	for _, reason := range []string{"insufficient_system_resource", "MALFORMED_FUNCTION_CALL", "function_call_filter: MALFORMED_FUNCTION_CALL"} {
		end := `{"choices":[{"delta":{"content":""},"finish_reason":"` + reason + `"}]}`
		s, m := newEndpoint(t, Config{MaxRetries: 1}, sendStream(eventStream(end)), sendStream(helloStream))
		if _, err := llmtest.Collect(t.Context(), m, testRequest); err != nil || len(s.receivedRequests()) != 2 {
			t.Errorf("%s: got error %v after %d requests, want none after 2", reason, err, len(s.receivedRequests()))
		}
		_, m = newEndpoint(t, Config{MaxRetries: 1}, sendStream(eventStream(textChunk("a"), end)))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		if e := requireError(t, err, llm.ModelError); e.Public != publicFailing || !e.Retryable {
			t.Errorf("%s: got %+v, want a failure of the endpoint", reason, e)
		}
	}
}

// F6
func TestStreamReturnsATypedErrorForAnythingElse(t *testing.T) {
	replyEndlessly := func(w http.ResponseWriter, r *http.Request) {
		sendStream(eventStream(textChunk("a"))+"data: ")(w, r)
		for line := bytes.Repeat([]byte("x"), 1<<16); ; {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}
	for name, c := range map[string]struct {
		step   http.HandlerFunc
		public string
	}{
		"error object":            {sendStream(eventStream(textChunk("a"), `{"error":{"message":"SECRET","type":"server_error"}}`)), publicFailing},
		"error event":             {sendStream("event: error\ndata: {\"message\":\"SECRET\"}\n\n"), publicFailing},
		"error event, no JSON":    {sendStream("event: error\ndata: SECRET\n\n"), publicFailing},
		"error as text":           {sendStream(eventStream(`{"error":"SECRET"}`)), publicFailing},
		"error with status":       {sendStream(eventStream(textChunk("a"), `{"error":{"code":429,"message":"SECRET"}}`)), publicLimited},
		"finish_reason error":     {sendStream(eventStream(`{"choices":[{"delta":{},"finish_reason":"error"}]}`)), publicFailing},
		"whole error object, 200": {replyStatus(200, `{"error":{"message":"SECRET"}}`, "Content-Type", "application/json"), publicFailing},
		"garbage chunk":           {sendStream(eventStream(textChunk("a"), `SECRET`, stopChunk)), publicNonsense},
		"cut chunk in mid-stream": {sendStream(eventStream(`{"choices":[{"SECRET`, stopChunk)), publicNonsense},
		"wrong types":             {sendStream(eventStream(`{"choices":"SECRET"}`, stopChunk)), publicNonsense},
		"2 MiB chunk":             {sendStream(eventStream(textChunk(strings.Repeat("x", 2<<20)))), publicTooLarge},
		"endless chunk":           {replyEndlessly, publicTooLarge},
		"HTML":                    {replyStatus(200, "<!doctype html><h1>SECRET</h1>", "Content-Type", "text/html"), publicNonsense},
		"plain text":              {replyStatus(200, "SECRET", "Content-Type", "text/plain"), publicNonsense},
		"call without a name":     {sendStream(eventStream(deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}`), stopChunk)), publicNonsense},
		"redirect":                {replyStatus(307, "SECRET", "Location", "http://127.0.0.1:1/"), publicRedirect},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, m := newEndpoint(t, Config{}, c.step)
			_, err := llmtest.Collect(t.Context(), m, testRequest)
			kind := llm.ModelError
			if c.public == publicLimited {
				kind = llm.RateLimited
			}
			e := requireError(t, err, kind)
			if e.Public != c.public {
				t.Errorf("got public text %q, want %q", e.Public, c.public)
			}
			if text := e.Error(); strings.Contains(text, "SECRET") || len(text) > 300 {
				t.Errorf("got an error of %d bytes, want at most 300 without the body: %.300s", len(text), text)
			}
		})
	}
}

// F6, F9: no answer is without end.
func TestAnswerIsBounded(t *testing.T) {
	repeatChunk := func(head, chunk string, n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			sendStream(head)(w, r)
			for i := range n {
				if _, err := io.WriteString(w, strings.ReplaceAll(chunk, "$", fmt.Sprint(i))); err != nil {
					return
				}
			}
		}
	}
	big := strings.Repeat("x", 1<<19)
	for name, c := range map[string]struct {
		step   http.HandlerFunc
		public string
	}{
		"text":      {repeatChunk("", eventStream(textChunk(big)), 40), publicTooLarge},
		"arguments": {repeatChunk(eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}}]}`)), eventStream(deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"`+big+`"}}]}`)), 4), publicTooLarge},
		"200 calls": {repeatChunk("", eventStream(deltaChunk(`{"tool_calls":[{"index":$,"id":"c$","function":{"name":"f","arguments":"{}"}}]}`)), 200), publicTooManyCalls},
		"one piece": {replyStatus(200, `{"choices":[{"message":{"content":"`+strings.Repeat(big, 40)+`"}}]}`), publicTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, m := newEndpoint(t, Config{}, c.step)
			_, err := llmtest.Collect(t.Context(), m, testRequest)
			if e := requireError(t, err, llm.ModelError); e.Public != c.public {
				t.Errorf("got public text %q, want %q", e.Public, c.public)
			}
		})
	}
}

// F20: heartbeats keep a stream alive but not without end, and white space neither.
func TestResponseBytesAreBounded(t *testing.T) {
	for name, wire := range map[string]string{"heartbeats": ": ping\n", "blank lines": "\n", "empty events": "data:\n\n", "empty chunks": "data: {}\n\n"} {
		w := newIdleTimer(func(error) {}, time.Hour, time.Hour)
		var c partCollector
		res := &http.Response{Body: &timedBody{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat(wire, 10_000))), timer: w, remaining: 9000}}
		err := New(Config{}).readResponse(c.assembler(), w, res)
		w.stopTimer()
		if e := requireError(t, err, llm.ModelError); e.Public != publicTooLarge {
			t.Errorf("%s: got %+v, want %q", name, e, publicTooLarge)
		}
	}
}

// F7
func TestRetriesShareOneLimit(t *testing.T) {
	ok := sendStream(helloStream)
	inStream := sendStream(eventStream(`{"error":{"code":"503"}}`))
	for name, c := range map[string]struct {
		steps    []http.HandlerFunc
		requests int
		status   int // of the error; 0 is an answer
	}{
		"429 then fine":                {[]http.HandlerFunc{replyStatus(429, "", "Retry-After", "0"), ok}, 2, 0},
		"garbage Retry-After":          {[]http.HandlerFunc{replyStatus(429, "", "Retry-After", "soon"), ok}, 2, 0},
		"Retry-After an hour":          {[]http.HandlerFunc{replyStatus(429, "", "Retry-After", "3600"), ok}, 1, 429},
		"500 twice then fine":          {[]http.HandlerFunc{replyStatus(500, ""), replyStatus(500, "<html>"), ok}, 3, 0},
		"502, 504":                     {[]http.HandlerFunc{replyStatus(502, ""), replyStatus(504, ""), ok}, 3, 0},
		"408, 529":                     {[]http.HandlerFunc{replyStatus(408, ""), replyStatus(529, ""), ok}, 3, 0},
		"520, 524":                     {[]http.HandlerFunc{replyStatus(520, ""), replyStatus(524, ""), ok}, 3, 0},
		"409, 425":                     {[]http.HandlerFunc{replyStatus(409, ""), replyStatus(425, ""), ok}, 3, 0},
		"503 for ever":                 {[]http.HandlerFunc{replyStatus(503, "")}, 3, 503},
		"in the stream, nothing said":  {[]http.HandlerFunc{inStream, ok}, 2, 0},
		"in the stream, by type":       {[]http.HandlerFunc{sendStream(eventStream(`{"error":{"type":"server_error","message":"x","code":null}}`)), sendStream(eventStream(`{"error":{"type":"overloaded_error"}}`)), ok}, 3, 0},
		"in the stream, after a delta": {[]http.HandlerFunc{sendStream(eventStream(textChunk("a"), `{"error":{"code":503}}`)), ok}, 1, 503},
		"501":                          {[]http.HandlerFunc{replyStatus(501, ""), ok}, 1, 501},
		"400":                          {[]http.HandlerFunc{replyStatus(400, `{"error":{"message":"x"}}`), ok}, 1, 400},
		"404":                          {[]http.HandlerFunc{replyStatus(404, ""), ok}, 1, 404},
		"413":                          {[]http.HandlerFunc{replyStatus(413, ""), ok}, 1, 413},
		"422":                          {[]http.HandlerFunc{replyStatus(422, ""), ok}, 1, 422},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := newEndpoint(t, Config{MaxRetries: 2}, c.steps...)
			_, err := llmtest.Collect(t.Context(), m, testRequest)
			if c.status == 0 && err != nil {
				t.Errorf("error %v, want no error", err)
			}

			if c.status != 0 {
				kind := llm.ModelError
				if c.status == http.StatusTooManyRequests {
					kind = llm.RateLimited
				}
				if e := requireError(t, err, kind); e.Status != c.status {
					t.Errorf("got status %d, want %d", e.Status, c.status)
				}
			}

			requests := s.receivedRequests()
			if len(requests) != c.requests {
				t.Errorf("got %d requests, want %d", len(requests), c.requests)
			}

			for _, r := range requests[1:] {
				if !bytes.Equal(r.body, requests[0].body) {
					t.Errorf("got the body %s in a retry, want %s", r.body, requests[0].body)
				}
			}
		})
	}
}

func TestRetriesOfZeroMakeOneRequest(t *testing.T) {
	for _, n := range []int{0, -3} {
		s, m := newEndpoint(t, Config{MaxRetries: n}, replyStatus(503, ""))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		requireError(t, err, llm.ModelError)
		if n := len(s.receivedRequests()); n != 1 {
			t.Errorf("got %d requests, want 1", n)
		}
	}
}

// The log is where an operator finds out why, and where nothing may be repeated of what
// the endpoint was sent.
func TestErrorLogHasOnlyTheCodesOfTheEndpoint(t *testing.T) {
	for said, want := range map[string]string{
		`{"error":{"message":"SECRET","type":"invalid_request_error","code":"unsupported_parameter"}}`: "92 bytes, invalid_request_error, unsupported_parameter",
		`{"error":{"message":"SECRET","code":429}}`:                                                    "41 bytes, 429",
		`{"type":"overloaded_error","message":"SECRET"}`:                                               "46 bytes, overloaded_error",
		`{"error":{"code":"sk-SECRET","type":["x"]}}`:                                                  "43 bytes",
		`{"error":"SECRET"}`: "18 bytes",
		`SECRET`:             "6 bytes",
	} {
		if got := loggableCodes([]byte(said)); got != want {
			t.Errorf("loggableCodes(%s) = %s, want %s", said, got, want)
		}
	}
}

// F8. The endpoint repeats the key, as some do.
func TestRejectedCredentialsAreNotRetriedAndNeverShown(t *testing.T) {
	const key = "sk-CANARY-123"
	// The second reply repeats the key across the bound of what is read.
	for code, before := range map[int]int{401: 0, 403: maxErrorText - len(`{"error":{"message":"Incorrect API key provided: sk-CANARY`)} {
		var log bytes.Buffer
		s, m := newEndpoint(t, Config{APIKey: key, MaxRetries: 2, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))},
			replyStatus(code, strings.Repeat(" ", before)+`{"error":{"message":"Incorrect API key provided: `+key+`"}}`+strings.Repeat("x", 1<<20)))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		e := requireError(t, err, llm.ModelError)
		if e.Status != code || e.Retryable || e.Public != publicCredentials {
			t.Errorf("got %+v, want status %d and %q", e, code, publicCredentials)
		}

		for where, text := range map[string]string{"error": err.Error(), "details": fmt.Sprintf("%+v %#v", e, e.Err), "log": log.String()} {
			if strings.Contains(text, "CANARY") {
				t.Errorf("got the key in the %s, want none: %s", where, text)
			}
		}

		requests := s.receivedRequests()
		if len(requests) != 1 || requests[0].header.Get("Authorization") != "Bearer "+key {
			t.Errorf("got %d requests, the first with %v, want one with the key", len(requests), requests[0].header)
		}
	}
}

// Endpoints differ in what stands in an error reply; its status says what it is.
func TestErrorStatusDecidesWhateverTheBody(t *testing.T) {
	replyAndAbort := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		replyStatus(429, `{"error":`)(w, r)
	}
	for name, step := range map[string]http.HandlerFunc{
		"empty": replyStatus(429, ""), "text": replyStatus(429, "slow down"), "error as text": replyStatus(429, `{"error":"slow down"}`),
		"error as list": replyStatus(429, `{"error":[{"code":1}]}`), "no error": replyStatus(429, `{"detail":"slow down"}`), "breaks off": replyAndAbort,
	} {
		_, m := newEndpoint(t, Config{}, step)
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		if e := requireError(t, err, llm.RateLimited); e.Status != 429 || e.Public != publicLimited || !e.Retryable {
			t.Errorf("%s: got %+v, want status 429 and %q", name, e, publicLimited)
		}
	}
}

// F19: a redirect would carry the key and the prompt to another host.
func TestRedirectIsNotFollowed(t *testing.T) {
	other, _ := newEndpoint(t, Config{}, sendStream(helloStream))
	for _, code := range []int{301, 302, 307, 308} {
		_, m := newEndpoint(t, Config{APIKey: "k", MaxRetries: 2}, replyStatus(code, "", "Location", other.URL+"/v1/chat/completions"))
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		if e := requireError(t, err, llm.ModelError); e.Status != code {
			t.Errorf("got %+v, want status %d", e, code)
		}
	}
	if n := len(other.receivedRequests()); n != 0 {
		t.Errorf("got %d requests at the other host, want none", n)
	}
}

// F29
func TestStreamCancelledClosesTheConnection(t *testing.T) {
	for name, wire := range map[string]string{"before the first byte": "", "in mid-stream": eventStream(textChunk("a"))} {
		began, left := make(chan struct{}), make(chan struct{})
		_, m := newEndpoint(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			defer close(left)
			if wire != "" {
				sendStream(wire)(w, r)
			}
			close(began)
			<-r.Context().Done()
		})

		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-began; cancel() }()
		_, err := llmtest.Collect(ctx, m, testRequest)
		var e *llm.Error
		if !errors.Is(err, context.Canceled) || errors.As(err, &e) {
			t.Errorf("%s: got %v, want %v", name, err, context.Canceled)
		}
		<-left
	}
}

func TestStreamClosesTheConnectionWhenItsConsumerStops(t *testing.T) {
	left := make(chan struct{})
	_, m := newEndpoint(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		defer close(left)
		sendAndWait(eventStream(textChunk("a"), textChunk("b")))(w, r)
	})
	for _, err := range m.Stream(t.Context(), testRequest) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	<-left
}

func TestStreamReturnsTheErrorOfTheCallersDeadline(t *testing.T) {
	_, m := newEndpoint(t, Config{MaxRetries: 2}, sendAndWait(eventStream(textChunk("a"))))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := llmtest.Collect(ctx, m, testRequest); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

// F20: an error's body is read no further than it is of use.
func TestErrorBodyWithoutEndIsNotReadToItsEnd(t *testing.T) {
	wrote := make(chan int, 1)
	_, m := newEndpoint(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		n := 0
		defer func() { wrote <- n }()
		w.WriteHeader(400)
		for line := bytes.Repeat([]byte("x"), 1<<16); ; n += len(line) {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	})

	_, err := llmtest.Collect(t.Context(), m, testRequest)
	requireError(t, err, llm.ModelError)
	if n := <-wrote; n > 32<<20 { // what was not read lies in the sockets' buffers
		t.Errorf("the endpoint could send %d bytes, want at most %d", n, 32<<20)
	}
}

func TestBaseURLThatIsInvalidFailsWithoutRetries(t *testing.T) {
	for _, base := range []string{"::", "ftp://x/v1"} {
		m := New(Config{BaseURL: base})
		_, err := llmtest.Collect(t.Context(), m, testRequest)
		requireError(t, err, llm.ModelError)
	}
}
