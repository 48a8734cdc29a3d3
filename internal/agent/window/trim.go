package window

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// retryTrimRatio is the share of a request that the provider refused as too long which the
// second try may have.
const retryTrimRatio = 0.6

// Result tells what trimming did. All figures are estimates in tokens.
type Result struct {
	Before, After int64 // of the conversation
	Limit         int64 // that the prompt may have
	Trimmed       bool  // the conversation was above Limit
	TooLarge      bool  // what cannot be left out does not fit the window
}

// Trim shortens conv where its estimate is above the limit, before a request is made with it.
func (w *Window) Trim(conv *Conversation) Result {
	w.sent = w.estimatePlain(conv)
	result := Result{Before: w.conversationTokens(conv), Limit: w.promptLimit()}
	result.After = result.Before
	if w.size == 0 || result.Before <= result.Limit {
		return result
	}
	result.Trimmed, result.After = true, w.fit(conv, result.Limit)
	least := result.After
	if !w.counted {
		least /= 2 // the estimate may be too high by as much; the provider decides
	}
	result.TooLarge = least > result.Limit && !w.guessed
	w.sent = w.estimatePlain(conv)
	return result
}

// Refusal holds what a provider named when it refused a conversation as too long, in tokens. 0
// means that it did not name it.
type Refusal struct {
	Window int64 // prompt and answer together
	Prompt int64 // as the provider counted it
}

// TrimRefused shortens conv after the provider refused it as too long. It learns from that: the sizes
// of the window and the prompt if the provider named them, otherwise a size for an unknown window,
// or a higher estimate. Trimmed is false if nothing was left out. Then another try may only
// succeed with a shorter answer, and with TooLarge not even then.
func (w *Window) TrimRefused(conv *Conversation, refused Refusal) Result {
	w.Observe(event.Usage{InputTokens: refused.Prompt})
	w.LearnSize(refused.Window)
	counted := refused.Prompt > 0 && w.Size() > 0
	if !counted {
		w.learnRefused(w.sentTokens())
	}
	r := Result{Before: w.conversationTokens(conv), Limit: w.promptLimit()}
	target := r.Limit
	if !counted {
		target = min(target, int64(float64(w.sentTokens())*retryTrimRatio))
	}
	r.After = w.fit(conv, target)
	r.Trimmed = r.After != r.Before
	r.TooLarge = counted && r.After >= w.size
	w.sent = w.estimatePlain(conv)
	return r
}

// learnRefused corrects the window by a request of that many estimated tokens that the
// provider refused as too long.
func (w *Window) learnRefused(tokens int64) {
	if w.size == 0 {
		w.size, w.guessed = tokens, true
		w.reserve = min(w.size/8, maxAnswerReserve)
		return
	}
	w.factor = min(max(w.factor, w.factor*float64(w.size)/float64(max(tokens, 1))), 4)
}

// estimatePlain returns the estimate for c by bytes alone, without the provider's correction.
func (w *Window) estimatePlain(c *Conversation) int64 {
	byBytes := Window{factor: 1}
	return byBytes.conversationTokens(c)
}

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

// requiredTokens estimates what fit leaves of conv while it keeps the results of the last turn
// whole: the system prompt, the question, the earlier calls without long arguments, and the
// last turn.
func (w *Window) requiredTokens(conv *Conversation) int64 {
	sum := w.toolTokens(conv.Tools)
	turn := conv.lastTurn()
	for i := range conv.Messages {
		m := &conv.Messages[i]
		switch {
		case i == 0 || i >= turn:
			sum += w.messageTokens(m)
		case i > conv.History && m.Role != llm.ToolRole:
			short := shortenArguments(m)
			sum += w.messageTokens(&short)
		}
	}
	return sum
}

// fit shortens conv to at most limit tokens, as far as that is possible, and returns the estimate
// for what is left. It works in this order and stops as soon as conv fits:
//
//  1. results of earlier turns become placeholders, the oldest first
//  2. messages of the history are dropped, the oldest first
//  3. long arguments of earlier calls are left out
//  4. results of the last turn are cut
//
// The system prompt, the question, every call and the last turn's messages stay.
func (w *Window) fit(conv *Conversation, limit int64) int64 {
	tokens := w.conversationTokens(conv)
	if tokens > limit && w.requiredTokens(conv) > limit {
		// Otherwise one huge result would drive out everything that was said before it.
		tokens -= w.cutResults(conv, limit/2)
	}
	tokens -= w.replaceEarlierResults(conv, tokens-limit)
	tokens -= w.dropHistory(conv, tokens-limit)
	tokens -= w.shortenEarlierArguments(conv, tokens-limit)
	if excess := tokens - limit; excess > 0 {
		tokens -= w.cutResults(conv, w.resultTokens(conv)-excess)
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
func (w *Window) dropHistory(conv *Conversation, excess int64) (saved int64) {
	dropped := 0
	for dropped < conv.History && saved < excess {
		dropped++
		saved += w.messageTokens(&conv.Messages[dropped])
		// The history continues with a user's message. An answer without its question says
		// little, and endpoints refuse a result without its call.
		for dropped < conv.History && conv.Messages[dropped+1].Role != llm.User {
			dropped++
			saved += w.messageTokens(&conv.Messages[dropped])
		}
	}
	conv.Messages = append(conv.Messages[:1:1], conv.Messages[dropped+1:]...)
	conv.History -= dropped
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
func (w *Window) cutResults(conv *Conversation, limit int64) (saved int64) {
	results := conv.lastResults()
	slices.SortStableFunc(results, func(a, b *llm.Message) int { return cmp.Compare(w.messageTokens(a), w.messageTokens(b)) })
	for i, m := range results {
		tokens, share := w.messageTokens(m), limit/int64(len(results)-i)
		if tokens > share {
			if share < minResultTokens {
				return saved
			}
			w.cutResult(conv, m, share)
		}
		saved += tokens - w.messageTokens(m)
		limit -= w.messageTokens(m)
	}
	return saved
}

// cutResult cuts a result to a number of tokens and appends a note that says so. Images and
// audio are left out first.
func (w *Window) cutResult(c *Conversation, message *llm.Message, tokens int64) {
	stored := c.storedAt(message, "; the whole is kept at ")
	if len(message.Media) > 0 {
		message.Media = nil
		message.Text += fmt.Sprintf("\n[not shown, to make room%s]", stored)
		if w.messageTokens(message) <= tokens {
			return
		}
	}
	note := fmt.Sprintf("\n[cut here to make room%s]", stored)
	excess := w.messageTokens(message) + w.textTokens(len(note)) - tokens + 1 // one more for rounding
	keep := len(message.Text) - int(float64(excess)*bytesPerToken/w.factor) - 1
	keep = max(min(keep, len(message.Text)-1), 0)
	for keep > 0 && !utf8.RuneStart(message.Text[keep]) {
		keep--
	}
	message.Text = message.Text[:keep] + note
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

// shortenArguments returns the message without the long arguments of its calls. The calls themselves
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
