package openai

import (
	"encoding/json"
	"strings"
)

// Mistral's reasoning models send content as an array of parts, some of which are thinking. They want it back in the
// same form: "always replay the assistant turn back into messages with its ThinkChunks intact"
// (examples/mistral/chat/reasoning_multi_turn.py of mistralai/client-python). After the thinking, and between its
// pieces, the same stream has content that is a string.

// contentPart is one part of content that is an array.
type contentPart struct {
	raw   []byte // the JSON of the part, within the chunk's data
	kind  string // the member type
	text  string // the member text
	plain bool   // the type is text, and the part has no members other than type and text
}

// contentParts collects the content of an answer, to send it back to its endpoint. Content that is only text is not
// sent back from here, because the message already has its text. If the content exceeds maxExtensions, all of it is
// dropped. The zero value is empty.
type contentParts struct {
	text       []byte         // text before the first special part; moved to parts when that part arrives
	parts      extensionValue // an array; empty until a special part arrives
	hasSpecial bool           // a special part has arrived: one that is not plain text
	size       int            // size of all content, in bytes; the content is dropped if it exceeds maxExtensions
}

// addSize adds bytes to the size. If the size then exceeds maxExtensions, addSize returns false and frees the content.
func (c *contentParts) addSize(bytes int) bool {
	c.size += bytes
	if c.size > maxExtensions {
		c.text, c.parts.elements = nil, nil
		return false
	}
	return true
}

// isDropped reports whether the content should be sent back but is too large.
func (c *contentParts) isDropped() bool { return c.hasSpecial && c.size > maxExtensions }

// addText appends text to the last part, or adds a part if the last one is not text. It ignores an empty text: Mistral
// sends empty pieces between two pieces of thinking, and refuses an answer with two thinking parts ("Expected at most
// one leading ThinkChunk").
func (c *contentParts) addText(text string) {
	if text == "" || !c.addSize(len(text)) {
		return
	}
	if !c.hasSpecial {
		c.text = append(c.text, text...)
		return
	}
	last := c.parts.elements[len(c.parts.elements)-1]
	if last.readIdentity() == (elementIdentity{Type: "text"}) {
		last.parseLevel()
		last.addText("text", text)
		return
	}
	c.parts.elements = append(c.parts.elements, newTextPart(text))
}

// addParts adds the parts of one chunk. It leaves out generated media, because they are large.
func (c *contentParts) addParts(parts []contentPart) {
	for _, part := range parts {
		isMedia := strings.Contains(part.kind, "image") || strings.Contains(part.kind, "audio") || part.kind == "file"
		switch {
		case part.plain:
			c.addText(part.text)
		case !isMedia:
			c.addSpecial(part.raw)
		}
	}
}

// addSpecial adds a part that is not plain text. raw is its JSON.
func (c *contentParts) addSpecial(raw []byte) {
	c.hasSpecial = true
	if !c.addSize(len(raw)) {
		return
	}
	if len(c.text) > 0 {
		c.parts.elements = append(c.parts.elements, newTextPart(string(c.text)))
		c.text = nil
	}
	c.parts.addElement(raw)
}

// newTextPart returns the part {"type":"text","text":text}.
func newTextPart(text string) *extensionValue {
	return newExtensionValue(append(appendQuoted([]byte(`{"type":"text","text":`), text), '}'))
}

// encode returns the parts as a JSON array. It returns nil if the content is only text, or too large.
func (c *contentParts) encode() json.RawMessage {
	if len(c.parts.elements) == 0 {
		return nil
	}
	return (&extensionValue{kind: '[', elements: c.parts.elements}).appendJSON(nil)
}
