package content

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/mcp/wire"

	"github.com/go-json-experiment/json/jsontext"
)

// contentBlock has the members of a content block that answerd uses. Type is "" if the block
// cannot be decoded.
type contentBlock struct {
	Type        string  `json:"type"`
	Text        string  `json:"text"`
	MIME        string  `json:"mimeType"`
	Data        string  `json:"data"`
	URI         string  `json:"uri"`
	Name        string  `json:"name"`
	Title       string  `json:"title"`
	Description string  `json:"description"`
	Size        float64 `json:"size"` // bytes; some servers write 1024.0
	Resource    struct {
		URI  string  `json:"uri"`
		MIME string  `json:"mimeType"`
		Text *string `json:"text"`
		Blob string  `json:"blob"`
	} `json:"resource"`

	// The undecoded members. Texts and media may be large, so parseMembers decodes them only when they
	// are needed.
	raw, typeJSON, textJSON, mimeJSON, dataJSON json.RawMessage
}

// parsedBlocks returns the blocks of Content with decoded members. It decodes them at its first
// call.
func (r *Result) parsedBlocks() []contentBlock {
	if len(r.blocks) != len(r.Content) { // the caller made r without Decode
		r.blocks = make([]contentBlock, len(r.Content))
		for i, raw := range r.Content {
			r.blocks[i], _ = readBlock(wire.NewDecoder(raw), raw)
		}
	}
	for i := range r.blocks {
		if !r.isParsed {
			r.blocks[i].parseMembers()
		}
	}
	r.isParsed = true
	return r.blocks
}

// readBlock finds the members of the next content block of dec, which decodes raw.
func readBlock(dec *jsontext.Decoder, raw []byte) (block contentBlock, err error) {
	before := int(dec.InputOffset())
	err = wire.Object(dec, func(name string) (err error) {
		switch name {
		case "type":
			block.typeJSON, err = wire.ReadRaw(dec, raw)
		case "text":
			block.textJSON, err = wire.ReadRaw(dec, raw)
		case "mimeType":
			block.mimeJSON, err = wire.ReadRaw(dec, raw)
		case "data":
			block.dataJSON, err = wire.ReadRaw(dec, raw)
		default:
			err = dec.SkipValue()
		}
		return err
	})
	block.raw = bytes.TrimLeft(raw[before:dec.InputOffset():dec.InputOffset()], ", \t\r\n")
	return block, err
}

// parseMembers decodes the members that readBlock has found. A block that lacks a required member
// becomes a block of type "".
func (b *contentBlock) parseMembers() {
	name, isRead := wire.Text(b.typeJSON)
	switch name {
	case "text":
		b.Text, isRead = wire.Text(b.textJSON)
		if b.Text == "" {
			b.textJSON = json.RawMessage(`""`)
		}
	case "image", "audio":
		var hasType, hasData bool
		b.MIME, hasType = wire.Text(b.mimeJSON)
		b.Data, hasData = wire.Text(b.dataJSON)
		isRead = hasType && hasData
	default:
		isRead = isRead && json.Unmarshal(b.raw, b) == nil
	}
	b.Type = name // encoding/json matches names in any case, and may have taken a member "TYPE"
	if !isRead {
		*b = contentBlock{raw: b.raw}
	}
}

// placeholderText returns the block as text: its text, or a placeholder in brackets with type and
// size. The text of an embedded resource follows its placeholder.
func (b *contentBlock) placeholderText() string {
	switch b.Type {
	case "text":
		return b.Text
	case "image", "audio":
		return fmt.Sprintf("[%s %s, %d bytes]", b.Type, wire.Printable(b.MIME, 100), decodedSize(b.Data))
	case "resource_link":
		s := "[link to resource " + wire.Printable(b.URI, 500)
		if label := b.linkLabel(); label != "" {
			s += " (" + label + ")"
		}
		if b.MIME != "" {
			s += ", " + wire.Printable(b.MIME, 100)
		}
		if b.Size > 0 {
			s += fmt.Sprintf(", %.0f bytes", b.Size)
		}
		return s + "]"
	case "resource":
		uri, mime := wire.Printable(b.Resource.URI, 500), wire.Printable(b.Resource.MIME, 100)
		if t := b.Resource.Text; t != nil {
			return fmt.Sprintf("[resource %s, %s, %d bytes]\n%s", uri, mime, len(*t), *t)
		}
		return fmt.Sprintf("[resource %s, %s, %d bytes]", uri, mime, decodedSize(b.Resource.Blob))
	}
	if b.Type == "" {
		return fmt.Sprintf("[unreadable content, %d bytes]", len(b.raw))
	}
	return fmt.Sprintf("[content of type %s, %d bytes]", wire.Printable(b.Type, 40), len(b.raw))
}

// linkLabel returns the title or name of a linked resource, unless the URI ends with it, and its description.
func (b *contentBlock) linkLabel() string {
	label := wire.Printable(cmp.Or(b.Title, b.Name), 200)
	if strings.HasSuffix(b.URI, label) {
		label = ""
	}
	if b.Description == "" {
		return label
	}
	return strings.TrimPrefix(label+": "+wire.Printable(b.Description, 500), ": ")
}

// BlockText returns a content block as text, like Part.Text.
func BlockText(raw json.RawMessage) (string, error) {
	var b contentBlock
	if err := json.Unmarshal(raw, &b); err != nil {
		return "", err
	}
	b.raw = raw
	return b.placeholderText(), nil
}

// decodedSize returns the number of bytes that s encodes in base64, without decoding it.
func decodedSize(s string) int {
	return len(strings.TrimRight(s, "=")) * 3 / 4
}

// binaryData returns the base64 data of a block with its types, or "" for a block without binary
// data.
func (b *contentBlock) binaryData() (kind, mimeType, data string) {
	switch b.Type {
	case "image", "audio":
		return b.Type, b.MIME, b.Data
	case "resource":
		return b.Type, b.Resource.MIME, b.Resource.Blob
	}
	return "", "", ""
}

// totalSize returns the number of bytes of all values.
func totalSize(values []json.RawMessage) (n int) {
	for _, v := range values {
		n += len(v)
	}
	return n
}
