package schema

import (
	"strconv"
	"strings"
)

// step is one step of the way from the whole value to what is in it; nil is the whole.
type step struct {
	up    *step
	name  string // of a member
	index int    // of an item
	item  bool
}

// maxPointer bounds the bytes of a pointer that is handed out.
const maxPointer = 512

func (s *step) depth() int {
	n := 0
	for ; s != nil; s = s.up {
		n++
	}
	return n
}

// pointer is the JSON pointer (RFC 6901) of where the way leads.
func (s *step) pointer() string {
	var b strings.Builder
	s.write(&b)
	return cut(b.String(), maxPointer)
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

func (s *step) write(b *strings.Builder) {
	if s == nil {
		return
	}
	s.up.write(b)
	b.WriteByte('/')
	if s.item {
		b.WriteString(strconv.Itoa(s.index))
		return
	}
	_, _ = escaper.WriteString(b, s.name)
}
