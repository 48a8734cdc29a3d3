package window

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// retryTrimRatio says how far TrimRefused shortens a prompt if the provider did not say what length is allowed: to this
// share of the refused prompt.
const retryTrimRatio = 0.6

// Result says what Trim or TrimRefused did. All numbers are estimated tokens.
type Result struct {
	Before, After int64 // the size of the conversation before and after
	Limit         int64 // how large the prompt may be
	Trimmed       bool  // Trim: Before was above Limit; TrimRefused: something was left out
	TooLarge      bool  // what must be kept does not fit the window
}

// Trim shortens conv before a request if it is estimated to exceed the limit, unless the window's size is unknown.
func (w *Window) Trim(conv *Conversation) Result {
	w.sent = estimatePlain(conv)
	result := Result{Before: w.conversationTokens(conv), Limit: w.promptLimit()}
	result.After = result.Before
	if w.size == 0 || result.Before <= result.Limit {
		return result
	}
	result.Trimmed = true
	result.After = w.fit(conv, result.Limit)
	lowEstimate := result.After
	if !w.counted {
		lowEstimate /= 2 // the estimate may be twice the true size; let the provider decide
	}
	result.TooLarge = lowEstimate > result.Limit && !w.guessed
	w.sent = estimatePlain(conv)
	return result
}

// Refusal holds the sizes, in tokens, that a provider stated when it refused a request as too long; 0 if it did not.
type Refusal struct {
	Window int64 // the context window, which prompt and answer share
	Prompt int64 // the prompt, as the provider counted it
}

// TrimRefused shortens conv after the provider refused a request with it as too long. It also corrects w with the sizes
// of the window and the prompt that the provider stated. If one of them is still unknown then, TrimRefused guesses the
// size of the window, or raises the estimates (learnRefused).
//
// If Trimmed is false, nothing could be left out, and only a request with a shorter answer can succeed. If TooLarge is
// true, no request can succeed.
func (w *Window) TrimRefused(conv *Conversation, refused Refusal) Result {
	w.Observe(event.Usage{InputTokens: refused.Prompt})
	w.LearnSize(refused.Window)
	sizesAreKnown := refused.Prompt > 0 && w.Size() > 0
	if !sizesAreKnown {
		w.learnRefused(w.PromptTokens())
	}
	result := Result{Before: w.conversationTokens(conv), Limit: w.promptLimit()}
	target := result.Limit
	if !sizesAreKnown {
		target = min(target, int64(float64(w.PromptTokens())*retryTrimRatio))
	}
	result.After = w.fit(conv, target)
	result.Trimmed = result.After != result.Before
	result.TooLarge = sizesAreKnown && result.After >= w.size
	w.sent = estimatePlain(conv)
	return result
}

// learnRefused corrects w after the provider refused a prompt as too long without stating sizes. tokens is the
// estimated length of that prompt. If the size of the window is unknown, learnRefused takes tokens as a guess.
// Otherwise the prompt must have been as large as the window, so it raises the factor accordingly, up to maxFactor.
func (w *Window) learnRefused(tokens int64) {
	if w.size == 0 {
		w.size, w.guessed = tokens, true
		w.reserve = defaultReserve(w.size)
		return
	}
	raised := w.factor * float64(w.size) / float64(max(tokens, 1))
	w.factor = min(max(w.factor, raised), maxFactor)
}

// estimatePlain estimates the tokens of conv by bytes alone, without w.factor.
func estimatePlain(conv *Conversation) int64 { return byBytes.conversationTokens(conv) }

// Conversation is a request's prompt: the messages, and the tools that the request offers. The messages are the system
// prompt, the history, the question, and all turns since.
type Conversation struct {
	Messages []llm.Message // trimming replaces some elements, and removes some of the history
	History  int           // how many messages are history
	Tools    []llm.Tool
	// StoredAt returns the URL path where a call's full result can be read, or "" if it is not stored.
	StoredAt func(callID string) string
}

// lastTurn returns the index in Messages where the last turn begins. That is the last message with calls after the
// history or, if there is none, the first message after the history.
func (c *Conversation) lastTurn() int {
	for i := len(c.Messages) - 1; i > c.History; i-- {
		if len(c.Messages[i].Calls) > 0 {
			return i
		}
	}
	return c.History + 1
}

// conversationTokens estimates the tokens of all of conv's messages and tools.
func (w *Window) conversationTokens(conv *Conversation) int64 {
	sum := w.toolTokens(conv.Tools)
	for i := range conv.Messages {
		sum += w.messageTokens(&conv.Messages[i])
	}
	return sum
}

// requiredTokens estimates the tokens of conv if fit leaves out everything that it may, except results of the last
// turn. What remains is the tools, the system prompt, the question, the earlier calls without long arguments, and the
// messages of the last turn. Placeholders for earlier results are not counted.
func (w *Window) requiredTokens(conv *Conversation) int64 {
	sum := w.toolTokens(conv.Tools)
	lastTurn := conv.lastTurn()
	for i := range conv.Messages {
		m := &conv.Messages[i]
		switch {
		case i == 0 || i >= lastTurn:
			sum += w.messageTokens(m)
		case i > conv.History && m.Role != llm.ToolRole:
			short := shortenArguments(m)
			sum += w.messageTokens(&short)
		}
	}
	return sum
}

