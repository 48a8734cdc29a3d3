package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
)

// Providers add members to messages and to calls that Chat Completions does not define, and some
// refuse a later request without them: Gemini's extra_content with a thought signature,
// DeepSeek's reasoning_content, OpenRouter's reasoning_details. This file collects them from the
// chunks of an answer, so that they can be sent back with the same message.

// maxExtensions bounds such members of one answer, in bytes.
const maxExtensions = 512 << 10

// ignoredMembers lists members of a delta that are not sent back: those of Chat Completions
// that this package does not use, and output media, which are large.
var ignoredMembers = map[string]bool{"role": true, "function_call": true, "audio": true, "images": true, "annotations": true}

// rawMember holds a member of a chunk that this package does not interpret. Value lies within
// the chunk's data.
type rawMember struct {
	name  string
	value []byte
}

// extensionValue holds a JSON value that may arrive in several pieces. A value that arrived in
// one piece keeps its bytes; only a continued value is parsed.
type extensionValue struct {
	raw      []byte            // the original bytes; nil once the value is continued
	kind     byte              // its first byte
	text     []byte            // of a continued string
	names    []string          // of a continued object, in order of appearance
	elements []*extensionValue // of a continued object or array
}

// newExtensionValue returns the value of raw, which must not be empty. It copies raw, because the memory
// of a chunk is used again.
func newExtensionValue(raw []byte) *extensionValue {
	return &extensionValue{raw: bytes.Clone(raw), kind: raw[0]}
}

// pieceNames lists members whose strings arrive in pieces. If a string of any other name arrives
// again unchanged, it is a repetition and not a continuation.
var pieceNames = map[string]bool{"reasoning_content": true, "reasoning": true, "thinking": true, "text": true, "summary": true, "data": true}

// addPiece adds a piece to the value of the member name. Strings and arrays are continued,
// objects are merged, and for any other type the last value counts. null counts as absent.
func (v *extensionValue) addPiece(name string, raw []byte) {
	if raw[0] == 'n' {
		return
	}
	canGrow := v.kind == '"' || v.kind == '{' || v.kind == '['
	if raw[0] != v.kind || !canGrow {
		*v = *newExtensionValue(raw)
		return
	}
	v.takeApart()
	piece := jsonScanner{data: raw}
	switch v.kind {
	case '"':
		text := piece.readString("")
		if pieceNames[name] || text != string(v.text) {
			v.text = append(v.text, text...)
		}
	case '{':
		for more := piece.enter('{', ""); more; more = piece.hasNext('}') {
			v.addMember(string(piece.readName()), piece.readRaw())
		}
	case '[':
		for more := piece.enter('[', ""); more; more = piece.hasNext(']') {
			v.addElement(piece.readRaw())
		}
	}
}

// takeApart parses one level of a value that arrived in one piece.
func (v *extensionValue) takeApart() {
	if v.raw == nil {
		return
	}
	s := jsonScanner{data: v.raw}
	v.raw = nil
	switch v.kind {
	case '"':
		v.text = []byte(s.readString(""))
	case '{':
		for more := s.enter('{', ""); more; more = s.hasNext('}') {
			name := string(s.readName())
			v.names, v.elements = append(v.names, name), append(v.elements, newExtensionValue(s.readRaw()))
		}
	case '[':
		for more := s.enter('[', ""); more; more = s.hasNext(']') {
			v.elements = append(v.elements, newExtensionValue(s.readRaw()))
		}
	}
}

// addMember adds a piece of a member of an object.
func (v *extensionValue) addMember(name string, raw []byte) {
	for i, known := range v.names {
		if known == name {
			v.elements[i].addPiece(name, raw)
			return
		}
	}
	v.names, v.elements = append(v.names, name), append(v.elements, newExtensionValue(raw))
}

