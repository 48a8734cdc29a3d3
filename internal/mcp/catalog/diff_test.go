package catalog

import (
	"strings"
	"testing"
)

func TestDiffLines(t *testing.T) {
	short := strings.NewReplacer("    …\n", "… ", "  - ", "-", "  + ", "+", "    ", "", "\n", " ")
	for _, test := range []struct{ old, new, want string }{
		{"abc", "abc", ""},
		{"", "", ""},
		{"abcdefgh", "abcdXfgh", "c d -e +X f g "},
		{"ab", "x", "-a -b +x "},
		{"abcabba", "cbabac", "-a -b c -a b +a b a +c "},
		{"abcdefghijkl", "Xabcdefghijk", "+X a b … j k -l "},
	} {
		if got := short.Replace(diffLines(strings.Split(test.old, ""), strings.Split(test.new, ""))); got != test.want {
			t.Errorf("diffLines(%s, %s) = %s, want %s", test.old, test.new, got, test.want)
		}
	}
}

func TestDiffLinesTakesBoundedMemory(t *testing.T) {
	old, new := make([]string, 40_000), make([]string, 40_000)
	for i := range old {
		old[i], new[i] = string(rune('a'+i%7)), string(rune('A'+i%5))
	}
	if n := strings.Count(diffLines(old, new), "\n"); n != len(old)+len(new) {
		t.Errorf("diffLines returned %d lines, want %d", n, len(old)+len(new))
	}
}
