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

// Crash simulates the death of the process that has the log. It returns the log of the next process, and a function
// that resumes the first process. resume is nil if the first process cannot come back.
type Crash func(t *testing.T) (next event.Log, resume func())

// Model starts runs, appends to them, and reads them from random positions, in a random order. It compares the results
// with a model of the log, which has a list of events per run. If crash is not nil, Model calls it from time to time.
// All runs must then continue in the next log, and the old log, if it comes back, must refuse appends.
func Model(t *testing.T, log event.Log, crash Crash) {
	t.Helper()
	m := &model{log: log, bodies: make(map[string][]event.Body), jobs: make(map[string]event.Job)}
	rnd := rand.New(rand.NewPCG(5, 6))
	for n := range 1000 {
		what := rnd.IntN(1000)
		switch {
		case what < 40 || len(m.ids) == 0:
			m.beginRun(t)
		case what < 600:
			var b event.Body = event.StepStart{Step: n}
			if what >= 590 {
				b = event.FinalAnswer{Answer: strings.Repeat("y", rnd.IntN(700<<10))}
			}
			m.appendEvent(t, m.ids[rnd.IntN(len(m.ids))], b)
		default:
			id := m.ids[rnd.IntN(len(m.ids))]
			m.readPage(t, id, rnd.Int64N(int64(len(m.bodies[id]))+2))
		}
		if crash != nil && n%400 == 399 {
			m.crashLog(t, crash)
		}
	}
	for _, id := range m.ids {
		m.readPage(t, id, 0)
	}
}

type model struct {
	log    event.Log
	ids    []string
	bodies map[string][]event.Body // by run
	jobs   map[string]event.Job    // of runs that have not ended
}

func (m *model) beginRun(t *testing.T) {
	t.Helper()
	id := fmt.Sprintf("run_%d", len(m.ids))
	createRun(t, m.log, id)
	m.ids, m.jobs[id] = append(m.ids, id), createJob(t, m.log, id)
	m.appendEvent(t, id, event.Start{Question: "?"})
}

// appendEvent appends an event to the log and to the model. It checks that a run that has ended refuses the event.
func (m *model) appendEvent(t *testing.T, id string, b event.Body) {
	t.Helper()
	if m.jobs[id] == nil {
		wantError(t, errorOf(m.log.Append(t.Context(), id, b)), event.ErrEnded, "Append to %s, which has ended,", id)
		return
	}
	if seq := appendEvent(t, m.log, id, b); seq != int64(len(m.bodies[id]))+1 {
		t.Fatalf("event %d of %s got number %d, want the same", len(m.bodies[id])+1, id, seq)
	}
	m.bodies[id] = append(m.bodies[id], b)
	if _, ended := b.(event.FinalAnswer); ended {
		noError(t, m.jobs[id].Done(t.Context()))
		delete(m.jobs, id)
	}
}

// readPage reads one page and compares it with the model.
func (m *model) readPage(t *testing.T, id string, pos int64) {
	t.Helper()
	want := m.bodies[id]
	page, err := m.log.After(t.Context(), id, pos)
	if pos > int64(len(want)) {
		if !errors.Is(err, event.ErrInvalidPosition) {
			t.Fatalf("After(%s, %d) of %d events = %v, want %v", id, pos, len(want), err, event.ErrInvalidPosition)
		}
		return
	}
	if err != nil || len(page.Events) == 0 && pos < int64(len(want)) {
		t.Fatalf("After(%s, %d) of %d events = %d events, %v, want some", id, pos, len(want), len(page.Events), err)
	}
	for i, e := range page.Events {
		if e.Seq != pos+int64(i)+1 || !reflect.DeepEqual(e.Body, want[pos+int64(i)]) {
			t.Fatalf("After(%s, %d): event %d is %.200s, want %.200v", id, pos, i, e.AppendJSON(nil), want[pos+int64(i)])
		}
	}
}

// crashLog calls crash and continues with the next log, which must offer the jobs of all runs that have not ended.
func (m *model) crashLog(t *testing.T, crash Crash) {
	t.Helper()
	dead := m.log
	next, resume := crash(t)
	m.log = next
	for range len(m.jobs) {
		j := claimJob(t, next)
		if m.jobs[j.Run()] == nil || m.jobs[j.Run()].Attempt() >= j.Attempt() {
			t.Fatalf("Claim = %s, attempt %d, want a run that has not ended and a higher attempt", j.Run(), j.Attempt())
		}
		m.jobs[j.Run()] = j
	}
	if resume == nil {
		return
	}
	resume()
	for id := range m.jobs {
		wantError(t, errorOf(dead.Append(t.Context(), id, event.StepStart{Step: -1})), event.ErrFenced, "Append of the replaced log to %s", id)
	}
}
