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

// Bounds of the lines that wait to be written, in bytes. The last part is kept for
// warnings and errors.
const (
	maxLines     = 1 << 20
	maxDullLines = maxLines / 2
)

// Lines is a writer of log lines that keeps nobody waiting, however long w takes: a
// pipe that nobody empties would otherwise stop every request at its next line. What
// w has no time for waits in a bounded buffer; what doesn't fit is dropped, the dull
// lines first, and counted: a line says how many are missing as soon as w takes lines
// again, and a metric until then.
//
//	lines := telemetry.NewLines(os.Stderr)
//	log, err := telemetry.NewLogger(lines, "info", false)
//	defer lines.Close(ctx)
type Lines struct {
	w    io.Writer
	wake chan struct{} // there is something to write, or nothing more will come
	done chan struct{} // closed when the writing goroutine is gone

	mu      sync.Mutex // protects the fields below
	waiting []byte     // whole lines
	untold  int64      // lines that were dropped since a line said so
	dropped int64      // lines that were dropped in all
	closed  bool
}

// observe puts the count of what the lines behind logger dropped on m, if there are any.
func observe(logger *slog.Logger, m metric.Meter) error {
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

// NewLines starts the goroutine that writes to w. Close ends it.
func NewLines(w io.Writer) *Lines {
	l := &Lines{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.run()
	return l
}

// Write takes one line, or drops and counts it. It never blocks and never fails.
func (l *Lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting)+len(line) > maxLines {
		l.dropLocked(1)
		return len(line), nil
	}
	l.waiting = append(l.waiting, line...)
	l.signal()
	return len(line), nil
}

// admits reports whether a line of that level is worth being made. One that is not
// counts as dropped.
func (l *Lines) admits(level slog.Level) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if level >= slog.LevelWarn || len(l.waiting) < maxDullLines {
		return true
	}
	l.dropLocked(1)
	return false
}

// Dropped is how many lines were dropped so far.
func (l *Lines) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Close writes what waits, until ctx ends, and takes no line from then on. Its error
// says that lines are missing. A write that blocks for ever keeps its goroutine: no
// writer can be told to give up.
func (l *Lines) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.signal()
	l.mu.Unlock()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return errors.New("the last log lines could not be written")
	}
}

func (l *Lines) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // it is awake
	}
}

func (l *Lines) dropLocked(n int64) {
	l.dropped += n
	l.untold += n
}

// run writes whatever waits, as one piece, until the end.
func (l *Lines) run() {
	defer close(l.done)
	var spare []byte // the piece before, to be filled again
	for range l.wake {
		piece, told, closed := l.take(spare[:0])
		if n, err := l.write(piece); err != nil {
			l.failed(piece[n:], told)
		}
		if closed {
			return
		}
		spare = piece
	}
}

// write is w's. A panic in it costs the piece: all runs would go with the process, and
// there is nowhere to say so but in the count.
func (l *Lines) write(piece []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, fmt.Errorf("panic: %v", v)
		}
	}()
	return l.w.Write(piece)
}

// take gives what waits, and behind it the line that tells how many are missing. It
// leaves room in the place of what it takes.
func (l *Lines) take(room []byte) (piece []byte, told int64, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	piece, l.waiting = l.waiting, room
	told, l.untold = l.untold, 0
	if told > 0 {
		piece = append(piece, missing(told)...)
	}
	return piece, told, l.closed
}

// failed counts the lines of a piece that w refused: a disk that is full, a reader that
// is gone. What was told last in it, nobody has heard.
func (l *Lines) failed(rest []byte, told int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.untold += told
	if told > 0 {
		l.dropLocked(-1) // the line that told so is none of ours
	}
	l.dropLocked(int64(bytes.Count(rest, []byte("\n"))))
}

// missing is the line that stands for lines that were dropped.
func missing(lines int64) []byte {
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Warn("log lines dropped", "lines", lines)
	return out.Bytes()
}
