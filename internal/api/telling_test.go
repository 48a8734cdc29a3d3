package api

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/api/agui"
	"answerd/internal/api/aisdk"
	"answerd/internal/api/responses"
	"answerd/internal/api/scenario"
	"answerd/internal/event"
	"answerd/internal/sse"
)

// counted is an encoder that counts what goes through it and its like, and panics over what
// it is told to.
type counted struct {
	encoder
	encoded map[int64]int
	bad     func(event.Event) bool
}

func (c counted) Encode(e event.Event) []sse.Frame {
	c.encoded[e.Seq]++
	frames := c.encoder.Encode(e) // a panic may come late
	if c.bad != nil && c.bad(e) {
		panic("no words for it")
	}
	return frames
}

// room is a run, and those who read it.
type room struct {
	tellings
	log     *event.Memory
	events  []event.Event
	alone   []string // what a lone reader is told of each
	encoded map[int64]int
	bad     func(event.Event) bool
}

// newRoom is a run of so many events of some 1 kB, and more.
func newRoom(t *testing.T, events int, more ...event.Body) *room {
	t.Helper()
	bodies := []event.Body{event.Start{}, event.StepStart{Step: 1}, event.TextStart{PartID: "p"}}
	for n := len(bodies); n < events; n++ {
		bodies = append(bodies, event.TextDelta{PartID: "p", Delta: fmt.Sprintf("%d%s", n, strings.Repeat(".", 1<<10))})
	}
	bodies = append(bodies, more...)
	r := &room{log: event.NewMemory(event.MemoryOptions{}), encoded: make(map[int64]int)}
	r.events = logged(t, r.log, "run_a", bodies)
	r.alone = alone(func() encoder { return responses.NewEncoder(r.header()) }, r.events, true)
	return r
}

// logged are the events that bodies become in a run of the log.
func logged(t *testing.T, log *event.Memory, run string, bodies []event.Body) (events []event.Event) {
	t.Helper()
	if err := log.Create(t.Context(), event.Run{ID: run}); err != nil {
		t.Fatal(err)
	}
	for n, body := range bodies {
		if _, err := log.Append(t.Context(), run, body); err != nil {
			t.Fatal(err)
		}
		page, err := log.After(t.Context(), run, int64(n))
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, page.Events...)
	}
	return events
}

func (r *room) header() responses.Header { return responses.Header{ID: "resp_a", Model: "m"} }

// enter is one reader more.
func (r *room) enter(t *testing.T) (l *listener, leave func()) {
	told, leave := r.join(r.header(), func() encoder { return counted{responses.NewEncoder(r.header()), r.encoded, r.bad} })
	return &listener{telling: told, log: r.log, ctx: t.Context(), run: "run_a"}, leave
}

// hears holds what a reader is told of some events to what a lone one is.
func (r *room) hears(t *testing.T, l *listener, from, to int) {
	t.Helper()
	for n, e := range r.events[from:to] {
		if got := l.append([]byte("^"), e); string(got) != "^"+r.alone[from+n] {
			t.Fatalf("event %d is told as %.200s, want %.200s", e.Seq, got, r.alone[from+n])
		}
	}
}

// times is how often events, counted from 0, were encoded; -1 if not all alike.
func (r *room) times(from, to int) int {
	n := r.encoded[int64(from+1)]
	for _, e := range r.events[from:to] {
		if r.encoded[e.Seq] != n {
			return -1
		}
	}
	return n
}

func TestAnEventIsEncodedOnceForReadersThatStandTogether(t *testing.T) {
	r := newRoom(t, 100)
	readers := make([]*listener, 20)
	for i := range readers {
		readers[i], _ = r.enter(t)
	}
	for n := range r.events {
		for i := range readers { // another one is the first each time
			r.hears(t, readers[(i+n)%len(readers)], n, n+1)
		}
	}
	if n := r.times(0, 100); n != 1 {
		t.Errorf("encoded %d times: %v", n, r.encoded)
	}
	for i, l := range readers {
		if l.own != nil {
			t.Errorf("reader %d has an encoder of its own", i)
		}
	}
}

func TestWhoComesLateEncodesOnlyWhatWasBefore(t *testing.T) {
	r := newRoom(t, 200)
	first, _ := r.enter(t)
	r.hears(t, first, 0, 100)
	late, _ := r.enter(t)
	r.hears(t, late, 0, 99) // one behind
	for n := 100; n < 200; n++ {
		r.hears(t, first, n, n+1)
		r.hears(t, late, n-1, n)
	}
	if before, since := r.times(0, 100), r.times(100, 200); before != 2 || since != 1 {
		t.Errorf("encoded %d and %d times", before, since)
	}
}

