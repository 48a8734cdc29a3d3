package api_test

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
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
				tools, err := mcp.New(nil, mcp.Options{Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				log := event.NewMemory(event.MemoryOptions{})
				a, err := agent.New(agent.Options{Model: wordy{}, Tools: tools, Log: log, DefaultModel: "wordy"})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					tools.Close()
					a.Drain(context.Background())
				})
				h := api.New(api.Options{Agent: a, Log: log})
				t.Cleanup(func() { h.Close(context.Background()) })
				resp := askOver(t, overPipes(t, h), "POST", ask.path, ask.body, ask.header...)
				began, got := time.Now(), 0
				for part := make([]byte, 16<<10); err == nil; {
					var n int
					n, err = io.ReadFull(resp.Body, part)
					got += n
					<-time.After(time.Second)
				}
				if took := time.Since(began); got < 1<<20 || took < time.Minute {
					t.Errorf("%d, %d bytes in %s: %v", resp.StatusCode, got, took, err)
				}
			})
		})
	}
}
