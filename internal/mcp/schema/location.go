package schema

import (
	"strconv"
	"strings"
)

// location is the place of a value within the checked value: a member or an item of the value at
// up. nil is the checked value itself. Its pointer is computed only if there is a problem.
type location struct {
	up    *location
	name  string // of a member
	index int    // of an item
	item  bool
}

// maxPointer bounds the bytes of a pointer in a Problem.
const maxPointer = 512

// depth returns the number of levels below the checked value.
func (s *location) depth() int {
	n := 0
	for ; s != nil; s = s.up {
		n++
	}
	return n
}

// pointer returns the JSON pointer (RFC 6901) of the location.
func (s *location) pointer() string {
	var b strings.Builder
	s.writePointer(&b)
	return truncate(b.String(), maxPointer)
}

// pointerEscaper escapes a member's name for a JSON pointer (RFC 6901 section 3).
var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// writePointer writes the pointer of the location, from the root down.
func (s *location) writePointer(b *strings.Builder) {
	if s == nil {
		return
	}
	s.up.writePointer(b)
	b.WriteByte('/')
	if s.item {
		b.WriteString(strconv.Itoa(s.index))
		return
	}
	_, _ = pointerEscaper.WriteString(b, s.name)
}