// addText adds a piece of a member that is a string, without its quotes.
func (v *extensionValue) addText(name, text string) {
	for i, known := range v.names {
		if known == name && v.elements[i].kind == '"' {
			v.elements[i].takeApart()
			v.elements[i].text = append(v.elements[i].text, text...)
			return
		}
	}
	v.names, v.elements = append(v.names, name), append(v.elements, &extensionValue{kind: '"', text: []byte(text)})
}

// addElement adds an element of an array, or continues the last one. OpenRouter streams
// reasoning_details in pieces of one element, which have its type and index.
func (v *extensionValue) addElement(raw []byte) {
	if n := len(v.elements); n > 0 && raw[0] == '{' && v.elements[n-1].kind == '{' {
		last := v.elements[n-1]
		before, piece := last.readIdentity(), (&extensionValue{raw: raw, kind: '{'}).readIdentity()
		if before.continuedBy(piece) {
			last.addPiece("", raw)
			return
		}
	}
	v.elements = append(v.elements, newExtensionValue(raw))
}

// elementIdentity distinguishes the elements of a streamed array.
type elementIdentity struct {
	Type  string `json:"type"`
	Index *int64 `json:"index"`
	ID    string `json:"id"`
}

// continuedBy reports whether an element with that identity continues e. Encrypted reasoning and
// Mistral's references come whole.
func (e elementIdentity) continuedBy(next elementIdentity) bool {
	hasIdentity := e.Type != "" || e.Index != nil
	comesWhole := strings.HasSuffix(e.Type, "encrypted") || strings.HasSuffix(e.Type, "reference")
	if !hasIdentity || comesWhole || e.Type != next.Type {
		return false
	}
	sameIndex := e.Index == next.Index // both nil
	if e.Index != nil && next.Index != nil {
		sameIndex = *e.Index == *next.Index
	}
	sameID := e.ID == next.ID || e.ID == "" || next.ID == ""
	return sameIndex && sameID
}

// readIdentity returns the identity of an object. A member of another type counts as absent.
func (v *extensionValue) readIdentity() (id elementIdentity) {
	if v.raw != nil {
		_ = json.Unmarshal(v.raw, &id)
		return id
	}
	for i, name := range v.names {
		switch member := v.elements[i]; name {
		case "type":
			_ = json.Unmarshal(member.appendJSON(nil), &id.Type)
		case "index":
			_ = json.Unmarshal(member.appendJSON(nil), &id.Index)
		case "id":
			_ = json.Unmarshal(member.appendJSON(nil), &id.ID)
		}
	}
	return id
}

// appendJSON appends the value.
func (v *extensionValue) appendJSON(buf []byte) []byte {
	if v.raw != nil {
		return append(buf, v.raw...)
	}
	switch v.kind {
	case '"':
		return appendQuoted(buf, string(v.text))
	case '[':
		buf = append(buf, '[')
		for i, e := range v.elements {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = e.appendJSON(buf)
		}
		return append(buf, ']')
	}
	buf = append(buf, '{')
	for i, e := range v.elements {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = e.appendJSON(append(appendQuoted(buf, v.names[i]), ':'))
	}
	return append(buf, '}')
}

// extensionSet holds the members of one message or call that this package does not interpret.
// The zero value is empty.
type extensionSet struct{ object extensionValue }

// addMembers adds the members of one chunk.
func (x *extensionSet) addMembers(members []rawMember) {
	for _, m := range members {
		if m.value[0] != 'n' {
			x.object.addMember(m.name, m.value)
		}
	}
}

// encodeMembers returns the members as a JSON object, or nil if the set is empty.
func (x *extensionSet) encodeMembers() json.RawMessage {
	if len(x.object.names) == 0 {
		return nil
	}
	return (&extensionValue{kind: '{', names: x.object.names, elements: x.object.elements}).appendJSON(nil)
}

// endpointID identifies an endpoint in the log of a run. It is a hash, because a URL may contain
// a key.
func endpointID(base string) string {
	if u, err := url.Parse(base); err == nil {
		u.User, u.RawQuery = nil, ""
		base = u.String()
	}
	sum := sha256.Sum256([]byte(base))
	return hex.EncodeToString(sum[:8])
}
