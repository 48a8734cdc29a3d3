package openai

import (
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"

	"answerd/internal/llm"
)

// callPiece is the part of one call that one delta contains. Strings that are missing in the delta are empty.
type callPiece struct {
	index     int64 // the endpoint's number for the call, if hasIndex
	hasIndex  bool  // distinguishes an index of 0 from a missing one
	id        string
	name      string
	arguments string
	members   []rawMember // members that Chat Completions does not define
}

// isEmpty reports whether the piece has no content. Some endpoints send such pieces as padding.
func (p *callPiece) isEmpty() bool { return p.id == "" && p.name == "" && p.arguments == "" }

// partialCall is a call that may still grow.
type partialCall struct {
	index         int    // position in order of appearance; parts refer to the call by it
	upstreamIndex int64  // the endpoint's number for the call, if hasIndex
	hasIndex      bool   // the endpoint numbers its calls
	upstreamID    string // the endpoint's id; "" if it has sent none
	id            string // the unique id in emitted parts; set when the call is announced
	name          string
	arguments     []byte
	scan          llm.ArgumentScanner // has read arguments, and knows whether they are complete
	announced     bool                // the start of the call was emitted, so its name and id are final
	extensions    extensionValue      // an object with the members to send back
}

// addNameAndID adds the id and name of a piece. Only the first id is used. Endpoints send a name as a whole, in pieces,
// or as a whole with every piece. So a piece that equals the name so far is not appended. The name does not change
// after the call was announced.
func (c *partialCall) addNameAndID(piece callPiece) {
	if c.upstreamID == "" {
		c.upstreamID = piece.id
	}
	if !c.announced && piece.name != c.name {
		c.name += piece.name
	}
}

// addArguments adds a piece of the arguments.
func (c *partialCall) addArguments(piece string) {
	c.arguments = append(c.arguments, piece...)
	for i := range len(piece) {
		c.scan.Next(piece[i])
	}
}

// startsAnotherCall reports whether a piece begins another call, although findCall says that it continues c. Endpoints
// that send each call in one piece may use the same index or id for all calls.
func (c *partialCall) startsAnotherCall(piece callPiece) bool {
	if piece.name == "" {
		return false
	}
	// c is complete, and the piece has a name and the beginning of other arguments. A name alone proves nothing,
	// because some endpoints repeat the name in every piece.
	beginsObject := strings.HasPrefix(strings.TrimLeft(piece.arguments, " \t\r\n"), "{")
	if c.scan.Closed() && beginsObject {
		return true
	}
	// c already has arguments, so a different name that comes with arguments does not continue c's name.
	return len(c.arguments) > 0 && piece.name != c.name && piece.arguments != ""
}

// hasIndexOrID reports whether piece has c's index. If piece or c has no index, it compares their ids instead. A piece
// with c's index does not count if it has a name and a different id.
func (c *partialCall) hasIndexOrID(piece callPiece) bool {
	if !piece.hasIndex || !c.hasIndex {
		return piece.id != "" && piece.id == c.upstreamID
	}
	// If several calls share one index, a different id with a name begins another call. A different id without a name
	// does not, because some endpoints make up a new id for every piece.
	hasOtherID := piece.id != "" && c.upstreamID != "" && piece.id != c.upstreamID
	isAnotherCall := hasOtherID && piece.name != ""
	return piece.index == c.upstreamIndex && !isAnotherCall
}

// callSet holds the calls of one answer in order of appearance.
//
// Chat Completions numbers the calls: the first piece of a call has an index, an id and the name, and the following
// pieces have the index and more of the arguments. Endpoints deviate from that in many ways. They leave out the index,
// use 0 for all calls, send a new id with each piece, repeat the name, or send whole calls. A piece that is added to
// the wrong call makes both calls invalid or, worse, valid with the arguments of another call. So findCall and
// startsAnotherCall use everything in a piece: first its index and id, then its name, and whether the call's arguments
// are complete.
type callSet []*partialCall

// last returns the call that began last, or nil if the answer has no calls yet.
func (calls callSet) last() *partialCall {
	if len(calls) == 0 {
		return nil
	}
	return calls[len(calls)-1]
}