// fit shortens conv to at most limit tokens, as far as possible, and returns the estimated tokens of what is left. It
// takes these steps, and stops as soon as conv fits:
//
//  1. results of earlier turns become placeholders, the oldest first
//  2. messages of the history are dropped, the oldest first
//  3. long arguments of earlier calls are left out
//  4. results of the last turn are cut
//
// It keeps the system prompt, the question, all of the run's calls, and the messages of the last turn. If the first
// three steps cannot be enough, fit begins by cutting the results of the last turn to half the limit.
func (w *Window) fit(conv *Conversation, limit int64) int64 {
	tokens := w.conversationTokens(conv)
	if tokens > limit && w.requiredTokens(conv) > limit {
		// Otherwise one huge result would displace everything before it.
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

// replaceEarlierResults replaces results before the last turn by placeholders, the oldest first, until it has saved
// excess tokens. It keeps a result that is not longer than its placeholder. It returns how many tokens it saved.
func (w *Window) replaceEarlierResults(conv *Conversation, excess int64) (saved int64) {
	lastTurn := conv.lastTurn()
	for i := conv.History + 1; i < lastTurn && saved < excess; i++ {
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

// dropHistory drops the oldest messages of the history until it has saved excess tokens. It continues until the rest of
// the history is empty or begins with a user message. It returns how many tokens it saved.
func (w *Window) dropHistory(conv *Conversation, excess int64) (saved int64) {
	dropped := 0 // also the index of the last dropped message, because Messages[0] is the system prompt
	for dropped < conv.History && saved < excess {
		dropped++
		saved += w.messageTokens(&conv.Messages[dropped])
		// An answer without its question is of little use, and endpoints refuse a result without its call.
		for dropped < conv.History && conv.Messages[dropped+1].Role != llm.User {
			dropped++
			saved += w.messageTokens(&conv.Messages[dropped])
		}
	}
	conv.Messages = append(conv.Messages[:1:1], conv.Messages[dropped+1:]...)
	conv.History -= dropped
	return saved
}

// shortenEarlierArguments leaves out long arguments of calls before the last turn, the oldest first, until it has saved
// excess tokens. It returns how many tokens it saved.
func (w *Window) shortenEarlierArguments(conv *Conversation, excess int64) (saved int64) {
	lastTurn := conv.lastTurn()
	for i := conv.History + 1; i < lastTurn && saved < excess; i++ {
		m := &conv.Messages[i]
		before := w.messageTokens(m)
		*m = shortenArguments(m)
		saved += before - w.messageTokens(m)
	}
	return saved
}

// lastResults returns pointers to the last turn's results in c.Messages.
func (c *Conversation) lastResults() (out []*llm.Message) {
	for i := c.lastTurn(); i < len(c.Messages); i++ {
		if c.Messages[i].Role == llm.ToolRole {
			out = append(out, &c.Messages[i])
		}
	}
	return out
}

// resultTokens estimates the tokens of the last turn's results.
func (w *Window) resultTokens(conv *Conversation) (sum int64) {
	for _, m := range conv.lastResults() {
		sum += w.messageTokens(m)
	}
	return sum
}

// minResultTokens is the length below which part of a result is of no use to a model.
const minResultTokens = 64

// cutResults cuts the results of the last turn to limit tokens in total, and returns how many tokens it saved. It goes
// from the shortest result to the longest. Each may have an equal share of what the shorter ones have left of limit, so
// short results are not cut. When a share falls below minResultTokens, cutResults stops, above limit.
func (w *Window) cutResults(conv *Conversation, limit int64) (saved int64) {
	results := conv.lastResults()
	slices.SortStableFunc(results, func(a, b *llm.Message) int {
		return cmp.Compare(w.messageTokens(a), w.messageTokens(b))
	})
	for i, m := range results {
		before := w.messageTokens(m)
		share := limit / int64(len(results)-i)
		if before > share && share < minResultTokens {
			return saved
		}
		if before > share {
			w.cutResult(conv, m, share)
		}
		after := w.messageTokens(m)
		saved += before - after
		limit -= after
	}
	return saved
}

// cutResult cuts a result to about the given number of tokens, and adds a note that says so and where the full result
// is stored. It first leaves out images and audio, and cuts the text only if that is not enough.
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
	// Cut one token and one byte more, because both estimates are rounded down.
	excess := w.messageTokens(message) + w.textTokens(len(note)) - tokens + 1
	excessBytes := max(int(float64(excess)*bytesPerToken/w.factor)+1, 1)
	kept := max(len(message.Text)-excessBytes, 0)
	for kept > 0 && !utf8.RuneStart(message.Text[kept]) { // do not cut within a character
		kept--
	}
	message.Text = message.Text[:kept] + note
}

// placeholder returns the message that replaces a result which is left out. Endpoints refuse a call without a result.
func (c *Conversation) placeholder(message *llm.Message) llm.Message {
	text := fmt.Sprintf("[The result of %s (call %s) was left out to make room%s.]",
		message.Tool, message.CallID, c.storedAt(message, ". It is kept at "))
	return llm.Message{Role: message.Role, CallID: message.CallID, Tool: message.Tool, Failed: message.Failed, Text: text}
}

// storedAt returns prefix followed by the path where the log stores a result. It returns "" if the log does not store
// the result, because the result came with the request.
func (c *Conversation) storedAt(message *llm.Message, prefix string) string {
	path := c.StoredAt(message.CallID)
	if path == "" {
		return ""
	}
	return prefix + path
}

// longArguments is the length, in bytes, above which a call's arguments are left out.
const longArguments = 256

// shortenArguments returns a copy of message whose calls have a placeholder instead of long arguments. The calls
// themselves are kept, because a model that does not see a call would make it again.
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
