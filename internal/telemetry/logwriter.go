package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"go.opentelemetry.io/otel/metric"
)

// Bounds of the lines that wait to be written, in bytes. The space above maxInfoBytes is
// reserved for warnings and errors.
const (
	maxWaitingBytes = 1 << 20
	maxInfoBytes    = maxWaitingBytes / 2
)

// LogWriter is a writer of log lines that never blocks, however long w takes: a pipe that
// nobody reads would otherwise stop every request at its next line. Lines wait in a bounded
// buffer. Those that do not fit are dropped and counted, lines below warn first: a line says
// how many are missing as soon as w accepts lines again, and a metric says it always.
//
//	lines := telemetry.NewLogWriter(os.Stderr)
//	log, err := telemetry.NewLogger(lines, "info", false)
//	defer lines.Close(ctx)
type LogWriter struct {
	w    io.Writer
	wake chan struct{} // there is something to write, or nothing more will come
	done chan struct{} // closed when the writing goroutine is gone

	mu         sync.Mutex // protects the fields below
	waiting    []byte     // whole lines
	unreported int64      // lines that were dropped since a line said so
	dropped    int64      // lines that were dropped in all
	closed     bool
}

// observeDropped adds a counter to m of the lines that logger's LogWriter dropped, if it has
// one.
func observeDropped(logger *slog.Logger, m metric.Meter) error {
	h, ok := logger.Handler().(*logHandler)
	if !ok || h.lines == nil {
		return nil
	}
	_, err := m.Int64ObservableCounter("answerd.log.lines.dropped", metric.WithUnit("{line}"),
		metric.WithDescription("Log lines that could not be written."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(h.lines.Dropped())
			return nil
		}))
	return err
}

// NewLogWriter starts the goroutine that writes to w. Close ends it.
func NewLogWriter(w io.Writer) *LogWriter {
	l := &LogWriter{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.writeLoop()
	return l
}

// Write accepts one line, or drops and counts it. It never blocks and never fails.
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

// Dropped returns how many lines were dropped so far.
func (l *LogWriter) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Close writes the waiting lines, until ctx ends, and drops further ones. Its error says that
// lines are missing. A write that never returns keeps its goroutine, since an io.Writer
// cannot be cancelled.
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

func (l *LogWriter) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default: // it is awake
	}
}

func (l *LogWriter) dropLocked(n int64) {
	l.dropped += n
	l.unreported += n
}

// writeLoop writes all waiting lines as one block, again and again until the writer is closed.
func (l *LogWriter) writeLoop() {
	defer close(l.done)
	var spare []byte // the piece before, to be filled again
	for range l.wake {
		piece, told, closed := l.takeWaiting(spare[:0])
		if n, err := l.writeBlock(piece); err != nil {
			l.countUnwritten(piece[n:], told)
		}
		if closed {
			return
		}
		spare = piece
	}
}

// writeBlock writes to w. It returns a panic of w as an error: the process, and every run
// with it, must not end for a log line.
func (l *LogWriter) writeBlock(piece []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, fmt.Errorf("panic: %v", v)
		}
	}()
	return l.w.Write(piece)
}

// takeWaiting returns the waiting lines, followed by the line that says how many are missing,
// and leaves the empty buffer in their place.
func (l *LogWriter) takeWaiting(room []byte) (piece []byte, told int64, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	piece, l.waiting = l.waiting, room
	told, l.unreported = l.unreported, 0
	if told > 0 {
		piece = append(piece, droppedLine(told)...)
	}
	return piece, told, l.closed
}

// countUnwritten counts the lines of a block that w failed to write, for instance to a full
// disk. The missing lines that the block reported are unreported again.
func (l *LogWriter) countUnwritten(rest []byte, told int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreported += told
	if told > 0 {
		l.dropLocked(-1) // the line that told so is none of ours
	}
	l.dropLocked(int64(bytes.Count(rest, []byte("\n"))))
}

// droppedLine returns the log line that reports dropped lines.
func droppedLine(lines int64) []byte {
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Warn("log lines dropped", "lines", lines)
	return out.Bytes()
}
