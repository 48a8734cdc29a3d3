package mcp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"answerd/internal/mcp/config"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// F11: what the SDK gets is the same however the bytes come, and only what concerns
// it.
func TestStreamPassesWhatConcernsTheSDK(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":3,"result":{"a":1}}`
	const ping = `{"jsonrpc":"2.0","id":"x","method":"ping"}`
	id, err := jsonrpc.MakeID(3.0)
	if err != nil {
		t.Fatal(err)
	}
	type passed struct {
		messages, id string
		retry        time.Duration
	}
	for in, want := range map[string]passed{
		"data: " + answer + "\n\n":                        {messages: answer},
		"data:" + answer + "\r\n\r\n":                     {messages: answer},
		"event: message\nid: 1\ndata: " + answer + "\n\n": {messages: answer, id: "1"},
		"data: " + answer + "\n":                          {messages: answer},
		"data: " + answer:                                 {messages: answer},
		"data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":3,\ndata: \"result\":{\"a\":1}}\n\n":                                                    {messages: answer},
		": hello\n\n: hello\n\ndata: " + answer + "\n\n":                                                                                   {messages: answer},
		"event: other\ndata: x\n\ndata: " + answer + "\n\n":                                                                                {messages: answer},
		"id: 1\nretry: 99999999999\n\ndata: " + answer + "\n\n":                                                                            {messages: answer, id: "1"},
		"id: 1\nretry: 500\ndata:\n\ndata: " + answer + "\n\nid":                                                                           {messages: answer, id: "1", retry: 500 * time.Millisecond},
		"id: a\x00b\n\nid: " + strings.Repeat("x", maxEventID+1) + "\n\ndata: " + answer + "\n\n":                                          {messages: answer}, // no header can carry them
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\ndata: " + ping + "\n\ndata: " + answer + "\n\n": {messages: ping + answer},
		"data: " + answer + "\n\ndata: " + answer + "\n\n":                                                                                 {messages: answer}, // one answer
		"data: {\"jsonrpc\":\"2.0\",\"id\":3,":                                                                                             {},                 // cut
	} {
		for name, reader := range map[string]io.Reader{
			"whole": strings.NewReader(in), "byte by byte": iotest.OneByteReader(strings.NewReader(in)),
			"data with the end": iotest.DataErrReader(strings.NewReader(in)),
		} {
			x := newExchange(t.Context(), t.Context(), time.Now().Add(time.Hour))
			x.session = &session{ready: make(chan struct{})}
			x.opened()
			c := newStreamable(&site{log: quietLog()})
			if _, err := c.Connect(x.ctx); err != nil {
				t.Fatal(err)
			}
			s := newStream(x, id, io.NopCloser(reader), quietLog())
			m, err := c.pass(t.Context(), s)
			if err == nil {
				_ = c.deliver(t.Context(), m)
			}
			got := passed{id: s.lastID(), retry: s.retry()}
			for range len(c.in) {
				b, err := jsonrpc.EncodeMessage(<-c.in)
				if err != nil {
					t.Fatal(err)
				}
				got.messages += string(b)
			}
			if got != want {
				t.Errorf("%q %s: %+v, want %+v", in, name, got, want)
			}
			s.finish()
			_ = c.Close()
			x.finish()
			if x.ctx.Err() == nil {
				t.Error("the exchange holds on to its context")
			}
		}
	}
}

// A server may ask in the middle of a call, and gets an answer.
func TestServerThatPingsDuringACall(t *testing.T) {
	answered := make(chan string, 1)
	var other atomic.Int64
	s := &script{
		before: func(w http.ResponseWriter, r *http.Request) bool {
			if b := peek(r); r.Method == http.MethodPost && !strings.Contains(b, `"method"`) {
				answered <- b
				w.WriteHeader(http.StatusAccepted)
				return true
			}
			return false
		},
		call: func(w http.ResponseWriter, r *http.Request, m message) {
			send := events(w)
			send("data: {\"jsonrpc\":\"2.0\",\"id\":\"ask\",\"method\":\"ping\"}\n\n")
			select {
			case b := <-answered:
				if !strings.Contains(b, `"id":"ask"`) {
					other.Add(1)
				}
			case <-r.Context().Done():
			}
			send(fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", m.ID, text("ok")))
		},
	}
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
	res, err := c.Call(context.Background(), Call{Tool: "t"})
	must(t, res, err)
	if other.Load() != 0 {
		t.Error("something else was answered")
	}
}
