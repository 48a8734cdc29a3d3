// Package genai records a model's input and output as span attributes, as the OpenTelemetry conventions for generative
// AI define them. It is used only if the operator wants content in spans.
//
//	span.SetAttributes(genai.Input(request.Messages)...)
//	span.SetAttributes(genai.Output(text, calls, "stop"))
//
// Each attribute has at most MaxBytes bytes and is valid JSON. Long texts are cut, and only the newest messages of a
// long conversation are included. Files are named but not included. All functions may be called concurrently.
package genai

import (
	"encoding/json"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"answerd/internal/llm"
)

// MaxBytes is the largest size of an attribute, in bytes.
const MaxBytes = 16 << 10

const (
	maxText     = 8 << 10 // largest size of a text, in bytes; smaller if the attribute would become too long
	minText     = 256     // texts are not cut below this size, in bytes; older messages are left out instead
	maxMessages = 64      // number of newest messages to include
)

// message is a message as the conventions define it. Only answers have a FinishReason.
type message struct {
	Role         string `json:"role"`
	Parts        []part `json:"parts"`
	FinishReason string `json:"finish_reason,omitempty"`
}

// part is a part of a message. Its type is text, tool_call, tool_call_response or file.
type part struct {
	Type      string `json:"type"`
	Content   string `json:"content,omitempty"`
	ID        string `json:"id,omitempty"`
	Name      string `json:"name,omitempty"`
	Arguments any    `json:"arguments,omitempty"`
	Response  string `json:"response,omitempty"`
	MIMEType  string `json:"mime_type,omitempty"`
	Modality  string `json:"modality,omitempty"`
}

// Input returns the system instructions and the messages of a model request as attributes. It includes the newest
// maxMessages messages, and shortens texts until each attribute fits in MaxBytes (encodeBounded).
func Input(messages []llm.Message) []attribute.KeyValue {
	var out []attribute.KeyValue
	if len(messages) > 0 && messages[0].Role == llm.System {
		instructions := encodeBounded(1, func(_, limit int) any {
			return []part{{Type: "text", Content: truncateText(messages[0].Text, limit)}}
		})
		out = append(out, attribute.String("gen_ai.system_instructions", instructions))
		messages = messages[1:]
	}
	messages = messages[max(0, len(messages)-maxMessages):]
	input := encodeBounded(len(messages), func(from, limit int) any {
		list := make([]message, 0, len(messages)-from)
		for _, m := range messages[from:] {
			list = append(list, newMessage(m, limit))
		}
		return list
	})
	return append(out, attribute.String("gen_ai.input.messages", input))
}

// Output returns an answer of a model or an agent as an attribute.
func Output(text string, calls []llm.ToolCall, finishReason string) attribute.KeyValue {
	output := encodeBounded(1, func(_, limit int) any {
		m := newMessage(llm.Message{Role: llm.Assistant, Text: text, Calls: calls}, limit)
		m.FinishReason = finishReason
		return []message{m}
	})
	return attribute.String("gen_ai.output.messages", output)
}

// Arguments returns a tool call's arguments as an attribute.
func Arguments(args string) attribute.KeyValue {
	return attribute.String("gen_ai.tool.call.arguments", truncateText(args, MaxBytes))
}

// Result returns a tool call's result as an attribute.
func Result(result string) attribute.KeyValue {
	return attribute.String("gen_ai.tool.call.result", truncateText(result, MaxBytes))
}

// newMessage converts a message, and cuts its texts to limit bytes. Files keep their name and type, but not their
// content.
func newMessage(m llm.Message, limit int) message {
	out := message{Role: string(m.Role), Parts: []part{}}
	switch {
	case m.Role == llm.ToolRole:
		out.Parts = append(out.Parts, part{Type: "tool_call_response", ID: m.CallID, Response: truncateText(m.Text, limit)})
	case m.Text != "":
		out.Parts = append(out.Parts, part{Type: "text", Content: truncateText(m.Text, limit)})
	}
	for _, c := range m.Calls {
		out.Parts = append(out.Parts, part{Type: "tool_call", ID: c.ID, Name: c.Name, Arguments: argumentsValue(c.Arguments, limit)})
	}
	for _, file := range m.Media {
		modality, _, _ := strings.Cut(file.MIME, "/")
		out.Parts = append(out.Parts, part{Type: "file", Name: truncateText(file.Name, minText), MIMEType: file.MIME, Modality: modality})
	}
	return out
}

// argumentsValue returns a call's arguments as raw JSON. If they are not JSON, or longer than limit bytes, it returns
// their beginning as a string.
func argumentsValue(text string, limit int) any {
	if len(text) > limit || !json.Valid([]byte(text)) {
		return truncateText(text, limit)
	}
	return json.RawMessage(text)
}

// encodeBounded returns the JSON of n messages in at most MaxBytes. build(from, limit) must return the messages from
// index from on, with texts of at most limit bytes. encodeBounded first halves limit, down to minText, and then leaves
// out the older half of the messages, until the JSON fits. It returns an empty list if even a single message does not
// fit, because it has very many calls, or if the messages cannot be encoded.
func encodeBounded(n int, build func(from, limit int) any) string {
	from, limit := 0, maxText
	for {
		text, err := json.Marshal(build(from, limit))
		remaining := n - from
		switch {
		case err != nil:
			return "[]"
		case len(text) <= MaxBytes:
			return string(text)
		case limit > minText:
			limit /= 2
		case remaining > 1:
			from += (remaining + 1) / 2
		default:
			return "[]"
		}
	}
}

// truncateText cuts a text to at most limit bytes, and marks the cut with "…".
func truncateText(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(mark)], "") + mark
}
