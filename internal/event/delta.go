package event

// MaxJoinedDelta bounds the text of a delta that was joined, in bytes.
const MaxJoinedDelta = 1 << 10

// JoinedDelta joins deltas that follow each other in one part or call. Logs join those that no
// reader has read. The zero value is empty.
type JoinedDelta struct {
	first Body // nil while it is empty
	text  []byte
}

// Add adds b and reports whether it did. It does not if b is not a delta, if the deltas so far
// belong to another part or call, or if the text would exceed MaxJoinedDelta.
func (j *JoinedDelta) Add(b Body) bool {
	text, isDelta := deltaText(b)
	if !isDelta || len(j.text)+len(text) > MaxJoinedDelta {
		return false
	}
	if j.first == nil {
		j.first = b
	} else if !continues(j.first, b) {
		return false
	}
	j.text = append(j.text, text...)
	return true
}

// Empty reports whether j has no delta.
func (j *JoinedDelta) Empty() bool { return j.first == nil }

// Len returns the length of the text in bytes.
func (j *JoinedDelta) Len() int { return len(j.text) }

// Body returns the joined delta; nil if it is empty.
func (j *JoinedDelta) Body() Body {
	switch first := j.first.(type) {
	case TextDelta:
		return TextDelta{first.PartID, string(j.text)}
	case ReasoningDelta:
		return ReasoningDelta{first.PartID, string(j.text)}
	case ToolCallArgs:
		return ToolCallArgs{first.Call, string(j.text)}
	}
	return nil
}

// Clear makes j empty. It keeps the memory of the text for the next delta.
func (j *JoinedDelta) Clear() { j.first, j.text = nil, j.text[:0] }

// deltaText returns the text of a delta. isDelta is false for other bodies.
func deltaText(b Body) (text string, isDelta bool) {
	switch b := b.(type) {
	case TextDelta:
		return b.Delta, true
	case ReasoningDelta:
		return b.Delta, true
	case ToolCallArgs:
		return b.Delta, true
	}
	return "", false
}

// continues reports whether the deltas a and b belong to the same part or call.
func continues(a, b Body) bool {
	switch a := a.(type) {
	case TextDelta:
		b, ok := b.(TextDelta)
		return ok && a.PartID == b.PartID
	case ReasoningDelta:
		b, ok := b.(ReasoningDelta)
		return ok && a.PartID == b.PartID
	case ToolCallArgs:
		b, ok := b.(ToolCallArgs)
		return ok && a.Call == b.Call
	}
	return false
}

// IsDelta reports whether b is a piece of text, reasoning or arguments.
func IsDelta(b Body) bool {
	_, isDelta := deltaText(b)
	return isDelta
}

// Nearly all events are deltas. With encoding/json a streamed answer took 20 % more CPU time
// where 1,000 tokens came at once, and 11 % more where 400 came one by one.

func (d TextDelta) size() int      { return len(d.PartID) + len(d.Delta) + 32 }
func (d ReasoningDelta) size() int { return len(d.PartID) + len(d.Delta) + 32 }
func (d ToolCallArgs) size() int {
	return len(d.CallID) + len(d.Tool) + len(d.Server) + len(d.Delta) + 64
}

func (d TextDelta) appendFields(b []byte) []byte {
	return appendMember(append(appendMember(b, "part_id", d.PartID), ','), "delta", d.Delta)
}

func (d ReasoningDelta) appendFields(b []byte) []byte { return TextDelta(d).appendFields(b) }

func (d ToolCallArgs) appendFields(b []byte) []byte {
	return appendMember(append(appendCall(b, d.Call), ','), "delta", d.Delta)
}
