package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/llm/llmtest"
	"answerd/internal/sse"
)

// replicas is replicas of answerd, each a process of its own, that share a log; and the model
// and the tools that they use, which outlive them.
type replicas struct {
	env    []string
	own    map[int][]string // what one replica's environment has besides
	client *http.Client
	ledger *callLedger
	gate   chan struct{} // the model says no more to questions named held before it is closed

	mu       sync.Mutex // protects what follows
	all      []*process
	replicas []*process
	urls     []string
	kills    []time.Time // and when replicas were told to stop
}

// callLedger is an MCP server that counts what was done.
type callLedger struct {
	mu   sync.Mutex // protects made
	made map[string]int
}

type ledgerEntry struct {
	Key string `json:"key"`
}

func (l *callLedger) recordCall(ctx context.Context, _ *sdk.CallToolRequest, in ledgerEntry) (*sdk.CallToolResult, any, error) {
	l.mu.Lock()
	l.made[in.Key]++
	l.mu.Unlock()
	select {
	case <-time.After(20 * time.Millisecond):
	case <-ctx.Done():
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: in.Key + " is done."}}}, nil, nil
}

// callsOf returns how often the call with a key was made.
func (l *callLedger) callsOf(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made[key]
}

// totalCalls returns how many different calls were made.
func (l *callLedger) totalCalls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.made)
}

// checkCalls checks that no call was made twice.
func (l *callLedger) checkCalls(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, n := range l.made {
		if n > 1 {
			t.Errorf("%s was done %d times, want at most 1", key, n)
		}
	}
}

// stateCanary begins the requestState of the tool ask.
const stateCanary = "canary-state-"

func newLedger(t testing.TB) (l *callLedger, url string) {
	l = &callLedger{made: make(map[string]int)}
	s := sdk.NewServer(&sdk.Implementation{Name: "ledger", Version: "1"}, nil)
	for _, name := range []string{"work", "careful"} {
		sdk.AddTool(s, &sdk.Tool{Name: name}, l.recordCall)
	}
	// ask requires a person's input first, and its own state back with it.
	s.AddTool(&sdk.Tool{Name: "ask", InputSchema: map[string]any{"type": "object"}}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		var in ledgerEntry
		if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
			return nil, err
		}
		if r.Params.InputResponses["q"] == nil || r.Params.RequestState != stateCanary+in.Key {
			return &sdk.CallToolResult{RequestState: stateCanary + in.Key, InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{
				Mode: "form", Message: "Sure?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"yes": map[string]any{"type": "boolean"}}},
			}}}, nil
		}
		res, _, err := l.recordCall(ctx, r, in)
		return res, err
	})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(web.Close)
	return l, web.URL
}

// answerRequest is a model that does what the question says: as many turns with a call as that
// has words, of these tools, each on something of its own; and then it answers. It takes
// its time.
func (f *replicas) answerRequest(r llmtest.Request) llmtest.Answer {
	name, tools, _ := strings.Cut(r.Messages[1].Content, ": ")
	turn := 0
	for _, m := range r.Messages {
		if len(m.ToolCalls) > 0 {
			turn++
		}
	}
	words := strings.Fields(tools)
	return func(w http.ResponseWriter, req *http.Request) {
		for i := range 6 {
			llmtest.Stream(w, "", map[string]any{"content": strconv.Itoa(i) + " "})
			select {
			case <-time.After(10 * time.Millisecond):
			case <-req.Context().Done():
				return
			}
		}
		if strings.HasPrefix(name, "held") {
			select {
			case <-f.gate:
			case <-req.Context().Done():
				return
			}
		}
		if turn < len(words) {
			llmtest.Calls(llmtest.Call{Name: words[turn], Args: fmt.Sprintf(`{"key":"%s-%d"}`, name, turn)})(w, req)
			return
		}
		llmtest.Says("Done.")(w, req)
	}
}

// newNATS starts a NATS server with JetStream on loopback, and returns its address.
func newNATS(t testing.TB) string {
	return startNATS(t, &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
	}).ClientURL()
}

// skipUnlessDurable skips a test unless ANSWERD_TEST_DURABLE is set, as make durable and make race do: make test has a
// minute.
func skipUnlessDurable(t *testing.T) {
	t.Helper()
	if os.Getenv("ANSWERD_TEST_DURABLE") == "" {
		t.Skip("takes long; make durable runs it")
	}
}

