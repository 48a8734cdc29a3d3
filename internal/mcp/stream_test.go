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

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// F11: what the SDK gets is the same however the bytes come, and only what concerns
// it.
func TestStreamPassesWhatConcernsTheSDK(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":3,"result":{"a":1}}`
	id, err := jsonrpc.MakeID(3.0)
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"data: " + answer + "\n\n":                        "data: " + answer + "\n\n",
		"data:" + answer + "\r\n\r\n":                     "data: " + answer + "\n\n",
		"event: message\nid: 1\ndata: " + answer + "\n\n": "id: 1\ndata: " + answer + "\n\n",
		"data: " + answer + "\n":                          "data: " + answer + "\n\n",
		"data: " + answer:                                 "data: " + answer + "\n\n",
		"data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":3,\ndata: \"result\":{\"a\":1}}\n\n":                              "data: {\"jsonrpc\":\"2.0\", \"id\":3, \"result\":{\"a\":1}}\n\n",
		": hello\n\n: hello\n\ndata: " + answer + "\n\n":                                                             "data: " + answer + "\n\n",
		"event: other\ndata: x\n\ndata: " + answer + "\n\n":                                                          "data: " + answer + "\n\n",
		"id: 1\nretry: 99999999999\n\ndata: " + answer + "\n\n":                                                      "id: 1\n\ndata: " + answer + "\n\n",
		"id: 1\nretry: 500\ndata:\n\ndata: " + answer + "\n\nid":                                                     "id: 1\nretry: 500\n\ndata: " + answer + "\n\n",
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\ndata: " + answer + "\n\n": "data: " + answer + "\n\n",
		"data: " + answer + "\n\ndata: " + answer + "\n\n":                                                           "data: " + answer + "\n\n", // one answer
		"data: {\"jsonrpc\":\"2.0\",\"id\":3,":                                                                       "",                         // cut
	} {
		for name, reader := range map[string]io.Reader{
			"whole": strings.NewReader(in), "byte by byte": iotest.OneByteReader(strings.NewReader(in)),
			"data with the end": iotest.DataErrReader(strings.NewReader(in)),
		} {
			x := newExchange(t.Context(), t.Context(), time.Now().Add(time.Hour))
			x.session = &session{ready: make(chan struct{})}
			x.opened()
			s := newStream(x, id, io.NopCloser(reader), quietLog())
			got, err := io.ReadAll(s)
			if err != nil || string(got) != want {
				t.Errorf("%q %s: %q %v, want %q", in, name, got, err, want)
			}
			if raw := x.received(); want != "" && string(raw) != `{"a":1}` {
				t.Errorf("%q %s: result %s", in, name, raw)
			}
			_ = s.Close()
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
	c := open(t, Options{}, ServerConfig{Name: "a", URL: serve(t, s).URL})
	res, err := c.Call(context.Background(), Call{Tool: "t"})
	must(t, res, err)
	if other.Load() != 0 {
		t.Error("something else was answered")
	}
}
