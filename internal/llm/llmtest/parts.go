package llmtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/llm"
)

// Collect returns all parts of an answer. If the answer fails, it returns the parts before the error, and the error.
func Collect(ctx context.Context, m llm.Model, r llm.Request) (parts []llm.Part, err error) {
	for p, err := range m.Stream(ctx, r) {
		if err != nil {
			return parts, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// FormatParts returns parts as text for comparison, one per line. It shows generated ids as "*".
func FormatParts(parts []llm.Part) string {
	var b strings.Builder
	formatID := func(id string) string {
		if strings.HasPrefix(id, "call_") && len(id) == len("call_")+26 {
			return "*"
		}
		return id
	}
	for _, p := range parts {
		switch p := p.(type) {
		case llm.Text:
			fmt.Fprintf(&b, "text %q\n", p.Delta)
		case llm.Reasoning:
			fmt.Fprintf(&b, "reasoning %q\n", p.Delta)
		case llm.ToolCallStart:
			fmt.Fprintf(&b, "start %d %s %s\n", p.Index, formatID(p.ID), p.Name)
		case llm.ToolCallArgs:
			fmt.Fprintf(&b, "args %d %s\n", p.Index, p.Delta)
		case llm.ToolCall:
			fmt.Fprintf(&b, "call %d %s %s %s\n", p.Index, formatID(p.ID), p.Name, p.Arguments)
		case llm.Extensions:
			fmt.Fprintf(&b, "extensions %s %s%s\n", p.Message, p.Calls, p.Content)
		case llm.Usage:
			fmt.Fprintf(&b, "usage %d %d %d\n", p.Input, p.Output, p.Total)
		case llm.Finish:
			fmt.Fprintf(&b, "finish %s %s\n", p.Reason, p.Model)
		default:
			fmt.Fprintf(&b, "%#v\n", p)
		}
	}
	return b.String()
}

// Lines joins lines to a text in the form that FormatParts returns.
func Lines(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

// RequireError returns err as an *llm.Error. It fails the test immediately unless err is an *llm.Error of that kind.
func RequireError(t testing.TB, err error, kind llm.Kind) *llm.Error {
	t.Helper()
	var e *llm.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("got error %v, want kind %s", err, kind)
	}
	return e
}

// CheckParts reports where the parts of a complete answer violate the rules of package llm. parts must not be empty.
func CheckParts(t testing.TB, parts []llm.Part) {
	t.Helper()
	started := map[int]llm.ToolCallStart{}
	args := map[int]string{}
	ids := map[string]bool{}
	calls := 0
	for i, p := range parts {
		switch p := p.(type) {
		case llm.Text:
			if p.Delta == "" || calls > 0 {
				t.Errorf("part %d: got text %q after %d complete calls, want text that is not empty before the first", i, p.Delta, calls)
			}
		case llm.ToolCallStart:
			if p.Index != len(started) || p.ID == "" || ids[p.ID] || p.Name == "" {
				t.Errorf("part %d: got %+v, want index %d, a name and an id of its own", i, p, len(started))
			}
			started[p.Index], ids[p.ID] = p, true
		case llm.ToolCallArgs:
			if _, ok := started[p.Index]; !ok || p.Delta == "" {
				t.Errorf("part %d: got %+v, want arguments of a call that has started", i, p)
			}
			args[p.Index] += p.Delta
		case llm.ToolCall:
			s := started[p.Index]
			if p.Index != calls || p.ID != s.ID || p.Name != s.Name || p.Arguments != args[p.Index] {
				t.Errorf("part %d: got %+v, want it as started, %+v, with %q", i, p, s, args[p.Index])
			}
			calls++
		case llm.Finish:
			if i != len(parts)-1 || calls != len(started) || p.Reason == "" {
				t.Errorf("part %d: got %+v after %d of %d calls, want it last with a reason", i, p, calls, len(started))
			}
		}
	}
	if _, ok := parts[len(parts)-1].(llm.Finish); !ok {
		t.Errorf("got %T as the last part, want a Finish", parts[len(parts)-1])
	}
}
