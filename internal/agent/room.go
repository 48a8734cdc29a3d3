package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// harder is the share of what a provider refused as too long that is sent instead.
const harder = 0.6

// makeRoom brings the conversation within the model's window before a request is made,
// so that none is made in vain.
func (l *loop) makeRoom(ctx context.Context, tools []llm.Tool) error {
	before, after, limit := l.squeeze(tools)
	if l.window.size == 0 || before <= limit {
		return nil
	}
	if err := l.tellRoom(ctx, before, limit); err != nil {
		return err
	}
	l.agent.Logger.LogAttrs(ctx, slog.LevelDebug, "conversation trimmed to the model's window",
		slog.String("run_id", l.run.ID), slog.Int("step", l.step+1), slog.Int64("tokens_before", before), slog.Int64("tokens", after), slog.Int64("limit", limit))
	if after > limit && !l.window.guessed {
		return &llm.Error{Kind: llm.TooLarge, Public: "The question, and what belongs to it, does not fit the model's context window.",
			Err: fmt.Errorf("some %d tokens where %d are possible", after, limit)}
	}
	return nil
}

// squeeze shortens the conversation where it is beyond its limit, and returns what it
// weighed before and weighs now.
func (l *loop) squeeze(tools []llm.Tool) (before, after, limit int64) {
	c := l.conversation(tools)
	l.window.sent = l.window.plain(c)
	before, limit = l.window.weigh(c), l.window.limit()
	if l.window.size == 0 || before <= limit {
		return before, before, limit
	}
	after = l.window.fit(c, limit)
	l.messages, l.history = c.messages, c.history
	l.window.sent = l.window.plain(c)
	return before, after, limit
}

// tellRoom tells readers, once, that the model no longer sees everything.
func (l *loop) tellRoom(ctx context.Context, used, limit int64) error {
	if l.window.told {
		return nil
	}
	l.window.told = true
	return l.run.out.Append(ctx, event.Budget{Limit: "context_tokens", Used: float64(used), Max: float64(max(limit, 1))})
}

// retryShorter reports whether a request that a provider refused as too long is worth
// another try, for which it has shortened the conversation. Where the size of the window
// was not known, it is from now on.
func (l *loop) retryShorter(ctx context.Context, refused error, tools []llm.Tool) (bool, error) {
	var e *llm.Error
	if !errors.As(refused, &e) || e.Kind != llm.TooLarge {
		return false, nil
	}
	c := l.conversation(tools)
	before := l.window.weigh(c)
	l.window.refused(before)
	before = l.window.weigh(c) // by what was learnt
	limit := int64(float64(before) * harder)
	if l.window.fit(c, limit) == before {
		return false, nil
	}
	l.messages, l.history = c.messages, c.history
	l.window.sent = l.window.plain(c)
	return true, l.tellRoom(ctx, before, l.window.limit())
}

func (l *loop) conversation(tools []llm.Tool) *conversation {
	return &conversation{runID: l.run.ID, messages: l.messages, history: l.history, given: l.given, tools: tools}
}
