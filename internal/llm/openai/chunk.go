package openai

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"answerd/internal/llm"
)

// chunk holds the members of a streamed chunk, or of a whole completion, that this package uses. Decoding again into
// the same chunk reuses its memory. Byte slices are parts of the decoded data.
type chunk struct {
	model   []byte // JSON string in quotes; decoded only if it differs from the known name
	choices []deltaChoice
	usage   *llm.Usage // nil if missing or invalid
	error   []byte     // JSON; nil if missing or empty
	scan    jsonScanner
}

// deltaChoice is an element of choices. Requests ask for one choice.
type deltaChoice struct {
	index   int64
	delta   delta
	message delta      // the whole answer, in a completion that is not streamed
	usage   *llm.Usage // nil if missing or invalid
	reason  string     // finish_reason; "" until the end
	error   []byte     // JSON; nil if missing or empty
}

// delta holds the members of a delta or a message that this package uses. Missing members are empty.
type delta struct {
	present             bool          // the chunk has this delta or message
	content             string        // text of content; of an array, the text of all parts that are not thinking
	parts               []contentPart // content that is an array; nil for a string
	thinking            string        // reasoning in the thinking parts of content
	refusal             string
	reasoningContent    string
	reasoning           string
	calls               []callPiece
	hasReasoningContent bool        // reasoning_content is a string, which may be empty
	hasReasoning        bool        // reasoning is a string, which may be empty
	members             []rawMember // members that Chat Completions does not define
}

// decodeJSON decodes one chunk. It ignores a usage of an unexpected shape, because an answer is worth more than its
// token counts. Any other member of a wrong type is an error, because text or calls could be lost with it. Of a
// repeated member, the last one is used. Names are case-sensitive. Byte slices in the chunk are parts of data, and are
// valid as long as data is. Strings are copies. If the input ends too early, the error is errCut, so that readStream
// can distinguish a broken connection from an endpoint that sends invalid JSON.
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
	scanner.peekKind() // skips white space
	if scanner.pos < len(scanner.data) {
		scanner.failSyntax() // more data after the chunk
	}
	return cmp.Or(scanner.syntaxErr, scanner.typeErr)
}

// readErrorMember reads the value of a member named error. It returns nil if the value is empty, because some gateways
// send an empty error with each chunk. The official SDKs ignore these too.
func (s *jsonScanner) readErrorMember() []byte {
	value := s.readRaw()
	switch string(value) {
	case "null", "false", `""`, "{}":
		return nil
	}
	return value
}

// maxTokens is the largest token count that is accepted from an endpoint. No model has a context of a trillion tokens.
const maxTokens = 1 << 40

// readUsage reads an answer's token counts. If the total is missing, it is the sum of input and output. If the input is
// known and the total exceeds this sum, the excess counts as output: completion_tokens of xAI and Gemini do not include
// the reasoning, which is billed as output (https://docs.x.ai/docs/key-information/consumption-and-rate-limits).
// mlx-vlm has the names input_tokens and output_tokens (https://github.com/earendil-works/pi/issues/2326).
// readUsage returns nil for null. Because budgets are charged with the counts, it also returns nil if a count is not an
// integer, is negative, or exceeds maxTokens.
func (s *jsonScanner) readUsage() *llm.Usage {
	if s.peekKind() == 'n' {
		s.skipValue()
		return nil
	}
	previousErr := s.typeErr // from the members before usage
	var usage llm.Usage
	var input, output int64 // under the names of the Responses API
	for more := s.enter('{', "usage"); more; more = s.hasNext('}') {
		switch string(s.readName()) {
		case "prompt_tokens":
			usage.Input, _ = s.readInteger("prompt_tokens")
		case "completion_tokens":
			usage.Output, _ = s.readInteger("completion_tokens")
		case "input_tokens":
			input, _ = s.readInteger("input_tokens")
		case "output_tokens":
			output, _ = s.readInteger("output_tokens")
		case "total_tokens":
			usage.Total, _ = s.readInteger("total_tokens")
		default:
			s.skipValue()
		}
	}
	if s.typeErr != previousErr { // a wrong usage is not an error of the chunk
		s.typeErr = previousErr
		return nil
	}
	usage.Input, usage.Output = cmp.Or(usage.Input, input), cmp.Or(usage.Output, output)
	if min(usage.Input, usage.Output, usage.Total) < 0 || max(usage.Input, usage.Output, usage.Total) > maxTokens {
		return nil
	}
	usage.Total = cmp.Or(usage.Total, usage.Input+usage.Output)
	if usage.Input > 0 {
		usage.Output = max(usage.Output, usage.Total-usage.Input)
	}
	return &usage
}

