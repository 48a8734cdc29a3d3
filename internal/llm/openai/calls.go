package openai

import (
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"

	"answerd/internal/llm"
)

// callPiece holds the part of one call that one delta contains. An index of 0 differs from no
// index.
type callPiece struct {
	index     int64 // the endpoint's, if it numbers its calls
	hasIndex  bool
	id        string
	name      string
	arguments string
	members   []rawMember // all others
}

// startsObject reports whether the arguments begin like those of a new call.
func (p *callPiece) startsObject() bool {
	return strings.HasPrefix(strings.TrimLeft(p.arguments, " \t\r\n"), "{")
}

// isEmpty reports whether the piece has no content: some endpoints send such pieces as padding.
func (p *callPiece) isEmpty() bool { return p.id == "" && p.name == "" && p.arguments == "" }

// partialCall holds a call that may still grow.
type partialCall struct {
	index         int   // our index: the position in order of appearance
	upstreamIndex int64 // the endpoint's index, if it numbers its calls
	hasIndex      bool
	upstreamID    string
	id            string // the id in our parts, set when the call is announced
	name          string
	arguments     []byte
	scan          llm.ArgumentScanner // over arguments, to know when they are complete
	announced     bool
	extensions    extensionSet
}

// addNameAndID adds a piece's id and name. Endpoints send a name whole, in pieces, or whole
// again with every piece. Parts of a name that arrive after the announcement are ignored.
func (c *partialCall) addNameAndID(p callPiece) {
	if c.upstreamID == "" {
		c.upstreamID = p.id
	}
	if !c.announced && p.name != c.name {
		c.name += p.name
	}
}

// addArguments adds a piece of the arguments.
func (c *partialCall) addArguments(piece string) {
	c.arguments = append(c.arguments, piece...)
	c.scan.Feed(piece)
}

// startsAnotherCall reports whether a piece that seems to continue a call begins another call.
// Endpoints that send each call in one piece give all of them the same index or id.
func (c *partialCall) startsAnotherCall(piece callPiece) bool {
	if piece.name == "" {
		return false
	}
	// A complete object followed by another object with a name before it is two calls. Without
	// checking the brackets, a name repeated in every piece would begin a call each time.
	if c.scan.Closed() && piece.startsObject() {
		return true
	}
	return len(c.arguments) > 0 && piece.name != c.name && piece.arguments != ""
}

// hasIndexOrID reports whether p carries c's index or id.
func (c *partialCall) hasIndexOrID(p callPiece) bool {
	if !p.hasIndex || !c.hasIndex {
		return p.id != "" && p.id == c.upstreamID
	}
	// If several calls share one index, a different id with a name begins another call. A
	// different id without a name does not: some endpoints make up a new id for every piece.
	hasOtherID := p.id != "" && c.upstreamID != "" && p.id != c.upstreamID
	begins := hasOtherID && p.name != ""
	return p.index == c.upstreamIndex && !begins
}

// callSet holds the calls of one answer in order of appearance.
//
// Chat Completions numbers the calls: the first piece of each has an index, an id and the name, and
// the following ones have the index and more of the arguments. Endpoints deviate from that in many
// ways. They leave out the index, or use 0 for all calls, send a new id with each piece, repeat
// the name, or send whole calls. A piece that is added to the wrong call makes both calls invalid, or
// worse, valid with the arguments of another one. So findCall and startsAnotherCall use everything that
// a piece has: its index and id first, then its name, and whether the call's arguments are complete.
type callSet struct {
	list []*partialCall
}

// count returns the number of calls, complete or not.
func (s *callSet) count() int { return len(s.list) }

// callFor returns the call that a piece belongs to, or a new one. later means that other pieces
// preceded it in its chunk.
func (s *callSet) callFor(piece callPiece, later bool) (*partialCall, error) {
	call := s.findCall(piece, later)
	if call != nil && !call.startsAnotherCall(piece) {
		return call, nil
	}
	if len(s.list) == llm.MaxCalls {
		return nil, newError(llm.ModelError, publicTooManyCalls, errors.New("more than 128 tool calls in one answer"))
	}
	call = &partialCall{index: len(s.list), upstreamIndex: piece.index, hasIndex: piece.hasIndex}
	s.list = append(s.list, call)
	return call, nil
}

// findCall returns the call that piece continues according to its index or id, or nil. It checks the
// latest call first: where indexes or ids repeat, that call is the one being written.
func (s *callSet) findCall(piece callPiece, later bool) *partialCall {
	for i := len(s.list) - 1; i >= 0; i-- {
		if s.list[i].hasIndexOrID(piece) {
			return s.list[i]
		}
	}
	if piece.hasIndex || len(s.list) == 0 {
		return nil
	}
	last := s.list[len(s.list)-1]
	if piece.name == "" {
		return last
	}
	// A name without index and id continues the last call's name, unless that call already has
	// arguments or this piece is not the first of its chunk.
	if piece.id != "" || later || len(last.arguments) > 0 {
		return nil
	}
	return last
}

// isRepetition reports whether a piece is a complete call once more, or all of its arguments. Some gateways send a call
// in pieces and then as a whole (https://github.com/anomalyco/opencode/pull/17339), or under several indexes
// (https://github.com/mudler/LocalAI/issues/9722). Arguments that are complete cannot be continued, so a piece without
// a name that equals all of them repeats them. A piece with a name repeats a call if the id is the same too: two calls
// of a model may be equal, but their ids differ.
func (s *callSet) isRepetition(piece callPiece, later bool) bool {
	if piece.name == "" {
		call := s.findCall(piece, later)
		return call != nil && call.scan.Closed() && string(call.arguments) == piece.arguments
	}
	return piece.id != "" && slices.ContainsFunc(s.list, func(c *partialCall) bool {
		isSameCall := c.upstreamID == piece.id && c.name == piece.name
		return isSameCall && c.scan.Closed() && string(c.arguments) == piece.arguments
	})
}

// withoutRepetition returns the first arguments of a call as they are, or once if they are the same object several
// times, as some gateways send them (https://github.com/Soju06/codex-lb/issues/284).
func withoutRepetition(arguments string) string {
	var scan llm.ArgumentScanner
	for i := range len(arguments) {
		if !scan.Next(arguments[i]) {
			continue
		}
		object := arguments[:i+1]
		if n := len(arguments) / len(object); n > 1 && strings.Repeat(object, n) == arguments {
			return object
		}
		break
	}
	return arguments
}

// maxCallID bounds the id of a call in bytes; each event and log line of the call repeats it. Some
// gateways put a signature of several kilobytes into it, which must go back unchanged.
const maxCallID = 8 << 10

// uniqueID returns id, changed as little as makes it differ from those given before: an
// answer's calls are told apart by it, and endpoints give one id to two calls, or none. A longer
// id than maxCallID is replaced.
func (s *callSet) uniqueID(id string) string {
	if id == "" || len(id) > maxCallID {
		return "call_" + rand.Text()
	}
	for n, candidate := 2, id; ; n++ {
		if !s.hasID(candidate) {
			return candidate
		}
		candidate = id + "_" + strconv.Itoa(n)
	}
}

// hasID reports whether id was given to a call. It compares at most 128 calls.
func (s *callSet) hasID(id string) bool {
	for _, c := range s.list {
		if c.announced && c.id == id {
			return true
		}
	}
	return false
}
