package content

import (
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf8"

	"answerd/internal/compute"
	"answerd/internal/mcp/wire"
)

// TruncateOptions holds the bounds of Truncate. MaxBytes should be at least some kilobytes.
type TruncateOptions struct {
	MaxBytes  int    // of payload, content and structured content together, without the notes
	MaxBinary int    // characters of base64 per block
	URL       string // of the full result; "" if it is not stored
}

// Truncated is a result within a number of bytes. A note takes the place of each omission and
// names the URL of the full result.
type Truncated struct {
	Payload    json.RawMessage
	Content    []json.RawMessage // never nil; each an MCP content block
	Structured json.RawMessage   // nil if it is too large; then Payload has its beginning
	Incomplete bool              // something is omitted
}

// Truncate returns r within bounds. It replaces large binary blocks by links. If that is not
// enough, it truncates texts, and then it omits blocks from the end. The payload repeats the
// structured content or the content, so both get a share of the bytes.
func (r *Result) Truncate(opts TruncateOptions) Truncated {
	defer compute.Begin(r.Size())()
	content, isCut := r.truncateContent(opts, math.MaxInt)
	bounded := Truncated{Content: content, Structured: r.Structured, Incomplete: isCut}
	// share is what remains for the content. The structured content counts twice, once in the payload;
	// beyond a third of the bytes only its beginning stays, in the payload.
	share := opts.MaxBytes - 2*len(r.Structured)
	third := opts.MaxBytes / 3
	switch {
	case r.Structured == nil:
		share = opts.MaxBytes / 2
	case len(r.Structured) > third:
		share = third
		bounded.Structured = nil
		bounded.Incomplete = true
	}
	if totalSize(content) > share {
		bounded.Content, _ = r.truncateContent(opts, share)
		bounded.Incomplete = true
	}
	text, isOneText := r.textOnly()
	switch {
	case r.Structured != nil:
		bounded.Payload = TruncateValue(r.Structured, third, opts.URL)
	case isOneText && !bounded.Incomplete:
		bounded.Payload = r.Payload()
	case isOneText:
		text, _ = TruncateText(text, share, opts.URL)
		bounded.Payload = wire.Quote(text)
	default:
		bounded.Payload = joinArray(bounded.Content)
	}
	return bounded
}

// truncateContent returns the content blocks in at most limit bytes, not counting the notes. Binary blocks above
// opts.MaxBinary are replaced by links. The first block that does not fit is cut if it is text, and everything after
// it is omitted.
func (r *Result) truncateContent(opts TruncateOptions, limit int) (out []json.RawMessage, truncated bool) {
	out = make([]json.RawMessage, 0, len(r.Content))
	for i, block := range r.parsedBlocks() {
		raw := block.raw
		if kind, mimeType, data := block.binaryData(); len(data) > opts.MaxBinary {
			raw = block.placeholderBlock(kind, mimeType, decodedSize(data), opts.URL)
			truncated = true
		}
		if len(raw) <= limit {
			out = append(out, raw)
			limit -= len(raw)
			continue
		}
		omitted := len(r.Content) - i
		isText := block.Type == "text" || block.Resource.Text != nil
		if isText && limit > minTextShown {
			text, _ := TruncateText(block.placeholderText(), limit, opts.URL)
			out = append(out, TextBlock(text))
			omitted--
		}
		if omitted > 0 {
			out = append(out, TextBlock(fmt.Sprintf("[cut here: %d content blocks are left out%s]", omitted, fullResultNote(opts.URL))))
		}
		return out, true
	}
	return out, truncated
}

// minTextShown is the smallest space, in bytes, for which the beginning of a text is useful.
const minTextShown = 256

// placeholderBlock returns a content block in place of omitted binary data: a link to the full
// result at url, or a text if url is "".
func (b *contentBlock) placeholderBlock(kind, mimeType string, bytes int, url string) json.RawMessage {
	mimeType = wire.Printable(mimeType, 100)
	if url == "" {
		return TextBlock(fmt.Sprintf("[%s %s, %d bytes, is left out]", kind, mimeType, bytes))
	}
	name := kind
	if kind == "resource" {
		name = wire.Printable(b.Resource.URI, 500)
	}
	raw, _ := json.Marshal(map[string]any{ // cannot fail for strings and numbers
		"type": "resource_link", "uri": url, "name": name, "mimeType": mimeType, "size": bytes,
		"_meta": map[string]string{"answerd/stand-in": kind},
	})
	return raw
}

// TextBlock returns a content block of type text.
func TextBlock(text string) json.RawMessage {
	return append(append([]byte(`{"type":"text","text":`), wire.Quote(text)...), '}')
}

// fullResultNote returns the part of a note that names the URL of the full result, if it has one.
func fullResultNote(url string) string {
	if url == "" {
		return ""
	}
	return "; the whole result is at " + url
}

// TruncateText returns text unchanged if it takes at most limit bytes as a JSON string. Otherwise
// it returns the longest beginning that does, in whole runes, and a note with the size and the URL
// of the full text; url may be "".
func TruncateText(text string, limit int, url string) (_ string, truncated bool) {
	n := fittingPrefix(text, limit)
	if n == len(text) {
		return text, false
	}
	return text[:n] + fmt.Sprintf("\n[cut here: %d of %d bytes are shown%s]", n, len(text), fullResultNote(url)), true
}

// TruncateValue returns value unchanged if it has at most limit bytes. Otherwise it returns a JSON
// string with the value's text, or its JSON if it is not a string, truncated like TruncateText.
func TruncateValue(value json.RawMessage, limit int, url string) json.RawMessage {
	if len(value) <= limit {
		return value
	}
	var text string
	if json.Unmarshal(value, &text) != nil {
		text = string(value)
	}
	text, _ = TruncateText(text, limit, url)
	return wire.Quote(text)
}

// fittingPrefix returns the number of bytes of text, in whole runes, that take at most limit bytes
// as a JSON string. A control character takes six of them.
func fittingPrefix(text string, limit int) int {
	if len(text) <= limit/6 {
		return len(text)
	}
	for i := 0; i < len(text); {
		size, cost := 1, 1
		c := text[i]
		switch {
		case c >= utf8.RuneSelf:
			var r rune
			r, size = utf8.DecodeRuneInString(text[i:])
			cost = utf8.RuneLen(r) // invalid UTF-8 becomes U+FFFD
		case c == '"', c == '\\', c == '\n', c == '\r', c == '\t', c == '\b', c == '\f':
			cost = len(`\n`)
		case c < ' ':
			cost = len(`\u0000`)
		}
		limit -= cost
		if limit < 0 {
			return i
		}
		i += size
	}
	return len(text)
}
