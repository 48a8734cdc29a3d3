package event

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Events of all sizes, of fewer and of more bytes than was thought, are what Encode makes of
// them: as they come, in a run that has lost its beginning, and once it is packed.
func TestEventsAreTheSameOnWhateverPageTheyLie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(MemoryOptions{MaxBytes: 256 << 10})
		if err := m.Create(t.Context(), Run{ID: "run_a"}); err != nil {
			t.Fatal(err)
		}
		var want [][]byte
		say := func(b Body) {
			seq, err := m.Append(t.Context(), "run_a", b)
			if err != nil {
				t.Fatal(err)
			}
			e, err := Encode("run_a", seq, time.Now().UnixMilli(), b)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, e.JSON)
		}
		same := func(when string) {
			r, _ := m.run("run_a")
			first := r.events.first
			for n := first - 1; n < int64(len(want)); n++ {
				p, err := m.After(t.Context(), "run_a", n)
				if err != nil || len(p.Events) == 0 {
					t.Fatalf("%s, after %d: %d events, %v", when, n, len(p.Events), err)
				}
				for i, e := range p.Events {
					if !bytes.Equal(e.JSON, want[n+int64(i)]) {
						t.Fatalf("%s, event %d is %.99s, want %.99s", when, e.Seq, e.JSON, want[n+int64(i)])
					}
				}
			}
		}
		say(Start{})
		for n := range 400 {
			// A control character takes six bytes, and size counts one.
			say(TextDelta{"p", strings.Repeat([]string{"word ", "\x01", "é"}[n%3], n*n%700)})
			if n%50 == 7 {
				say(TextDelta{"p", strings.Repeat("long", n*100)})
			}
		}
		r, _ := m.run("run_a")
		if last := r.events.pages[len(r.events.pages)-1]; cap(last.text) < largePage || r.events.pages[0].first == 1 {
			t.Fatalf("page %d, and the first one kept begins at %d: too little for this test", last.number, r.events.pages[0].first)
		}
		same("live")
		say(FinalAnswer{})
		<-time.After(packAfter)
		for _, due := range m.duePacksLocked(time.Now()) {
			due.pack()
		}
		if !r.events.packed {
			t.Fatal("not packed")
		}
		same("packed")
		if p, err := m.After(t.Context(), "run_a", r.events.first-1); err != nil || len(p.Events) != blockLen || p.Ended || !p.Cut {
			t.Errorf("a reader of a packed run is given %d events at once, %v", len(p.Events), err)
		}
	})
}

// Whoever appends to the JSON of one event does not write over the next one.
func TestTheEventsOfAPageEndWhereTheNextOnesBegin(t *testing.T) {
	p := new(memoryEvents).page(1, 200)
	one := p.write("run_a", 1, nil, TextDelta{"p", "a"}, nil)
	two := p.write("run_a", 2, nil, TextDelta{"p", "b"}, nil)
	before := slices.Clone(two)
	if one = append(one, "\r\n\r\nand more"...); !bytes.Equal(two, before) {
		t.Errorf("%s, and then %s", one, two)
	}
}
