package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// okAnswer is an answer with the text "ok"; ID stands for the id of the request.
var okAnswer = `{"jsonrpc":"2.0","id":ID,"result":` + textResult("ok") + `}`

// nullAnswer is okAnswer with null for every member that it does not use.
var nullAnswer = `{"jsonrpc":"2.0","id":ID,"method":null,"params":null,"result":` + textResult("ok") + `,"error":null}`

const logNotification = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`

// stringIDAnswer is okAnswer with the id as a string.
var stringIDAnswer = strings.Replace(okAnswer, "ID", `"ID"`, 1)

// unusualReplies are replies in a form that few servers use, and that the official SDKs read.
var unusualReplies = map[string]struct{ contentType, body string }{
	"parameter without a value":            {jsonType + "; charset", okAnswer},
	"parameter that is repeated":           {jsonType + "; charset=utf-8; charset=UTF-8", okAnswer},
	"parameter that is repeated, a stream": {eventStream + ";charset=utf-8;charset=UTF-8", "data: " + okAnswer + "\n\n"},
	"batch":                                {jsonType, "[" + logNotification + "," + okAnswer + "]"},
	"batch of an answer, a stream":         {eventStream, "data: [" + okAnswer + "]\n\n"},
	"batches, a stream":                    {eventStream, "data: [" + logNotification + "," + logNotification + "]\n\ndata: [" + logNotification + ",\ndata: " + okAnswer + "]\n\n"},
	"byte order mark":                      {jsonType, "\ufeff" + okAnswer},
	"id as a string":                       {jsonType, stringIDAnswer},
	"id as a string, a stream":             {eventStream, "data: " + stringIDAnswer + "\n\n"},
	"events that are not JSON-RPC":         {eventStream, "data: ping\n\ndata: {}\n\ndata: {\"type\":\"ping\"}\n\ndata: " + okAnswer + "\n\ndata: [DONE]\n\n"},
	"null for unused members":              {jsonType, nullAnswer},
	"null for unused members, a stream":    {eventStream, "data: " + nullAnswer + "\n\n"},
}

func TestCallReadsUnusualReplies(t *testing.T) {
	for name, reply := range unusualReplies {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, &scriptedServer{call: bodyReply(reply.contentType, reply.body)}).URL})
			res, err := c.Call(t.Context(), Call{Tool: "t"})
			if got := mustResult(t, res, err).Text(); got != "ok" {
				t.Errorf("got the text %q, want ok", got)
			}
		})
	}
}

func TestStreamConnReadsUnusualAnswers(t *testing.T) {
	for _, answer := range []string{nullAnswer, stringIDAnswer} {
		c := newPipedClient(t, Options{}, config.Server{}, scriptedPeer(func(m message, say func(string)) { say(strings.ReplaceAll(answer, "ID", string(m.ID))) }))
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		if got := mustResult(t, res, err).Text(); got != "ok" {
			t.Errorf("%s: got the text %q, want ok", answer, got)
		}
	}
}

// JSON-RPC section 5: the id of an error is null if the server could not read that of the request. Over HTTP
// the reply to a POST can only be about that POST.
func TestErrorWithoutAnIDFailsItsCallWithItsReason(t *testing.T) {
	for name, answer := range map[string]string{
		"null":    `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad city"}}`,
		"missing": `{"jsonrpc":"2.0","error":{"code":-32602,"message":"bad city"}}`,
	} {
		for contentType, body := range map[string]string{jsonType: answer, eventStream: "data: " + answer + "\n\n"} {
			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, &scriptedServer{call: bodyReply(contentType, body)}).URL})
			_, err := c.Call(t.Context(), Call{Tool: "t"})
			if e := mustFail(t, err); e.Kind != InvalidArguments || !strings.Contains(e.Message, "bad city") {
				t.Errorf("%s, %s: got the error %v, want %s with the server's reason", name, contentType, e, InvalidArguments)
			}
		}
	}
}

// openBody is the body of a reply that has no end.
type openBody struct{ ctx context.Context }

func (b openBody) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, b.ctx.Err()
}

func (openBody) Close() error { return nil }

