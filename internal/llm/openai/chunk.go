package openai

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"answerd/internal/llm"
)

// chunk holds the used members of a streamed chunk, or of a whole completion. Decoding again
// into the same chunk reuses its memory.
type chunk struct {
	model   []byte // in quotes, within the data: it is nearly always the known name
	choices []deltaChoice
	usage   *llm.Usage
	error   []byte // within the data; nil if it is empty
	scan    jsonScanner
}

// deltaChoice holds an element of choices. Requests ask for one choice.
type deltaChoice struct {
	index   int64
	delta   delta
	message delta // of a completion that is not streamed
	usage   *llm.Usage
	reason  string // finish_reason; "" and null, which some endpoints send until the end, count as unset
	error   []byte // within the data; nil if it is empty
}

// delta holds the used members of a delta or a message.
type delta struct {
	sent                              bool // the chunk has this member
	content                           string
	parts                             []contentPart // of content that is an array
	thinking                          string        // parts of content
	refusal                           string
	reasoningContent                  string
	reasoning                         string
	calls                             []callPiece
	hasReasoningContent, hasReasoning bool        // true for an empty string as well
	members                           []rawMember // all others
}

// decodeJSON decodes one chunk. A usage of an unexpected shape is ignored, because an answer is
// worth more than its token counts. Any other member of a wrong type is an error, because text
// or calls could be lost with it. Of a repeated member the last one counts; names are
// case-sensitive. Byte slices of the chunk lie within data, so they are valid as long as data is; strings
// are copies. An input that ends too early is errCut, so that readStream can tell a connection that
// broke from an endpoint that sends nonsense.
func (c *chunk) decodeJSON(data []byte) error {
	*c = chunk{choices: c.choices[:0], scan: jsonScanner{data: data, scratch: c.scan.scratch}}
	scanner := &c.scan
	for more := scanner.enter('{', "the chunk"); more; more = scanner.hasNext('}') {
		switch string(scanner.readName()) {
		case "model":
			c.model = scanner.readQuoted("model")
		case "choices":
			c.choices = c.choices[:0]
			for more := scanner.enter('[', "choices"); more; more = scanner.hasNext(']') {
				c.choices = append(c.choices, deltaChoice{})
				scanner.readChoice(&c.choices[len(c.choices)-1])
			}
		case "usage":
			c.usage = scanner.readUsage()
		case "error":
			c.error = scanner.readErrorMember()
		default:
			scanner.skipValue()
		}
	}
	scanner.peekKind()
	if scanner.pos < len(scanner.data) {
		scanner.failSyntax()
	}
	return cmp.Or(scanner.syntaxErr, scanner.typeErr)
}

// readErrorMember returns the value of a member named error; nil if it says that there is none. Gateways
// that never leave the member out send an empty one with each chunk, which the official SDKs pass over.
func (s *jsonScanner) readErrorMember() []byte {
	value := s.readRaw()
	switch string(value) {
	case "null", "false", `""`, "{}":
		return nil
	}
	return value
}

// maxTokens bounds a token count of an endpoint. No model has a context of a trillion tokens.
const maxTokens = 1 << 40

// readUsage reads the token counts of an answer, and computes a missing total. All that a total has beyond the prompt counts
// as output: completion_tokens of xAI and Gemini lack the reasoning, which is billed as output
// (https://docs.x.ai/docs/key-information/consumption-and-rate-limits). It returns nil if a count is no
// integer, negative or above maxTokens: budgets are counted by these.
func (s *jsonScanner) readUsage() *llm.Usage {
	if s.peekKind() == 'n' {
		s.skipValue()
		return nil
	}
	wrong := s.typeErr
	var usage llm.Usage
	for more := s.enter('{', "usage"); more; more = s.hasNext('}') {
		switch string(s.readName()) {
		case "prompt_tokens":
			usage.Input, _ = s.readInteger("prompt_tokens")
		case "completion_tokens":
			usage.Output, _ = s.readInteger("completion_tokens")
		case "total_tokens":
			usage.Total, _ = s.readInteger("total_tokens")
		default:
			s.skipValue()
		}
	}
	if s.typeErr != wrong {
		s.typeErr = wrong
		return nil
	}
	if min(usage.Input, usage.Output, usage.Total) < 0 || max(usage.Input, usage.Output, usage.Total) > maxTokens {
		return nil
	}
	usage.Total = cmp.Or(usage.Total, usage.Input+usage.Output)
	if usage.Input > 0 {
		usage.Output = max(usage.Output, usage.Total-usage.Input)
	}
	return &usage
}

// readChoice reads an element of choices into choice. A choice has a delta in a stream and a message in a
// completion. addChoice also accepts a message in a stream.
func (s *jsonScanner) readChoice(choice *deltaChoice) {
	for more := s.enter('{', "a choice"); more; more = s.hasNext('}') {
		switch string(s.readName()) {
		case "index":
			choice.index, _ = s.readInteger("index")
		case "delta":
			s.readDelta(&choice.delta, "delta")
		case "message":
			s.readDelta(&choice.message, "message")
		case "finish_reason":
			choice.reason = s.readString("finish_reason")
			if choice.reason == "null" { // older KoboldCpp, with each chunk
				choice.reason = ""
			}
		case "usage": // Moonshot
			choice.usage = s.readUsage()
		case "error": // OpenRouter
			choice.error = s.readErrorMember()
		default:
			s.skipValue()
		}
	}
}

