package webhook

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/auth/fetch"
)

// A service that speaks HTTP/2 has one connection for all questions, because each reply belongs to
// its stream. Before the first reply the client does not know what the service speaks.
func TestQuestionsOverHTTP2ShareAConnection(t *testing.T) {
	service := webhooktest.New(t, func(webhooktest.Question) string { return `{}` })
	web := httptest.NewUnstartedServer(service)
	web.EnableHTTP2 = true

	var opened atomic.Int64
	web.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}

	web.StartTLS()
	t.Cleanup(web.Close)

	c, err := New(Options{URL: web.URL, Secret: webhooktest.Secret, Transport: func(own http.RoundTripper) http.RoundTripper {
		own.(fetch.Transport).RoundTripper.(*http.Transport).TLSClientConfig = web.Client().Transport.(*http.Transport).TLSClientConfig
		return own
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)

	for range 5 {
		if _, err := c.Ask(t.Context(), Call{Hook: PreToolCall}); err != nil {
			t.Fatal(err)
		}
	}

	if n := opened.Load(); n > 2 {
		t.Errorf("%d connections for 5 questions, want 2 at most", n)
	}
}

// newServerThatRepliesTwice starts a service that sends every reply twice, as a broken proxy may, and returns
// its URL. The reply names the call that it is for.
func newServerThatRepliesTwice(t *testing.T) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { sendTwice(conn) })
		}
	})
	return "http://" + l.Addr().String()
}

// sendTwice answers every question of a connection with two copies of its reply.
func sendTwice(conn net.Conn) {
	defer conn.Close()
	for in := bufio.NewReader(conn); ; {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		var q webhooktest.Question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return
		}
		reply := fmt.Sprintf(`{"content":%q}`, q.CallID)
		whole := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(reply), reply)
		if _, err := io.WriteString(conn, whole+whole); err != nil {
			return
		}
	}
}

// F51
func TestReplySentTwiceIsForItsCallOnly(t *testing.T) {
	c := newClient(t, newServerThatRepliesTwice(t), webhooktest.Secret)
	wrong, lost := askInParallel(t, c, 200)
	if wrong > 0 || lost > 0 {
		t.Errorf("%d of 1,600 calls got the reply to another call and %d got no reply, want 0 and 0", wrong, lost)
	}
}

// F51: a service that spoke HTTP/2 is replaced by one that speaks HTTP/1.1. Questions that are on
// their way then may share a connection. They may get no reply, but not another call's.
func TestReplySentTwiceAfterHTTP2IsForItsCallOnly(t *testing.T) {
	c := newClient(t, newServerThatRepliesTwice(t), webhooktest.Secret)
	for range 200 {
		c.http2.Store(true)
		if wrong, _ := askInParallel(t, c, 2); wrong > 0 {
			t.Fatalf("%d of 16 calls got the reply to another call, want 0", wrong)
		}
	}
}

// askInParallel asks 8 times n questions, and returns how many got another call's reply and how
// many got none.
func askInParallel(t *testing.T, c *Client, n int) (wrong, lost int64) {
	var others, missing atomic.Int64
	var asking sync.WaitGroup
	for worker := range 8 {
		asking.Go(func() {
			for i := range n {
				id := fmt.Sprintf("call_%d_%d", worker, i)
				switch r, err := c.Ask(t.Context(), Call{Hook: PreToolCall, CallID: id}); {
				case err != nil:
					missing.Add(1)
				case r.Text == nil || *r.Text != id:
					others.Add(1)
				}
			}
		})
	}
	asking.Wait()
	return others.Load(), missing.Load()
}

// F51: replies may come in any order. Here the question that arrives last is answered first.
func TestRepliesInAnotherOrderAreForTheirCalls(t *testing.T) {
	const n = 20
	var turns [n + 1]chan struct{}
	for i := range turns {
		turns[i] = make(chan struct{})
	}

	close(turns[n])
	var arrived atomic.Int64
	all := make(chan struct{})
	s := webhooktest.New(t, func(q webhooktest.Question) string {
		at := arrived.Add(1)
		if at == n {
			close(all)
		}
		<-all
		<-turns[at]
		close(turns[at-1])
		return fmt.Sprintf(`{"content":%q}`, q.CallID)
	})

	c := newClient(t, s.URL, webhooktest.Secret)
	var asking sync.WaitGroup
	for i := range n {
		asking.Go(func() {
			id := fmt.Sprintf("call_%d", i)
			if r, err := c.Ask(t.Context(), Call{Hook: ToolResult, CallID: id}); err != nil || r.Text == nil || *r.Text != id {
				t.Errorf("the reply to %s is %v, %v, want its own", id, r, err)
			}
		})
	}
	asking.Wait()
}
