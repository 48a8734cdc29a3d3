package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Piece is one content block for a model.
type Piece struct {
	// Text is the block for a reader of text: its text, or a placeholder with type and
	// size. The text of an embedded resource follows its placeholder.
	Text string
	// Media is the picture or sound that the placeholder stands for; nil for all else.
	Media *Media
}

// Pieces are the result for a model, in order: the content blocks, and the structured
// content where no text says the same. It is never empty: "(no content)" says that
// there is nothing (S0.4, S1.6).
func (r *Result) Pieces() []Piece {
	pieces := make([]Piece, 0, len(r.Content)+1)
	said := r.Structured == nil
	for _, b := range r.parse() {
		pieces = append(pieces, Piece{Text: b.render(), Media: b.media()})
		said = said || b.Type == "text" && sameValue(b.Text, r.Structured)
	}
	switch {
	case said:
	case len(pieces) == 0:
		pieces = append(pieces, Piece{Text: string(r.Structured)})
	default:
		pieces = append(pieces, Piece{Text: "Structured content: " + string(r.Structured)})
	}
	// Some endpoints refuse a result without text.
	if !slices.ContainsFunc(pieces, func(p Piece) bool { return p.Text != "" }) {
		pieces = []Piece{{Text: "(no content)"}}
	}
	if r.Violations != nil {
		pieces = append(pieces, Piece{Text: "[This result does not fit the tool's own output schema:" + bulleted(r.Violations) + "]"})
	}
	return pieces
}

// Text is the pieces for a reader of text, joined by newlines.
func (r *Result) Text() string {
	pieces := r.Pieces()
	parts := make([]string, len(pieces))
	for i, p := range pieces {
		parts[i] = p.Text
	}
	return strings.Join(parts, "\n")
}

// sameValue reports whether text is the structured content again, as servers send it
// for clients that know no other. Some SDKs wrap what is no object as {"result": …}.
func sameValue(text string, structured json.RawMessage) bool {
	if text == string(structured) {
		return true
	}
	if len(text) < len(structured)/8 {
		return false // escapes make the same text six times as long at most
	}
	value, err := decodeValue(structured)
	if err != nil {
		return false
	}
	wrapped, isWrapped := any(nil), false
	if object, ok := value.(map[string]any); ok && len(object) == 1 {
		wrapped, isWrapped = object["result"]
		if isWrapped && wrapped == any(text) {
			return true
		}
	}
	said, err := decodeValue([]byte(text))
	return err == nil && (reflect.DeepEqual(said, value) || isWrapped && reflect.DeepEqual(said, wrapped))
}

// decodeValue keeps numbers as they are written.
func decodeValue(raw []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("more than one value")
	}
	return v, nil
}
