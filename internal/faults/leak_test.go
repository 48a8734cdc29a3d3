package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// resourceUse is what a process without load uses.
type resourceUse struct {
	goroutines, descriptors, heap, runs float64 // runs so far
	children                            int
}

func (h resourceUse) String() string {
	return fmt.Sprintf("%.0f goroutines, %.0f descriptors, %.1f MiB heap, %d children", h.goroutines, h.descriptors, h.heap/(1<<20), h.children)
}

// waitUntilAtRest waits for two garbage collections, because pools are emptied at the second, and
// for what is over to be gone: at most as much as before, if that ever comes true.
func (s *service) waitUntilAtRest(t testing.TB, before *resourceUse) (now resourceUse) {
	t.Helper()
	s.client.CloseIdleConnections()
	s.waitUntilIdle(t)
	for deadline := time.Now().Add(15 * time.Second); ; {
		for gcs := s.metric(t, "go_gc_duration_seconds_count") + 2; s.metric(t, "go_gc_duration_seconds_count") < gcs; {
			s.request(t, "GET", "/openapi.yaml", "") // makes garbage
			if time.Now().After(deadline.Add(waitLimit)) {
				t.Fatal("no garbage was collected, want a collection before the deadline")
			}
		}
		s.client.CloseIdleConnections()
		now = resourceUse{s.metric(t, "go_goroutines"), s.metric(t, "process_open_fds"), s.metric(t, "go_memstats_heap_alloc_bytes"), s.metric(t, "answerd_runs_total"), s.countChildren(t)}
		if before == nil || now.excessOver(*before) == "" || time.Now().After(deadline) {
			return now
		}
		<-time.After(100 * time.Millisecond)
	}
}

// maxIdleConns is how many connections to peers more may be kept for the next call: as many
// as calls were under way at a time. Each is two goroutines.
const maxIdleConns = 40

// excessOver returns which resources grew too much since before, "" for none.
func (h resourceUse) excessOver(before resourceUse) string {
	idle := max(h.descriptors-before.descriptors, 0)
	switch {
	case h.goroutines > before.goroutines+5+2*idle:
		return "goroutines"
	case idle > maxIdleConns:
		return "descriptors"
	case h.heap > before.heap+5<<20:
		return "heap"
	case h.children > before.children:
		return "children"
	}
	return ""
}

// countChildren returns the number of child processes, zombies included.
func (s *service) countChildren(t testing.TB) (n int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it is gone
		}
		_, rest, _ := strings.Cut(string(b), ") ") // proc(5): the name may hold blanks
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(s.cmd.Process.Pid) {
			n++
		}
	}
	return n
}

// skipUnlessLong skips a long test in short mode, and under the race detector, which cannot see
// into another process.
func skipUnlessLong(t testing.TB) {
	t.Helper()
	if testing.Short() || raceEnabled {
		t.Skip("long")
	}
}

