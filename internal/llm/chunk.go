package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// chunk is what of a streamed chunk, or of a whole completion, is looked at. The
// SDK's own type costs 10 to 25 µs a token to decode, this one about 2
// (facts/performance.md).
type chunk struct {
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   *wireUsage      `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

// choice is one of the answers that were asked for, which is one.
type choice struct {
	Index        int     `json:"index"`
	Delta        *answer `json:"delta"`
	Message      *answer `json:"message"` // of a completion that was not streamed
	FinishReason string  `json:"finish_reason"`
}

// answer is a delta or a message. Its texts are raw since endpoints send text, null
// and arrays of parts in the same place.
type answer struct {
	Content          json.RawMessage `json:"content"`
	Refusal          json.RawMessage `json:"refusal"`
	ReasoningContent json.RawMessage `json:"reasoning_content"`
	Reasoning        json.RawMessage `json:"reasoning"`
	ToolCalls        []callDelta     `json:"tool_calls"`
}

// callDelta is a piece of a call, or a whole one. Index may be missing or null, ID and
// Name come once or with every piece, and Arguments is text or, at some, the object.
type callDelta struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// wireUsage is what an answer cost, in tokens.
type wireUsage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
}

// part returns the usage as reported, its total made up where it is missing.
func (u wireUsage) part() Usage {
	total := u.Total
	if total == 0 {
		total = u.Prompt + u.Completion
	}
	return Usage{Input: u.Prompt, Output: u.Completion, Total: total}
}

// decodeChunk decodes one chunk. A usage of an unexpected shape is passed over: what
// an answer cost is not worth losing it. Any other field of a wrong type is an error,
// since text or calls might be lost with it.
func decodeChunk(data []byte) (*chunk, error) {
	c := new(chunk)
	err := json.Unmarshal(data, c)
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && strings.HasPrefix(wrongType.Field, "usage") {
		c.Usage, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// cutOff reports whether decoding failed only because the data end too early.
func cutOff(data []byte, err error) bool {
	var syntax *json.SyntaxError
	return errors.As(err, &syntax) && syntax.Offset >= int64(len(data))
}

// absent reports whether a raw field was not sent or is null.
func absent(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(raw, []byte("null"))
}

// text returns a raw field as text: a string's content, and "" for all else.
func text(raw json.RawMessage) string {
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	if bare := raw[1 : len(raw)-1]; bytes.IndexByte(bare, '\\') < 0 && utf8.Valid(bare) {
		return string(bare)
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// contentPart is one element of content that comes as an array.
type contentPart struct {
	Type     string          `json:"type"`
	Text     json.RawMessage `json:"text"`
	Thinking json.RawMessage `json:"thinking"` // Mistral: text parts again
}

// content returns the text and the reasoning of a content field, which is a string or
// an array of parts. Parts that are neither, such as images, are passed over.
func content(raw json.RawMessage) (said, thought string) {
	if len(raw) == 0 || raw[0] != '[' {
		return text(raw), ""
	}
	for _, p := range contentParts(raw) {
		if p.Type != "thinking" {
			said += text(p.Text)
			continue
		}
		thought += text(p.Thinking)
		for _, inner := range contentParts(p.Thinking) {
			thought += text(inner.Text)
		}
	}
	return said, thought
}

// contentParts returns the elements of an array of parts, none if it is anything else.
func contentParts(raw json.RawMessage) []contentPart {
	var parts []contentPart
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &parts) != nil {
		return nil
	}
	return parts
}

// arguments returns a call's arguments as the text they are: most endpoints send a
// string, some the object itself.
func arguments(raw json.RawMessage) string {
	if absent(raw) {
		return ""
	}
	if raw[0] == '"' {
		return text(raw)
	}
	return string(raw)
}

// errorStatus finds an HTTP status in an error object that came inside a stream,
// where the reply's own status had already been 200; 0 if there is none.
func errorStatus(raw json.RawMessage) int {
	var object struct {
		Code   json.RawMessage `json:"code"`
		Status json.RawMessage `json:"status"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return 0
	}
	for _, field := range []json.RawMessage{object.Code, object.Status} {
		n, err := strconv.Atoi(strings.Trim(string(field), `"`))
		if err == nil && n >= 400 && n <= 599 {
			return n
		}
	}
	return 0
}
