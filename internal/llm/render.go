package llm

import (
	"encoding/json"
	"fmt"

	"answerd/internal/jsontext"
)

// A conversation is rendered by hand, into one buffer: it goes out anew with every turn, and
// is nearly all of a request. encoding/json takes twice as long for a result with a quote or
// a line feed in every 20 bytes, seven times as long for prose, and copies it twice more.

// size is about how long w will be as JSON, in bytes.
func (w *wireMessage) size() int {
	n := 96 + len(w.ToolCallID)
	if text, ok := w.Content.(string); ok {
		n += len(text) + len(text)/16
	}
	for _, c := range w.ToolCalls {
		n += len(c.ID) + len(c.Function.Name) + len(c.Function.Arguments)*5/4 + 96
	}
	return n
}

// append appends w as JSON.
func (w *wireMessage) append(b []byte) ([]byte, error) {
	b = jsontext.AppendString(append(b, `{"role":`...), string(w.Role))
	b = append(b, `,"content":`...)
	switch content := w.Content.(type) {
	case nil:
		b = append(b, "null"...)
	case string:
		b = jsontext.AppendString(b, content)
	default: // parts, of which the large ones are base64
		raw, err := json.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("encode a message: %w", err)
		}
		b = append(b, raw...)
	}
	for i, c := range w.ToolCalls {
		if i == 0 {
			b = append(b, `,"tool_calls":[`...)
		} else {
			b = append(b, ',')
		}
		b = jsontext.AppendString(append(b, `{"id":`...), c.ID)
		b = jsontext.AppendString(append(b, `,"type":`...), c.Type)
		b = jsontext.AppendString(append(b, `,"function":{"name":`...), c.Function.Name)
		b = append(jsontext.AppendString(append(b, `,"arguments":`...), c.Function.Arguments), "}}"...)
	}
	if len(w.ToolCalls) > 0 {
		b = append(b, ']')
	}
	if w.ToolCallID != "" {
		b = jsontext.AppendString(append(b, `,"tool_call_id":`...), w.ToolCallID)
	}
	return append(b, '}'), nil
}
