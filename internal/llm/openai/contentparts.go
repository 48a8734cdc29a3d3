package openai

import (
	"encoding/json"
	"strings"
)

// Mistral's reasoning models send content as an array of parts, of which some are thinking, and
// want it back in that form: "always replay the assistant turn back into messages with its
// ThinkChunks intact" (examples/mistral/chat/reasoning_multi_turn.py of mistralai/client-python).
// After the thinking, and between its pieces, the same stream has content that is a string.

// contentPart holds one part of content that is an array.
type contentPart struct {
	raw   []byte // within the data
	kind  string // its type
	text  string
	plain bool // it has a type and a text and nothing else
}

// contentParts collects the content of an answer for its endpoint. The zero value is empty. Of
// more than maxExtensions it keeps nothing.
type contentParts struct {
	text  []byte         // that came before list
	list  extensionValue // the parts, once one came that is not plain text
	bytes int            // of all, towards maxExtensions
}

// count counts n bytes and reports whether they are within the limit.
func (c *contentParts) count(n int) bool {
	c.bytes += n
	if c.bytes > maxExtensions {
		c.text = nil
	}
	return c.bytes <= maxExtensions
}

// isDropped reports whether the content has parts that are too large to be sent back.
func (c *contentParts) isDropped() bool { return len(c.list.elements) > 0 && c.bytes > maxExtensions }

// addText adds a piece of text, in a part of its own after a part of another type. Empty pieces
// begin no part: Mistral sends them between two pieces of thinking, and refuses an answer with
// two parts of thinking ("Expected at most one leading ThinkChunk").
func (c *contentParts) addText(text string) {
	n := len(c.list.elements)
	switch {
	case text == "" || !c.count(len(text)):
	case n == 0:
		c.text = append(c.text, text...)
	case c.list.elements[n-1].readIdentity() == elementIdentity{Type: "text"}:
		c.list.elements[n-1].takeApart()
		c.list.elements[n-1].addText("text", text)
	default:
		c.list.elements = append(c.list.elements, newTextPart(text))
	}
}

// addParts adds an array. Output media are left out, because they are large.
func (c *contentParts) addParts(parts []contentPart) {
	for _, part := range parts {
		switch {
		case part.plain:
			c.addText(part.text)
		case strings.Contains(part.kind, "image") || strings.Contains(part.kind, "audio") || part.kind == "file":
		case !c.count(len(part.raw)):
			c.list.elements = []*extensionValue{{}} // for isDropped
		default:
			if len(c.list.elements) == 0 && len(c.text) > 0 {
				c.list.elements = append(c.list.elements, newTextPart(string(c.text)))
			}
			c.text = nil
			c.list.addElement(part.raw)
		}
	}
}

// newTextPart returns a part that is text.
func newTextPart(text string) *extensionValue {
	return newExtensionValue(append(appendQuoted([]byte(`{"type":"text","text":`), text), '}'))
}

// encode returns the parts as a JSON array, nil if the content is text alone.
func (c *contentParts) encode() json.RawMessage {
	if len(c.list.elements) == 0 || c.bytes > maxExtensions {
		return nil
	}
	return (&extensionValue{kind: '[', elements: c.list.elements}).appendJSON(nil)
}
