package content

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"answerd/internal/compute"
	"answerd/internal/mcp/wire"
)

// TruncateOptions has the limits for Truncate. MaxBytes should be at least some kilobytes.
type TruncateOptions struct {
	MaxBytes  int    // size of payload, content and structured content together, without the notes
	MaxBinary int    // base64 characters per block
	URL       string // where the full result is; "" if it is not stored
}

// Truncated is a result of limited size. A note replaces each omitted part and names the URL of the full result, if
// there is one.
type Truncated struct {
	Payload    json.RawMessage
	Content    []json.RawMessage // never nil; each an MCP content block
	Structured json.RawMessage   // nil if there is none, or if it is too large and Payload has only its beginning
	Incomplete bool              // something is omitted
}

// Truncate returns r within the limits of opts. It replaces binary data of more than opts.MaxBinary by a link in any
// case. If the content is still too large, Truncate shortens the first block that does not fit, if that is text, and
// omits the blocks after it.
//
// The payload repeats the structured content or, without it, the content. opts.MaxBytes is therefore divided as
// follows. Without structured content, the content gets half of the bytes. Structured content of at most a third of the
// bytes is kept whole and counted twice, and the content gets the rest. Larger structured content is cut to a third and
// kept only in the payload, and the content gets another third.
func (r *Result) Truncate(opts TruncateOptions) Truncated {
	defer compute.Begin(r.Size())()
	structuredLimit := opts.MaxBytes / 3
	hasLargeStructured := len(r.Structured) > structuredLimit
	var contentLimit int
	switch {
	case r.Structured == nil:
		contentLimit = opts.MaxBytes / 2
	case hasLargeStructured:
		contentLimit = opts.MaxBytes / 3
	default:
		contentLimit = opts.MaxBytes - 2*len(r.Structured)
	}

	content, isCut := r.limitContent(opts, contentLimit)
	bounded := Truncated{Content: content, Structured: r.Structured, Incomplete: isCut || hasLargeStructured}
	if hasLargeStructured {
		bounded.Structured = nil
	}
	text, isText := r.textOnly()
	switch {
	case r.Structured != nil:
		bounded.Payload = TruncateValue(r.Structured, structuredLimit, opts.URL)
	case isText && !bounded.Incomplete:
		bounded.Payload = r.Payload()
	case isText:
		text, _ = TruncateText(text, contentLimit, opts.URL)
		bounded.Payload = wire.Quote(text)
	default:
		bounded.Payload = joinArray(bounded.Content)
	}
	return bounded
}

// limitContent returns the content blocks in at most limit bytes, not counting the notes. isCut says whether anything is
// omitted. Binary data of more than opts.MaxBinary is replaced by a link. The first block that does not fit is shortened
// if it is text and more than minTextShown bytes remain. All blocks after it are omitted.
func (r *Result) limitContent(opts TruncateOptions, limit int) (limited []json.RawMessage, isCut bool) {
	limited = make([]json.RawMessage, 0, len(r.Content))
	for i, block := range r.parsedBlocks() {
		raw := block.raw
		if blockType, mimeType, data := block.binaryData(); len(data) > opts.MaxBinary {
			raw = block.placeholderBlock(blockType, mimeType, decodedSize(data), opts.URL)
			isCut = true
		}
		if len(raw) <= limit {
			limited = append(limited, raw)
			limit -= len(raw)
			continue
		}
		omitted := len(r.Content) - i
		isText := block.Type == "text" || block.Resource.Text != nil
		if isText && limit > minTextShown {
			text, _ := TruncateText(block.placeholderText(), limit, opts.URL)
			limited = append(limited, TextBlock(text))
			omitted--
		}
		if omitted > 0 {
			note := fmt.Sprintf("[cut here: %d content blocks are left out%s]", omitted, fullResultNote(opts.URL))
			limited = append(limited, TextBlock(note))
		}
		return limited, true
	}
	return limited, isCut
}

// minTextShown is the number of remaining bytes below which the beginning of a text is not worth showing.
const minTextShown = 256

// placeholderBlock returns a content block that replaces b when its binary data is omitted: a link to the full result
// at url, or a text if url is "". size is the number of bytes of the decoded data.
func (b *contentBlock) placeholderBlock(blockType, mimeType string, size int, url string) json.RawMessage {
	mimeType = wire.Printable(mimeType, 100)
	if url == "" {
		return TextBlock(fmt.Sprintf("[%s %s, %d bytes, is left out]", blockType, mimeType, size))
	}
	name := blockType
	if blockType == "resource" {
		name = wire.Printable(b.Resource.URI, 500)
	}
	raw, _ := json.Marshal(map[string]any{ // cannot fail for strings and numbers
		"type": "resource_link", "uri": url, "name": name, "mimeType": mimeType, "size": size,
		"_meta": map[string]string{"answerd/stand-in": blockType},
	})
	return raw
}

// TextBlock returns a content block of type text.
func TextBlock(text string) json.RawMessage {
	return append(append([]byte(`{"type":"text","text":`), wire.Quote(text)...), '}')
}

// fullResultNote returns the last part of a note, which names the URL of the full result. It returns "" if url is "".
func fullResultNote(url string) string {
	if url == "" {
		return ""
	}
	return "; the whole result is at " + url
}

// TruncateText returns text unchanged if it takes at most limit bytes as a JSON string. Otherwise it returns the
// longest prefix of whole runes that does, followed by a note with the text's size and, unless url is "", the URL of
// the full text. limit does not include the note.
func TruncateText(text string, limit int, url string) (_ string, truncated bool) {
	shown := fittingPrefix(text, limit)
	if shown == len(text) {
		return text, false
	}
	return text[:shown] + fmt.Sprintf("\n[cut here: %d of %d bytes are shown%s]", shown, len(text), fullResultNote(url)), true
}

// TruncateValue returns value unchanged if it has at most limit bytes. Otherwise it returns a JSON string with the
// beginning of the value's JSON, or of its text if the value is a string, shortened as by TruncateText.
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

// fittingPrefix returns the length in bytes of the longest prefix of text, in whole runes, that takes at most limit
// bytes as a JSON string without quotes.
func fittingPrefix(text string, limit int) int {
	if len(text) <= limit/len(`\u0000`) {
		return len(text) // it fits even if each byte is a control character
	}
	for i, r := range text {
		limit -= quotedSize(r)
		if limit < 0 {
			return i
		}
	}
	return len(text)
}

// quotedSize returns the number of bytes of r in a JSON string.
func quotedSize(r rune) int {
	switch r {
	case '"', '\\', '\n', '\r', '\t', '\b', '\f':
		return len(`\n`)
	}
	if r < ' ' {
		return len(`\u0000`)
	}
	return utf8.RuneLen(r) // of U+FFFD for invalid UTF-8
}
