package jetstream_test

import (
	"fmt"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/jetstream"
	"answerd/internal/event/memory"
)

// places are where a log can be; a benchmark compares them in one run.
var places = []struct {
	name string
	url  func(b *testing.B) string
}{
	{"memory", nil},
	{"file", func(b *testing.B) string { return "file:" + b.TempDir() }},
	{"server", func(b *testing.B) string { return cluster(b) }},
}

// inEach runs a benchmark with an empty log in each place, and what opens that log anew.
func inEach(b *testing.B, bench func(b *testing.B, log event.Log, again func() event.Log)) {
	for _, p := range places {
		b.Run(p.name, func(b *testing.B) {
			b.ReportAllocs()
			if p.url == nil {
				log := memory.New(memory.Options{})
				bench(b, log, func() event.Log { return log })
				return
			}
			o := jetstream.Options{URL: p.url(b)}
			log := open(b, o)
			bench(b, log, func() event.Log {
				if err := log.Close(); err != nil {
					b.Fatal(err)
				}
				return open(b, o)
			})
		})
	}
}

func create(b *testing.B, log event.Log, id string) {
	if err := log.Create(b.Context(), event.Run{ID: id, Created: time.Now()}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAppend appends events that are acknowledged one by one.
func BenchmarkAppend(b *testing.B) {
	inEach(b, func(b *testing.B, log event.Log, _ func() event.Log) {
		create(b, log, "run_a")
		for b.Loop() {
			add(b, log, "run_a", event.StepStart{Step: 1})
		}
	})
}

// BenchmarkDelta appends deltas as fast as they are taken; durable logs join them.
func BenchmarkDelta(b *testing.B) {
	inEach(b, func(b *testing.B, log event.Log, _ func() event.Log) {
		create(b, log, "run_a")
		for b.Loop() {
			add(b, log, "run_a", event.TextDelta{PartID: "text_1", Delta: "token "})
		}
	})
}

// BenchmarkReplay reads a run of 300 events from its start, among 50 others.
func BenchmarkReplay(b *testing.B) {
	inEach(b, func(b *testing.B, log event.Log, again func() event.Log) {
		for i := range 50 {
			create(b, log, fmt.Sprintf("run_%d", i))
		}
		for step := range 300 {
			for i := range 50 {
				add(b, log, fmt.Sprintf("run_%d", i), event.StepStart{Step: step})
			}
		}
		log = again()
		for n := 0; b.Loop(); n++ {
			all, err := read(b.Context(), log, fmt.Sprintf("run_%d", n%50), func(e event.Event) bool { return e.Seq == 300 })
			if err != nil {
				b.Fatal(len(all), err)
			}
		}
	})
}

// BenchmarkShortRun is a run of five events from its creation to its end.
func BenchmarkShortRun(b *testing.B) {
	inEach(b, func(b *testing.B, log event.Log, _ func() event.Log) {
		for n := 0; b.Loop(); n++ {
			id := fmt.Sprintf("run_%d", n)
			create(b, log, id)
			for _, e := range []event.Body{event.Start{}, event.StepStart{Step: 1}, event.TextStart{PartID: "p"}, event.StepEnd{Step: 1}, event.FinalAnswer{}} {
				add(b, log, id, e)
			}
		}
	})
}
