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
	tokensPerMessage = 8  // role and framing; a call has as much
	tokensPerTool    = 16 // framing of one tool's definition
	maxAnswerReserve = 8192
	// Providers count an image by its pixels, up to about 1,600 tokens, and audio by its
	// duration, which the size in bytes only hints at.
	tokensPerImage     = 1600
	audioBytesPerToken = 256 // of base64
	// pdfBytesPerToken is of base64 too. Providers count the text and an image of each page, some
	// 2,000 tokens for a page that often has 100 KiB.
	pdfBytesPerToken = 64
)

// Window estimates what a conversation costs and trims it to the model's context window. The
// estimate follows what the provider counts, see Observe.
type Window struct {
	size    int64   // in tokens, prompt and answer together; 0 if unknown
	reserve int64   // the part of size that stays free for the answer
	factor  float64 // tokens that the provider counted per estimated token
	sent    int64   // the estimate for the last request, without factor
	guessed bool    // size is that of a request that the provider refused
	counted bool    // factor comes from a count of the provider
}

// New returns a Window of the size that the model's profile gives. Without a size nothing is
// trimmed until a provider refuses a request.
func New(p llm.Profile) *Window {
	w := &Window{size: p.ContextTokens, reserve: p.MaxOutputTokens, factor: 1}
	if w.reserve == 0 {
		w.reserve = min(w.size/8, maxAnswerReserve)
	}
	return w
}

// LearnSize sets the size that the endpoint has named for its window, if it is smaller than the
// known size. It ignores 0.
func (w *Window) LearnSize(tokens int64) {
	isKnown := w.size > 0 && !w.guessed
	if tokens <= 0 || isKnown && w.size <= tokens {
		return
	}
	w.size, w.guessed = tokens, false
	if w.reserve == 0 || w.reserve > tokens/2 {
		w.reserve = min(tokens/8, maxAnswerReserve)
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
// the conversation that was trimmed last; 0 if the window's size is unknown. It leaves a sixteenth
// of the prompt free, because the size of the prompt is an estimate.
func (w *Window) AnswerRoom() int64 {
	if w.Size() == 0 {
		return 0
	}
	prompt := w.sentTokens()
	room := w.size - prompt
	if !w.counted {
		room = max(room, w.reserve)
	}
	return max(room-prompt/16, room/2, 1)
}

// LimitReserve lowers the reserve for the answer to tokens, for a request that limits its
// answers itself.
func (w *Window) LimitReserve(tokens int64) { w.reserve = min(w.reserve, tokens) }

// promptLimit returns the tokens that a prompt may have; 0 means no limit.
func (w *Window) promptLimit() int64 { return w.size - min(w.reserve, w.size) }

// Observe corrects the estimate by what the provider counted for the last request.
func (w *Window) Observe(u event.Usage) {
	if u.InputTokens > 0 && w.sent > 0 {
		// The bounds keep a provider that counts wrongly from emptying the conversation.
		w.factor = min(max(float64(u.InputTokens)/float64(w.sent), 0.25), 4)
		w.counted = true
	}
}

// PromptTokens returns an estimate of the last prompt.
func (w *Window) PromptTokens() int64 { return w.sentTokens() }

// sentTokens estimates the conversation that was trimmed last, which is in the last request.
func (w *Window) sentTokens() int64 { return int64(math.Ceil(float64(w.sent) * w.factor)) }

// textTokens estimates a text of n bytes.
func (w *Window) textTokens(n int) int64 { return int64(float64(n) / bytesPerToken * w.factor) }

// messageTokens estimates one message.
func (w *Window) messageTokens(message *llm.Message) int64 {
	size := len(message.Text) + len(message.Tool)
	for _, c := range message.Calls {
		size += len(c.Name) + len(c.Arguments) + tokensPerMessage*bytesPerToken
	}
	if x := message.Extensions; x != nil {
		size += len(x.Message)
		if x.Content != nil {
			size += len(x.Content) - len(message.Text) // the text is among the parts
		}
		for _, c := range x.Calls {
			size += len(c)
		}
	}
	return w.textTokens(size+tokensPerMessage*bytesPerToken) + mediaTokens(message)
}

// MessageTokens estimates the messages of a request.
func MessageTokens(messages []llm.Message) (sum int64) {
	byBytes := Window{factor: 1}
	for i := range messages {
		sum += byBytes.messageTokens(&messages[i])
	}
	return sum
}

// mediaTokens estimates the images and audio of a message. The factor does not apply: it
// comes from what the provider counted for text.
func mediaTokens(m *llm.Message) (sum int64) {
	for _, p := range m.Media {
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

// ToolTokens estimates the definitions of tools in a request.
func ToolTokens(tools []llm.Tool) int64 {
	byBytes := Window{factor: 1}
	return byBytes.toolTokens(tools)
}

// toolTokens estimates the tools that a request offers.
func (w *Window) toolTokens(tools []llm.Tool) int64 {
	size := 0
	for i := range tools {
		size += len(tools[i].Name) + len(tools[i].Description) + len(tools[i].Schema) + tokensPerTool*bytesPerToken
	}
	return w.textTokens(size)
}
