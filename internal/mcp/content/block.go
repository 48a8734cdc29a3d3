package content

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"answerd/internal/mcp/wire"

	"github.com/go-json-experiment/json/jsontext"
)

// contentBlock has the members of an MCP content block that answerd uses. readBlock sets the undecoded members, and
// parseMembers decodes them.
type contentBlock struct {
	// Type is "" if the block cannot be decoded.
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

	raw json.RawMessage // the whole block
	// Undecoded members, nil if absent. Texts and media may be large, so they are decoded only when they are needed.
	typeJSON, textJSON, mimeJSON, dataJSON json.RawMessage
}

// parsedBlocks returns the blocks of r.Content with decoded members. It decodes them at its first
// call and keeps them in r.blocks.
func (r *Result) parsedBlocks() []contentBlock {
	if len(r.blocks) != len(r.Content) { // only Decode sets r.blocks
		r.blocks = make([]contentBlock, len(r.Content))
		for i, raw := range r.Content {
			r.blocks[i], _ = readBlock(wire.NewDecoder(raw), raw)
		}
	}
	if !r.isParsed {
		for i := range r.blocks {
			r.blocks[i].parseMembers()
		}
		r.isParsed = true
	}
	return r.blocks
}

// readBlock reads the next content block of dec, which must be a decoder of raw. It sets only the undecoded members of
// the block, which refer to raw.
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
	end := int(dec.InputOffset())
	block.raw = bytes.TrimLeft(raw[before:end:end], ", \t\r\n") // the offset before the block may be that of a comma
	return block, err
}

// parseMembers decodes the members of a block that readBlock has read. A member that is absent or null is empty. If a
// member has the wrong type, or an image or audio has no data, the block cannot be decoded, and only raw stays set.
func (b *contentBlock) parseMembers() {
	blockType, isDecoded := wire.Text(b.typeJSON)
	switch blockType {
	case "text":
		b.Text, isDecoded = wire.Text(b.textJSON)
		if b.Text == "" {
			b.textJSON = json.RawMessage(`""`) // for Payload, which returns textJSON
		}
	case "image", "audio":
		b.MIME, isDecoded = wire.Text(b.mimeJSON)
		hasData := bytes.HasPrefix(b.dataJSON, []byte(`"`))
		isDecoded = isDecoded && hasData
		b.Data, _ = wire.Text(b.dataJSON)
	default:
		isDecoded = isDecoded && json.Unmarshal(b.raw, b) == nil
	}
	b.Type = blockType // encoding/json matches names in any case, and may have taken a member "TYPE"
	if !isDecoded {
		*b = contentBlock{raw: b.raw}
	}
}

// placeholderText returns the block as text: the text of a text block, or otherwise a placeholder in brackets with type
// and size. The text of an embedded resource follows its placeholder.
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

// linkLabel returns a linked resource's title, or else its name, and its description. It leaves out a title or name
// with which the URI ends. It returns "" if there is no such text.
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

// BlockText returns an MCP content block as text: the text of a text block, or otherwise a placeholder (see Part.Text).
// The error means that raw does not decode as a content block.
func BlockText(raw json.RawMessage) (string, error) {
	b, err := readBlock(wire.NewDecoder(raw), raw)
	if err != nil {
		return "", err
	}
	b.parseMembers()
	if b.Type == "" {
		return "", errors.New("a member of the content block is missing or has the wrong type")
	}
	return b.placeholderText(), nil
}

// decodedSize returns the number of bytes that the base64 text s encodes.
func decodedSize(s string) int {
	return len(strings.TrimRight(s, "=")) * 3 / 4
}

// binaryData returns the base64 data of a block, with its block type and its media type. All are "" for a block of a
// type without binary data; data is "" for a resource without a blob.
func (b *contentBlock) binaryData() (blockType, mimeType, data string) {
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
