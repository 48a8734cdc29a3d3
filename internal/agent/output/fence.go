package output

import "strings"

// Fence removes a Markdown code fence around a text that arrives in pieces. It keeps back only bytes that may belong to
// a fence. It does not change a text without a fence at its beginning. The zero value is ready for a text.
type Fence struct {
	state   fenceState
	pending string // what was added and not returned yet, at most maxPending bytes between calls
}

// fenceState is what is known about the fence of a text.
type fenceState uint8

const (
	undecided fenceState = iota // the text so far may be white space and a part of the opening fence
	inFence                     // the opening fence was removed
	noFence                     // the text does not begin with a fence
)

const (
	fence = "```"
	// maxPending bounds the text that a Fence keeps back, in bytes. A fence with more white space
	// around it counts as text.
	maxPending = 256
)

// Add adds a piece of the text. It returns the text that was added so far and not returned before, without the opening
// fence and without bytes at the end that may belong to a fence.
func (f *Fence) Add(piece string) string {
	if f.state == noFence {
		return piece
	}
	f.pending += piece
	if f.state == undecided && !f.decide() {
		return ""
	}
	n := len(f.pending) - f.possibleFenceBytes()
	ready := f.pending[:n]
	f.pending = f.pending[n:]
	return ready
}

// End returns the rest of the text, without a closing fence. It resets f for another text.
func (f *Fence) End() string {
	rest := f.pending
	if f.state == inFence && strings.TrimSpace(rest) == fence {
		rest = ""
	}
	*f = Fence{}
	return rest
}

// decide decides whether the text begins with a fence, sets f.state accordingly, and removes an opening fence from the
// pending text. It returns false if more of the text is needed to decide.
func (f *Fence) decide() bool {
	text := strings.TrimLeft(f.pending, " \t\r\n")
	marker, rest, isComplete := strings.Cut(text, "\n") // marker is the line of the fence with its language
	size := len(f.pending) - len(text) + len(marker)
	mayBeFence := strings.HasPrefix(marker, fence[:min(len(fence), len(marker))])
	language := strings.TrimRight(strings.TrimPrefix(marker, fence), " \t\r")
	// If JSON or more backquotes follow on the same line, the line is not an opening fence.
	hasText := len(marker) >= len(fence) && strings.ContainsAny(language, "`{[\"")
	switch {
	case size > maxPending, !mayBeFence, hasText:
		f.state = noFence
		return true
	case !isComplete:
		return false
	case !strings.HasPrefix(marker, fence):
		f.state = noFence
		return true
	}
	f.state = inFence
	f.pending = rest
	return true
}

// possibleFenceBytes returns how many bytes at the end of the pending text may belong to the closing fence: up to three
// backquotes with white space around them. It returns 0 if these would be more than maxPending bytes.
func (f *Fence) possibleFenceBytes() int {
	if f.state == noFence {
		return 0
	}
	const space = " \t\r\n"
	rest := strings.TrimRight(f.pending, space)
	ticks := len(rest) - len(strings.TrimRight(rest, "`"))
	if ticks > len(fence) {
		return 0
	}
	rest = strings.TrimRight(rest[:len(rest)-ticks], space)
	if n := len(f.pending) - len(rest); n <= maxPending {
		return n
	}
	return 0
}
