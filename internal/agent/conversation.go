package agent

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"

	"answerd/internal/llm"
)

// conversation is what a window has to hold.
type conversation struct {
	runID    string
	messages []llm.Message
	history  int             // how many messages behind the first are from before the question
	given    map[string]bool // ids of the calls that came with the request
	tools    []llm.Tool
}

// turn is where the last turn begins: the last message with calls. Without one, what
// follows the history counts as it.
func (c *conversation) turn() int {
	for i := len(c.messages) - 1; i > c.history; i-- {
		if len(c.messages[i].Calls) > 0 {
			return i
		}
	}
	return c.history + 1
}

// weigh is the estimate for all of c.
func (w *window) weigh(c *conversation) int64 {
	sum := w.toolWeight(c.tools)
	for i := range c.messages {
		sum += w.weight(&c.messages[i])
	}
	return sum
}

// core is the estimate for what of c has to stay, as long as the last turn does.
func (w *window) core(c *conversation) int64 {
	sum := w.toolWeight(c.tools)
	turn := c.turn()
	for i := range c.messages {
		m := &c.messages[i]
		switch {
		case i == 0 || i >= turn:
			sum += w.weight(m)
		case i > c.history && m.Role != llm.ToolRole:
			short := withoutArguments(m)
			sum += w.weight(&short)
		}
	}
	return sum
}

// fit makes c weigh at most limit, as far as that is possible, and returns what it
// weighs then. First go the results of earlier turns, the oldest first, each for a line
// that says where it is; then the history, the oldest message first; then long arguments
// of earlier calls. The system prompt, the question, every call and the last turn stay;
// but where these alone are too much, the results of that turn are cut.
func (w *window) fit(c *conversation, limit int64) int64 {
	weight := w.weigh(c)
	if weight > limit && w.core(c) > limit {
		// One huge result would else drive out everything that was said before it.
		weight -= w.cut(c, limit/2)
	}
	for i, turn := c.history+1, c.turn(); i < turn && weight > limit; i++ {
		if m := &c.messages[i]; m.Role == llm.ToolRole {
			if short := c.standIn(m); w.weight(&short) < w.weight(m) {
				weight -= w.weight(m) - w.weight(&short)
				*m = short
			}
		}
	}
	weight -= w.forget(c, weight-limit)
	for i, turn := c.history+1, c.turn(); i < turn && weight > limit; i++ {
		m := &c.messages[i]
		before := w.weight(m)
		*m = withoutArguments(m)
		weight -= before - w.weight(m)
	}
	if weight > limit {
		weight -= w.cut(c, w.resultWeight(c)-(weight-limit))
	}
	return weight
}

// forget drops the oldest messages of the history that weigh at least excess together,
// and returns what they weigh.
func (w *window) forget(c *conversation, excess int64) (gone int64) {
	dropped := 0
	for dropped < c.history && gone < excess {
		dropped++
		gone += w.weight(&c.messages[dropped])
		// An answer without its question says little, and some templates begin with a user.
		// Neither does a result without its call, which endpoints refuse.
		for dropped < c.history && c.messages[dropped+1].Role != llm.User {
			dropped++
			gone += w.weight(&c.messages[dropped])
		}
	}
	c.messages = append(c.messages[:1:1], c.messages[dropped+1:]...)
	c.history -= dropped
	return gone
}

// results are the results of the last turn.
func (c *conversation) results() (out []*llm.Message) {
	for i := c.turn(); i < len(c.messages); i++ {
		if c.messages[i].Role == llm.ToolRole {
			out = append(out, &c.messages[i])
		}
	}
	return out
}

// resultWeight is the estimate for the results of the last turn.
func (w *window) resultWeight(c *conversation) (sum int64) {
	for _, m := range c.results() {
		sum += w.weight(m)
	}
	return sum
}

// minShareOfResult is in tokens; with less of a result than this a model can do nothing.
const minShareOfResult = 64

// cut makes the results of the last turn weigh at most room together, the longest ones
// first, and returns what that saves. It does nothing where too little of them would be
// left.
func (w *window) cut(c *conversation, room int64) (saved int64) {
	results := c.results()
	slices.SortStableFunc(results, func(a, b *llm.Message) int { return cmp.Compare(w.weight(a), w.weight(b)) })
	for i, m := range results {
		weight, share := w.weight(m), room/int64(len(results)-i)
		if weight > share {
			if share < minShareOfResult {
				return saved
			}
			w.shorten(c, m, share)
		}
		saved += weight - w.weight(m)
		room -= w.weight(m)
	}
	return saved
}

// shorten cuts a result to a weight, and says so in it. What is shown besides its text
// goes first.
func (w *window) shorten(c *conversation, m *llm.Message, weight int64) {
	if len(m.Media) > 0 {
		m.Media = nil
		m.Text += fmt.Sprintf("\n[not shown, to make room%s]", c.place(m, "; the whole is kept at "))
		if w.weight(m) <= weight {
			return
		}
	}
	mark := fmt.Sprintf("\n[cut here to make room%s]", c.place(m, "; the whole is kept at "))
	over := w.weight(m) + w.tokens(len(mark)) - weight + 1 // for what rounding takes
	keep := len(m.Text) - int(float64(over)*bytesPerToken/w.factor) - 1
	keep = max(min(keep, len(m.Text)-1), 0)
	for keep > 0 && !utf8.RuneStart(m.Text[keep]) {
		keep--
	}
	m.Text = m.Text[:keep] + mark
}
