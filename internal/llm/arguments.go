package llm

// Limits for the calls in one answer. A Model returns an error for an answer that exceeds them.
const (
	MaxCalls         = 128
	MaxArgumentBytes = 1 << 20 // for one call
)

// ArgumentScanner finds the end of the JSON object in a call's arguments while the text arrives in pieces. It knows
// only brackets, strings and escapes. So it also finds the end of text that is not JSON, such as {'a': 1}, and the
// model can be shown what is wrong with that text. This is why it does not use jsontext. The zero value is ready for
// the first byte.
type ArgumentScanner struct {
	opened   bool // the outermost bracket was read
	depth    int  // number of brackets that are open
	inString bool
	escaped  bool // the next byte follows a backslash in a string
}

// Closed reports whether the outermost bracket was opened and closed again.
func (s *ArgumentScanner) Closed() bool { return s.opened && s.depth == 0 }

// Next reads one byte and reports whether it closed the outermost bracket. It ignores bytes before that bracket opens
// and after it has closed. Either closing bracket closes either opening bracket.
func (s *ArgumentScanner) Next(char byte) bool {
	switch {
	case s.Closed():
		return false
	case s.escaped:
		s.escaped = false
	case s.inString:
		s.escaped = char == '\\'
		s.inString = char != '"'
	case char == '{' || char == '[':
		s.opened = true
		s.depth++
	case !s.opened: // quotes and closing brackets before the outermost bracket do not count
	case char == '"':
		s.inString = true
	case char == '}' || char == ']':
		s.depth--
	}
	return s.Closed()
}
