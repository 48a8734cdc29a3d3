package llm

import (
	"encoding/json"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// A conversation goes out anew with every turn and is nearly all of a request. So it is
// appended to one buffer; encoding/json would copy it twice more.

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
	b = appendQuoted(append(b, `{"role":`...), string(w.Role))
	b = append(b, `,"content":`...)
	switch content := w.Content.(type) {
	case nil:
		b = append(b, "null"...)
	case string:
		b = appendQuoted(b, content)
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
		b = appendQuoted(append(b, `{"id":`...), c.ID)
		b = appendQuoted(append(b, `,"type":`...), c.Type)
		b = appendQuoted(append(b, `,"function":{"name":`...), c.Function.Name)
		b = append(appendQuoted(append(b, `,"arguments":`...), c.Function.Arguments), "}}"...)
	}
	if len(w.ToolCalls) > 0 {
		b = append(b, ']')
	}
	if w.ToolCallID != "" {
		b = appendQuoted(append(b, `,"tool_call_id":`...), w.ToolCallID)
	}
	return append(b, '}'), nil
}

// appendQuoted appends s as a JSON string. What is not UTF-8 becomes U+FFFD, which is all
// that AppendQuote has an error for.
func appendQuoted(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// asWritten accepts all that is JSON by its grammar: names that come twice and what is not
// UTF-8 are no reason to change or to refuse what a server or a model wrote.
var asWritten = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
