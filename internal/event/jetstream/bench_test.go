package jetstream_test

import (
	"fmt"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/jetstream"
	"answerd/internal/event/memory"
)

// logKinds are the logs that a benchmark compares in one run. url is nil for the log in memory.
var logKinds = []struct {
	name string
	url  func(b *testing.B) string
}{
	{"memory", nil},
	{"file", func(b *testing.B) string { return "file:" + b.TempDir() }},
	{"server", func(b *testing.B) string { return startCluster(b) }},
}

// benchEach runs a benchmark with an empty log of each kind. reopen closes that log and opens it
// again.
func benchEach(b *testing.B, bench func(b *testing.B, log event.Log, reopen func() event.Log)) {
	for _, p := range logKinds {
		b.Run(p.name, func(b *testing.B) {
			b.ReportAllocs()
			if p.url == nil {
				log := memory.New(memory.Options{})
				bench(b, log, func() event.Log { return log })
				return
			}
			o := jetstream.Options{URL: p.url(b)}
			log := openLog(b, o)
			bench(b, log, func() event.Log {
				if err := log.Close(); err != nil {
					b.Fatal(err)
				}
				return openLog(b, o)
			})
		})
	}
}

func createRun(b *testing.B, log event.Log, id string) {
	if err := log.Create(b.Context(), event.Run{ID: id, Created: time.Now()}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAppend appends events that are acknowledged one by one.
func BenchmarkAppend(b *testing.B) {
	benchEach(b, func(b *testing.B, log event.Log, _ func() event.Log) {
		createRun(b, log, "run_a")
		for b.Loop() {
			appendEvent(b, log, "run_a", event.StepStart{Step: 1})
		}
	})
}

// BenchmarkDelta appends deltas without a pause; durable logs join them.
func BenchmarkDelta(b *testing.B) {
	benchEach(b, func(b *testing.B, log event.Log, _ func() event.Log) {
		createRun(b, log, "run_a")
		for b.Loop() {
			appendEvent(b, log, "run_a", event.TextDelta{PartID: "text_1", Delta: "token "})
		}
	})
}

// BenchmarkReplay reads a run of 300 events from its start, among 50 others.
func BenchmarkReplay(b *testing.B) {
	benchEach(b, func(b *testing.B, log event.Log, reopen func() event.Log) {
		for i := range 50 {
			createRun(b, log, fmt.Sprintf("run_%d", i))
		}
		for step := range 300 {
			for i := range 50 {
				appendEvent(b, log, fmt.Sprintf("run_%d", i), event.StepStart{Step: step})
			}
		}
		log = reopen()
		for n := 0; b.Loop(); n++ {
			all, err := readUntil(b.Context(), log, fmt.Sprintf("run_%d", n%50), func(e event.Event) bool { return e.Seq == 300 })
			if err != nil {
				b.Fatalf("read %d events, want 300: %v", len(all), err)
			}
		}
	})
}

// BenchmarkShortRun creates a run and appends five events up to its end.
func BenchmarkShortRun(b *testing.B) {
	benchEach(b, func(b *testing.B, log event.Log, _ func() event.Log) {
		for n := 0; b.Loop(); n++ {
			id := fmt.Sprintf("run_%d", n)
			createRun(b, log, id)
			for _, e := range []event.Body{event.Start{}, event.StepStart{Step: 1}, event.TextStart{PartID: "p"}, event.StepEnd{Step: 1}, event.FinalAnswer{}} {
				appendEvent(b, log, id, e)
			}
		}
	})
}
