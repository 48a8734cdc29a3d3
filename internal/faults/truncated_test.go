package faults

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"answerd/internal/llm/llmtest"
)

// cutFiles shortens the files of a stream to a share of their size.
func cutFiles(t *testing.T, log, stream string, share float64) {
	t.Helper()
	for _, b := range blocksOf(t, log, stream) {
		info, err := os.Stat(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(b, int64(float64(info.Size())*share)); err != nil {
			t.Fatal(err)
		}
	}
}

// blocksOf returns the files that have the messages of a stream, without the state that the
// server derives from them, which it removes.
func blocksOf(t *testing.T, log, stream string) []string {
	t.Helper()
	dir := filepath.Join(log, "jetstream", "$G", "streams", stream, "msgs")
	blocks, err := filepath.Glob(filepath.Join(dir, "*.blk"))
	if err != nil || len(blocks) == 0 {
		t.Fatalf("stream %s has no files, %v, %d blocks, want blocks non-zero, no error", stream, err, len(blocks))
	}
	if err := os.Remove(filepath.Join(dir, "index.db")); err != nil && !os.IsNotExist(err) {
		t.Fatalf("error %v, want it removed", err)
	}
	return blocks
}

// startInBackground starts runs that need no reader, and returns their ids.
func (s *service) startInBackground(t *testing.T, runs int) (ids []string) {
	t.Helper()
	for range runs {
		a := s.request(t, "POST", "/answer", `{"question":"?","background":true}`)
		if a.status != 202 || a.field("run_id") == "" {
			t.Fatalf("POST /answer in the background = %d %s, want 202", a.status, a.body)
		}
		ids = append(ids, a.field("run_id"))
	}
	return ids
}

// A power failure may lose the end of each file of the log, and not the same time of each: here
// all jobs are lost, and half of the events.
func TestF42TruncatedLogStaysConsistent(t *testing.T) {
	r := beginFault(t, "half of the events and all jobs are lost while answerd is down", "every run that is listed can be read and has ended; nothing waits for a run that nobody executes")
	var begun atomic.Int64
	model := llmtest.New(t, waitingModel(&begun, nil))
	dir := filepath.Join(t.TempDir(), "log")
	env := []string{"LLM_BASE_URL=" + model.URL, "EVENTS_URL=file:" + dir}
	s := start(t, env...)
	const runs = 40
	ids := s.startInBackground(t, runs)
	waitForCount(t, &begun, runs, "runs")
	s.signal(t, syscall.SIGKILL)
	s.waitForExit(t)
	cutFiles(t, dir, "ANSWERD_RUNS", 0.5)
	cutFiles(t, dir, "ANSWERD_JOBS", 0)

	s = start(t, env...)
	ended, gone := 0, 0
	for _, id := range ids {
		events := s.request(t, "GET", "/runs/"+id+"/events", "") // until the run ends
		switch {
		case events.status == 410 || events.status == 404:
			gone++
		case events.status == 200 && strings.Contains(events.body, `"server_shutdown"`):
			ended++
		default:
			t.Errorf("GET /runs/%s/events = %d %.300s, want an end with server_shutdown, or 410", id, events.status, events.body)
		}
	}
	if ended == 0 || gone == 0 {
		t.Errorf("%d runs ended and %d are gone, want some of both", ended, gone)
	}
	var page struct {
		Runs []struct {
			RunID  string `json:"run_id"`
			Status string
		}
	}
	list := s.request(t, "GET", "/runs?limit=100", "")
	if err := json.Unmarshal([]byte(list.body), &page); err != nil || len(page.Runs) != ended {
		t.Errorf("GET /runs = %d with %d runs, %v, want the %d that can be read", list.status, len(page.Runs), err, ended)
	}
	for _, run := range page.Runs {
		if a := s.request(t, "GET", "/runs/"+run.RunID, ""); a.status != 200 || run.Status != "failed" {
			t.Errorf("GET /runs/%s = %d, listed as %s, want 200 and failed", run.RunID, a.status, run.Status)
		}
	}
	r.record("%d runs ended, %d gone, %d listed", ended, gone, len(page.Runs))
}

// damageFiles changes some bytes in each file of a stream.
func damageFiles(t *testing.T, log, stream string, bytes int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, path := range blocksOf(t, log, stream) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for range bytes {
			data[rnd.IntN(len(data))] ^= 0xff
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// No reader waits for a run whose messages are damaged, and other runs are not affected.
func TestF43DamagedBlockAffectsOnlyItsRuns(t *testing.T) {
	r := beginFault(t, "20 bytes of each file of events are changed while answerd is down", "no reader waits for ever; what is listed has a state; new runs work")
	var begun atomic.Int64
	open := make(chan struct{})
	model := llmtest.New(t, waitingModel(&begun, open))
	dir := filepath.Join(t.TempDir(), "log")
	env := []string{"LLM_BASE_URL=" + model.URL, "EVENTS_URL=file:" + dir}
	s := start(t, env...)
	const runs = 40
	ids := s.startInBackground(t, runs)
	waitForCount(t, &begun, runs, "runs")
	s.signal(t, syscall.SIGKILL)
	s.waitForExit(t)
	damageFiles(t, dir, "ANSWERD_RUNS", 20)
	close(open)

	s = start(t, env...)
	readable, gone := 0, 0
	for _, id := range ids {
		events := s.request(t, "GET", "/runs/"+id+"/events", "")
		switch {
		case events.status == 410 || events.status == 404:
			gone++
		case events.status == 200 && (strings.Contains(events.body, "event: run_error") || strings.Contains(events.body, "event: final_answer")):
			readable++
		default:
			t.Errorf("GET /runs/%s/events = %d %.300s, want an end, or 410", id, events.status, events.body)
		}
	}
	list := s.request(t, "GET", "/runs?limit=100", "")
	if list.status != 200 || strings.Contains(list.body, `"running"`) {
		t.Errorf("GET /runs = %d %.500s, want 200 and no run that is running", list.status, list.body)
	}
	if a := s.ask(t); a.status != 200 {
		t.Errorf("the next question got %d %s, want 200", a.status, a.body)
	}
	r.record("%d runs readable, %d gone", readable, gone)
}
