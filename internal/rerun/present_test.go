package rerun_test

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"

	"answerd/internal/export"
	"answerd/internal/rerun"
)

// comparePrompts returns the lines about two system prompts, and how many bytes the comparison allocated.
func comparePrompts(was, is string) (lines []string, bytes uint64) {
	doc := &export.Document{SystemPrompt: &export.Prompt{Text: was, SHA256: export.Digest([]byte(was))}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	lines = rerun.Compare(doc, rerun.Present{Prompt: &export.Template{Template: is, Timezone: "UTC"}})
	runtime.ReadMemStats(&after)
	return lines, after.TotalAlloc - before.TotalAlloc
}

func TestCompareNamesTheLinesOfAPromptThatDiffer(t *testing.T) {
	lines, _ := comparePrompts("a\nb\nc\nd", "a\nx\nc\nd\ne")
	if got, want := strings.Join(lines, "\n"), "system prompt - b\nsystem prompt + x\nsystem prompt + e"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An export comes from somebody else: its prompt may have any number of lines.
func TestCompareOfLongPromptsIsBounded(t *testing.T) {
	text := func(mark string, lines int) string {
		return "first\n" + strings.Repeat(mark+"\n", lines) + "last"
	}
	lines, bytes := comparePrompts(text("a", 6000), text("b", 6000))
	if bytes > 64<<20 || len(lines) != 12000 || lines[0] != "system prompt - a" || lines[11999] != "system prompt + b" {
		t.Errorf("got %d lines for %d bytes, want all 12000 lines for at most 64 MiB", len(lines), bytes)
	}
	if lines, bytes = comparePrompts(text("a", 20_000), text("a", 20_000)+"\nmore"); bytes > 64<<20 || strings.Join(lines, "\n") != "system prompt + more" {
		t.Errorf("got %d lines for %d bytes, want one line for at most 64 MiB", len(lines), bytes)
	}
}

// A member's name may have the characters that a JSON pointer escapes (RFC 6901, section 3).
func TestDifferenceEscapesNamesInItsPointer(t *testing.T) {
	doc := &export.Document{Settings: export.Settings{Agent: json.RawMessage(`{"a/b":{"c~d":1}}`)}}
	got := rerun.Compare(doc, rerun.Present{Agent: json.RawMessage(`{"a/b":{"c~d":2}}`)})
	want := []string{"the agent's definition /a~1b/c~0d: was 1, is 2"}
	if !slices.Equal(got, want) {
		t.Errorf("Compare = %q, want %q", got, want)
	}
}
