package mcp

import (
	"encoding/json"
	"strings"
	"testing"
)

// BenchmarkLargeResult is the way of a result of 100 kB of text within this room and out
// of it, to the model and to the event.
func BenchmarkLargeResult(b *testing.B) {
	text, _ := json.Marshal(strings.Repeat("A line of a report that goes on for long.\n", 2381))
	raw := json.RawMessage(`{"content":[{"type":"text","text":` + string(text) + `}]}`)
	for name, step := range map[string]func(*Result){
		"decode":  func(*Result) {},
		"text":    func(r *Result) { _ = r.Text() },
		"brief":   func(r *Result) { r.Brief(BriefOptions{Max: 256 << 10, Binary: 64 << 10}) },
		"payload": func(r *Result) { r.Payload() },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				r, f := decodeResult(raw)
				if f != nil {
					b.Fatal(f)
				}
				step(r)
			}
		})
	}
}
