package sse

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestFrameIsWrittenWithLineFeedsOnly(t *testing.T) {
	for name, c := range map[string]struct {
		frame Frame
		want  string
	}{
		"all fields":       {Frame{"r:1", "start", []byte(`{"a":1}`)}, "id: r:1\nevent: start\ndata: {\"a\":1}\n\n"},
		"data only":        {Frame{Data: []byte("x")}, "data: x\n\n"},
		"no data":          {Frame{ID: "r:2"}, "id: r:2\ndata: \n\n"},
		"line feeds":       {Frame{Data: []byte("a\nb\n")}, "data: a\ndata: b\ndata: \n\n"},
		"carriage returns": {Frame{Data: []byte("a\rb\r\nc\r")}, "data: a\ndata: b\ndata: c\ndata: \n\n"},
		"leading space":    {Frame{ID: " r", Data: []byte(" x")}, "id:  r\ndata:  x\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := string(c.frame.AppendTo([]byte("^"))); got != "^"+c.want {
				t.Errorf("got %q, want %q", got, "^"+c.want)
			}
		})
	}
}

// The attack: a line ending inside an id or event name makes the rest of it a field,
// or an event, of its own (h3 GHSA-4hxc-9384-m385, Hono GHSA-p6xx-57qc-3wxr).
func TestIDAndEventCannotInjectFields(t *testing.T) {
	for _, evil := range []string{
		"a\ndata: evil", "a\r\n\r\nevent: evil", "a\rdata: evil", "a\x00b", "\xff\xfea", "\n", "\r", "\x00",
	} {
		wire := Frame{ID: evil, Event: evil, Data: []byte("good")}.AppendTo(nil)
		r := NewReader(bytes.NewReader(wire), 0)
		f, err := r.Next()
		if err != nil || string(f.Data) != "good" {
			t.Errorf("%q: got %q, %v, want good and no error", evil, f.Data, err)
		}
		if strings.ContainsAny(f.ID+f.Event, "\r\n\x00\ufffd") {
			t.Errorf("%q came through as %q, %q, want no line ends and controls", evil, f.ID, f.Event)
		}
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("%q made a second event: %v, want io.EOF", evil, err)
		}
	}
}

// Two line feeds after a comment reach fetch-event-source and sse.js as an empty message.
func TestCommentEndsInExactlyOneLineFeed(t *testing.T) {
	for text, want := range map[string]string{
		"ping": ": ping\n", "": ": \n", "a\r\nb\n\n": ": ab\n", "\xffx\x00": ": x\n",
	} {
		if got := string(AppendComment(nil, text)); got != want {
			t.Errorf("AppendComment(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestCommentsBetweenFramesAreSilent(t *testing.T) {
	b := AppendComment(nil, "ping")
	b = Frame{Data: []byte("1")}.AppendTo(b)
	b = AppendComment(b, "ping")
	b = AppendComment(b, "ping")
	b = Frame{Data: []byte("2")}.AppendTo(b)
	r := NewReader(bytes.NewReader(b), 0)
	for _, want := range []string{"1", "2"} {
		if f, err := r.Next(); err != nil || string(f.Data) != want {
			t.Fatalf("got %q, %v, want %q", f.Data, err, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Fatalf("error %v, want io.EOF", err)
	}
}

// FuzzRoundTrip: whatever stands in a frame, exactly one event comes back, with its
// data's line endings as LF.
func FuzzRoundTrip(f *testing.F) {
	f.Add("run_1:1", "start", []byte(`{"type":"start"}`), 1)
	f.Add("a\ndata: x", "\r\n\r\n", []byte("a\rb\r\nc\n\n"), 3)
	f.Add(" ", ":", []byte(": \xff\x00"), 2)
	f.Fuzz(func(t *testing.T, id, event string, data []byte, step int) {
		in := Frame{ID: id, Event: event, Data: data}
		wire := in.AppendTo(nil)
		r := NewReader(slowReader{bytes.NewReader(wire), step}, len(wire)+1)
		got, err := r.Next()
		if err != nil {
			t.Fatalf("%q: %v", wire, err)
		}
		want := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data))
		if string(got.Data) != want {
			t.Errorf("data %q came back as %q, want %q", data, got.Data, want)
		}
		if got.ID != string(appendClean(nil, id)) || got.Event != string(appendClean(nil, event)) {
			t.Errorf("id %q, event %q came back as %q, %q, want %q, %q", id, event, got.ID, got.Event, appendClean(nil, id), appendClean(nil, event))
		}
		if f, err := r.Next(); err != io.EOF {
			t.Errorf("a second event: %v, %v, want io.EOF", f, err)
		}
	})
}

func BenchmarkAppendTo(b *testing.B) {
	f := Frame{ID: "run_0123456789:42", Event: "text_delta",
		Data: []byte(`{"type":"text_delta","run_id":"run_0123456789","seq":42,"ts":1764000000000,"part_id":"p1","delta":" word"}`)}
	buf := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		buf = f.AppendTo(buf[:0])
	}
	b.SetBytes(int64(len(buf)))
}
