package event

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
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
		say("run_new", Start{}, FinalAnswer{})
		if r, _ := m.run("run_old"); !r.events.packed || r.events.blocks != nil {
			t.Fatal("not packed")
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

// However much a run has said before anybody reads it, and if that is after its end: its
// events are what they were when they were appended, and what they take is given back.
func TestARunIsTheSameWheneverItsFirstReaderComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bodies := []Body{Start{Question: "?"}, StepStart{1}, ReasoningStart{"r"}, ReasoningDelta{"r", "hm \x01\xff"}, ReasoningEnd{"r"}, TextStart{"p"}}
		for n := range 300 {
			bodies = append(bodies, TextDelta{"p", strings.Repeat("é\"", n)})
		}
		bodies = append(bodies, TextDelta{strings.Repeat("p", 256), "of a part whose id is long"}, TextEnd{"p"}, StepEnd{Step: 1}, FinalAnswer{Answer: "word"})
		for _, first := range []int{0, 1, 3, 4, 5, 6, 7, 40, 200, len(bodies) - 3, len(bodies) - 1, len(bodies)} {
			m := NewMemory(MemoryOptions{})
			if err := m.Create(t.Context(), Run{ID: "run_a"}); err != nil {
				t.Fatal(err)
			}
			var want []Event
			size := int64(runOverhead)
			for n, b := range bodies {
				if n == first {
					if _, err := m.After(t.Context(), "run_a", int64(n)); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := m.Append(t.Context(), "run_a", b); err != nil {
					t.Fatal(err)
				}
				e, err := Encode("run_a", int64(n)+1, time.Now().UnixMilli(), b)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, e)
				size += int64(len(e.JSON)) + eventOverhead
				if run, err := m.Run(t.Context(), "run_a"); err != nil || !reflect.DeepEqual(run.Last, e) {
					t.Fatalf("first read at %d: the newest is %+v, want %+v, %v", first, run.Last, e, err)
				}
				<-time.After(time.Millisecond)
			}
			var got []Event
			for ended := false; !ended; {
				p, err := m.After(t.Context(), "run_a", int64(len(got)))
				if err != nil {
					t.Fatal(err)
				}
				got, ended = append(got, p.Events...), p.Ended
			}
			for n := range want {
				if e := got[n]; e.RunID != "run_a" || e.Seq != want[n].Seq || e.Time != want[n].Time || string(e.JSON) != string(want[n].JSON) || e.Body.Type() != want[n].Body.Type() {
					t.Fatalf("first read at %d: %+v, want %+v", first, e, want[n])
				}
				if d, isDelta := want[n].Body.(TextDelta); isDelta && got[n].Body != d {
					t.Fatalf("first read at %d: %+v, want %+v", first, got[n].Body, d)
				}
			}
			if got := m.bytes.Load(); got != size {
				t.Fatalf("first read at %d: %d bytes are counted, want %d", first, got, size)
			}
			if err := m.Delete(t.Context(), "run_a"); err != nil || m.bytes.Load() != 0 {
				t.Fatalf("first read at %d: %d bytes are left, %v", first, m.bytes.Load(), err)
			}
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
