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

// Limits of LogWriter.waiting, in bytes. The space above maxInfoBytes is reserved for warnings and errors.
const (
	maxWaitingBytes = 1 << 20
	maxInfoBytes    = maxWaitingBytes / 2
)

// LogWriter writes log lines to w and never blocks its callers. If it did, and w were a pipe that is not read, every
// request would stop at its next log line.
//
//	lines := telemetry.NewLogWriter(os.Stderr)
//	log, err := telemetry.NewLogger(lines, "info", false)
//	defer lines.Close(ctx)
//
// Lines wait in a buffer of limited size. Lines that do not fit are dropped and counted, those below warn first. As
// soon as w accepts lines again, a line reports how many were dropped. A metric has the total number.
type LogWriter struct {
	w    io.Writer
	wake chan struct{} // has an element if Write or Close was called and writeLoop has not reacted yet
	done chan struct{} // closed when the writing goroutine has ended

	mu         sync.Mutex // protects the fields below
	waiting    []byte     // complete lines that writeLoop has not taken yet
	unreported int64      // number of dropped lines that no line has reported yet
	dropped    int64      // total number of dropped lines
	closed     bool
}

// NewLogWriter returns a LogWriter that writes to w, and starts its goroutine, which ends after Close.
func NewLogWriter(w io.Writer) *LogWriter {
	l := &LogWriter{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.writeLoop()
	return l
}

// Write implements io.Writer for one line. It never blocks and never fails. If the line does not fit, it is counted as
// dropped. w may get the line after Write has returned.
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

// admitLevel reports whether there is space for a line of the given level. If not, it counts the line as dropped.
func (l *LogWriter) admitLevel(level slog.Level) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if level >= slog.LevelWarn || len(l.waiting) < maxInfoBytes {
		return true
	}
	l.dropLocked(1)
	return false
}

// Dropped returns how many lines have been dropped so far.
func (l *LogWriter) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Close waits until the waiting lines are written. It returns an error if ctx ends first. The writing goroutine then
// remains until w's current Write returns, because an io.Writer cannot be cancelled. Lines that are logged after Close
// are dropped.
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
	default: // writeLoop will wake up anyway
	}
}

// dropLocked counts n dropped lines. l.mu must be held.
func (l *LogWriter) dropLocked(n int64) {
	l.dropped += n
	l.unreported += n
}

// writeLoop writes the waiting lines as one block whenever it is woken, until the LogWriter is closed. It uses two
// buffers in turn, so that Write can fill one while the other is being written.
func (l *LogWriter) writeLoop() {
	defer close(l.done)
	var spare []byte // the previous block, whose memory becomes the next buffer
	for range l.wake {
		block, reported, isLast := l.takeWaiting(spare[:0])
		if written, err := l.writeBlock(block); err != nil {
			l.countUnwritten(block[written:], reported)
		}
		if isLast {
			return
		}
		spare = block
	}
}

// writeBlock writes block to w and returns the number of bytes written. It converts a panic of w to an error, because a
// log line must not end the process with all its runs.
func (l *LogWriter) writeBlock(block []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, fmt.Errorf("panic: %v", v)
		}
	}()
	return l.w.Write(block)
}

// takeWaiting returns the waiting lines. If lines were dropped, it appends a line that reports their number, and
// returns that number as reported. empty becomes the buffer for further lines. isLast means that no line will follow.
func (l *LogWriter) takeWaiting(empty []byte) (block []byte, reported int64, isLast bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	block, l.waiting = l.waiting, empty
	reported, l.unreported = l.unreported, 0
	if reported > 0 {
		block = append(block, droppedLine(reported)...)
	}
	return block, reported, l.closed
}

// countUnwritten counts the lines that w failed to write, for example because the disk is full, as dropped. rest is the
// part of the block that was not written. reported is the number of dropped lines that the block reports. They will be
// reported again.
func (l *LogWriter) countUnwritten(rest []byte, reported int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreported += reported
	if reported > 0 {
		l.dropLocked(-1) // rest contains the report itself, which does not count as a dropped line
	}
	l.dropLocked(int64(bytes.Count(rest, []byte("\n"))))
}

// droppedLine returns a log line that reports the given number of dropped lines.
func droppedLine(lines int64) []byte {
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Warn("log lines dropped", "lines", lines, help.DroppedLines.Attr())
	return out.Bytes()
}
