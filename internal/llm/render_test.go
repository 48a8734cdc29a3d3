package llm

import (
	"strings"
	"testing"
)

func BenchmarkLongConversation(b *testing.B) {
	const line = "A line of a result that a tool found somewhere, \"quoted\" once.\n"
	r := Request{Model: "m", Messages: []Message{{Role: User, Text: "Hi"}, {Role: ToolRole, CallID: "1", Text: strings.Repeat(line, 100_000/len(line))}}}
	var cache toolCache
	b.ReportAllocs()
	for b.Loop() {
		if _, err := requestBody(&r, &cache); err != nil {
			b.Fatal(err)
		}
	}
}
