package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// fleet is some replicas of answerd that share a log, with a model and a tool whose calls are
// counted. Clients ask them all the time, and each run is checked when it has ended.
type fleet struct {
	env    []string
	model  *llmtest.Endpoint
	tool   *peer
	header func() []string // of every request, in pairs; nil for none
	// authorized says whether the model answers a request; nil: all of them. Set before the start.
	authorized func(*http.Request) bool
	names      atomic.Int64 // of questions that must not be asked twice

	mu       sync.Mutex // guards the fields below
	replicas []*service
	calls    map[string]int // how often the tool was called, by its argument
	ends     map[string]int // of runs, by event type and error code
	unknown  int            // calls with an unknown outcome
	longest  time.Duration  // between two events of a run
	refused  int            // requests that were answered with 503
	faults   []string       // what is wrong
}

// newFleet returns a fleet without replicas, whose log is at events.
func newFleet(t testing.TB, events string, more ...string) *fleet {
	t.Helper()
	f := &fleet{calls: make(map[string]int), ends: make(map[string]int)}
	f.model = llmtest.New(t, func(q llmtest.Request) llmtest.Answer {
		answer := fleetModel(q)
		return func(w http.ResponseWriter, hq *http.Request) {
			if f.authorized != nil && !f.authorized(hq) {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			answer(w, hq)
		}
	})
	f.model.Forget()
	f.tool = newPeer(t, f.countCall)
	f.env = append([]string{"LLM_BASE_URL=" + f.model.URL, "MCP_URL=" + f.tool.url, "EVENTS_URL=" + events, "EVENTS_MAX_BYTES=64MiB"}, more...)
	return f
}

// countCall answers a call of the tool, whose argument is unique.
func (f *fleet) countCall(w http.ResponseWriter, q *http.Request, m message) {
	f.mu.Lock()
	f.calls[string(m.Params.Arguments)]++
	f.mu.Unlock()
	resultReply(`{"content":[{"type":"text","text":"ok"}]}`)(w, q, m)
}

// fleetTurns is how many calls a run makes, one after the other.
const fleetTurns = 3

// fleetModel calls the tool fleetTurns times, with arguments from the question, and then answers.
func fleetModel(q llmtest.Request) llmtest.Answer {
	name, turn := "", 0
	for _, m := range q.Messages {
		if m.Role == "user" {
			name = m.Content
		}
		if len(m.ToolCalls) > 0 {
			turn++
		}
	}
	return func(w http.ResponseWriter, hq *http.Request) {
		for range 4 {
			llmtest.Stream(w, "", textDelta("word "))
			select {
			case <-time.After(20 * time.Millisecond):
			case <-hq.Context().Done():
				return
			}
		}
		if turn < fleetTurns {
			llmtest.Calls(llmtest.Call{Name: "t", Args: fmt.Sprintf(`{"do":"%s-%d"}`, name, turn)})(w, hq)
			return
		}
		llmtest.Says("Done.")(w, hq)
	}
}

// fleetAnswer is the answer of each run.
const fleetAnswer = "word word word word Done."

// start starts a replica and returns its number.
func (f *fleet) start(t testing.TB, more ...string) int {
	t.Helper()
	s := start(t, slices.Concat(f.env, more)...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas = append(f.replicas, s)
	return len(f.replicas) - 1
}

// restart replaces a replica, which has ended, by a new one.
func (f *fleet) restart(t testing.TB, i int, more ...string) {
	t.Helper()
	s := start(t, slices.Concat(f.env, more)...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas[i] = s
}

// replica returns a replica; a negative number stands for any.
func (f *fleet) replica(i int) *service {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i < 0 {
		i = rand.IntN(len(f.replicas))
	}
	return f.replicas[i]
}

// headers returns the headers of a request.
func (f *fleet) headers() []string {
	if f.header == nil {
		return nil
	}
	return f.header()
}

// addFault notes that something is wrong.
func (f *fleet) addFault(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults) < 20 {
		f.faults = append(f.faults, fmt.Sprintf(format, args...))
	}
}

// fleetRun is one run as its client reads it: in pieces, from different replicas.
type fleetRun struct {
	fleet *fleet
	name  string
	got   eventList
	last  time.Time // of the last event
}

// read reads the run until an event that isLast accepts, or to its end if isLast is nil. It asks
// replica at first, and after each error any of them. The question has an Idempotency-Key, so that
// asking it again does not start another run.
func (r *fleetRun) read(ctx context.Context, at int, isLast func(streamEvent) bool) error {
	for ; ctx.Err() == nil; at = -1 {
		more, err := r.readOnce(ctx, r.fleet.replica(at), isLast)
		if err != nil {
			return err
		}
		r.got = append(r.got, more...)
		if last := r.got.last(); last.terminal() || isLast != nil && len(more) > 0 && isLast(last) {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("%s has %d events after the time limit, the last one %+v", r.name, len(r.got), r.got.last())
}

// readOnce reads one response. Only an answer that no fault explains is an error.
func (r *fleetRun) readOnce(ctx context.Context, s *service, isLast func(streamEvent) bool) (eventList, error) {
	header := append([]string{"Idempotency-Key", r.name, "Last-Event-ID", r.got.last().ID}, r.fleet.headers()...)
	resp, err := s.send(ctx, "POST", "/answer/stream", fmt.Sprintf(`{"question":%q}`, r.name), header...)
	if err != nil {
		return nil, nil // the replica is gone
	}
	defer resp.Body.Close()

	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNoContent: // there are no more events
		return nil, fmt.Errorf("%s: no events after %+v, want the rest of the run", r.name, r.got.last())
	case http.StatusServiceUnavailable:
		r.fleet.mu.Lock()
		r.fleet.refused++
		r.fleet.mu.Unlock()
		if resp.Header.Get("Retry-After") == "" {
			return nil, fmt.Errorf("%s: 503 without Retry-After", r.name)
		}
		return nil, nil
	default:
		b, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("%s: %s %s, want 200 or 503", r.name, resp.Status, b)
	}

	// An error ends the stream early: the replica was killed, or has no log.
	got, _ := readEvents(resp.Body, func(e streamEvent) bool {
		now := time.Now()
		if !r.last.IsZero() {
			r.fleet.mu.Lock()
			r.fleet.longest = max(r.fleet.longest, now.Sub(r.last))
			r.fleet.mu.Unlock()
		}
		r.last = now
		return isLast == nil || !isLast(e)
	})
	return got, nil
}

// check compares the run, which has ended, with what replica i has of it, and with the calls that
// the tool got: none twice, and of each one result or error.
func (r *fleetRun) check(ctx context.Context, i int) {
	f, end := r.fleet, r.got.last()
	f.mu.Lock()
	f.ends[strings.TrimSpace(end.Type+" "+end.Code)]++
	f.unknown += len(r.got.ofType("tool_error"))
	f.mu.Unlock()
	if wrong := r.got.orderError(); wrong != "" {
		f.addFault("%s: %s: %+v", r.name, wrong, r.got)
	}
	if end.Type == "final_answer" && end.Answer != fleetAnswer {
		f.addFault("%s: the answer is %q, want %q", r.name, end.Answer, fleetAnswer)
	}
	for _, e := range r.got.ofType("tool_error") {
		if e.Kind != "unknown_outcome" && e.Kind != "cancelled" {
			f.addFault("%s: a call ended with %+v, want unknown_outcome at worst", r.name, e)
		}
	}
	again := &fleetRun{fleet: f, name: r.name, got: r.got[:1:1]}
	if err := again.read(ctx, i, nil); err != nil {
		f.addFault("read again: %v", err)
		return
	}
	one, _ := json.Marshal(r.got)
	two, _ := json.Marshal(again.got)
	if string(one) != string(two) {
		f.addFault("%s: read\n%s\nand later\n%s", r.name, one, two)
	}
}

// load is clients that ask a fleet, each one question after the other.
type load struct {
	end     context.CancelFunc
	clients sync.WaitGroup
}

// startLoad starts clients. name begins the names of their runs.
func (f *fleet) startLoad(t testing.TB, clients int, name string) *load {
	ctx, end := context.WithCancel(t.Context())
	l := &load{end: end}
	var n atomic.Int64
	for range clients {
		l.clients.Go(func() {
			for ctx.Err() == nil {
				f.runAndCheck(t, fmt.Sprintf("%s%d", name, n.Add(1)))
			}
		})
	}
	t.Cleanup(func() { end(); l.clients.Wait() })
	return l
}

// stop waits until all runs that were started have ended.
func (l *load) stop(t testing.TB) {
	t.Helper()
	l.end()
	l.clients.Wait()
}

// runAndCheck starts a run, reads it to its end and checks it.
func (f *fleet) runAndCheck(t testing.TB, name string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitLimit)
	defer cancel()
	r := &fleetRun{fleet: f, name: name}
	if err := r.read(ctx, -1, nil); err != nil {
		f.addFault("%v", err)
		return
	}
	r.check(ctx, -1)
}

// waitUntilAllAnswer waits until every replica answers a new question, and returns how long that takes.
func (f *fleet) waitUntilAllAnswer(t testing.TB) time.Duration {
	t.Helper()
	began := time.Now()
	f.mu.Lock()
	n := len(f.replicas)
	f.mu.Unlock()
	for i := range n {
		for answered := false; !answered; {
			name := fmt.Sprintf("again%d", f.names.Add(1))
			a, err := f.replica(i).trySend("POST", "/answer", fmt.Sprintf(`{"question":%q}`, name), f.headers()...)
			answered = err == nil && a.status == http.StatusOK
			if !answered && time.Since(began) > 2*waitLimit {
				t.Fatalf("replica %d answers with %+v, %v after %s, want 200; its log:\n%s", i, a, err, 2*waitLimit, f.replica(i).out)
			}
		}
	}
	return time.Since(began)
}

// report checks that no call was made twice and nothing else is wrong, and returns the figures.
func (f *fleet) report(t testing.TB) string {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range f.faults {
		t.Errorf("%s, want no such fault", fault)
	}
	runs, twice := 0, 0
	for _, n := range f.ends {
		runs += n
	}
	for key, n := range f.calls {
		if n > 1 {
			t.Errorf("the call %s was made %d times, want once", key, n)
			twice++
		}
	}
	var ends []string
	for _, end := range slices.Sorted(maps.Keys(f.ends)) {
		ends = append(ends, fmt.Sprintf("%s %d", end, f.ends[end]))
	}
	return fmt.Sprintf("%d runs (%s), %d calls, %d twice, %d with an unknown outcome, %d refusals, longest pause of a run %s",
		runs, strings.Join(ends, ", "), len(f.calls), twice, f.unknown, f.refused, f.longest.Round(100*time.Millisecond))
}

// waitUntil waits until a condition holds, for twice waitLimit.
func waitUntil(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(2 * waitLimit); !holds(); {
		if time.Now().After(late) {
			t.Fatalf("waited %s, want that %s", 2*waitLimit, what)
		}
		<-time.After(50 * time.Millisecond)
	}
}
