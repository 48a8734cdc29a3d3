package memory_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"answerd/internal/event"
	"answerd/internal/event/memory"
)

// BenchmarkAppend appends the deltas of runs of 1,000 events each to a log of 64 MiB at its bound, which
// drops runs as it does in production, while 0, 1 or 10 readers follow the run.
func BenchmarkAppend(b *testing.B) {
	for _, readers := range []int{0, 1, 10} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) { benchmarkAppend(b, readers) })
	}
}

func benchmarkAppend(b *testing.B, readers int) {
	log := memory.New(memory.Options{MaxBytes: 64 << 20})
	var body event.Body = event.TextDelta{PartID: "text_1", Delta: "token "}
	id := ""
	var following sync.WaitGroup
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%1000 == 0 {
			if id != "" {
				if _, err := log.Append(b.Context(), id, event.FinalAnswer{}); err != nil {
					b.Fatal(err)
				}
			}
			id = fmt.Sprintf("run_%d", n)
			if err := log.Create(b.Context(), event.Run{ID: id}); err != nil {
				b.Fatal(err)
			}
			run := id
			var begun sync.WaitGroup
			begun.Add(readers)
			for range readers {
				following.Go(func() { readUntilEnd(b, log, run, begun.Done) })
			}
			begun.Wait() // or the run is over before they are scheduled
		}
		if _, err := log.Append(b.Context(), id, body); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := log.Append(b.Context(), id, event.FinalAnswer{}); err != nil {
		b.Fatal(err)
	}
	following.Wait()
}

// readUntilEnd reads a run until it ends or is dropped, and calls begun after the first read.
func readUntilEnd(b *testing.B, log event.Log, id string, begun func()) {
	for pos := int64(0); ; {
		page, err := log.After(context.Background(), id, pos)
		if pos == 0 {
			begun()
			begun = func() {}
		}
		switch {
		case errors.Is(err, event.ErrGone), err == nil && page.Ended:
			return
		case err != nil:
			b.Error(err)
			return
		case len(page.Events) > 0:
			pos += int64(len(page.Events))
		default:
			<-page.More
		}
	}
}

// BenchmarkLargeResult appends the events that have a result of 100 kB of text.
func BenchmarkLargeResult(b *testing.B) {
	text, _ := json.Marshal(strings.Repeat("A line of a report that goes on for long.\n", 2381))
	block := json.RawMessage(`{"type":"text","text":` + string(text) + `}`)
	for name, body := range map[string]event.Body{
		"tool_result":  event.ToolResult{Args: json.RawMessage(`{}`), Payload: text, Content: []json.RawMessage{block}},
		"final_answer": event.FinalAnswer{Metadata: event.Metadata{ToolResults: []json.RawMessage{text}}},
	} {
		b.Run(name, func(b *testing.B) {
			log := memory.New(memory.Options{MaxBytes: 16 << 20})
			b.ReportAllocs()
			for b.Loop() {
				id := rand.Text()
				if err := log.Create(b.Context(), event.Run{ID: id}); err != nil {
					b.Fatal(err)
				}
				if _, err := log.Append(b.Context(), id, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
