package replay_test

import (
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent/replay"
	"answerd/internal/event"
)

// numberEvents returns the bodies as events with positions, one second apart.
func numberEvents(bodies ...event.Body) []event.Event {
	var events []event.Event
	for i, b := range bodies {
		events = append(events, event.Event{Seq: int64(i + 1), Time: int64(1000 * (i + 1)), Body: b})
	}
	return events
}

func TestReadRestoresStepsCallsAndTime(t *testing.T) {
	sent, ended := event.Call{CallID: "c1", Tool: "add"}, event.Call{CallID: "c2", Tool: "echo"}
	events := numberEvents(
		event.Start{}, event.StepStart{Step: 1}, event.TextDelta{Delta: "Let me see."},
		event.ToolCallStart{Call: sent}, event.ToolCall{Call: sent, Args: []byte(`{"a":1}`)},
		event.ToolCallStart{Call: ended}, event.ToolCall{Call: ended, ArgsText: "{"},
		event.StepEnd{Step: 1, FinishReason: "tool_calls"},
		event.ToolError{Call: ended, Kind: "invalid_arguments"},
		event.Suspended{}, event.ToolProgress{Call: sent},
	)
	notes := []event.Note{{After: 8, Data: []byte(replay.NoteSent + " " + replay.CallKey("c1"))}}
	s := replay.Read(events, notes, nil)

	step := s.Step(1)
	if step == nil || step.Text != "Let me see." || step.FinishReason != "tool_calls" || len(step.Calls) != 2 || !step.HasEndedCall() {
		t.Fatalf("Step(1) = %+v, want its text, finish reason and two calls, one of them ended", step)
	}
	if s.Step(2) != nil {
		t.Errorf("Step(2) = %+v, want nil: it was not begun", s.Step(2))
	}
	if c := s.Call("c1"); !c.Sent || c.End != nil || c.Args != `{"a":1}` {
		t.Errorf("Call(c1) = %+v, want one that was sent and did not end", c)
	}
	if c := s.Call("c2"); c.Sent || c.End == nil || c.Args != "{" {
		t.Errorf("Call(c2) = %+v, want one that ended and was not sent", c)
	}
	// The time after the suspension does not count.
	if want := 9 * time.Second; s.Used != want || !s.Suspended {
		t.Errorf("Used = %v, Suspended = %t, want %v and true", s.Used, s.Suspended, want)
	}
}

// What hooks decided stays in force, whatever the process that died did last.
func TestReadRestoresDecisionsOfHooks(t *testing.T) {
	long := strings.Repeat("x", event.MaxNote)
	failed, err := event.Encode("run_1", 0, 0, event.RunError{Code: "model_error", Message: "no"})
	if err != nil {
		t.Fatal(err)
	}

	var notes []event.Note
	addNote := func(after int64, kind, data string, parts int) {
		for _, part := range replay.Parts([]byte(data))[:parts] {
			notes = append(notes, event.Note{After: after, Data: []byte(kind + " " + part)})
		}
	}

	addNote(2, replay.NoteHookAddition, "torn"+long, 1) // the process died; the next one asked again
	addNote(2, replay.NoteHookAddition, long, 2)
	addNote(4, replay.NoteHookAddition, "torn"+long, 1)
	addNote(4, replay.NoteAborted, `{"reason":"not today","withheld":true}`, 1)
	addNote(4, replay.NoteEnd, string(failed.JSON), 1)
	s := replay.Read(numberEvents(event.Start{}, event.StepStart{Step: 1}, event.StepReset{Step: 1}, event.TextDelta{Delta: "Hello"}), notes, nil)
	if got := string(s.HookAddition(1)); got != long {
		t.Errorf("HookAddition(1) = %.20q and %d bytes, want the whole one of %d bytes", got, len(got), len(long))
	}
	if got := s.HookAddition(2); got != nil {
		t.Errorf("HookAddition(2) = %q, want nil", got)
	}
	if want := (replay.Abort{Reason: "not today", Withheld: true}); s.Abort == nil || *s.Abort != want {
		t.Errorf("Abort = %+v, want %+v", s.Abort, want)
	}
	if want := (event.RunError{Code: "model_error", Message: "no"}); !reflect.DeepEqual(s.End, want) {
		t.Errorf("End = %+v, want %+v", s.End, want)
	}
	if got := s.Steps[len(s.Steps)-1].Text; got != "Hello" {
		t.Errorf("the newest step's text = %q, want Hello", got)
	}
}

func TestNilStateIsEmpty(t *testing.T) {
	var s *replay.State
	if s.Step(1) != nil || s.Call("c1") != nil {
		t.Errorf("Step = %v, Call = %v, want nil and nil", s.Step(1), s.Call("c1"))
	}
}

func TestCrashesCountsProcessesThatDidNotLeave(t *testing.T) {
	for _, c := range []struct {
		notes []string
		want  int
	}{
		{nil, 1},
		{[]string{replay.NoteLeft}, 0},
		{[]string{replay.NoteTaken}, 2},
		{[]string{replay.NoteLeft, replay.NoteTaken, replay.NoteLeft}, 0},
		{[]string{replay.NoteLeft, replay.NoteTaken, replay.NoteTaken}, 2},
	} {
		var notes []event.Note
		for _, n := range c.notes {
			notes = append(notes, event.Note{Data: []byte(n)})
		}
		if got := replay.Crashes(notes); got != c.want {
			t.Errorf("Crashes(%q) = %d, want %d", c.notes, got, c.want)
		}
	}
}

// A long answer has tens of thousands of deltas, so each must not copy the text before it.
func TestReadOfALongAnswerNeedsLittleMemory(t *testing.T) {
	bodies := []event.Body{event.Start{}, event.StepStart{Step: 1}}
	for range 10_000 {
		bodies = append(bodies, event.TextDelta{Delta: "A word. "})
	}
	events := numberEvents(append(bodies, event.StepEnd{Step: 1})...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s := replay.Read(events, nil, nil)
	runtime.ReadMemStats(&after)
	if n := len(s.Step(1).Text); n != 80_000 {
		t.Errorf("the text of the step has %d bytes, want 80000", n)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 10<<20 {
		t.Errorf("Read allocates %d bytes, want at most 10 MiB", got)
	}
}
