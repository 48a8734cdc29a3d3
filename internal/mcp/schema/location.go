package schema

import (
	"strconv"
	"strings"
)

// location is the place of a value within the checked value. nil is the checked value itself; any other location
// is a member or an item of the value at parent.
type location struct {
	parent *location
	isItem bool
	index  int    // of an item
	name   string // of a member
}

// item returns the place of the item i of the array at l.
func (l *location) item(i int) *location { return &location{parent: l, isItem: true, index: i} }

// member returns the place of the member called name of the object at l.
func (l *location) member(name string) *location { return &location{parent: l, name: name} }

// maxPointer bounds the bytes of a pointer in a Problem.
const maxPointer = 512

// depth returns the number of levels below the checked value.
func (l *location) depth() int {
	n := 0
	for ; l != nil; l = l.parent {
		n++
	}
	return n
}

// pointer returns the JSON pointer (RFC 6901) of the location, truncated to maxPointer bytes.
func (l *location) pointer() string {
	var b strings.Builder
	l.writePointer(&b)
	return truncate(b.String(), maxPointer)
}

// pointerEscaper escapes a member's name for a JSON pointer (RFC 6901 section 3).
var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// writePointer writes the pointer of the location, from the root down.
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
