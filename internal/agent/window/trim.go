package window

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// retryTrimRatio is the size to which TrimRefused trims a prompt whose permitted size it does not know, as a share of
// the prompt that the provider refused.
const retryTrimRatio = 0.6

// Result says what Trim or TrimRefused did. All numbers are estimates in tokens.
type Result struct {
	Before, After int64 // the size of the conversation
	Limit         int64 // the permitted size of the prompt
	Trimmed       bool  // Trim: Before was above Limit. TrimRefused: something was left out.
	TooLarge      bool  // what must not be left out does not fit the window
}

// Trim shortens conv if its estimate is above the limit, before a request is made with it. It never shortens conv while
// the size of the window is unknown.
func (w *Window) Trim(conv *Conversation) Result {
	w.sent = w.estimatePlain(conv)
	result := Result{Before: w.conversationTokens(conv), Limit: w.promptLimit()}
	result.After = result.Before
	if w.size == 0 || result.Before <= result.Limit {
		return result
	}
	result.Trimmed, result.After = true, w.fit(conv, result.Limit)
	lowEstimate := result.After
	if !w.counted {
		lowEstimate /= 2 // The estimate may be twice the true size. The provider decides in this case.
	}
	result.TooLarge = lowEstimate > result.Limit && !w.guessed
	w.sent = w.estimatePlain(conv)
	return result
}

// Refusal holds the sizes that a provider named when it refused a request as too long, in tokens. A size that it did
// not name is 0.
type Refusal struct {
	Window int64 // the context window, for prompt and answer together
	Prompt int64 // the prompt, as the provider counted it
}

// TrimRefused shortens conv after the provider refused a request with it as too long. It also corrects w: it takes the
// sizes of the window and of the prompt that the provider named. Without these it guesses the size of an unknown
// window, or raises the estimates.
//
// If Trimmed is false, nothing was left out, and another request can succeed only with a shorter answer. If TooLarge is
// true, no request can succeed.
func (w *Window) TrimRefused(conv *Conversation, refused Refusal) Result {
	w.Observe(event.Usage{InputTokens: refused.Prompt})
	w.LearnSize(refused.Window)
	counted := refused.Prompt > 0 && w.Size() > 0
	if !counted {
		w.learnRefused(w.PromptTokens())
	}
	r := Result{Before: w.conversationTokens(conv), Limit: w.promptLimit()}
	target := r.Limit
	if !counted {
		target = min(target, int64(float64(w.PromptTokens())*retryTrimRatio))
	}
	r.After = w.fit(conv, target)
	r.Trimmed = r.After != r.Before
	r.TooLarge = counted && r.After >= w.size
	w.sent = w.estimatePlain(conv)
	return r
}

// learnRefused corrects w after the provider refused a prompt as too long without naming sizes. tokens is the estimate
// of that prompt. If the size of the window is unknown, tokens becomes the guess. Otherwise the prompt must have been
// as large as the window, so the factor is raised accordingly, to at most maxFactor.
func (w *Window) learnRefused(tokens int64) {
	if w.size == 0 {
		w.size, w.guessed = tokens, true
		w.reserve = defaultReserve(w.size)
		return
	}
	w.factor = min(max(w.factor, w.factor*float64(w.size)/float64(max(tokens, 1))), maxFactor)
}

// estimatePlain estimates the tokens of conv from bytes alone, without w.factor.
func (w *Window) estimatePlain(conv *Conversation) int64 {
	byBytes := Window{factor: 1}
	return byBytes.conversationTokens(conv)
}

// Conversation is the prompt of a request: its messages and the tools that it offers. The first
// message is the system prompt, then comes the history, then the question and all turns since.
type Conversation struct {
	Messages []llm.Message // trimming replaces elements, and drops some of the history
	History  int           // the number of messages of the history
	Tools    []llm.Tool
	// StoredAt returns the URL path at which the result of a call can be read in full; "" if it is not stored.
	StoredAt func(callID string) string
}

// lastTurn returns the index in Messages at which the last turn begins: the last message with calls that follows the
// history. Without such a message, everything after the history counts as the last turn.
func (c *Conversation) lastTurn() int {
	for i := len(c.Messages) - 1; i > c.History; i-- {
		if len(c.Messages[i].Calls) > 0 {
			return i
		}
	}
	return c.History + 1
}

// conversationTokens estimates the tokens of all messages and tools of conv.
func (w *Window) conversationTokens(conv *Conversation) int64 {
	sum := w.toolTokens(conv.Tools)
	for i := range conv.Messages {
		sum += w.messageTokens(&conv.Messages[i])
	}
	return sum
}

