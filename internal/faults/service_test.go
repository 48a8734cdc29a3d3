package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"answerd/internal/sse"
)

// waitLimit bounds every wait of a test, generously for a busy machine.
const waitLimit = 60 * time.Second

// service is answerd as a process of its own.
type service struct {
	url    string
	cmd    *exec.Cmd
	out    *output
	exited chan struct{} // closed when the process is gone
	client *http.Client
	bearer string // the Authorization that /metrics wants; "" where it wants none
}

// output collects what a process writes, and wakes waitForOutput.
type output struct {
	mu   sync.Mutex // guards the fields below
	text strings.Builder
	more chan struct{} // closed and replaced with each line
}

func (o *output) add(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.WriteString(line + "\n")
	close(o.more)
	o.more = make(chan struct{})
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// count returns how often the output contains text.
func (o *output) count(text string) int { return strings.Count(o.String(), text) }

// waitForOutput waits for text in the output.
func (s *service) waitForOutput(t testing.TB, text string) {
	t.Helper()
	late := time.After(waitLimit)
	for {
		s.out.mu.Lock()
		found, more := strings.Contains(s.out.text.String(), text), s.out.more
		s.out.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-s.exited:
			if !strings.Contains(s.out.String(), text) {
				t.Fatalf("the process ended without %q:\n%s, want String containing %q", text, s.out, text)
			}
			return
		case <-late:
			t.Fatalf("got\n%s\nwant %q", s.out, text)
		}
	}
}

// launch starts the binary with that environment and no other, until the test ends.
func launch(t testing.TB, env ...string) *service {
	t.Helper()
	return startProcess(t, exec.Command(binary), env...)
}

// startProcess is launch with a command that runs the binary.
func startProcess(t testing.TB, cmd *exec.Cmd, env ...string) *service {
	t.Helper()
	s := &service{cmd: cmd, out: &output{more: make(chan struct{})}, exited: make(chan struct{})}
	cmd.Env = append([]string{"ADDR=127.0.0.1:0", "DEFAULT_MODEL_ID=scripted", "PATH=" + os.Getenv("PATH")}, env...)
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	read2 := make(chan struct{})
	go func() {
		defer close(read2)
		for lines := bufio.NewReader(read); ; {
			line, err := lines.ReadString('\n')
			if line != "" {
				s.out.add(strings.TrimSuffix(line, "\n"))
			}
			if err != nil {
				return
			}
		}
	}()

	go func() {
		_ = cmd.Wait() // the state says how
		write.Close()
		<-read2
		close(s.exited)
	}()

	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256
	s.client = &http.Client{Transport: transport, Timeout: waitLimit}

	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = cmd.Process.Kill()
		<-s.exited
	})
	return s
}

// start is launch, and waits until the service listens.
func start(t testing.TB, env ...string) *service {
	t.Helper()
	s := launch(t, env...)
	s.waitUntilListening(t)
	return s
}

func (s *service) waitUntilListening(t testing.TB) {
	t.Helper()
	s.waitForOutput(t, `"listening"`)
	s.url = "http://" + regexp.MustCompile(`"addr":"([^"]+)"`).FindStringSubmatch(s.out.String())[1]
}

// stop ends the process in good order and returns its exit code.
func (s *service) stop(t testing.TB) int {
	t.Helper()
	s.signal(t, syscall.SIGTERM)
	return s.waitForExit(t)
}

func (s *service) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("error %v, want ErrProcessDone or no error", err)
	}
}

func (s *service) waitForExit(t testing.TB) int {
	t.Helper()
	select {
	case <-s.exited:
	case <-time.After(waitLimit):
		t.Fatalf("the process has not ended, want it to:\n%s", s.out)
	}
	return s.cmd.ProcessState.ExitCode()
}

// reply is a response that was read whole.
type reply struct {
	status int
	header http.Header
	body   string
}

// field is a member of the body, "" where there is none.
func (r reply) field(name string) string {
	var m map[string]any
	if json.Unmarshal([]byte(r.body), &m) != nil {
		return ""
	}
	s, _ := m[name].(string)
	return s
}

// request is one exchange; header comes in pairs.
func (s *service) request(t testing.TB, method, path, body string, header ...string) reply {
	t.Helper()
	r, err := s.trySend(method, path, body, header...)
	if err != nil {
		t.Fatalf("method %s %s: %v\n%s, want no error", method, path, err, s.out)
	}
	return r
}

