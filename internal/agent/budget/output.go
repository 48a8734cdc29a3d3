package budget

import (
	"math"
	"unicode/utf8"
)

// SummaryTokens is what the last turn of a run may write although a limit of tokens or cost is
// reached, so that it can sum up.
const SummaryTokens = 1024

// AnswerTokens returns how many tokens the next answer may have, so that it stays within the
// limits of tokens and cost; 0 means no limit. prompt is the least number of tokens that its
// prompt will have. The last turn of a run may always have SummaryTokens.
func (b *Budget) AnswerTokens(prompt int64, last bool) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := min(b.output.remaining(), b.total.remaining()-float64(prompt))
	if b.price != nil && b.price.Output > 0 {
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

// Output measures an answer while it is written and says when to cut it. Endpoints count tokens
// only at the end of an answer, and some ignore the limit that a request asks for.
type Output struct {
	limit  int64 // tokens; 0 is none
	pieces int64
	bytes  int64
	words  int64
	inWord bool   // the last byte belongs to a word
	tail   []byte // the last bytes, at most twice loopBytes
	next   int64  // number of bytes at which to look for a loop again
}

const (
	loopPeriod   = 200             // bytes that a looping model repeats, at most
	minPeriod    = 16              // and at least: lines of one character, padding and base64 of zeros repeat less
	loopBytes    = 20 * loopPeriod // of such a repetition
	outputSlack  = 32              // tokens beyond the limit, since the count is an estimate
	measureBytes = 32              // bytes of a piece that are counted together
)

// NewOutput returns an Output for an answer of at most limit tokens; 0 means no limit.
func NewOutput(limit int64) *Output { return &Output{limit: limit, next: loopBytes} }

// Tokens returns the least number of tokens that the answer so far can have. As a rule endpoints
// send each token in a piece of its own, but some send bytes of a token or many tokens in one. A
// word between blanks is at least a token, and a token has rarely more than 8 bytes.
func (o *Output) Tokens() int64 {
	return max(min(o.pieces, (o.bytes+2)/3), o.bytes/8, o.words)
}

// Add counts a piece of text, of reasoning, or of a call's arguments. It returns what of it is within
// the limit, and whether the answer must be cut there: because it exceeds its limit, or because it
// repeats the same 16 to 200 bytes up to a length of twenty times 200 bytes.
func (o *Output) Add(piece string) (kept string, cut bool) {
	o.pieces++
	for rest := piece; rest != ""; {
		n := min(measureBytes, len(rest))
		for n < len(rest) && !utf8.RuneStart(rest[n]) {
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

// count adds a part of the answer to the counts of bytes and words, and to the tail in which loops looks.
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

// repeatsItself reports whether the answer repeats itself. It looks only now and then.
func (o *Output) repeatsItself() bool {
	if o.bytes < o.next {
		return false
	}
	o.next = o.bytes + loopPeriod*2
	if len(o.tail) < loopBytes {
		return false
	}
	p := period(o.tail[len(o.tail)-loopBytes:])
	return minPeriod <= p && p <= loopPeriod
}

// period returns the shortest length that text repeats from its beginning to its end, by the prefix
// function of Knuth, Morris and Pratt.
func period(text []byte) int {
	borders := make([]int, len(text)) // of each beginning of text: its longest proper prefix that is also its end
	for i := 1; i < len(text); i++ {
		n := borders[i-1]
		for n > 0 && text[i] != text[n] {
			n = borders[n-1]
		}
		if text[i] == text[n] {
			n++
		}
		borders[i] = n
	}
	return len(text) - borders[len(text)-1]
}
