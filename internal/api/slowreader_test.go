package api_test

import (
	"context"
	"iter"
	"strings"
	"testing"
	"testing/synctest"

	"answerd/internal/agent"
	"answerd/internal/event"
	"answerd/internal/llm"
)

// wordy is a model that says a mebibyte.
type wordy struct{}

func (wordy) Stream(context.Context, llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		for range 16 {
			if !yield(llm.Text{Delta: strings.Repeat("x", 64<<10)}, nil) {
				return
			}
		}
		yield(llm.Finish{Reason: "stop"}, nil)
	}
}

// Slow is not stalled: whatever is large goes in pieces, each with its time, to whoever
// asks. As a stream: TestASlowReaderGetsALargeEventWhole.
func TestASlowReaderGetsALargeAnswerWhole(t *testing.T) {
	for name, ask := range map[string]struct {
		path, body string
		header     []string
	}{
		"native": {"/answer", question, nil},
		"an MCP host": {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + callOf(question, "") + `}`, []string{
			"Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := apiOf(t, agent.Options{Model: wordy{}, Log: event.NewMemory(event.MemoryOptions{}), DefaultModel: "wordy"})
				takeSlowly(t, askOver(t, overPipes(t, h), "POST", ask.path, ask.body, ask.header...).Body)
			})
		})
	}
}
