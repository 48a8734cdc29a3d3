package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"answerd/internal/event"
)

// maxLine bounds the arguments or the result of a tool call in a line of the reasoning, in bytes.
const maxLine = 300

// reasoningText returns the text that an event adds to reasoning_content: the model's reasoning, and a line for each call
// and each result of a tool that the server executes. It returns "" for any other event.
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

// argumentsOf returns the arguments of a call as JSON, or as the text that the model wrote if that is not a JSON object.
func argumentsOf(b event.ToolCall) string {
	if b.Args == nil {
		return b.ArgsText
	}
	return string(b.Args)
}

// clipLine returns s as one line, with single spaces, cut off after maxLine bytes and with "…" if it is longer.
func clipLine(s string) string {
	// Cut a result of megabytes before it is split into fields. After that, 4*maxLine bytes usually have maxLine left.
	if len(s) > 4*maxLine {
		s = s[:4*maxLine]
	}
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= maxLine {
		return strings.ToValidUTF8(s, "")
	}
	cut := maxLine // or the begin of the character that crosses it
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
