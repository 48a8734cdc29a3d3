package budget

import (
	"bytes"
	"math"
	"unicode/utf8"
)

// SummaryTokens is the number of tokens that the last turn of a run may write even if a limit of tokens or cost is
// reached, so that the model can sum up.
const SummaryTokens = 1024

// AnswerTokens returns how many tokens the next answer may have so that the run stays within the limits of output
// tokens, total tokens and cost; 0 means no limit. If nothing is left it returns 1. prompt is the least number of
// tokens that the prompt will have. last says that this is the last turn of the run, which may always have
// SummaryTokens.
func (b *Budget) AnswerTokens(prompt int64, last bool) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := min(b.output.remaining(), b.total.remaining()-float64(prompt))
	if b.price != nil && b.price.Output > 0 { // prices are for 1e6 tokens
		left = min(left, (b.cost.remaining()*1e6-float64(prompt)*b.price.Input)/b.price.Output)
	}
	if math.IsInf(left, 1) {
		return 0
	}
	if last {
		left = max(left, SummaryTokens)
	}
	return max(int64(left), 1)
}

// LowerTokens returns the lower of two numbers of tokens, where 0 means no limit.
func LowerTokens(a, b int64) int64 { return lowerLimit(a, b) }

// Output measures an answer while it is written, and says when it must be cut. Endpoints count tokens
// only at the end of an answer, and some ignore the limit of a request.
type Output struct {
	limit     int64  // tokens; 0 means no limit
	pieces    int64  // number of pieces that the endpoint has sent
	bytes     int64  // length of the answer so far
	words     int64  // number of words that have begun
	inWord    bool   // the last byte belongs to a word
	tail      []byte // the end of the answer, at most twice loopBytes
	nextCheck int64  // value of bytes from which repeatsItself looks for a loop again
}

const (
	maxPeriod    = 200            // longest text, in bytes, whose repetition counts as a loop
	minPeriod    = 16             // shortest one: lines of one character, padding and base64 of zeros have shorter periods
	loopBytes    = 20 * maxPeriod // length of a repetition from which it counts as a loop
	outputSlack  = 32             // tokens that an answer may exceed its limit by, because the count is an estimate
	measureBytes = 32             // bytes of a piece that are counted together
)

// NewOutput returns an Output for an answer of at most limit tokens; 0 means no limit.
func NewOutput(limit int64) *Output { return &Output{limit: limit, nextCheck: loopBytes} }

// Tokens estimates the least number of tokens that the answer so far can have. Most endpoints
// send each token in a piece of its own, but some send single bytes of a token, or many tokens in one piece. So pieces
// count only up to one for 3 bytes. A word between blanks is at least one token, and a token rarely has more than
// 8 bytes.
func (o *Output) Tokens() int64 {
	return max(min(o.pieces, (o.bytes+2)/3), o.bytes/8, o.words)
}

// Add counts a piece of text, of reasoning, or of a call's arguments. If the answer must be cut within the piece, it
// returns the part of the piece before the cut, and true; otherwise it returns the whole piece. An answer is cut if it
// exceeds its limit, or if its last loopBytes repeat the same minPeriod to maxPeriod bytes.
func (o *Output) Add(piece string) (kept string, cut bool) {
	o.pieces++
	for rest := piece; rest != ""; {
		n := min(measureBytes, len(rest))
		for n < len(rest) && !utf8.RuneStart(rest[n]) { // a cut must not split a character
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
// repeatsItself. o.tail may grow to twice that size, so that its beginning is not removed for each part.
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

// repeatsItself reports whether the last loopBytes of the answer repeat a text of minPeriod to maxPeriod bytes. It
// looks only once in 2*maxPeriod bytes and returns false in between, because looking takes time.
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
			return period >= minPeriod // The shortest period counts: a text of one letter repeats itself every 16 bytes, too.
		}
	}
	return false
}
