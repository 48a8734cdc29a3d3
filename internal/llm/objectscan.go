package llm

// objectScan follows JSON text byte by byte to where its outermost object or array
// closes. It knows brackets, strings and escapes and nothing else: text that is not JSON,
// such as {'a': 1}, closes too, so that the model can be told what was wrong with it.
// Because of that, and since the text arrives in pieces, it is not done with jsontext. The
// zero value stands before the first byte.
type objectScan struct {
	depth   int
	quoted  bool
	escaped bool
	opened  bool
}

// closed reports whether the outermost bracket was opened and closed again.
func (s *objectScan) closed() bool { return s.opened && s.depth == 0 }

// next takes one byte and reports whether it closed the outermost bracket. Bytes
// before that bracket opens, and after it has closed, change nothing.
func (s *objectScan) next(c byte) bool {
	switch {
	case s.closed():
		return false
	case s.escaped:
		s.escaped = false
	case s.quoted:
		s.escaped = c == '\\'
		s.quoted = c != '"'
	case c == '{' || c == '[':
		s.opened = true
		s.depth++
	case !s.opened:
		return false
	case c == '"':
		s.quoted = true
	case c == '}' || c == ']':
		s.depth--
		return s.depth == 0
	}
	return false
}

// feed takes more text and reports whether the outermost bracket is closed by now.
func (s *objectScan) feed(text string) bool {
	for i := 0; i < len(text) && !s.closed(); i++ {
		s.next(text[i])
	}
	return s.closed()
}