// Left behind by more than is kept, again and again: that costs at most what it would alone.
func TestAReaderThatIsLeftBehindEncodesForItselfOnce(t *testing.T) {
	r := newRoom(t, 1000)
	fast, _ := r.enter(t)
	slow, _ := r.enter(t)
	for n := 0; n < 1000; n += 200 {
		r.hears(t, fast, n, n+200)
		if len(fast.said) > maxSaid || fast.size > maxWrite {
			t.Errorf("%d events of %d bytes are kept", len(fast.said), fast.size)
		}
		r.hears(t, slow, n, n+200)
	}
	for seq, n := range r.encoded {
		if n > 2 {
			t.Fatalf("event %d was encoded %d times", seq, n)
		}
	}
	if n := r.encoded[1000]; n != 1 {
		t.Error("it does not stand with the other at the end")
	}
}

func TestALargeEventIsEncodedOnceToo(t *testing.T) {
	r := newRoom(t, 10, event.TextDelta{Delta: strings.Repeat("x", 10*maxWrite)})
	one, _ := r.enter(t)
	other, _ := r.enter(t)
	r.hears(t, one, 0, 10)
	r.hears(t, other, 0, 10)
	r.hears(t, one, 10, 11)
	r.hears(t, other, 10, 11)
	if n := r.times(0, 11); n != 1 {
		t.Errorf("encoded %d times", n)
	}
}

func TestNothingIsKeptForALoneReaderNorAfterTheLast(t *testing.T) {
	r := newRoom(t, 100)
	one, leaves := r.enter(t)
	r.hears(t, one, 0, 50)
	if one.said != nil {
		t.Error("for a lone reader there is a copy")
	}
	other, otherLeaves := r.enter(t)
	r.hears(t, one, 50, 60)
	if len(one.said) != 10 || other.telling != one.telling {
		t.Errorf("%d events are kept for two", len(one.said))
	}
	otherLeaves()
	r.hears(t, one, 60, 61)
	if one.said != nil || one.size != 0 {
		t.Error("for a reader that is alone again there is a copy")
	}
	if leaves(); len(r.all) != 0 {
		t.Error("it is there without readers")
	}
	if again, _ := r.enter(t); again.telling == one.telling {
		t.Error("who comes then finds the old one")
	}
}

// Whatever the encoder was made of tells apart: one more field is one more difference.
func TestReadersOfDifferentHeadersShareNothing(t *testing.T) {
	echo := responses.Echo{Metadata: map[string]string{"k": "v"}}
	var ts tellings
	seen := make(map[*telling]any)
	for _, head := range []any{
		responses.Header{ID: "resp_a"}, responses.Header{ID: "resp_b"}, responses.Header{ID: "resp_a", Skip: 1}, responses.Header{ID: "resp_a", Created: time.Unix(1, 0)},
		responses.Header{ID: "resp_a", Model: "m"}, responses.Header{ID: "resp_a", Previous: "p"}, responses.Header{ID: "resp_a", Echo: echo},
		responses.Header{ID: "resp_a", Lists: []responses.List{{Server: "s"}}}, responses.Header{ID: "resp_a", Span: responses.Span{After: 1}}, responses.Header{ID: "resp_a", Span: responses.Span{Until: 1}},
		aisdk.Header{}, aisdk.Header{MessageID: "m"}, aisdk.Header{RunID: "r"}, aisdk.Header{ThreadID: "m"}, aisdk.Header{After: 1}, aisdk.Header{NoApprovals: true},
		aisdk.Header{Outputs: map[string]json.RawMessage{"i": json.RawMessage("1")}}, aisdk.Header{Outputs: map[string]json.RawMessage{"i": json.RawMessage("2")}},
		agui.Header{}, agui.Header{Thread: "t"}, agui.Header{Run: "t"}, agui.Header{Key: "t"}, agui.Header{V1: true}, agui.Header{After: 1},
		struct { // another face's
			Thread, Run, Key string
			V1               bool
			After            int64
		}{},
		aisdk.Header{Outputs: map[string]json.RawMessage{"i": json.RawMessage("{")}}, aisdk.Header{Outputs: map[string]json.RawMessage{"j": json.RawMessage("{")}}, // no JSON
	} {
		told, _ := ts.join(head, nil)
		if other, ok := seen[told]; ok {
			t.Errorf("%+v is told with %+v", head, other)
		}
		seen[told] = head
	}
	one, _ := ts.join(responses.Header{ID: "resp_a", Echo: echo}, nil)
	if _, ok := seen[one]; !ok {
		t.Error("the same header shares nothing")
	}
}

