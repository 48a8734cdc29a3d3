package agent

import (
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
	// Providers count a picture by its size in pixels, up to some 1,600 tokens; a sound
	// by its time, of which its bytes say little.
	tokensPerPicture   = 1600
	soundBytesPerToken = 256 // of base64
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
	return w.tokens(bytes+tokensPerMessage*bytesPerToken) + mediaWeight(m)
}

// mediaWeight is the estimate for what a message has besides text. What a provider
// counted for text says nothing of it.
func mediaWeight(m *llm.Message) (sum int64) {
	for _, p := range m.Media {
		if p.IsImage() {
			sum += tokensPerPicture
		} else {
			sum += int64(len(p.Data) / soundBytesPerToken)
		}
	}
	return sum
}

// toolWeight is the estimate for the tools that a request offers.
func (w *window) toolWeight(tools []llm.Tool) int64 {
	bytes := 0
	for i := range tools {
		bytes += len(tools[i].Name) + len(tools[i].Description) + len(tools[i].Schema) + tokensPerTool*bytesPerToken
	}
	return w.tokens(bytes)
}
