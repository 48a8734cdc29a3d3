package schema

import (
	"strconv"
	"strings"

	"answerd/internal/mcp/wire"
)

// location is the place of a value within the checked value: an item or a member of the value at parent. The nil
// location is the checked value itself.
type location struct {
	parent *location
	isItem bool
	index  int    // of an item
	name   string // of a member
}

// item returns the location of the array item with index i. l is the array's location.
func (l *location) item(i int) *location { return &location{parent: l, isItem: true, index: i} }

// member returns the location of the object member called name. l is the object's location.
func (l *location) member(name string) *location { return &location{parent: l, name: name} }

// maxPointer is the maximum length in bytes of a pointer in a Problem.
const maxPointer = 512

// depth returns how many levels l is below the checked value. The depth of the checked value itself is 0.
func (l *location) depth() int {
	n := 0
	for ; l != nil; l = l.parent {
		n++
	}
	return n
}

// pointer returns l as a JSON pointer (RFC 6901), truncated to maxPointer bytes.
func (l *location) pointer() string {
	var b strings.Builder
	l.writePointer(&b)
	return wire.Truncate(b.String(), maxPointer)
}

// pointerEscaper escapes a member's name for a JSON pointer (RFC 6901 section 3).
var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// writePointer writes the JSON pointer of l to b. It writes the parent's pointer first, because pointers start at the
// root.
func (l *location) writePointer(b *strings.Builder) {
	if l == nil {
		return
	}
	l.parent.writePointer(b)
	b.WriteByte('/')
	if l.isItem {
		b.WriteString(strconv.Itoa(l.index))
		return
	}
	_, _ = pointerEscaper.WriteString(b, l.name)
}
