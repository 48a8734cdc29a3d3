package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// Providers add members to messages and calls that Chat Completions does not define, and some providers refuse a later
// request without them: Gemini's extra_content with a thought signature, DeepSeek's reasoning_content, OpenRouter's
// reasoning_details. This file collects these members from the chunks of an answer, so that they can be sent back with
// the same message.

// maxExtensions is the largest total size of the members of one answer that are kept to be sent back, in bytes.
const maxExtensions = 512 << 10

// ignoredMembers are members of a delta that are not sent back: members of Chat Completions that this package does not
// use, and generated media, which are large.
var ignoredMembers = map[string]bool{"role": true, "function_call": true, "audio": true, "images": true, "annotations": true}

// rawMember is a member of a chunk that this package does not interpret.
type rawMember struct {
	name  string
	value []byte // JSON, not empty; part of the chunk's data
}

// extensionValue is a JSON value that may arrive in several pieces. A value that arrived in one piece keeps its bytes.
// A value is parsed only if it is continued. The zero value is an empty object.
type extensionValue struct {
	raw  []byte // the JSON of a value that arrived in one piece; nil after parseLevel
	kind byte   // the first byte of the JSON, which determines the type; 0 means an object

	// The value after parseLevel, depending on kind.
	text     []byte            // text of a string, without quotes and escapes
	names    []string          // names of an object's members, in order of appearance
	elements []*extensionValue // elements of an array, or the values for names
}

// newExtensionValue returns the value with the JSON raw, which must not be empty. It copies raw, because the chunk's
// memory is reused.
func newExtensionValue(raw []byte) *extensionValue {
	return &extensionValue{raw: bytes.Clone(raw), kind: raw[0]}
}

// pieceNames are the members whose strings arrive in pieces, so that all strings are appended, even equal ones. If the
// string of any other member arrives again unchanged, it is a repetition and is dropped.
var pieceNames = map[string]bool{"reasoning_content": true, "reasoning": true, "thinking": true, "text": true, "summary": true, "data": true}

// addPiece adds another piece, the JSON raw, to the value of the member name. It appends to strings and arrays, and
// merges objects. A piece of a different type, or any number or boolean, replaces the value. addPiece ignores null.
func (v *extensionValue) addPiece(name string, raw []byte) {
	kind := raw[0]
	if kind == 'n' { // null
		return
	}
	canGrow := kind == '"' || kind == '{' || kind == '['
	if kind != v.kind || !canGrow {
		*v = *newExtensionValue(raw)
		return
	}
	v.parseLevel()
	piece := jsonScanner{data: raw}
	switch kind {
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

// parseLevel parses one level of raw into text, names and elements, and sets raw to nil, so that pieces can be added.
// It does nothing if the value is already parsed.
func (v *extensionValue) parseLevel() {
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

// addMember adds a piece, the JSON raw, to the member name of an object. parseLevel must have parsed the object.
func (v *extensionValue) addMember(name string, raw []byte) {
	if i := slices.Index(v.names, name); i >= 0 {
		v.elements[i].addPiece(name, raw)
		return
	}
	v.names, v.elements = append(v.names, name), append(v.elements, newExtensionValue(raw))
}

// addText adds text to the string member name of an object. parseLevel must have parsed the object. text is the text
// itself, without quotes and escapes.
func (v *extensionValue) addText(name, text string) {
	for i, known := range v.names {
		if known == name && v.elements[i].kind == '"' {
			v.elements[i].parseLevel()
			v.elements[i].text = append(v.elements[i].text, text...)
			return
		}
	}
	v.names, v.elements = append(v.names, name), append(v.elements, &extensionValue{kind: '"', text: []byte(text)})
}

// addElement adds the JSON raw to an array. If it has the same identity as the last element, it is a piece of that
// element, and otherwise a new element. OpenRouter streams an element of reasoning_details in pieces, which repeat its
// type and index.
func (v *extensionValue) addElement(raw []byte) {
	if n := len(v.elements); n > 0 && raw[0] == '{' && v.elements[n-1].kind == '{' {
		last := v.elements[n-1]
		piece := &extensionValue{raw: raw, kind: '{'}
		if last.readIdentity().continuedBy(piece.readIdentity()) {
			last.addPiece("", raw)
			return
		}
	}
	v.elements = append(v.elements, newExtensionValue(raw))
}

// elementIdentity holds the members that distinguish the elements of a streamed array.
type elementIdentity struct {
	Type  string `json:"type"`
	Index *int64 `json:"index"` // nil if missing
	ID    string `json:"id"`
}

// continuedBy reports whether an element with the identity next is a piece of the element e. Types must be equal,
// indexes must be equal or both missing, and ids must not differ. An element with neither type nor index cannot be
// recognized again. Encrypted reasoning and Mistral's references come as a whole, so two of them are two elements.
func (e elementIdentity) continuedBy(next elementIdentity) bool {
	hasIdentity := e.Type != "" || e.Index != nil
	comesWhole := strings.HasSuffix(e.Type, "encrypted") || strings.HasSuffix(e.Type, "reference")
	if !hasIdentity || comesWhole || e.Type != next.Type {
		return false
	}
	sameIndex := e.Index == nil && next.Index == nil
	if e.Index != nil && next.Index != nil {
		sameIndex = *e.Index == *next.Index
	}
	sameID := e.ID == next.ID || e.ID == "" || next.ID == ""
	return sameIndex && sameID
}

// readIdentity returns the identity of an object. A type, index or id of an unexpected JSON type counts as missing.
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

// appendJSON appends the JSON of the value to buf and returns the extended slice.
func (v *extensionValue) appendJSON(buf []byte) []byte {
	if v.raw != nil {
		return append(buf, v.raw...)
	}
	if v.kind == '"' {
		return appendQuoted(buf, string(v.text))
	}
	opening, closing := byte('{'), byte('}')
	if v.kind == '[' {
		opening, closing = '[', ']'
	}
	buf = append(buf, opening)
	for i, element := range v.elements {
		if i > 0 {
			buf = append(buf, ',')
		}
		if opening == '{' {
			buf = append(appendQuoted(buf, v.names[i]), ':')
		}
		buf = element.appendJSON(buf)
	}
	return append(buf, closing)
}

// addMembers adds the members of one chunk to an object. It ignores members that are null.
func (v *extensionValue) addMembers(members []rawMember) {
	for _, m := range members {
		if m.value[0] != 'n' { // null
			v.addMember(m.name, m.value)
		}
	}
}

// encodeMembers returns the JSON of an object to which addMembers and addText have added all members. It returns nil if
// the object is empty.
func (v *extensionValue) encodeMembers() json.RawMessage {
	if len(v.names) == 0 {
		return nil
	}
	return v.appendJSON(nil)
}

// endpointID returns the id of an endpoint for llm.Extensions, which are stored with a run. It is a hash of the base
// URL without user and query. It is not the URL itself, because a URL may contain a key.
func endpointID(base string) string {
	if u, err := url.Parse(base); err == nil {
		u.User, u.RawQuery = nil, ""
		base = u.String()
	}
	sum := sha256.Sum256([]byte(base))
	return hex.EncodeToString(sum[:8])
}
