package llm

import (
	"bytes"
	"unicode/utf8"
)

// frame is what the chunks of one answer have in common: all but the text of the last one
// that was a piece of text. Endpoints write the same around each token, so that a chunk is
// known by comparing two stretches of bytes: 0.03 µs in place of 0.35 for addQuick.
type frame struct {
	bytes []byte // what stands before the text, and then what stands behind it
	head  int    // of these, how many before; 0: nothing is known yet
}

// maxFrame bounds what is kept of a chunk, in bytes.
const maxFrame = 4 << 10

// learn keeps data around text, which is a JSON string within data.
func (f *frame) learn(data, text []byte) {
	f.head = 0
	if len(text) < 2 || text[0] != '"' || len(data)-len(text) > maxFrame {
		return
	}
	begin := cap(data) - cap(text) // slices of one array end at the same place
	f.bytes = append(append(f.bytes[:0], data[:begin+1]...), data[begin+len(text)-1:]...)
	f.head = begin + 1
}

// text returns the text of a chunk that has nothing else than the frame. One with escapes
// in it, or with anything that has no place in a string, is for others to read.
func (f *frame) text(data []byte) (text []byte, ok bool) {
	if f.head == 0 || len(data) < len(f.bytes) || !bytes.Equal(data[:f.head], f.bytes[:f.head]) {
		return nil, false
	}
	text = data[f.head : f.head+len(data)-len(f.bytes)]
	if !bytes.Equal(data[f.head+len(text):], f.bytes[f.head:]) {
		return nil, false
	}
	plain := true
	for _, c := range text {
		if c < ' ' || c == '"' || c == '\\' {
			return nil, false
		}
		plain = plain && c < utf8.RuneSelf
	}
	return text, plain || utf8.Valid(text)
}
