package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"answerd/internal/help"
)

// Bounds of LogWriter.waiting, in bytes. The space above maxInfoBytes is reserved for warnings and errors.
const (
	maxWaitingBytes = 1 << 20
	maxInfoBytes    = maxWaitingBytes / 2
)

// LogWriter writes log lines to w without ever blocking its callers: if w is a pipe that is not read, a blocking write
// would stop every request at its next log line.
//
//	lines := telemetry.NewLogWriter(os.Stderr)
//	log, err := telemetry.NewLogger(lines, "info", false)
//	defer lines.Close(ctx)
//
// Lines wait in a bounded buffer. Lines that do not fit are dropped and counted, those below warn
// first. As soon as w accepts lines again, a line reports how many were dropped. A metric has their
// total number.
type LogWriter struct {
	w    io.Writer
	wake chan struct{} // has an element if Write or Close was called since writeLoop last took the waiting lines
	done chan struct{} // closed when the writing goroutine has ended

	mu         sync.Mutex // protects the fields below
	waiting    []byte     // whole lines that writeLoop has not taken yet
	unreported int64      // dropped lines that no line has reported yet
	dropped    int64      // all dropped lines
	closed     bool
}

// NewLogWriter returns a LogWriter for w and starts its goroutine, which ends after Close.
func NewLogWriter(w io.Writer) *LogWriter {
	l := &LogWriter{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.writeLoop()
	return l
}

// Write implements io.Writer for one line. It never blocks and never fails: a line that does not fit is counted as
// dropped. w may receive the line after Write has returned.
func (l *LogWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting)+len(line) > maxWaitingBytes {
		l.dropLocked(1)
		return len(line), nil
	}
	l.waiting = append(l.waiting, line...)
	l.wakeWriter()
	return len(line), nil
}

// admitLevel reports whether there is space for a line of that level, and counts the line as
// dropped if not.
func (l *LogWriter) admitLevel(level slog.Level) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if level >= slog.LevelWarn || len(l.waiting) < maxInfoBytes {
		return true
	}
	l.dropLocked(1)
	return false
}

// Dropped returns the number of lines that were dropped so far.
func (l *LogWriter) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Close waits until the waiting lines are written or ctx ends; later lines are dropped. It returns an error if ctx ends
// first. The writing goroutine then remains until the current write of w returns, because an io.Writer cannot be
// cancelled.
func (l *LogWriter) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.wakeWriter()
	l.mu.Unlock()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return errors.New("the last log lines could not be written")
	}
}

// wakeWriter makes writeLoop take the waiting lines.
func (l *LogWriter) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default: // writeLoop has been woken and has not taken the lines yet
	}
}

// dropLocked counts n dropped lines. The caller holds l.mu.
func (l *LogWriter) dropLocked(n int64) {
	l.dropped += n
	l.unreported += n
}

// writeLoop writes the waiting lines as one block whenever it is woken, until the LogWriter is
// closed. It uses two buffers alternately: it writes one while Write fills the other.
func (l *LogWriter) writeLoop() {
	defer close(l.done)
	var spare []byte // the previous block, whose memory becomes the new buffer
	for range l.wake {
		block, reported, closed := l.takeWaiting(spare[:0])
		if n, err := l.writeBlock(block); err != nil {
			l.countUnwritten(block[n:], reported)
		}
		if closed {
			return
		}
		spare = block
	}
}

// writeBlock writes to w and returns the number of bytes written. It returns a panic of w as an error, because a log
// line must not end the process with all its runs.
func (l *LogWriter) writeBlock(block []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, fmt.Errorf("panic: %v", v)
		}
	}()
	return l.w.Write(block)
}

// takeWaiting returns the waiting lines, followed by a line that reports dropped lines if there are any. empty
// becomes the buffer for further lines. reported is the number of dropped lines that the block reports, and closed says
// that no line will follow.
func (l *LogWriter) takeWaiting(empty []byte) (block []byte, reported int64, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	block, l.waiting = l.waiting, empty
	reported, l.unreported = l.unreported, 0
	if reported > 0 {
		block = append(block, droppedLine(reported)...)
	}
	return block, reported, l.closed
}

// countUnwritten counts as dropped the lines of a block that w failed to write, for example because of a full
// disk. rest is the unwritten end of the block. The dropped lines that the block reported will be reported again.
func (l *LogWriter) countUnwritten(rest []byte, reported int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreported += reported
	if reported > 0 {
		l.dropLocked(-1) // rest contains the report itself, which is not a dropped line
	}
	l.dropLocked(int64(bytes.Count(rest, []byte("\n"))))
}

// droppedLine returns the log line that reports that many dropped lines.
func droppedLine(lines int64) []byte {
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Warn("log lines dropped", "lines", lines, help.DroppedLines.Attr())
	return out.Bytes()
}
