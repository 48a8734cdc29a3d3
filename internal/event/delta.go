package event

// JoinDeltas returns one delta with the text of a followed by that of b. ok is false unless
// both are deltas of the same part or call. If a is nil, the result is b.
func JoinDeltas(a, b Body) (joined Body, ok bool) {
	switch b := b.(type) {
	case TextDelta:
		if a == nil {
			return b, true
		}
		if a, same := a.(TextDelta); same && a.PartID == b.PartID {
			return TextDelta{a.PartID, a.Delta + b.Delta}, true
		}
	case ReasoningDelta:
		if a == nil {
			return b, true
		}
		if a, same := a.(ReasoningDelta); same && a.PartID == b.PartID {
			return ReasoningDelta{a.PartID, a.Delta + b.Delta}, true
		}
	case ToolCallArgs:
		if a == nil {
			return b, true
		}
		if a, same := a.(ToolCallArgs); same && a.Call == b.Call {
			return ToolCallArgs{a.Call, a.Delta + b.Delta}, true
		}
	}
	return nil, false
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
