package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
)

// block is what we need of a content block. Type is "" where it cannot be read.
type block struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	MIME     string `json:"mimeType"`
	Data     string `json:"data"`
	URI      string `json:"uri"`
	Name     string `json:"name"`
	Size     int64  `json:"size"`
	Resource struct {
		URI  string  `json:"uri"`
		MIME string  `json:"mimeType"`
		Text *string `json:"text"`
		Blob string  `json:"blob"`
	} `json:"resource"`

	raw      json.RawMessage
	textJSON json.RawMessage // Text as it was written
}

// parsed is Content, looked into once.
func (r *Result) parsed() []block {
	if len(r.blocks) != len(r.Content) {
		r.blocks = make([]block, len(r.Content))
		for i, raw := range r.Content {
			r.blocks[i] = parseBlock(raw)
		}
	}
	return r.blocks
}

// parseBlock reads a block that is a valid object. Texts, pictures and sounds may be
// large; all other blocks are read the plain way.
func parseBlock(raw json.RawMessage) block {
	var kind, text, mimeType, data json.RawMessage
	err := members(raw, func(name string, value json.RawMessage) {
		switch name {
		case "type":
			kind = value
		case "text":
			text = value
		case "mimeType":
			mimeType = value
		case "data":
			data = value
		}
	})
	b := block{raw: raw}
	name, read := textOf(kind)
	read = read && err == nil
	switch name {
	case "text":
		b.textJSON = text
		if b.Text, read = textOf(text); b.Text == "" {
			b.textJSON = json.RawMessage(`""`)
		}
	case "image", "audio":
		var ok bool
		b.MIME, ok = textOf(mimeType)
		b.Data, read = textOf(data)
		read = read && ok
	default:
		read = read && json.Unmarshal(raw, &b) == nil
	}
	b.Type = name // not what encoding/json takes for it, such as "TYPE"
	if !read {
		return block{raw: raw}
	}
	return b
}

// render is the block for a reader of text.
func (b *block) render() string {
	switch b.Type {
	case "text":
		return b.Text
	case "image", "audio":
		return fmt.Sprintf("[%s %s, %d bytes]", b.Type, printable(b.MIME, 100), base64Size(b.Data))
	case "resource_link":
		s := "[link to resource " + printable(b.URI, 500)
		if b.MIME != "" {
			s += ", " + printable(b.MIME, 100)
		}
		if b.Size > 0 {
			s += fmt.Sprintf(", %d bytes", b.Size)
		}
		return s + "]"
	case "resource":
		uri, mime := printable(b.Resource.URI, 500), printable(b.Resource.MIME, 100)
		if t := b.Resource.Text; t != nil {
			return fmt.Sprintf("[resource %s, %s, %d bytes]\n%s", uri, mime, len(*t), *t)
		}
		return fmt.Sprintf("[resource %s, %s, %d bytes]", uri, mime, base64Size(b.Resource.Blob))
	}
	if b.Type == "" {
		return fmt.Sprintf("[unreadable content, %d bytes]", len(b.raw))
	}
	return fmt.Sprintf("[content of type %s, %d bytes]", printable(b.Type, 40), len(b.raw))
}

// base64Size is the number of bytes that s stands for.
func base64Size(s string) int {
	return len(strings.TrimRight(s, "=")) * 3 / 4
}

// binary is the block's base64 and what it is; "" for blocks that have none.
func (b *block) binary() (kind, mimeType, data string) {
	switch b.Type {
	case "image", "audio":
		return b.Type, b.MIME, b.Data
	case "resource":
		return b.Type, b.Resource.MIME, b.Resource.Blob
	}
	return "", "", ""
}
