// Package eventtest is the test suite that every event.Log must pass: Run checks each promise of the interface, and
// Model compares random operations with a simple model of a log. Proxy is a TCP proxy that breaks the connection
// between a log and its server.
//
//	func TestLog(t *testing.T) {
//		eventtest.Run(t, func(t *testing.T) event.Log { return memory.New(memory.Options{}) })
//	}
//
//	func TestLogAnswersAsItsModel(t *testing.T) {
//		eventtest.Model(t, memory.New(memory.Options{}), nil)
//	}
package eventtest

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"answerd/internal/event"
)

// Run runs the suite. open must return an empty log and release it with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) event.Log) {
	for _, c := range []struct {
		name string
		test func(*testing.T, event.Log)
	}{
		{"NumbersHaveNoGap", testNumbersHaveNoGap},
		{"AfterReturnsAllThatFollows", testAfterReturnsAllThatFollows},
		{"EventIsReadableWhenAppendReturns", testEventIsReadableWhenAppendReturns},
		{"MoreIsClosedByAnAppend", testMoreIsClosedByAnAppend},
		{"SettledIsClosedByASuspensionAndByTheEnd", testSettledIsClosedByASuspensionAndByTheEnd},
		{"SettledWakesNoReaderThatWaitsAtASuspension", testSettledWakesNoReaderThatWaitsAtASuspension},
		{"TerminalEventIsLast", testTerminalEventIsLast},
		{"RunIsCreatedOnce", testRunIsCreatedOnce},
		{"InvalidPositionsAreRefused", testInvalidPositionsAreRefused},
		{"RunsAreSeparate", testRunsAreSeparate},
		{"ReadersSeeTheSameEvents", testReadersSeeTheSameEvents},
		{"EnvelopeIsOnEveryEvent", testEnvelopeIsOnEveryEvent},
		{"RequestIsReturnedUnchanged", testRequestIsReturnedUnchanged},
		{"ResultIsReadableAfterTheEnd", testResultIsReadableAfterTheEnd},
		{"ResultsAreSeparate", testResultsAreSeparate},
		{"ResultIsReplacedByANewerOne", testResultIsReplacedByANewerOne},
		{"ResultBeyondMaxResultIsRefused", testResultBeyondMaxResultIsRefused},
		{"ResultIsRefusedAfterTheEnd", testResultIsRefusedAfterTheEnd},
		{"DeltasAddUp", testDeltasAddUp},
		{"DelayedDeltaIsAppendedByItself", testDelayedDeltaIsAppendedByItself},
		{"LongRunIsReadFromAnyPosition", testLongRunIsReadFromAnyPosition},
		{"LargeEventIsKeptUnchanged", testLargeEventIsKeptUnchanged},
		{"InvalidIDsAreNotFound", testInvalidIDsAreNotFound},
		{"JobIsExclusive", testJobIsExclusive},
		{"ReleasedRunIsClaimed", testReleasedRunIsClaimed},
		{"ConcurrentClaimsGetDifferentRuns", testConcurrentClaimsGetDifferentRuns},
		{"ParkedRunWakesForAnInput", testParkedRunWakesForAnInput},
		{"FirstInputOfAnIDWins", testFirstInputOfAnIDWins},
		{"InputsComeInOrder", testInputsComeInOrder},
		{"ParkedRunWakesAtItsTime", testParkedRunWakesAtItsTime},
		{"NoteIsNotAnEvent", testNoteIsNotAnEvent},
		{"ValueIsSetOncePerRevision", testValueIsSetOncePerRevision},
		{"ValueIsSetByOneOfMany", testValueIsSetByOneOfMany},
		{"ValueExpires", testValueExpires},
		{"NoteFollowsADelayedDelta", testNoteFollowsADelayedDelta},
		{"NoteIsRefusedAfterRelease", testNoteIsRefusedAfterRelease},
		{"RunsAreListedByOwner", testRunsAreListedByOwner},
		{"ChildRunsAreListedOnRequest", testChildRunsAreListedOnRequest},
		{"DeletedRunIsGone", testDeletedRunIsGone},
		{"KeyRefersToOneRun", testKeyRefersToOneRun},
	} {
		t.Run(c.name, func(t *testing.T) { t.Parallel(); c.test(t, open(t)) })
	}
}

