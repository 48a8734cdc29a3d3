package jetstream_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// aTurn has the events of a turn with a call, in which deltas are between other events.
var aTurn = []event.Body{
	event.StepStart{Step: 1},
	event.ReasoningStart{PartID: "r"}, event.ReasoningDelta{PartID: "r", Delta: "Hm"}, event.ReasoningEnd{PartID: "r"},
	event.TextStart{PartID: "t"}, event.TextDelta{PartID: "t", Delta: "I "}, event.TextDelta{PartID: "t", Delta: "ask."}, event.TextEnd{PartID: "t"},
	event.ToolCallStart{Call: event.Call{CallID: "c"}}, event.ToolCallArgs{Call: event.Call{CallID: "c"}, Delta: "{"}, event.ToolCallArgs{Call: event.Call{CallID: "c"}, Delta: "}"},
	event.ToolCall{Call: event.Call{CallID: "c"}, Args: []byte("{}")},
	event.StepEnd{Step: 1},
}

func appendAsync(t *testing.T, log event.Log, run string, bodies ...event.Body) {
	t.Helper()
	for _, b := range bodies {
		if _, err := log.AppendAsync(t.Context(), run, b); err != nil {
			t.Fatal(err)
		}
	}
}

// joinDeltas returns the types of events and the text of each delta; deltas may be joined or not.
func joinDeltas(bodies []event.Body) (out []string) {
	var deltas event.Deltas
	flush := func() {
		if delta := deltas.Join(); delta != nil {
			out = append(out, fmt.Sprintf("%+v", delta))
			deltas = event.Deltas{}
		}
	}
	for _, b := range bodies {
		if deltas.Add(b, math.MaxInt) {
			continue
		}
		flush()
		if !deltas.Add(b, math.MaxInt) {
			out = append(out, string(b.Type()))
		}
	}
	flush()
	return out
}

func bodiesOf(events []event.Event) (bodies []event.Body) {
	for _, e := range events {
		bodies = append(bodies, e.Body)
	}
	return bodies
}

