package budget

import (
	"bytes"
	"math"
	"unicode/utf8"
)

// SummaryTokens is how many tokens the last turn of a run may write even if a limit on tokens or cost is reached, so
// that the model can summarize.
const SummaryTokens = 1024

// AnswerTokens returns how many tokens the next answer may have, so that the run stays within its limits on output
// tokens, total tokens and cost. 0 means no limit; if nothing is left, AnswerTokens returns 1. prompt is a lower bound
// for the tokens of the next prompt. last means the run's last turn, which may always have SummaryTokens.
func (b *Budget) AnswerTokens(prompt int64, last bool) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := min(b.output.remaining(), b.total.remaining()-float64(prompt))
	if b.price != nil && b.price.Output > 0 {
		const tokensPerPrice = 1e6
		costLeft := b.cost.remaining()*tokensPerPrice - float64(prompt)*b.price.Input
		left = min(left, costLeft/b.price.Output)
	}
	if math.IsInf(left, 1) {
		return 0
	}
	if last {
		left = max(left, SummaryTokens)
	}
	return max(int64(left), 1)
}

// Output measures an answer while it arrives, and says when to cut it. That is needed because endpoints report tokens
// only at the end of an answer, and some ignore a request's limit.
type Output struct {
	limit     int64  // tokens; 0 means no limit
	pieces    int64  // how many pieces the endpoint has sent
	bytes     int64  // length of the answer so far
	words     int64  // how many words have begun
	inWord    bool   // the last byte was part of a word
	tail      []byte // the end of the answer, at most twice loopBytes
	nextCheck int64  // the value of bytes at which repeatsItself next looks for a loop
}

const (
	maxPeriod    = 200            // bytes of the longest text whose repetition counts as a loop
	minPeriod    = 16             // bytes of the shortest one: padding, repeated characters and base64 of zeros have shorter periods
	loopBytes    = 20 * maxPeriod // how many bytes must be a repetition to count as a loop
	outputSlack  = 32             // tokens by which an answer may exceed its limit, because the count is an estimate
	measureBytes = 32             // bytes of a piece to count at once
)

// NewOutput returns an Output for an answer of at most limit tokens; 0 means no limit.
func NewOutput(limit int64) *Output { return &Output{limit: limit, nextCheck: loopBytes} }

// Tokens estimates the lowest number of tokens that the answer so far can have. Most endpoints send each token in its
// own piece, but some send single bytes of a token, or many tokens in one piece. So the number of pieces counts only up
// to one per 3 bytes. A word between blanks has at least one token, and a token rarely has more than 8 bytes.
func (o *Output) Tokens() int64 {
	countedPieces := min(o.pieces, (o.bytes+2)/3) // the quotient is rounded up
	return max(countedPieces, o.bytes/8, o.words)
}

// Add counts a piece of text, reasoning or a call's arguments. If the answer must be cut, Add returns the part of the
// piece before the cut, and true. Otherwise it returns the whole piece, and false. An answer is cut if it exceeds its
// limit, or if its last loopBytes repeat a text of minPeriod to maxPeriod bytes.
func (o *Output) Add(piece string) (kept string, cut bool) {
	o.pieces++
	for rest := piece; rest != ""; {
		n := min(measureBytes, len(rest))
		for n < len(rest) && !utf8.RuneStart(rest[n]) { // do not split a character
			n++
		}
		o.count(rest[:n])
		rest = rest[n:]
		exceedsLimit := o.limit > 0 && o.Tokens() > o.limit+outputSlack
		if exceedsLimit || o.repeatsItself() {
			return piece[:len(piece)-len(rest)], true
		}
	}
	return piece, false
}

// count adds a part of the answer to the counters and to o.tail, which keeps the last loopBytes of the answer for
// repeatsItself. o.tail may grow to twice that size, so that its beginning need not be removed each time.
func (o *Output) count(part string) {
	o.bytes += int64(len(part))
	for i := range len(part) {
		isBlank := part[i] == ' ' || part[i] == '\n' || part[i] == '\t' || part[i] == '\r'
		if !isBlank && !o.inWord {
			o.words++
		}
		o.inWord = !isBlank
	}
	o.tail = append(o.tail, part...)
	if excess := len(o.tail) - loopBytes; excess > loopBytes {
		o.tail = append(o.tail[:0], o.tail[excess:]...)
	}
}

// repeatsItself reports whether the last loopBytes of the answer repeat a text of minPeriod to maxPeriod bytes. Because
// this takes time, it checks only every 2*maxPeriod bytes, and returns false in between.
func (o *Output) repeatsItself() bool {
	if o.bytes < o.nextCheck {
		return false
	}
	o.nextCheck = o.bytes + 2*maxPeriod
	if len(o.tail) < loopBytes {
		return false
	}
	text := o.tail[len(o.tail)-loopBytes:]
	for period := 1; period <= maxPeriod; period++ {
		if bytes.Equal(text[period:], text[:len(text)-period]) {
			// This is the shortest period. Longer ones do not count, because text of period 1 also has period minPeriod.
			return period >= minPeriod
		}
	}
	return false
}
