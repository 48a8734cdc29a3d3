package transport

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// The SDK gets the same messages however the bytes are split, and only messages that concern it.
func TestEventStreamDeliversWhatConcernsTheSDK(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":3,"result":{"a":1}}`
	const ping = `{"jsonrpc":"2.0","id":"x","method":"ping","params":{}}`
	id, err := jsonrpc.MakeID(3.0)
	if err != nil {
		t.Fatal(err)
	}

	type delivered struct {
		messages, id string
		retry        time.Duration
	}

	for in, want := range map[string]delivered{
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
			x := startRoundTrip(t)
			c := newHTTPConn(&httpEndpoint{HTTPConfig: HTTPConfig{Logger: slog.New(slog.DiscardHandler)}})
			if _, err := c.Connect(x.ctx); err != nil {
				t.Fatal(err)
			}
			s := newEventStream(x, id, io.NopCloser(reader), slog.New(slog.DiscardHandler))

			m, err := c.readAnswer(t.Context(), s)
			if err == nil {
				_ = c.deliver(t.Context(), m)
			}

			// Compare what the SDK gets, and where the stream would be resumed.
			got := delivered{id: s.lastID(), retry: s.retry()}
			for range len(c.incoming) {
				b, err := jsonrpc.EncodeMessage(<-c.incoming)
				if err != nil {
					t.Fatal(err)
				}
				got.messages += string(b)
			}
			if got != want {
				t.Errorf("%q %s: got %+v, want %+v", in, name, got, want)
			}

			s.readToEnd()
			_ = c.Close()
			x.Finish()
			if x.ctx.Err() == nil {
				t.Error("got a RoundTrip that still has its context, want it freed")
			}
		}
	}
}

// Comments that keep a connection open do not end a stream, however long it has no message. A flood of them does.
func TestEventReaderBoundsCommentsByTime(t *testing.T) {
	const limit = 4 << 10
	for name, test := range map[string]struct {
		interval time.Duration
		want     error
	}{"each 15 s": {15 * time.Second, io.EOF}, "flood": {time.Millisecond, AnswerTooLarge(limit)}} {
		synctest.Test(t, func(t *testing.T) {
			comments := strings.NewReader(strings.Repeat(": ping - 2026-11-28 13:00:00.000000+00:00\n\n", 1000))
			events := newEventReader(readerFunc(func(p []byte) (int, error) {
				Pause(t.Context(), test.interval)
				return comments.Read(p[:min(len(p), 44)])
			}), limit)
			if _, _, _, err := events.nextMessage(); fmt.Sprint(err) != fmt.Sprint(test.want) {
				t.Errorf("%s: got the error %v, want %v", name, err, test.want)
			}
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// startRoundTrip returns a started RoundTrip of a session whose handlers do nothing.
func startRoundTrip(t *testing.T) *RoundTrip {
	t.Helper()
	x := &RoundTrip{Session: &Session{Handlers: Handlers{
		Protocol:     func() string { return "" },
		Request:      func(m *jsonrpc.Request, _ *RoundTrip) *jsonrpc.Request { return m },
		Notification: func(string, json.RawMessage) {},
		Progress:     func(*RoundTrip, json.RawMessage) {},
		Log:          func(*RoundTrip, json.RawMessage) {},
		Listening:    func(bool) {},
		Forgotten:    func() {},
	}}}
	x.Start(t.Context(), t.Context(), time.Now().Add(time.Hour))
	return x
}
