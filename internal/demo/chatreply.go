package demo

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"
)

// reply is what the stand-in decided to say: a text, or calls. It is made whole
// before anything is sent; streaming it piece by piece is for show.
type reply struct {
	id    string
	text  string
	calls []plannedCall
	usage chatUsage
}

// plannedCall is a call as it goes out.
type plannedCall struct {
	id, name, args string // args is JSON
}

// chatUsage counts words and calls them tokens: an estimate, and the best there is
// without a tokenizer.
type chatUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// finishReason is what OpenAI says of such a reply.
func (r *reply) finishReason() string {
	if len(r.calls) > 0 {
		return "tool_calls"
	}
	return "stop"
}

// completion is the reply as one JSON object, created at the given Unix second.
func (r *reply) completion(created int64) map[string]any {
	message := map[string]any{"role": "assistant", "content": r.text, "refusal": nil}
	if len(r.calls) > 0 {
		calls := make([]map[string]any, len(r.calls))
		for i, c := range r.calls {
			calls[i] = map[string]any{"id": c.id, "type": "function", "function": map[string]any{"name": c.name, "arguments": c.args}}
		}
		message["content"], message["tool_calls"] = nil, calls
	}
	return map[string]any{
		"id": r.id, "object": "chat.completion", "created": created, "model": ModelID,
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": r.finishReason(), "logprobs": nil}},
		"usage":   r.usage,
	}
}

// wordAndSpace cuts a text into what a stream sends at a time, and loses nothing of it.
var wordAndSpace = regexp.MustCompile(`\S+\s*|\s+`)

// deltas are what a stream's chunks carry, in order: the role, then the words or the
// calls, each call as id and name and then its arguments in pieces.
func (r *reply) deltas() []map[string]any {
	if len(r.calls) == 0 {
		out := []map[string]any{{"role": "assistant", "content": ""}}
		for _, word := range wordAndSpace.FindAllString(r.text, -1) {
			out = append(out, map[string]any{"content": word})
		}
		return out
	}
	out := []map[string]any{{"role": "assistant", "content": nil}}
	for i, c := range r.calls {
		out = append(out, callDelta(map[string]any{"index": i, "id": c.id, "type": "function",
			"function": map[string]any{"name": c.name, "arguments": ""}}))
		for _, piece := range pieces(c.args, 3) {
			out = append(out, callDelta(map[string]any{"index": i, "function": map[string]any{"arguments": piece}}))
		}
	}
	return out
}

// callDelta wraps one call's piece. OpenAI sends one call per chunk.
func callDelta(call map[string]any) map[string]any {
	return map[string]any{"tool_calls": []any{call}}
}

// pieces cuts s into at most n parts, never inside a character.
func pieces(s string, n int) []string {
	runes := []rune(s)
	size := (len(runes) + n - 1) / n
	var out []string
	for len(runes) > 0 {
		k := min(size, len(runes))
		out, runes = append(out, string(runes[:k])), runes[k:]
	}
	return out
}

// chunk is one data line of a stream. With usage asked for, OpenAI puts "usage":null
// into every chunk but the last.
func (r *reply) chunk(created int64, choices []any, usage any, withUsage bool) []byte {
	c := map[string]any{"id": r.id, "object": "chat.completion.chunk", "created": created, "model": ModelID, "choices": choices}
	if withUsage {
		c["usage"] = usage
	}
	return encode(c)
}

// encode is v as JSON that keeps < and > readable. v is made of maps, slices and
// texts here and cannot fail.
func encode(v any) []byte {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("demo: encode: " + err.Error())
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}

// digest names something by its content, so that the same request gets the same ids.
func digest(prefix string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return prefix + hex.EncodeToString(sum[:12])
}

// countWords estimates tokens. It is what a stand-in can honestly do.
func countWords(s string) int { return len(strings.Fields(s)) }
