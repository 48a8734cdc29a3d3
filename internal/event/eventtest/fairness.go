package eventtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"answerd/internal/event"
)

// readGrace is longer than the time for which a log protects the readers of a run that has just ended.
const readGrace = 6 * time.Second

// Fairness checks that a full log deletes runs of an owner above their share, and no runs of other owners. capacity is
// how many bytes of text the log holds before it deletes runs. open is called twice. It returns the empty log first,
// and then the log to fill: the same log, another one that shares its server, or the same one after a restart.
func Fairness(t *testing.T, capacity int, open func(t *testing.T) event.Log) {
	const quiet, early, late = 9, 20, 16 // numbers of runs
	log := open(t)
	for i := range quiet {
		endRun(t, log, fmt.Sprintf("run_quiet%d", i), fmt.Sprint("quiet", i%3), capacity/200)
	}
	for i := range early {
		endRun(t, log, fmt.Sprintf("run_early%d", i), "flood", capacity/1000*35)
	}
	ended := time.Now()
	log = open(t)
	Await(t, "the time in which readers read the last events", func() bool { return time.Since(ended) > readGrace })
	for i := range late {
		endRun(t, log, fmt.Sprintf("run_late%d", i), "flood", capacity/50)
	}
	Await(t, "the first run of the owner above their share to be deleted", func() bool { return isGone(t, log, "run_early0") })
	for i := range quiet {
		if id := fmt.Sprintf("run_quiet%d", i); isGone(t, log, id) {
			t.Errorf("%s is gone, want it kept: its owner is below their share", id)
		}
	}
	for _, id := range []string{fmt.Sprintf("run_early%d", early-1), "run_late0", fmt.Sprintf("run_late%d", late-1)} {
		if isGone(t, log, id) {
			t.Errorf("%s is gone, want it kept: enough others of its owner ended before it", id)
		}
	}
}

// endRun adds a run that has ended and whose text has size bytes.
func endRun(t *testing.T, log event.Log, id, owner string, size int) {
	t.Helper()
	noError(t, log.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: owner}, Created: time.Now()}))
	appendEvent(t, log, id, event.Start{Question: strings.Repeat("x", size)})
	appendEvent(t, log, id, event.FinalAnswer{})
}

// isGone reports whether the log has deleted a run.
func isGone(t *testing.T, log event.Log, id string) bool {
	t.Helper()
	_, err := log.After(t.Context(), id, 0)
	if err != nil && !errors.Is(err, event.ErrGone) {
		t.Fatalf("After(%s) = %v, want no error or %v", id, err, event.ErrGone)
	}
	return err != nil
}
