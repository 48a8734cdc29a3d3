package transport

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// sendCancellation sends a cancellation over HTTP, of a call that was sent that long ago and with a
// context that has ended, and waits until it is no longer sent again.
func sendCancellation(t *testing.T, age time.Duration, way roundTripFunc) {
	c, x := newConnectedHTTP(t, way)
	x.sent.Store(true)
	x.sentAt.Store(time.Now().Add(-age).UnixNano())
	over, end := context.WithCancel(x.ctx)
	end()
	if err := c.Write(over, &jsonrpc.Request{Method: notificationCancelled, Params: json.RawMessage(`{"requestId":1}`)}); err != nil {
		t.Errorf("Write: got %v, want no error, which would end the session", err)
	}
	c.background.Wait()
	_ = c.Close()
}

// A machine that stands still may use up the 5 s that the SDK gives a cancellation, and the time in
// which it is resent, before it has got through at all.
func TestCancelRequestIsResentUntilItGetsThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var through []time.Duration
		sendCancellation(t, 0, func(r *http.Request) (*http.Response, error) {
			if time.Since(began) < 10*time.Second {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			through = append(through, time.Since(began))
			return newEmptyReply(r, http.StatusAccepted), nil
		})
		if len(through) != 1 {
			t.Errorf("got it through after %v, want it once", through)
		}
	})
}

// A cancellation that the server refuses got through, and one that never gets through is given up.
func TestCancelRequestIsNotResentInVain(t *testing.T) {
	for name, tc := range map[string]struct {
		age   time.Duration
		reply func(*http.Request) (*http.Response, error)
		times int
	}{
		"taken":             {maxReadDelay, func(r *http.Request) (*http.Response, error) { return newEmptyReply(r, http.StatusAccepted), nil }, 1},
		"refused":           {maxReadDelay, func(r *http.Request) (*http.Response, error) { return newEmptyReply(r, http.StatusBadRequest), nil }, 1},
		"refused, and new":  {0, func(r *http.Request) (*http.Response, error) { return newEmptyReply(r, http.StatusBadRequest), nil }, 7},
		"nobody is there":   {maxReadDelay, func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, 9},
		"there is no reply": {maxReadDelay, func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }, 9},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, times := time.Now(), 0
			sendCancellation(t, tc.age, func(r *http.Request) (*http.Response, error) { times++; return tc.reply(r) })
			if took := time.Since(began); times != tc.times || took > 31*time.Second {
				t.Errorf("%s: got it sent %d times in %v, want %d times in at most 31s", name, times, took, tc.times)
			}
		})
	}
}

// The answer to a question of the server, which a person may have given, is sent again if it did not get through.
func TestAnswerToAServersRequestIsSentUntilItGetsThrough(t *testing.T) {
	for name, tc := range map[string]struct {
		status int // of the first two replies; 0: there is no connection
		posts  int
	}{"busy": {http.StatusServiceUnavailable, 3}, "gateway": {http.StatusBadGateway, 3}, "no connection": {0, 3}, "refused": {http.StatusBadRequest, 1}, "gone": {http.StatusNotFound, 1}} {
		synctest.Test(t, func(t *testing.T) {
			posts := 0
			c, x := newConnectedHTTP(t, acceptThirdPost(tc.status, &posts))
			if err := c.Write(x.ctx, &jsonrpc.Response{Result: json.RawMessage(`{}`)}); err != nil || posts != tc.posts {
				t.Errorf("%s: got %v after %d POSTs, want no error after %d", name, err, posts, tc.posts)
			}
			_ = c.Close()
		})
	}
}

// Reading the first stream panics, and so does sending the next GET; the third stream works.
func TestStandaloneStreamIsReopenedAfterPanic(t *testing.T) {
	readPing(t, 3, func(n int, r *http.Request) *http.Response {
		if n == 2 {
			panic("a defect")
		}
		resp := newStreamReply(r, pingEvent)
		if n == 1 {
			resp.Body = panickingBody{resp.Body}
		}
		return resp
	})
}

