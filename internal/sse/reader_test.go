package sse

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// slowReader gives at most n bytes at a time, so that every boundary of a line is met.
type slowReader struct {
	r io.Reader
	n int
}

func (s slowReader) Read(p []byte) (int, error) {
	n := min(max(s.n, 1), len(p))
	return s.r.Read(p[:n])
}

// readAllFrames collects the events of a stream as "id|event|data".
func readAllFrames(r *Reader) (got []string, err error) {
	for {
		f, err := r.Next()
		if err != nil {
			return got, err
		}
		got = append(got, f.ID+"|"+f.Event+"|"+string(f.Data))
	}
}

var streams = map[string]struct {
	in   string
	want []string
}{
	"LF":                       {"data: a\n\ndata: b\n\n", []string{"||a", "||b"}},
	"CRLF":                     {"id: 1\r\nevent: x\r\ndata: a\r\n\r\ndata: b\r\n\r\n", []string{"1|x|a", "||b"}},
	"CR":                       {"data: a\r\rdata: b\rdata: c\r\r", []string{"||a", "||b\nc"}},
	"mixed":                    {"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", []string{"||a", "||b", "||c"}},
	"byte order mark":          {"\ufeffdata: a\n\n\ufeffdata: b\n\n", []string{"||a"}},
	"comments":                 {": hi\n:\n\ndata: a\n: mid\ndata: b\n\n: end\n", []string{"||a\nb"}},
	"no space":                 {"data:a\n\ndata:  b\n\n", []string{"||a", "|| b"}},
	"no colon":                 {"data\n\ndata\ndata\n\n", []string{"||", "||\n"}},
	"unknown fields and retry": {"retry: 10\nfoo: bar\ndata: a\n\n", []string{"||a"}},
	"no data":                  {"event: x\nid: 1\n\ndata: a\n\n", []string{"||a"}},
	"last blank line missing":  {"data: a\n\nevent: e\ndata: [DONE]\n", []string{"||a", "|e|[DONE]"}},
	"last line ending missing": {"data: a\n\ndata: [DONE]", []string{"||a", "||[DONE]"}},
	"NUL in id":                {"id: a\x00b\ndata: a\n\n", []string{"||a"}},
	"many blank lines":         {"\n\n\r\n\r\rdata: a\n\n\n\n", []string{"||a"}},
	"colon in value":           {"data: a: b\n\n", []string{"||a: b"}},
	"empty":                    {"", nil},
	"only a byte order mark":   {"\ufeff", nil},
	"half a byte order mark":   {"\xef\xbb", nil},
}

func TestEventsAreTheSameHoweverTheBytesArrive(t *testing.T) {
	for name, c := range streams {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{1, 2, 3, 5, 7, 4096} { // F11
				got, err := readAllFrames(NewReader(slowReader{strings.NewReader(c.in), n}, 0))
				if err != io.EOF || !slices.Equal(got, c.want) {
					t.Errorf("%d bytes at a time: got %q, %v, want %q", n, got, err, c.want)
				}
			}
		})
	}
}

// A reader that waits for the byte after a CR would hold an event back until the next one.
func TestEventThatEndsInCRIsNotHeldBack(t *testing.T) {
	for _, wire := range []string{"data: a\r\r", "data: a\r\n\r", "data: a\n\n"} {
		pr, pw := io.Pipe()
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			_, _ = io.WriteString(pw, wire) // returns when all of it was read
		}()
		r := NewReader(pr, 0)
		if f, err := r.Next(); err != nil || string(f.Data) != "a" {
			t.Errorf("%q: got %q, %v, want a and no error", wire, f.Data, err)
		}
		<-wrote
		pw.Close()
	}
}

// An endless line, many short lines and an endless comment are one attack (F6, F20).
func TestEventIsBounded(t *testing.T) {
	for name, part := range map[string]string{
		"one line": "x", "many data lines": "\ndata: x", "comments inside an event": "\n:", "unknown fields": "\nfoo",
	} {
		src := io.MultiReader(strings.NewReader("data: ok\n\ndata: "), strings.NewReader(strings.Repeat(part, 1000)))
		got, err := readAllFrames(NewReader(src, 100))
		if !errors.Is(err, ErrTooLarge) || len(got) != 1 {
			t.Errorf("%s: got %q, %v, want ErrTooLarge, 1", name, got, err)
		}
	}
	if _, err := NewReader(endlessReader{}, 1000).Next(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("endless line: %v, want ErrTooLarge", err)
	}
}