func testNumbersHaveNoGap(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	for i := int64(1); i <= 20; i++ {
		if seq := appendEvent(t, log, "run_a", stepStart(int(i))); seq != i {
			t.Fatalf("append %d got number %d, want its own", i, seq)
		}
	}
	r, err := log.Run(t.Context(), "run_a")
	if err != nil || r.Last.Seq != 20 || r.Owner.Subject != "ada" {
		t.Fatalf("Run = %+v, %v, want number 20 of ada", r, err)
	}
}

func testAfterReturnsAllThatFollows(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	for i := range 10 {
		appendEvent(t, log, "run_a", stepStart(i))
	}
	for pos := int64(0); pos <= 10; pos++ {
		page, err := log.After(t.Context(), "run_a", pos)
		noError(t, err)
		if int64(len(page.Events)) != 10-pos || page.Ended {
			t.Fatalf("After(%d) = %d events, ended %v, want %d", pos, len(page.Events), page.Ended, 10-pos)
		}
		for i, e := range page.Events {
			if e.Seq != pos+int64(i)+1 {
				t.Fatalf("After(%d): event %d has number %d, want %d", pos, i, e.Seq, pos+int64(i)+1)
			}
		}
	}
}

func testEventIsReadableWhenAppendReturns(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	for i := range 50 {
		seq := appendEvent(t, log, "run_a", stepStart(i))
		page, err := log.After(t.Context(), "run_a", seq-1)
		if err != nil || len(page.Events) != 1 {
			t.Fatalf("after append %d: After = %d events, %v, want 1", seq, len(page.Events), err)
		}
	}
}

func testMoreIsClosedByAnAppend(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	page, err := log.After(t.Context(), "run_a", 0)
	if err != nil || page.More == nil {
		t.Fatalf("After(0) = %+v, %v, want a page that waits", page, err)
	}
	wantOpen(t, page.More, "More before an append")
	appendEvent(t, log, "run_a", stepStart(1))
	wantClosed(t, page.More, "More after an append")
}

func testSettledIsClosedByASuspensionAndByTheEnd(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	for _, b := range []event.Body{event.Suspended{Interrupts: []event.Interrupt{}}, event.FinalAnswer{}} {
		appendEvent(t, log, "run_a", stepStart(1)) // in the second round, this ends the suspension
		settled, err := log.Settled(t.Context(), "run_a")
		if err != nil {
			t.Fatalf("Settled = %v, want no error", err)
		}
		appendEvent(t, log, "run_a", stepStart(2))
		wantOpen(t, settled, fmt.Sprintf("Settled before %T", b))
		appendEvent(t, log, "run_a", b)
		again, err := log.Settled(t.Context(), "run_a")
		if err != nil {
			t.Fatalf("Settled after %T = %v, want no error", b, err)
		}
		for _, settled := range []<-chan struct{}{settled, again} {
			wantClosed(t, settled, fmt.Sprintf("Settled after %T", b))
		}
	}
	wantError(t, errorOf(log.Settled(t.Context(), "run_b")), event.ErrNotFound, "Settled of an unknown run")
}

// testSettledWakesNoReaderThatWaitsAtASuspension checks that Settled does not wake callers of After. Otherwise two
// callers that wait for a suspended run would wake each other endlessly.
func testSettledWakesNoReaderThatWaitsAtASuspension(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	seq := appendEvent(t, log, "run_a", event.Suspended{Interrupts: []event.Interrupt{}})
	page, err := log.After(t.Context(), "run_a", seq)
	if err != nil || page.More == nil {
		t.Fatalf("After(%d) = %+v, %v, want a page that waits", seq, page, err)
	}
	if _, err := log.Settled(t.Context(), "run_a"); err != nil {
		t.Fatalf("Settled = %v, want no error", err)
	}
	wantOpen(t, page.More, "More after Settled")
}

