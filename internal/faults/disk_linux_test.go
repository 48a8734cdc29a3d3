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

// free removes that file.
func (d *disk) free(t testing.TB) {
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
			llmtest.Stream(w, "", says("Well"))
			begun.Add(1)
			select {
			case <-open:
			case <-hq.Context().Done():
				return
			}
			for range 200 { // more than what is free of the last block of a file
				llmtest.Stream(w, "", says(strings.Repeat("x", 4<<10)))
			}
			llmtest.Stream(w, "stop", says("."))
		}
	})
	s := start(t, "LLM_BASE_URL="+model.URL, "EVENTS_URL=file:"+filepath.Join(d.dir, "log"), "EVENTS_MAX_BYTES=16MiB")
	if a := s.request(t, "POST", "/answer", small); a.status != 200 {
		t.Fatalf("%+v\n%s", a, s.out)
	}
	resp, err := s.send(t.Context(), "POST", "/answer/stream", question)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	waitForCount(t, &begun, 1, "runs")
	d.fill(t)
	close(open)
	s.waitForOutput(t, "disk not writable")
	if a := s.request(t, "GET", "/readyz", ""); a.status != 503 {
		t.Errorf("GET /readyz = %+v, want 503", a)
	}
	refusal := duration(func() { r.wants(s.request(t, "POST", "/answer", small), 503, "overloaded") })
	if refusal > 10*time.Second {
		t.Errorf("refused after %s", refusal)
	}
	d.free(t)
	s.waitForOutput(t, "disk writable again")
	said, err := readEvents(resp.Body, nil)
	if err != nil || said.orderError() != "" {
		t.Errorf("%d events, %s, the last %.200s, %v\n%s", len(said), said.orderError(), said.last().Type, err, s.out)
	}
	again, err := s.send(t.Context(), "GET", "/runs/"+said.last().RunID+"/events", "")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Body.Close()
	if kept, err := readEvents(again.Body, nil); err != nil || !slices.EqualFunc(kept, said, func(a, b streamEvent) bool { return a.ID == b.ID && a.Type == b.Type && a.Delta == b.Delta }) {
		t.Errorf("%d events were said, %d are kept, %v", len(said), len(kept), err)
	}
	if a := s.request(t, "POST", "/answer", small); a.status != 200 {
		t.Errorf("the next question got %+v, want 200", a)
	}
	if a := s.request(t, "GET", "/readyz", ""); a.status != 200 {
		t.Errorf("GET /readyz after the recovery = %+v, want 200", a)
	}
	r.record("refused after %s; %d events said and kept, the last %s", refusal.Round(time.Millisecond), len(said), said.last().Type)
}