// After any number of runs and connections, the process has as many resources as before. LEAKS
// multiplies all numbers.
func TestEndedRunsLeaveNoResources(t *testing.T) {
	skipUnlessLong(t)
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc")
	}
	times := countFromEnv(t, "LEAKS", 1)
	keys := newIssuer(t)
	l := newChildMonitor(t)
	tool := newPeer(t, nil)
	var left atomic.Int64
	model := llmtest.New(t, endlessModel(&left))
	// Many sources of tokens, each of which renews its own: one does so twice a second, when
	// somebody asks that often. Where a call takes long, nobody does.
	const sources = 20
	iam, fetches := serveTokens(t, "1")
	guarded, tokens := newPeer(t, nil), ""
	for i := range sources {
		tokens += fmt.Sprintf(`,"t%d":{"url":%q,"toolPrefix":"t%[1]d","auth":{"type":"client_credentials","tokenUrl":%[3]q,"clientId":"c%[1]d","clientSecret":"s"}}`, i, guarded.url, iam)
	}
	config := func(more string) string {
		return fmt.Sprintf(`{"mcpServers":{"web":{"url":%q}%s%s}}`, tool.url, tokens, more)
	}
	child := config(fmt.Sprintf(`,"child":{"command":%q,"args":["child","good",%q],"toolPrefix":"child"}`, os.Args[0], l.addr))
	setting, path := mcpConfig(t, config(""))
	s := start(t, append(keys.settings(), "LLM_BASE_URL="+model.URL, setting, "DISCONNECT_GRACE=0s", "EVENTS_MAX_BYTES=1MiB", "GOGC=50")...)
	ada := keys.bearerHeader(t, "k1", "ada", time.Hour)
	s.bearer = ada

	leaveRuns := func(n int) {
		var all sync.WaitGroup
		for worker := range 20 {
			all.Go(func() {
				for range n / 20 {
					ctx, end := context.WithCancel(t.Context())
					if worker%4 == 0 { // at some moment
						time.AfterFunc(time.Duration(rand.N(60))*time.Millisecond, end)
					}
					resp, err := s.send(ctx, "POST", "/answer/stream", question, "Authorization", ada)
					if err == nil {
						left := rand.N(30) // at some event
						_, _ = readEvents(resp.Body, func(streamEvent) bool { left--; return left > 0 })
						resp.Body.Close()
					}
					end()
				}
			})
		}
		all.Wait()
	}
	reconnect := func(n int) {
		var used sync.Map
		tool.setCall(func(w http.ResponseWriter, q *http.Request, m message) {
			if _, again := used.LoadOrStore(q.Header.Get("Mcp-Session-Id"), true); again {
				http.Error(w, "session not found", http.StatusNotFound)
				return
			}
			resultReply(`{"content":[]}`)(w, q, m)
		})
		for range n {
			if a := s.request(t, "POST", "/tools/t/call", "{}", "Authorization", ada); a.status != 200 {
				t.Fatalf("got %+v, want status 200", a)
			}
		}
		tool.setCall(nil)
	}
	restart := func(n int) {
		for range n {
			for _, text := range []string{child, config("")} {
				before := s.out.count("read again")
				writeFile(t, path, text)
				s.signal(t, syscall.SIGHUP)
				for deadline := time.Now().Add(waitLimit); s.out.count("read again") == before; {
					if time.Now().After(deadline) {
						t.Fatalf("got\n%s\nwant another line read again", s.out)
					}
					<-time.After(5 * time.Millisecond)
				}
				if text == child {
					receiveWithin(t, l.startedKinds, "a child")
				} else {
					receiveWithin(t, l.endedKinds, "the end of a child")
				}
			}
		}
	}
	refuseRequests := func(n int) {
		for i := range n {
			if a := s.request(t, "POST", "/answer", question, "Authorization", keys.bearerHeader(t, fmt.Sprintf("x%d", i), fmt.Sprintf("eve%d", i), time.Hour)); a.status != 401 {
				t.Fatalf("got %+v, want status 401", a)
			}
		}
	}
	renewTokens := func(n int) {
		last := fetches.Load() + int64(n)
		late := time.After(waitLimit + time.Duration(n)*time.Second/4)
		var all sync.WaitGroup
		for i := range sources {
			all.Go(func() {
				for fetches.Load() < last {
					a, err := s.trySend("POST", fmt.Sprintf("/tools/t%d_t/call", i), "{}", "Authorization", ada)
					if err != nil || a.status != 200 {
						t.Errorf("got %+v, %v, want status 200", a, err)
						return
					}
					select {
					case <-time.After(100 * time.Millisecond):
					case <-late:
						t.Error("tokens are not renewed, want them renewed before the deadline")
						return
					}
				}
			})
		}
		all.Wait()
	}

	leaveRuns(100)
	reconnect(5)
	restart(2)
	refuseRequests(20)
	renewTokens(40)
	before := s.waitUntilAtRest(t, nil)
	for _, c := range []struct {
		what string
		n    int
		do   func(int)
	}{
		{"aborted streams", 1000 * times, leaveRuns},
		{"children", 100 * times, restart},
		{"MCP reconnects", 200 * times, reconnect},
		{"failed authentications", 1000 * times, refuseRequests},
		{"token refreshes", 100 * times, renewTokens},
	} {
		d := timeOf(func() { c.do(c.n) })
		after := s.waitUntilAtRest(t, &before)
		if leak := after.excessOver(before); leak != "" {
			t.Errorf("after %d %s too many %s: before %s; after %s, want empty", c.n, c.what, leak, before, after)
		}
		t.Logf("%d %s in %s: before %s; after %s", c.n, c.what, d.Round(100*time.Millisecond), before, after)
	}
	if code := s.stop(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}
