package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/mcp/wire"

	"github.com/go-json-experiment/json/jsontext"
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

	// The parts as they were written. Texts, pictures and sounds may be large.
	raw, kind, textJSON, mimeJSON, dataJSON json.RawMessage
}

// parse returns Content, looked into once.
func (r *Result) parse() []block {
	if len(r.blocks) != len(r.Content) { // not from decodeResult
		r.blocks = make([]block, len(r.Content))
		for i, raw := range r.Content {
			r.blocks[i], _ = readBlock(wire.NewDecoder(raw), raw)
		}
	}
	for i := range r.blocks {
		if !r.parsed {
			r.blocks[i].parse()
		}
	}
	r.parsed = true
	return r.blocks
}

// readBlock reads a content block out of raw.
func readBlock(dec *jsontext.Decoder, raw []byte) (b block, err error) {
	before := int(dec.InputOffset())
	err = wire.Object(dec, func(name string) (err error) {
		switch name {
		case "type":
			b.kind, err = wire.ReadRaw(dec, raw)
		case "text":
			b.textJSON, err = wire.ReadRaw(dec, raw)
		case "mimeType":
			b.mimeJSON, err = wire.ReadRaw(dec, raw)
		case "data":
			b.dataJSON, err = wire.ReadRaw(dec, raw)
		default:
			err = dec.SkipValue()
		}
		return err
	})
	b.raw = bytes.TrimLeft(raw[before:dec.InputOffset():dec.InputOffset()], ", \t\r\n")
	return b, err
}

// parse looks into the parts of the block.
func (b *block) parse() {
	name, read := wire.Text(b.kind)
	switch name {
	case "text":
		if b.Text, read = wire.Text(b.textJSON); b.Text == "" {
			b.textJSON = json.RawMessage(`""`)
		}
	case "image", "audio":
		var ok bool
		b.MIME, ok = wire.Text(b.mimeJSON)
		b.Data, read = wire.Text(b.dataJSON)
		read = read && ok
	default:
		read = read && json.Unmarshal(b.raw, b) == nil
	}
	b.Type = name // not what encoding/json takes for it, such as "TYPE"
	if !read {
		*b = block{raw: b.raw}
	}
}

// render is the block for a reader of text.
func (b *block) render() string {
	switch b.Type {
	case "text":
		return b.Text
	case "image", "audio":
		return fmt.Sprintf("[%s %s, %d bytes]", b.Type, wire.Printable(b.MIME, 100), base64Size(b.Data))
	case "resource_link":
		s := "[link to resource " + wire.Printable(b.URI, 500)
		if b.MIME != "" {
			s += ", " + wire.Printable(b.MIME, 100)
		}
		if b.Size > 0 {
			s += fmt.Sprintf(", %d bytes", b.Size)
		}
		return s + "]"
	case "resource":
		uri, mime := wire.Printable(b.Resource.URI, 500), wire.Printable(b.Resource.MIME, 100)
		if t := b.Resource.Text; t != nil {
			return fmt.Sprintf("[resource %s, %s, %d bytes]\n%s", uri, mime, len(*t), *t)
		}
		return fmt.Sprintf("[resource %s, %s, %d bytes]", uri, mime, base64Size(b.Resource.Blob))
	}
	if b.Type == "" {
		return fmt.Sprintf("[unreadable content, %d bytes]", len(b.raw))
	}
	return fmt.Sprintf("[content of type %s, %d bytes]", wire.Printable(b.Type, 40), len(b.raw))
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
