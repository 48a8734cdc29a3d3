package llm

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"unicode/utf8"
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
	b = appendString(append(b, `{"role":`...), string(w.Role))
	b = append(b, `,"content":`...)
	switch content := w.Content.(type) {
	case nil:
		b = append(b, "null"...)
	case string:
		b = appendString(b, content)
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
		b = appendString(append(b, `{"id":`...), c.ID)
		b = appendString(append(b, `,"type":`...), c.Type)
		b = appendString(append(b, `,"function":{"name":`...), c.Function.Name)
		b = append(appendString(append(b, `,"arguments":`...), c.Function.Arguments), "}}"...)
	}
	if len(w.ToolCalls) > 0 {
		b = append(b, ']')
	}
	if w.ToolCallID != "" {
		b = appendString(append(b, `,"tool_call_id":`...), w.ToolCallID)
	}
	return append(b, '}'), nil
}

// appendString appends s as a JSON string, as encoding/json does without escaping HTML.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0 // s[from:i] is yet to be copied as it is
	for i := plainLen(s); i < len(s); i += plainLen(s[i:]) {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r != '\u2028' && r != '\u2029' && (r != utf8.RuneError || n > 1) {
				i += n
				continue
			}
			b = append(append(b, s[from:i]...), '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
			i += n
			from = i
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// plainLen is how many bytes at the start of s stand in a JSON string as they are, and are
// ASCII. It looks at eight at a time.
func plainLen(s string) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(s); i += 8 {
		e := s[i : i+8]
		w := uint64(e[0]) | uint64(e[1])<<8 | uint64(e[2])<<16 | uint64(e[3])<<24 |
			uint64(e[4])<<32 | uint64(e[5])<<40 | uint64(e[6])<<48 | uint64(e[7])<<56
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// The high bit of the first byte that is below a space, one of the two, or no ASCII
		// is set; of those behind it, that says nothing.
		if hit := (w | (w - ones*' ') | (quote - ones) | (slash - ones)) & highs; hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for ; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			break
		}
	}
	return i
}
