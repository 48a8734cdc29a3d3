package openai

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"

	"answerd/internal/llm"
)

// chunk is what is used of a streamed chunk, or of a whole completion. To decode into the
// same one again keeps its memory.
type chunk struct {
	model   []byte // in quotes, within the data: it is mostly the one that is known
	choices []choice
	usage   *llm.Usage
	error   []byte // within the data; nil for null, too
	scan    scanner
}

// choice is one of the answers that were asked for, which is one.
type choice struct {
	index   int64
	delta   answer
	message answer // of a completion that was not streamed
	reason  string // finish_reason: "" and null, which some endpoints send until the end, are none
}

// answer is a delta or a message.
type answer struct {
	sent             bool // it is in the chunk
	content          string
	thinking         string // parts of content
	refusal          string
	reasoningContent string
	reasoning        string
	calls            []piece
}

// decode decodes one chunk. A usage of an unexpected shape is passed over: what an answer
// cost is not worth losing it. Any other member of a wrong type is an error, since text or
// calls might be lost with it. Of members that come twice the last counts, and names are
// told apart by case.
func (c *chunk) decode(data []byte) error {
	*c = chunk{choices: c.choices[:0], scan: scanner{data: data, scratch: c.scan.scratch}}
	s := &c.scan
	for more := s.begin('{', "the chunk"); more; more = s.next('}') {
		switch string(s.name()) {
		case "model":
			c.model = s.str("model")
		case "choices":
			c.choices = c.choices[:0]
			for more := s.begin('[', "choices"); more; more = s.next(']') {
				c.choices = append(c.choices, choice{})
				s.choice(&c.choices[len(c.choices)-1])
			}
		case "usage":
			c.usage = s.usage()
		case "error":
			if c.error = s.raw(); string(c.error) == "null" {
				c.error = nil
			}
		default:
			s.skip()
		}
	}
	if s.kind(); s.pos < len(s.data) {
		s.fail()
	}
	return cmp.Or(s.err, s.wrong)
}

// usage reads what an answer cost, in tokens, its total made up where it is missing.
func (s *scanner) usage() *llm.Usage {
	if s.kind() == 'n' {
		s.skip()
		return nil
	}
	wrong := s.wrong
	var u llm.Usage
	for more := s.begin('{', "usage"); more; more = s.next('}') {
		switch string(s.name()) {
		case "prompt_tokens":
			u.Input, _ = s.integer("prompt_tokens")
		case "completion_tokens":
			u.Output, _ = s.integer("completion_tokens")
		case "total_tokens":
			u.Total, _ = s.integer("total_tokens")
		default:
			s.skip()
		}
	}
	if s.wrong != wrong {
		s.wrong = wrong
		return nil
	}
	u.Total = cmp.Or(u.Total, u.Input+u.Output)
	return &u
}

func (s *scanner) choice(c *choice) {
	for more := s.begin('{', "a choice"); more; more = s.next('}') {
		switch string(s.name()) {
		case "index":
			c.index, _ = s.integer("index")
		case "delta":
			s.answer(&c.delta, "delta")
		case "message":
			s.answer(&c.message, "message")
		case "finish_reason":
			c.reason = s.text("finish_reason")
		default:
			s.skip()
		}
	}
}

func (s *scanner) answer(a *answer, member string) {
	*a = answer{sent: s.kind() == '{'}
	for more := s.begin('{', member); more; more = s.next('}') {
		switch string(s.name()) {
		case "content":
			a.content, a.thinking = s.content()
		case "refusal":
			a.refusal = s.anyText()
		case "reasoning_content":
			a.reasoningContent = s.anyText()
		case "reasoning":
			a.reasoning = s.anyText()
		case "tool_calls":
			a.calls = nil
			for more := s.begin('[', "tool_calls"); more; more = s.next(']') {
				a.calls = append(a.calls, s.piece())
			}
		default:
			s.skip()
		}
	}
}

// content reads content, which is a string or an array of parts, and returns its text and
// its reasoning. Parts that are neither, such as images, are passed over.
func (s *scanner) content() (said, thought string) {
	if s.kind() != '[' {
		return s.anyText(), ""
	}
	for more := s.begin('[', ""); more; more = s.next(']') {
		if s.kind() != '{' {
			s.skip()
			continue
		}
		var kind, text, thinking string
		for more := s.begin('{', ""); more; more = s.next('}') {
			switch string(s.name()) {
			case "type":
				kind = s.anyText()
			case "text":
				text = s.anyText()
			case "thinking":
				thinking, _ = s.content() // Mistral: text parts again
			default:
				s.skip()
			}
		}
		if kind == "thinking" {
			thought += thinking
		} else {
			said += text
		}
	}
	return said, thought
}

// piece reads a piece of a call, or a whole one. Its index may be missing or null, its id
// and name come once or with every piece, and its arguments are text or, at some endpoints,
// the object itself.
func (s *scanner) piece() (p piece) {
	for more := s.begin('{', "a call"); more; more = s.next('}') {
		switch string(s.name()) {
		case "index":
			p.index, p.numbered = s.integer("index")
		case "id":
			p.id = s.text("id")
		case "function":
			for more := s.begin('{', "function"); more; more = s.next('}') {
				switch string(s.name()) {
				case "name":
					p.name = s.text("name")
				case "arguments":
					p.arguments = s.arguments()
				default:
					s.skip()
				}
			}
		default:
			s.skip()
		}
	}
	return p
}

func (s *scanner) arguments() string {
	switch s.kind() {
	case '"', 'n':
		return s.anyText()
	}
	return string(s.raw())
}

// errorStatus finds an HTTP status in an error object that came inside a stream,
// where the reply's own status had already been 200; 0 if there is none.
func errorStatus(raw []byte) int {
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
