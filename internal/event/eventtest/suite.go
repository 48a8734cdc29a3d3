// Package eventtest is what every event.Log must pass.
//
//	func TestMemory(t *testing.T) {
//		eventtest.Run(t, func(t *testing.T) event.Log { return memory.New(memory.Options{}) })
//	}
package eventtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"answerd/internal/event"
)

// Run runs the suite; open returns an empty log and releases it with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) event.Log) {
	for _, c := range []struct {
		name string
		test func(*testing.T, event.Log)
	}{
		{"NumbersWithoutGap", numbersWithoutGap},
		{"EveryPositionGivesTheRest", everyPositionGivesTheRest},
		{"ReadableBeforeAppendReturns", readableBeforeAppendReturns},
		{"MoreIsClosedByAnAppend", moreIsClosedByAnAppend},
		{"NothingFollowsTheTerminalEvent", nothingFollowsTheTerminalEvent},
		{"ARunIsCreatedOnce", aRunIsCreatedOnce},
		{"StrangePositionsAreRefused", strangePositionsAreRefused},
		{"RunsDoNotMix", runsDoNotMix},
		{"ManyReadersSeeTheSame", manyReadersSeeTheSame},
		{"TheEnvelopeIsOnEveryEvent", theEnvelopeIsOnEveryEvent},
		{"TheRequestStaysWithTheRun", theRequestStaysWithTheRun},
		{"AResultIsReadableUntilTheRunIsGone", aResultIsReadable},
		{"ResultsDoNotMix", resultsDoNotMix},
		{"TheNewerResultCounts", theNewerResultCounts},
		{"AResultTooLargeIsRefused", aResultTooLargeIsRefused},
		{"NoResultFollowsTheTerminalEvent", noResultFollowsTheTerminalEvent},
		{"DeltasAddUp", deltasAddUp},
		{"AHeldBackDeltaComesByItself", aHeldBackDeltaComesByItself},
		{"ALongRunIsReadFromAnywhere", aLongRunIsReadFromAnywhere},
		{"ALargeEventIsKeptWhole", aLargeEventIsKeptWhole},
		{"HostileNames", hostileNames},
		{"AHeldRunIsNobodyElses", aHeldRunIsNobodyElses},
		{"AReleasedRunGoesOn", aReleasedRunGoesOn},
		{"ClaimsTakeNoRunFromEachOther", claimsTakeNoRunFromEachOther},
		{"AParkedRunWaitsForAnInput", aParkedRunWaitsForAnInput},
		{"TheFirstAnswerWins", theFirstAnswerWins},
		{"InputsComeInOrderAndWakeWhoWaits", inputsComeInOrderAndWakeWhoWaits},
		{"AParkedRunWakesWhenItsTimeComes", aParkedRunWakesWhenItsTimeComes},
		{"ANoteIsNoEvent", aNoteIsNoEvent},
		{"ANoteComesBehindAHeldBackDelta", aNoteComesBehindAHeldBackDelta},
		{"OnlyTheWriterNotes", onlyTheWriterNotes},
		{"RunsAreListedByOwner", runsAreListedByOwner},
		{"ADeletedRunIsGone", aDeletedRunIsGone},
		{"AKeyStandsForOneRun", aKeyStandsForOneRun},
	} {
		t.Run(c.name, func(t *testing.T) { t.Parallel(); c.test(t, open(t)) })
	}
}

func create(t *testing.T, log event.Log, id string) {
	t.Helper()
	err := log.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: "ada"}, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
}

func add(t *testing.T, log event.Log, id string, b event.Body) int64 {
	t.Helper()
	seq, err := log.Append(t.Context(), id, b)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// step is an event that every log keeps by itself, and at once.
func step(i int) event.Body { return event.StepStart{Step: i} }

func numbersWithoutGap(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	for i := int64(1); i <= 20; i++ {
		if seq := add(t, log, "run_a", step(int(i))); seq != i {
			t.Fatalf("append %d got number %d", i, seq)
		}
	}
	r, err := log.Run(t.Context(), "run_a")
	if err != nil || r.Last.Seq != 20 || r.Owner.Subject != "ada" {
		t.Fatalf("run is %+v, %v", r, err)
	}
}

func everyPositionGivesTheRest(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	for i := range 10 {
		add(t, log, "run_a", step(i))
	}
	for pos := int64(0); pos <= 10; pos++ {
		page, err := log.After(t.Context(), "run_a", pos)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(page.Events)) != 10-pos || page.Ended {
			t.Fatalf("after %d: %d events, ended %v", pos, len(page.Events), page.Ended)
		}
		for i, e := range page.Events {
			if e.Seq != pos+int64(i)+1 {
				t.Fatalf("after %d: event %d has number %d", pos, i, e.Seq)
			}
		}
	}
}

