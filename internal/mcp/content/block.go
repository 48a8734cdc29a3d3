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

// contentBlock has the members of an MCP content block that answerd uses.
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
	// Undecoded members, nil if absent.
	typeJSON, textJSON, mimeJSON, dataJSON json.RawMessage
}

// parsedBlocks returns the blocks of r.Content. If r does not come from Decode, the first call decodes them and keeps
// them in r.blocks.
func (r *Result) parsedBlocks() []contentBlock {
	if len(r.blocks) != len(r.Content) { // only Decode sets r.blocks
		r.blocks = make([]contentBlock, len(r.Content))
		for i, raw := range r.Content {
			r.blocks[i], _ = readBlock(wire.NewDecoder(raw), raw)
		}
	}
	return r.blocks
}

// readBlock reads the next content block from dec, which must be a decoder of raw. The block's undecoded members share
// memory with raw.
func readBlock(dec *jsontext.Decoder, raw []byte) (block contentBlock, err error) {
	start := int(dec.InputOffset())
	err = wire.ReadObject(dec, func(name string) (err error) {
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
	block.raw = bytes.TrimLeft(raw[start:end:end], ", \t\r\n") // the decoder has not yet read a comma before the block
	block.parseMembers()
	return block, err
}

// parseMembers decodes the undecoded members, which readBlock has set. A member that is absent or null becomes empty.
// If a member has the wrong type, or if an image or audio has no data, the block cannot be decoded. parseMembers then
// clears all fields except raw.
func (b *contentBlock) parseMembers() {
	blockType, isTypeValid := wire.Text(b.typeJSON)
	isValid := false
	switch blockType {
	case "text":
		b.Text, isValid = wire.Text(b.textJSON)
		if b.Text == "" {
			b.textJSON = json.RawMessage(`""`) // not nil or null, because Payload returns it
		}
	case "image", "audio":
		hasData := bytes.HasPrefix(b.dataJSON, []byte(`"`))
		b.Data, _ = wire.Text(b.dataJSON)
		var isMIMEValid bool
		b.MIME, isMIMEValid = wire.Text(b.mimeJSON)
		isValid = isMIMEValid && hasData
	default:
		isValid = isTypeValid && json.Unmarshal(b.raw, b) == nil
	}
	b.Type = blockType // json.Unmarshal ignores case and may have used a member "TYPE" instead
	if !isValid {
		*b = contentBlock{raw: b.raw}
	}
}

// placeholderText returns a text block's text. For any other block it returns a placeholder in brackets with the
// block's type and size. The text of an embedded resource follows its placeholder.
func (b *contentBlock) placeholderText() string {
	switch b.Type {
	case "text":
		return b.Text
	case "image", "audio":
		return fmt.Sprintf("[%s %s, %d bytes]", b.Type, wire.Printable(b.MIME, 100), decodedSize(b.Data))
	case "resource_link":
		link := "[link to resource " + wire.Printable(b.URI, 500)
		if label := b.linkLabel(); label != "" {
			link += " (" + label + ")"
		}
		if b.MIME != "" {
			link += ", " + wire.Printable(b.MIME, 100)
		}
		if b.Size > 0 {
			link += fmt.Sprintf(", %.0f bytes", b.Size)
		}
		return link + "]"
	case "resource":
		uri, mime := wire.Printable(b.Resource.URI, 500), wire.Printable(b.Resource.MIME, 100)
		if text := b.Resource.Text; text != nil {
			return fmt.Sprintf("[resource %s, %s, %d bytes]\n%s", uri, mime, len(*text), *text)
		}
		return fmt.Sprintf("[resource %s, %s, %d bytes]", uri, mime, decodedSize(b.Resource.Blob))
	case "":
		return fmt.Sprintf("[unreadable content, %d bytes]", len(b.raw))
	}
	return fmt.Sprintf("[content of type %s, %d bytes]", wire.Printable(b.Type, 40), len(b.raw))
}

// linkLabel describes a linked resource by its title, or else its name, followed by its description. It leaves out a
// title or name that the URI ends with. It returns "" if nothing remains.
func (b *contentBlock) linkLabel() string {
	label := wire.Printable(cmp.Or(b.Title, b.Name), 200)
	if strings.HasSuffix(b.URI, label) {
		label = ""
	}
	if b.Description == "" {
		return label
	}
	description := wire.Printable(b.Description, 500)
	if label == "" {
		return description
	}
	return label + ": " + description
}

// BlockText returns an MCP content block as text: a text block's text, or a placeholder for any other block (see
// Part.Text). It returns an error if raw does not decode as a content block.
func BlockText(raw json.RawMessage) (string, error) {
	block, err := readBlock(wire.NewDecoder(raw), raw)
	if err != nil {
		return "", err
	}
	if block.Type == "" {
		return "", errors.New("a member of the content block is missing or has the wrong type")
	}
	return block.placeholderText(), nil
}

// decodedSize returns the number of bytes that the base64 text s decodes to.
func decodedSize(s string) int {
	return len(strings.TrimRight(s, "=")) * 3 / 4
}

// binaryData returns a block's base64 data, together with the block type and the media type. All results are "" if the
// block's type has no binary data. data is "" for a resource without a blob.
func (b *contentBlock) binaryData() (blockType, mimeType, data string) {
	switch b.Type {
	case "image", "audio":
		return b.Type, b.MIME, b.Data
	case "resource":
		return b.Type, b.Resource.MIME, b.Resource.Blob
	}
	return "", "", ""
}

// totalSize returns the total number of bytes in values.
func totalSize(values []json.RawMessage) (size int) {
	for _, value := range values {
		size += len(value)
	}
	return size
}
