package llm

import (
	"bytes"
	"encoding/json"
)

// Nearly every chunk of a stream has one of a few shapes: a piece of text, of reasoning or of
// a call, the reason why it ends, what it cost. Such a chunk is read here in a tenth of the
// time that encoding/json takes; all others, and all that look odd in any way, are left to
// decodeChunk, whose word counts. FuzzChunk holds both to the same parts.

// quickChunk is a chunk as far as it is read.
type quickChunk struct {
	model  []byte // in quotes
	answer answer
	calls  [1]callDelta // of answer, if it has one
	index  int          // of that call
	reason []byte       // in quotes
	usage  *wireUsage
	choice bool   // there is one
	delta  bool   // and it says something
	seen   member // those read so far: a second one of a name is odd
}

// member is a set of names.
type member uint32

// The names of which a quick chunk has at most one each.
const (
	choicesMember member = 1 << iota
	modelMember
	usageMember
	promptMember
	completionMember
	totalMember
	deltaMember
	reasonMember
	contentMember
	reasoningContentMember
	reasoningMember
	callsMember
	indexMember
	idMember
	functionMember
	nameMember
	argumentsMember
)

// read reads data if it is such a chunk.
func (q *quickChunk) read(data []byte) bool {
	*q = quickChunk{}
	return members(data, q.top) && (q.delta || !q.choice && q.usage != nil)
}

// top takes a member of the chunk itself. An error ends the answer, and is for the slow
// reading.
func (q *quickChunk) top(name, raw []byte) bool {
	switch string(name) {
	case "choices":
		one, ok := onlyElement(raw)
		q.choice = len(one) > 0
		return ok && q.once(choicesMember) && (!q.choice || members(one, q.member))
	case "model":
		q.model = raw
		return q.once(modelMember) && simple(raw)
	case "usage":
		if !q.once(usageMember) || absent(raw) {
			return absent(raw)
		}
		q.usage = new(wireUsage)
		return members(raw, q.cost)
	case "error":
		return absent(raw)
	}
	return plain(name)
}

// cost takes a member of the usage.
func (q *quickChunk) cost(name, raw []byte) (ok bool) {
	switch string(name) {
	case "prompt_tokens":
		q.usage.Prompt, ok = digits(raw)
		return ok && q.once(promptMember)
	case "completion_tokens":
		q.usage.Completion, ok = digits(raw)
		return ok && q.once(completionMember)
	case "total_tokens":
		q.usage.Total, ok = digits(raw)
		return ok && q.once(totalMember)
	}
	return plain(name)
}

// member takes a member of the only choice.
func (q *quickChunk) member(name, raw []byte) bool {
	switch string(name) {
	case "delta":
		q.delta = true
		return q.once(deltaMember) && members(raw, q.piece)
	case "index":
		return string(raw) == "0"
	case "finish_reason":
		if !q.once(reasonMember) || absent(raw) {
			return absent(raw)
		}
		q.reason = raw
		return simple(raw)
	case "message":
		return absent(raw)
	}
	return plain(name)
}

// piece takes a member of the delta.
func (q *quickChunk) piece(name, raw []byte) bool {
	var m member
	switch string(name) {
	case "content":
		q.answer.Content, m = raw, contentMember
	case "reasoning_content":
		q.answer.ReasoningContent, m = raw, reasoningContentMember
	case "reasoning":
		q.answer.Reasoning, m = raw, reasoningMember
	case "tool_calls":
		return q.once(callsMember) && (absent(raw) || q.onlyCall(raw))
	case "refusal":
		return absent(raw)
	default:
		return plain(name)
	}
	return q.once(m) && (absent(raw) || raw[0] == '"')
}

// onlyCall takes a piece of one call.
func (q *quickChunk) onlyCall(raw []byte) bool {
	one, ok := onlyElement(raw)
	if !ok || !members(one, q.callMember) {
		return false
	}
	if q.seen&indexMember != 0 {
		q.calls[0].Index = &q.index
	}
	q.answer.ToolCalls = q.calls[:]
	return true
}

// callMember takes a member of the call.
func (q *quickChunk) callMember(name, raw []byte) bool {
	switch string(name) {
	case "index":
		n, ok := digits(raw)
		q.index = int(n)
		return ok && q.once(indexMember)
	case "id":
		q.calls[0].ID = text(raw)
		return q.once(idMember) && simple(raw)
	case "function":
		return q.once(functionMember) && members(raw, q.function)
	}
	return plain(name)
}

// function takes a member of the call's function.
func (q *quickChunk) function(name, raw []byte) bool {
	switch string(name) {
	case "name":
		q.calls[0].Function.Name = text(raw)
		return q.once(nameMember) && simple(raw)
	case "arguments":
		q.calls[0].Function.Arguments = raw
		return q.once(argumentsMember) && (absent(raw) || raw[0] == '"')
	}
	return plain(name)
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

// simple reports whether raw is a string without escapes.
func simple(raw []byte) bool { return raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 }

// digits is the number that raw is, if it has no sign, point or exponent, and fits.
func digits(raw []byte) (n int64, ok bool) {
	if len(raw) > 9 || raw[0] == '0' && len(raw) > 1 {
		return 0, false
	}
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// addQuick takes a quick chunk, and reports whether it is one.
func (a *assembler) addQuick(data []byte) (bool, error) {
	q := &a.quick
	if !q.read(data) || string(q.reason) == `"error"` {
		return false, nil
	}
	if len(q.model) > 2 && a.model != string(q.model[1:len(q.model)-1]) {
		a.model = text(json.RawMessage(q.model))
	}
	if q.usage != nil {
		u := q.usage.part()
		a.usage = &u
	}
	if err := a.answer(&q.answer); err != nil {
		return true, err
	}
	if len(q.reason) > 2 {
		a.reason = text(json.RawMessage(q.reason))
	}
	return true, nil
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
