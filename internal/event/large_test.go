package event_test

import (
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"

	"answerd/internal/event"
)

// BenchmarkLargeResult appends the events that have a result of 100 kB of text.
func BenchmarkLargeResult(b *testing.B) {
	text, _ := json.Marshal(strings.Repeat("A line of a report that goes on for long.\n", 2381))
	block := json.RawMessage(`{"type":"text","text":` + string(text) + `}`)
	for name, body := range map[string]event.Body{
		"tool_result":  event.ToolResult{Args: json.RawMessage(`{}`), Payload: text, Content: []json.RawMessage{block}},
		"final_answer": event.FinalAnswer{Metadata: event.Metadata{ToolResults: []json.RawMessage{text}}},
	} {
		b.Run(name, func(b *testing.B) {
			log := event.NewMemory(event.MemoryOptions{MaxBytes: 16 << 20})
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
