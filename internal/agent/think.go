package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// reply is what the model said in one step.
type reply struct {
	text   string
	calls  []*call
	usage  event.Usage
	finish string
}

// asked is the reply's calls as the conversation keeps them.
func (r reply) asked() []llm.ToolCall {
	out := make([]llm.ToolCall, len(r.calls))
	for i, c := range r.calls {
		out[i] = llm.ToolCall{Index: i, ID: c.CallID, Name: c.Tool, Arguments: c.written()}
	}
	return out
}

// maxToolName bounds the name of a call, in bytes; tools have 64 at most.
const maxToolName = 128

// speaker turns the parts of one model answer into events.
type speaker struct {
	*loop
	reply
	last      bool // no tool may be called any more
	usageSeen bool
	part      event.Body // the closer of the open text or reasoning part; nil when none is open
	partID    string
	byIndex   map[int]*call
}

// think makes one model call and appends what it says as it says it. A conversation that
// the model cannot take is shortened first, and once more if its provider finds so.
func (l *loop) think(ctx context.Context, turn int, last bool) (reply, error) {
	tools := l.offers(last)
	if s := l.past.step(l.step + 1); s != nil {
		return l.recall(s, tools), nil
	}
	if err := l.makeRoom(ctx, tools); err != nil {
		return reply{}, err
	}
	l.step++
	l.said.Reset()
	s := &speaker{loop: l, last: last, byIndex: make(map[int]*call)}
	if err := l.beginStep(ctx); err != nil {
		return reply{}, err
	}
	parts := l.parts
	err := s.listen(ctx, turn)
	if err != nil && l.parts == parts && len(s.calls) == 0 {
		again, failed := l.retryShorter(ctx, err, tools)
		switch {
		case failed != nil:
			return reply{}, failed
		case again:
			err = s.listen(ctx, turn)
		}
	}
	if err != nil {
		return reply{}, err
	}
	if s.finish == "" {
		// The contract of llm.Model is broken; never take that for an answer.
		return reply{}, fmt.Errorf("the model's stream ended without a finish")
	}
	s.text = l.said.String()
	if s.finish == "tool_calls" && len(s.calls) == 0 {
		s.finish = "stop" // the text dialect of some models; nobody is left to call
	}
	if err := s.closePart(ctx); err != nil {
		return reply{}, err
	}
	end := event.StepEnd{Step: l.step, FinishReason: s.finish}
	if s.usageSeen {
		end.Usage = &s.usage
	}
	return s.reply, l.run.out.Append(ctx, end)
}

// listen appends one answer of the model's, part by part.
func (s *speaker) listen(ctx context.Context, turn int) error {
	for part, err := range s.agent.Model.Stream(ctx, s.request(turn, s.last)) {
		if err == nil {
			err = s.say(ctx, part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// say appends one part of the model's answer.
func (s *speaker) say(ctx context.Context, p llm.Part) error {
	switch p := p.(type) {
	case llm.Text:
		s.said.WriteString(p.Delta)
		return s.delta(ctx, "text", p.Delta)
	case llm.Reasoning:
		return s.delta(ctx, "reasoning", p.Delta)
	case llm.ToolCallStart:
		return s.callStart(ctx, p.Index, p.ID, p.Name)
	case llm.ToolCallArgs:
		if c := s.byIndex[p.Index]; c != nil {
			return s.run.out.Append(ctx, event.ToolCallArgs{Call: c.Call, Delta: p.Delta})
		}
	case llm.ToolCall:
		return s.callComplete(ctx, p)
	case llm.Usage:
		s.usageSeen = true
		s.usage = event.Usage{InputTokens: p.Input, OutputTokens: p.Output, TotalTokens: p.Total}
		s.meta.Usage.InputTokens += p.Input
		s.meta.Usage.OutputTokens += p.Output
		s.meta.Usage.TotalTokens += p.Total
	case llm.Finish:
		s.finish = p.Reason
		if p.Model != "" {
			s.meta.Model = p.Model
		}
	}
	return nil
}

// delta appends a piece of text or reasoning, opening its part where needed.
func (s *speaker) delta(ctx context.Context, kind, delta string) error {
	if !strings.HasPrefix(s.partID, kind) {
		if err := s.openPart(ctx, kind); err != nil {
			return err
		}
	}
	if kind == "text" {
		return s.run.out.Append(ctx, event.TextDelta{PartID: s.partID, Delta: delta})
	}
	return s.run.out.Append(ctx, event.ReasoningDelta{PartID: s.partID, Delta: delta})
}

func (s *speaker) openPart(ctx context.Context, kind string) error {
	if err := s.closePart(ctx); err != nil {
		return err
	}
	s.firstWord(ctx)
	s.parts++
	s.partID = fmt.Sprintf("%s_%d", kind, s.parts)
	if kind == "text" {
		s.part = event.TextEnd{PartID: s.partID}
		return s.run.out.Append(ctx, event.TextStart{PartID: s.partID})
	}
	s.part = event.ReasoningEnd{PartID: s.partID}
	return s.run.out.Append(ctx, event.ReasoningStart{PartID: s.partID})
}

func (s *speaker) closePart(ctx context.Context) error {
	if s.part == nil {
		return nil
	}
	end := s.part
	s.part, s.partID = nil, ""
	return s.run.out.Append(ctx, end)
}

func (s *speaker) callStart(ctx context.Context, index int, id, name string) error {
	if err := s.closePart(ctx); err != nil {
		return err
	}
	s.firstWord(ctx)
	// No tool has a longer name; what a model makes up beyond that is not repeated.
	name = name[:min(len(name), maxToolName)]
	c := &call{Call: event.Call{CallID: s.uniqueID(id), Tool: name, Server: s.tools[name].Server}}
	c.client = !s.last && s.isClient(name)
	s.byIndex[index] = c
	s.calls = append(s.calls, c)
	return s.run.out.Append(ctx, event.ToolCallStart{Call: c.Call, NeedsApproval: s.tools[name].NeedsApproval, Executor: c.executor()})
}

func (s *speaker) callComplete(ctx context.Context, p llm.ToolCall) error {
	if s.byIndex[p.Index] == nil {
		if err := s.callStart(ctx, p.Index, p.ID, p.Name); err != nil {
			return err
		}
	}
	c := s.byIndex[p.Index]
	c.parse(p.Arguments)
	return s.run.out.Append(ctx, event.ToolCall{Call: c.Call, Args: c.args, ArgsText: c.argsText, Executor: c.executor()})
}

// uniqueID is the provider's call id, or one made from it if an earlier step used
// it: some providers count their calls anew in every answer.
func (l *loop) uniqueID(id string) string {
	unique := id
	for n := 2; l.callIDs[unique] || unique == ""; n++ {
		unique = fmt.Sprintf("%s_%d", id, n)
	}
	l.callIDs[unique] = true
	return unique
}

// firstWord measures how long the caller waited for anything but the start event.
func (s *speaker) firstWord(ctx context.Context) {
	if s.step == 1 && s.parts == 0 && len(s.calls) == 0 {
		s.agent.metrics.firstEvent.Record(ctx, time.Since(s.started).Seconds())
	}
}
