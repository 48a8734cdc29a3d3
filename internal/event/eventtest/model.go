package eventtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"answerd/internal/event"
)

// Crash ends the process that has the log, as far as that goes in a test. It returns the
// log of the next one, and what brings the first one back, nil where nothing does.
type Crash func(t *testing.T) (next event.Log, revive func())

// Model begins runs, appends to them and reads them at random, from random positions, and
// compares what it reads with a model of the log, which is a list. crash, where it is not
// nil, comes now and then: all runs go on in the next log, and a log that comes back writes
// nothing more.
func Model(t *testing.T, log event.Log, crash Crash) {
	t.Helper()
	m := &model{log: log, bodies: make(map[string][]event.Body), jobs: make(map[string]event.Job)}
	rnd := rand.New(rand.NewPCG(5, 6))
	for n := range 1000 {
		switch what := rnd.IntN(1000); {
		case what < 40 || len(m.ids) == 0:
			m.begin(t)
		case what < 600:
			var b event.Body = event.StepStart{Step: n}
			if what >= 590 {
				b = event.FinalAnswer{Answer: strings.Repeat("y", rnd.IntN(700<<10))}
			}
			m.add(t, m.ids[rnd.IntN(len(m.ids))], b)
		default:
			id := m.ids[rnd.IntN(len(m.ids))]
			m.read(t, id, rnd.Int64N(int64(len(m.bodies[id]))+2))
		}
		if crash != nil && n%400 == 399 {
			m.crash(t, crash)
		}
	}
	for _, id := range m.ids {
		m.read(t, id, 0)
	}
}

type model struct {
	log    event.Log
	ids    []string
	bodies map[string][]event.Body // of each run
	jobs   map[string]event.Job    // of those that have not ended
}

func (m *model) begin(t *testing.T) {
	t.Helper()
	id := fmt.Sprintf("run_%d", len(m.ids))
	create(t, m.log, id)
	m.ids, m.jobs[id] = append(m.ids, id), hold(t, m.log, id)
	m.add(t, id, event.Start{Question: "?"})
}

func (m *model) add(t *testing.T, id string, b event.Body) {
	t.Helper()
	if m.jobs[id] == nil {
		if _, err := m.log.Append(t.Context(), id, b); !errors.Is(err, event.ErrEnded) {
			t.Fatalf("%s has ended, and takes more: %v", id, err)
		}
		return
	}
	if seq := add(t, m.log, id, b); seq != int64(len(m.bodies[id]))+1 {
		t.Fatalf("event %d of %s has the number %d", len(m.bodies[id])+1, id, seq)
	}
	m.bodies[id] = append(m.bodies[id], b)
	if _, ended := b.(event.FinalAnswer); ended {
		if err := m.jobs[id].Done(t.Context()); err != nil {
			t.Fatal(err)
		}
		delete(m.jobs, id)
	}
}

// read reads one page.
func (m *model) read(t *testing.T, id string, pos int64) {
	t.Helper()
	want := m.bodies[id]
	page, err := m.log.After(t.Context(), id, pos)
	if pos > int64(len(want)) {
		if !errors.Is(err, event.ErrInvalidPosition) {
			t.Fatalf("%s after %d of %d: %v", id, pos, len(want), err)
		}
		return
	}
	if err != nil || len(page.Events) == 0 && pos < int64(len(want)) {
		t.Fatalf("%s after %d of %d: %d events, %v", id, pos, len(want), len(page.Events), err)
	}
	for i, e := range page.Events {
		if e.Seq != pos+int64(i)+1 || !reflect.DeepEqual(e.Body, want[pos+int64(i)]) {
			t.Fatalf("%s after %d: event %d is %.200s", id, pos, i, e.AppendJSON(nil))
		}
	}
}

func (m *model) crash(t *testing.T, crash Crash) {
	t.Helper()
	dead := m.log
	next, revive := crash(t)
	m.log = next
	for range len(m.jobs) {
		j := claim(t, next)
		if m.jobs[j.Run()] == nil || m.jobs[j.Run()].Attempt() >= j.Attempt() {
			t.Fatalf("%s is claimed, attempt %d", j.Run(), j.Attempt())
		}
		m.jobs[j.Run()] = j
	}
	if revive == nil {
		return
	}
	revive()
	for id := range m.jobs {
		if _, err := dead.Append(t.Context(), id, event.StepStart{Step: -1}); !errors.Is(err, event.ErrFenced) {
			t.Fatalf("%s has two writers: %v", id, err)
		}
	}
}
