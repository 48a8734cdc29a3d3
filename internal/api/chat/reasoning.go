package chat

import (
	"fmt"
	"strings"

	"answerd/internal/event"
)

// maxLine is the length, in bytes, to which the reasoning shortens the arguments or the result of a tool call.
const maxLine = 300

// reasoningText returns what an event adds to reasoning_content: the model's reasoning, or a line about a call or a
// result of a tool that the server executes. It returns "" for other events.
func reasoningText(b event.Body) string {
	switch b := b.(type) {
	case event.ReasoningDelta:
		return b.Delta
	case event.ReasoningEnd:
		return "\n"
	case event.ToolCall:
		if b.Executor != event.Client {
			return fmt.Sprintf("[%s %s]\n", b.Tool, clipLine(b.Arguments()))
		}
	case event.ToolResult:
		return fmt.Sprintf("[%s: %s]\n", b.Tool, clipLine(b.Text()))
	case event.ToolError:
		return fmt.Sprintf("[%s failed: %s]\n", b.Tool, b.Kind)
	}
	return ""
}

// clipLine returns s as one line with single spaces. If that is longer than maxLine bytes, it is cut off there and ends
// with "…".
func clipLine(s string) string {
	// Shorten a result of megabytes before splitting it into fields. 4*maxLine bytes usually have maxLine bytes without
	// the extra spaces.
	if len(s) > 4*maxLine {
		s = s[:4*maxLine]
	}
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxLine {
		s = s[:maxLine] + "…"
	}
	return strings.ToValidUTF8(s, "") // a cut may have split a character
}
