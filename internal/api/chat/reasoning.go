package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"answerd/internal/event"
)

// maxLine bounds the text that one event of a tool call adds to the reasoning, in bytes.
const maxLine = 300

// reasoningText returns what an event adds to reasoning_content: the model's reasoning, and a line
// for each call and result of a tool that the server executes; "" for other events.
func reasoningText(b event.Body) string {
	switch b := b.(type) {
	case event.ReasoningDelta:
		return b.Delta
	case event.ReasoningEnd:
		return "\n"
	case event.ToolCall:
		if b.Executor != event.Client {
			return fmt.Sprintf("[%s %s]\n", b.Tool, clipLine(argumentsOf(b)))
		}
	case event.ToolResult:
		text := string(b.Payload)
		var s string
		if json.Unmarshal(b.Payload, &s) == nil {
			text = s
		}
		return fmt.Sprintf("[%s: %s]\n", b.Tool, clipLine(text))
	case event.ToolError:
		return fmt.Sprintf("[%s failed: %s]\n", b.Tool, b.Kind)
	}
	return ""
}

// argumentsOf returns the arguments of a call as the model wrote them.
func argumentsOf(b event.ToolCall) string {
	if b.Args == nil {
		return b.ArgsText
	}
	return string(b.Args)
}

// clipLine returns s on one line of at most maxLine bytes, and "…" if it was longer.
func clipLine(s string) string {
	if len(s) > 4*maxLine { // so that a result of megabytes is not split into fields
		s = s[:4*maxLine]
	}
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= maxLine {
		return strings.ToValidUTF8(s, "")
	}
	cut := maxLine
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