// Some servers work before they reply to notifications/initialized, and others never end that reply.
func TestServerWithASlowReplyToInitializedIsConnected(t *testing.T) {
	for name, slow := range map[string]func(*http.Response, *http.Request){
		"before it": func(*http.Response, *http.Request) { <-time.After(4 * time.Second) },
		"within it": func(resp *http.Response, r *http.Request) { resp.Body = openBody{r.Context()} },
	} {
		synctest.Test(t, func(t *testing.T) {
			newTransport := func(http.RoundTripper) http.RoundTripper {
				return roundTripFunc(func(r *http.Request) (*http.Response, error) {
					initialized := r.Method == http.MethodPost && strings.Contains(peekBody(r), "notifications/initialized")
					resp, err := handlerTransport{&scriptedServer{}}.RoundTrip(r)
					if err == nil && initialized {
						slow(resp, r)
					}
					return resp, cmp.Or(err, r.Context().Err())
				})
			}

			c := newClient(t, Options{Transport: newTransport}, config.Server{Name: "a", URL: "http://localhost"})
			began := time.Now()

			for c.Servers()[0].State == Connecting {
				<-time.After(time.Millisecond)
			}

			if st, took := c.Servers()[0], time.Since(began); st.State != Connected || took > 4*time.Second+time.Millisecond {
				t.Errorf("%s: got the state %s (%s) after %s, want %s after at most 4 s", name, st.State, st.Reason, took, Connected)
			}
			_ = c.Close()
		})
	}
}

// A server may ping all through a call that takes long.
func TestPingsOfALongCallAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newTransport := func(http.RoundTripper) http.RoundTripper {
			return roundTripFunc(func(r *http.Request) (*http.Response, error) {
				var m message
				if r.Method == http.MethodPost {
					_ = json.Unmarshal([]byte(peekBody(r)), &m)
				}
				if m.Method != methodCall {
					return handlerTransport{&scriptedServer{}}.RoundTrip(r)
				}
				out, in := io.Pipe()
				go func() {
					for i := range 200 {
						<-time.After(5 * time.Second)
						fmt.Fprintf(in, "data: {\"jsonrpc\":\"2.0\",\"id\":\"ping-%d\",\"method\":\"ping\"}\n\n", i)
					}
					fmt.Fprintf(in, "data: %s\n\n", strings.ReplaceAll(okAnswer, "ID", string(m.ID)))
					_ = in.Close()
				}()
				resp := emptyReply(r, http.StatusOK)
				resp.Header.Set("Content-Type", eventStream)
				resp.Body = out
				return resp, nil
			})
		}

		c := newClient(t, Options{Transport: newTransport}, config.Server{Name: "a", URL: "http://localhost", MaxTime: time.Hour})
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		if err != nil || res.Text() != "ok" {
			t.Errorf("got %v, %v, want ok", res, err)
		}
		_ = c.Close()
	})
}

// An error about a tool's own sessions leaves that of the connection alone, and the tool does not run twice.
func TestErrorAboutASessionOfATool(t *testing.T) {
	for code, want := range map[int]transport.Kind{-32602: InvalidArguments, -32603: Execution, 17: Execution} {
		var calls atomic.Int64
		s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
			calls.Add(1)
			w.Header().Set("Content-Type", jsonType)
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"browser_session is required"}}`, m.ID, code)
		}}
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != want || !strings.Contains(e.Message, "browser_session is required") {
			t.Errorf("%d: got the error %v, want %s with the server's message", code, e, want)
		}
		if calls.Load() != 1 || s.initializes.Load() != 1 {
			t.Errorf("%d: got %d calls after %d handshakes, want 1 after 1", code, calls.Load(), s.initializes.Load())
		}
	}
}

// Servers in JavaScript that cut a text in the middle of an emoji send half a surrogate pair. Many JSON parsers refuse a
// whole document for it (RFC 8259 section 8.2), so events must not have it.
func TestHalfASurrogatePairIsReplacedInResults(t *testing.T) {
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m.ID, `{"content":[{"type":"text","text":"party \ud83c"}],"structuredContent":{"a":"\ud83c\udf89","b":"\udf89"}}`)
	}}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	got := mustResult(t, res, err)
	if text, structured := string(got.Content[0]), string(got.Structured); strings.Contains(text, `\ud83c`) || structured != "{\"a\":\"\U0001f389\",\"b\":\"\ufffd\"}" {
		t.Errorf("got %s and %s, want whole pairs only", text, structured)
	}
}
