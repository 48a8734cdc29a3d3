package window

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"

	"answerd/internal/llm"
)

// Conversation is the prompt of a request: its messages and the tools that it offers. The first
// message is the system prompt, then comes the history, then the question and all turns since.
type Conversation struct {
	Messages []llm.Message // trimming replaces elements, and drops some of the history
	History  int           // messages behind the first that are older than the question
	Tools    []llm.Tool
	// StoredAt returns the URL path at which a result can be read in full, by the id of its
	// call; "" if it is not stored.
	StoredAt func(callID string) string
}

// lastTurn returns the index at which the last turn begins: the last message with calls. If
// there is none, what follows the history counts as the last turn.
func (c *Conversation) lastTurn() int {
	for i := len(c.Messages) - 1; i > c.History; i-- {
		if len(c.Messages[i].Calls) > 0 {
			return i
		}
	}
	return c.History + 1
}

// conversationTokens estimates all of c.
func (w *Window) conversationTokens(c *Conversation) int64 {
	sum := w.toolTokens(c.Tools)
	for i := range c.Messages {
		sum += w.messageTokens(&c.Messages[i])
	}
	return sum
}

// requiredTokens estimates what fit leaves of c while it keeps the results of the last turn
// whole: the system prompt, the question, the earlier calls without long arguments, and the
// last turn.
func (w *Window) requiredTokens(c *Conversation) int64 {
	sum := w.toolTokens(c.Tools)
	turn := c.lastTurn()
	for i := range c.Messages {
		m := &c.Messages[i]
		switch {
		case i == 0 || i >= turn:
			sum += w.messageTokens(m)
		case i > c.History && m.Role != llm.ToolRole:
			short := shortenArguments(m)
			sum += w.messageTokens(&short)
		}
	}
	return sum
}

// fit shortens c to at most limit tokens, as far as that is possible, and returns the estimate
// for what is left. It works in this order and stops as soon as c fits:
//
//  1. results of earlier turns become placeholders, the oldest first
//  2. messages of the history are dropped, the oldest first
//  3. long arguments of earlier calls are left out
//  4. results of the last turn are cut
//
// The system prompt, the question, every call and the last turn's messages stay.
func (w *Window) fit(c *Conversation, limit int64) int64 {
	tokens := w.conversationTokens(c)
	if tokens > limit && w.requiredTokens(c) > limit {
		// Otherwise one huge result would drive out everything that was said before it.
		tokens -= w.cutResults(c, limit/2)
	}
	tokens -= w.replaceEarlierResults(c, tokens-limit)
	tokens -= w.dropHistory(c, tokens-limit)
	tokens -= w.shortenEarlierArguments(c, tokens-limit)
	if excess := tokens - limit; excess > 0 {
		tokens -= w.cutResults(c, w.resultTokens(c)-excess)
	}
	return tokens
}

// replaceEarlierResults puts placeholders in the place of results before the last turn, the
// oldest first, until it has saved excess tokens, and returns what it saved. A result that is
// shorter than its placeholder stays.
func (w *Window) replaceEarlierResults(c *Conversation, excess int64) (saved int64) {
	for i, turn := c.History+1, c.lastTurn(); i < turn && saved < excess; i++ {
		m := &c.Messages[i]
		if m.Role != llm.ToolRole {
			continue
		}
		short := c.placeholder(m)
		if less := w.messageTokens(m) - w.messageTokens(&short); less > 0 {
			*m = short
			saved += less
		}
	}
	return saved
}

// dropHistory drops the oldest messages of the history until it has saved excess tokens, and
// returns what it saved.
func (w *Window) dropHistory(c *Conversation, excess int64) (saved int64) {
	dropped := 0
	for dropped < c.History && saved < excess {
		dropped++
		saved += w.messageTokens(&c.Messages[dropped])
		// The history goes on with a user's message. An answer without its question says
		// little, and endpoints refuse a result without its call.
		for dropped < c.History && c.Messages[dropped+1].Role != llm.User {
			dropped++
			saved += w.messageTokens(&c.Messages[dropped])
		}
	}
	c.Messages = append(c.Messages[:1:1], c.Messages[dropped+1:]...)
	c.History -= dropped
	return saved
}

