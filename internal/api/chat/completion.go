package chat

import (
	"strings"

	"answerd/internal/event"
)

// Collector gathers the events of one run into its completion.
type Collector struct {
	head      Header
	reasoning strings.Builder
	calls     []call
	end       event.FinalAnswer
	acted     bool
}

// NewCollector returns a collector that has seen no event.
func NewCollector(h Header) *Collector { return &Collector{head: h} }

// Add takes the next event of the run.
func (c *Collector) Add(e event.Event) {
	c.reasoning.WriteString(reasoningText(e.Body))
	switch b := e.Body.(type) {
	case event.ToolCall:
		c.acted = c.acted || b.Executor != event.Client
		if b.Executor == event.Client {
			c.calls = append(c.calls, call{ID: b.CallID, Type: "function", Function: function{b.Tool, argumentsOf(b)}})
		}
	case event.FinalAnswer:
		c.end = b
	}
}

// CalledTools reports whether the run made calls, so that to repeat it would make them twice.
func (c *Collector) CalledTools() bool { return c.acted }

// Completion returns the body of the response, once the run has its final answer. Its
// content is that answer: what was said on the way to it only streams.
func (c *Collector) Completion() any {
	m := message{Role: "assistant", Content: &c.end.Answer, Reasoning: c.reasoning.String(), ToolCalls: c.calls}
	if len(c.calls) > 0 && c.end.Answer == "" {
		m.Content = nil
	}
	return completion{
		ID: completionID(c.head), Object: "chat.completion", Created: c.head.Created.Unix(), Model: c.head.Model,
		Choices: []completionChoice{{Message: m, FinishReason: finishReason(c.end.FinishReason)}},
		Usage:   wireUsage(c.end.Metadata.Usage),
	}
}
