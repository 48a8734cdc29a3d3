package event

// Deltas joins consecutive deltas of one part or call into a single delta. The zero value is empty.
type Deltas struct {
	first delta  // nil if there are no deltas
	text  []byte // the texts of all deltas, joined
	size  int    // estimated length of the joined delta's own fields as JSON
}

// Add adds body as the last delta and returns true. It returns false and changes nothing if body is not a delta, if it
// belongs to a different part or call than the earlier deltas, or if the joined delta's own fields would exceed maxSize
// bytes, as estimated by its method size.
func (d *Deltas) Add(body Body, maxSize int) bool {
	added, ok := body.(delta)
	if !ok {
		return false
	}
	size := added.size()
	if d.first != nil {
		if !d.first.isSamePart(body) {
			return false
		}
		size = d.size + len(added.text())
	}
	if size > maxSize {
		return false
	}
	if d.first == nil {
		d.first = added
	}
	d.text = append(d.text, added.text()...)
	d.size = size
	return true
}

// Join returns one delta with the text of all deltas, or nil if d is empty.
func (d *Deltas) Join() Body {
	if d.first == nil {
		return nil
	}
	return d.first.withText(string(d.text))
}

// Reset removes all deltas and keeps the memory for the next ones.
func (d *Deltas) Reset() { *d = Deltas{text: d.text[:0]} }

// delta is a body with the next piece of a part or of a call's arguments.
type delta interface {
	appender
	text() string
	withText(text string) Body  // a delta of the same part or call
	isSamePart(other Body) bool // whether other is a delta of the same part or call
}

func (d TextDelta) text() string      { return d.Delta }
func (d ReasoningDelta) text() string { return d.Delta }
func (d ToolCallArgs) text() string   { return d.Delta }

func (d TextDelta) withText(text string) Body      { return TextDelta{d.PartID, text} }
func (d ReasoningDelta) withText(text string) Body { return ReasoningDelta{d.PartID, text} }
func (d ToolCallArgs) withText(text string) Body   { return ToolCallArgs{d.Call, text} }

func (d TextDelta) isSamePart(other Body) bool {
	o, ok := other.(TextDelta)
	return ok && o.PartID == d.PartID
}

func (d ReasoningDelta) isSamePart(other Body) bool {
	o, ok := other.(ReasoningDelta)
	return ok && o.PartID == d.PartID
}

func (d ToolCallArgs) isSamePart(other Body) bool {
	o, ok := other.(ToolCallArgs)
	return ok && o.Call == d.Call
}

// IsDelta reports whether body is a piece of text, of reasoning or of a call's arguments.
func IsDelta(body Body) bool {
	_, ok := body.(delta)
	return ok
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
