package faults

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/event/eventtest"
	"answerd/internal/llm/llmtest"
)

var soakReport = flag.String("report", "", "write the soak's report to this file")

// mishaps are what happens to a run of the soak, one in twenty.
var mishaps = []string{
	"client leaves", "slow reader", "comes back",
	"model cut", "model 429", "model 500", "model garbage",
	"tool hangs", "tool session lost", "tool cut",
}

// Words of a run: two turns with a tool call each, and one that answers.
const (
	soakWords  = 20
	soakAnswer = "word word word word word word word word word word word word word word word word word word word word "
)

// soakModel follows the question, which says what is to go wrong.
func soakModel(q llmtest.Request) llmtest.Answer {
	mishap, turn := "", 0
	for _, m := range q.Messages {
		if m.Role == "user" {
			mishap = m.Content
		}
		if len(m.ToolCalls) > 0 {
			turn++
		}
	}

	words := make([]string, soakWords)
	for i := range words {
		words[i] = "word "
	}

	return func(w http.ResponseWriter, hq *http.Request) {
		if turn < 2 {
			llmtest.SaysAndCalls("Let me see. ", llmtest.Call{ID: fmt.Sprintf("call_%d", turn), Name: "t", Args: fmt.Sprintf(`{"do":%q}`, mishap)})(w, hq)
			return
		}
		switch mishap {
		case "model cut":
			llmtest.Stream(w, "", textDelta("word "))
			panic(http.ErrAbortHandler)
		case "model 429":
			w.Header().Set("Retry-After", "3600")
			llmtest.Fails(429, "busy")(w, hq)
		case "model 500":
			llmtest.Fails(500, "oops")(w, hq)
		case "model garbage":
			llmtest.Stream(w, "", textDelta("word "))
			fmt.Fprint(w, "data: nonsense\n\n")
		default:
			llmtest.Says(words...)(w, hq)
		}
	}
}

// soakTool is a server with sessions, some of which it forgets, and tokens that expire.
func soakTool(t testing.TB) *peer {
	tool := newPeer(t, nil)
	var lost sync.Map
	var forgot atomic.Int64 // when it last did, in ms
	tool.setCall(func(w http.ResponseWriter, q *http.Request, m message) {
		session := q.Header.Get("Mcp-Session-Id")
		if _, gone := lost.Load(session); gone {
			http.Error(w, "session not found", http.StatusNotFound)
			return
		}
		switch args := string(m.Params.Arguments); {
		case strings.Contains(args, "tool hangs"):
			<-q.Context().Done()
		case strings.Contains(args, "tool session lost"):
			// The next calls find it lost. A call is sent again once only (S3.2), so it must
			// not happen twice to the same one.
			if last := forgot.Load(); time.Now().UnixMilli()-last > 2000 && forgot.CompareAndSwap(last, time.Now().UnixMilli()) {
				defer lost.Store(session, true)
			}
			resultReply(`{"content":[{"type":"text","text":"ok"}]}`)(w, q, m)
		case strings.Contains(args, "tool cut"):
			panic(http.ErrAbortHandler)
		default:
			resultReply(`{"content":[{"type":"text","text":"ok"}]}`)(w, q, m)
		}
	})
	return tool
}

// soak runs the load and counts its outcomes.
type soak struct {
	clients int
	rate    float64 // runs a second at most; 0 means as many as possible

	runs, sound, events atomic.Int64

	mu     sync.Mutex // guards the fields below
	ends   map[string]map[string]int
	flaws  []string        // the first ones
	flawed int             // how many there are
	delays []time.Duration // of whole runs without a mishap
}

func (k *soak) countEnd(mishap, end string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ends[mishap] == nil {
		k.ends[mishap] = map[string]int{}
	}
	k.ends[mishap][end]++
}

func (k *soak) addFlaw(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flawed++; len(k.flaws) < 20 {
		k.flaws = append(k.flaws, fmt.Sprintf(format, args...))
	}
}

