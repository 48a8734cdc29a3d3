package llm

// Bounds of the calls in one answer. A Model fails an answer that exceeds them.
const (
	MaxCalls         = 128
	MaxArgumentBytes = 1 << 20 // of one call
)

// ArgumentScanner finds where the JSON object in a call's arguments ends, while the text arrives in pieces. It knows
// brackets, strings and escapes and nothing else: text that is not JSON, such as {'a': 1}, ends too, so that the model
// can learn what is wrong with it. Because of that it is not done with jsontext. The zero value is ready for the first
// byte.
type ArgumentScanner struct {
	depth   int
	quoted  bool
	escaped bool
	opened  bool
}

// Closed reports whether the outermost bracket was opened and closed again.
func (s *ArgumentScanner) Closed() bool { return s.opened && s.depth == 0 }

// Next reads one byte and reports whether it closed the outermost bracket. Bytes before
// that bracket opens, and after it has closed, change nothing.
func (s *ArgumentScanner) Next(char byte) bool {
	switch {
	case s.Closed():
		return false
	case s.escaped:
		s.escaped = false
	case s.quoted:
		s.escaped = char == '\\'
		s.quoted = char != '"'
	case char == '{' || char == '[':
		s.opened = true
		s.depth++
	case !s.opened:
		return false
	case char == '"':
		s.quoted = true
	case char == '}' || char == ']':
		s.depth--
		return s.depth == 0
	}
	return false
}

// Feed reads text and reports whether the outermost bracket is closed now.
func (s *ArgumentScanner) Feed(text string) bool {
	for i := 0; i < len(text) && !s.Closed(); i++ {
		s.Next(text[i])
	}
	return s.Closed()
}