func (s *service) trySend(method, path, body string, header ...string) (reply, error) {
	resp, err := s.send(context.Background(), method, path, body, header...)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(b)}, err
}

func (s *service) send(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return s.client.Do(req)
}

const question = `{"question":"?"}`

func (s *service) ask(t testing.TB) reply {
	t.Helper()
	return s.request(t, "POST", "/answer", question)
}

// streamEvent is one event of a run, as a client sees it.
type streamEvent struct {
	ID   string `json:"-"`
	Type string
	Seq  int64

	RunID       string `json:"run_id"`
	InterruptID string `json:"interrupt_id"`

	Answer       string
	FinishReason string `json:"finish_reason"`
	Code         string
	Retryable    bool
	Kind         string
	Delta        string
	Payload      any
	Reason       string
	URL          string
}

func (h streamEvent) terminal() bool {
	return h.Type == "final_answer" || h.Type == "run_error" || h.Type == "cancelled"
}

// eventList has the events of a run that a client read.
type eventList []streamEvent

func (s eventList) last() streamEvent {
	if len(s) == 0 {
		return streamEvent{}
	}
	return s[len(s)-1]
}

// ofType returns the events of one type.
func (s eventList) ofType(kind string) (out eventList) {
	for _, h := range s {
		if h.Type == kind {
			out = append(out, h)
		}
	}
	return out
}

// orderError says what is wrong with the events of a whole run; "" if nothing is.
func (s eventList) orderError() string {
	var text strings.Builder
	for i, h := range s {
		switch {
		case h.Seq != int64(i+1):
			return "event " + strconv.Itoa(i+1) + " has the number " + strconv.FormatInt(h.Seq, 10)
		case i == 0 && h.Type != "start":
			return "it begins with " + h.Type
		case h.terminal() != (i == len(s)-1):
			return "terminal events are not the last, or more than one"
		case h.Type == "step_start", h.Type == "step_reset":
			text.Reset()
		case h.Type == "text_delta":
			text.WriteString(h.Delta)
		case h.Type == "final_answer" && h.Answer != text.String():
			return "the deltas are not the answer"
		}
	}
	if len(s) == 0 {
		return "it is empty"
	}
	return ""
}

// readEvents reads a stream until it ends, or visit returns false.
func readEvents(body io.Reader, visit func(streamEvent) bool) (out eventList, err error) {
	for r := sse.NewReader(body, 8<<20); ; {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		h := streamEvent{ID: f.ID}
		if err := json.Unmarshal(f.Data, &h); err != nil {
			return out, err
		}
		out = append(out, h)
		if visit != nil && !visit(h) {
			return out, nil
		}
	}
}

// stream asks, and reads the run to its end, which must be in good order.
func (s *service) stream(t testing.TB, visit func(streamEvent) bool) eventList {
	t.Helper()
	resp, err := s.send(t.Context(), "POST", "/answer/stream", question)
	if err != nil {
		t.Fatalf("error %v\n%s, want no error", err, s.out)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %s, want 200", resp.Status, b)
	}
	out, err := readEvents(resp.Body, visit)
	if err != nil {
		t.Fatalf("%v after %+v\n%s, want no error", err, out, s.out)
	}
	if orderError := out.orderError(); orderError != "" && visit == nil {
		t.Errorf("the events are out of order, want an order by their rules: %s: %+v", orderError, out)
	}
	return out
}

// metric is a sum over the series of that name on /metrics.
func (s *service) metric(t testing.TB, name string) float64 {
	t.Helper()
	sum := 0.0
	header := []string{"Authorization", s.bearer}
	if s.bearer == "" {
		header = nil
	}
	page := s.request(t, "GET", "/metrics", "", header...)
	if page.status != http.StatusOK {
		t.Fatalf("the metrics: %d %s, want 200", page.status, page.body)
	}
	for lines := bufio.NewScanner(bytes.NewBufferString(page.body)); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		if base, _, _ := strings.Cut(series, "{"); base == name {
			n, _ := strconv.ParseFloat(value, 64)
			sum += n
		}
	}
	return sum
}

// receiveWithin waits until ch has a value or is closed.
func receiveWithin[T any](t testing.TB, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(waitLimit):
		t.Fatalf("waited %s, want %s", waitLimit, what)
	}
	return v
}
