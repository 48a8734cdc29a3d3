package openai

import (
	"crypto/rand"
	"errors"
	"strconv"
	"strings"

	"answerd/internal/llm"
)

// callPiece holds what one delta contains of one call. An index of 0 differs from no index.
type callPiece struct {
	index     int64 // the endpoint's, where numbered
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

// isEmpty reports whether p says nothing: some endpoints send such pieces as padding.
func (p *callPiece) isEmpty() bool { return p.id == "" && p.name == "" && p.arguments == "" }

// partialCall holds a call of which more pieces may arrive.
type partialCall struct {
	index         int   // ours: the place in order of appearance
	upstreamIndex int64 // the endpoint's index, where numbered
	hasIndex      bool
	upstreamID    string
	id            string // what our parts carry, set when the call is announced
	name          string
	arguments     []byte
	scan          llm.ArgumentScanner // over arguments, to know when they are complete
	announced     bool
	extensions    extensionSet
}

// addNameAndID adds a piece's id and name. Names come whole, in pieces, or whole once more
// with every piece; what comes after the announcement is too late.
func (c *partialCall) addNameAndID(p callPiece) {
	if c.upstreamID == "" {
		c.upstreamID = p.id
	}
	if !c.announced && p.name != c.name {
		c.name += p.name
	}
}

// startsAnotherCall reports whether a piece that seems to continue c begins another call:
// endpoints that send every call at once use one index, or one id, for all of them.
func (c *partialCall) startsAnotherCall(p callPiece) bool {
	if p.name == "" {
		return false
	}
	// A complete object followed by another with a name in front is two calls. Without the
	// look at brackets, a name that is repeated with every piece would be one each time.
	if c.scan.Closed() && p.startsObject() {
		return true
	}
	return len(c.arguments) > 0 && p.name != c.name && p.arguments != ""
}

// hasIndexOrID reports whether p carries c's index or id.
func (c *partialCall) hasIndexOrID(p callPiece) bool {
	if !p.hasIndex || !c.hasIndex {
		return p.id != "" && p.id == c.upstreamID
	}
	// One index for several calls: another id with a name begins another. An id without
	// a name does not, since some endpoints make up a new one for every piece.
	another := p.id != "" && p.name != "" && c.upstreamID != "" && p.id != c.upstreamID
	return p.index == c.upstreamIndex && !another
}

// callSet holds the calls of one answer in order of appearance.
type callSet struct {
	list []*partialCall
}

func (s *callSet) count() int { return len(s.list) }

// callFor returns the call that a piece belongs to, a new one if it begins one. later
// says that other pieces stood before it in its chunk.
func (s *callSet) callFor(p callPiece, later bool) (*partialCall, error) {
	c := s.findCall(p, later)
	if c != nil && !c.startsAnotherCall(p) {
		return c, nil
	}
	if len(s.list) == llm.MaxCalls {
		return nil, newError(llm.ModelError, publicTooManyCalls, errors.New("more than 128 tool calls in one answer"))
	}
	c = &partialCall{index: len(s.list), upstreamIndex: p.index, hasIndex: p.hasIndex}
	s.list = append(s.list, c)
	return c, nil
}

// findCall returns the call that p continues by its marks, or nil. The latest is tried
// first: where marks repeat, it is the one being written.
func (s *callSet) findCall(p callPiece, later bool) *partialCall {
	for i := len(s.list) - 1; i >= 0; i-- {
		if s.list[i].hasIndexOrID(p) {
			return s.list[i]
		}
	}
	if p.hasIndex || len(s.list) == 0 {
		return nil
	}
	last := s.list[len(s.list)-1]
	if p.name == "" {
		return last
	}
	// A name without any mark continues a name, unless the call is past its own or
	// another piece of the same chunk may have been that call.
	if p.id != "" || later || len(last.arguments) > 0 {
		return nil
	}
	return last
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

// hasID reports whether id was given to a call. There are at most 128 to look at.
func (s *callSet) hasID(id string) bool {
	for _, c := range s.list {
		if c.announced && c.id == id {
			return true
		}
	}
	return false
}