// findOrAddCall returns the call that a piece belongs to, and adds a call if the piece begins one. isFirst says that the
// piece is the first one of its chunk. findOrAddCall returns an error if it would exceed llm.MaxCalls.
func (calls *callSet) findOrAddCall(piece callPiece, isFirst bool) (*partialCall, error) {
	call := calls.findCall(piece, isFirst)
	if call != nil && !call.startsAnotherCall(piece) {
		return call, nil
	}
	if len(*calls) == llm.MaxCalls {
		return nil, newError(llm.ModelError, publicTooManyCalls, errors.New("more than 128 tool calls in one answer"))
	}
	call = &partialCall{index: len(*calls), upstreamIndex: piece.index, hasIndex: piece.hasIndex}
	*calls = append(*calls, call)
	return call, nil
}

// findCall returns the call that piece seems to continue, or nil if it begins one. A piece with the index or id of a
// call continues that call. If several calls match, the latest one is being written. A piece without an index may also
// continue the last call. isFirst says that the piece is the first one of its chunk.
func (calls callSet) findCall(piece callPiece, isFirst bool) *partialCall {
	for _, call := range slices.Backward(calls) {
		if call.hasIndexOrID(piece) {
			return call
		}
	}
	last := calls.last()
	if piece.hasIndex || last == nil {
		return nil
	}
	if piece.name == "" {
		return last
	}
	// A name without index and id continues the last call's name, unless that call already has arguments or this piece
	// is not the first of its chunk. Two such pieces in one chunk are two calls.
	if piece.id != "" || !isFirst || len(last.arguments) > 0 {
		return nil
	}
	return last
}

// isRepetition reports whether a piece repeats a complete call, or all arguments of one. Some gateways send a call in
// pieces and then as a whole (https://github.com/anomalyco/opencode/pull/17339), or under several indexes
// (https://github.com/mudler/LocalAI/issues/9722). Complete arguments cannot be continued, so a piece without a name
// whose arguments equal those of its call repeats them. A piece with a name repeats a call only if the ids are equal
// too, because a model may make two equal calls with different ids. isFirst has the same meaning as for findCall.
func (calls callSet) isRepetition(piece callPiece, isFirst bool) bool {
	if piece.name == "" {
		call := calls.findCall(piece, isFirst)
		return call != nil && call.scan.Closed() && string(call.arguments) == piece.arguments
	}
	return piece.id != "" && slices.ContainsFunc(calls, func(c *partialCall) bool {
		isSameCall := c.upstreamID == piece.id && c.name == piece.name
		return isSameCall && c.scan.Closed() && string(c.arguments) == piece.arguments
	})
}

// withoutRepetition returns the object once if arguments is the same JSON object several times, and otherwise returns
// arguments unchanged. Some gateways repeat the first arguments of a call like this
// (https://github.com/Soju06/codex-lb/issues/284).
func withoutRepetition(arguments string) string {
	var scan llm.ArgumentScanner
	for i := range len(arguments) {
		if scan.Next(arguments[i]) { // the first object ends here
			object := arguments[:i+1]
			if strings.Repeat(object, len(arguments)/len(object)) == arguments {
				return object
			}
			break
		}
	}
	return arguments
}

// maxCallID is the largest size of a call's id, in bytes. It is limited because each event and log line of the call
// repeats the id. Some gateways put a signature of several kilobytes into the id, which must be sent back unchanged.
const maxCallID = 8 << 10

// uniqueID returns id, with a suffix such as "_2" if an announced call of this answer has the same id, because some
// endpoints give one id to two calls. It returns a random id if id is empty, longer than maxCallID, or contains U+0000.
// Names that begin with U+0000 are reserved among the results of a run (package record).
func (calls callSet) uniqueID(id string) string {
	if id == "" || len(id) > maxCallID || strings.Contains(id, "\x00") {
		return "call_" + rand.Text()
	}
	unique := id
	for n := 2; calls.hasID(unique); n++ {
		unique = id + "_" + strconv.Itoa(n)
	}
	return unique
}

// hasID reports whether an announced call has this id. It compares at most llm.MaxCalls calls.
func (calls callSet) hasID(id string) bool {
	return slices.ContainsFunc(calls, func(c *partialCall) bool { return c.announced && c.id == id })
}