// startReplicas starts n replicas on a log; "" is a NATS server of their own.
func startReplicas(t testing.TB, n int, eventsURL string, more ...string) *replicas {
	t.Helper()
	f := newReplicas(t, eventsURL, more...)
	f.startAll(t, n)
	return f
}

// newReplicas returns a fleet without replicas.
func newReplicas(t testing.TB, eventsURL string, more ...string) *replicas {
	t.Helper()
	if eventsURL == "" {
		eventsURL = newNATS(t)
	}
	ledger, url := newLedger(t)
	config := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(config, fmt.Appendf(nil, `{"mcpServers":{"ledger":{"type":"http","url":%q,"tools":{"approve":["careful"]}}}}`, url), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &replicas{client: newClient(t), ledger: ledger, own: make(map[int][]string), gate: make(chan struct{})}
	f.env = append([]string{
		"ADDR=127.0.0.1:0", "LLM_BASE_URL=" + llmtest.New(t, f.answerRequest).URL, "LLM_API_KEY=k", "DEFAULT_MODEL_ID=scripted",
		"MCP_CONFIG_PATH=" + config, "EVENTS_URL=" + eventsURL,
	}, more...)
	t.Cleanup(func() {
		if t.Failed() {
			f.logWarnings(t)
		}
	})
	return f
}

func (f *replicas) startAll(t testing.TB, n int) {
	t.Helper()
	f.replicas, f.urls = make([]*process, n), make([]string, n)
	for i := range n {
		f.startReplica(t, i)
	}
}

// startReplica starts a replica, or starts it again.
func (f *replicas) startReplica(t testing.TB, i int) {
	t.Helper()
	p := spawnAnswerd(t, slices.Concat(f.env, f.own[i]))
	url := p.url(t)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas[i], f.urls[i], f.all = p, url, append(f.all, p)
}

// logWarnings logs the warnings and errors of all replicas, of killed ones too.
func (f *replicas) logWarnings(t testing.TB) {
	for _, p := range f.all {
		for line := range strings.Lines(p.log.String()) {
			if strings.Contains(line, `"WARN"`) || strings.Contains(line, `"ERROR"`) {
				t.Logf("%s", line)
			}
		}
	}
}

// killReplica kills a replica, as kill -9 does.
func (f *replicas) killReplica(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.replicas[i].cmd.Process.Kill()
	f.kills = append(f.kills, time.Now())
	_ = f.replicas[i].wait() // killed
}

// stopReplica tells a replica to stop, and waits until it has.
func (f *replicas) stopReplica(t testing.TB, i int) {
	f.mu.Lock()
	p := f.replicas[i]
	f.kills = append(f.kills, time.Now())
	f.mu.Unlock()
	p.signal(t, syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Error("told to stop:", err)
	}
}

// url returns the URL of a replica; -1 stands for any that runs, since another test's server may have the port of one
// that has ended.
func (f *replicas) url(i int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i < 0 {
		i = rand.IntN(len(f.urls))
		for n := 1; n < len(f.urls) && isClosed(f.replicas[i].ended); n++ {
			i = (i + 1) % len(f.urls)
		}
	}
	return f.urls[i]
}

// runReader is one question and the events that its reader has received. The reader keeps only its
// position, and changes replicas.
type runReader struct {
	fleet  *replicas
	name   string
	body   string
	run    string
	frames []sse.Frame
	cuts   int  // how many times he leaves of his own accord
	stays  bool // with the replica that he asks first
}

func (f *replicas) newRunReader(name, tools string, cuts int) *runReader {
	body, _ := json.Marshal(map[string]string{"question": name + ": " + tools})
	return &runReader{fleet: f, name: name, body: string(body), cuts: cuts}
}

// readUntil reads the run until an event of that type, "" for its end. first is the replica
// that is asked, -1 for any.
func (j *runReader) readUntil(ctx context.Context, first int, until string) error {
	for ; ; first = j.nextReplica(first) {
		req, err := j.request(ctx, j.fleet.url(first))
		if err != nil {
			return err
		}
		resp, err := j.fleet.client.Do(req)
		if err == nil {
			leave := -1
			if j.cuts > 0 {
				leave = 1 + rand.IntN(12)
				j.cuts--
			}
			over, err := j.readFrames(resp, leave, until)
			if over || err != nil {
				return err
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s stays at %d: %w", j.run, len(j.frames), ctx.Err())
		}
	}
}

func (j *runReader) nextReplica(replica int) int {
	if j.stays {
		return replica
	}
	return -1
}

// request continues at the position of the reader. Before the reader knows the run's id, it repeats the
// question with the same Idempotency-Key, which is the same run.
func (j *runReader) request(ctx context.Context, url string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/answer/stream", strings.NewReader(j.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", j.name)
	if n := len(j.frames); n > 0 {
		req.Header.Set("Last-Event-ID", j.frames[n-1].ID)
	}
	return req, nil
}

// readFrames takes frames until the stream ends, or the reader leaves after so many. over reports
// whether the reader has the event that it waits for.
func (j *runReader) readFrames(resp *http.Response, leave int, until string) (over bool, _ error) {
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNoContent:
		return true, nil
	case http.StatusServiceUnavailable:
		return false, nil
	default:
		b, _ := io.ReadAll(resp.Body)
		return false, fmt.Errorf("%s: %s %s", j.run, resp.Status, b)
	}
	for r := sse.NewReader(resp.Body, 1<<20); leave != 0; leave-- {
		f, err := r.Next()
		if err != nil {
			return false, nil // the replica is gone, or leaving, or there is no more for now
		}
		run, seq, _ := strings.Cut(f.ID, ":")
		if seq != strconv.Itoa(len(j.frames)+1) || j.run != "" && run != j.run {
			return false, fmt.Errorf("%s follows %s:%d", f.ID, j.run, len(j.frames))
		}
		f.Data = append([]byte(nil), f.Data...)
		j.run, j.frames = run, append(j.frames, f)
		if f.Event == until || f.Event == "final_answer" || f.Event == "run_error" || f.Event == "cancelled" {
			return true, nil
		}
	}
	return false, nil
}