// runOnce makes one run of the load.
func (k *soak) runOnce(ctx context.Context, s *service, header []string) {
	mishap := ""
	if rand.N(20) == 0 {
		mishap = mishaps[rand.N(len(mishaps))]
	}

	body := fmt.Sprintf(`{"question":%q}`, cmp.Or(mishap, "nothing"))
	began := time.Now()
	resp, err := s.send(ctx, "POST", "/answer/stream", body, header...)
	if err != nil || resp.StatusCode != http.StatusOK {
		if err == nil {
			var text []byte
			text, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			err = errors.Join(err, fmt.Errorf("%s %s", resp.Status, text))
		}
		if ctx.Err() == nil {
			k.addFlaw("not started: %v", err)
		}
		return
	}

	// Read the stream. Some readers leave in the middle, and some of them come back.
	leaveAt := 1 + rand.N(30)
	got, err := readEvents(resp.Body, func(h streamEvent) bool {
		if mishap == "slow reader" {
			<-time.After(20 * time.Millisecond)
		}
		leaveAt--
		return leaveAt > 0 || mishap != "client leaves" && mishap != "comes back"
	})
	resp.Body.Close()
	if mishap == "comes back" && err == nil {
		var rest eventList
		if resp, err = s.send(ctx, "GET", "/runs/"+got.last().RunID+"/events", "", append([]string{"Last-Event-ID", got.last().ID}, header...)...); err == nil {
			rest, err = readEvents(resp.Body, nil)
			resp.Body.Close()
			got = append(got, rest...)
		}
	}

	// Count how the run ended, and check what must be sound.
	k.runs.Add(1)
	k.events.Add(int64(len(got)))
	end := got.last()
	switch orderError := got.orderError(); {
	case mishap == "client leaves":
		k.countEnd(mishap, "left")
	case err != nil || orderError != "":
		k.addFlaw("%s: %v, %s, %+v", mishap, err, orderError, end)
	case mishap == "" || mishap == "slow reader" || mishap == "comes back" || mishap == "tool session lost":
		k.sound.Add(1)
		if end.Answer != soakAnswer || len(got.ofType("tool_result")) != 2 {
			k.addFlaw("%s: %d results, then %s %q; %+v", mishap, len(got.ofType("tool_result")), end.Type, end.Answer, got.ofType("tool_error").last().Payload)
		}
		fallthrough
	default:
		k.countEnd(mishap, cmp.Or(end.Code, end.Type))
	}
	if mishap == "" {
		k.mu.Lock()
		k.delays = append(k.delays, time.Since(began))
		k.mu.Unlock()
	}
}

// runClients runs clients until the time is over.
func (k *soak) runClients(t testing.TB, s *service, d time.Duration, auth func() []string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	until := time.Now().Add(d)
	var next <-chan time.Time
	if k.rate > 0 {
		ticker := time.NewTicker(time.Duration(float64(time.Second) / k.rate))
		defer ticker.Stop()
		next = ticker.C
	}
	var all sync.WaitGroup
	for range k.clients {
		all.Go(func() {
			for time.Now().Before(until) {
				if next != nil {
					<-next
				}
				k.runOnce(ctx, s, auth())
			}
		})
	}
	all.Wait()
}

// soakLog returns the settings of the event log: in memory, on disk, or on three NATS servers.
func soakLog(t *testing.T, kind string) []string {
	switch kind {
	case "memory":
		return []string{"EVENTS_MAX_BYTES=4MiB"}
	case "file":
		return []string{"EVENTS_URL=file:" + t.TempDir(), "EVENTS_MAX_BYTES=16MiB"}
	case "nats":
		c := eventtest.StartCluster(t)
		return []string{"EVENTS_URL=" + c.URL(), "EVENTS_MAX_BYTES=16MiB"}
	}
	t.Fatalf("SOAK_LOG=%s, want memory, file or nats", kind)
	return nil
}