func TestReaderBoundIsExact(t *testing.T) {
	wire := "data: 0123456789\n\n"
	if _, err := NewReader(strings.NewReader(wire), len(wire)).Next(); err != nil {
		t.Error("at the bound:", err)
	}
	r := NewReader(strings.NewReader(wire), len(wire)-2)
	if _, err := r.Next(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("over the bound: %v, want ErrTooLarge", err)
	}
	if _, err := r.Next(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("the error did not stay: %v, want ErrTooLarge", err)
	}
}

func TestHeartbeatsBetweenEventsDoNotAddUp(t *testing.T) {
	src := strings.Repeat(": ping\n", 1000) + strings.Repeat("\n", 1000) + "data: a\n\n"
	if got, err := readAllFrames(NewReader(strings.NewReader(src), 50)); err != io.EOF || len(got) != 1 {
		t.Errorf("got %q, %v, want io.EOF, 1", got, err)
	}
}

func TestCutEventIsNotDelivered(t *testing.T) {
	cut := errors.New("connection reset")
	src := io.MultiReader(strings.NewReader("data: a\n\ndata: b\n"), failingReader{cut})
	if got, err := readAllFrames(NewReader(src, 0)); !errors.Is(err, cut) || !slices.Equal(got, []string{"||a"}) {
		t.Errorf("got %q, %v, want [||a], %v", got, err, cut)
	}
}

func TestSourceThatGivesNothingEndsTheStream(t *testing.T) {
	if _, err := NewReader(silentReader{}, 0).Next(); err != io.ErrNoProgress {
		t.Errorf("error %v, want ErrNoProgress", err)
	}
}

type endlessReader struct{}

func (endlessReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

type silentReader struct{}

func (silentReader) Read([]byte) (int, error) { return 0, nil }

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

// FuzzReader: whatever arrives, and in whatever pieces, the reader ends, stays within
// its bound and gives the same events.
func FuzzReader(f *testing.F) {
	for _, c := range streams {
		f.Add([]byte(c.in), 1)
	}
	f.Fuzz(func(t *testing.T, wire []byte, step int) {
		const bound = 64
		whole, err := readAllFrames(NewReader(bytes.NewReader(wire), bound))
		pieces, err2 := readAllFrames(NewReader(slowReader{bytes.NewReader(wire), step}, bound))
		if !slices.Equal(whole, pieces) || err != err2 {
			t.Errorf("%q: %q, %v against %q, %v, want %q and %v", wire, whole, err, pieces, err2, pieces, err2)
		}
		for _, e := range whole {
			if len(e) > 4*bound { // an invalid byte of an id grows to the three of U+FFFD
				t.Errorf("an event of %d bytes, want at most %d", len(e), 4*bound)
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	chunk := `data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1764000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	wire := strings.Repeat(chunk, 1000)
	b.SetBytes(int64(len(wire)))
	b.ReportAllocs()
	for b.Loop() {
		r := NewReader(strings.NewReader(wire), 0)
		for {
			if _, err := r.Next(); err != nil {
				break
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/event")
}

func TestReaderKeepsWhatAResumptionNeeds(t *testing.T) {
	for in, want := range map[string]struct {
		id    string
		retry time.Duration
		cut   bool
	}{
		"id: 1\nretry: 500\ndata: a\n\n":      {"1", 500 * time.Millisecond, false},
		"id: 1\nretry: 500\n\n":               {"1", 500 * time.Millisecond, false},
		"id: 1\rdata: a\r\rid: 2\r\r":         {"2", 0, false},
		"id: 1\ndata: a\n\ndata: b\n\n":       {"1", 0, false},
		"id: 1\ndata: a\n\nid: 2\ndata: b":    {"1", 0, true}, // the rest of b may be missing
		"id: 1\ndata: a\n\nid: 2":             {"1", 0, false},
		"retry: x\nretry: 99999999999\n\n":    {},
		"id: 1\ndata: a\n\nid\ndata: b\n\n":   {"", 0, false}, // an empty id ends resumption
		"id: 1\ndata: a\n\nid:\n\n":           {"", 0, false},
		"id: 1\nid: \ndata: a\n\ndata: b\n\n": {"", 0, false},
		"id:\nid: 1\ndata: a\n\n":             {"1", 0, false},
		"id: 1\n\nid: \x00\ndata: a\n\n":      {"1", 0, false},
		"id: 1\n\nid:\ndata: a":               {"1", 0, true},
		"id: a\x00b\nretry: 7\ndata: a\n\n\n": {"", 7 * time.Millisecond, false},
	} {
		r := NewReader(strings.NewReader(in), 0)
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if r.LastEventID() != want.id || r.Retry() != want.retry || r.Cut() != want.cut {
			t.Errorf("%q: got %q, %v, %t, want %+v", in, r.LastEventID(), r.Retry(), r.Cut(), want)
		}
	}
}
