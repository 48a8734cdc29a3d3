package telemetry

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"answerd/internal/help"
)

// newStuckWriter returns a LogWriter that waits in the middle of its first line, and the pipe that it writes
// to.
func newStuckWriter(t *testing.T) (io.Reader, *LogWriter, *slog.Logger) {
	t.Helper()
	r, w := io.Pipe()
	lines := NewLogWriter(w)
	log, err := NewLogger(lines, "info", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		if err := lines.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	fmt.Fprintln(lines, `{"level":"FIRST"}`)
	start := make([]byte, 1)
	if _, err := r.Read(start); err != nil { // the writer has taken the line, and waits with the rest of it
		t.Fatal(err)
	}
	return io.MultiReader(bytes.NewReader(start), r), lines, log
}

// countLevels counts the lines that come out of r by level, up to the one that says which
// are missing, and returns that number too.
func countLevels(t *testing.T, r io.Reader) (got map[string]int64, missing int64) {
	t.Helper()
	got = make(map[string]int64)
	for in := bufio.NewScanner(r); in.Scan(); {
		var line struct {
			Level, Msg string
			Lines      int64
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			t.Fatalf("%q: %v", in.Text(), err)
		}
		if line.Msg == "log lines dropped" {
			return got, line.Lines
		}
		got[line.Level]++
	}
	t.Fatalf("got lines %v, want one that says how many are missing", got)
	return nil, 0
}

// A log whose reader has stopped delays no caller and needs bounded memory. When it is read again,
// it says how many lines are missing; no line at level warn is.
func TestLogWriterNeverBlocksAndReportsDroppedLines(t *testing.T) {
	r, lines, log := newStuckWriter(t)
	const dull, errs = 20_000, 1000
	text := strings.Repeat("x", 200)
	for i := range dull {
		log.Info(text)
		if i%(dull/errs) == 0 {
			log.With("a", 1).WithGroup("g").Error("important")
		}
	}

	if lines.Dropped() == 0 || cap(lines.waiting) > 2*maxWaitingBytes {
		t.Fatalf("got %d lines dropped and a buffer of %d bytes, want both bounded", lines.Dropped(), cap(lines.waiting))
	}
	got, missing := countLevels(t, r)
	if got["ERROR"] != errs || got["INFO"] == 0 || got["INFO"]+missing != dull || missing != lines.Dropped() {
		t.Errorf("got %v and %d missing, want all of %d lines and %d errors", got, missing, dull, errs)
	}
}

// More errors than there is room for are counted like anything else.
func TestLogWriterCountsLinesBeyondItsBound(t *testing.T) {
	r, _, log := newStuckWriter(t)
	const errs = 10_000
	text := strings.Repeat("x", 500)
	for range errs {
		log.Error(text)
	}
	if got, missing := countLevels(t, r); missing == 0 || got["ERROR"]+missing != errs {
		t.Errorf("got %v and %d missing, want each line written or counted", got, missing)
	}
}

// failingWriter fails until it is repaired, and reports each write.
type failingWriter struct {
	err   error
	wrote chan string
}

func (f *failingWriter) Write(p []byte) (int, error) {
	f.wrote <- string(p)
	return 0, f.err
}

// A full disk, or a reader that is gone (EPIPE): what was refused is counted, once,
// and told as soon as something can be.
func TestLogWriterReportsUnwrittenLinesLater(t *testing.T) {
	out := &failingWriter{errors.New("no space left on device"), make(chan string)}
	lines := NewLogWriter(out)
	for i := range 3 {
		fmt.Fprintln(lines, i)
		<-out.wrote
	}

	fmt.Fprintln(lines, "last")
	<-out.wrote // and the three before are counted
	closed := make(chan error)
	go func() { closed <- lines.Close(t.Context()) }()
	if last := <-out.wrote; !strings.Contains(last, `"lines":4`) {
		t.Errorf("got the last block %q, want the count of missing lines at its end", last)
	}
	if err := <-closed; err != nil || lines.Dropped() != 4 {
		t.Errorf("got %d dropped and error %v, want only the failed block dropped", lines.Dropped(), err)
	}
	fmt.Fprintln(lines, "too late")
	if lines.Dropped() != 5 {
		t.Errorf("got %d dropped after Close, want 5", lines.Dropped())
	}
}

func TestLogWriterCloseWritesWaitingLinesWithinItsContext(t *testing.T) {
	var out strings.Builder
	lines := NewLogWriter(&out)
	for i := range 100 {
		fmt.Fprintln(lines, i)
	}

	if err := lines.Close(t.Context()); err != nil || strings.Count(out.String(), "\n") != 100 {
		t.Errorf("got error %v and output %q, want the waiting lines", err, out.String())
	}
	r, w := io.Pipe()
	lines = NewLogWriter(w)
	fmt.Fprintln(lines, "nobody reads this")
	over, stop := context.WithCancel(t.Context())
	stop()
	if err := lines.Close(over); err == nil {
		t.Error("got no error from Close with a writer that hangs, want one")
	}
	r.Close()
	<-lines.done
}

func TestLogWriterHasAMetricOfDroppedLines(t *testing.T) {
	_, lines, log := newStuckWriter(t)
	for lines.Dropped() == 0 {
		log.Info(strings.Repeat("x", 10_000))
	}
	tel := newTelemetry(t, Config{Logger: log})
	url, client := serveHandler(t, tel.Metrics())
	want := fmt.Sprintf("answerd_log_lines_dropped_total %d\n", lines.Dropped())
	if page := fetchBody(t, client, url); !strings.Contains(page, want) {
		t.Errorf("no %sin the page", want)
	}
}

// panickingExporter is a writer, and an exporter, with a bug.
type panickingExporter struct{ sdktrace.SpanExporter }

func (panickingExporter) Write([]byte) (int, error) { panic("a bug") }

func (panickingExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { panic("a bug") }

// Runs continue whatever happens to lines and spans.
func TestPanicOfAWriterOrExporterLosesOnlyItsBatch(t *testing.T) {
	lines := NewLogWriter(panickingExporter{})
	fmt.Fprintln(lines, "one")
	if err := lines.Close(t.Context()); err != nil || lines.Dropped() != 1 {
		t.Errorf("got %d dropped and error %v, want only the failed block dropped", lines.Dropped(), err)
	}
	lost := 0
	exports := newSignalExports("traces", slog.New(slog.DiscardHandler), help.Traces)
	s := &spanSender{SpanExporter: panickingExporter{}, exports: exports, waiting: new(atomic.Int64), countFailed: func(n int) { lost += n }}
	if err := s.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 3)); err != nil || lost != 3 {
		t.Errorf("got %d spans lost and error %v, want 1 and none", lost, err)
	}
}