// Facts 4.1, L5, on two cores: a twentieth of the runs meets a fault, the others
// must not notice. SOAK is how long it takes, SOAK_CLIENTS how many clients ask, SOAK_RATE how many runs they
// begin a second at most, and SOAK_LOG the event log: memory, file or nats.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(cmp.Or(os.Getenv("SOAK"), "3s"))
	if err != nil {
		t.Fatal(err)
	}
	clients, err := strconv.Atoi(cmp.Or(os.Getenv("SOAK_CLIENTS"), "40"))
	if err != nil {
		t.Fatal(err)
	}
	rate, err := strconv.ParseFloat(cmp.Or(os.Getenv("SOAK_RATE"), "0"), 64)
	if err != nil {
		t.Fatal(err)
	}
	log := cmp.Or(os.Getenv("SOAK_LOG"), "memory")
	skipUnlessLong(t)
	model := llmtest.New(t, soakModel)
	model.Forget()
	tool := soakTool(t)
	keys := newIssuer(t)
	iamURL, fetches := serveTokens(t, "2")
	s := start(t, slices.Concat(keys.settings(), jwtSettings(iamURL), soakLog(t, log), []string{
		"LLM_BASE_URL=" + model.URL, "MCP_URL=" + tool.url, "TIMEOUT=5s", "DISCONNECT_GRACE=1s", "MAX_CONCURRENT_CALLS=64", "GOGC=50",
	})...)
	s.bearer = keys.bearerHeader(t, "k1", "the operator", 2*length+time.Hour)

	var header atomic.Pointer[string]
	auth := func() []string {
		if header.Load() == nil || rand.N(200) == 0 { // callers' tokens come and go, too
			h := keys.bearerHeader(t, "k1", fmt.Sprintf("ada%d", rand.N(50)), 10*time.Minute)
			header.Store(&h)
		}
		return []string{"Authorization", *header.Load()}
	}

	k := &soak{clients: clients, rate: rate, ends: map[string]map[string]int{}}
	(&soak{clients: clients, rate: rate, ends: map[string]map[string]int{}}).runClients(t, s, max(length/10, time.Second), auth)
	before := s.waitUntilAtRest(t, nil)
	began := time.Now()
	k.runClients(t, s, length, auth)
	d := time.Since(began)
	after := s.waitUntilAtRest(t, &before)
	if leak := after.excessOver(before); leak != "" {
		t.Errorf("too many %s, want empty", leak)
	}

	for _, f := range k.flaws {
		t.Errorf("%s, want no such fault", f)
	}

	if k.sound.Load() == 0 {
		t.Errorf("no run was sound: sound %d, want non-zero", k.sound.Load())
	}
	text := k.report(log, d, before, after, fetches.Load(), s.metric(t, "process_resident_memory_bytes"))
	t.Log("\n" + text)

	if *soakReport != "" {
		if err := os.WriteFile(*soakReport, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}

	if code := s.stop(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func (k *soak) report(log string, d time.Duration, before, after resourceUse, tokens int64, resident float64) string {
	slices.Sort(k.delays)
	quantile := func(q float64) time.Duration {
		if len(k.delays) == 0 {
			return 0
		}
		return k.delays[int(q*float64(len(k.delays)-1))].Round(time.Millisecond)
	}
	slope := func(known float64) float64 {
		return (after.heap - before.heap - known) / (1 << 20) / d.Minutes() * 10
	}
	var out strings.Builder
	fmt.Fprintf(&out, "## Event log: %s\n\nMade by `make soak`: %d clients, each one run after the other, three model turns and two tool calls each;\n"+
		"every twentieth run meets a fault. Model, MCP server, IAM and clients are on the same %d cores.\n\n", log, k.clients, runtime.NumCPU())
	fmt.Fprintf(&out, "| | |\n|---|---|\n| time | %s |\n| runs | %d, %.0f a second |\n| events read | %d, %.0f a second |\n", d.Round(time.Second),
		k.runs.Load(), float64(k.runs.Load())/d.Seconds(), k.events.Load(), float64(k.events.Load())/d.Seconds())
	fmt.Fprintf(&out, "| runs that had to be whole | %d |\n| refused, failed, with events lost, doubled or out of order, or without one end | %d |\n", k.sound.Load(), k.flawed)
	fmt.Fprintf(&out, "| a whole run takes | p50 %s, p99 %s |\n| tokens fetched | %d |\n", quantile(0.5), quantile(0.99), tokens)
	fmt.Fprintf(&out, "| at rest before | %s |\n| at rest after | %s |\n| slope of the heap | %.2f MiB in 10 min, %.2f without what the log remembers of runs that are gone (the last 32,768 at most, some 100 bytes each) |\n| resident at the end | %.0f MiB |\n",
		before, after, slope(0), slope(100*min(after.runs-before.runs, 32768)), resident/(1<<20))
	out.WriteString("\n| fault | ends |\n|---|---|\n")
	for _, mishap := range slices.Sorted(maps.Keys(k.ends)) {
		var ends []string
		for _, end := range slices.Sorted(maps.Keys(k.ends[mishap])) {
			ends = append(ends, fmt.Sprintf("%s %d", end, k.ends[mishap][end]))
		}
		fmt.Fprintf(&out, "| %s | %s |\n", cmp.Or(mishap, "none"), strings.Join(ends, ", "))
	}
	return out.String()
}
