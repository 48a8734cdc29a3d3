package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"

	"answerd/internal/api/aisdk"
	"answerd/internal/event"
	"answerd/internal/event/memory"
)

// countingWriter is a connection that counts what is written to it, and keeps nothing.
type countingWriter struct {
	http.ResponseWriter
	writes *sync.WaitGroup
}

func (c countingWriter) Write(b []byte) (int, error) {
	c.writes.Done()
	return len(b), nil
}

func (countingWriter) WriteHeader(int) {}

func (countingWriter) Flush() {}

// The cost of one single event for each reader of the run, in one API format.
func BenchmarkReaders(b *testing.B) {
	for _, face := range []struct{ name, path, record string }{
		{"aisdk", "/api/chat/c/stream", string(aisdk.StoredRequest{}.Encode())},
		{"responses", "/v1/responses/resp_a?stream=true", `{"face":"responses","model":"m"}`},
	} {
		for _, readers := range []int{1, 10, 100} {
			b.Run(fmt.Sprintf("%s-%d", face.name, readers), func(b *testing.B) {
				log := memory.New(memory.Options{MaxBytes: 1 << 40})
				if err := log.Create(b.Context(), event.Run{ID: "run_a", ThreadID: "c", Request: []byte(face.record)}); err != nil {
					b.Fatal(err)
				}

				var writes, all sync.WaitGroup
				appendAll := func(bodies ...event.Body) {
					writes.Add(readers)
					for _, body := range bodies {
						if _, err := log.Append(b.Context(), "run_a", body); err != nil {
							b.Fatal(err)
						}
					}
				}

				h := newHandlerOver(b, log)
				ctx, leave := context.WithCancel(b.Context())
				defer leave()
				appendAll(event.Start{}, event.StepStart{Step: 1}, event.TextStart{PartID: "p"})

				for range readers {
					all.Go(func() {
						h.ServeHTTP(countingWriter{httptest.NewRecorder(), &writes}, httptest.NewRequestWithContext(ctx, "GET", face.path, nil))
					})
				}

				writes.Wait()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)

				for b.ResetTimer(); b.Loop(); writes.Wait() {
					appendAll(event.TextDelta{PartID: "p", Delta: " word"})
				}

				runtime.ReadMemStats(&after)
				each := float64(b.N * readers)
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/each, "ns/reader")
				b.ReportMetric(float64(after.Mallocs-before.Mallocs)/each, "allocs/reader")
				leave()
				all.Wait()
			})
		}
	}
}
