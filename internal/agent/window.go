package agent

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"unicode/utf8"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// How much a conversation is taken to weigh in tokens before a provider has counted
// any. English has some four bytes a token and JSON some three, so that this errs
// towards leaving out too much; base64 has fewer, and is what retryShorter is for.
const (
	bytesPerToken    = 3
	tokensPerMessage = 8  // role and framing; a call has as much
	tokensPerTool    = 16 // framing of one tool's definition
	maxAnswerReserve = 8192
	minShareOfResult = 64 // tokens; with less of a result than this a model can do nothing
)

// window keeps a run's conversation within what its model can take: whole messages
// leave it, results of tools first, and nothing that the model needs to go on.
//
// Only the run's goroutine uses it.
type window struct {
	size    int64   // in tokens, prompt and answer together; 0 is unknown
	reserve int64   // of it, what is kept free for the answer
	factor  float64 // what a provider counted for each token that was estimated
	sent    int64   // the estimate of the last request, before factor
	guessed bool    // size is that of a request that was refused
	told    bool    // readers know that something was left out
}

func newWindow(p llm.Profile) window {
	w := window{size: p.ContextTokens, reserve: p.MaxOutputTokens, factor: 1}
	if w.reserve == 0 {
		w.reserve = min(w.size/8, maxAnswerReserve)
	}
	return w
}

// limit is the tokens that a prompt may have; 0 is no bound.
func (w *window) limit() int64 { return w.size - min(w.reserve, w.size) }

// learn corrects the estimate by what the provider counted for the last request.
func (w *window) learn(u event.Usage) {
	if u.InputTokens > 0 && w.sent > 0 {
		// A provider that counts nonsense must not be the end of a conversation.
		w.factor = min(max(float64(u.InputTokens)/float64(w.sent), 0.25), 4)
	}
}

// refused learns from a request of that weight that a provider found too long.
func (w *window) refused(weight int64) {
	if w.size == 0 {
		w.size, w.guessed = weight, true
		w.reserve = min(w.size/8, maxAnswerReserve)
		return
	}
	w.factor = min(max(w.factor, w.factor*float64(w.size)/float64(max(weight, 1))), 4)
}

// plain is the estimate for c by bytes alone.
func (w *window) plain(c *conversation) int64 {
	byBytes := window{factor: 1}
	return byBytes.weigh(c)
}

// tokens is the estimate for a text of n bytes.
func (w *window) tokens(n int) int64 { return int64(float64(n) / bytesPerToken * w.factor) }

// weight is the estimate for one message.
func (w *window) weight(m *llm.Message) int64 {
	bytes := len(m.Text) + len(m.Tool)
	for _, c := range m.Calls {
		bytes += len(c.Name) + len(c.Arguments) + tokensPerMessage*bytesPerToken
	}
	return w.tokens(bytes + tokensPerMessage*bytesPerToken)
}

// toolWeight is the estimate for the tools that a request offers.
func (w *window) toolWeight(tools []llm.Tool) int64 {
	bytes := 0
	for i := range tools {
		bytes += len(tools[i].Name) + len(tools[i].Description) + len(tools[i].Schema) + tokensPerTool*bytesPerToken
	}
	return w.tokens(bytes)
}

// conversation is what a window has to hold.
type conversation struct {
	runID    string
	messages []llm.Message
	history  int // how many messages behind the first are from before the question
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
			if short := standIn(c.runID, m); w.weight(&short) < w.weight(m) {
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
		for dropped < c.history && c.messages[dropped+1].Role == llm.Assistant {
			dropped++
			gone += w.weight(&c.messages[dropped])
		}
	}
	c.messages = append(c.messages[:1:1], c.messages[dropped+1:]...)
	c.history -= dropped
	return gone
}

// standIn is the message in the place of a result that was left out. The call and its
// answer stay a pair: endpoints refuse one without the other.
func standIn(runID string, m *llm.Message) llm.Message {
	return llm.Message{Role: m.Role, CallID: m.CallID, Tool: m.Tool, Failed: m.Failed, Text: fmt.Sprintf(
		"[The result of %s (call %s) was left out to make room. It is kept at %s.]", m.Tool, m.CallID, placeOf(runID, m.CallID))}
}

// longArguments is from how many bytes on arguments are worth a stand-in.
const longArguments = 256

// withoutArguments is a message without the long arguments of its calls. That they were
// made must stay: a model that doesn't know would make them again.
func withoutArguments(m *llm.Message) llm.Message {
	short := *m
	short.Calls = slices.Clone(m.Calls)
	for i, c := range short.Calls {
		if len(c.Arguments) > longArguments {
			short.Calls[i].Arguments = fmt.Sprintf(`{"left_out":"%d bytes of arguments, to make room"}`, len(c.Arguments))
		}
	}
	return short
}

// placeOf is where a result is kept whole.
func placeOf(runID, callID string) string {
	return "/runs/" + runID + "/results/" + url.PathEscape(callID)
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
			w.shorten(c.runID, m, share)
		}
		saved += weight - w.weight(m)
		room -= w.weight(m)
	}
	return saved
}

// shorten cuts a result to a weight, and says so in it.
func (w *window) shorten(runID string, m *llm.Message, weight int64) {
	mark := fmt.Sprintf("\n[cut here to make room; the whole is kept at %s]", placeOf(runID, m.CallID))
	over := w.weight(m) + w.tokens(len(mark)) - weight + 1 // for what rounding takes
	keep := len(m.Text) - int(float64(over)*bytesPerToken/w.factor) - 1
	keep = max(min(keep, len(m.Text)-1), 0)
	for keep > 0 && !utf8.RuneStart(m.Text[keep]) {
		keep--
	}
	m.Text = m.Text[:keep] + mark
}