func testTerminalEventIsLast(t *testing.T, log event.Log) {
	for i, end := range []event.Body{event.FinalAnswer{}, event.RunError{}, event.Cancelled{}} {
		id := fmt.Sprintf("run_%d", i)
		createRun(t, log, id)
		seq := appendEvent(t, log, id, end)
		wantError(t, errorOf(log.Append(t.Context(), id, stepStart(1))), event.ErrEnded, "Append after %s", end.Type())
		page, err := log.After(t.Context(), id, seq)
		if err != nil || !page.Ended || len(page.Events) != 0 || page.More != nil {
			t.Fatalf("After the last event = %+v, %v, want an empty page that has ended", page, err)
		}
	}
}

func testRunIsCreatedOnce(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	wantError(t, log.Create(t.Context(), event.Run{ID: "run_a"}), event.ErrExists, "a second Create")
}

func testInvalidPositionsAreRefused(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	appendEvent(t, log, "run_a", stepStart(1))
	for _, pos := range []int64{-1, 2, 1 << 40} {
		wantError(t, errorOf(log.After(t.Context(), "run_a", pos)), event.ErrInvalidPosition, "After(%d)", pos)
	}
	wantError(t, errorOf(log.After(t.Context(), "run_b", 0)), event.ErrNotFound, "After of an unknown run")
	wantError(t, errorOf(log.Run(t.Context(), "run_b")), event.ErrNotFound, "Run of an unknown run")
	wantError(t, errorOf(log.Append(t.Context(), "run_b", stepStart(1))), event.ErrNotFound, "Append to an unknown run")
}

func testRunsAreSeparate(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	createRun(t, log, "run_b")
	appendEvent(t, log, "run_a", stepStart(1))
	appendEvent(t, log, "run_b", stepStart(2))
	page, err := log.After(t.Context(), "run_b", 0)
	if err != nil || len(page.Events) != 1 || page.Events[0].Body != stepStart(2) {
		t.Fatalf("After = %+v, %v, want the one event of run_b", page, err)
	}
}

// testReadersSeeTheSameEvents starts readers at any time while one writer appends.
func testReadersSeeTheSameEvents(t *testing.T, log event.Log) {
	const steps, readers = 300, 16
	createRun(t, log, "run_a")
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if events, err := readAll(t.Context(), log, "run_a"); err != nil || len(events) != steps+1 {
				t.Errorf("a reader got %d events, %v, want %d", len(events), err, steps+1)
			}
		})
	}
	for i := range steps {
		appendEvent(t, log, "run_a", stepStart(i))
	}
	appendEvent(t, log, "run_a", event.FinalAnswer{})
	wg.Wait()
}

func testEnvelopeIsOnEveryEvent(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	appendEvent(t, log, "run_a", event.ToolError{
		Call:    event.Call{CallID: "c1", Tool: "t", Server: "s"},
		Payload: "<no>\n\"way\"\u2028",
		Kind:    "timeout",
	})
	page, err := log.After(t.Context(), "run_a", 0)
	noError(t, err)
	var got struct {
		Type, Tool, Payload string
		RunID               string `json:"run_id"`
		CallID              string `json:"call_id"`
		Seq, TS             int64
	}
	line := page.Events[0].AppendJSON(nil)
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if got.Type != "tool_error" || got.RunID != "run_a" || got.Seq != 1 || got.TS == 0 || got.CallID != "c1" || got.Payload != "<no>\n\"way\"\u2028" {
		t.Fatalf("the event is %s, want all members of the envelope", line)
	}
	for _, c := range line {
		if c < ' ' {
			t.Fatalf("the event is %q, want one line", line)
		}
	}
}

// testRequestIsReturnedUnchanged checks that Run returns the Request that was passed to Create, before and after the
// end of the run.
func testRequestIsReturnedUnchanged(t *testing.T, log event.Log) {
	const request = `{"any":"bytes"}`
	noError(t, log.Create(t.Context(), event.Run{ID: "run_a", Request: []byte(request)}))
	createRun(t, log, "run_b")
	for _, body := range []event.Body{event.Start{}, event.Cancelled{}} {
		appendEvent(t, log, "run_a", body)
		if r, err := log.Run(t.Context(), "run_a"); err != nil || string(r.Request) != request {
			t.Errorf("Request after %s = %q, %v, want %q", body.Type(), r.Request, err, request)
		}
	}
	if r, err := log.Run(t.Context(), "run_b"); err != nil || len(r.Request) > 0 {
		t.Errorf("Request of another run = %q, %v, want none", r.Request, err)
	}
}
