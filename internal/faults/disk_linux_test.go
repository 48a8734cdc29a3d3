package faults

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// disk is a small file system, and the file that fills it.
type disk struct{ dir, filler string }

func newDisk(t testing.TB, size string) *disk {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=700"); err != nil {
		t.Skip("tmpfs cannot be mounted:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return &disk{dir, filepath.Join(dir, "filler")}
}

// fill writes a file until the disk is full.
func (d *disk) fill(t testing.TB) {
	t.Helper()
	f, err := os.Create(d.filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(block)
	}
}

// removeFiller removes the file that fills the disk.
func (d *disk) removeFiller(t testing.TB) {
	t.Helper()
	if err := os.Remove(d.filler); err != nil {
		t.Fatal(err)
	}
}

// No event that cannot be stored is sent to a client. While the disk is full, the service
// refuses new runs at once; when it has space again, it works again. The run that was cut ends
// once, or continues if its end could not be stored either.
func TestF34FullDiskIsReportedAndRecoveredFrom(t *testing.T) {
	r := beginFault(t, "EVENTS_URL=file: on a disk that is full in the middle of a run", "unready, 503 at once, nothing is said that is not kept; with room it works again, and the run has one end")
	d := newDisk(t, "48m")
	var begun atomic.Int64
	open := make(chan struct{})
	const small = `{"question":"Well?"}`
	model := llmtest.New(t, func(q llmtest.Request) llmtest.Answer {
		if q.Messages[len(q.Messages)-1].Content != "?" {
			return llmtest.Says("Yes.")
		}
		return func(w http.ResponseWriter, hq *http.Request) {
			llmtest.Stream(w, "", textDelta("Well"))
			begun.Add(1)
			select {
			case <-open:
			case <-hq.Context().Done():
				return
			}
			for range 200 { // more than what is free of the last block of a file
				llmtest.Stream(w, "", textDelta(strings.Repeat("x", 4<<10)))
			}
			llmtest.Stream(w, "stop", textDelta("."))
		}
	})

	s := start(t, "LLM_BASE_URL="+model.URL, "EVENTS_URL=file:"+filepath.Join(d.dir, "log"), "EVENTS_MAX_BYTES=16MiB")
	if a := s.request(t, "POST", "/answer", small); a.status != 200 {
		t.Fatalf("reply %+v\n%s, want status 200", a, s.out)
	}

	// Fill the disk in the middle of a run.
	resp, err := s.send(t.Context(), "POST", "/answer/stream", question)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	waitForCount(t, &begun, 1, "runs")
	d.fill(t)
	close(open)
	s.waitForOutput(t, "disk not writable")

	// The service is not ready, and refuses runs at once.
	if a := s.request(t, "GET", "/readyz", ""); a.status != 503 {
		t.Errorf("GET /readyz = %+v, want 503", a)
	}
	refusal := timeOf(func() { r.wantProblem(s.request(t, "POST", "/answer", small), 503, "log_unavailable") })
	if refusal > 10*time.Second {
		t.Errorf("refused after %s, want at most 10 s", refusal)
	}

	// With space again, the run ends, and its reader got all events that the log has.
	d.removeFiller(t)
	s.waitForOutput(t, "disk writable again")
	said, err := readEvents(resp.Body, nil)
	if err != nil || said.orderError() != "" {
		t.Errorf("%d events, %s, the last %.200s, %v\n%s, want empty and no error", len(said), said.orderError(), said.last().Type, err, s.out)
	}
	again, err := s.send(t.Context(), "GET", "/runs/"+said.last().RunID+"/events", "")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Body.Close()
	if kept, err := readEvents(again.Body, nil); err != nil || !slices.EqualFunc(kept, said, func(a, b streamEvent) bool { return a.ID == b.ID && a.Type == b.Type && a.Delta == b.Delta }) {
		t.Errorf("%d events are kept, %v, want the %d that were sent", len(kept), err, len(said))
	}

	// New runs are answered.
	if a := s.request(t, "POST", "/answer", small); a.status != 200 {
		t.Errorf("the next question got %+v, want 200", a)
	}
	if a := s.request(t, "GET", "/readyz", ""); a.status != 200 {
		t.Errorf("GET /readyz after the recovery = %+v, want 200", a)
	}

	// An operator must not take the full disk for a defect of answerd, which this line reports.
	if strings.Contains(s.out.String(), `"msg":"run failed"`) {
		t.Errorf("got the line run failed, want none:\n%s", s.out)
	}
	r.record("refused after %s; %d events said and kept, the last %s", refusal.Round(time.Millisecond), len(said), said.last().Type)
}

// fillUpTo writes a file that leaves some bytes of the disk free.
func (d *disk) fillUpTo(t testing.TB, left int64) {
	t.Helper()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(d.dir, &fs); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.filler, make([]byte, int64(fs.Bavail)*fs.Bsize-left), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Deleting runs is a write too, so the log keeps space in reserve for it. Another file takes most
// of the disk, and the runs the rest. Nothing is removed from outside: the log deletes the runs
// whose retention has passed, and serves again; a process that starts on the full disk as well.
func TestF39DiskFilledByTheLogIsFreedByRetention(t *testing.T) {
	const retention = 10 * time.Second
	for _, how := range []string{"left alone", "killed and started again"} {
		t.Run(how, func(t *testing.T) {
			r := beginFault(t, "the log fills its disk, "+how, "every acknowledged run is readable until its retention has passed; ready within 10 s after that, without intervention")
			d := newDisk(t, "40m")
			tool := newPeer(t, resultReply(`{"content":[{"type":"text","text":"`+strings.Repeat("x", 200_000)+`"}]}`))
			model := llmtest.New(t, func(q llmtest.Request) llmtest.Answer {
				if q.Messages[len(q.Messages)-1].Role == "tool" {
					return llmtest.Says("Done.")
				}
				call := llmtest.Call{Name: "t", Args: "{}"}
				return llmtest.Calls(call, call, call, call)
			})
			env := []string{"LLM_BASE_URL=" + model.URL, "MCP_URL=" + tool.url, "EVENTS_URL=file:" + filepath.Join(d.dir, "log"), "EVENTS_RETENTION=" + retention.String()}
			s := start(t, env...)

			// Ask until the log has filled its disk.
			d.fillUpTo(t, 12<<20)
			var kept []string
			var first time.Time
			full := make(chan struct{})
			go func() { defer close(full); s.waitForOutput(t, "disk not writable") }()
			for range 17 {
				// The run that fills the disk gets its answer when there is space again.
				answers := make(chan reply, 1)
				go func() {
					answer, err := s.trySend("POST", "/answer", question)
					if err == nil && answer.status == 200 {
						answers <- answer
					}
				}()
				select {
				case answer := <-answers:
					kept = append(kept, answer.field("run_id"))
					if first.IsZero() {
						first = time.Now()
					}
					continue
				case <-full:
				}
				break
			}
			if s.out.count("disk not writable") == 0 || len(kept) == 0 {
				t.Fatalf("%d runs did not fill the disk, want disk not writable:\n%s", len(kept), s.out)
			}

			// New runs are refused, and those in the log can be read.
			r.wantProblem(s.ask(t), 503, "log_unavailable")
			if a := s.request(t, "GET", "/readyz", ""); a.status != 503 {
				t.Errorf("GET /readyz on the full disk = %d, want 503", a.status)
			}
			if how != "left alone" {
				s.signal(t, syscall.SIGKILL)
				s.waitForExit(t)
				s = start(t, env...)
			}
			for _, id := range kept {
				if time.Since(first) > retention-time.Second {
					break // the machine is slow
				}
				a, err := s.trySend("GET", "/runs/"+id+"/events", "")
				for tries := 0; tries < 20 && (err != nil || a.status == 503); tries++ { // the log's files are opened again
					<-time.After(100 * time.Millisecond)
					a, err = s.trySend("GET", "/runs/"+id+"/events", "")
				}
				if a.status != 200 || !strings.Contains(a.body, "event: final_answer") {
					t.Errorf("GET /runs/%s/events on the full disk = %d, want 200 and all events", id, a.status)
				}
			}

			// When the first runs have expired, the service is ready again.
			s.waitForOutput(t, "disk writable again")
			if a := s.request(t, "GET", "/readyz", ""); a.status != 200 {
				t.Errorf("GET /readyz after the recovery = %d, want 200", a.status)
			}
			ready := time.Since(first) - retention
			if ready > 10*time.Second {
				t.Errorf("ready %s after the first run's expiry, want at most 10 s\n%s", ready, s.out)
			}
			if a := s.ask(t); a.status != 200 {
				t.Errorf("the next question got %d %s, want 200", a.status, a.body)
			}
			r.record("%d runs kept; ready %s after the first run's expiry", len(kept), ready.Round(100*time.Millisecond))
		})
	}
}

// The size of the log is checked against its disk before it is opened.
func TestF40LogThatDoesNotFitItsDiskIsBounded(t *testing.T) {
	r := beginFault(t, "EVENTS_MAX_BYTES is more than the disk has", "exit code 2 where it is set; else a smaller bound, which is logged")
	d := newDisk(t, "40m")
	model := llmtest.New(t, callingModel())
	env := []string{"LLM_BASE_URL=" + model.URL, "EVENTS_URL=file:" + filepath.Join(d.dir, "log")}
	s := launch(t, append(env, "EVENTS_MAX_BYTES=64MiB")...)
	if code := s.waitForExit(t); code != 2 || s.out.count("EVENTS_MAX_BYTES: ") != 1 {
		t.Errorf("exit code %d, want 2 and a line that names EVENTS_MAX_BYTES:\n%s", code, s.out)
	}
	s = start(t, env...)
	if s.out.count("smaller than its default") != 1 {
		t.Errorf("no line says the bound:\n%s, want count(\"smaller than its default\") 1", s.out)
	}
	if code := s.stop(t); code != 0 {
		t.Errorf("exit code %d, want 0\n%s", code, s.out)
	}
	start(t, append(env, "EVENTS_MAX_BYTES=20MiB")...)
	r.record("exit code 2; a smaller bound")
}
