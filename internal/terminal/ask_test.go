package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// serveRun starts a server whose only run has the given events, in SSE frames of "type data".
func serveRun(t *testing.T, events ...string) (url string) {
	t.Helper()
	url, _ = serveRunCounted(t, events...)
	return url
}

// serveRunCounted is serveRun. requests returns the paths of the requests so far.
func serveRunCounted(t *testing.T, events ...string) (url string, requests func() string) {
	t.Helper()
	var mu sync.Mutex // protects paths
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		for i, e := range events {
			kind, data, _ := strings.Cut(e, " {")
			if data != "}" {
				data = "," + data
			}
			fmt.Fprintf(w, "id: run_1:%d\nevent: %s\ndata: {\"type\":%[2]q%s\n\n", i+1, kind, data)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(paths, " ")
	}
}

// closedPipe is the output of a program such as head that has ended. The third write calls stop.
type closedPipe struct {
	writes int
	stop   func()
}

func (p *closedPipe) Write([]byte) (int, error) {
	if p.writes++; p.writes == 3 {
		p.stop()
	}
	return 0, syscall.EPIPE
}

// Without an output the answer is of no use, and no stream is opened again for it.
func TestAskEndsWhenItsOutputIsClosed(t *testing.T) {
	url, requests := serveRunCounted(t, `start {"run_id":"run_1"}`, `text_delta {"delta":"a"}`, `text_delta {"delta":"b"}`, `final_answer {"answer":"ab"}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := New(Options{URL: url, In: strings.NewReader(""), Out: &closedPipe{stop: cancel}, Err: &strings.Builder{}})
	defer s.Close()
	if err := s.Ask(ctx, "?"); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got error %v, want %v", err, syscall.EPIPE)
	}
	if got, want := requests(), "/answer/stream /runs/run_1/cancel"; got != want {
		t.Errorf("got requests %s, want %s", got, want)
	}
}

// The contract promises the answer document of POST /answer, which has the answer as a value too.
func TestAskPrintsTheStructuredOutput(t *testing.T) {
	url := serveRun(t, `start {"run_id":"run_1","thread_id":"thr_1","trace_id":"0"}`,
		`final_answer {"answer":"{\"id\":9007199254740993}","output":{"id":9007199254740993},"metadata":{"model":"m"}}`)
	var out strings.Builder
	s := New(Options{URL: url, JSON: true, In: strings.NewReader(""), Out: &out, Err: &strings.Builder{}})
	defer s.Close()
	if err := s.Ask(t.Context(), "?"); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Output json.RawMessage `json:"output"`
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || string(got.Output) != `{"id":9007199254740993}` {
		t.Errorf("got output %s, %v, want the value of the answer", got.Output, err)
	}
}

// An export has the results of tools, which others on the machine must not read.
func TestAskMakesTheFileOfAnExportPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files have no mode")
	}
	file := filepath.Join(t.TempDir(), "run.json")
	if err := os.WriteFile(file, []byte("an older export, which is longer than the new one"+strings.Repeat(".", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	url := serveRun(t, `start {"run_id":"run_1"}`, `final_answer {"answer":"a","metadata":{"model":"m"}}`)
	s := New(Options{URL: url, Export: file, In: strings.NewReader(""), Out: &strings.Builder{}, Err: &strings.Builder{}})
	defer s.Close()
	if err := s.Ask(t.Context(), "?"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 || info.Size() > 1000 {
		t.Errorf("got the mode %s and %d bytes, want %s and only the new export", info.Mode(), info.Size(), os.FileMode(0o600))
	}
}

// A question that cannot be read is not the end of the conversation as the person wanted it.
func TestChatReportsAQuestionThatIsTooLong(t *testing.T) {
	for in, want := range map[string]string{"": "", "\n/quit\n": "", strings.Repeat("x", 2<<20) + "\n": "too long"} {
		s := New(Options{In: strings.NewReader(in), Out: &strings.Builder{}, Err: &strings.Builder{}})
		err := s.Chat(t.Context())
		s.Close()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes of input: got %v, want %q", len(in), err, want)
		}
	}
}

// The service may count the broken stream as open for some time, and then refuses another one of the same caller.
func TestAskResumesWhenTheServiceIsNoLongerBusy(t *testing.T) {
	resumed := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			fmt.Fprint(w, "id: run_1:1\nevent: start\ndata: {\"type\":\"start\",\"run_id\":\"run_1\"}\n\n")
		case resumed == 0:
			resumed++
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"status":429,"code":"rate_limited","detail":"This caller has too many open requests."}`)
		default:
			fmt.Fprint(w, "id: run_1:2\nevent: final_answer\ndata: {\"type\":\"final_answer\",\"answer\":\"\"}\n\n")
		}
	}))
	defer server.Close()
	s := New(Options{URL: server.URL, In: strings.NewReader(""), Out: &strings.Builder{}, Err: &strings.Builder{}})
	defer s.Close()
	if err := s.Ask(t.Context(), "?"); err != nil || resumed != 1 {
		t.Errorf("got %v after %d refusals, want the answer after one", err, resumed)
	}
}