// readDelta reads a delta or a message into a; member is its name, for errors. null leaves a unsent, as
// if the member were missing. What Chat Completions does not define goes to a.members, because some
// endpoints want it back (extensions.go).
func (s *jsonScanner) readDelta(out *delta, member string) {
	*out = delta{sent: s.peekKind() == '{'}
	for more := s.enter('{', member); more; more = s.hasNext('}') {
		switch name := s.readName(); string(name) {
		case "content":
			out.content, out.thinking, out.parts = s.readContent()
		case "refusal":
			out.refusal = s.readStringOrSkip()
		case "reasoning_content":
			out.hasReasoningContent = s.peekKind() == '"'
			out.reasoningContent = s.readStringOrSkip()
		case "reasoning":
			out.hasReasoning = s.peekKind() == '"'
			out.reasoning = s.readStringOrSkip()
		case "tool_calls":
			out.calls = nil
			for more := s.enter('[', "tool_calls"); more; more = s.hasNext(']') {
				out.calls = append(out.calls, s.readCallPiece())
			}
		default:
			out.members = s.readMember(out.members, name)
		}
	}
}

// readContent reads content, which is a string or an array of parts, and returns its text, its
// reasoning and, of an array, its parts. The text of parts that are neither, such as images, is
// empty.
func (s *jsonScanner) readContent() (said, thought string, parts []contentPart) {
	if s.peekKind() != '[' {
		return s.readStringOrSkip(), "", nil
	}
	for more := s.enter('[', ""); more; more = s.hasNext(']') {
		if s.peekKind() != '{' {
			s.skipValue()
			continue
		}
		part, thinking := s.readContentPart()
		if part.kind == "thinking" {
			thought += thinking
		} else {
			said += part.text
		}
		parts = append(parts, part)
	}
	return said, thought, parts
}

// readContentPart reads one part of content, and the text in its thinking.
func (s *jsonScanner) readContentPart() (part contentPart, thinking string) {
	data, start := s.data, s.pos
	part.plain = true
	for more := s.enter('{', ""); more; more = s.hasNext('}') {
		switch string(s.readName()) {
		case "type":
			part.kind = s.readStringOrSkip()
		case "text":
			part.text = s.readStringOrSkip()
		case "thinking":
			thinking, _, _ = s.readContent() // Mistral: text parts again
			part.plain = false
		default:
			s.skipValue()
			part.plain = false
		}
	}
	part.plain = part.plain && part.kind == "text"
	if s.syntaxErr == nil {
		part.raw = data[start:s.pos]
	}
	return part, thinking
}

// readCallPiece reads a piece of a call, or a whole call. Its index may be missing or null. Its
// id and name come once or with every piece. Its arguments are text or, at some endpoints, the
// object itself.
func (s *jsonScanner) readCallPiece() (piece callPiece) {
	for more := s.enter('{', "a call"); more; more = s.hasNext('}') {
		switch name := s.readName(); string(name) {
		case "type":
			s.skipValue()
		case "index":
			piece.index, piece.hasIndex = s.readInteger("index")
		case "id":
			piece.id = s.readString("id")
		case "function":
			for more := s.enter('{', "function"); more; more = s.hasNext('}') {
				switch string(s.readName()) {
				case "name":
					piece.name = s.readString("name")
				case "arguments":
					piece.arguments = s.readArguments()
				default:
					s.skipValue()
				}
			}
		default:
			piece.members = s.readMember(piece.members, name)
		}
	}
	return piece
}

// readMember reads a member that this package does not interpret, and appends it to list.
func (s *jsonScanner) readMember(list []rawMember, name []byte) []rawMember {
	if ignoredMembers[string(name)] {
		s.skipValue()
		return list
	}
	known := string(name) // copied, because the memory of name is reused
	if value := s.readRaw(); len(value) > 0 {
		list = append(list, rawMember{known, value})
	}
	return list
}

// readArguments returns the arguments of a call, or a piece of them: the text in a string, and the JSON
// of any other value.
func (s *jsonScanner) readArguments() string {
	switch s.peekKind() {
	case '"', 'n':
		return s.readStringOrSkip()
	}
	return string(s.readRaw())
}

// typeStatuses has the statuses that OpenAI and Anthropic send an error of that type with.
var typeStatuses = map[string]int{
	"server_error": http.StatusInternalServerError, "api_error": http.StatusInternalServerError,
	"rate_limit_exceeded": http.StatusTooManyRequests, "rate_limit_error": http.StatusTooManyRequests,
	"overloaded_error": 529,
}

// errorStatus returns the HTTP status of an error object that arrived inside a stream, whose own
// status was already 200: the one in the object, or else that of its type. It returns 0 if the object has neither.
func errorStatus(raw []byte) int {
	var object struct {
		Code   json.RawMessage `json:"code"`
		Status json.RawMessage `json:"status"`
		Type   json.RawMessage `json:"type"`
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
	for _, field := range []json.RawMessage{object.Code, object.Type} {
		if status := typeStatuses[strings.Trim(string(field), `"`)]; status != 0 {
			return status
		}
	}
	return 0
}
