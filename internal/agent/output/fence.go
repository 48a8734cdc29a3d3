package output

import "strings"

// Fence removes a Markdown code fence around a text that arrives in pieces. It holds back only what
// may belong to a fence. Text without a fence at its beginning stays as it is.
type Fence struct {
	state fenceState
	held  string
}

type fenceState uint8

const (
	atStart fenceState = iota // only white space and a part of the opening fence have come
	inside
	outside // the text has no fence
)

const (
	fence = "```"
	// maxHeld bounds the text that a Fence holds back, in bytes. A fence with more white space
	// around it counts as text.
	maxHeld = 256
)

// Add adds a piece of the text and returns what can be sent.
func (f *Fence) Add(piece string) string {
	if f.state == outside {
		return piece
	}
	f.held += piece
	if f.state == atStart && !f.open() {
		return ""
	}
	return f.release(len(f.held) - f.possibleFenceBytes())
}

// End returns the rest of the text, without a closing fence. The Fence is then ready for another
// text.
func (f *Fence) End() string {
	rest := f.held
	if f.state == inside && strings.TrimSpace(rest) == fence {
		rest = ""
	}
	*f = Fence{}
	return rest
}

// open reads the opening fence, and reports whether enough of the text has come to decide.
func (f *Fence) open() bool {
	text := strings.TrimLeft(f.held, " \t\r\n")
	marker, ended := text, false
	if i := strings.IndexByte(text, '\n'); i >= 0 {
		marker, ended = text[:i], true
	}
	size := len(f.held) - len(text) + len(marker)
	language := strings.TrimRight(strings.TrimPrefix(marker, fence), " \t\r")
	switch {
	case size > maxHeld, !strings.HasPrefix(marker, fence[:min(len(fence), len(marker))]), strings.ContainsAny(language, "`{[\"") && len(marker) >= len(fence):
		f.state = outside
		return true
	case !ended:
		return false
	case !strings.HasPrefix(marker, fence):
		f.state = outside
		return true
	}
	f.state, f.held = inside, text[len(marker)+1:]
	return true
}

// possibleFenceBytes returns how many bytes at the end of the held text may be the closing fence.
func (f *Fence) possibleFenceBytes() int {
	if f.state == outside {
		return 0
	}
	const space = " \t\r\n"
	rest := strings.TrimRight(f.held, space)
	ticks := len(rest) - len(strings.TrimRight(rest, "`"))
	if ticks > len(fence) {
		return 0
	}
	rest = strings.TrimRight(rest[:len(rest)-ticks], space)
	if n := len(f.held) - len(rest); n <= maxHeld {
		return n
	}
	return 0
}

// release returns the first n bytes of the held text and removes them.
func (f *Fence) release(n int) string {
	out := f.held[:n]
	f.held = f.held[n:]
	return out
}
