package event

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever reads an old run finds what its first readers found, from any position.
func TestAPackedRunReadsAsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(MemoryOptions{})
		say := func(run string, bodies ...Body) {
			if err := m.Create(t.Context(), Run{ID: run}); err != nil {
				t.Fatal(err)
			}
			for _, b := range bodies {
				if _, err := m.Append(t.Context(), run, b); err != nil {
					t.Fatal(err)
				}
			}
		}
		call := Call{CallID: "c", Tool: "t"}
		say("run_old", Start{Question: "?", Metadata: map[string]string{"a": "b"}}, StepStart{1}, TextStart{"p"}, TextDelta{"p", "wo\nrd \"é\""}, TextEnd{"p"},
			ToolCallStart{Call: call}, ToolCallArgs{Call: call, Delta: "{}"}, ToolCall{Call: call, Args: json.RawMessage(`{}`)},
			ToolResult{Call: call, Args: json.RawMessage(`{}`), Payload: json.RawMessage(`"x"`), Content: []json.RawMessage{json.RawMessage(`{"type":"text","text":"x"}`)}},
			FinalAnswer{Answer: "word"})
		first := pages(t, m)
		<-time.After(packAfter)
		say("run_read", Start{})
		if _, err := m.After(t.Context(), "run_read", 0); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Append(t.Context(), "run_read", FinalAnswer{}); err != nil {
			t.Fatal(err)
		}
		if r, _ := m.run("run_read"); r.events.packed {
			t.Error("packed at its end, while it is being read")
		}
		say("run_new", Start{}, FinalAnswer{})
		if r, _ := m.run("run_old"); !r.events.packed || r.events.blocks != nil {
			t.Fatal("not packed")
		}
		if r, _ := m.run("run_new"); !r.events.packed {
			t.Error("nobody read it, and it is not packed")
		}
		if again := pages(t, m); again != first {
			t.Errorf("packed:\n%s\nbefore:\n%s", again, first)
		}
		if err := m.Delete(t.Context(), "run_old"); err != nil {
			t.Fatal(err)
		}
		if _, err := m.After(t.Context(), "run_old", 0); err != ErrGone {
			t.Errorf("deleted: %v", err)
		}
	})
}

// Of the page of a run that said little nothing is kept but what is written on it.
func TestAShortRunThatIsPackedKeepsNoEmptyPage(t *testing.T) {
	r := &memoryRun{next: 1, events: memoryEvents{first: 1}}
	for _, b := range []Body{Start{}, FinalAnswer{Answer: "word"}} {
		if _, _, err := r.append(b, nil); err != nil {
			t.Fatal(err)
		}
	}
	before, _ := r.events.end()
	r.pack()
	after, _ := r.events.end()
	p := r.events.pages[0]
	if cap(p.text) > 2*len(p.text) || &after.JSON[0] != &p.text[len(p.text)-len(after.JSON)] || string(after.JSON) != string(before.JSON) {
		t.Errorf("%d bytes for %d, the last event is %s and was %s", cap(p.text), len(p.text), after.JSON, before.JSON)
	}
}

// pages is what the readers at every position of the old run get.
func pages(t *testing.T, m *Memory) (out string) {
	for seq := range int64(11) {
		p, err := m.After(t.Context(), "run_old", seq)
		if err != nil || !p.Ended || len(p.Events) != int(10-seq) {
			t.Fatalf("after %d: %d events, ended %v, %v", seq, len(p.Events), p.Ended, err)
		}
		for _, e := range p.Events {
			out += fmt.Sprintf("%s %d %d %s %T %+v\n", e.RunID, e.Seq, e.Time, e.JSON, e.Body, e.Body)
		}
	}
	return out
}
