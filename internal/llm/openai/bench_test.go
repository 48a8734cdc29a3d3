package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// tokenChunk is a chunk as OpenAI's own endpoint sends it.
const tokenChunk = `{"id":"chatcmpl-BxQ2mS0m3l","object":"chat.completion.chunk","created":1764000000,"model":"m-1","service_tier":"default","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"aB3"}`

func BenchmarkChunk(b *testing.B) {
	callChunk := deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":"}}]}`)
	a := &assembler{yield: func(llm.Part) bool { return true }, calls: callSet{{hasIndex: true, name: "f"}}}
	for name, chunk := range map[string]string{
		"token":   tokenChunk,
		"escaped": deltaChunk(`{"content":"a \"quoted\" word\n\u00e9"}`),
		"call":    callChunk,
		"usage":   usageChunk,
	} {
		b.Run(name, func(b *testing.B) {
			data := []byte(chunk)
			b.ReportAllocs()
			for b.Loop() {
				a.answerBytes = 0
				if chunk == callChunk {
					a.calls[0].arguments = nil
				}
				if err := a.decodeChunk(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func answerStream(tokens int) string {
	return strings.Repeat("data: "+tokenChunk+"\n\n", tokens) + eventStream(stopChunk, usageChunk, "[DONE]")
}

// BenchmarkAnswer is one answer of 64 tokens over loopback HTTP, server included.
func BenchmarkAnswer(b *testing.B) {
	wire := []byte(answerStream(64))
	_, m := newEndpoint(b, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(wire)
	})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := llmtest.Collect(b.Context(), m, testRequest); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRequestBody(b *testing.B) {
	for _, n := range []int{0, 10, 100, 1000} {
		b.Run(fmt.Sprintf("%d tools", n), func(b *testing.B) {
			r := llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.System, Text: strings.Repeat("s", 2000)}, {Role: llm.User, Text: "Hi"}}, Tools: newTools(n)}
			var cache toolCache
			b.ReportAllocs()
			for b.Loop() {
				if _, err := encodeRequest(&r, &cache, "", dialect{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkToolBlock is what a request costs whose tools are not those of another
// before: each tool is kept, the block is not. "new" is with tools never seen.
func BenchmarkToolBlock(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		tools := newTools(n)
		b.Run(fmt.Sprintf("%d tools/kept", n), func(b *testing.B) {
			var cache toolCache
			b.ReportAllocs()
			for b.Loop() {
				cache.blocks = [len(cache.blocks)]atomic.Pointer[toolBlock]{}
				if _, err := cache.renderTools(tools); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("%d tools/new", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var cache toolCache
				if _, err := cache.renderTools(tools); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func newTools(n int) []llm.Tool {
	tools := make([]llm.Tool, n)
	for i := range tools {
		tools[i] = llm.Tool{Name: fmt.Sprintf("tool_%d", i), Description: "Does something useful.",
			Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string","description":"The city"},"days":{"type":"integer"}},"required":["city"]}`)}
	}
	return tools
}

func BenchmarkLongConversation(b *testing.B) {
	const line = "A line of a result that a tool found somewhere, \"quoted\" once.\n"
	r := llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Text: "Hi"}, {Role: llm.ToolRole, CallID: "1", Text: strings.Repeat(line, 100_000/len(line))}}}
	var cache toolCache
	b.ReportAllocs()
	for b.Loop() {
		if _, err := encodeRequest(&r, &cache, "", dialect{}); err != nil {
			b.Fatal(err)
		}
	}
}
