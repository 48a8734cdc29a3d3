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

// disk is a small file system of its own, and what fills it.
type disk struct{ dir, filler string }

func newDisk(t testing.TB, size string) *disk {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=700"); err != nil {
		t.Skip("no disk of our own can be mounted:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return &disk{dir, filepath.Join(dir, "filler")}
}

// fill leaves no byte free.
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

// free gives the room back.
func (d *disk) free(t testing.TB) {
	t.Helper()
	if err := os.Remove(d.filler); err != nil {
		t.Fatal(err)
	}
}

// F34: what cannot be kept is not said. Where nothing can be, the service says so at once;
// when there is room again it works again, and the run that was cut has one end: an error, or,
// where that could not be kept either, it goes on.
func TestF34FullDiskIsReportedAndRecoveredFrom(t *testing.T) {
	r := fault(t, "EVENTS_URL=file: on a disk that is full in the middle of a run", "unready, 503 at once, nothing is said that is not kept; with room it works again, and the run has one end")
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
	reaches(t, &begun, 1, "runs")
	d.fill(t)
	close(open)
	s.until(t, "disk takes nothing")
	if a := s.request(t, "GET", "/readyz", ""); a.status != 503 {
		t.Errorf("readiness: %+v", a)
	}
	refusal := took(func() { r.wants(s.request(t, "POST", "/answer", small), 503, "overloaded") })
	if refusal > 10*time.Second {
		t.Errorf("refused after %s", refusal)
	}
	d.free(t)
	s.until(t, "disk writable again")
	said, err := follow(resp.Body, nil)
	if err != nil || said.flaw() != "" {
		t.Errorf("%d events, %s, the last %.200s, %v\n%s", len(said), said.flaw(), said.last().Type, err, s.out)
	}
	again, err := s.send(t.Context(), "GET", "/runs/"+said.last().RunID+"/events", "")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Body.Close()
	if kept, err := follow(again.Body, nil); err != nil || !slices.EqualFunc(kept, said, func(a, b happening) bool { return a.ID == b.ID && a.Type == b.Type && a.Delta == b.Delta }) {
		t.Errorf("%d events were said, %d are kept, %v", len(said), len(kept), err)
	}
	if a := s.request(t, "POST", "/answer", small); a.status != 200 {
		t.Errorf("afterwards: %+v", a)
	}
	if a := s.request(t, "GET", "/readyz", ""); a.status != 200 {
		t.Errorf("readiness afterwards: %+v", a)
	}
	r.saw("refused after %s; %d events said and kept, the last %s", refusal.Round(time.Millisecond), len(said), said.last().Type)
}