// shortenEarlierArguments leaves out long arguments of calls before the last turn, the oldest
// first, until it has saved excess tokens, and returns what it saved.
func (w *Window) shortenEarlierArguments(c *Conversation, excess int64) (saved int64) {
	for i, turn := c.History+1, c.lastTurn(); i < turn && saved < excess; i++ {
		m := &c.Messages[i]
		before := w.messageTokens(m)
		*m = shortenArguments(m)
		saved += before - w.messageTokens(m)
	}
	return saved
}

// lastResults returns the results of the last turn.
func (c *Conversation) lastResults() (out []*llm.Message) {
	for i := c.lastTurn(); i < len(c.Messages); i++ {
		if c.Messages[i].Role == llm.ToolRole {
			out = append(out, &c.Messages[i])
		}
	}
	return out
}

// resultTokens estimates the results of the last turn.
func (w *Window) resultTokens(c *Conversation) (sum int64) {
	for _, m := range c.lastResults() {
		sum += w.messageTokens(m)
	}
	return sum
}

// minResultTokens is the shortest part of a result that helps a model.
const minResultTokens = 64

// cutResults cuts the results of the last turn to limit tokens together, the longest ones
// first, and returns what it saved. Each result may have an equal share of what the shorter
// ones leave. It stops where a share would be below minResultTokens.
func (w *Window) cutResults(c *Conversation, limit int64) (saved int64) {
	results := c.lastResults()
	slices.SortStableFunc(results, func(a, b *llm.Message) int { return cmp.Compare(w.messageTokens(a), w.messageTokens(b)) })
	for i, m := range results {
		tokens, share := w.messageTokens(m), limit/int64(len(results)-i)
		if tokens > share {
			if share < minResultTokens {
				return saved
			}
			w.cutResult(c, m, share)
		}
		saved += tokens - w.messageTokens(m)
		limit -= w.messageTokens(m)
	}
	return saved
}

// cutResult cuts a result to a number of tokens and appends a note that says so. Images and
// audio are left out first.
func (w *Window) cutResult(c *Conversation, m *llm.Message, tokens int64) {
	stored := c.storedAt(m, "; the whole is kept at ")
	if len(m.Media) > 0 {
		m.Media = nil
		m.Text += fmt.Sprintf("\n[not shown, to make room%s]", stored)
		if w.messageTokens(m) <= tokens {
			return
		}
	}
	note := fmt.Sprintf("\n[cut here to make room%s]", stored)
	excess := w.messageTokens(m) + w.textTokens(len(note)) - tokens + 1 // one more for rounding
	keep := len(m.Text) - int(float64(excess)*bytesPerToken/w.factor) - 1
	keep = max(min(keep, len(m.Text)-1), 0)
	for keep > 0 && !utf8.RuneStart(m.Text[keep]) {
		keep--
	}
	m.Text = m.Text[:keep] + note
}

// placeholder returns the message that replaces a result. The call keeps an answer, since
// endpoints refuse a call without one.
func (c *Conversation) placeholder(m *llm.Message) llm.Message {
	return llm.Message{Role: m.Role, CallID: m.CallID, Tool: m.Tool, Failed: m.Failed, Text: fmt.Sprintf(
		"[The result of %s (call %s) was left out to make room%s.]", m.Tool, m.CallID, c.storedAt(m, ". It is kept at "))}
}

// storedAt returns where a result is stored, behind the words that lead to it; "" for one that
// came with the request, which the log does not store.
func (c *Conversation) storedAt(m *llm.Message, lead string) string {
	path := c.StoredAt(m.CallID)
	if path == "" {
		return ""
	}
	return lead + path
}

// longArguments is the size in bytes above which arguments are left out.
const longArguments = 256

// shortenArguments returns m without the long arguments of its calls. The calls themselves
// stay: a model that does not know of them would make them again.
func shortenArguments(m *llm.Message) llm.Message {
	short := *m
	short.Calls = slices.Clone(m.Calls)
	for i, c := range short.Calls {
		if len(c.Arguments) > longArguments {
			short.Calls[i].Arguments = fmt.Sprintf(`{"left_out":"%d bytes of arguments, to make room"}`, len(c.Arguments))
		}
	}
	return short
}
