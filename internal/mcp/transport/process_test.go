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

// The last lines that a child writes to stderr are kept, each cut to maxTailLine.
func TestStderrTailKeepsTheLastLines(t *testing.T) {
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
			keepsOldest := len(got) == 1 || name != "many" || got[0] == "old"
			if len(got) > maxExitLines || got[len(got)-1] != row.last || !keepsOldest {
				t.Errorf("%s in chunks of %d: got %d lines, the last %.20q, want the last %.20q", name, chunk, len(got), got[len(got)-1], row.last)
			}
		}
	}
}

// The debug log has the lines of a child as they come, at most maxTailRate per second.
func TestStderrTailBoundsDebugLog(t *testing.T) {
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
		if n := strings.Count(s, "MCP server wrote to stderr"); n != 3*maxTailRate || !strings.Contains(s, "line 0xx") || len(s) > 3*maxTailRate*(maxTailLine+200) {
			t.Errorf("got %d lines in %d bytes, want %d lines", n, len(s), 3*maxTailRate)
		}
	})
}

// A message may have 4 MiB and no more.
func TestReadLineIsBounded(t *testing.T) {
	for n, ok := range map[int]bool{0: true, MaxMessage: true, MaxMessage + 1: false, 2 * MaxMessage: false} {
		in := bufio.NewReader(strings.NewReader(strings.Repeat("x", n) + "\nnext\n"))
		line, err := readLine(in, newMessageLimit())
		if ok != (err == nil) || ok && len(line) != n {
			t.Errorf("a line of %d bytes: got %d bytes, %v, want it read: %t", n, len(line), err, ok)
		}
		if next, err := readLine(in, newMessageLimit()); ok && (err != nil || !bytes.Equal(next, []byte("next"))) {
			t.Errorf("after a line of %d bytes: got %q, %v, want %q", n, next, err, "next")
		}
	}
}

// A process is started at most 5 times a minute, whenever its minute began.
func TestStartLimitAllowsFiveStartsAMinute(t *testing.T) {
	var s startLimit
	now := time.Unix(0, 0)
	for i := range 200 { // one attempt a second
		allowed := !s.forbidsStart(now)
		if want := i%60 < maxStarts; allowed != want {
			t.Fatalf("second %d: got %t, want %t", i, allowed, want)
		}
		if allowed {
			s.addStart(now)
		}
		now = now.Add(time.Second)
	}
}

// Lines of a child process: bounded, and whole.
func FuzzReadLine(f *testing.F) {
	for _, s := range []string{"{}\n", "{\"jsonrpc\":\"2.0\"}\r\n\n", "banner\n{}", "\x00\n", "{", "\n\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in, rest := bufio.NewReader(bytes.NewReader(data)), data
		for {
			line, err := readLine(in, newMessageLimit())
			if err != nil {
				return
			}
			at := bytes.Index(rest, line)
			if at < 0 || bytes.IndexByte(line[:max(len(line)-1, 0)], '\n') >= 0 {
				t.Fatalf("readLine of %q: got %q, want one line of it", data, line)
			}
			isMessage(line)
			rest = rest[at+len(line):]
		}
	})
}

// A panic over the output of a child ends that child and not us.
func TestProcessPanicOverOutputIsAnError(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	c := &process{log: log} // without the pipe to read from
	if err := c.readMessages(); err == nil {
		t.Error("readMessages: got no error, want the panic as one")
	}
	c.keepStderr([]byte("x"))
}

func TestProcessPanicAtStartIsAnError(t *testing.T) {
	started := make(chan error, 1)
	(&process{log: slog.New(slog.DiscardHandler)}).startAndWait(started) // without a command
	if err := <-started; err == nil {
		t.Error("start: got no error, want the panic as one")
	}
}

// panickingLog panics once, at that message.
type panickingLog struct {
	slog.Handler
	message  string
	panicked *atomic.Bool
}

func (b panickingLog) Enabled(context.Context, slog.Level) bool { return true }

func (b panickingLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == b.message && !b.panicked.Swap(true) {
		panic("a defect")
	}
	return nil
}

// If a panic happens while a process ends, the process is still gone, and the next one can be
// started.
func TestProcessIsCleanedUpAfterPanic(t *testing.T) {
	log := panickingLog{Handler: slog.DiscardHandler, message: "MCP server process ended", panicked: new(atomic.Bool)}
	c, err := startProcess(&StdioConfig{Command: os.Args[0], Args: []string{"-test.run=^$"}, Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}

	select {
	case <-c.gone:
	case <-time.After(time.Minute):
		t.Fatal("got a process that is there after a minute, want it gone")
	}

	if !log.panicked.Load() || !IsClosed(c.reaped) {
		t.Errorf("got panicked %t, reaped %t, want both", log.panicked.Load(), IsClosed(c.reaped))
	}

	// A panic before that, since there is not a process to signal, does not keep anyone waiting.
	lost := &process{log: slog.New(slog.DiscardHandler), cmd: c.cmd, stop: make(chan struct{}), exited: make(chan struct{}), reapPermitted: make(chan struct{}), reaped: c.reaped,
		stdin: c.stdin, stdout: c.stdout, stderr: c.stderr, gone: make(chan struct{})}
	close(lost.exited)
	lost.cmd.Process = nil
	lost.cleanUp()
	if !IsClosed(lost.reapPermitted) || !IsClosed(lost.gone) {
		t.Errorf("got reap %t, gone %t, want both closed", IsClosed(lost.reapPermitted), IsClosed(lost.gone))
	}
}

// newMessageLimit returns the limit of a process that waits for no list of tools.
func newMessageLimit() *atomic.Int64 {
	var n atomic.Int64
	n.Store(MaxMessage)
	return &n
}
