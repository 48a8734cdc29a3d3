// Package window trims a conversation to a model's context window.
//
//	w := window.New(profile)
//	c := &window.Conversation{Messages: messages, History: 4, Tools: tools}
//	if r := w.Trim(c); r.TooLarge {
//		// the question alone does not fit
//	}
//	// ask the model with c.Messages; then
//	w.Observe(usage)
//	// and if the provider refused the request as too long:
//	if w.TrimRefused(c, named).Trimmed {
//		// ask again
//	}
//
// Tool results are left out first, then the history. The system prompt, the question and every call are kept. A
// placeholder says where the log stores what was left out. Token counts are estimates, which are corrected by the
// provider's counts. A Window must not be used concurrently.
package window

import (
	"math"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// These constants serve to estimate tokens before a provider has counted any. English text has about four bytes per
// token and JSON about three, so the estimate is usually too high. Base64 has fewer bytes per token, so the provider
// may refuse the request; TrimRefused handles that.
const (
	bytesPerToken    = 3
	tokensPerMessage = 8    // the role and framing of a message, or of a call
	tokensPerTool    = 16   // the framing of one tool's definition
	maxAnswerReserve = 8192 // tokens; see defaultReserve
	// minFactor and maxFactor limit Window.factor, so that a provider that counts wrongly cannot make Trim leave out
	// everything, or nothing.
	minFactor = 0.25
	maxFactor = 4
	// Providers count an image by its pixels, up to about 1,600 tokens, and audio by its duration. The size in bytes is
	// only a rough indication of both.
	tokensPerImage     = 1600
	audioBytesPerToken = 256 // bytes of base64
	// pdfBytesPerToken is in bytes of base64. Providers count each page's text and an image of it, about 2,000 tokens
	// for a page that often has 100 KiB.
	pdfBytesPerToken = 64
)

// Window estimates how many tokens a conversation has, and trims it to the model's context window. Observe corrects the
// estimates by the provider's counts.
type Window struct {
	size    int64   // tokens that prompt and answer may have together; 0 if unknown
	reserve int64   // how much of size is kept free for the answer
	factor  float64 // how many tokens the provider counts per token estimated by bytes
	sent    int64   // the estimate, without factor, for the conversation that was last trimmed
	guessed bool    // size is only the estimated length of a request that the provider refused
	counted bool    // factor comes from a provider's count
}

// byBytes estimates by bytes alone, without a provider's count. It must not be changed.
var byBytes = &Window{factor: 1}

// New returns a Window with the size in the model's profile. If the profile has none, nothing is trimmed until a
// provider refuses a request.
func New(profile llm.Profile) *Window {
	w := &Window{size: profile.ContextTokens, reserve: profile.MaxOutputTokens, factor: 1}
	if w.reserve == 0 {
		w.reserve = defaultReserve(w.size)
	}
	return w
}

// defaultReserve returns how many tokens of a window are kept free for the answer if the profile does not say.
func defaultReserve(size int64) int64 { return min(size/8, maxAnswerReserve) }

// LearnSize sets the window's size to tokens, a size that the endpoint stated. It ignores 0. It also ignores a size that
// is not smaller than the known one, unless that one is a guess. If there is no reserve for the answer, or the reserve
// takes more than half of the window, LearnSize sets the default reserve.
func (w *Window) LearnSize(tokens int64) {
	isSmaller := w.Size() == 0 || tokens < w.Size()
	if tokens <= 0 || !isSmaller {
		return
	}
	w.size, w.guessed = tokens, false
	if w.reserve == 0 || w.reserve > tokens/2 {
		w.reserve = defaultReserve(tokens)
	}
}

// Size returns the window's size in tokens, or 0 if it is unknown or only guessed.
func (w *Window) Size() int64 {
	if w.guessed {
		return 0
	}
	return w.size
}

// AnswerTokens returns how many tokens an answer may have to fit into the window together with the conversation that was
// last trimmed. It returns 0 if the window's size is unknown.
func (w *Window) AnswerTokens() int64 {
	if w.Size() == 0 {
		return 0
	}
	prompt := w.PromptTokens()
	free := w.size - prompt
	if !w.counted {
		free = max(free, w.reserve) // the estimate tends to be higher than the prompt really is
	}
	// Keep a sixteenth of the prompt's size free, because that is an estimate, but at most half of what is free.
	return max(free-prompt/16, free/2, 1)
}

// LimitReserve lowers the reserve for the answer to tokens, for a request that limits its answers itself. It never
// raises the reserve.
func (w *Window) LimitReserve(tokens int64) { w.reserve = min(w.reserve, tokens) }

// promptLimit returns how many tokens a prompt may have, or 0 if the window's size is unknown.
func (w *Window) promptLimit() int64 { return w.size - min(w.reserve, w.size) }

// Observe corrects the estimates. used has the input tokens that the provider counted for the conversation that was
// last trimmed. It ignores a count of 0.
func (w *Window) Observe(used event.Usage) {
	if used.InputTokens > 0 && w.sent > 0 {
		w.factor = min(max(float64(used.InputTokens)/float64(w.sent), minFactor), maxFactor)
		w.counted = true
	}
}

// PromptTokens estimates the tokens of the conversation that was last trimmed, which is the last request's prompt.
func (w *Window) PromptTokens() int64 { return int64(math.Ceil(float64(w.sent) * w.factor)) }

// textTokens estimates the tokens of a text of the given length in bytes.
func (w *Window) textTokens(bytes int) int64 { return int64(float64(bytes) / bytesPerToken * w.factor) }

// messageTokens estimates the tokens of one message.
func (w *Window) messageTokens(message *llm.Message) int64 {
	size := len(message.Text) + len(message.Tool)
	for _, c := range message.Calls {
		size += len(c.Name) + len(c.Arguments) + tokensPerMessage*bytesPerToken
	}
	if extensions := message.Extensions; extensions != nil {
		size += len(extensions.Message)
		if extensions.Content != nil {
			size += len(extensions.Content) - len(message.Text) // Content is sent instead of Text, which it contains
		}
		for _, c := range extensions.Calls {
			size += len(c)
		}
	}
	return w.textTokens(size+tokensPerMessage*bytesPerToken) + mediaTokens(message)
}

// MessageTokens estimates the tokens of messages by bytes alone, without a provider's count.
func MessageTokens(messages []llm.Message) (sum int64) {
	for i := range messages {
		sum += byBytes.messageTokens(&messages[i])
	}
	return sum
}

// mediaTokens estimates the tokens of a message's images, audio and PDF. Window.factor is only for text.
func mediaTokens(message *llm.Message) (sum int64) {
	for _, file := range message.Media {
		switch {
		case file.IsImage() || file.URL != "":
			sum += tokensPerImage
		case file.MIME == "application/pdf":
			sum += max(tokensPerImage, int64(len(file.Data)/pdfBytesPerToken))
		default:
			sum += int64(len(file.Data) / audioBytesPerToken)
		}
	}
	return sum
}

// ToolTokens estimates the tokens of tools' definitions by bytes alone, without a provider's count.
func ToolTokens(tools []llm.Tool) int64 { return byBytes.toolTokens(tools) }

// toolTokens estimates the tokens of tools' definitions.
func (w *Window) toolTokens(tools []llm.Tool) int64 {
	size := 0
	for i := range tools {
		size += len(tools[i].Name) + len(tools[i].Description) + len(tools[i].Schema) + tokensPerTool*bytesPerToken
	}
	return w.textTokens(size)
}