func TestAskSendsAnAnswerAgainIfTheServiceIsTooBusy(t *testing.T) {
	inputs := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/input"):
			inputs++
			if inputs == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(w, `{"status":503,"code":"log_unavailable","detail":"The event log cannot be reached."}`)
			}
		case strings.HasSuffix(r.URL.Path, "/events"):
			fmt.Fprint(w, "id: run_1:3\nevent: final_answer\ndata: {\"type\":\"final_answer\",\"answer\":\"\"}\n\n")
		default:
			fmt.Fprint(w, "id: run_1:1\nevent: start\ndata: {\"type\":\"start\",\"run_id\":\"run_1\"}\n\n"+
				"id: run_1:2\nevent: suspended\ndata: {\"type\":\"suspended\",\"interrupts\":[{\"id\":\"i\",\"kind\":\"approval\"}]}\n\n")
		}
	}))
	defer server.Close()
	s := New(Options{URL: server.URL, In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	defer s.Close()
	if err := s.Ask(t.Context(), "?"); err != nil || inputs != 2 {
		t.Errorf("got %v after %d requests with the answer, want the run's end after 2", err, inputs)
	}
}

// The export is the only thing that a run leaves on this machine, and a question cannot be asked a second time for it.
func TestAskExportsWhenTheServiceIsNoLongerBusy(t *testing.T) {
	exports := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/export") {
			fmt.Fprint(w, "id: run_1:1\nevent: start\ndata: {\"type\":\"start\",\"run_id\":\"run_1\"}\n\n"+
				"id: run_1:2\nevent: final_answer\ndata: {\"type\":\"final_answer\",\"answer\":\"\"}\n\n")
			return
		}
		if exports++; exports == 1 {
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"status":429,"code":"rate_limited","detail":"This caller has too many open requests."}`)
			return
		}
		fmt.Fprint(w, `{"version":1}`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "run.json")
	s := New(Options{URL: server.URL, Export: file, In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	defer s.Close()
	err := s.Ask(t.Context(), "?")
	if got, _ := os.ReadFile(file); err != nil || string(got) != `{"version":1}` {
		t.Errorf("got %v and the file %q after %d requests for the export, want the export after 2", err, got, exports)
	}
}

func TestAskCancelsWhenTheServiceIsNoLongerBusy(t *testing.T) {
	cancels := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/cancel") {
			fmt.Fprint(w, "id: run_1:1\nevent: start\ndata: {\"type\":\"start\",\"run_id\":\"run_1\"}\n\n")
			w.(http.Flusher).Flush()
			cancel() // Ctrl-C
			<-r.Context().Done()
			return
		}
		if cancels++; cancels == 1 {
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"status":429,"code":"rate_limited","detail":"This caller has too many open requests."}`)
		}
	}))
	defer server.Close()
	var printed strings.Builder
	s := New(Options{URL: server.URL, In: strings.NewReader(""), Out: io.Discard, Err: &printed})
	defer s.Close()
	if err := s.Ask(ctx, "?"); err != ErrInterrupted || cancels != 2 || strings.Contains(printed.String(), "could not be cancelled") {
		t.Errorf("got %v after %d requests to cancel, and %q, want ErrInterrupted after 2", err, cancels, printed.String())
	}
}