// lastFrame returns the newest event that was read.
func (j *runReader) lastFrame() sse.Frame { return j.frames[len(j.frames)-1] }

// checkFrames compares what was read with what the log has, and with the calls that were made: of every
// call that was made there is one ending, and none was made twice.
func (j *runReader) checkFrames(ctx context.Context) error {
	whole := &runReader{fleet: j.fleet, name: j.name, body: j.body, run: j.run, frames: j.frames[:1:1]}
	if err := whole.readUntil(ctx, -1, ""); err != nil {
		return err
	}
	if len(whole.frames) != len(j.frames) {
		return fmt.Errorf("%s: read %d events of %d", j.run, len(j.frames), len(whole.frames))
	}
	ended := make(map[string]string)
	for i, f := range j.frames {
		if whole.frames[i].ID != f.ID || whole.frames[i].Event != f.Event || string(whole.frames[i].Data) != string(f.Data) {
			return fmt.Errorf("%s: read %s, kept %s", j.run, f.Data, whole.frames[i].Data)
		}
		if f.Event != "tool_result" && f.Event != "tool_error" {
			continue
		}
		var e struct {
			Args ledgerEntry
			Kind string
		}
		if err := json.Unmarshal(f.Data, &e); err != nil {
			return err
		}
		switch made := j.fleet.ledger.callsOf(e.Args.Key); {
		case e.Kind == "cancelled": // by the reset of its step
			continue
		case made > 1, made == 0 && e.Kind == "", ended[e.Args.Key] != "":
			return fmt.Errorf("%s: %s was done %d times and ended as %q and %q", j.run, e.Args.Key, made, e.Kind, ended[e.Args.Key])
		}
		ended[e.Args.Key] = f.Event + e.Kind
	}
	return nil
}

// countFrames returns how many events are of that type, or errors of that kind.
func (j *runReader) countFrames(what string) (n int) {
	for _, f := range j.frames {
		if f.Event == what || f.Event == "tool_error" && strings.Contains(string(f.Data), `"kind":"`+what+`"`) {
			n++
		}
	}
	return n
}

// pausesAfter returns how long the run sent nothing after each kill, where that was long
// enough to be the kill's doing.
func (j *runReader) pausesAfter(kills []time.Time) (out []time.Duration) {
	var before int64
	for _, f := range j.frames {
		var e struct{ TS int64 }
		_ = json.Unmarshal(f.Data, &e) // it was, before
		for _, k := range kills {
			if gap := time.Duration(e.TS-k.UnixMilli()) * time.Millisecond; before > 0 && before <= k.UnixMilli() && gap > 300*time.Millisecond {
				out = append(out, gap)
				break
			}
		}
		before = e.TS
	}
	return out
}

// countFromEnv returns a number from the environment, for tests that can be longer, or short.
func countFromEnv(name string, short int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return short
}