// storedMessages returns how many messages with events or notes the stream of runs has, and the sizes of the batches among
// them.
func storedMessages(t *testing.T, url string) (n int, batches []string) {
	t.Helper()
	j, err := js.New(connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	s, err := j.Stream(t.Context(), "ANSWERD_RUNS")
	if err != nil {
		t.Fatal(err)
	}
	for pos := s.CachedInfo().State.FirstSeq; pos <= s.CachedInfo().State.LastSeq; pos++ {
		m, err := s.GetMsg(t.Context(), pos)
		if err != nil {
			t.Fatal(err)
		}
		if last := m.Subject[len(m.Subject)-3:]; last == ".ev" {
			n++
			if count := m.Header.Get("Answerd-Batch"); count != "" {
				batches = append(batches, count)
			}
		}
	}
	return n, batches
}

func TestEventsCloseTogetherAreOneMessage(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	a, b := openLog(t, jetstream.Options{URL: url, Lease: lease}), openLog(t, jetstream.Options{URL: url, Lease: lease})
	startRun(t, a, "run_a")
	appendAsync(t, a, "run_a", aTurn...)
	if err := a.AddNote(t.Context(), "run_a", []byte("sent c")); err != nil {
		t.Fatal(err)
	}
	if err := a.Flush(t.Context(), "run_a"); err != nil {
		t.Fatal(err)
	}
	all, err := readUntil(t.Context(), b, "run_a", func(e event.Event) bool { return e.Body.Type() == "step_end" })
	if got, want := joinDeltas(bodiesOf(all[1:])), joinDeltas(aTurn); err != nil || !slices.Equal(got, want) {
		t.Errorf("another instance reads %q, %v, want %q", got, err, want)
	}
	if notes, err := b.Notes(t.Context(), "run_a"); err != nil || len(notes) != 1 || string(notes[0].Data) != "sent c" || notes[0].After != int64(len(all)) {
		t.Errorf("Notes = %+v, %v, want one after event %d", notes, err, len(all))
	}
	n, batches := storedMessages(t, url)
	if n > 5 || len(batches) == 0 {
		t.Errorf("%d events are %d messages, batches %v, want fewer than 6 messages", len(all), n, batches)
	}

	for from := range all { // every position is in a batch or at its edge
		page, err := b.After(t.Context(), "run_a", int64(from))
		if err != nil || len(page.Events) != len(all)-from || page.Events[0].Seq != int64(from)+1 {
			t.Errorf("After(%d) = %d events, %v, want %d", from, len(page.Events), err, len(all)-from)
		}
	}
}

// A process may be replaced while its events wait. No reader has seen them, in that process either.
func TestReaderSeesOnlyStoredEvents(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	proxy := eventtest.StartProxy(t, url)
	a := openLog(t, jetstream.Options{URL: proxy.URL(), Lease: lease})
	b := openLog(t, jetstream.Options{URL: url, Lease: lease})
	jobs := keepClaiming(t, b)
	job := startRun(t, a, "run_a")
	appendAsync(t, a, "run_a", event.StepStart{Step: 1})
	if err := a.Flush(t.Context(), "run_a"); err != nil {
		t.Fatal(err)
	}
	proxy.Stop()
	appendAsync(t, a, "run_a", aTurn[1:]...)
	if page, err := a.After(t.Context(), "run_a", 2); err != nil || len(page.Events) > 0 || page.More == nil {
		t.Errorf("After(2) = %d events, %v, want none and a channel", len(page.Events), err)
	}
	if run, err := a.Run(t.Context(), "run_a"); err != nil || run.Last.Seq != 2 {
		t.Errorf("Run = %d events, %v, want the 2 that are stored", run.Last.Seq, err)
	}
	taken := <-jobs
	appendEvent(t, b, "run_a", event.StepReset{Step: 1, Reason: "taken over"})
	appendEvent(t, b, "run_a", event.FinalAnswer{})
	if err := taken.Done(t.Context()); err != nil {
		t.Error(err)
	}
	proxy.Resume()
	if err := a.Flush(t.Context(), "run_a"); !errors.Is(err, event.ErrFenced) && !errors.Is(err, event.ErrEnded) {
		t.Errorf("Flush of the replaced instance = %v, want %v", err, event.ErrFenced)
	}
	<-job.Lost()

	want := []event.Body{event.Start{}, event.StepStart{Step: 1}, event.StepReset{Step: 1, Reason: "taken over"}, event.FinalAnswer{}}
	for name, log := range map[string]event.Log{"the replaced instance": a, "the other instance": b} {
		all, err := readUntil(t.Context(), log, "run_a", nil)
		if got := joinDeltas(bodiesOf(all)); err != nil || !reflect.DeepEqual(got, joinDeltas(want)) {
			t.Errorf("%s reads %q, %v, want %q", name, got, err, joinDeltas(want))
		}
	}
}

// An older version reads one event in each message.
func TestLogWithoutBatchesHasOneEventInEachMessage(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	a := openLog(t, jetstream.Options{URL: url, Lease: lease, NoBatch: true})
	b := openLog(t, jetstream.Options{URL: url, Lease: lease})
	startRun(t, a, "run_a")
	appendAsync(t, a, "run_a", aTurn...)
	if err := a.AddNote(t.Context(), "run_a", []byte("sent c")); err != nil {
		t.Fatal(err)
	}
	if err := a.Flush(t.Context(), "run_a"); err != nil {
		t.Fatal(err)
	}
	run, err := b.Run(t.Context(), "run_a")
	if n, batches := storedMessages(t, url); err != nil || int64(n) != run.Last.Seq+1 || len(batches) > 0 {
		t.Errorf("%d events and a note are %d messages, batches %v, %v, want one message each", run.Last.Seq, n, batches, err)
	}
}

// A run that waits is woken by its input at once, although a log on disk has no live messages. NoBatch brings
// them back, for an older version.
func TestLogOnDiskChangesBetweenVersions(t *testing.T) {
	t.Parallel()
	url := "file:" + t.TempDir()
	for round, noBatch := range []bool{false, true, false} {
		log, err := jetstream.Open(t.Context(), jetstream.Options{URL: url, Lease: lease, NoBatch: noBatch})
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprintf("run_%d", round)
		job := startRun(t, log, id)
		page, err := log.Inputs(t.Context(), id, 0)
		if err != nil || page.More == nil {
			t.Fatalf("Inputs = %+v, %v, want a page that waits", page, err)
		}
		if err := log.AddInput(t.Context(), id, "int_1", []byte("x")); err != nil {
			t.Fatal(err)
		}
		<-page.More
		if page, err = log.Inputs(t.Context(), id, 0); err != nil || len(page.Inputs) != 1 {
			t.Errorf("Inputs after an input = %+v, %v, want one", page, err)
		}
		appendAsync(t, log, id, aTurn...)
		appendEvent(t, log, id, event.FinalAnswer{})
		if err := job.Done(t.Context()); err != nil {
			t.Error(err)
		}

		for earlier := range round + 1 {
			all, err := readUntil(t.Context(), log, fmt.Sprintf("run_%d", earlier), nil)
			if got := joinDeltas(bodiesOf(all)); err != nil || len(got) != len(joinDeltas(aTurn))+2 {
				t.Errorf("round %d: run_%d has %q, %v, want all events", round, earlier, got, err)
			}
		}

		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
}