// requiredTokens estimates the tokens that remain of conv if everything is left out except what fit keeps and the
// results of the last turn. What fit keeps are the system prompt, the question, the earlier calls without long
// arguments, and the messages of the last turn. The placeholders of earlier results are not counted.
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
// of the shortened conv. It works in this order and stops as soon as conv fits:
//
//  1. results of earlier turns become placeholders, the oldest first
//  2. messages of the history are dropped, the oldest first
//  3. long arguments of earlier calls are left out
//  4. results of the last turn are cut
//
// It keeps the system prompt, the question, every call of the run and the messages of the last turn. If these steps
// could not be enough without the fourth, it first cuts the results of the last turn to half the limit.
func (w *Window) fit(conv *Conversation, limit int64) int64 {
	tokens := w.conversationTokens(conv)
	if tokens > limit && w.requiredTokens(conv) > limit {
		// Without this, one huge result would displace all that precedes it in the conversation.
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

// replaceEarlierResults replaces the results before the last turn with placeholders, the oldest first, until it has
// saved excess tokens. It returns the tokens that it saved. It keeps a result that is shorter than its placeholder.
func (w *Window) replaceEarlierResults(conv *Conversation, excess int64) (saved int64) {
	for i, turn := conv.History+1, conv.lastTurn(); i < turn && saved < excess; i++ {
		m := &conv.Messages[i]
		if m.Role != llm.ToolRole {
			continue
		}
		short := conv.placeholder(m)
		if difference := w.messageTokens(m) - w.messageTokens(&short); difference > 0 {
			*m = short
			saved += difference
		}
	}
	return saved
}

// dropHistory drops the oldest messages of the history until it has saved excess tokens and the history is empty or
// begins with a message of the user. It returns the tokens that it saved.
func (w *Window) dropHistory(conv *Conversation, excess int64) (saved int64) {
	dropped := 0
	for dropped < conv.History && saved < excess {
		dropped++
		saved += w.messageTokens(&conv.Messages[dropped])
		// An answer without its question helps little, and endpoints refuse a result without its call.
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
// first, until it has saved excess tokens. It returns the tokens that it saved.
func (w *Window) shortenEarlierArguments(conv *Conversation, excess int64) (saved int64) {
	for i, turn := conv.History+1, conv.lastTurn(); i < turn && saved < excess; i++ {
		m := &conv.Messages[i]
		before := w.messageTokens(m)
		*m = shortenArguments(m)
		saved += before - w.messageTokens(m)
	}
	return saved
}

// lastResults returns pointers to the results of the last turn in c.Messages.
func (c *Conversation) lastResults() (out []*llm.Message) {
	for i := c.lastTurn(); i < len(c.Messages); i++ {
		if c.Messages[i].Role == llm.ToolRole {
			out = append(out, &c.Messages[i])
		}
	}
	return out
}

// resultTokens estimates the tokens of the results of the last turn.
func (w *Window) resultTokens(conv *Conversation) (sum int64) {
	for _, m := range conv.lastResults() {
		sum += w.messageTokens(m)
	}
	return sum
}

// minResultTokens is the shortest part of a result that helps a model.
const minResultTokens = 64

// cutResults cuts the results of the last turn to at most limit tokens together, the longest results most. It returns
// the tokens that it saved. From the shortest to the longest, each result may have an equal share of what the shorter
// results leave of limit, so short results are not cut. If a share is below minResultTokens, cutResults stops there,
// and more than limit tokens remain.
func (w *Window) cutResults(conv *Conversation, limit int64) (saved int64) {
	results := conv.lastResults()
	slices.SortStableFunc(results, func(a, b *llm.Message) int {
		return cmp.Compare(w.messageTokens(a), w.messageTokens(b))
	})
	for i, m := range results {
		tokens := w.messageTokens(m)
		share := limit / int64(len(results)-i)
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

// cutResult cuts a result to about that many tokens, and appends a note that says so and where the whole result is
// stored. It leaves out images and audio first, and cuts the text only if that is not enough.
func (w *Window) cutResult(conv *Conversation, message *llm.Message, tokens int64) {
	stored := conv.storedAt(message, "; the whole is kept at ")
	if len(message.Media) > 0 {
		message.Media = nil
		message.Text += fmt.Sprintf("\n[not shown, to make room%s]", stored)
		if w.messageTokens(message) <= tokens {
			return
		}
	}
	note := fmt.Sprintf("\n[cut here to make room%s]", stored)
	excess := w.messageTokens(message) + w.textTokens(len(note)) - tokens + 1 // 1 more, because estimates are rounded
	keep := len(message.Text) - int(float64(excess)*bytesPerToken/w.factor) - 1
	keep = max(min(keep, len(message.Text)-1), 0)
	for keep > 0 && !utf8.RuneStart(message.Text[keep]) { // do not cut within a rune
		keep--
	}
	message.Text = message.Text[:keep] + note
}

// placeholder returns the message that replaces a result that is left out. The message is needed because endpoints
// refuse a call without a result.
func (c *Conversation) placeholder(message *llm.Message) llm.Message {
	return llm.Message{Role: message.Role, CallID: message.CallID, Tool: message.Tool, Failed: message.Failed, Text: fmt.Sprintf(
		"[The result of %s (call %s) was left out to make room%s.]", message.Tool, message.CallID, c.storedAt(message, ". It is kept at "))}
}

// storedAt returns prefix and the path at which the log stores a result. It returns "" if the log does not store the
// result, because the result came with the request.
func (c *Conversation) storedAt(message *llm.Message, prefix string) string {
	path := c.StoredAt(message.CallID)
	if path == "" {
		return ""
	}
	return prefix + path
}

// longArguments is the size in bytes above which arguments are left out.
const longArguments = 256

// shortenArguments returns a copy of the message in which a placeholder replaces the long arguments of its calls. The
// calls themselves are kept, because a model that does not see a call would make it again.
func shortenArguments(message *llm.Message) llm.Message {
	short := *message
	short.Calls = slices.Clone(message.Calls)
	for i, c := range short.Calls {
		if len(c.Arguments) > longArguments {
			short.Calls[i].Arguments = fmt.Sprintf(`{"left_out":"%d bytes of arguments, to make room"}`, len(c.Arguments))
		}
	}
	return short
}
