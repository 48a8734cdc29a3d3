package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

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
			return fmt.Sprintf("[%s %s]\n", b.Tool, clipLine(argumentsOf(b)))
		}
	case event.ToolResult:
		var text string
		if json.Unmarshal(b.Payload, &text) != nil {
			text = string(b.Payload) // not a string, so it is shown as JSON
		}
		return fmt.Sprintf("[%s: %s]\n", b.Tool, clipLine(text))
	case event.ToolError:
		return fmt.Sprintf("[%s failed: %s]\n", b.Tool, b.Kind)
	}
	return ""
}

// argumentsOf returns the call's arguments as JSON or, if they are not a JSON object, the text that the model wrote.
func argumentsOf(b event.ToolCall) string {
	if b.Args == nil {
		return b.ArgsText
	}
	return string(b.Args)
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
	if len(s) <= maxLine {
		return strings.ToValidUTF8(s, "")
	}
	cut := maxLine // or the start of the character that crosses it
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
