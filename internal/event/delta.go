package event

// Join returns one delta that says what a and then b say, where both are deltas of the
// same part or call. A nil a is b alone.
func Join(a, b Body) (joined Body, ok bool) {
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

// Size returns about how long a delta's own fields are as JSON, in bytes; 0 for other bodies.
func Size(b Body) int {
	switch b := b.(type) {
	case TextDelta:
		return len(b.PartID) + len(b.Delta) + 32
	case ReasoningDelta:
		return len(b.PartID) + len(b.Delta) + 32
	case ToolCallArgs:
		return len(b.CallID) + len(b.Tool) + len(b.Server) + len(b.Delta) + 64
	}
	return 0
}
