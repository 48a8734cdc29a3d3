package mcp

import (
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf8"

	"answerd/internal/mcp/wire"
)

// BriefOptions bound a Brief.
type BriefOptions struct {
	Max    int    // bytes of payload, content and structured content together, but for notes
	Binary int    // characters of base64 that one block may have
	Where  string // where the whole result is; "" if it is nowhere
}

// Brief is a result in a bounded number of bytes. What is left out is named where it
// was, with the place of the whole.
type Brief struct {
	Payload    json.RawMessage
	Content    []json.RawMessage // never nil; each an MCP content block
	Structured json.RawMessage   // nil where it was too large: Payload has its beginning
	Cut        bool              // something is left out
}

// Brief is r within bounds: first, large binary blocks become links; if that is not
// enough, texts are cut, and then blocks left out.
func (r *Result) Brief(o BriefOptions) Brief {
	content, cut := r.briefContent(o, math.MaxInt)
	b := Brief{Content: content, Structured: r.Structured, Cut: cut}
	// The payload says again what one of the others says.
	share := o.Max - 2*len(r.Structured)
	if r.Structured == nil {
		share = o.Max / 2
	} else if third := o.Max / 3; len(r.Structured) > third {
		share, b.Structured, b.Cut = third, nil, true
	}
	if size(content) > share {
		b.Content, _ = r.briefContent(o, share)
		b.Cut = true
	}
	switch text, ok := r.onlyText(); {
	case r.Structured != nil:
		b.Payload = CutValue(r.Structured, o.Max/3, o.Where)
	case ok:
		if !b.Cut {
			b.Payload = r.Payload()
			break
		}
		text, _ = CutText(text, share, o.Where)
		b.Payload = wire.Quote(text)
	default:
		b.Payload = join(b.Content)
	}
	return b
}

// briefContent is the content blocks in at most limit bytes, but for notes.
func (r *Result) briefContent(o BriefOptions, limit int) (out []json.RawMessage, cut bool) {
	out = make([]json.RawMessage, 0, len(r.Content))
	for i, b := range r.parse() {
		raw := b.raw
		if kind, mimeType, data := b.binary(); len(data) > o.Binary {
			raw, cut = b.standIn(kind, mimeType, base64Size(data), o.Where), true
		}
		switch {
		case len(raw) <= limit:
			out, limit = append(out, raw), limit-len(raw)
			continue
		case (b.Type == "text" || b.Resource.Text != nil) && limit > minShown:
			text, _ := CutText(b.render(), limit, o.Where)
			out = append(out, textBlock(text))
			i++
		}
		if left := len(r.Content) - i; left > 0 {
			out = append(out, textBlock(fmt.Sprintf("[cut here: %d content blocks are left out%s]", left, whole(o.Where))))
		}
		return out, true
	}
	return out, cut
}

// minShown is how much room, in bytes, is worth filling with the beginning of a text.
const minShown = 256

// standIn is a content block that says what is left out, and where it is.
func (b *block) standIn(kind, mimeType string, bytes int, where string) json.RawMessage {
	mimeType = wire.Printable(mimeType, 100)
	if where == "" {
		return textBlock(fmt.Sprintf("[%s %s, %d bytes, is left out]", kind, mimeType, bytes))
	}
	name := kind
	if kind == "resource" {
		name = wire.Printable(b.Resource.URI, 500)
	}
	raw, _ := json.Marshal(map[string]any{ // strings and numbers always marshal
		"type": "resource_link", "uri": where, "name": name, "mimeType": mimeType, "size": bytes,
		"_meta": map[string]string{"answerd/stand-in": kind},
	})
	return raw
}

func textBlock(text string) json.RawMessage {
	return append(append([]byte(`{"type":"text","text":`), wire.Quote(text)...), '}')
}

func size(values []json.RawMessage) (n int) {
	for _, v := range values {
		n += len(v)
	}
	return n
}

func whole(where string) string {
	if where == "" {
		return ""
	}
	return "; the whole result is at " + where
}

// CutText is text if it takes at most limit bytes within a JSON string. Else it is the
// beginning that does, in whole runes, with a note of how much that is and where the
// whole is.
func CutText(text string, limit int, where string) (_ string, cut bool) {
	n := fits(text, limit)
	if n == len(text) {
		return text, false
	}
	return text[:n] + fmt.Sprintf("\n[cut here: %d of %d bytes are shown%s]", n, len(text), whole(where)), true
}

// CutValue is value if it has at most limit bytes, and else a string with its beginning:
// that of the text, if it is a string itself, and of its JSON otherwise.
func CutValue(value json.RawMessage, limit int, where string) json.RawMessage {
	if len(value) <= limit {
		return value
	}
	var text string
	if json.Unmarshal(value, &text) != nil {
		text = string(value)
	}
	text, _ = CutText(text, limit, where)
	return wire.Quote(text)
}

// fits returns how many bytes of text, in whole runes, take at most limit bytes within a JSON
// string. A text of control characters grows sixfold there.
func fits(text string, limit int) int {
	if len(text) <= limit/6 {
		return len(text)
	}
	for i := 0; i < len(text); {
		size, cost := 1, 1
		switch c := text[i]; {
		case c >= utf8.RuneSelf:
			var r rune
			r, size = utf8.DecodeRuneInString(text[i:])
			cost = utf8.RuneLen(r) // what is not UTF-8 becomes U+FFFD
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f':
			cost = 2
		case c < ' ':
			cost = len(`\u0000`)
		}
		if limit -= cost; limit < 0 {
			return i
		}
		i += size
	}
	return len(text)
}