// readChoice reads an element of choices into choice. A choice has a delta in a stream, and a message in a completion.
// addChoice also accepts a message in a stream.
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
			if choice.reason == "null" { // sent by older versions of KoboldCpp before the end of the answer
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

// readDelta reads a delta or a message into out. member is its name, for errors. null counts as a missing member, so
// out.present is then false. Members that Chat Completions does not define are added to out.members, because some
// endpoints want them back (extensions.go).
func (s *jsonScanner) readDelta(out *delta, member string) {
	*out = delta{present: s.peekKind() == '{'}
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

// readContent reads content, which is a string or an array of parts. text is the string, or the joined text of the
// parts. reasoning is the joined text of the parts of type thinking. parts is nil for a string. A part without text,
// such as an image, appears only in parts. readContent skips a value of any other type.
func (s *jsonScanner) readContent() (text, reasoning string, parts []contentPart) {
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
			reasoning += thinking
		} else {
			text += part.text
		}
		parts = append(parts, part)
	}
	return text, reasoning, parts
}

// readContentPart reads one part of content. thinking is the text in the part's member thinking, or "" if it has none.
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
			thinking, _, _ = s.readContent() // Mistral sends an array of text parts
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

// readCallPiece reads a piece of a call, or a whole call. The index may be missing or null. The id and the name may
// come once or with every piece.
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
			s.readFunction(&piece)
		default:
			piece.members = s.readMember(piece.members, name)
		}
	}
	return piece
}

// readFunction reads the member function of a call into piece. The arguments are a string or, from some endpoints, the
// object itself.
func (s *jsonScanner) readFunction(piece *callPiece) {
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
}

// readMember reads the value of a member that this package does not interpret, and returns members with the member
// appended. It skips members in ignoredMembers, and appends nothing if the value has a syntax error.
func (s *jsonScanner) readMember(members []rawMember, name []byte) []rawMember {
	if ignoredMembers[string(name)] {
		s.skipValue()
		return members
	}
	value := s.readRaw()
	if value == nil {
		return members
	}
	return append(members, rawMember{name: string(name), value: value})
}

// readArguments returns the arguments of a call, or a piece of them: the text of a string, or the JSON of any other
// value.
func (s *jsonScanner) readArguments() string {
	if kind := s.peekKind(); kind == '"' || kind == 'n' { // a string or null
		return s.readStringOrSkip()
	}
	return string(s.readRaw())
}

// typeStatuses maps error types and codes to the HTTP status with which OpenAI and Anthropic send them.
var typeStatuses = map[string]int{
	"server_error": http.StatusInternalServerError, "api_error": http.StatusInternalServerError,
	"rate_limit_exceeded": http.StatusTooManyRequests, "rate_limit_error": http.StatusTooManyRequests,
	"overloaded_error": 529, "insufficient_quota": http.StatusTooManyRequests,
}

// errorStatus returns the HTTP status for an error object inside a stream, whose own status was already 200. This is
// the status in the member code or status, or else the status that typeStatuses has for the code or type. errorStatus
// returns 0 if the object has neither.
func errorStatus(raw []byte) int {
	var object struct{ Code, Status, Type json.RawMessage }
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
