package telemetry

import (
	"bufio"
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
)

// stuck is a pipe that nobody reads yet, and the lines that go into it.
func stuck(t *testing.T) (*io.PipeReader, *Lines, *slog.Logger) {
	t.Helper()
	r, w := io.Pipe()
	lines := NewLines(w)
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
	return r, lines, log
}

// levels counts the lines that come out of r by level, up to the one that says which
// are missing, and returns that number too.
func levels(t *testing.T, r io.Reader) (got map[string]int64, missing int64) {
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
	t.Fatalf("no line says what is missing; there are %v", got)
	return nil, 0
}

// A log that nobody reads stops nobody, and costs bounded memory; once it is read
// again it says how much of it is missing, and no warning is.
func TestALogThatNobodyReadsStopsNobodyAndSaysWhatIsMissing(t *testing.T) {
	r, lines, log := stuck(t)
	const dull, errs = 20_000, 1000
	text := strings.Repeat("x", 200)
	for i := range dull {
		log.Info(text)
		if i%(dull/errs) == 0 {
			log.With("a", 1).WithGroup("g").Error("important")
		}
	}
	if lines.Dropped() == 0 || cap(lines.waiting) > 2*maxLines {
		t.Fatalf("%d lines dropped, %d bytes kept", lines.Dropped(), cap(lines.waiting))
	}
	got, missing := levels(t, r)
	if got["ERROR"] != errs || got["INFO"] == 0 || got["INFO"]+missing != dull || missing != lines.Dropped() {
		t.Errorf("%v and %d missing of %d and %d", got, missing, dull, errs)
	}
}

// More errors than there is room for are counted like anything else.
func TestWhatIsTooMuchIsCounted(t *testing.T) {
	r, _, log := stuck(t)
	const errs = 10_000
	text := strings.Repeat("x", 500)
	for range errs {
		log.Error(text)
	}
	if got, missing := levels(t, r); missing == 0 || got["ERROR"]+missing != errs {
		t.Errorf("%v and %d missing", got, missing)
	}
}

// flawed is a writer that fails until it is mended; every write is told.
type flawed struct {
	err   error
	wrote chan string
}

func (f *flawed) Write(p []byte) (int, error) {
	f.wrote <- string(p)
	return 0, f.err
}

// A full disk, or a reader that is gone (EPIPE): what was refused is counted, once,
// and told as soon as something can be.
func TestLinesThatCouldNotBeWrittenAreToldLater(t *testing.T) {
	out := &flawed{errors.New("no space left on device"), make(chan string)}
	lines := NewLines(out)
	for i := range 3 {
		fmt.Fprintln(lines, i)
		<-out.wrote
	}
	fmt.Fprintln(lines, "last")
	<-out.wrote // and the three before are counted
	closed := make(chan error)
	go func() { closed <- lines.Close(t.Context()) }()
	if last := <-out.wrote; !strings.Contains(last, `"lines":4`) {
		t.Errorf("the last piece is %q", last)
	}
	if err := <-closed; err != nil || lines.Dropped() != 4 {
		t.Errorf("%d dropped, %v", lines.Dropped(), err)
	}
	fmt.Fprintln(lines, "too late")
	if lines.Dropped() != 5 {
		t.Errorf("%d dropped after the end", lines.Dropped())
	}
}

func TestCloseWritesWhatWaitsAndDoesNotWaitForEver(t *testing.T) {
	var out strings.Builder
	lines := NewLines(&out)
	for i := range 100 {
		fmt.Fprintln(lines, i)
	}
	if err := lines.Close(t.Context()); err != nil || strings.Count(out.String(), "\n") != 100 {
		t.Errorf("%v, %q", err, out.String())
	}
	r, w := io.Pipe()
	lines = NewLines(w)
	fmt.Fprintln(lines, "nobody reads this")
	over, stop := context.WithCancel(t.Context())
	stop()
	if err := lines.Close(over); err == nil {
		t.Error("closed, and nothing is missing?")
	}
	r.Close()
	<-lines.done
}

func TestDroppedLinesAreAMetric(t *testing.T) {
	_, lines, log := stuck(t)
	for lines.Dropped() == 0 {
		log.Info(strings.Repeat("x", 10_000))
	}
	tel := start(t, Config{Logger: log})
	url, client := serve(t, tel.Metrics())
	want := fmt.Sprintf("answerd_log_lines_dropped_total %d\n", lines.Dropped())
	if page := get(t, client, url); !strings.Contains(page, want) {
		t.Errorf("no %sin the page", want)
	}
}

// broken is a writer, and an exporter, with a bug.
type broken struct{ sdktrace.SpanExporter }

func (broken) Write([]byte) (int, error) { panic("a bug") }

func (broken) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { panic("a bug") }

// F32: whatever becomes of lines and spans, the runs go on.
func TestAPanicCostsLinesAndSpansAndNothingElse(t *testing.T) {
	lines := NewLines(broken{})
	fmt.Fprintln(lines, "one")
	if err := lines.Close(t.Context()); err != nil || lines.Dropped() != 1 {
		t.Errorf("%d dropped, %v", lines.Dropped(), err)
	}
	lost := 0
	s := &spanSender{SpanExporter: broken{}, abandoned: t.Context(), waiting: new(atomic.Int64), failed: func(n int) { lost += n }, logger: slog.New(slog.DiscardHandler)}
	if err := s.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 3)); err != nil || lost != 3 {
		t.Errorf("%d spans lost, %v", lost, err)
	}
}