// A panic is one request's: others neither wait for ever nor get what went half through.
func TestAPanicOfAnEncoderIsOneReadersOnly(t *testing.T) {
	r := newRoom(t, 50)
	once := false
	r.bad = func(e event.Event) bool {
		first := !once && e.Seq == 20
		once = once || first
		return first
	}
	readers := make([]*listener, 3)
	for i := range readers {
		readers[i], _ = r.enter(t)
		r.hears(t, readers[i], 0, 19)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("nothing panicked")
			}
		}()
		readers[0].append(nil, r.events[19])
	}()
	if !readers[1].mu.TryLock() {
		t.Fatal("the others wait for ever")
	}
	readers[1].mu.Unlock()
	r.hears(t, readers[1], 19, 50)
	r.hears(t, readers[2], 19, 50)
}

// What has gone by for the shared encoder may not have for the reader.
func TestAnExpiredTokenIsToldAtTheReadersOwnPlace(t *testing.T) {
	r := newRoom(t, 50)
	fast, _ := r.enter(t)
	slow, _ := r.enter(t)
	want := func(n int) string {
		enc := responses.NewEncoder(r.header())
		for _, e := range r.events[:n] {
			enc.Encode(e)
		}
		return string(enc.TokenExpired()[0].Data)
	}
	r.hears(t, slow, 0, 10)
	r.hears(t, fast, 0, 30)
	for place, l := range map[int]*listener{10: slow, 30: fast} {
		if got := string(l.expired("run_a", int64(place))[0].Data); got != want(place) {
			t.Errorf("after %d: %s, want %s", place, got, want(place))
		}
	}
	r.hears(t, fast, 30, 50)
	r.hears(t, slow, 10, 50)
	if fresh, _ := r.enter(t); string(fresh.expired("run_a", 0)[0].Data) != want(0) {
		t.Error("who has read nothing is told otherwise")
	}
}

// Where what a reader would need again is no longer kept, its stream is cut.
func TestAReaderThatCannotCatchUpIsCut(t *testing.T) {
	r := newRoom(t, 300)
	fast, _ := r.enter(t)
	slow, _ := r.enter(t)
	r.hears(t, fast, 0, 300)
	slow.run = "run_none"
	defer func() {
		if v := recover(); v != http.ErrAbortHandler {
			t.Errorf("%v", v)
		}
	}()
	slow.append(nil, r.events[100])
}

// alone is what a lone reader is told of each event. Where seesAll is not set, who goes on
// behind a suspended event has an encoder that did not see it.
func alone(begin func() encoder, events []event.Event, seesAll bool) (told []string) {
	enc := begin()
	for n, e := range events {
		this := enc
		if _, waits := e.Body.(event.Suspended); waits && !seesAll {
			this = begin()
			for _, before := range events[:n] {
				if _, waits := before.Body.(event.Suspended); !waits {
					this.Encode(before)
				}
			}
		}
		told = append(told, string(appendFrames(nil, this.Encode(e))))
	}
	return told
}

// Twelve readers of everything that can happen in a run, in each face and for each of its
// stretches, at the same time and each at its own pace.
func TestReadersAreToldWhatALoneOneIs(t *testing.T) {
	for _, s := range scenario.All(t) {
		var bodies []event.Body
		for _, e := range s.Events {
			bodies = append(bodies, e.Body)
		}
		log := event.NewMemory(event.MemoryOptions{})
		events := logged(t, log, scenario.RunID, bodies)
		for _, part := range s.Stretches() {
			ui := aisdk.Header{MessageID: "msg_1", RunID: scenario.RunID, ThreadID: scenario.ThreadID, After: part.After}
			ag := agui.Header{Thread: "t", Run: "r", Key: scenario.RunID, V1: part.After%2 == 0, After: part.After}
			span := responses.Span{After: part.After}
			re := responses.Header{ID: responses.ID(scenario.RunID, span), Span: span}
			for name, face := range map[string]struct {
				header any
				begin  func() encoder
			}{
				"aisdk":     {ui, func() encoder { return aisdk.NewEncoder(ui) }},
				"agui":      {ag, func() encoder { return agui.NewEncoder(ag) }},
				"responses": {re, func() encoder { return responses.NewEncoder(re) }},
			} {
				want := alone(face.begin, events, name == "responses")
				var ts tellings
				var all sync.WaitGroup
				for i := range uint64(12) {
					all.Go(func() {
						told, leave := ts.join(face.header, face.begin)
						defer leave()
						pace := rand.New(rand.NewPCG(i, uint64(len(events))))
						l := &listener{telling: told, log: log, ctx: context.Background(), run: scenario.RunID}
						for n, e := range events {
							got := string(l.append(nil, e))
							if got != want[n] {
								t.Errorf("%s after %d, %s: event %d is told as %s, want %s", s.Name, part.After, name, e.Seq, got, want[n])
							}
							if pace.IntN(100) == 0 {
								return
							}
						}
					})
				}
				all.Wait()
				if len(ts.all) != 0 {
					t.Errorf("%s, %s: it is there without readers", s.Name, name)
				}
			}
		}
	}
}
