package jetstream_test

import (
	"fmt"
	"sync"
	"testing"

	"answerd/internal/event"
	"answerd/internal/event/jetstream"
	"answerd/internal/event/memory"
)

// benchThreads runs a benchmark with logs that have 10 and 1,000 threads of an owner with 100 turns each
// of 2 KiB.
func benchThreads(b *testing.B, bench func(b *testing.B, log event.Log)) {
	for _, p := range logKinds {
		b.Run(p.name, func(b *testing.B) {
			for _, threads := range []int{10, 1000} {
				var log event.Log
				if p.url == nil {
					log = memory.New(memory.Options{MaxBytes: 2 << 30})
				} else {
					log = openLog(b, jetstream.Options{URL: p.url(b), MaxBytes: 2 << 30})
				}
				var all sync.WaitGroup
				for worker := range 8 {
					all.Go(func() {
						for i := worker; i < threads; i += 8 {
							for n := range 100 {
								addTurn(b, log, ada, fmt.Sprint("thr_", i), fmt.Sprintf("run_%d_%d", i, n), make([]byte, 2<<10))
							}
						}
					})
				}
				all.Wait()
				b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
					b.ReportAllocs()
					bench(b, log)
				})
			}
		})
	}
}

// BenchmarkListThreads lists the newest 50 threads, or all 10.
func BenchmarkListThreads(b *testing.B) {
	benchThreads(b, func(b *testing.B, log event.Log) {
		for b.Loop() {
			page, err := log.ListThreads(b.Context(), event.ThreadFilter{Owner: ada, Limit: 50})
			if err != nil || len(page.Threads) < 10 {
				b.Fatalf("ListThreads = %d threads, %v, want 10 or 50", len(page.Threads), err)
			}
		}
	})
}

// BenchmarkContinueThread begins a turn of the thread that was updated longest ago, reads its last 20
// turns and ends the turn.
func BenchmarkContinueThread(b *testing.B) {
	benchThreads(b, func(b *testing.B, log event.Log) {
		for n := 0; b.Loop(); n++ {
			run := fmt.Sprint("run_", b.N, "_", n)
			beginTurn(b, log, ada, "thr_0", run)
			page, err := log.Turns(b.Context(), ada, "thr_0", 0, 20, 1<<20)
			if err != nil || len(page.Turns) != 20 {
				b.Fatalf("Turns = %d turns, %v, want 20", len(page.Turns), err)
			}
			if err := log.EndTurn(b.Context(), ada, "thr_0", run, make([]byte, 2<<10)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
