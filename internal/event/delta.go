package event

// Deltas joins consecutive deltas of one part or call into a single delta. The zero value is empty.
type Deltas struct {
	first Body   // nil if there are no deltas
	text  []byte // the texts of all deltas, joined
	size  int    // the DeltaSize of the joined delta
}

// Add adds body as the last delta and returns true. It returns false and changes nothing if body is not a delta, if it
// belongs to a different part or call than the earlier deltas, or if the DeltaSize of the joined delta would exceed
// maxSize.
func (d *Deltas) Add(body Body, maxSize int) bool {
	size := DeltaSize(body)
	if size == 0 { // body is not a delta
		return false
	}
	text := deltaText(body)
	if d.first != nil {
		if !isSamePart(d.first, body) {
			return false
		}
		size = d.size + len(text)
	}
	if size > maxSize {
		return false
	}
	if d.first == nil {
		d.first = body
	}
	d.text = append(d.text, text...)
	d.size = size
	return true
}

// Join returns one delta with the text of all deltas, or nil if d is empty.
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

// Reset removes all deltas and keeps the memory for the next ones.
func (d *Deltas) Reset() { *d = Deltas{text: d.text[:0]} }

// isSamePart reports whether a and b are deltas of one part or call.
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

// deltaText returns a delta's text, or "" for any other body.
func deltaText(body Body) string {
	switch b := body.(type) {
	case TextDelta:
		return b.Delta
	case ReasoningDelta:
		return b.Delta
	case ToolCallArgs:
		return b.Delta
	}
	return ""
}

// DeltaSize estimates the length in bytes of a delta's own fields as JSON. It returns 0 for any other body.
func DeltaSize(body Body) int {
	switch b := body.(type) {
	case TextDelta:
		return b.size()
	case ReasoningDelta:
		return b.size()
	case ToolCallArgs:
		return b.size()
	}
	return 0
}

// Deltas have their own encoder because nearly all events are deltas. With encoding/json a streamed answer took 20 %
// more CPU time where 1,000 tokens came at once, and 11 % more where 400 came one by one.

func (d TextDelta) size() int      { return len(d.PartID) + len(d.Delta) + 32 }
func (d ReasoningDelta) size() int { return len(d.PartID) + len(d.Delta) + 32 }
func (d ToolCallArgs) size() int {
	return len(d.CallID) + len(d.Tool) + len(d.Server) + len(d.Delta) + 64
}

func (d TextDelta) appendFields(buf []byte) []byte {
	return appendMember(append(appendMember(buf, "part_id", d.PartID), ','), "delta", d.Delta)
}

func (d ReasoningDelta) appendFields(buf []byte) []byte { return TextDelta(d).appendFields(buf) }

func (d ToolCallArgs) appendFields(buf []byte) []byte {
	return appendMember(append(appendCall(buf, d.Call), ','), "delta", d.Delta)
}
