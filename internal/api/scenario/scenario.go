// Package scenario provides runs as lists of events for the tests of the API formats. Every format has a golden file
// with its encoding of the same events.
//
//	for _, s := range scenario.All(t) {
//		t.Run(s.Name, func(t *testing.T) { s.Golden(t, "aisdk", encode(s.Events)) })
//	}
//
// A scenario is a directory in testdata. It has events.jsonl, which begins with a description in lines of "#", and a
// golden file for every API format. The events go through an event.Writer, so that every scenario is one that a run
// could produce. The flag -update writes the golden files.
package scenario

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"answerd/internal/event"
	"answerd/internal/event/memory"
)

var update = flag.Bool("update", false, "write the golden files")

// RunID and ThreadID are those of every scenario.
const (
	RunID    = "run_1"
	ThreadID = "thr_1"
)

// epoch is the time at which every scenario begins, in milliseconds. Its events are one second apart.
const epoch = 1_795_000_000_000

// Scenario is one run.
type Scenario struct {
	Name   string
	Events []event.Event
	dir    string
}

// All returns all scenarios.
func All(t *testing.T) []Scenario {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(moduleDir(t), "internal", "api", "scenario", "testdata", "*", "events.jsonl"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("Glob = %d files, %v, want one for each scenario, no error", len(paths), err)
	}
	scenarios := make([]Scenario, len(paths))
	for i, path := range paths {
		scenarios[i] = loadScenario(t, filepath.Dir(path))
	}
	return scenarios
}

// moduleDir returns the directory of go.mod, which is above that of every test. runtime.Caller does not know it after a
// build with -trimpath.
func moduleDir(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			t.Fatal("no directory above the test has a go.mod, want that of the module")
		}
		dir = filepath.Dir(dir)
	}
}

// loadScenario reads a scenario's events and appends them to a log with an event.Writer, as a run does. It then
// replaces their times by times from epoch on, one second apart.
func loadScenario(t *testing.T, dir string) Scenario {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	log := memory.New(memory.Options{})
	if err := log.Create(t.Context(), event.Run{ID: RunID, ThreadID: ThreadID}); err != nil {
		t.Fatal(err)
	}

	w := event.NewWriter(log, RunID)
	for i, line := range bytes.Split(text, []byte("\n")) {
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		e, err := event.Decode(line)
		if err != nil {
			t.Fatalf("%s/events.jsonl:%d: %v", dir, i+1, err)
		}
		if err := w.Append(t.Context(), e.Body); err != nil {
			t.Fatalf("%s/events.jsonl:%d: %v", dir, i+1, err)
		}
	}

	s := Scenario{Name: filepath.Base(dir), dir: dir}
	appended, err := event.ReadAll(t.Context(), log, RunID)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range appended {
		// The log's own time is that of the test.
		e, err := event.Encode(e.RunID, e.Seq, epoch+1000*e.Seq, e.Body)
		if err != nil {
			t.Fatal(err)
		}
		s.Events = append(s.Events, e)
	}
	return s
}

// Segments splits the run at its suspensions. Each segment is what a reader gets who resumes after the suspension
// before.
func (s Scenario) Segments() []Segment {
	var segments []Segment
	begin := 0 // the index of the current segment's first event
	for i, e := range s.Events {
		if _, isSuspended := e.Body.(event.Suspended); isSuspended || i == len(s.Events)-1 {
			segments = append(segments, Segment{After: int64(begin), Events: s.Events[begin : i+1]})
			begin = i + 1
		}
	}
	return segments
}

// EventsUntil returns the events up to the end of a segment, for a reader who begins then. It leaves out earlier
// suspensions, which are over.
func (s Scenario) EventsUntil(end Segment) []event.Event {
	var events []event.Event
	last := end.Events[len(end.Events)-1].Seq
	for _, e := range s.Events[:last] {
		if _, isSuspended := e.Body.(event.Suspended); !isSuspended || e.Seq == last {
			events = append(events, e)
		}
	}
	return events
}

// Segment is the part of a run after the event After.
type Segment struct {
	After  int64
	Events []event.Event
}

// Golden compares got with the scenario's golden file name. With -update, it writes the file instead.
func (s Scenario) Golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (-update makes it), want no error", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what it was, which -update would make of it:\n%s, want %s", path, got, want)
	}
}
