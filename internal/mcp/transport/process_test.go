package transport

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
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
			tail := newStderrTail(slog.New(slog.DiscardHandler))
			for in := []byte(row.in); len(in) > 0; {
				n := min(len(in), chunk)
				tail.add(in[:n])
				in = in[n:]
			}
			got := tail.lastLines()
			if len(got) > maxExitLines || got[len(got)-1] != row.last || len(got) > 1 && name == "many" && got[0] != "old" {
				t.Errorf("%s by %d: %d lines, the last %.20q", name, chunk, len(got), got[len(got)-1])
			}
		}
	}
}

// The debug log gets what a child says as it says it, no more than so much of it.
func TestDebugLogOfAChildIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tail := newStderrTail(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
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
	for n, ok := range map[int]bool{0: true, MaxMessage: true, MaxMessage + 1: false, 2 * MaxMessage: false} {
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

// A process is started at most 5 times a minute, whenever its minute began.
func TestStartsAreBounded(t *testing.T) {
	var s startLimit
	now := time.Unix(0, 0)
	for i := range 200 { // one attempt a second
		if got, want := s.allow(now), i%60 < maxStarts; got != want {
			t.Fatalf("second %d: %v", i, got)
		}
		now = now.Add(time.Second)
	}
}

// Lines of a child process: bounded, and whole.
func FuzzLines(f *testing.F) {
	for _, s := range []string{"{}\n", "{\"jsonrpc\":\"2.0\"}\r\n\n", "banner\n{}", "\x00\n", "{", "\n\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in, rest := bufio.NewReader(bytes.NewReader(data)), data
		for {
			line, err := readLine(in)
			if err != nil {
				return
			}
			at := bytes.Index(rest, line)
			if at < 0 || bytes.IndexByte(line[:max(len(line)-1, 0)], '\n') >= 0 {
				t.Fatalf("%q has the line %q", data, line)
			}
			isMessage(line)
			rest = rest[at+len(line):]
		}
	})
}

// Nor is one in what a child process writes.
func TestAPanicOverAChildsOutputIsItsFailure(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	c := &process{log: log} // without the pipe to read from
	if err := c.readMessages(); err == nil {
		t.Error("it has read")
	}
	c.keepStderr([]byte("x"))
}

func TestAPanicAtTheStartOfAChildIsToldToWhoWaits(t *testing.T) {
	started := make(chan error, 1)
	(&process{log: slog.New(slog.DiscardHandler)}).startAndWait(started) // without a command
	if err := <-started; err == nil {
		t.Error("it has started")
	}
}

// buggyLog is a log with a bug that strikes once, at that message.
type buggyLog struct {
	slog.Handler
	message string
	struck  *atomic.Bool
}

func (b buggyLog) Enabled(context.Context, slog.Level) bool { return true }

func (b buggyLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == b.message && !b.struck.Swap(true) {
		panic("a bug")
	}
	return nil
}

// Whatever strikes at the end of a process, the process is gone, and its place is free
// for the next.
func TestAPanicAtTheEndOfAChildLeavesNothingOfIt(t *testing.T) {
	log := buggyLog{Handler: slog.DiscardHandler, message: "MCP server process ended", struck: new(atomic.Bool)}
	c, err := startProcess(&StdioConfig{Command: os.Args[0], Args: []string{"-test.run=^$"}, Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.gone:
	case <-time.After(time.Minute):
		t.Fatal("it is not gone after a minute")
	}
	if !log.struck.Load() || !isClosed(c.reaped) {
		t.Error("not struck, or not reaped")
	}
	// And before: without a process to signal, what waits for the end of it comes to it.
	lost := &process{log: slog.New(slog.DiscardHandler), cmd: c.cmd, stop: make(chan struct{}), exited: make(chan struct{}), reap: make(chan struct{}), reaped: c.reaped,
		stdin: c.stdin, stdout: c.stdout, stderr: c.stderr, gone: make(chan struct{})}
	close(lost.exited)
	lost.cmd.Process = nil
	lost.cleanUp()
	if !isClosed(lost.reap) || !isClosed(lost.gone) {
		t.Error("it waits for ever")
	}
}
