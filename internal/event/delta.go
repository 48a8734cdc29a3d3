package event

// Deltas joins deltas of one part or call. The zero value has none.
type Deltas struct {
	first Body
	text  []byte // of all, in order
	size  int    // as DeltaSize of all together
}

// Add adds body after the others and reports whether it did. body must be a delta of the same part or call as the
// others, and all together may have at most max bytes by DeltaSize.
func (d *Deltas) Add(body Body, max int) bool {
	size, text := DeltaSize(body), deltaText(body)
	if d.first != nil {
		if !isSamePart(d.first, body) {
			return false
		}
		size = d.size + len(text)
	}
	if size == 0 || size > max {
		return false
	}
	if d.first == nil {
		d.first = body
	}
	d.text, d.size = append(d.text, text...), size
	return true
}

// Join returns one delta with the text of all; nil if there is none.
func (d *Deltas) Join() Body {
	switch first := d.first.(type) {
	case TextDelta:
		return TextDelta{first.PartID, string(d.text)}
	case ReasoningDelta:
		return ReasoningDelta{first.PartID, string(d.text)}
	case ToolCallArgs:
		return ToolCallArgs{first.Call, string(d.text)}
	}
	return nil
}

// Reset removes all deltas. Later ones use the same memory.
func (d *Deltas) Reset() { d.first, d.text, d.size = nil, d.text[:0], 0 }

// isSamePart reports whether two deltas are of the same part or call.
func isSamePart(a, b Body) bool {
	switch b := b.(type) {
	case TextDelta:
		a, ok := a.(TextDelta)
		return ok && a.PartID == b.PartID
	case ReasoningDelta:
		a, ok := a.(ReasoningDelta)
		return ok && a.PartID == b.PartID
	case ToolCallArgs:
		a, ok := a.(ToolCallArgs)
		return ok && a.Call == b.Call
	}
	return false
}

// deltaText returns the text of a delta.
func deltaText(b Body) string {
	switch b := b.(type) {
	case TextDelta:
		return b.Delta
	case ReasoningDelta:
		return b.Delta
	case ToolCallArgs:
		return b.Delta
	}
	return ""
}

// DeltaSize returns about how long a delta's own fields are as JSON, in bytes; 0 for other bodies.
func DeltaSize(b Body) int {
	switch b := b.(type) {
	case TextDelta:
		return b.size()
	case ReasoningDelta:
		return b.size()
	case ToolCallArgs:
		return b.size()
	}
	return 0
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
