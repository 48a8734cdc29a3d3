package llm

import (
	"bytes"
	"encoding/json"
)

// Nearly every chunk of a stream is one piece of text in the same frame. Such a chunk is
// read here in a tenth of the time that encoding/json takes; all others, and all that
// look odd in any way, are left to decodeChunk, whose word counts. FuzzChunk holds both
// to the same parts.

// quickChunk is a chunk that says nothing but a piece of text or reasoning.
type quickChunk struct {
	model   []byte // in quotes
	delta   bool
	content answer
	seen    member // those read so far: a second one of a name is odd
}

// member is a set of names.
type member uint8

// The names of which a chunk of the quick kind has at most one each.
const (
	choicesMember member = 1 << iota
	modelMember
	deltaMember
	contentMember
	reasoningContentMember
	reasoningMember
)

// readQuick reads data if it is such a chunk.
func readQuick(data []byte) (q quickChunk, ok bool) {
	ok = members(data, q.top)
	return q, ok && q.delta
}

// top takes a member of the chunk itself. usage is null in all chunks but the last, and
// an error in any of them ends the answer: both are for the slow reading.
func (q *quickChunk) top(name, raw []byte) bool {
	switch string(name) {
	case "choices":
		one, ok := onlyElement(raw)
		return ok && q.once(choicesMember) && members(one, q.choice)
	case "model":
		q.model = raw
		return q.once(modelMember) && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0
	case "usage", "error":
		return absent(raw)
	}
	return plain(name)
}

// choice takes a member of the only choice.
func (q *quickChunk) choice(name, raw []byte) bool {
	switch string(name) {
	case "delta":
		q.delta = true
		return q.once(deltaMember) && members(raw, q.piece)
	case "index":
		return string(raw) == "0"
	case "finish_reason", "message":
		return absent(raw)
	}
	return plain(name)
}

// piece takes a member of the delta.
func (q *quickChunk) piece(name, raw []byte) bool {
	var m member
	switch string(name) {
	case "content":
		q.content.Content, m = raw, contentMember
	case "reasoning_content":
		q.content.ReasoningContent, m = raw, reasoningContentMember
	case "reasoning":
		q.content.Reasoning, m = raw, reasoningMember
	case "tool_calls", "refusal":
		return absent(raw)
	default:
		return plain(name)
	}
	return q.once(m) && (absent(raw) || raw[0] == '"')
}

// once reports whether m is met for the first time.
func (q *quickChunk) once(m member) bool {
	again := q.seen&m != 0
	q.seen |= m
	return !again
}

// plain reports whether an unknown name is surely not one of ours in another spelling,
// which encoding/json would accept.
func plain(name []byte) bool {
	for _, c := range name {
		if c >= 'A' && c <= 'Z' || c >= 0x80 || c == '\\' {
			return false
		}
	}
	return true
}

// addQuick takes a chunk of the quick kind, and reports whether it is one.
func (a *assembler) addQuick(data []byte) (bool, error) {
	if said, ok := a.frame.text(data); ok {
		return true, a.say(string(said))
	}
	q, ok := readQuick(data)
	if !ok {
		a.frame.head = 0 // it may name another model
		return false, nil
	}
	if absent(q.content.ReasoningContent) && absent(q.content.Reasoning) {
		a.frame.learn(data, q.content.Content)
	}
	if len(q.model) > 2 && a.model != string(q.model[1:len(q.model)-1]) {
		a.model = text(json.RawMessage(q.model))
	}
	return true, a.answer(&q.content)
}

// members calls visit with the name and the raw value of each member of the object that
// is the whole of data, until visit reports false. It reports whether it came to the
// end. Within values it looks at brackets and strings only.
func members(data []byte, visit func(name, raw []byte) bool) bool {
	// The closing bracket is found from behind: what stands between is looked at once.
	rest := bytes.TrimSpace(data)
	if len(rest) < 2 || rest[0] != '{' || rest[len(rest)-1] != '}' {
		return false
	}
	rest = bytes.TrimSpace(rest[1 : len(rest)-1])
	for first := true; len(rest) > 0; first = false {
		if !first {
			if rest[0] != ',' {
				return false
			}
			rest = bytes.TrimSpace(rest[1:])
		}
		n := valueLen(rest)
		if n < 2 || rest[0] != '"' {
			return false
		}
		name := rest[1 : n-1]
		rest = bytes.TrimSpace(rest[n:])
		if len(rest) == 0 || rest[0] != ':' {
			return false
		}
		rest = bytes.TrimSpace(rest[1:])
		if n = valueLen(rest); n == 0 || !visit(name, rest[:n]) {
			return false
		}
		rest = bytes.TrimSpace(rest[n:])
	}
	return true
}

// onlyElement returns what stands in the brackets of an array. That it is one element
// shows when it is read as an object: two do not make one.
func onlyElement(raw []byte) ([]byte, bool) {
	if len(raw) < 2 || raw[0] != '[' {
		return nil, false
	}
	return raw[1 : len(raw)-1], true
}

// valueLen returns the length of the JSON value at the start of b, 0 if it has no end.
func valueLen(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '"':
		return stringLen(b)
	case '{', '[':
		return containerLen(b)
	}
	n := bytes.IndexAny(b, ",]} \t\r\n")
	if n < 0 {
		n = len(b)
	}
	return n
}

// containerLen returns the length of the object or array at the start of b, 0 if it
// has no end.
func containerLen(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			n := stringLen(b[i:])
			if n == 0 {
				return 0
			}
			i += n - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// stringLen returns the length of the JSON string at the start of b, 0 if it has no end.
func stringLen(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			i++
		case c < ' ':
			return 0
		}
	}
	return 0
}