func readableBeforeAppendReturns(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	for i := range 50 {
		seq := add(t, log, "run_a", step(i))
		page, err := log.After(t.Context(), "run_a", seq-1)
		if err != nil || len(page.Events) != 1 {
			t.Fatalf("after append %d: %d events, %v", seq, len(page.Events), err)
		}
	}
}

func moreIsClosedByAnAppend(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	page, err := log.After(t.Context(), "run_a", 0)
	if err != nil || page.More == nil {
		t.Fatalf("page %+v, %v", page, err)
	}
	select {
	case <-page.More:
		t.Fatal("More is closed and there is nothing")
	default:
	}
	add(t, log, "run_a", step(1))
	select {
	case <-page.More:
	case <-t.Context().Done():
		t.Fatal("More stayed open")
	}
}

func nothingFollowsTheTerminalEvent(t *testing.T, log event.Log) {
	for i, end := range []event.Body{event.FinalAnswer{}, event.RunError{}, event.Cancelled{}} {
		id := fmt.Sprintf("run_%d", i)
		create(t, log, id)
		seq := add(t, log, id, end)
		if _, err := log.Append(t.Context(), id, step(1)); !errors.Is(err, event.ErrEnded) {
			t.Fatalf("append after %s: %v", end.Type(), err)
		}
		page, err := log.After(t.Context(), id, seq)
		if err != nil || !page.Ended || len(page.Events) != 0 || page.More != nil {
			t.Fatalf("caught-up page %+v, %v", page, err)
		}
	}
}

func aRunIsCreatedOnce(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	if err := log.Create(t.Context(), event.Run{ID: "run_a"}); !errors.Is(err, event.ErrExists) {
		t.Fatalf("second create: %v", err)
	}
}

func strangePositionsAreRefused(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	add(t, log, "run_a", step(1))
	for _, pos := range []int64{-1, 2, 1 << 40} {
		if _, err := log.After(t.Context(), "run_a", pos); !errors.Is(err, event.ErrInvalidPosition) {
			t.Errorf("after %d: %v", pos, err)
		}
	}
	if _, err := log.After(t.Context(), "run_b", 0); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("unknown run: %v", err)
	}
	if _, err := log.Run(t.Context(), "run_b"); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("unknown run: %v", err)
	}
	if _, err := log.Append(t.Context(), "run_b", step(1)); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("append to an unknown run: %v", err)
	}
}

func runsDoNotMix(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	create(t, log, "run_b")
	add(t, log, "run_a", step(1))
	add(t, log, "run_b", step(2))
	page, err := log.After(t.Context(), "run_b", 0)
	if err != nil || len(page.Events) != 1 || page.Events[0].Body != step(2) {
		t.Fatalf("page %+v, %v", page, err)
	}
}

// manyReadersSeeTheSame has readers join at any time while one writer appends.
func manyReadersSeeTheSame(t *testing.T, log event.Log) {
	const events, readers = 300, 16
	create(t, log, "run_a")
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if n, err := readAll(t.Context(), log, "run_a"); err != nil || n != events+1 {
				t.Errorf("reader saw %d events, %v", n, err)
			}
		})
	}
	for i := range events {
		add(t, log, "run_a", step(i))
	}
	add(t, log, "run_a", event.FinalAnswer{})
	wg.Wait()
}

func readAll(ctx context.Context, log event.Log, id string) (n int, err error) {
	for pos := int64(0); ; {
		page, err := log.After(ctx, id, pos)
		if err != nil {
			return n, err
		}
		for _, e := range page.Events {
			if e.Seq != pos+1 {
				return n, fmt.Errorf("number %d follows %d", e.Seq, pos)
			}
			pos = e.Seq
			n++
		}
		if page.Ended {
			return n, nil
		}
		if len(page.Events) > 0 {
			continue
		}
		select {
		case <-page.More:
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

func theEnvelopeIsOnEveryEvent(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	add(t, log, "run_a", event.ToolError{Call: event.Call{CallID: "c1", Tool: "t", Server: "s"}, Payload: "<no>\n\"way\"\u2028", Kind: "timeout"})
	page, err := log.After(t.Context(), "run_a", 0)
	if err != nil {
		t.Fatal(err)
	}
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
		t.Fatalf("event is %s", line)
	}
	for _, c := range line {
		if c < ' ' {
			t.Fatalf("not one line: %q", line)
		}
	}
}