// A stream has been open, so a reply without one, such as of a proxy while the server is replaced, does not
// mean that there are no streams. A server that no longer has the last event is asked without it.
func TestStandaloneStreamIsReopenedAfterARefusal(t *testing.T) {
	for name, status := range map[string]int{
		"page of a proxy": http.StatusOK, "not found": http.StatusNotFound, "not allowed": http.StatusMethodNotAllowed,
		"not implemented": http.StatusNotImplemented, "unavailable": http.StatusServiceUnavailable,
	} {
		t.Run(name, func(t *testing.T) {
			readPing(t, 3, func(n int, r *http.Request) *http.Response {
				return []*http.Response{newStreamReply(r, ""), newEmptyReply(r, status), newStreamReply(r, pingEvent)}[n-1]
			})
		})
	}
	for _, status := range []int{http.StatusBadRequest, http.StatusNotFound} {
		t.Run(fmt.Sprint("event forgotten, ", status), func(t *testing.T) {
			readPing(t, 3, func(n int, r *http.Request) *http.Response {
				switch {
				case n == 1:
					return newStreamReply(r, "id: 7\n\n")
				case r.Header.Get("Last-Event-ID") != "":
					return newEmptyReply(r, status)
				}
				return newStreamReply(r, pingEvent)
			})
		})
	}
}

// Servers without the stream answer the first GET not only with 405, which the specification demands. They are not
// asked again. One that fails, or is busy, is.
func TestStandaloneStreamIsOpenedUntilTheServerDoesNotHaveIt(t *testing.T) {
	for status, again := range map[int]bool{
		http.StatusBadRequest: false, http.StatusNotFound: false, http.StatusMethodNotAllowed: false, http.StatusNotAcceptable: false, http.StatusNotImplemented: false,
		http.StatusTooManyRequests: true, http.StatusInternalServerError: true, http.StatusServiceUnavailable: true, http.StatusForbidden: true,
	} {
		synctest.Test(t, func(t *testing.T) {
			gets := 0
			c, _ := newConnectedHTTP(t, func(r *http.Request) (*http.Response, error) {
				gets++
				return newEmptyReply(r, status), nil
			})
			c.openStandaloneStream()
			Pause(t.Context(), time.Hour)
			_ = c.Close()
			if gets > 1 != again {
				t.Errorf("%d: got %d GETs, want more than one: %t", status, gets, again)
			}
		})
	}
}

// An event that is too large is not asked for again and again.
func TestStandaloneStreamContinuesAfterAnEventThatIsTooLarge(t *testing.T) {
	large := "id: 7\n\nid: 8\ndata: " + strings.Repeat("x", MaxMessage) + "\n\n"
	readPing(t, 2, func(n int, r *http.Request) *http.Response {
		if n == 1 || r.Header.Get("Last-Event-ID") != "" {
			return newStreamReply(r, large)
		}
		return newStreamReply(r, pingEvent)
	})
}

// The reconnection time that a server has asked for holds for each GET, also after several streams that soon ended.
func TestStandaloneStreamIsNotReopenedBeforeTheReconnectionTime(t *testing.T) {
	var last time.Time
	readPing(t, 6, func(n int, r *http.Request) *http.Response {
		if waited := time.Since(last); n > 1 && waited < 30*time.Second {
			t.Errorf("GET %d: got it %v after the one before, want at least 30 s", n, waited)
		}
		last = time.Now()
		if n == 6 {
			return newStreamReply(r, pingEvent)
		}
		return newStreamReply(r, "retry: 30000\n\n")
	})
}

// A server that is busy says when the next GET may be made.
func TestStandaloneStreamIsNotReopenedBeforeRetryAfter(t *testing.T) {
	var last time.Time
	readPing(t, 3, func(n int, r *http.Request) *http.Response {
		if waited := time.Since(last); n > 1 && waited < 50*time.Second {
			t.Errorf("GET %d: got it %v after the one before, want at least 50 s", n, waited)
		}
		last = time.Now()
		if n == 3 {
			return newStreamReply(r, pingEvent)
		}
		resp := newEmptyReply(r, []int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[n-1])
		resp.Header.Set("Retry-After", "50")
		return resp
	})
}

