package llm

import (
	"strings"
	"testing"
)

// A chunk that differs from the one before in its text alone is known by that; all else
// is read whole.
func TestOnlyTextBetweenTheSameBytesIsTakenByItsFrame(t *testing.T) {
	const before, behind = `{"choices":[{"delta":{"content":"`, `"}}]}`
	var f frame
	first := []byte(before + "one" + behind)
	f.learn(first, first[len(before)-1:len(before)+len(`one"`)])
	for said, want := range map[string]bool{
		" two": true, "": true, "dve ě": true,
		`"`: false, `\n`: false, "\x01": false, "\xff": false, `"}}],"x":"`: false,
	} {
		got, ok := f.text([]byte(before + said + behind))
		if ok != want || ok && string(got) != said {
			t.Errorf("%q: %q %v", said, got, ok)
		}
	}
	for _, other := range []string{"", before, behind, before + behind[1:], strings.ToUpper(before) + "x" + behind, before + "x" + behind + " "} {
		if got, ok := f.text([]byte(other)); ok {
			t.Errorf("%q has the text %q", other, got)
		}
	}
	if _, ok := new(frame).text(first); ok {
		t.Error("a frame that has learned nothing knows a chunk")
	}
}
