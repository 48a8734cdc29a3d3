package output

import "strings"

// Fence removes a Markdown code fence around a text that arrives in pieces. It holds back only bytes that may belong to
// a fence. It does not change a text that does not begin with a fence. The zero value is ready to use.
type Fence struct {
	state   fenceState
	pending string // text that was added but not returned yet; at most maxPending bytes between calls
}

// fenceState says what is known about the text's fence.
type fenceState uint8

const (
	undecided fenceState = iota // the text so far may be white space and a part of the opening fence
	inFence                     // the opening fence was removed
	noFence                     // the text does not begin with a fence
)

const (
	fence = "```"
	// maxPending is how many bytes a Fence holds back at most. A fence in more white space counts as text.
	maxPending = 256
)

// Add adds a piece of the text. It returns what was added so far and not returned yet, except for the opening fence and
// for bytes at the end that may belong to a fence.
func (f *Fence) Add(piece string) string {
	if f.state == noFence {
		return piece
	}
	f.pending += piece
	if f.state == undecided && !f.decide() {
		return ""
	}
	textEnd := len(f.pending) - f.possibleFenceBytes()
	ready := f.pending[:textEnd]
	f.pending = f.pending[textEnd:]
	return ready
}

// End returns the rest of the text, without a closing fence, and resets f for the next text.
func (f *Fence) End() string {
	rest := f.pending
	if f.state == inFence && strings.TrimSpace(rest) == fence {
		rest = ""
	}
	*f = Fence{}
	return rest
}

// decide sets f.state according to whether the text begins with a fence, and removes an opening fence from the pending
// text. It returns false if it needs more of the text to decide.
func (f *Fence) decide() bool {
	text := strings.TrimLeft(f.pending, " \t\r\n")
	line, rest, isComplete := strings.Cut(text, "\n")
	size := len(f.pending) - len(text) + len(line)
	language, hasFence := strings.CutPrefix(line, fence)
	mayBeFence := hasFence || !isComplete && strings.HasPrefix(fence, line)
	// If JSON or more backquotes follow on the same line, the line is not an opening fence.
	hasText := hasFence && strings.ContainsAny(language, "`{[\"")
	switch {
	case size > maxPending, !mayBeFence, hasText:
		f.state = noFence
		return true
	case !isComplete:
		return false
	}
	f.state = inFence
	f.pending = rest
	return true
}

// possibleFenceBytes returns how many bytes at the end of the pending text may belong to the closing fence: up to three
// backquotes with white space around them. It returns 0 if these are more than maxPending bytes, which count as text.
func (f *Fence) possibleFenceBytes() int {
	if f.state == noFence {
		return 0
	}
	const space = " \t\r\n"
	upToMarks := strings.TrimRight(f.pending, space)
	beforeMarks := strings.TrimRight(upToMarks, "`")
	if len(upToMarks)-len(beforeMarks) > len(fence) {
		return 0
	}
	beforeFence := strings.TrimRight(beforeMarks, space)
	size := len(f.pending) - len(beforeFence)
	if size > maxPending {
		return 0
	}
	return size
}
