package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
)

// F38
func TestAHundredRequestsOfOneKeyAreOneRun(t *testing.T) {
	s := serve(t, adds(), nil, nil)
	var all sync.WaitGroup
	runs := make([]string, 100)
	for i := range runs {
		all.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/answer", strings.NewReader(question))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Idempotency-Key", "k")
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var a answer
			if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != 200 {
				t.Errorf("%s: %v", resp.Status, err)
			}
			runs[i] = a.RunID
		})
	}
	all.Wait()
	for _, run := range runs {
		if run != runs[0] || run == "" {
			t.Errorf("%s beside %s", run, runs[0])
		}
	}
	if n := len(s.Model.Requests()); n != 2 {
		t.Errorf("%d model requests", n)
	}
}

// connections counts those that a server has let go.
type connections struct {
	mu     sync.Mutex // protects closed
	closed int
	target int
	done   chan struct{} // closed when the target is reached
}

func (c *connections) state(_ net.Conn, s http.ConnState) {
	if s != http.StateClosed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed++; c.closed == c.target {
		close(c.done)
	}
}

// F31: a thousand readers that vanish at once leave nothing behind (goroutines are
// TestMain's to count), and the run that they read goes on for the one who stays.
func TestAThousandStreamsDroppedAtOnceLeaveNothingBehind(t *testing.T) {
	const readers = 1000
	open := make(chan struct{})
	house := agenttest.Build(t, holds(open), nil)
	gone := &connections{target: readers, done: make(chan struct{})}
	server := httptest.NewUnstartedServer(api.New(api.Options{Agent: house.Agent, Log: house.Log, Heartbeat: time.Hour}))
	server.Config.ConnState = gone.state
	server.Start()
	t.Cleanup(server.Close)
	s := &service{House: house, Server: server}
	stays := s.do(t, "POST", "/answer/stream", question)
	seen := frames(t, stays, "text_delta")
	run, _, _ := strings.Cut(seen[0].ID, ":")

	files := openFiles(t)
	conns := make([]net.Conn, readers)
	for i := range conns {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c
		if _, err := fmt.Fprintf(c, "GET /runs/%s/events HTTP/1.1\r\nHost: localhost\r\n\r\n", run); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(c); lines.Scan() && lines.Text() != "event: text_delta"; {
		}
	}
	for _, c := range conns {
		_ = c.(*net.TCPConn).SetLinger(0) // a reset and not a goodbye
		c.Close()
	}
	<-gone.done
	if now := openFiles(t); now > files+5 {
		t.Errorf("%d files are open, and %d were", now, files)
	}
	close(open)
	if rest := frames(t, stays, ""); len(rest) == 0 || rest[len(rest)-1].Event != "final_answer" {
		t.Errorf("who stayed got %s", events(rest))
	}
	_, _ = io.Copy(io.Discard, stays.Body)
}

// openFiles is how many descriptors the process has; 0 where that can't be seen.
func openFiles(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Log("descriptors are not counted here:", err)
	}
	return len(list)
}
