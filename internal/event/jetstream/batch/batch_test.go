package batch

import (
	"bytes"
	"fmt"
	"testing"

	"answerd/internal/event"
)

func newItem(seq int64) Item {
	e, err := event.Encode("run_a", seq, 1, event.StepStart{Step: int(seq)})
	if err != nil {
		panic(err)
	}
	return Item{Event: e}
}

func TestSplitReturnsWhatEncodeGot(t *testing.T) {
	data := Encode([]Item{{Note: []byte("before")}, newItem(5), {Note: []byte("a\nb")}, {Note: nil}, newItem(6)})
	lines, notes, err := Split(data, 6)
	if err != nil || len(lines) != 2 || !bytes.Equal(lines[0], newItem(5).Event.JSON) || !bytes.Equal(lines[1], newItem(6).Event.JSON) {
		t.Errorf("Split = events %q, %v, want 5 and 6", lines, err)
	}
	if got, want := fmt.Sprintf("%d", notes), fmt.Sprintf("%d", []event.Note{{After: 4, Data: []byte("before")}, {After: 5, Data: []byte("a\nb")}, {After: 5}}); got != want {
		t.Errorf("Split = notes %s, want %s", got, want)
	}
}

func FuzzSplit(f *testing.F) {
	f.Add([]byte("#YQ==\n{}\n{}\n"), int64(7))
	f.Add([]byte("#a\n\n"), int64(1))
	f.Fuzz(func(t *testing.T, data []byte, last int64) {
		lines, notes, err := Split(data, last)
		if err != nil {
			return
		}
		for _, line := range lines {
			if len(line) == 0 || bytes.ContainsRune(line, '\n') {
				t.Errorf("Split(%q) has the event %q, want one line", data, line)
			}
		}
		for _, n := range notes {
			if n.After > last {
				t.Errorf("Split(%q, %d) has a note after %d, want at most the last event", data, last, n.After)
			}
		}
	})
}
