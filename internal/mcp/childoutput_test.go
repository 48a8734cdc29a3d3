package mcp

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Of whatever a child writes on stderr, the last lines are kept, whole, cut to a length
// that a log bears.
func TestTailKeepsTheLastLines(t *testing.T) {
	for name, row := range map[string]struct{ in, last string }{
		"nothing":       {"", ""},
		"one":           {"a\r\n", "a"},
		"no line feed":  {"a\nb", "b"},
		"many":          {strings.Repeat("old\n", 100_000) + "new\n", "new"},
		"endless":       {strings.Repeat("x", 3*maxTail+7), strings.Repeat("x", maxTailLine)},
		"control chars": {"a\x1b[31mb\n", "a [31mb"},
	} {
		for _, chunk := range []int{7, 32 << 10, 1 << 20} {
			tail := newTail(quietLog())
			for in := []byte(row.in); len(in) > 0; {
				n := min(len(in), chunk)
				tail.add(in[:n])
				in = in[n:]
			}
			got := tail.last()
			if len(got) > maxLastWord || got[len(got)-1] != row.last || len(got) > 1 && name == "many" && got[0] != "old" {
				t.Errorf("%s by %d: %d lines, the last %.20q", name, chunk, len(got), got[len(got)-1])
			}
		}
	}
}

// The debug log gets what a child says as it says it, no more than so much of it.
func TestDebugLogOfAChildIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncBuffer
		tail := newTail(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		for range 3 {
			for i := range 1000 {
				tail.add(fmt.Appendf(nil, "line %d", i))
				tail.add([]byte(strings.Repeat("x", maxTailLine) + "\n"))
			}
			<-time.After(time.Second) // fake
		}
		s := log.String()
		if n := strings.Count(s, "MCP server says"); n != 3*maxTailRate || !strings.Contains(s, "line 0xx") || len(s) > 3*maxTailRate*(maxTailLine+200) {
			t.Errorf("%d lines, %d bytes", n, len(s))
		}
	})
}

// A message may have 4 MiB, and not a byte more.
func TestLineIsBounded(t *testing.T) {
	for n, ok := range map[int]bool{0: true, maxBody: true, maxBody + 1: false, 2 * maxBody: false} {
		in := bufio.NewReader(strings.NewReader(strings.Repeat("x", n) + "\nnext\n"))
		line, err := readLine(in)
		if ok != (err == nil) || ok && len(line) != n {
			t.Errorf("%d: %d bytes, %v", n, len(line), err)
		}
		if next, err := readLine(in); ok && (err != nil || !bytes.Equal(next, []byte("next"))) {
			t.Errorf("%d: %q, %v", n, next, err)
		}
	}
}

// S4.5: a process is started at most 5 times a minute, whenever its minute began.
func TestStartsAreBounded(t *testing.T) {
	var s starts
	now := time.Unix(0, 0)
	for i := range 200 { // one attempt a second
		if got, want := s.take(now), i%60 < maxStarts; got != want {
			t.Fatalf("second %d: %v", i, got)
		}
		now = now.Add(time.Second)
	}
}
