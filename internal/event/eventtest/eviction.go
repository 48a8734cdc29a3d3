package eventtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"answerd/internal/event"
)

// evictionTimeout bounds how long a full log may take to drop a run.
const evictionTimeout = time.Minute

// Eviction checks which runs a full log drops. open returns an empty log that holds maxBytes; text is
// how many bytes it counts for a byte of text.
func Eviction(t *testing.T, text int64, open func(t *testing.T, maxBytes int64) event.Log) {
	const maxBytes = 16 << 20
	for _, c := range []struct {
		name string
		test func(*testing.T, *fillable)
	}{
		{"OwnerAboveTheirShareLosesTheirOwnRunsFirst", testOwnerAboveTheirShareLosesTheirOwnRunsFirst},
		{"RunThatJustEndedIsKept", testRunThatJustEndedIsKept},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, &fillable{open(t, maxBytes), int(maxBytes / text)})
		})
	}
}

// fillable is a log that can be filled to a part of its size.
type fillable struct {
	event.Log
	size int // bytes of text that fit
}

// endRun adds a run that has ended, with a text that takes that many thousandths of the log.
func (l *fillable) endRun(t *testing.T, id, owner string, thousandths int) {
	t.Helper()
	if err := l.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: owner}, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	appendEvent(t, l, id, event.Start{Question: strings.Repeat("x", l.size/1000*thousandths)})
	appendEvent(t, l, id, event.FinalAnswer{})
}

// isGone reports whether the log has dropped a run.
func (l *fillable) isGone(t *testing.T, id string) bool {
	t.Helper()
	_, err := l.After(t.Context(), id, 0)
	if err != nil && !errors.Is(err, event.ErrGone) {
		t.Fatalf("After(%s) = %v, want no error or ErrGone", id, err)
	}
	return err != nil
}

// fillUntilGone adds runs of an owner until the run is gone. From 85 % of the log on it adds one every
// 100 ms, because some logs drop runs in the background. used is the part of the log that is used.
func (l *fillable) fillUntilGone(t *testing.T, id, owner string, used, thousandths int) (added []string) {
	t.Helper()
	for late := time.After(evictionTimeout); !l.isGone(t, id); {
		if used >= 850 {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-late:
				t.Fatalf("%s is still kept after %d more runs, want it dropped", id, len(added))
			}
		}
		if used < 2000 {
			added = append(added, fmt.Sprintf("run_%s_%d", owner, len(added)))
			l.endRun(t, added[len(added)-1], owner, thousandths)
			used += thousandths
		}
	}
	return added
}

func testOwnerAboveTheirShareLosesTheirOwnRunsFirst(t *testing.T, l *fillable) {
	for i := range 10 {
		l.endRun(t, fmt.Sprintf("run_quiet%d", i), fmt.Sprint("quiet", i%3), 5)
	}
	for i := range 20 {
		l.endRun(t, fmt.Sprintf("run_early%d", i), "flood", 30)
	}
	<-time.After(event.ReadGrace + time.Second)
	added := l.fillUntilGone(t, "run_early0", "flood", 650, 20)
	for i := range 10 {
		if id := fmt.Sprintf("run_quiet%d", i); l.isGone(t, id) {
			t.Errorf("%s is gone, want it kept: its owner is below their share", id)
		}
	}
	if last := added[len(added)-1]; l.isGone(t, last) {
		t.Errorf("%s is gone, want it kept: others of its owner ended before it", last)
	}
}

// If the runs of an owner above their share were dropped as soon as they end, the readers of their
// streams would not get the last events. Here an open run, which cannot be dropped, uses the share.
func testRunThatJustEndedIsKept(t *testing.T, l *fillable) {
	for i := range 30 {
		l.endRun(t, fmt.Sprintf("run_quiet%d", i), fmt.Sprint("quiet", i), 4)
	}
	if err := l.Create(t.Context(), event.Run{ID: "run_open", Owner: event.Owner{Subject: "busy"}, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for range 18 {
		appendEvent(t, l, "run_open", event.Start{Question: strings.Repeat("x", l.size/1000*30)})
	}
	<-time.After(event.ReadGrace + time.Second)
	began := time.Now()
	added := l.fillUntilGone(t, "run_quiet0", "busy", 660, 40)
	for _, id := range added {
		if l.isGone(t, id) && time.Since(began) < event.ReadGrace {
			t.Errorf("%s is gone, want it kept: it just ended", id)
		}
	}
}