const pingEvent = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n"

// readPing opens the standalone stream of a session without an id, and fails the test unless the reply to the
// GET with that number, which starts at 1, brings a ping.
func readPing(t *testing.T, gets int, reply func(n int, r *http.Request) *http.Response) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c, _ := newConnectedHTTP(t, func(r *http.Request) (*http.Response, error) {
			n++
			return reply(n, r), nil
		})
		c.openStandaloneStream()
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		m, err := c.Read(ctx)
		if r, ok := m.(*jsonrpc.Request); err != nil || !ok || r.Method != "ping" || n != gets {
			t.Errorf("Read: got %v, %v after %d GETs, want a ping after %d", m, err, n, gets)
		}
		_ = c.Close()
	})
}

// newConnectedHTTP returns a connection whose requests are answered by reply, and the RoundTrip in which it was
// connected, which ends with the test.
func newConnectedHTTP(t *testing.T, reply roundTripFunc) (*httpConn, *RoundTrip) {
	t.Helper()
	c := newHTTPConn(&httpEndpoint{HTTPConfig: HTTPConfig{RoundTripper: reply, URL: "http://server.test", Logger: slog.New(slog.DiscardHandler)}})
	x := startRoundTrip(t)
	t.Cleanup(x.Finish)
	if _, err := c.Connect(x.ctx); err != nil {
		t.Fatal(err)
	}
	return c, x
}

// acceptThirdPost answers the first two requests with status, or with no reply if it is 0, and accepts all others.
// It counts them in posts.
func acceptThirdPost(status int, posts *int) roundTripFunc {
	return func(r *http.Request) (*http.Response, error) {
		switch *posts++; {
		case *posts > 2:
			return newEmptyReply(r, http.StatusAccepted), nil
		case status == 0:
			return nil, io.ErrUnexpectedEOF
		}
		return newEmptyReply(r, status), nil
	}
}

// newStreamReply returns a reply with an event stream of that text.
func newStreamReply(r *http.Request, text string) *http.Response {
	resp := newEmptyReply(r, http.StatusOK)
	resp.Header.Set("Content-Type", "text/event-stream")
	resp.Body = io.NopCloser(strings.NewReader(text))
	return resp
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// newEmptyReply returns a reply without a body that no server sent.
func newEmptyReply(r *http.Request, status int) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: r,
	}
}

type panickingBody struct{ io.ReadCloser }

func (panickingBody) Read([]byte) (int, error) { panic("a defect") }

// A server over HTTP+SSE may send events and comments forever, but no endpoint event: the handshake
// ends with its time, and the stream is closed.
func TestLegacySSEWithoutEndpointIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			for {
				if _, err := io.WriteString(writer, ": ping\n\nevent: hello\ndata: {}\n\n"); err != nil {
					return
				}
				<-time.After(time.Second)
			}
		}()

		base, err := url.Parse("http://server.test/sse")
		if err != nil {
			t.Fatal(err)
		}

		e := NewLegacySSE(LegacySSEConfig{URL: base, Logger: slog.New(slog.DiscardHandler), RoundTripper: roundTripFunc(func(r *http.Request) (*http.Response, error) {
			context.AfterFunc(r.Context(), func() { _ = reader.Close() }) // as net/http ends a body
			return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: reader}, nil
		})})

		x := startRoundTrip(t)
		defer x.Finish()
		ctx, cancel := context.WithTimeout(x.ctx, 10*time.Second)
		defer cancel()
		began := time.Now()
		if conn, err := e.NewTransport().Connect(ctx); err == nil {
			_ = conn.Close()
			t.Error("Connect: got no error, want one")
		}
		if took := time.Since(began); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("Connect: got an end after %v, want one after 10 s", took)
		}
		<-closed
		e.Close()
	})
}
