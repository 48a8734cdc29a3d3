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
// Results of tools are left out first, then the history; the system prompt, the question and
// every call stay. Each placeholder says where the log stores what was left out. Token counts
// are estimates that follow what the provider counts. A Window is for one goroutine.
package window

import (
	"math"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// These constants estimate tokens before a provider has counted any. English text has about
// four bytes per token and JSON about three, so the estimate tends to be too high. Base64 has
// fewer bytes per token: then the provider refuses the request, and TrimRefused is for that.
const (
	bytesPerToken    = 3
	tokensPerMessage = 8    // role and framing of a message, or of a call
	tokensPerTool    = 16   // framing of one tool's definition
	maxAnswerReserve = 8192 // tokens; see defaultReserve
	// minFactor and maxFactor bound Window.factor, so that a provider that counts wrongly does not make Trim leave out
	// everything, or nothing.
	minFactor = 0.25
	maxFactor = 4
	// Providers count an image by its pixels, up to about 1,600 tokens, and audio by its
	// duration, which the size in bytes only hints at.
	tokensPerImage     = 1600
	audioBytesPerToken = 256 // bytes of base64
	// pdfBytesPerToken is in bytes of base64. Providers count the text and an image of each page, some
	// 2,000 tokens for a page that often has 100 KiB.
	pdfBytesPerToken = 64
)

// Window estimates what a conversation costs and trims it to the model's context window. The
// estimate follows what the provider counts, see Observe.
type Window struct {
	size    int64   // in tokens, prompt and answer together; 0 if unknown
	reserve int64   // the part of size that stays free for the answer
	factor  float64 // tokens that the provider counted per token estimated by bytes
	sent    int64   // the estimate of the conversation that was trimmed last, without factor
	guessed bool    // size is the estimate of a request that the provider refused
	counted bool    // factor comes from a count of the provider
}

// New returns a Window of the size that the model's profile gives. Without a size nothing is
// trimmed until a provider refuses a request.
func New(profile llm.Profile) *Window {
	w := &Window{size: profile.ContextTokens, reserve: profile.MaxOutputTokens, factor: 1}
	if w.reserve == 0 {
		w.reserve = defaultReserve(w.size)
	}
	return w
}

// defaultReserve returns the tokens that stay free for the answer in a window of that size, if the profile does not
// say.
func defaultReserve(size int64) int64 { return min(size/8, maxAnswerReserve) }

// LearnSize sets the size of the window to the one that the endpoint has named, if no size is known, the size is a
// guess, or the known size is larger. It lowers a reserve of more than half the window. It ignores 0.
func (w *Window) LearnSize(tokens int64) {
	isKnown := w.size > 0 && !w.guessed
	if tokens <= 0 || isKnown && w.size <= tokens {
		return
	}
	w.size, w.guessed = tokens, false
	if w.reserve == 0 || w.reserve > tokens/2 {
		w.reserve = defaultReserve(tokens)
	}
}

// Size returns the size of the window in tokens; 0 if it is unknown or was guessed.
func (w *Window) Size() int64 {
	if w.guessed {
		return 0
	}
	return w.size
}

// AnswerRoom returns how many tokens an answer may have so that it fits the window together with
// the conversation that was trimmed last; 0 if the window's size is unknown.
func (w *Window) AnswerRoom() int64 {
	if w.Size() == 0 {
		return 0
	}
	prompt := w.PromptTokens()
	room := w.size - prompt
	if !w.counted {
		room = max(room, w.reserve) // The prompt may be smaller than its estimate, which tends to be too high.
	}
	// A sixteenth of the prompt stays free, because its size is an estimate, but not more than half of the room.
	return max(room-prompt/16, room/2, 1)
}

// LimitReserve lowers the reserve for the answer to tokens, for a request that limits its
// answers itself. A reserve below that is kept.
func (w *Window) LimitReserve(tokens int64) { w.reserve = min(w.reserve, tokens) }

// promptLimit returns the tokens that a prompt may have; 0 if the size of the window is unknown.
func (w *Window) promptLimit() int64 { return w.size - min(w.reserve, w.size) }

// Observe corrects the estimates by the input tokens that the provider counted for the conversation that was trimmed
// last. It ignores a count of 0.
func (w *Window) Observe(used event.Usage) {
	if used.InputTokens > 0 && w.sent > 0 {
		w.factor = min(max(float64(used.InputTokens)/float64(w.sent), minFactor), maxFactor)
		w.counted = true
	}
}

// PromptTokens estimates the tokens of the conversation that was trimmed last, which is the prompt of the last request.
func (w *Window) PromptTokens() int64 { return int64(math.Ceil(float64(w.sent) * w.factor)) }

// textTokens estimates the tokens of a text of that many bytes.
func (w *Window) textTokens(bytes int) int64 { return int64(float64(bytes) / bytesPerToken * w.factor) }

// messageTokens estimates the tokens of one message.
func (w *Window) messageTokens(message *llm.Message) int64 {
	size := len(message.Text) + len(message.Tool)
	for _, c := range message.Calls {
		size += len(c.Name) + len(c.Arguments) + tokensPerMessage*bytesPerToken
	}
	if x := message.Extensions; x != nil {
		size += len(x.Message)
		if x.Content != nil {
			size += len(x.Content) - len(message.Text) // Content is sent in place of Text, which it contains.
		}
		for _, c := range x.Calls {
			size += len(c)
		}
	}
	return w.textTokens(size+tokensPerMessage*bytesPerToken) + mediaTokens(message)
}

// MessageTokens estimates the tokens of the messages of a request from bytes alone, without a count of the provider.
func MessageTokens(messages []llm.Message) (sum int64) {
	byBytes := Window{factor: 1}
	for i := range messages {
		sum += byBytes.messageTokens(&messages[i])
	}
	return sum
}

// mediaTokens estimates the tokens of the images, audio and PDF of a message. It does not use Window.factor, which is a
// correction for text.
func mediaTokens(message *llm.Message) (sum int64) {
	for _, p := range message.Media {
		switch {
		case p.IsImage() || p.URL != "":
			sum += tokensPerImage
		case p.MIME == "application/pdf":
			sum += max(tokensPerImage, int64(len(p.Data)/pdfBytesPerToken))
		default:
			sum += int64(len(p.Data) / audioBytesPerToken)
		}
	}
	return sum
}

// ToolTokens estimates the tokens of the definitions of tools from bytes alone, without a count of the provider.
func ToolTokens(tools []llm.Tool) int64 {
	byBytes := Window{factor: 1}
	return byBytes.toolTokens(tools)
}

// toolTokens estimates the tokens of the definitions of tools.
func (w *Window) toolTokens(tools []llm.Tool) int64 {
	size := 0
	for i := range tools {
		size += len(tools[i].Name) + len(tools[i].Description) + len(tools[i].Schema) + tokensPerTool*bytesPerToken
	}
	return w.textTokens(size)
}
